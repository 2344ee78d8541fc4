//! NVTX: named ranges that profilers show. Where the library is absent, nothing happens.

use super::super::library;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

struct Functions {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    let load = || {
        let library = library::open(&library::NVTX).ok()?.reopen().ok()?;
        let (push, pop) = (super::symbol(&library, "nvtxRangePushA\0"), super::symbol(&library, "nvtxRangePop\0"));
        Some(Functions { push: push?, pop: pop? })
    };
    FUNCTIONS.get_or_init(load).as_ref()
}

/// Opens a range on this thread; false where there is no library.
pub(in crate::cuda) fn push(name: &CStr) -> bool {
    let Some(functions) = functions() else { return false };
    // SAFETY: the name ends with a zero and is copied before the call returns.
    unsafe { (functions.push)(name.as_ptr()) };
    true
}

/// Closes the range that this thread opened last.
pub(in crate::cuda) fn pop() {
    if let Some(functions) = functions() {
        // SAFETY: no argument; without an open range the library returns an error number.
        unsafe { (functions.pop)() };
    }
}
