//! A module on a GPU: warm-up, in which every op runs once, and the memory of a step, allocated before its first op.

use super::module::{StageModule, WorkerShare, workload};
use super::parameters::Parameters;
use super::stash::Stash;
use crate::compute::cuda::{
    Cuda, Demand, DeviceCollective, EventTimer, Group, Numbers, Sharing, Traffic, attention_workspace,
    check_kernel_sizes, check_memory,
};
use crate::compute::{Store, TensorShare};
use anyhow::{Context as _, Result};
use pipesim_gpu::api::{Address, Buffer};
use pipesim_gpu::kernel::Precision;
use pipesim_gpu::{Event, Gpu, Graphs};
use pipesim_models::model_spec::{self, EMBEDDING, HEAD, MicroBatch};
use pipesim_schedule::epilogue::GradientSync;
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Limit of pending work on the stream while ops warm up.
const MOST_WARMING: u64 = 256;

/// What a schedule asks for beyond forwards and backwards of whole micro-batches.
#[derive(Clone, Copy, Debug, Default)]
pub struct SliceOps<'a> {
    /// Tokens per sequence of each slice; empty for whole sequences.
    pub slices: &'a [usize],
    /// The recomputes of the module's stages.
    pub recomputed: &'a [Op],
    /// Whether activations are copied to the host.
    pub has_copies: bool,
}

impl StageModule<Cuda> {
    /// A module on `gpu` with one tensor-parallel rank's share of each layer: see [`StageModule::new`]. All ranks run the same ops in the
    /// same order. Every op is run once on made-up data, so that all code is loaded, every product planned, and a first micro-batch's memory
    /// allocated; this warm-up makes no collective call. Waits.
    ///
    /// # Errors
    /// The sizes do not fit the model or the kernels, the memory does not suffice (the error has the numbers), a library is
    /// missing, or the GPU fails.
    pub fn on_gpu_rank(
        gpu: &Arc<Gpu>,
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sizes: [usize; 3],
        ops: SliceOps<'_>,
        precision: Precision,
        share: impl Into<WorkerShare<dyn DeviceCollective>>,
    ) -> Result<StageModule<Cuda>> {
        let (config, spec) = (&parameters.config, parameters.config.spec());
        let WorkerShare { ranks, shares_rows, optimizer } = share.into();
        let share = TensorShare { rank: ranks.rank(), size: ranks.size(), shares_rows };
        let workload = workload(config, stages, sizes, share, optimizer)?.sliced(ops.slices)?;
        let [sequences, tokens, microbatches] = sizes;
        check_kernel_sizes(config, [sequences, tokens])?;
        let sharing = Sharing { ranks: share.size, row_ranks: share.row_ranks(), optimizers: optimizer.members };
        let micro = MicroBatch { sequences, tokens };
        let attention_workspace =
            attention_workspace(config, micro, precision, share.size, workload.slice_count() > 1)?;
        let demand = Demand { sequences, tokens, microbatches, in_flight: 1, precision, sharing, attention_workspace };
        check_memory(gpu, &spec, stages, &demand)?;
        let compute = Cuda::new(gpu, workload.clone(), precision, spec.squares(), ranks)?;
        let mut module = StageModule::new(compute, parameters, stages, &workload)?;
        module.recompute(ops.recomputed.iter().copied())?;
        if ops.has_copies {
            module.compute.allow_copies()?;
        }
        module.compute.warm_products(true);
        let pause = || {
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        };
        gpu.limit(Some((MOST_WARMING, Arc::new(pause))));
        let warmed = module.warm_up(microbatches * sequences * tokens, ops.has_copies);
        gpu.limit(None);
        warmed.context("running every op once")?;
        module.compute.warm_products(false);
        module.compute.wake();
        Ok(module)
    }

    /// Launches what ops enqueue as these graphs from now on.
    pub fn use_graphs(&mut self, graphs: Graphs) {
        self.compute.graphs = Some(graphs);
    }

    /// Enqueues an op: see [`StageModule::run`]. With graphs, what it enqueues between two marks, messages or collective calls is one
    /// launch if the same was enqueued before.
    pub fn enqueue(
        &mut self,
        op: Op,
        input: Option<Address>,
        output: Option<Address>,
        marks: &mut EventTimer,
    ) -> Result<()> {
        let Some(mut graphs) = self.compute.graphs.take() else { return self.run(op, input, output, marks) };
        let gpu = self.gpu().clone();
        let done = gpu.compute.collecting(&mut graphs, || self.run(op, input, output, marks));
        self.compute.graphs = Some(graphs);
        done
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

    /// Bytes of parameters, gradients and moments.
    pub fn state_bytes(&self) -> usize {
        self.groups.iter().map(Group::bytes_held).sum()
    }

    /// Bytes of a hidden state, with slices of the longest: what stages hand to each other.
    pub fn hidden_bytes(&self) -> usize {
        self.compute.most_rows_between() * self.width() * self.compute.activation_bytes()
    }

    /// Takes the algorithms of products that all ranks agreed on.
    pub fn take_algorithms(&mut self) -> Result<()> {
        self.compute.take_algorithms()
    }

    /// Whether all copies to and from the host are done.
    pub fn has_copied(&self) -> Result<bool> {
        self.compute.has_copied()
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.compute.gpu()
    }

    /// Each matrix product so far, and whether cuBLASLt does it; where it does not, it was done in parts.
    pub fn products(&self) -> Vec<(String, bool)> {
        self.compute.products()
    }

    /// Runs every kind of op of every stage and slice once, on tokens 0 and zero hidden states, and records what each takes from the pool.
    fn warm_up(&mut self, tokens: usize, has_copies: bool) -> Result<()> {
        let tokens = vec![0; tokens];
        self.begin(&tokens, &tokens)?;
        let gpu = self.gpu().clone();
        let mut marks = EventTimer::new(&gpu);
        let hidden =
            [Buffer::new(gpu.context(), self.hidden_bytes())?, Buffer::new(gpu.context(), self.hidden_bytes())?];
        gpu.compute.clear(hidden[0].address(), hidden[0].bytes())?;
        let [from, to] = [hidden[0].address(), hidden[1].address()];
        let stages: Vec<(u32, model_spec::Stage)> = self.held().map(|(id, stage)| (id, stage.clone())).collect();
        let recomputed = std::mem::take(&mut self.recomputed);
        for (stage, layers) in stages {
            let (has_before, has_after) = (!layers.has(EMBEDDING), !layers.has(HEAD));
            let (input, output) = (has_before.then_some(from), has_after.then_some(to));
            let (gradient, into) = (has_after.then_some(from), has_before.then_some(to));
            let count = self.slices as u32;
            let ops = |kind| (0..count).map(move |slice| Op::of_unit(kind, stage, slice, count));
            for op in ops(Kind::F) {
                self.watched_run(op, input, output, &mut marks)?;
            }
            for op in ops(Kind::I).rev() {
                self.watched_run(op, gradient, into, &mut marks)?;
                self.watched_run(op.of_kind(Kind::W), None, None, &mut marks)?;
            }
            if recomputed.iter().any(|&(of, _)| of == stage) {
                self.recompute(ops(Kind::R))?;
                for op in ops(Kind::F) {
                    self.watched_run(op, input, output, &mut marks)?;
                }
                for op in ops(Kind::R).rev() {
                    self.watched_run(op, None, None, &mut marks)?;
                    self.run(op.of_kind(Kind::B), gradient, into, &mut marks)?;
                }
                self.recomputed.clear();
            }
            if has_copies {
                for op in ops(Kind::F) {
                    self.run(op, input, output, &mut marks)?;
                }
                for op in ops(Kind::O).rev() {
                    let out = self.watched_copy(op, &[])?;
                    let back = self.watched_copy(op.of_kind(Kind::L), &[out])?;
                    gpu.compute.wait(&back)?;
                    self.watched_run(op.of_kind(Kind::I), gradient, into, &mut marks)?;
                    self.run(op.of_kind(Kind::W), None, None, &mut marks)?;
                }
            }
        }
        self.recomputed = recomputed;
        self.zero_gradients()?;
        self.compute.settle()?;
        self.held.forget();
        Ok(())
    }

    /// Runs an op, and records what it takes from the pool.
    fn watched_run(
        &mut self,
        op: Op,
        input: Option<Address>,
        output: Option<Address>,
        marks: &mut EventTimer,
    ) -> Result<()> {
        let (unit, slice) = self.unit(op)?;
        let is_away = self.is_away(op, unit);
        self.compute.watch();
        self.run(op, input, output, marks)?;
        self.compute.watched(self.traffic(op, unit, slice, is_away));
        Ok(())
    }

    /// The same of a copy. Returns its end.
    fn watched_copy(&mut self, op: Op, after: &[Arc<Event>]) -> Result<Arc<Event>> {
        let (unit, slice) = self.unit(op)?;
        self.compute.watch();
        let [_, end] = self.enqueue_copy(op, after)?;
        self.compute.watched(self.traffic(op, unit, slice, false));
        Ok(end)
    }

    /// Whether the activation of a unit went to the host.
    fn is_away(&self, op: Op, unit: usize) -> bool {
        self.stages.get(&op.stage()).is_some_and(|stage| matches!(stage.stashes[unit], Stash::Away(..)))
    }

    /// What an op takes from the pool, which it shares with others; its activation may have been on the host.
    fn traffic(&self, op: Op, unit: usize, slice: usize, was_away: bool) -> Traffic {
        let is_beyond = match op.kind() {
            Kind::F => self.recomputed.contains(&(op.stage(), unit)),
            Kind::I => was_away,
            _ => false,
        };
        Traffic { stage: op.stage(), kind: op.kind(), slice, is_beyond }
    }

    /// Allocates everything that a step of these ops, in this order, takes from the pool. Ops of other devices' stages are ignored.
    ///
    /// # Errors
    /// There is too little memory: the error has the numbers.
    pub fn reserve(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        let (mut all, mut away) = (Vec::new(), BTreeSet::new());
        for op in ops.into_iter().map(Op::alone) {
            let kinds: &[Kind] = match op.kind() {
                Kind::B => &[Kind::I, Kind::W],
                _ => &[op.kind()],
            };
            let (unit, slice) = self.unit(op)?;
            if op.kind() == Kind::O {
                away.insert((op.stage(), unit));
            }
            let was_away = away.contains(&(op.stage(), unit));
            all.extend(kinds.iter().map(|&kind| self.traffic(op.of_kind(kind), unit, slice, was_away)));
        }
        self.compute.reserve(all.into_iter())
    }
}
