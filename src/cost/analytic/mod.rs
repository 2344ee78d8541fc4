//! Analytic costs: a model's operations by shape, on hardware given by a table of numbers, under a layout.

mod bound;
mod collectives;
mod dispatch;
mod experts;
mod machine;
mod options;
mod part;
mod pass;
mod room;
mod scan;
mod shares;
mod slices;
mod splits;
mod step;
mod sub_ops;

pub use dispatch::ExpertTraffic;
pub use machine::{GpuGroup, Platform, ProductShape};
pub use pass::{Pass, Passes};
pub use splits::SplitTimes;
pub use step::{StepTime, TimePart};

use super::{CostError, CostTable, OpTime, Summary, TickUnits};
use part::PartCosts;
use pipesim_models::hardware::Hardware;
use pipesim_models::hull::HullPoint;
use pipesim_models::layout::{Attention, ParallelConfig, Recompute};
use pipesim_models::memory::MemoryModel;
use pipesim_models::model_spec::transformer::{ActivationFunction, Config};
use pipesim_models::model_spec::{ModelSpec, Part, Stage};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the nanoseconds of a time.
fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round().clamp(0.0, 1e18) as u64
}

/// Longest sub-op and collective in nanoseconds, 11 days, so that sums do not overflow.
const LONGEST_NS: u64 = 1_000_000_000_000_000;

/// Rejects a layout that the model does not allow, or that the machine cannot run.
fn check(model: &Config, machine: &Platform, layout: &ParallelConfig) -> Result<(), CostError> {
    layout.validate(model).map_err(|error| CostError::Hardware(error.to_string()))?;
    let name = &machine.hardware.name;
    if machine.hardware.peak(layout.precision).is_none() {
        return Err(CostError::Hardware(format!(
            "expected a precision that {name} has, found {}: take `precision` bf16",
            layout.precision
        )));
    }
    if !layout.packed.is_empty() && machine.stack.attention(layout) == Attention::Plain {
        let text =
            "`packed`: plain attention computes the scores between texts, too; take `attention` flash or leave it out";
        return Err(CostError::Hardware(text.to_string()));
    }
    machine.hardware.check_devices(layout.pp).map_err(CostError::Hardware)
}

/// Cost model of a transformer on a platform under a layout. Clones share all but the layout.
#[derive(Clone, Debug)]
pub struct Analytic {
    /// Sizes of the model.
    pub model: Config,
    /// Its parts and their operations.
    pub spec: Arc<ModelSpec>,
    /// GPUs and training software.
    pub machine: Arc<Platform>,
    /// How the model is distributed.
    pub layout: ParallelConfig,
    /// Passes of each part; of layers that are recomputed if only some are.
    passes: Arc<[Passes]>,
    /// Costs of the pipeline devices whose GPUs differ.
    others: BTreeMap<u32, Analytic>,
    /// The same of layers that are not; empty unless only some are.
    kept: Arc<[Passes]>,
}

impl Analytic {
    /// Returns the cost model of `model` on `machine` under `layout`.
    ///
    /// # Errors
    /// A layout that the model does not allow, or a precision that the chip does not support.
    pub fn new(
        model: Config,
        machine: impl Into<Arc<Platform>>,
        layout: ParallelConfig,
    ) -> Result<Analytic, CostError> {
        let machine = machine.into();
        check(&model, &machine, &layout)?;
        let own = |(&device, hardware): (&u32, &Hardware)| {
            let machine = Platform { hardware: hardware.clone(), stack: machine.stack.clone() };
            Ok((device, Analytic::new(model, machine, layout.clone())?))
        };
        let others = machine.hardware.devices.iter().map(own).collect::<Result<_, CostError>>()?;
        let (passes, kept) = (Arc::default(), Arc::default());
        Ok(Analytic { spec: model.spec().into(), model, machine, layout, passes, kept, others }.with_passes(0))
    }

    /// Returns the cost model under another layout. Parts whose costs do not change are shared, not calculated again.
    ///
    /// # Errors
    /// As [`Analytic::new`].
    pub fn under(&self, layout: ParallelConfig) -> Result<Analytic, CostError> {
        if !self.others.is_empty() {
            return Analytic::new(self.model, self.machine.clone(), layout);
        }
        check(&self.model, &self.machine, &layout)?;
        let is_shared = self.layout.has_parts_of(&layout);
        let other = Analytic { layout, ..self.clone() };
        Ok(if is_shared { other } else { other.with_passes(0) })
    }

    /// Returns it with the passes of every part for a slice. In each sequence, `before` tokens precede the layout's tokens.
    fn with_passes(self, before: u32) -> Analytic {
        let recompute = self.layout.recompute;
        let passes = self.part_passes(before, recompute.of_layer(true));
        let kept = if recompute.is_of_some() { self.part_passes(before, Recompute::None) } else { Arc::default() };
        Analytic { passes, kept, ..self }
    }

    fn part_passes(&self, before: u32, recompute: Recompute) -> Arc<[Passes]> {
        let Analytic { model, spec, machine, layout, .. } = self;
        let layout = &ParallelConfig { recompute, ..layout.clone() };
        let attention = machine.stack.attention(layout);
        let has_zeros = model.function == ActivationFunction::SquaredRelu;
        let zeros_speedup = if has_zeros { machine.hardware.zeros_speedup } else { 1.0 };
        let (experts, hidden) = (model.experts, spec.width as f64);
        let is_frozen = model.lora.is_some();
        let parts = PartCosts { machine, layout, attention, experts, hidden, zeros_speedup, before, is_frozen };
        spec.parts.iter().map(|part| parts.passes(part)).collect()
    }

    /// Returns the attention kernels.
    pub fn attention(&self) -> Attention {
        self.machine.stack.attention(&self.layout)
    }

    /// Returns what decides whether published steps are like this one, with so many stages per device.
    pub fn hull_point(&self, chunks: u32) -> HullPoint {
        let layout = ParallelConfig { chunks: chunks.max(self.layout.chunks), ..self.layout.clone() };
        HullPoint::new(&self.model, &self.spec, &self.machine.hardware, &self.machine.stack, &layout)
    }

    /// Splits the model into `count` stages, by the layout's string or layers, or else as evenly as Megatron does: embedding and head
    /// count as one layer each unless equal numbers divide.
    ///
    /// # Errors
    /// Layers that do not add up, or an inner stage without layers.
    pub fn stages(&self, count: u32) -> Result<Vec<Stage>, CostError> {
        if let Some(layout) = &self.layout.layout {
            if layout.stages.len() != count as usize {
                return Err(CostError::Hardware(format!(
                    "expected the {} stages of `layout`, found a schedule with {count}; take one with {} stages per device",
                    layout.stages.len(),
                    self.layout.chunks
                )));
            }
            return self.spec.arranged(layout).map_err(|error| CostError::Hardware(error.to_string()));
        }
        let split = default_layers(&self.model, count as usize);
        let layers = self.layout.layers.as_ref().unwrap_or(&split);
        self.spec.split(count as usize, Some(layers)).map_err(|error| CostError::Hardware(error.to_string()))
    }

    /// Returns whether the layers of `count` stages follow from their costs, because layers differ.
    pub fn is_split_by_cost(&self, count: u32) -> bool {
        let is_open = self.layout.layout.is_none() && self.layout.layers.is_none();
        is_open && shares::balanced(&self.model, count as usize).is_some()
    }

    /// Returns the memory model.
    pub fn memory_model(&self) -> MemoryModel<'_> {
        self.memory_model_under(&self.layout)
    }

    /// Returns the memory model under another layout.
    fn memory_model_under<'a>(&'a self, layout: &'a ParallelConfig) -> MemoryModel<'a> {
        MemoryModel::of_spec(&self.model, &self.spec, layout, &self.machine.stack)
    }

    /// Returns the parts of a stage with their passes and numbers; twice if only some layers are recomputed.
    fn held(&self, stage: &Stage) -> impl Iterator<Item = (&Part, (&Passes, usize))> {
        self.spec.parts.iter().zip(&*self.passes).enumerate().flat_map(|(number, (part, passes))| {
            let count = stage.count(part.name);
            let kept = self.kept.get(number);
            let whole = if kept.is_some() { self.layout.recompute.whole(&self.spec, stage, number) } else { count };
            [(part, (passes, whole)), (part, (kept.unwrap_or(passes), count - whole))]
        })
    }

    /// Returns the passes of a stage.
    pub fn passes(&self, stage: &Stage) -> Passes {
        let mut sum = Passes::default();
        for (_, (passes, count)) in self.held(stage) {
            let count = count as f64;
            sum = Passes {
                forward: sum.forward + passes.forward * count,
                input: sum.input + passes.input * count,
                weights: sum.weights + passes.weights * count,
                again: sum.again + passes.again * count,
                backward: sum.backward + passes.backward * count,
                hidden: sum.hidden + passes.hidden * count,
                ops: None,
            };
        }
        sum
    }

    /// Returns the costs of a pipeline device.
    pub fn on(&self, device: u32) -> &Analytic {
        self.others.get(&device).unwrap_or(self)
    }

    /// Returns the passes of each op's stage on the device that runs it.
    fn passes_on<'a>(&'a self, placement: &'a Placement, stages: &'a [Stage]) -> impl Fn(Op) -> Passes + 'a {
        // where kinds of layers alternate and some are recomputed, stages with the same numbers may differ
        let is_counted = self.kept.is_empty() || self.spec.order.is_empty();
        let mut usual: Vec<Passes> = Vec::with_capacity(stages.len());
        for (number, stage) in stages.iter().enumerate() {
            let same = stages[..number].last().is_some_and(|other| is_counted && other.counts().eq(stage.counts()));
            usual.push(if same { usual[number - 1] } else { self.passes(stage) });
        }
        move |op| match self.others.get(&placement.device_of(op)) {
            Some(own) => own.passes(&stages[op.stage() as usize]),
            None => usual[op.stage() as usize],
        }
    }

    /// Returns the passes of one repetition of the part with this name.
    pub fn part(&self, name: &str) -> Option<Passes> {
        let place = self.spec.parts.iter().position(|part| part.name == name)?;
        Some(self.passes[place])
    }

    /// Returns the seconds from the end of an op until the device that needs its output has it.
    fn arrival(&self, placement: &Placement, op: Op) -> f64 {
        let (Some(to), from) = (placement.receiver(op), placement.device_of(op)) else { return 0.0 };
        let ParallelConfig { tp: tensor, precision, .. } = &self.layout;
        let bytes = self.layout.micro_tokens() as f64 * self.spec.width as f64 * f64::from(precision.bytes());
        self.transfer(from, to, bytes / f64::from(*tensor), self.crosses_nodes(from, to))
    }

    /// Returns the time of a message between two devices of a pipeline, over the slower of their links.
    fn transfer(&self, from: u32, to: u32, bytes: f64, crosses: bool) -> f64 {
        let bytes = bytes * self.machine.hardware.link_factor(from, to);
        let [one, other] = [from, to].map(|device| self.on(device).machine.transfer(bytes, crosses));
        one.max(other)
    }

    /// Returns whether two devices of a pipeline are in different nodes. GPUs of another kind are in nodes of their own.
    fn crosses_nodes(&self, one: u32, other: u32) -> bool {
        let ParallelConfig { tp: tensor, cp: context, dp: data, .. } = &self.layout;
        let gpus = f64::from(*tensor) * f64::from(*context) * f64::from(*data);
        let node = |device: u32| {
            let own = self.machine.hardware.of_device(device);
            let is_alike = |other: &u32| self.machine.hardware.of_device(*other).name == own.name;
            let alike =
                if self.others.is_empty() { device } else { (0..device).rev().take_while(is_alike).count() as u32 };
            (device - alike, (f64::from(alike) * gpus / own.gpus_per_node).floor())
        };
        node(one) != node(other)
    }

    /// Returns for how many nanoseconds an op that sends blocks its device. Megatron-Core synchronizes the device after an exchange that it
    /// does not overlap (`batch_p2p_sync`): as after a wait for the rows of experts, kernels of a mixture are launched anew.
    fn blocked(&self, placement: &Placement) -> u64 {
        let stack = &self.machine.stack;
        let synchronizes = stack.overlaps_exchanges > 0.0;
        if synchronizes && placement.stages() > placement.devices() {
            return 0;
        }
        let launched =
            if synchronizes && self.model.experts.is_some() { 1e3 * RELAUNCHED * stack.mixture_layer_ms } else { 0.0 };
        ns((stack.exchange_us + launched) * 1e-6)
    }

    /// Returns the costs of ops on `placement`, in nanoseconds.
    ///
    /// # Errors
    /// An overflow of the clock.
    pub fn table(&self, placement: &Placement, stages: &[Stage]) -> Result<CostTable, CostError> {
        let passes = self.passes_on(placement, stages);
        let of = |op: Op| Analytic::seconds(op, passes(op));
        let p = f64::from(placement.devices());
        let mean = |kind| (0..placement.stages()).map(|stage| of(Op::new(kind, stage, 0))).sum::<f64>() / p * 1e3;
        let edges = placement.op_kinds().map(|op| self.arrival(placement, op));
        let comm = edges.fold(0.0, f64::max) * 1e3;
        let summary = Summary::new(mean, comm, self.memory_model().keep(stages));
        let mut table = self.times(placement, stages, summary)?;
        table.extras.collectives = self.layout.fsdp.as_ref().map(|_| self.collectives(placement, stages));
        Ok(self.with_pairs(table, placement, stages))
    }

    /// Returns [`Analytic::table`] for simulations alone: without summary, and with pairs only if the schedule has some.
    ///
    /// # Errors
    /// As [`Analytic::table`].
    pub fn bare_table(&self, placement: &Placement, stages: &[Stage], has_pairs: bool) -> Result<CostTable, CostError> {
        let table = self.times(placement, stages, Summary::new(|_| 0.0, 0.0, 0.0))?;
        Ok(if has_pairs { self.with_pairs(table, placement, stages) } else { table })
    }

    fn with_pairs(&self, table: CostTable, placement: &Placement, stages: &[Stage]) -> CostTable {
        match self.sub_ops(placement, stages) {
            Some(sub_ops) => table.with_sub_ops(placement, &sub_ops),
            None => table,
        }
    }

    /// Returns the seconds of an op's passes.
    fn seconds(op: Op, passes: Passes) -> f64 {
        match op.kind() {
            Kind::F => passes.forward.total(),
            Kind::I => passes.input.total(),
            Kind::W => passes.split_weights().total(),
            _ => passes.backward.total(),
        }
    }

    fn times(&self, placement: &Placement, stages: &[Stage], summary: Summary) -> Result<CostTable, CostError> {
        let passes = self.passes_on(placement, stages);
        let blocked = self.blocked(placement);
        let table = CostTable::new(placement, TickUnits::MILLISECONDS, summary, |op| {
            let duration = ns(Analytic::seconds(op, passes(op)));
            let after = if placement.leaves_device(op) { blocked } else { 0 };
            OpTime { duration, after, arrival: ns(self.arrival(placement, op)) }
        });
        table.check_clock(placement, self.layout.micro)?;
        Ok(table)
    }
}

/// Share of a mixture's layer that the host launches before the GPU is busy again, after it waited for the GPU: attention.
const RELAUNCHED: f64 = 0.5;

/// Returns the default layers of each stage of `model`.
pub fn default_layers(model: &Config, stages: usize) -> Vec<usize> {
    if let Some(layers) = shares::balanced(model, stages) {
        return layers;
    }
    layers_with_predictions(model, stages).unwrap_or_else(|| layers_of_stages(model.layers, stages))
}

/// Returns the default layers of each stage of a model that predicts further tokens: these layers count as layers, and their logits
/// with the head's as two, as in Megatron-Bridge's layouts of DeepSeek-V3. The first stage takes the remaining layers. `None` if the
/// layers do not divide like this.
fn layers_with_predictions(model: &Config, stages: usize) -> Option<Vec<usize>> {
    let predictions = model.prediction_layers;
    if predictions == 0 || stages < 2 || !(model.layers + 3 * predictions).is_multiple_of(stages) {
        return None;
    }
    let each = (model.layers + 3 * predictions) / stages;
    let last = each.saturating_sub(3 * predictions);
    let first = model.layers.checked_sub(each * (stages - 2) + last)?;
    Some([&[first][..], &vec![each; stages - 2], &[last]].concat())
}

/// Returns the default layers of each stage of a model that does not: equal numbers if that divides; otherwise embedding and head count as one layer
/// each, as in Megatron, and inner stages take the remainder first.
pub fn layers_of_stages(layers: usize, stages: usize) -> Vec<usize> {
    if stages <= 1 || layers.is_multiple_of(stages) {
        return vec![layers / stages.max(1); stages];
    }
    let (each, left) = ((layers + 2) / stages, (layers + 2) % stages);
    let mut counts: Vec<usize> = vec![each; stages];
    let (last, inner) = (stages - 1, 1..stages - 1);
    inner.chain([0, last]).take(left).for_each(|stage| counts[stage] += 1);
    let mut owed = 0;
    for end in [0, last] {
        match counts[end] {
            0 => owed += 1,
            _ => counts[end] -= 1,
        }
    }
    // if an end has no layer to give, the fullest stages give one
    for _ in 0..owed {
        if let Some(fullest) = counts.iter_mut().max_by_key(|count| **count) {
            *fullest = fullest.saturating_sub(1);
        }
    }
    counts
}
