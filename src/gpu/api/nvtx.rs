//! NVTX: named ranges that profilers show. Without the library nothing happens.

use crate::library;
use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
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

/// A named range on the calling thread, closed on drop. Profilers show everything enqueued meanwhile under its name.
#[must_use]
pub struct Range {
    functions: Option<&'static Functions>,
    /// Not `Send`: NVTX closes a range on the thread that opened it.
    thread: PhantomData<*const ()>,
}

impl Range {
    /// Opens a range. The name ends at its first zero byte.
    pub fn new(name: &str) -> Range {
        let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let functions = functions();
        if let Some(functions) = functions {
            // SAFETY: the name ends with a zero and is copied before the call returns.
            unsafe { (functions.push)(name.as_ptr()) };
        }
        Range { functions, thread: PhantomData }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(functions) = self.functions {
            // SAFETY: takes no arguments; `new` opened a range on this thread.
            unsafe { (functions.pop)() };
        }
    }
}
