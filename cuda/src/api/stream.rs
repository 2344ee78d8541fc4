//! Streams: in-order queues of work on a GPU. All methods except the last two only enqueue. The calling thread's current GPU must
//! be the stream's: see [`crate::cuda::Gpu::make_current`].

use super::super::kernel::Launch;
use super::driver::{call, done};
use super::{Address, Context, Event, Fault, FunctionHandle, Handle, Pinned, StreamHandle};
use cudarc::driver::sys;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Flag of a stream that does not synchronise with the default stream.
const NON_BLOCKING: c_uint = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;

/// A kernel argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A pointer.
    Address(Address),
    /// An `int`.
    Int(i32),
    /// A `size_t`.
    Size(usize),
    /// A `float`.
    Float(f32),
}

impl Argument {
    /// Returns the argument's bytes, first byte lowest: every machine that CUDA supports is little-endian.
    fn bits(self) -> u64 {
        match self {
            Argument::Address(address) => address.0,
            Argument::Int(value) => u64::from(value as u32),
            Argument::Size(value) => value as u64,
            Argument::Float(value) => u64::from(value.to_bits()),
        }
    }
}

/// Largest number of arguments of a kernel.
const MOST_ARGUMENTS: usize = 16;

/// An in-order queue of work of one context.
pub struct Stream {
    context: Arc<Context>,
    pub handle: StreamHandle,
    enqueued: AtomicU64,
}

impl Stream {
    /// Creates a stream. Its kernels run on the context's multiprocessors.
    pub fn new(context: &Arc<Context>) -> Result<Stream, Fault> {
        context.make_current()?;
        let mut stream = std::ptr::null_mut();
        match context.green_handle() {
            Some(green) => call!(context, cuGreenCtxStreamCreate(&mut stream, green.raw(), NON_BLOCKING, 0))?,
            None => call!(context, cuStreamCreate(&mut stream, NON_BLOCKING))?,
        }
        Ok(Stream { context: context.clone(), handle: Handle::new(stream), enqueued: AtomicU64::new(0) })
    }

    /// Creates a stream whose kernels go before those of other streams, for short ones that other GPUs wait for.
    pub fn urgent(context: &Arc<Context>) -> Result<Stream, Fault> {
        context.make_current()?;
        let (mut stream, mut least, mut greatest) = (std::ptr::null_mut(), 0, 0);
        call!(context, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        match context.green_handle() {
            Some(green) => call!(context, cuGreenCtxStreamCreate(&mut stream, green.raw(), NON_BLOCKING, greatest))?,
            None => call!(context, cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, greatest))?,
        }
        Ok(Stream { context: context.clone(), handle: Handle::new(stream), enqueued: AtomicU64::new(0) })
    }

    /// Returns the driver's pointer, for a library that enqueues on it.
    pub fn raw(&self) -> *mut c_void {
        self.note_enqueued();
        self.handle.raw().cast()
    }

    /// As [`Stream::raw`], for cuBLASLt, which enqueues up to two kernels.
    pub fn for_product(&self) -> StreamHandle {
        self.enqueued.fetch_add(2, Ordering::Relaxed);
        self.handle
    }

    /// Number of pieces of work enqueued so far, by these methods and by libraries.
    pub fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Relaxed)
    }

    fn note_enqueued(&self) {
        self.enqueued.fetch_add(1, Ordering::Relaxed);
    }

    /// Places the event, of the same context, behind everything enqueued so far.
    pub fn record(&self, event: &Event) -> Result<(), Fault> {
        self.note_enqueued();
        call!(self.context, cuEventRecord(event.handle.raw(), self.handle.raw()))
    }

    /// Makes later work wait for the event, which may be of any device.
    pub fn wait(&self, event: &Event) -> Result<(), Fault> {
        self.note_enqueued();
        call!(self.context, cuStreamWaitEvent(self.handle.raw(), event.handle.raw(), 0))
    }

    /// Makes later work wait until the 64-bit word at `address` is at least `value`, compared modulo 2^64.
    pub fn wait_value(&self, address: Address, value: u64) -> Result<(), Fault> {
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        self.note_enqueued();
        call!(self.context, cuStreamWaitValue64_v2(self.handle.raw(), address.0, value, at_least))
    }

    /// As [`Stream::wait_value`]; later work also sees what arrived over a network before the word. Not all devices support it.
    pub fn wait_value_flushed(&self, address: Address, value: u64) -> Result<(), Fault> {
        let [at_least, flush] = [
            sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ,
            sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH,
        ];
        let flags = at_least as c_uint | flush as c_uint;
        self.note_enqueued();
        call!(self.context, cuStreamWaitValue64_v2(self.handle.raw(), address.0, value, flags))
    }

    /// Writes the 64-bit word at `address`, after everything enqueued before is visible.
    pub fn write_value(&self, address: Address, value: u64) -> Result<(), Fault> {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;
        self.note_enqueued();
        call!(self.context, cuStreamWriteValue64_v2(self.handle.raw(), address.0, value, flags))
    }

    /// Copies within a device, or between devices with peer access.
    pub fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        self.note_enqueued();
        call!(self.context, cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, self.handle.raw()))
    }

    /// Copies between two contexts' memory, with or without peer access.
    pub fn copy_peer(&self, to: (Address, &Context), from: (Address, &Context), bytes: usize) -> Result<(), Fault> {
        let ((to, there), (from, here)) = ((to.0.0, to.1.handle.raw()), (from.0.0, from.1.handle.raw()));
        if bytes == 0 {
            return Ok(());
        }
        self.note_enqueued();
        call!(self.context, cuMemcpyPeerAsync(to, there, from, here, bytes, self.handle.raw()))
    }

    /// Copies a range of bytes of pinned memory to the device. The bytes must not change until the copy is done.
    pub fn upload(&self, to: Address, from: &Pinned, range: Range<usize>) -> Result<(), Fault> {
        let from = from.pointer(range.clone()).cast();
        if range.is_empty() {
            return Ok(());
        }
        self.note_enqueued();
        call!(self.context, cuMemcpyHtoDAsync_v2(to.0, from, range.len(), self.handle.raw()))
    }

    /// Copies to a range of bytes of pinned memory, readable once the copy is done.
    pub fn download(&self, to: &Pinned, range: Range<usize>, from: Address) -> Result<(), Fault> {
        let to = to.pointer(range.clone()).cast();
        if range.is_empty() {
            return Ok(());
        }
        self.note_enqueued();
        call!(self.context, cuMemcpyDtoHAsync_v2(to, from.0, range.len(), self.handle.raw()))
    }

    /// Sets bytes to zero.
    pub fn clear(&self, to: Address, bytes: usize) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        self.note_enqueued();
        call!(self.context, cuMemsetD8Async(to.0, 0, bytes, self.handle.raw()))
    }

    /// Writes one float32.
    pub fn set(&self, to: Address, value: f32) -> Result<(), Fault> {
        self.note_enqueued();
        call!(self.context, cuMemsetD32Async(to.0, value.to_bits(), 1, self.handle.raw()))
    }

    /// Launches a kernel. The arguments must match the kernel's, in order.
    pub fn launch(&self, kernel: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), Fault> {
        let Launch { grid: [x, y, z], block, shared_bytes } = launch;
        let mut values = [0_u64; MOST_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        assert!(arguments.len() <= MOST_ARGUMENTS, "a kernel has at most {MOST_ARGUMENTS} arguments");
        for ((value, pointer), argument) in values.iter_mut().zip(&mut pointers).zip(arguments) {
            *value = argument.bits();
            *pointer = std::ptr::from_mut(value).cast();
        }
        let (kernel, stream, none) = (kernel.raw(), self.handle.raw(), std::ptr::null_mut());
        let pointers = pointers.as_mut_ptr();
        self.note_enqueued();
        call!(self.context, cuLaunchKernel(kernel, x, y, z, block, 1, 1, shared_bytes, stream, pointers, none))
    }

    /// Whether everything enqueued is done.
    pub fn is_done(&self) -> Result<bool, Fault> {
        done(call!(self.context, cuStreamQuery(self.handle.raw())))
    }

    /// Blocks the calling thread until everything enqueued is done.
    pub fn synchronize(&self) -> Result<(), Fault> {
        call!(self.context, cuStreamSynchronize(self.handle.raw()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = call!(self.context, cuStreamDestroy_v2(self.handle.raw()));
    }
}
