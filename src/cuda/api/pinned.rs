//! Host memory that the driver holds in place, so that copies to and from a GPU need not wait for the host.

use super::context::Context;
use super::driver::{Fault, call};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// Page-locked host memory, zeroed, freed on drop.
///
/// A copy that was enqueued reads or writes it later. Whoever enqueues one keeps this memory, and touches its bytes again
/// only when an event after the copy was reached: the methods below copy bytes in and out at once and lend none.
pub struct Pinned {
    context: Arc<Context>,
    address: usize,
    bytes: usize,
}

/// Any context may use the memory.
const PORTABLE: u32 = cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;

impl Pinned {
    /// Memory of this many bytes.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, Fault> {
        context.make_current()?;
        let mut pointer = std::ptr::null_mut();
        call!(context, cuMemHostAlloc(&mut pointer, bytes.max(1), PORTABLE))?;
        // SAFETY: the driver just gave us so many bytes.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
        Ok(Pinned { context: context.clone(), address: pointer.expose_provenance(), bytes })
    }

    #[cfg(feature = "internals")]
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where a range of bytes begins. Panics if the range is not within the memory.
    pub(super) fn pointer(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is beyond {} bytes", self.bytes);
        std::ptr::with_exposed_provenance_mut(self.address + range.start)
    }

    /// Copies `values` to the bytes from `offset` on.
    pub fn write<T: bytemuck::NoUninit>(&mut self, offset: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let to = self.pointer(offset..offset + bytes.len());
        // SAFETY: the range is ours, as just checked, and no Rust reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `offset` on to `values`.
    pub fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self, offset: usize, values: &mut [T]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let from = self.pointer(offset..offset + bytes.len());
        // SAFETY: the range is ours, as just checked, and no Rust reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(self.address);
        // a fault here was reported by an earlier call already
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuMemFreeHost(pointer)));
    }
}
