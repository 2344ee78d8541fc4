//! An NVIDIA GPU: every call enqueues kernels and products on the compute stream. The crate `pipesim-cuda` drives it.
//!
//! Hidden states and their gradients are in the activations' precision, at addresses that are multiples of 256 bytes.

mod attention;
mod batch;
mod calls;
mod choices;
mod collective;
mod estimate;
mod group;
mod host;
mod linear;
mod offload;
mod operation;
mod share;
mod slices;
mod timing;

pub use attention::attention_workspace;
pub use choices::Choices;
pub use collective::{AloneOnDevice, DeviceCollective, Fold, Join, Numbers, share};

pub use estimate::{
    Bytes, Demand, HIDDEN_ALIGNMENT, Sharing, bytes_needed, check_kernel_sizes, check_memory, parameter_bytes,
    stage_gradient_bytes, storage, tied_gradient_bytes,
};
pub use group::Group;
pub use host::Direction;
pub use timing::EventTimer;

use super::{Attention, Memory, Workload};
use anyhow::{Result, ensure};
use batch::{Step, TokenBatch};
use cpu_kernels::rotary;
use host::HostCopies;
use operation::{FusedShape, Operations};
use pipesim_gpu::api::{Address, Buffer, Move, Pinned, Pool, Unsupported, mib};
use pipesim_gpu::attention::{FusedAttention, takes_cudnn};
use pipesim_gpu::blas::Products;
use pipesim_gpu::kernel::Precision;
use pipesim_gpu::{Gpu, Graphs, Kernels};
use pipesim_models::model_spec::MicroBatch;
use pipesim_schedule::op::Kind;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use timing::KernelTimer;

/// A GPU, with the memory that its calls use again.
pub struct Cuda {
    workload: Workload,
    operations: Operations,
    /// Tensor-parallel ranks, which share the layers.
    ranks: Box<dyn DeviceCollective>,
    /// Whether collective calls are made; a warm-up makes none.
    is_awake: bool,
    /// Cosines and sines (T, size / 2) of rotary positions, if the model has them.
    rotations: Option<[Buffer; 2]>,
    batch: TokenBatch,
    /// The slice that calls are for.
    slice: usize,
    /// Loss of each slice of each micro-batch.
    losses: Buffer,
    step: Step,
    /// Queues of copies to and from the host, once there are copies.
    host: Option<HostCopies>,
    /// What ops take from the pool and give back.
    moves: BTreeMap<Traffic, Vec<Move>>,
    /// Graphs of what ops enqueue, if they are used.
    pub graphs: Option<Graphs>,
}

/// Ops that take the same from the pool and give the same back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    pub stage: u32,
    pub kind: Kind,
    pub slice: usize,
    /// Whether it is a forward that keeps only what recomputing it needs, or a backward whose activation was on the host.
    pub is_beyond: bool,
}

/// Activations on a GPU, or nothing.
pub enum Activations {
    /// In a buffer of the pool.
    Pooled(Buffer),
    /// In the caller's memory.
    Placed(Address),
    /// On the host, where no call can use them.
    Away(Pinned),
}

impl Activations {
    /// Where they are.
    pub fn address(&self) -> Address {
        match self {
            Activations::Pooled(buffer) => buffer.address(),
            Activations::Placed(address) => *address,
            Activations::Away(_) => Address::NULL,
        }
    }
}

impl Memory for Activations {
    fn bytes(&self) -> usize {
        match self {
            Activations::Pooled(buffer) => buffer.bytes(),
            Activations::Placed(_) => 0,
            Activations::Away(pinned) => pinned.bytes(),
        }
    }
}

impl Cuda {
    /// Loads the kernels and allocates the memory of a step, for at most `squares` partial squares of the gradient norm, on one of
    /// `ranks` that share the layers. It makes no collective call before [`Cuda::wake`].
    ///
    /// # Errors
    /// The workload is for another rank, a library is missing, or the GPU failed.
    pub fn new(
        gpu: &Arc<Gpu>,
        workload: Workload,
        precision: Precision,
        squares: usize,
        ranks: Box<dyn DeviceCollective>,
    ) -> Result<Cuda> {
        workload.require_rank(ranks.rank(), ranks.size())?;
        gpu.make_current()?;
        let choices = Choices { cudnn_attention: takes_cudnn(), ..Choices::default() };
        let operations = Operations {
            gpu: gpu.clone(),
            precision,
            kernels: Kernels::load(gpu.context(), gpu.facts(), precision, Some(workload.attention.size))?,
            products: Products::new(gpu, precision)?,
            fused: if choices.cudnn_attention { Some(FusedAttention::new(gpu)?) } else { None },
            pool: Pool::new(gpu.context()),
            timing: KernelTimer::default(),
            choices,
        };
        let Workload { micro_batch, microbatches, attention, .. } = workload;
        let units = microbatches * workload.slice_count();
        let (MicroBatch { sequences, tokens }, Attention { heads, size, .. }) = (micro_batch, attention);
        operations.allow_attention(&FusedShape { sequences, tokens, first: 0, heads, size })?;
        let rotations = match &workload.frequencies[..] {
            [] => None,
            frequencies => {
                let (cosines, sines) = rotary::table(tokens, frequencies);
                let upload = |values: &[f32]| -> Result<Buffer> {
                    let buffer = Buffer::new(gpu.context(), size_of_val(values))?;
                    operations.upload(buffer.address(), values)?;
                    Ok(buffer)
                };
                Some([upload(&cosines)?, upload(&sines)?])
            }
        };
        Ok(Cuda {
            rotations,
            batch: TokenBatch::new(gpu, &workload)?,
            slice: 0,
            losses: Buffer::new(gpu.context(), units * size_of::<f32>())?,
            step: Step::new(gpu, squares, units)?,
            host: None,
            moves: BTreeMap::new(),
            graphs: None,
            workload,
            operations,
            ranks,
            is_awake: false,
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.operations.gpu
    }

    /// Size of an activation in bytes.
    pub fn activation_bytes(&self) -> usize {
        self.operations.precision.bytes()
    }

    /// Rows of the slice.
    fn rows(&self) -> usize {
        self.workload.slice_rows(self.slice)
    }

    /// The positions of the slice's tokens in their sequences.
    fn positions(&self) -> Range<usize> {
        self.workload.positions(self.slice)
    }

    /// Each matrix product so far, and whether cuBLASLt does it; where it does not, it was done in parts.
    pub fn products(&self) -> Vec<(String, bool)> {
        self.operations.products.asked()
    }

    /// Begins or ends a warm-up, in which algorithms of products may be timed.
    pub fn warm_products(&mut self, begins: bool) {
        self.operations.products.warm_up(begins);
    }

    /// Takes the algorithms that all ranks agreed on.
    pub fn take_algorithms(&mut self) -> Result<()> {
        self.operations.products.take_chosen()
    }

    /// Times every kernel and product from now on.
    pub fn time_kernels(&mut self) {
        self.operations.timing.start();
    }

    /// Takes other kernels, to compare their times.
    pub fn choose(&mut self, choices: Choices) -> Result<()> {
        let operations = &mut self.operations;
        if choices.timed_products != operations.choices.timed_products {
            operations.products.choose_again(choices.timed_products);
        }
        if choices.cudnn_attention && operations.fused.is_none() {
            operations.fused = Some(FusedAttention::new(&operations.gpu)?);
        }
        operations.choices = choices;
        Ok(())
    }

    /// Ends [`Cuda::time_kernels`]: the durations in nanoseconds by kernel. Waits.
    pub fn kernel_times(&mut self) -> Result<BTreeMap<&'static str, Vec<u64>>> {
        self.operations.gpu.compute.synchronize()?;
        self.operations.timing.end()
    }

    /// Starts recording what an op takes from the pool and gives back.
    pub fn watch(&mut self) {
        self.operations.pool.watch();
    }

    /// Ends the recording: it was of an op like these.
    pub fn watched(&mut self, ops: Traffic) {
        self.moves.insert(ops, self.operations.pool.seen());
    }

    /// Ends a warm-up: losses are 0, and everything enqueued is done.
    pub fn settle(&mut self) -> Result<()> {
        let compute = &self.operations.gpu.compute;
        compute.set(self.step.scale.address(), 1.0)?;
        compute.clear(self.losses.address(), self.losses.bytes())?;
        Ok(compute.synchronize()?)
    }

    /// Allocates everything that these ops, in this order, take from the pool, because an allocation during a step could wait for the
    /// device. Unrecorded ops are ignored. What a copy to the host returns counts from the end of the op after it: later ops wait for
    /// the copy if they need the memory.
    ///
    /// # Errors
    /// There is too little memory: the error has the numbers.
    pub fn reserve(&mut self, ops: impl Iterator<Item = Traffic>) -> Result<()> {
        let (mut moves, mut late, mut on_host) = (Vec::new(), Vec::new(), Vec::new());
        for op in ops {
            let of_op = self.moves.get(&op).map_or(&[][..], |moves| moves);
            let (takes, gives): (Vec<Move>, Vec<Move>) = of_op.iter().partition(|step| matches!(step, Move::Take(_)));
            match op.kind {
                Kind::O => {
                    on_host.extend(gives.iter().map(Move::reversed));
                    moves.extend(takes);
                    late.extend(gives);
                }
                Kind::L => {
                    on_host.extend(takes.iter().map(Move::reversed));
                    moves.extend(takes);
                }
                _ => {
                    moves.extend(of_op);
                    moves.append(&mut late);
                }
            }
        }
        if let Some(host) = &mut self.host {
            host.reserve(self.operations.gpu.context(), &on_host)?;
        }
        let lacking = self.operations.pool.lacking(moves.into_iter());
        let bytes: usize = lacking.iter().map(|(bytes, count)| bytes * count).sum();
        let (free, total) = self.operations.gpu.memory()?;
        ensure!(
            bytes <= free,
            Unsupported(format!(
                "expected {} MiB more of device memory for what this schedule keeps in flight, found {} of {} MiB free: choose a \
                 schedule that keeps less, smaller micro-batches, bfloat16, or more stages",
                mib(bytes),
                free >> 20,
                total >> 20
            ))
        );
        self.operations.pool.reserve(&lacking)
    }
}
