//! The driver's calls that concern streams and events: what is enqueued, and what is waited for.

use super::driver::{Api, ContextHandle, EventHandle, Fault, FunctionHandle, GreenHandle, StreamHandle, call};
use super::handle::{Address, Handle};
use super::pinned::Pinned;
use cudarc::driver::sys;
use std::ffi::{c_char, c_uint, c_void};
use std::ops::Range;

/// Streams that do not wait for the default stream.
const NON_BLOCKING: c_uint = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;

/// An argument of a kernel.
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
    /// The argument's bytes, from the first on: numbers are little-endian on every machine that CUDA runs on.
    fn bits(self) -> u64 {
        match self {
            Argument::Address(address) => address.0,
            Argument::Int(value) => u64::from(value as u32),
            Argument::Size(value) => value as u64,
            Argument::Float(value) => u64::from(value.to_bits()),
        }
    }
}

/// Most arguments that a kernel has.
const MOST_ARGUMENTS: usize = 16;

impl Api {
    /// A stream of the current context.
    pub(in crate::cuda) fn create_stream(&self) -> Result<StreamHandle, Fault> {
        let mut stream = std::ptr::null_mut();
        call!(self.cuStreamCreate(&mut stream, NON_BLOCKING))?;
        Ok(Handle::new(stream))
    }

    /// A stream whose kernels run on a green context's multiprocessors.
    pub(in crate::cuda) fn create_green_stream(&self, green: GreenHandle) -> Result<StreamHandle, Fault> {
        let mut stream = std::ptr::null_mut();
        call!(self.cuGreenCtxStreamCreate(&mut stream, green.raw(), NON_BLOCKING, 0))?;
        Ok(Handle::new(stream))
    }

    pub(in crate::cuda) fn destroy_stream(&self, stream: StreamHandle) -> Result<(), Fault> {
        call!(self.cuStreamDestroy_v2(stream.raw()))
    }

    pub(in crate::cuda) fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), Fault> {
        call!(self.cuStreamSynchronize(stream.raw()))
    }

    /// Whether all that was enqueued is done.
    pub(in crate::cuda) fn is_stream_done(&self, stream: StreamHandle) -> Result<bool, Fault> {
        done(call!(self.cuStreamQuery(stream.raw())))
    }

    pub(in crate::cuda) fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), Fault> {
        call!(self.cuStreamWaitEvent(stream.raw(), event.raw(), 0))
    }

    /// Holds the stream up until the 64-bit word at `address` is at least `value`.
    pub(in crate::cuda) fn wait_value(&self, stream: StreamHandle, address: Address, value: u64) -> Result<(), Fault> {
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        call!(self.cuStreamWaitValue64_v2(stream.raw(), address.0, value, at_least))
    }

    /// Writes the word once all before it is done and can be seen.
    pub(in crate::cuda) fn write_value(&self, stream: StreamHandle, address: Address, value: u64) -> Result<(), Fault> {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;
        call!(self.cuStreamWriteValue64_v2(stream.raw(), address.0, value, flags))
    }

    /// An event of the current context.
    pub(in crate::cuda) fn create_event(&self, timed: bool, interprocess: bool) -> Result<EventHandle, Fault> {
        let untimed = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let shared = sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
        let flags = if timed { 0 } else { untimed } | if interprocess { shared } else { 0 };
        let mut event = std::ptr::null_mut();
        call!(self.cuEventCreate(&mut event, flags))?;
        Ok(Handle::new(event))
    }

    pub(in crate::cuda) fn destroy_event(&self, event: EventHandle) -> Result<(), Fault> {
        call!(self.cuEventDestroy_v2(event.raw()))
    }

    pub(in crate::cuda) fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), Fault> {
        call!(self.cuEventRecord(event.raw(), stream.raw()))
    }

    /// Whether the event's last record was reached.
    pub(in crate::cuda) fn is_event_done(&self, event: EventHandle) -> Result<bool, Fault> {
        done(call!(self.cuEventQuery(event.raw())))
    }

    pub(in crate::cuda) fn synchronize_event(&self, event: EventHandle) -> Result<(), Fault> {
        call!(self.cuEventSynchronize(event.raw()))
    }

    /// Milliseconds from one event to another, of the same context.
    pub(in crate::cuda) fn elapsed_ms(&self, from: EventHandle, to: EventHandle) -> Result<f32, Fault> {
        let mut elapsed = 0.0;
        call!(self.cuEventElapsedTime_v2(&mut elapsed, from.raw(), to.raw()))?;
        Ok(elapsed)
    }

    /// A name by which another process opens an event that was made for that.
    pub(in crate::cuda) fn export_event(&self, event: EventHandle) -> Result<[u8; 64], Fault> {
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        call!(self.cuIpcGetEventHandle(&mut handle, event.raw()))?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    pub(in crate::cuda) fn import_event(&self, handle: [u8; 64]) -> Result<EventHandle, Fault> {
        let mut event = std::ptr::null_mut();
        let handle = sys::CUipcEventHandle { reserved: handle.map(|byte| byte as c_char) };
        call!(self.cuIpcOpenEventHandle(&mut event, handle))?;
        Ok(Handle::new(event))
    }

    /// `range` is in bytes of the pinned memory.
    pub(in crate::cuda) fn upload(
        &self,
        stream: StreamHandle,
        to: Address,
        from: &Pinned,
        range: Range<usize>,
    ) -> Result<(), Fault> {
        call!(self.cuMemcpyHtoDAsync_v2(to.0, from.pointer(range.clone()).cast(), range.len(), stream.raw()))
    }

    /// `range` is in bytes of the pinned memory.
    pub(in crate::cuda) fn download(
        &self,
        stream: StreamHandle,
        to: &Pinned,
        range: Range<usize>,
        from: Address,
    ) -> Result<(), Fault> {
        call!(self.cuMemcpyDtoHAsync_v2(to.pointer(range.clone()).cast(), from.0, range.len(), stream.raw()))
    }

    pub(in crate::cuda) fn copy(
        &self,
        stream: StreamHandle,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), Fault> {
        call!(self.cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream.raw()))
    }

    /// Between two contexts' memory, with or without peer access.
    pub(in crate::cuda) fn copy_peer(
        &self,
        stream: StreamHandle,
        to: (Address, ContextHandle),
        from: (Address, ContextHandle),
        bytes: usize,
    ) -> Result<(), Fault> {
        call!(self.cuMemcpyPeerAsync(to.0.0, to.1.raw(), from.0.0, from.1.raw(), bytes, stream.raw()))
    }

    pub(in crate::cuda) fn clear(&self, stream: StreamHandle, to: Address, bytes: usize) -> Result<(), Fault> {
        call!(self.cuMemsetD8Async(to.0, 0, bytes, stream.raw()))
    }

    /// Writes one 32-bit word.
    pub(in crate::cuda) fn set_word(&self, stream: StreamHandle, to: Address, bits: u32) -> Result<(), Fault> {
        call!(self.cuMemsetD32Async(to.0, bits, 1, stream.raw()))
    }

    /// Launches a kernel. The arguments must be those of the kernel, in its order.
    pub(in crate::cuda) fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: [u32; 3],
        (block, shared_bytes): (u32, u32),
        arguments: &[Argument],
    ) -> Result<(), Fault> {
        let mut values = [0_u64; MOST_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        assert!(arguments.len() <= MOST_ARGUMENTS, "no kernel has so many arguments");
        for ((value, pointer), argument) in values.iter_mut().zip(&mut pointers).zip(arguments) {
            *value = argument.bits();
            *pointer = std::ptr::from_mut(value).cast();
        }
        let (stream, none) = (stream.raw(), std::ptr::null_mut());
        let [x, y, z] = grid;
        let pointers = pointers.as_mut_ptr();
        call!(self.cuLaunchKernel(function.raw(), x, y, z, block, 1, 1, shared_bytes, stream, pointers, none))
    }
}

/// Whether it is done, where the driver answers "not ready" if it is not.
fn done(outcome: Result<(), Fault>) -> Result<bool, Fault> {
    match outcome {
        Ok(()) => Ok(true),
        Err(fault) if fault.code == sys::CUresult::CUDA_ERROR_NOT_READY as u32 => Ok(false),
        Err(fault) => Err(fault),
    }
}
