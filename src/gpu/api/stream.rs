//! Streams: in-order queues of work on a GPU. All methods except the last two only enqueue. The calling thread's current GPU must
//! be the stream's: see [`crate::cuda::Gpu::make_current`]. Inside of [`Stream::collecting`] kernels, products, copies within a
//! device and fills are collected; every other method first enqueues what was collected.

use super::super::kernel::Launch;
use super::driver::{call, done};
use super::graph::Graphs;
use super::products::{Lt, Operands, Product, ProductError, Workspace};
use super::work::{DriverQueue, MOST_ARGUMENTS, Planned, StreamWork};
use super::{Address, Context, Event, Fault, FunctionHandle, Pinned};
use cudarc::driver::sys;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// An in-order queue of work of one context.
pub struct Stream {
    queue: DriverQueue,
    /// What collects work, inside of [`Stream::collecting`].
    graphs: Mutex<Option<Graphs>>,
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
        Ok(Stream::of(context, stream))
    }

    /// Creates a stream whose kernels run before the kernels of other streams, for short kernels that other GPUs wait for.
    pub fn urgent(context: &Arc<Context>) -> Result<Stream, Fault> {
        context.make_current()?;
        let (mut stream, mut least, mut greatest) = (std::ptr::null_mut(), 0, 0);
        call!(context, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        match context.green_handle() {
            Some(green) => call!(context, cuGreenCtxStreamCreate(&mut stream, green.raw(), NON_BLOCKING, greatest))?,
            None => call!(context, cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, greatest))?,
        }
        Ok(Stream::of(context, stream))
    }

    fn of(context: &Arc<Context>, stream: sys::CUstream) -> Stream {
        Stream { queue: DriverQueue::new(context, stream), graphs: Mutex::new(None) }
    }

    /// Returns the driver's pointer, for a library that enqueues on it.
    pub fn raw(&self) -> Result<*mut c_void, Fault> {
        self.begin_call()?;
        Ok(self.queue.handle.raw().cast())
    }

    fn collected(&self) -> MutexGuard<'_, Option<Graphs>> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects what `work` enqueues, and enqueues it as graphs that were captured before where it is the same as then.
    pub fn collecting<T>(&self, graphs: &mut Graphs, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        *self.collected() = Some(graphs.take());
        let done = work();
        let flushed = if done.is_ok() { self.flush() } else { Ok(()) };
        if let Some(own) = self.collected().take() {
            *graphs = own;
        }
        graphs.end_op();
        flushed?;
        done
    }

    /// Begins a step of `graphs`: captures what came again in the last one, and forgets what did not come for long.
    pub fn begin_step(&self, graphs: &mut Graphs) {
        graphs.begin_step(&self.queue);
    }

    /// Enqueues what was collected so far.
    pub fn flush(&self) -> Result<(), Fault> {
        self.collected().as_mut().map_or(Ok(()), |graphs| graphs.flush(&self.queue))
    }

    /// Prepares for a call that is not collected.
    fn begin_call(&self) -> Result<(), Fault> {
        self.flush()?;
        self.queue.note(1);
        Ok(())
    }

    /// Collects or enqueues a piece of work.
    fn add(&self, work: StreamWork) -> Result<(), Fault> {
        if let Some(graphs) = self.collected().as_mut() {
            graphs.pending.push(work);
            return Ok(());
        }
        self.queue.note(work.entries());
        self.queue.enqueue(&work)
    }

    /// Number of pieces of work enqueued so far, by these methods and by libraries.
    pub fn enqueued(&self) -> u64 {
        self.queue.enqueued()
    }

    /// Places the event, of the same context, behind everything enqueued so far.
    pub fn record(&self, event: &Event) -> Result<(), Fault> {
        self.begin_call()?;
        call!(self.queue.context, cuEventRecord(event.handle.raw(), self.queue.handle.raw()))
    }

    /// Makes later work wait for the event, which may be of any device.
    pub fn wait(&self, event: &Event) -> Result<(), Fault> {
        self.begin_call()?;
        call!(self.queue.context, cuStreamWaitEvent(self.queue.handle.raw(), event.handle.raw(), 0))
    }

    /// Makes later work wait until the 64-bit word at `address` is at least `value`, compared modulo 2^64.
    pub fn wait_value(&self, address: Address, value: u64) -> Result<(), Fault> {
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        self.begin_call()?;
        call!(self.queue.context, cuStreamWaitValue64_v2(self.queue.handle.raw(), address.0, value, at_least))
    }

    /// As [`Stream::wait_value`]; later work also sees what arrived over a network before the word. Not all devices support it.
    pub fn wait_value_flushed(&self, address: Address, value: u64) -> Result<(), Fault> {
        let [at_least, flush] = [
            sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ,
            sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH,
        ];
        let flags = at_least as c_uint | flush as c_uint;
        self.begin_call()?;
        call!(self.queue.context, cuStreamWaitValue64_v2(self.queue.handle.raw(), address.0, value, flags))
    }

    /// Writes the 64-bit word at `address`, after everything enqueued before is visible.
    pub fn write_value(&self, address: Address, value: u64) -> Result<(), Fault> {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;
        self.begin_call()?;
        call!(self.queue.context, cuStreamWriteValue64_v2(self.queue.handle.raw(), address.0, value, flags))
    }

    /// Copies within a device, or between devices with peer access.
    pub fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        self.add(StreamWork::Copy { to, from, bytes })
    }

    /// Copies between two contexts' memory, with or without peer access.
    pub fn copy_peer(&self, to: (Address, &Context), from: (Address, &Context), bytes: usize) -> Result<(), Fault> {
        let ((to, there), (from, here)) = ((to.0.0, to.1.handle.raw()), (from.0.0, from.1.handle.raw()));
        if bytes == 0 {
            return Ok(());
        }
        self.begin_call()?;
        call!(self.queue.context, cuMemcpyPeerAsync(to, there, from, here, bytes, self.queue.handle.raw()))
    }

    /// Copies a range of bytes of pinned memory to the device. The bytes must not change until the copy is done.
    pub fn upload(&self, to: Address, from: &Pinned, range: Range<usize>) -> Result<(), Fault> {
        let from = from.pointer(range.clone()).cast();
        if range.is_empty() {
            return Ok(());
        }
        self.begin_call()?;
        call!(self.queue.context, cuMemcpyHtoDAsync_v2(to.0, from, range.len(), self.queue.handle.raw()))
    }

    /// Copies to a range of bytes of pinned memory, readable once the copy is done.
    pub fn download(&self, to: &Pinned, range: Range<usize>, from: Address) -> Result<(), Fault> {
        let to = to.pointer(range.clone()).cast();
        if range.is_empty() {
            return Ok(());
        }
        self.begin_call()?;
        call!(self.queue.context, cuMemcpyDtoHAsync_v2(to, from.0, range.len(), self.queue.handle.raw()))
    }

    /// Sets bytes to zero.
    pub fn clear(&self, to: Address, bytes: usize) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        self.add(StreamWork::Clear { to, bytes })
    }

    /// Writes one float32.
    pub fn set(&self, to: Address, value: f32) -> Result<(), Fault> {
        self.begin_call()?;
        call!(self.queue.context, cuMemsetD32Async(to.0, value.to_bits(), 1, self.queue.handle.raw()))
    }

    /// Launches a kernel. The arguments must match the kernel's, in order.
    pub fn launch(&self, kernel: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), Fault> {
        let mut values = [0_u64; MOST_ARGUMENTS];
        assert!(arguments.len() <= MOST_ARGUMENTS, "a kernel has at most {MOST_ARGUMENTS} arguments");
        values.iter_mut().zip(arguments).for_each(|(value, argument)| *value = argument.bits());
        self.add(StreamWork::Kernel { kernel, launch, arguments: values })
    }

    /// Enqueues a product by one of its algorithms. Only a product that the library did before `may_wait` in a collection, since what
    /// is collected cannot be replaced if the library refuses it.
    ///
    /// # Errors
    /// The library refuses the product, or enqueuing failed.
    pub fn multiply(
        &self,
        lt: &Arc<Lt>,
        product: &Arc<Product>,
        algorithm: usize,
        operands: Operands,
        workspace: Workspace,
        may_wait: bool,
    ) -> Result<(), ProductError> {
        let of = Planned { lt: lt.clone(), product: product.clone(), algorithm };
        if may_wait && let Some(graphs) = self.collected().as_mut() {
            graphs.pending.push(StreamWork::Product { of, operands, workspace });
            return Ok(());
        }
        self.flush()?;
        self.queue.note(2); // cuBLASLt enqueues up to two kernels
        lt.multiply(product, algorithm, &operands, workspace, self.queue.handle)
    }

    /// Whether everything enqueued is done.
    pub fn is_done(&self) -> Result<bool, Fault> {
        self.flush()?;
        done(call!(self.queue.context, cuStreamQuery(self.queue.handle.raw())))
    }

    /// Blocks the calling thread until everything enqueued is done.
    pub fn synchronize(&self) -> Result<(), Fault> {
        self.flush()?;
        call!(self.queue.context, cuStreamSynchronize(self.queue.handle.raw()))
    }
}
