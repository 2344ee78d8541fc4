//! Ranges with the names of ops, for profilers: what is enqueued while one is open shows under its name.

use super::api::ranges;
use crate::op::Op;
use std::ffi::CString;
use std::marker::PhantomData;

/// A named range of this thread, closed on drop. Where NVTX is absent it is nothing.
#[must_use]
pub struct Range {
    open: bool,
    /// A range is closed on the thread that opened it.
    here: PhantomData<*const ()>,
}

impl Range {
    /// Opens a range; a zero byte ends the name.
    pub fn new(name: &str) -> Range {
        let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        Range { open: ranges::push(&name), here: PhantomData }
    }

    /// Opens a range named as the op is printed, such as `0F3`.
    pub fn op(op: Op) -> Range {
        Range::new(&op.to_string())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.open {
            ranges::pop();
        }
    }
}
