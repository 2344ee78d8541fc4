//! A module on a GPU: warm-up, in which every op runs once, and the memory of a step, allocated before its first op.

use super::module::{StageModule, WorkerShare, workload};
use super::parameters::Parameters;
#[cfg(feature = "internals")]
use crate::compute::cuda::AloneOnDevice;
use crate::compute::cuda::{
    Cuda, Demand, DeviceCollective, EventTimer, Group, Numbers, Sharing, check_kernel_sizes, check_memory,
};
use crate::compute::{Store, TensorShare};
use crate::epilogue::GradientSync;
use crate::model_spec::{self, EMBEDDING, HEAD};
use crate::op::{Kind, Op};
use anyhow::{Context as _, Result};
use pipesim_cuda::Gpu;
use pipesim_cuda::api::Buffer;
use pipesim_cuda::kernel::Precision;
use std::sync::Arc;
use std::time::Duration;

/// Limit of pending work on the stream while ops warm up.
const MOST_WARMING: u64 = 256;

impl StageModule<Cuda> {
    #[cfg(feature = "internals")]
    /// A module on `gpu`: see [`StageModule::new`]. Every op is run once on made-up data, so that all code is loaded, every product
    /// planned, and a first micro-batch's memory allocated. Waits.
    ///
    /// # Errors
    /// The sizes do not fit the model or the kernels, the memory does not suffice (the error has the numbers), a library is
    /// missing, or the GPU fails.
    pub fn on_gpu(
        gpu: &Arc<Gpu>,
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sizes: [usize; 3],
        precision: Precision,
    ) -> Result<StageModule<Cuda>> {
        let alone: Box<dyn DeviceCollective> = Box::new(AloneOnDevice);
        StageModule::on_gpu_rank(gpu, parameters, stages, sizes, precision, alone)
    }

    /// A module on `gpu` with one tensor-parallel rank's share of each layer: see [`StageModule::on_gpu`]. All ranks run the same ops
    /// in the same order. The warm-up makes no collective call.
    pub fn on_gpu_rank(
        gpu: &Arc<Gpu>,
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sizes: [usize; 3],
        precision: Precision,
        share: impl Into<WorkerShare<dyn DeviceCollective>>,
    ) -> Result<StageModule<Cuda>> {
        let (config, spec) = (&parameters.config, parameters.config.spec());
        let WorkerShare { ranks, shares_rows, optimizer } = share.into();
        let share = TensorShare { rank: ranks.rank(), size: ranks.size(), shares_rows };
        let workload = workload(config, stages, sizes, share, optimizer)?;
        let [sequences, tokens, microbatches] = sizes;
        check_kernel_sizes(config, [sequences, tokens])?;
        let sharing = Sharing { ranks: share.size, row_ranks: share.row_ranks(), optimizers: optimizer.members };
        let demand = Demand { sequences, tokens, microbatches, in_flight: 1, precision, sharing };
        check_memory(gpu, &spec, stages, &demand)?;
        let compute = Cuda::new(gpu, workload.clone(), precision, spec.squares(), ranks)?;
        let mut module = StageModule::new(compute, parameters, stages, &workload)?;
        module.warm_up(microbatches * sequences * tokens).context("running every op once")?;
        module.compute.wake();
        Ok(module)
    }

    /// Sums a gradient that several workers hold over `group`, in place. To be called once a step, after the last backward for the
    /// weights. Only enqueues.
    ///
    /// # Errors
    /// Nothing is to be summed, or the machine failed.
    pub fn sum_gradient(&mut self, gradient: GradientSync, group: &mut dyn DeviceCollective) -> Result<()> {
        self.compute.enter()?;
        let held = self.exchanged(gradient)?;
        let places: Vec<Numbers> = held.iter().map(|&(number, [own, _])| self.groups[number].gradients(own)).collect();
        self.compute.sum_gradients(&places, group)
    }

    /// Gathers the parameters of a stage over `group`, whose members have updated a slice each. Only enqueues.
    ///
    /// # Errors
    /// Nothing is to be exchanged, or the machine failed.
    pub fn gather_values(&mut self, gradient: GradientSync, group: &mut dyn DeviceCollective) -> Result<()> {
        self.compute.enter()?;
        let updated = self.updated(gradient)?;
        let groups: Vec<&Group> = updated.into_iter().map(|number| &self.groups[number]).collect();
        self.compute.gather_values(&groups, group)
    }

    #[cfg(feature = "internals")]
    /// Bytes of parameters, gradients and moments.
    pub fn state_bytes(&self) -> usize {
        self.groups.iter().map(Group::bytes_held).sum()
    }

    /// Bytes of a hidden state: what stages hand to each other.
    pub fn hidden_bytes(&self) -> usize {
        self.compute.rows_between() * self.width() * self.compute.activation_bytes()
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.compute.gpu()
    }

    #[cfg(feature = "internals")]
    /// Each matrix product so far, and whether cuBLASLt does it; where it does not, it was done in parts.
    pub fn products(&self) -> Vec<(String, bool)> {
        self.compute.products()
    }

    /// Runs every op of every stage once, on tokens 0 and zero hidden states, and records what each takes from the pool.
    fn warm_up(&mut self, tokens: usize) -> Result<()> {
        let tokens = vec![0; tokens];
        self.begin(&tokens, &tokens)?;
        let gpu = self.gpu().clone();
        let mut marks = EventTimer::new(&gpu);
        marks.limit(MOST_WARMING, || {
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        });
        let hidden =
            [Buffer::new(gpu.context(), self.hidden_bytes())?, Buffer::new(gpu.context(), self.hidden_bytes())?];
        gpu.compute.clear(hidden[0].address(), hidden[0].bytes())?;
        let [from, to] = [hidden[0].address(), hidden[1].address()];
        let stages: Vec<(u32, model_spec::Stage)> = self.held().map(|(id, stage)| (id, stage.clone())).collect();
        for (stage, layers) in stages {
            let (has_before, has_after) = (!layers.has(EMBEDDING), !layers.has(HEAD));
            self.compute.watch();
            self.forward(stage, 0, has_before.then_some(from), has_after.then_some(to), &mut marks)?;
            self.compute.watched(stage, Kind::F);
            self.compute.watch();
            self.backward_input(stage, 0, has_after.then_some(from), has_before.then_some(to), &mut marks)?;
            self.compute.watched(stage, Kind::I);
            self.compute.watch();
            self.backward_weight(stage, 0, &mut marks)?;
            self.compute.watched(stage, Kind::W);
        }
        self.zero_gradients()?;
        self.compute.settle()?;
        self.held.forget();
        Ok(())
    }

    /// Allocates everything that a step of these ops, in this order, takes from the pool. Ops of other devices' stages are ignored.
    ///
    /// # Errors
    /// There is too little memory: the error has the numbers.
    pub fn reserve(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        let calls = ops.into_iter().flat_map(|op| {
            let kinds: &[Kind] = match op.kind() {
                Kind::F => &[Kind::F],
                Kind::I => &[Kind::I],
                Kind::W => &[Kind::W],
                Kind::B => &[Kind::I, Kind::W],
                _ => &[], // not executed here
            };
            kinds.iter().map(move |&kind| (op.stage(), kind))
        });
        self.compute.reserve(calls)
    }
}
