//! Work for a stream as data, and the queue that takes it.

use super::driver::call;
use super::products::{Lt, Operands, Product, ProductError, Workspace};
use super::{Address, Context, Fault, FunctionHandle, Handle, StreamHandle};
use crate::kernel::Launch;
use cudarc::driver::sys;
use std::cmp;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest number of arguments of a kernel.
pub(super) const MOST_ARGUMENTS: usize = 16;

/// A piece of work that graphs can have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamWork {
    Kernel { kernel: FunctionHandle, launch: Launch, arguments: [u64; MOST_ARGUMENTS] },
    Product { of: Planned, operands: Operands, workspace: Workspace },
    Copy { to: Address, from: Address, bytes: usize },
    Clear { to: Address, bytes: usize },
}

/// A planned product and one of its algorithms, equal to itself only: the plan is kept as long as a graph has it.
#[derive(Clone)]
pub(super) struct Planned {
    pub(super) lt: Arc<Lt>,
    pub(super) product: Arc<Product>,
    pub(super) algorithm: usize,
}

impl Planned {
    fn key(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.product).addr(), self.algorithm)
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl StreamWork {
    /// Entries that it takes in the stream's queue, at most.
    pub(super) fn entries(&self) -> u64 {
        if matches!(self, StreamWork::Product { .. }) { 2 } else { 1 }
    }
}

/// The driver's queue of a stream.
pub(super) struct DriverQueue {
    pub(super) context: Arc<Context>,
    pub(super) handle: StreamHandle,
    enqueued: AtomicU64,
}

impl DriverQueue {
    pub(super) fn new(context: &Arc<Context>, stream: sys::CUstream) -> DriverQueue {
        DriverQueue { context: context.clone(), handle: Handle::new(stream), enqueued: AtomicU64::new(0) }
    }

    /// Enqueues a piece of work, or adds it to the graph that is being captured.
    pub(super) fn enqueue(&self, work: &StreamWork) -> Result<(), Fault> {
        let stream = self.handle.raw();
        match work {
            StreamWork::Kernel { kernel, launch, arguments } => {
                let Launch { grid: [x, y, z], block, shared_bytes } = *launch;
                let mut values = *arguments;
                let mut pointers = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
                let (kernel, pointers, none) = (kernel.raw(), pointers.as_mut_ptr(), std::ptr::null_mut());
                call!(self.context, cuLaunchKernel(kernel, x, y, z, block, 1, 1, shared_bytes, stream, pointers, none))
            }
            StreamWork::Product { of: Planned { lt, product, algorithm }, operands, workspace } => {
                let done = lt.multiply(product, *algorithm, operands, *workspace, self.handle);
                done.map_err(Fault::of_product)
            }
            &StreamWork::Copy { to, from, bytes } => {
                call!(self.context, cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream))
            }
            &StreamWork::Clear { to, bytes } => call!(self.context, cuMemsetD8Async(to.0, 0, bytes, stream)),
        }
    }

    /// Entries enqueued so far.
    pub(super) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Relaxed)
    }

    /// Counts entries of the queue.
    pub(super) fn note(&self, entries: u64) {
        self.enqueued.fetch_add(entries, Ordering::Relaxed);
    }
}

impl Drop for DriverQueue {
    fn drop(&mut self) {
        let _ = call!(self.context, cuStreamDestroy_v2(self.handle.raw()));
    }
}

impl Fault {
    /// A product's error among the driver's, for work that was collected.
    pub(super) fn of_product(error: ProductError) -> Fault {
        let name = "of cuBLASLt; without `cuda-graphs` it may take another algorithm".to_string();
        Fault { call: "cublasLtMatmul", code: u32::MAX, name, text: error.to_string() }
    }
}
