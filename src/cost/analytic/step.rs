//! Time of a whole step: the simulated pipeline, the data-parallel exchange, the optimizer, and overheads.

use super::machine::GpuGroup;
use super::pass::Pass;
use super::{Analytic, CostError};
use pipesim_models::layout::{Replicas, Zero};
use pipesim_models::model_spec::{MicroBatch, Stage};
use pipesim_schedule::metrics::Activity;
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::{Chunk, Placement};
use pipesim_schedule::schedule::Schedule;
use pipesim_schedule::slices::Slices;
use serde::Serialize;
use std::collections::BTreeMap;

/// Breakdown of the time of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Kernels of an average device.
    pub compute: f64,
    /// Exposed tensor-parallel collectives of an average device.
    pub tensor_parallel_exposed: f64,
    /// Exposed dispatch and combine of experts of an average device.
    pub expert_parallel_exposed: f64,
    /// For how much longer the busiest device works than an average one.
    pub imbalance: f64,
    /// Time for which the busiest device waits for others.
    pub pipeline_bubble: f64,
    /// Exposed exchange of gradients and weights between data-parallel ranks.
    pub data_parallel_exposed: f64,
    /// Optimizer step.
    pub optimizer: f64,
    /// Host overhead, exposed context-parallel exchange, stragglers.
    pub other: f64,
}

/// A part of an iteration, as tables and sentences name it.
#[derive(Clone, Copy, Debug)]
pub struct TimePart {
    /// Column in files.
    pub column: &'static str,
    /// Column in tables.
    pub title: &'static str,
    /// What the time goes to.
    pub cause: &'static str,
    /// Its length.
    pub seconds: f64,
}

impl StepTime {
    /// Returns the parts, compute first; a model without experts has no time in `experts`.
    pub fn parts(&self) -> [TimePart; 8] {
        let part = |column, title, cause, seconds| TimePart { column, title, cause, seconds };
        [
            part("compute_s", "compute", "computation", self.compute),
            part("tensor_parallel_exposed_s", "tensor", "tensor-parallel collectives", self.tensor_parallel_exposed),
            part(
                "expert_parallel_exposed_s",
                "experts",
                "dispatch and combine of experts",
                self.expert_parallel_exposed,
            ),
            part("imbalance_s", "imbalance", "imbalance", self.imbalance),
            part("pipeline_bubble_s", "waiting", "waiting for other stages", self.pipeline_bubble),
            part("data_parallel_exposed_s", "data", "data-parallel exchange", self.data_parallel_exposed),
            part("optimizer_s", "optimizer", "the optimizer", self.optimizer),
            part("other_s", "other", "other overheads", self.other),
        ]
    }

    /// Returns how long an average device works and the busiest one, with exposed collectives, in seconds.
    pub fn work(&self) -> [f64; 2] {
        let average = self.compute + self.tensor_parallel_exposed + self.expert_parallel_exposed;
        [average, average + self.imbalance]
    }

    /// Returns the parts of the busiest device: its work has the imbalance.
    pub fn of_busiest(&self) -> [f64; 7] {
        let [average, busiest] = self.work();
        let factor = if average > 0.0 { busiest / average } else { 1.0 };
        let own = [self.compute, self.tensor_parallel_exposed, self.expert_parallel_exposed].map(|part| part * factor);
        let idle = if average > 0.0 { 0.0 } else { self.imbalance };
        let waiting = self.pipeline_bubble + idle;
        [own[0], own[1], own[2], waiting, self.data_parallel_exposed, self.optimizer, self.other]
    }

    /// Returns the time of the iteration, the sum of all parts.
    pub fn iteration(&self) -> f64 {
        self.parts().iter().map(|part| part.seconds).sum()
    }
}

/// Longest time after the pipeline, three years: the clock holds it next to the longest pipeline.
const LONGEST_AFTER_NS: f64 = 1e17;

/// What follows a device's last backward, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct After {
    /// What of the gradient exchange is exposed.
    pub exchange: f64,
    pub optimizer: f64,
}

impl Analytic {
    /// Returns the sum of all passes of a step on a device; each chunk runs the micro-batches of its own direction.
    fn device_pass(&self, placement: &Placement, stages: &[Stage], device: u32, split: bool) -> Pass {
        let mut sum = Pass::default();
        for chunk in placement.held_by(device) {
            let passes = self.on(device).passes(&stages[chunk.stage as usize]);
            let micro = placement.microbatches_of(chunk.direction, self.layout.micro).len() as f64;
            let backward = if split { passes.input + passes.split_weights() } else { passes.backward };
            sum = sum + (passes.forward + backward) * micro;
        }
        sum
    }

    /// Returns the backward time of a device that hides its gradient exchange, in seconds: one micro-batch; with v overlapping
    /// chunks also all but one of the last p micro-batches, whose backwards pass v - 1 chunks after the first chunk's gradients are
    /// complete.
    fn backward(&self, placement: &Placement, stages: &[Stage], device: u32) -> f64 {
        let of = |stage: u32| self.on(device).passes(&stages[stage as usize]).backward.total();
        self.window(placement.stages_of(device).map(of).sum(), placement)
    }

    /// Returns [`Analytic::backward`] of a device whose stages take `one` second per micro-batch.
    pub(super) fn window(&self, one: f64, placement: &Placement) -> f64 {
        let later = f64::from(self.layout.micro.min(self.layout.pp)) - 1.0;
        one * (1.0 + later * (1.0 - 1.0 / self.chunks(placement)))
    }

    /// Returns the number of chunks per device whose gradients are exchanged one after the other, next to backwards.
    pub(super) fn chunks(&self, placement: &Placement) -> f64 {
        let chunks = placement.stages() / placement.devices().max(1);
        let overlaps = self.machine.stack.overlaps_chunks > 0.0 && placement.directions() == 1;
        if overlaps { f64::from(chunks.max(1)) } else { 1.0 }
    }

    pub(super) fn after(&self, placement: &Placement, stages: &[Stage], device: u32) -> After {
        let (layout, stack) = (&self.layout, &self.machine.stack);
        let held: Vec<&Stage> = placement.stages_of(device).map(|stage| &stages[stage as usize]).collect();
        let groups = self.rank_parameters(held);
        let own = self.on(device);
        let exchange: f64 = groups.iter().map(|&(parameters, replicas)| own.exchange(parameters, replicas)).sum();
        let exchange = exchange + self.copies_exchange(placement, stages, device);
        let window = self.backward(placement, stages, device);
        // at least the last chunk's share is exposed
        let exposed = (exchange - window).max(exchange * stack.data_exposed / self.chunks(placement));
        let updated = |(parameters, replicas): (f64, Replicas)| match layout.zero {
            Zero::None => parameters,
            _ => parameters / f64::from(replicas.shard),
        };
        After { exchange: exposed, optimizer: self.update(own, groups.into_iter().map(updated).sum()) }
    }

    /// Returns the time in which the device with the costs `own` updates `parameters`.
    pub(super) fn update(&self, own: &Analytic, parameters: f64) -> f64 {
        let (offload, stack) = (self.layout.optimizer_offload, &self.machine.stack);
        let here = own.machine.traffic(parameters * (1.0 - offload) * stack.optimizer_bytes);
        here.max(self.host_update(parameters * offload))
    }

    /// Returns the time in which the host updates `parameters`, as Megatron's `HybridDeviceOptimizer`: it gets gradients, and sends weights
    /// back, one after the other or tensor by tensor while it updates others. The GPU updates its own meanwhile.
    fn host_update(&self, parameters: f64) -> f64 {
        let (stack, hardware) = (&self.machine.stack, &self.machine.hardware);
        let bytes = match stack.keeps_offloaded_master > 0.0 {
            true => 8.0,
            false => stack.gradient(self.layout.precision) + stack.weight_bytes,
        };
        let link = hardware.host_gbytes_per_s * hardware.host_efficiency * 1e9;
        let copies = if link > 0.0 { parameters * bytes / link } else { 0.0 };
        let update = parameters * stack.host_update_ns * 1e-9;
        if self.layout.overlap_optimizer_offload { update.max(copies) } else { update + copies }
    }

    /// Returns the time in which `replicas` exchange gradients of `parameters` each, and weights. If groups of them hold the same shards, these
    /// scatter gradients within, then sum shards across, in one stream (Megatron's `param_and_grad_buffer.py`), and gather within.
    pub(super) fn exchange(&self, parameters: f64, replicas: Replicas) -> f64 {
        let (layout, stack, machine) = (&self.layout, &self.machine.stack, &self.machine);
        let group = machine.group(layout, replicas);
        let gradients = parameters * stack.reduced(layout.precision);
        let bucket = stack.bucket_mbytes.max(stack.bucket_rank_mbytes * f64::from(replicas.ranks)) * 1e6;
        match layout.zero {
            Zero::None => machine.reduce_in(group, gradients, gradients / bucket),
            Zero::Optimizer | Zero::Gradients => {
                let weights = parameters * f64::from(layout.precision.bytes());
                let sharing = machine.group(layout, replicas.sharing());
                machine.gather_in(sharing, gradients, gradients / bucket)
                    + machine.reduce_copies(layout, replicas, gradients, gradients / bucket)
                    + machine.gather_in(sharing, weights, gradients / bucket)
            }
            Zero::Weights => 0.0, // included in every pass
        }
    }

    /// Returns the trained parameters of a device with these stages on one rank, with the ranks that hold the same ones: first without
    /// experts, then of experts.
    pub(super) fn rank_parameters(&self, held: Vec<&Stage>) -> [(f64, Replicas); 2] {
        let [dense, experts] = self.spec.trained_under(held, self.layout.degrees());
        let [of_dense, of_experts] = self.layout.replicas();
        [(dense as f64, of_dense), (experts as f64, of_experts)]
    }

    /// Returns the exposed exchange of forwards and backwards outside of pairs on a device, in seconds: before the first pair and
    /// after the last one. Megatron's interleaved 1F1B has one more forward before the first pair.
    fn unpaired(&self, placement: &Placement, stages: &[Stage], device: u32) -> f64 {
        let hidden = placement.stages_of(device).map(|stage| self.on(device).passes(&stages[stage as usize]).hidden);
        let hidden: f64 = hidden.sum();
        let (p, v) = (f64::from(self.layout.pp), f64::from(self.layout.chunks));
        let alone = if self.layout.pp == 1 { 1.0 } else { ((v - 1.0) * p + 1.0) / v };
        hidden * alone.min(f64::from(self.layout.micro))
    }

    /// Returns the time to sum a device's gradients with the gradients of the other replicas of its stages, in bidirectional
    /// placements.
    fn copies_exchange(&self, placement: &Placement, stages: &[Stage], device: u32) -> f64 {
        if placement.directions() == 1 {
            return 0.0;
        }
        let other = |chunk: &Chunk| placement.device_of_stage(chunk.stage, 1 - chunk.direction);
        let mut held: BTreeMap<u32, Vec<&Stage>> = BTreeMap::new();
        for chunk in placement.held_by(device) {
            held.entry(other(chunk)).or_default().push(&stages[chunk.stage as usize]);
        }
        let (layout, stack) = (&self.layout, &self.machine.stack);
        let bucket = stack.bucket_mbytes * 1e6;
        let sum = |(other, stages): (u32, Vec<&Stage>)| {
            let bytes = self.rank_parameters(stages).iter().map(|(parameters, _)| parameters).sum::<f64>()
                * stack.gradient(layout.precision);
            let in_node = if self.crosses_nodes(device, other) { 1.0 } else { 2.0 };
            let group = GpuGroup { ranks: 2.0, in_node };
            let bytes = bytes * self.machine.hardware.link_factor(device, other);
            let both = [device, other].map(|end| self.on(end).machine.reduce_in(group, bytes, bytes / bucket));
            both[0].max(both[1])
        };
        held.into_iter().map(sum).sum()
    }

    /// Returns the time of a step from the activity of each pipeline device, in nanoseconds. `split`: the schedule splits the
    /// backward.
    ///
    /// # Errors
    /// The number of devices is not the placement's.
    pub fn step(
        &self,
        placement: &Placement,
        stages: &[Stage],
        devices: &[Activity],
        split: bool,
    ) -> Result<StepTime, CostError> {
        let pass = |device: u32| self.device_pass(placement, stages, device, split);
        self.step_with(placement, stages, split, devices, &pass, self)
    }

    /// Returns [`Analytic::step`] of a schedule, which may go beyond whole micro-batches.
    ///
    /// # Errors
    /// As [`Analytic::step`]; equal slices that do not divide the sequence, or a slice without tokens.
    pub fn step_of(&self, schedule: &Schedule, stages: &[Stage], devices: &[Activity]) -> Result<StepTime, CostError> {
        let (placement, split) = (&schedule.placement, schedule.splits_backward());
        if !schedule.is_beyond_microbatches() {
            return self.step(placement, stages, devices, split);
        }
        let slices = self.of_slices(schedule.slices())?;
        let pass = |device: u32| self.pass_beyond(&slices, stages, schedule, device);
        // the first slice goes back last
        self.step_with(placement, stages, split, devices, &pass, slices.first().unwrap_or(self))
    }

    /// Returns a lower bound, in seconds, of the step of `schedule` with these stages and activity, and with all stages that have more
    /// layers: its pipeline, what is exposed at least of each device's exchange, and the longest optimizer.
    pub fn least_step(&self, schedule: &Schedule, stages: &[Stage], devices: &[Activity]) -> f64 {
        let (placement, split, stack) = (&schedule.placement, schedule.splits_backward(), &self.machine.stack);
        // What overlapping steps take may shrink when a device starts later, but it is never less than the work.
        let overlaps = stack.step_overlaps > 0.0 && split;
        let lasted = |device: &Activity| if overlaps { device.busy } else { device.last_end } as f64 * 1e-9;
        // A layer more hides more of an exchange. Only where the last op is a backward of the whole device does that one last as much
        // longer.
        let one_stage = placement.stages() == placement.devices() && placement.directions() == 1;
        let ends_with_all = one_stage && !split && !schedule.is_beyond_microbatches();
        let (mut pipeline, mut exchanged, mut optimizer) = (0.0_f64, 0.0_f64, 0.0_f64);
        for (number, device) in (0..).zip(devices) {
            let After { exchange, optimizer: update } = self.after(placement, stages, number);
            let exchange = if ends_with_all { exchange } else { 0.0 };
            pipeline = pipeline.max(lasted(device));
            exchanged = exchanged.max(lasted(device) + exchange);
            optimizer = optimizer.max(update);
        }
        let rounds = f64::from(self.layout.rounds);
        let step = pipeline * (rounds - 1.0) + exchanged + optimizer + stack.host_step_ms * 1e-3;
        step * (1.0 + stack.straggler_share * self.doublings()) * (1.0 - 1e-9)
    }

    /// Returns the time of a step in which `pass` is what a device computes, and `last` has the costs of its last backward.
    fn step_with(
        &self,
        placement: &Placement,
        stages: &[Stage],
        split: bool,
        devices: &[Activity],
        pass: &dyn Fn(u32) -> Pass,
        last: &Analytic,
    ) -> Result<StepTime, CostError> {
        let stack = &self.machine.stack;
        if devices.len() != placement.devices() as usize {
            return Err(CostError::Hardware(format!(
                "expected {} devices, found {}",
                placement.devices(),
                devices.len()
            )));
        }
        let busy = |device: &u32| devices[*device as usize].busy;
        let number = (0..placement.devices()).rev().max_by_key(busy).unwrap_or_default();
        let pass = pass(number);
        // overlapped pairs may take less than the sum of their ops, and ops more if devices share a processor
        let lasted_busy = busy(&number) as f64 * 1e-9;
        let average_busy = devices.iter().map(|device| device.busy as f64).sum::<f64>() * 1e-9 / devices.len() as f64;
        let average = pass * if pass.total() > 0.0 { average_busy / pass.total() } else { 0.0 };
        let after: Vec<After> = (0..placement.devices()).map(|device| last.after(placement, stages, device)).collect();
        // if the optimizer step is validated afterwards, a device starts the next step as soon as its own ends
        let overlaps = stack.step_overlaps > 0.0 && split;
        let lasted = |device: &Activity| {
            let begin = if overlaps { device.first_start } else { 0 };
            device.last_end.saturating_sub(begin) as f64 * 1e-9
        };
        let longest = |then: fn(&After) -> f64| {
            devices.iter().zip(&after).map(|(device, after)| lasted(device) + then(after)).fold(0.0, f64::max)
        };
        let pipeline = longest(|_| 0.0);
        // what whole stages gathered between ops leave for the end, and what of them delays the busiest device before
        let fsdp = self.layout.fsdp.as_ref();
        let tail = |device: &Activity| fsdp.map_or(0, |_| device.free.saturating_sub(device.last_end));
        let tails = devices.iter().map(|device| lasted(device) + tail(device) as f64 * 1e-9).fold(0.0, f64::max);
        let exchanged = longest(|after| after.exchange).max(tails);
        let gated = devices[number as usize].gated.saturating_sub(tail(&devices[number as usize])) as f64 * 1e-9;
        let gated = gated.min((pipeline - lasted_busy).max(0.0));
        let optimizer = after.iter().map(|after| after.optimizer).fold(0.0, f64::max);
        let tied = self.tied_exchange(placement, stages);
        let rounds = f64::from(self.layout.rounds);
        let host = stack.host_step_ms + if self.model.experts.is_some() { stack.mixture_step_ms } else { 0.0 };
        let time = StepTime {
            compute: average.compute * rounds,
            tensor_parallel_exposed: average.tensor * rounds,
            expert_parallel_exposed: (average.experts + self.unpaired(placement, stages, number)) * rounds,
            imbalance: (lasted_busy - average_busy) * rounds,
            pipeline_bubble: (pipeline - lasted_busy - gated).max(0.0) * rounds,
            data_parallel_exposed: (average.data + gated) * rounds + (exchanged - pipeline) + tied,
            optimizer,
            other: average.other * rounds + host * 1e-3,
        };
        let stragglers = time.iteration() * stack.straggler_share * self.doublings();
        Ok(StepTime { other: time.other + stragglers, ..time })
    }

    /// Returns the number of doublings of GPUs beyond a node.
    pub(super) fn doublings(&self) -> f64 {
        libm::log2((self.layout.gpus() as f64 / 8.0).max(1.0))
    }

    /// Returns, for each device, the nanoseconds from its last backward to the end of its optimizer.
    ///
    /// # Errors
    /// Equal slices that do not divide the sequence, a slice without tokens, or an overflow of the clock.
    pub fn after_ns(&self, placement: &Placement, stages: &[Stage], slices: &Slices) -> Result<Vec<u64>, CostError> {
        let slices = self.of_slices(slices)?;
        let last = slices.first().unwrap_or(self);
        let after = (0..placement.devices()).map(|device| last.after(placement, stages, device));
        let after: Vec<f64> = after.map(|after| (after.exchange + after.optimizer) * 1e9).collect();
        if after.iter().any(|&ns| ns > LONGEST_AFTER_NS) {
            let why = "the exchange of gradients and the optimizer overflow the clock; give hardware that is faster";
            return Err(CostError::Overflow(why.to_string()));
        }
        Ok(after.into_iter().map(|ns| ns.round() as u64).collect())
    }

    /// Returns the time of exchanging the gradient of a tensor that the first and the last device share.
    pub(super) fn tied_exchange(&self, placement: &Placement, stages: &[Stage]) -> f64 {
        let shared = self.spec.outline().exchange(placement, stages).filter(|_| self.model.lora.is_none());
        let Some([first, last]) = shared else { return 0.0 };
        let elements = self.spec.tied_elements(|elements| elements) as f64 / f64::from(self.layout.tp);
        let gradient = self.machine.stack.gradient(self.layout.precision);
        let crosses = first != last && self.layout.gpus() as f64 > self.machine.hardware.gpus_per_node;
        self.transfer(first, last, 2.0 * elements * gradient, crosses || self.crosses_nodes(first, last))
    }

    /// Returns the FLOPs of a step as publications count them: products of F, I and W and all scores, without recomputation.
    pub fn model_flops(&self) -> f64 {
        let layout = &self.layout;
        let of = |sequences, tokens: u32| -> u128 {
            let micro = MicroBatch { sequences, tokens: tokens as usize };
            [Kind::F, Kind::B].iter().map(|&kind| self.spec.flops(kind, micro)).sum()
        };
        let tokens = f64::from(layout.micro_batch_size) * f64::from(layout.sequence);
        let packed = layout.per_packed_token(|tokens| of(1, tokens) as f64).map(|flops| flops * tokens);
        let flops = packed.unwrap_or_else(|| of(layout.micro_batch_size as usize, layout.sequence) as f64);
        flops * f64::from(layout.micro) * f64::from(self.layout.rounds) * f64::from(layout.dp)
    }
}
