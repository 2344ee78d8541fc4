//! Streams: in-order queues of work on a GPU. Every method but the last two only enqueues. The calling thread's GPU must be
//! the stream's: [`super::Gpu::make_current`].

use super::api::driver::{Fault, FunctionHandle, StreamHandle};
use super::api::handle::Address;
use super::api::pinned::Pinned;
use super::api::queue::Argument;
use super::context::Context;
use super::event::Event;
use super::kernel::Launch;
use std::ops::Range;
use std::sync::Arc;

/// An in-order queue of one context.
pub struct Stream {
    context: Arc<Context>,
    pub(super) handle: StreamHandle,
}

impl Stream {
    /// A stream that waits for no other; its kernels run on the context's multiprocessors.
    pub fn new(context: &Arc<Context>) -> Result<Stream, Fault> {
        context.make_current()?;
        let handle = match context.green_handle() {
            Some(green) => context.api.create_green_stream(green)?,
            None => context.api.create_stream()?,
        };
        Ok(Stream { context: context.clone(), handle })
    }

    /// The driver's own pointer, for libraries that enqueue on it.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.handle.raw().cast()
    }

    /// Puts the event behind all that was enqueued so far.
    pub fn record(&self, event: &Event) -> Result<(), Fault> {
        self.context.api.record(event.handle, self.handle)
    }

    /// What follows waits for the event, of any device.
    pub fn wait(&self, event: &Event) -> Result<(), Fault> {
        self.context.api.wait_event(self.handle, event.handle)
    }

    /// What follows waits until the 64-bit word at `address` is at least `value`, in a modular comparison.
    pub fn wait_value(&self, address: Address, value: u64) -> Result<(), Fault> {
        self.context.api.wait_value(self.handle, address, value)
    }

    /// Writes the 64-bit word at `address`; whoever sees it sees all that was enqueued before.
    pub fn write_value(&self, address: Address, value: u64) -> Result<(), Fault> {
        self.context.api.write_value(self.handle, address, value)
    }

    /// Copies within a device, or between devices of which one can access the other.
    pub fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), Fault> {
        self.context.api.copy(self.handle, to, from, bytes)
    }

    /// Copies between two contexts' memory, whether or not their devices can access each other.
    pub fn copy_peer(&self, to: (Address, &Context), from: (Address, &Context), bytes: usize) -> Result<(), Fault> {
        let (to, from) = ((to.0, to.1.handle), (from.0, from.1.handle));
        self.context.api.copy_peer(self.handle, to, from, bytes)
    }

    /// Copies a range of bytes of pinned memory to the device. The bytes must stay as they are until the copy is done.
    pub fn upload(&self, to: Address, from: &Pinned, range: Range<usize>) -> Result<(), Fault> {
        self.context.api.upload(self.handle, to, from, range)
    }

    /// Copies to a range of bytes of pinned memory, to be read once the copy is done.
    pub fn download(&self, to: &Pinned, range: Range<usize>, from: Address) -> Result<(), Fault> {
        self.context.api.download(self.handle, to, range, from)
    }

    /// Sets bytes to zero.
    pub fn clear(&self, to: Address, bytes: usize) -> Result<(), Fault> {
        if bytes == 0 { Ok(()) } else { self.context.api.clear(self.handle, to, bytes) }
    }

    /// Writes one float32.
    pub fn set(&self, to: Address, value: f32) -> Result<(), Fault> {
        self.context.api.set_word(self.handle, to, value.to_bits())
    }

    /// Launches a kernel, whose arguments these are.
    pub(super) fn launch(&self, kernel: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), Fault> {
        let Launch { grid, block, shared_bytes } = launch;
        self.context.api.launch(self.handle, kernel, grid, (block, shared_bytes), arguments)
    }

    /// Whether all that was enqueued is done.
    pub fn is_done(&self) -> Result<bool, Fault> {
        self.context.api.is_stream_done(self.handle)
    }

    /// Waits on the host until all that was enqueued is done.
    pub fn synchronize(&self) -> Result<(), Fault> {
        self.context.api.synchronize_stream(self.handle)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.api.destroy_stream(self.handle);
    }
}
