//! Device memory, pinned host memory, and a pool of reusable device buffers.

use super::driver::call;
use super::{Address, Context, Fault, ProcessHandle};
use anyhow::{Context as _, Result, bail};
use cudarc::driver::sys;
use std::ffi::{c_char, c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;

/// A model or schedule that this GPU does not support: too little memory, or sizes beyond the kernels'. Another device may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

impl Unsupported {
    /// Whether `error` has this cause.
    pub fn is_behind(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| cause.is::<Unsupported>())
    }
}

/// Uninitialised memory of one device, freed on drop.
pub struct Buffer {
    context: Arc<Context>,
    address: Address,
    pub(super) bytes: usize,
}

/// Granularity of sharing: the driver cuts smaller allocations out of blocks of this many bytes and shares whole blocks.
const SHARED_BYTES: usize = 2 << 20;

impl Buffer {
    /// Allocates `bytes` bytes; 0 is allowed.
    ///
    /// # Errors
    /// The device has too little free memory: [`Unsupported`], with the numbers.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Buffer> {
        context.make_current()?;
        let mut address = 0;
        match call!(context, cuMemAlloc_v2(&mut address, bytes.max(1))) {
            Ok(()) => Ok(Buffer { context: context.clone(), address: Address(address), bytes }),
            Err(fault) if fault.is_out_of_memory() => {
                let (free, total) = context.memory()?;
                bail!(Unsupported(format!(
                    "expected {} MiB more of device memory, found {} of {} MiB free: choose smaller or fewer micro-batches, \
                     bfloat16, or more stages",
                    mib(bytes),
                    free >> 20,
                    total >> 20
                )))
            }
            Err(fault) => Err(fault).with_context(|| format!("allocating {bytes} bytes")),
        }
    }

    /// Allocates memory that [`Buffer::share`] can share, rounded up to whole blocks so that nothing else is shared with it.
    pub fn shareable(context: &Arc<Context>, bytes: usize) -> Result<Buffer> {
        let mut buffer = Buffer::new(context, bytes.next_multiple_of(SHARED_BYTES))?;
        buffer.bytes = bytes;
        Ok(buffer)
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a handle by which another process of this machine can open memory made by [`Buffer::shareable`].
    ///
    /// # Errors
    /// This system does not support sharing memory.
    pub fn share(&self) -> Result<ProcessHandle, Fault> {
        self.context.make_current()?;
        let mut name = sys::CUipcMemHandle { reserved: [0; 64] };
        call!(self.context, cuIpcGetMemHandle(&mut name, self.address.0))?;
        Ok(name.reserved.map(|byte| byte as u8))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A fault here was already reported by an earlier call.
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuMemFree_v2(self.address.0)));
    }
}

/// Mebibytes, rounded up.
pub fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// Another process's memory, mapped here until dropped.
pub struct Imported {
    context: Arc<Context>,
    address: Address,
}

impl Imported {
    /// Opens memory that another process shared with [`Buffer::share`].
    ///
    /// # Errors
    /// The other process has ended, or is this one, or its GPU cannot be reached from this context's.
    pub fn open(context: &Arc<Context>, name: ProcessHandle) -> Result<Imported, Fault> {
        context.make_current()?;
        let mut address = 0;
        let name = sys::CUipcMemHandle { reserved: name.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        call!(context, cuIpcOpenMemHandle_v2(&mut address, name, flags))?;
        Ok(Imported { context: context.clone(), address: Address(address) })
    }

    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuIpcCloseMemHandle(self.address.0)));
    }
}

/// Page-locked host memory, zeroed, freed on drop.
///
/// An enqueued copy reads or writes it later: keep it, and do not touch its bytes, until an event after the copy is reached. The
/// methods below copy bytes in and out and return no references.
pub struct Pinned {
    context: Arc<Context>,
    address: usize,
    bytes: usize,
}

/// Every context may use the memory.
const PORTABLE: u32 = cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;

impl Pinned {
    /// Allocates `bytes` bytes.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, Fault> {
        context.make_current()?;
        let mut pointer = std::ptr::null_mut();
        call!(context, cuMemHostAlloc(&mut pointer, bytes.max(1), PORTABLE))?;
        // SAFETY: the driver has just allocated this many bytes.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
        Ok(Pinned { context: context.clone(), address: pointer.expose_provenance(), bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of a range of bytes. Panics if the range is out of bounds.
    pub(super) fn pointer(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is beyond {} bytes", self.bytes);
        std::ptr::with_exposed_provenance_mut(self.address + range.start)
    }

    /// Copies `values` to the bytes from `offset` on.
    pub fn write<T: bytemuck::NoUninit>(&mut self, offset: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let to = self.pointer(offset..offset + bytes.len());
        // SAFETY: the range was just checked, and no Rust reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `offset` on to `values`.
    pub fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self, offset: usize, values: &mut [T]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let from = self.pointer(offset..offset + bytes.len());
        // SAFETY: the range was just checked, and no Rust reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(self.address);
        // A fault here was already reported by an earlier call.
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuMemFreeHost(pointer)));
    }
}
