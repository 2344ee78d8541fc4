//! Memory model of one layout: per stage and per device.

use super::experts::{MixtureMemory, dispatched, saved};
use super::peak::{Peak, SavedActivations, peak_at, peak_by};
use super::states::{embedding_elements, state_bytes};
use super::{DeviceMemory, Memory, llm_c};
use crate::hardware::Stack;
use crate::layout::{Attention, ParallelConfig, Precision, Recompute, RecomputePart};
use crate::model_spec::transformer::{Config, Style};
use crate::model_spec::{EMBEDDING, HEAD, MicroBatch, ModelSpec, Operation, Part, Stage, Storage};
use pipesim_schedule::moments::Moments;
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::Schedule;
use pipesim_schedule::sharding::{Collective, CollectiveKind, Placed};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// What a model's parts save and need under a layout, on one rank of a device.
#[derive(Clone, Debug)]
pub struct MemoryModel<'a> {
    pub(super) model: Config,
    pub(super) layout: Cow<'a, ParallelConfig>,
    pub(super) stack: Cow<'a, Stack>,
    pub(super) spec: Cow<'a, ModelSpec>,
    /// Rows of a micro-batch or slice on a rank.
    pub(super) micro: MicroBatch,
    pub(super) storage: Storage,
    /// Whether rows are a slice, whose keys and values later slices attend to.
    pub(super) is_slice: bool,
}

/// Returns the stages that a device holds.
fn held_by<'a>(device: u32, stages: &'a [Stage], placement: &Placement) -> Vec<&'a Stage> {
    placement.stages_of(device).filter_map(|stage| stages.get(stage as usize)).collect()
}

impl MemoryModel<'_> {
    /// Returns the memory model of `model` under `layout`, trained by `stack`.
    pub fn new(model: &Config, layout: &ParallelConfig, stack: &Stack) -> MemoryModel<'static> {
        let (layout, stack) = (Cow::Owned(layout.clone()), Cow::Owned(stack.clone()));
        MemoryModel::with(model, Cow::Owned(model.spec()), layout, stack)
    }

    /// Returns the memory model of `model`, whose specification is `spec`.
    pub fn of_spec<'a>(
        model: &Config,
        spec: &'a ModelSpec,
        layout: &'a ParallelConfig,
        stack: &'a Stack,
    ) -> MemoryModel<'a> {
        MemoryModel::with(model, Cow::Borrowed(spec), Cow::Borrowed(layout), Cow::Borrowed(stack))
    }

    fn with<'a>(
        model: &Config,
        spec: Cow<'a, ModelSpec>,
        layout: Cow<'a, ParallelConfig>,
        stack: Cow<'a, Stack>,
    ) -> MemoryModel<'a> {
        let storage = storage(model, &layout, &stack);
        // rows are per rank; keys cover the whole sequence
        let micro = MicroBatch { sequences: 1, tokens: usize::try_from(layout.micro_tokens()).unwrap_or(usize::MAX) };
        MemoryModel { model: *model, layout, spec, stack, micro, storage, is_slice: false }
    }

    /// Returns the memory of every device for `schedule`, with layers split into `stages` and `bytes` of capacity.
    pub fn memory(&self, bytes: u64, stages: &[Stage], schedule: &Schedule) -> Memory {
        let peak = |device, left: &[SavedActivations]| peak_by(schedule.program(device), left, |peak| self.taken(peak));
        let unsharded = |device| self.unsharded(device, stages, schedule);
        let mut per_device: Vec<DeviceMemory> = self.each(stages, &schedule.placement, peak, unsharded).collect();
        if !self.keeps_outputs() {
            for device in &mut per_device {
                device.of_which = self.mixture(device.device, stages, schedule, device.activations);
            }
        }
        Memory { capacity_bytes: 0, fits: false, per_device }.within(bytes)
    }

    /// Returns the bytes of every device for a schedule with these moments, on `stages`.
    pub fn totals<'m>(&'m self, stages: &'m [Stage], moments: &'m Moments) -> impl Iterator<Item = u64> + 'm {
        let peak = |device, left: &[SavedActivations]| peak_at(moments.of(device), left, |peak| self.taken(peak));
        self.each(stages, &moments.placement, peak, |_| None).map(|device| device.total)
    }

    /// Returns the memory of every device without the breakdown of a mixture of experts. `peak` returns that of a device whose stages save so
    /// much, and `unsharded` what FSDP gathers there.
    fn each<'m>(
        &'m self,
        stages: &'m [Stage],
        placement: &'m Placement,
        peak: impl Fn(u32, &[SavedActivations]) -> Peak + 'm,
        unsharded: impl Fn(u32) -> Option<u64> + 'm,
    ) -> impl Iterator<Item = DeviceMemory> + 'm {
        let left = self.all_left(stages);
        let (mut counted, mut states) = (Vec::new(), Default::default());
        (0..placement.devices()).map(move |device| {
            let held = held_by(device, stages, placement);
            // most devices hold as many parts as the one before
            let counts: Vec<(&str, usize)> = held.iter().flat_map(|stage| stage.counts()).collect();
            if device == 0 || counts != counted {
                (counted, states) = (counts, self.states(&held));
            }
            self.device_with(device, &held, placement, peak(device, &left), (states, unsharded(device)))
        })
    }

    /// Returns [`MemoryModel::left`] of each stage, calculated once for stages that hold the same.
    fn all_left(&self, stages: &[Stage]) -> Vec<SavedActivations> {
        if self.keeps_outputs() {
            let left = stages.iter().map(|stage| llm_c::left(&self.spec, stage, self.micro, self.keys()));
            return left.collect();
        }
        // where kinds of layers alternate, stages with the same numbers may differ in their order
        let is_ordered = self.spec.order.is_empty();
        let mut left: Vec<SavedActivations> = Vec::with_capacity(stages.len());
        for (number, stage) in stages.iter().enumerate() {
            let same = stages[..number].iter().rposition(|other| is_ordered && other.counts().eq(stage.counts()));
            left.push(same.map_or_else(|| self.left(stage), |same| left[same]));
        }
        left
    }

    /// Returns the bytes used in addition to `allocated` at `peak`: driver, libraries and fragmentation.
    pub(super) fn unmanaged(&self, allocated: u64, peak: Peak) -> u64 {
        let context = (self.stack.context_gib * f64::from(1 << 30)) as u64;
        let exchanged = if self.layout.replicas()[0].ranks > 1 { self.stack.replica_fragmentation } else { 0.0 };
        let lost = ((self.stack.fragmentation + exchanged) * allocated as f64) as u64;
        context.saturating_add(lost).saturating_add(self.fragments(peak))
    }

    /// Returns the bytes that PyTorch's allocator reserves but cannot use at `peak`. It can only return segments to the device that are
    /// free as a whole. A micro-batch that starts while others are held gets pieces of theirs, of other sizes; the loss's
    /// temporaries leave segments in which gradients are allocated. A single micro-batch in flight reuses its own blocks.
    fn fragments(&self, Peak { others, running, .. }: Peak) -> u64 {
        let Stack { activation_fragmentation, working_fragmentation, .. } = *self.stack;
        (activation_fragmentation * others as f64 + working_fragmentation * running as f64) as u64
    }

    /// Returns the fraction of what F saves that I saves for W, over the whole model: between 0 and 1.
    pub fn keep(&self, stages: &[Stage]) -> f64 {
        let sum = |kind| stages.iter().map(|stage| self.saved(stage, kind) as f64).sum::<f64>();
        (sum(Kind::I) / sum(Kind::F).max(1.0)).min(1.0)
    }

    /// Returns the parts of a stage with their numbers and what is recomputed of each: whole layers apart from others.
    pub(super) fn held<'a>(&'a self, stage: &'a Stage) -> impl Iterator<Item = (&'a Part, u64, Recompute)> {
        let recompute = self.layout.recompute;
        let of = move |(number, (part, count)): (usize, (&'a Part, usize))| {
            let whole = recompute.whole(&self.spec, stage, number);
            let split = [(whole, true), (count - whole, false)];
            split.map(|(count, is_whole)| (part, count as u64, recompute.of_layer(is_whole)))
        };
        self.spec.held(stage).enumerate().flat_map(of).filter(|(_, count, _)| *count > 0)
    }

    /// Returns the bytes that F of a stage saves for I, or I for W.
    pub(super) fn saved(&self, stage: &Stage, kind: Kind) -> u64 {
        let left = self.held(stage).map(|(part, count, how)| count.saturating_mul(self.part_left(part, kind, how)));
        let left = left.fold(0, u64::saturating_add);
        // of layers that are recomputed together only the first keeps its input
        let inputs = match (kind, self.layout.recompute) {
            (Kind::F, Recompute::Uniform(together)) => {
                stage.layers() - stage.layers().div_ceil((together as usize).max(1))
            }
            _ => 0,
        };
        left.saturating_sub(self.hidden().saturating_mul(inputs as u64))
    }

    /// Returns the bytes that one `part` saves for a micro-batch: F for I, or I for W.
    pub(super) fn part_left(&self, part: &Part, kind: Kind, recompute: Recompute) -> u64 {
        let is_block = part.name != EMBEDDING && part.name != HEAD;
        let left = match (kind, recompute) {
            (Kind::F, Recompute::Full) if is_block => self.hidden() + self.attended(part),
            (Kind::F, Recompute::Parts(parts)) if is_block => {
                let is_narrow = parts.has(RecomputePart::LatentUp);
                self.places(part, recompute).into_iter().sum::<u64>() + if is_narrow { self.attended(part) } else { 0 }
            }
            (Kind::F, Recompute::Selective) if is_block && self.stack.selective_products == 1.0 => {
                self.every_second(part) + self.attended(part)
            }
            (Kind::I, _) if is_block && self.stack.splits_graph == 1.0 => {
                self.part_left(part, Kind::F, recompute).saturating_add(self.gradients(part))
            }
            _ => part.left(kind, self.micro, &self.storage),
        };
        let embedding = part.name == EMBEDDING && kind == Kind::F;
        left.saturating_add(if embedding && self.stack.outputs_kept == 1.0 { self.hidden() } else { 0 })
    }

    /// Returns the bytes of a part's keys and values, which later slices attend to; 0 for whole micro-batches.
    fn attended(&self, part: &Part) -> u64 {
        let keys = part.operations.iter().map(|operation| operation.keys(self.micro, &self.storage));
        if self.is_slice { keys.sum() } else { 0 }
    }

    /// Returns what F saves of a stage whose layers are computed again: their input, with slices also keys and values, and what embedding
    /// and head save.
    pub(super) fn stub(&self, stage: &Stage) -> u64 {
        let kept = self.held(stage).filter(|(part, ..)| !part.is_layer());
        let kept = kept.map(|(part, count, how)| count.saturating_mul(self.part_left(part, Kind::F, how)));
        let attended = self.spec.held(stage).map(|(part, count)| (count as u64).saturating_mul(self.attended(part)));
        let input = if stage.layers() > 0 { self.hidden() } else { 0 };
        kept.chain(attended).chain([input, self.sent_on(stage)]).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of a stage's output if software keeps it until the backward.
    fn sent_on(&self, stage: &Stage) -> u64 {
        if !stage.has(HEAD) && self.stack.keeps_outputs == 1.0 { self.hidden() } else { 0 }
    }

    /// Returns the bytes of a micro-batch's hidden state on a rank.
    pub(super) fn hidden(&self) -> u64 {
        self.rows_of(self.spec.width as u64, self.storage.activation_bytes, self.storage.sp)
    }

    /// Returns the bytes of a micro-batch's rows of `width` elements of `bytes`, shared by `ranks`.
    pub(super) fn rows_of(&self, width: u64, bytes: usize, ranks: usize) -> u64 {
        (self.micro.rows() as u64).saturating_mul(width).saturating_mul(bytes as u64).div_ceil(ranks as u64)
    }

    /// Returns what a block saves that keeps its input, the attention's output and every second product's.
    fn every_second(&self, part: &Part) -> u64 {
        let Storage { activation_bytes: bytes, tp, sp, .. } = self.storage;
        let kept = part.with_splits().map(|(operation, split)| match *operation {
            Operation::Product { outputs, .. } => {
                self.rows_of(outputs as u64, bytes, if split.is_some_and(|split| split.axis == 1) { sp } else { tp })
                    / 2
            }
            Operation::Attention { heads, value, .. } => self.rows_of(heads as u64 * value as u64, bytes, tp),
            _ => 0,
        });
        kept.fold(self.hidden(), u64::saturating_add)
    }

    /// Returns the working memory of a `part`'s pass: recomputed activations, and gradients of its widest rows.
    pub(super) fn working(&self, part: &Part, kind: Kind, recompute: Recompute) -> u64 {
        let Storage { activation_bytes: bytes, tp, sp, keys, .. } = self.storage;
        let gradients = part.with_splits().map(|(operation, _)| match *operation {
            Operation::Classify { .. } => {
                let logits = operation.left(Kind::F, self.micro, &Storage { logit_bytes: 1, ..self.storage }, None);
                let width = operation.left(Kind::F, self.micro, &Storage { logit_bytes: 0, ..self.storage }, None);
                (logits - width).saturating_mul(self.stack.logit_working_bytes as u64)
            }
            Operation::Attention { heads, .. } if self.stack.attention(&self.layout) == Attention::Plain => {
                2 * self.rows_of(heads as u64 * keys as u64, bytes, tp)
            }
            _ => 2 * self.rows_of(operation.widest() as u64, bytes, if operation.has_split_rows() { tp } else { sp }),
        });
        let gradients = gradients.max().unwrap_or(0);
        if kind == Kind::F {
            return gradients;
        }
        let whole = Storage {
            score_bytes: score_bytes(&self.model, &self.layout, &self.stack, Recompute::None),
            ..self.storage
        };
        let again = part.left(Kind::F, self.micro, &whole).saturating_sub(self.part_left(part, Kind::F, recompute));
        gradients.saturating_add(again)
    }

    /// Returns what the ops of `stage` save and need.
    pub fn left(&self, stage: &Stage) -> SavedActivations {
        let in_forward = self.held(stage).map(|(part, _, how)| self.working(part, Kind::F, how));
        let gradient =
            embedding_elements(&self.spec, self.storage.tp).saturating_mul(u64::from(self.layout.precision.bytes()));
        SavedActivations {
            forward: self.saved(stage, Kind::F).saturating_add(self.sent_on(stage)),
            input: self.saved(stage, Kind::I),
            in_forward: in_forward.max().unwrap_or(0),
            in_backward: self.in_backward(stage).max(self.together(stage)),
            in_weights: self.again_in_weights(stage),
            at_end: if stage.has(EMBEDDING) && !self.storage.is_frozen { gradient } else { 0 },
        }
    }

    /// Returns whether software keeps every output, as llm.c does.
    fn keeps_outputs(&self) -> bool {
        self.stack.outputs_kept == 1.0
    }

    /// Returns the bytes of a moment, with fragmentation.
    pub(super) fn taken(&self, peak: Peak) -> u64 {
        peak.total().saturating_add(if self.keeps_outputs() { 0 } else { self.fragments(peak) })
    }

    /// Returns the memory of `device` at its `peak`.
    pub(super) fn device_at(&self, device: u32, stages: &[Stage], schedule: &Schedule, peak: Peak) -> DeviceMemory {
        let held = held_by(device, stages, &schedule.placement);
        let states = (self.states(&held), self.unsharded(device, stages, schedule));
        let of_which = self.mixture(device, stages, schedule, peak.held);
        DeviceMemory { of_which, ..self.device_with(device, &held, &schedule.placement, peak, states) }
    }

    /// Returns [`MemoryModel::device_at`] of a device with these stages, without the breakdown of a mixture of experts; it has these
    /// [`MemoryModel::states`] and bytes that FSDP gathers.
    fn device_with(
        &self,
        device: u32,
        held: &[&Stage],
        placement: &Placement,
        peak: Peak,
        ((elements, states), unsharded): (([u64; 2], [u64; 3]), Option<u64>),
    ) -> DeviceMemory {
        if self.keeps_outputs() {
            let buffers = llm_c::buffers(&self.spec, self.micro, self.keys(), placement.devices() > 1);
            return DeviceMemory::new(device, states, peak.held, buffers, 0);
        }
        let edges = if placement.devices() > 1 { self.hidden().saturating_mul(2) } else { 0 };
        let bytes = if self.stack.reduced_bytes > 0.0 {
            self.stack.reduced_bytes as u64
        } else {
            self.layout.precision.bytes().into()
        };
        let reduced = self.of_groups(elements, |elements, replicas| if replicas.ranks > 1 { elements } else { 0 });
        let buckets = (self.stack.bucket_elements as u64).min(reduced).saturating_mul(bytes);
        // activations are freed before gradients that are reduced after the last backward are copied into buckets
        let (early, late) = if self.stack.data_exposed < 1.0 { (buckets, 0) } else { (0, buckets) };
        // the optimizer's fp32 copy of gradients that were accumulated in fp16, when activations are freed, too
        let copy =
            if self.layout.precision == Precision::Fp16 { self.shared_out(elements).saturating_mul(4) } else { 0 };
        let running = peak.total().max(copy.max(late)) - peak.held;
        let gathered = unsharded.unwrap_or_else(|| self.gathered(held, states));
        let fixed = gathered.saturating_add(edges).saturating_add(early);
        let (buffers, held) = (running.saturating_add(fixed), peak.held);
        let allocated = states.into_iter().fold(held.saturating_add(buffers), u64::saturating_add);
        let unmanaged = self.unmanaged(allocated, peak);
        let unsharded = unsharded.unwrap_or(0);
        DeviceMemory { unsharded, ..DeviceMemory::new(device, states, held, buffers, unmanaged) }
    }

    /// Returns what F saves of attention, of the MLP or shared experts, and of router and experts.
    fn places(&self, part: &Part, recompute: Recompute) -> [u64; 3] {
        saved(part, recompute, self.micro, &self.storage, self.spec.width)
    }

    /// Returns the breakdown of a device's memory if the model has experts; `activations` is its peak.
    fn mixture(&self, device: u32, stages: &[Stage], schedule: &Schedule, activations: u64) -> MixtureMemory {
        let held = held_by(device, stages, &schedule.placement);
        let [_, experts] = self.spec.elements_under(held.iter().copied(), self.layout.degrees());
        if experts == 0 {
            return MixtureMemory::default();
        }
        let [expert_weights, expert_gradients, expert_optimizer] =
            state_bytes(experts, self.layout.replicas()[1], &self.layout, &self.stack);
        let mut named =
            MixtureMemory { expert_weights, expert_gradients, expert_optimizer, ..MixtureMemory::default() };
        let mut all = 0_u64;
        for (part, count, how) in held.iter().flat_map(|stage| self.held(stage)) {
            let bytes = count.saturating_mul(self.part_left(part, Kind::F, how));
            let places = if how == Recompute::Full { [0; 3] } else { self.places(part, how) };
            named.add(part, bytes, places);
            named.dispatch_buffers = named.dispatch_buffers.max(dispatched(part, self.micro, &self.storage));
            all = all.saturating_add(bytes);
        }
        named.scaled(activations, all)
    }

    /// Returns the most that `device` holds of gathered weights of whole stages and of gradients that are not reduced yet, if FSDP gathers
    /// stages between ops. Gradients are whole from a stage's first B or W until they are reduced.
    fn unsharded(&self, device: u32, stages: &[Stage], schedule: &Schedule) -> Option<u64> {
        let sharding = schedule.sharding.as_deref().filter(|_| self.layout.fsdp.is_some())?;
        let held = schedule.placement.stages_of(device).filter_map(|stage| Some((stage, stages.get(stage as usize)?)));
        let held: BTreeMap<u32, [u64; 2]> = held.map(|(number, stage)| (number, self.whole(&[stage]))).collect();
        let bytes = |stage: u32| held.get(&stage).copied().unwrap_or_default();
        let (mut now, mut most, mut number) = (0_u64, 0, 0);
        let mut has_gradients = BTreeSet::new();
        for op in schedule.program(device).iter().map(Some).chain([None]) {
            for Placed { collective: Collective { kind, stage }, .. } in sharding.before(device, number) {
                match kind {
                    CollectiveKind::Unshard => now = now.saturating_add(bytes(*stage)[0]),
                    CollectiveKind::Reshard => now = now.saturating_sub(bytes(*stage)[0]),
                    CollectiveKind::WaitReduceGrad if has_gradients.remove(stage) => {
                        now = now.saturating_sub(bytes(*stage)[1]);
                    }
                    CollectiveKind::ReduceGrad | CollectiveKind::WaitReduceGrad => {}
                }
                most = most.max(now);
            }
            if let Some(op) = op.filter(|op| matches!(op.kind(), Kind::B | Kind::W))
                && has_gradients.insert(op.stage())
            {
                now = now.saturating_add(bytes(op.stage())[1]);
                most = most.max(now);
            }
            number += 1;
        }
        Some(most)
    }

    /// Returns the number of micro-batches that fit on a device with `bytes` that holds only `stage`.
    pub fn room(&self, bytes: u64, stage: &Stage) -> f64 {
        let (_, states) = self.states(&[stage]);
        let SavedActivations { forward, in_forward, in_backward, .. } = self.left(stage);
        let running = in_forward.max(in_backward);
        let gathered = match self.layout.fsdp {
            Some(_) => self.whole(&[stage]).into_iter().fold(0, u64::saturating_add),
            None => self.gathered(&[stage], states),
        };
        let fixed = gathered.saturating_add(running);
        let taken = states.into_iter().fold(fixed, u64::saturating_add);
        let alone = Peak { running, ..Peak::default() };
        let left = bytes.saturating_sub(taken).saturating_sub(self.unmanaged(bytes, alone)) as f64;
        // the running op's micro-batch does not fragment
        let share = self.stack.activation_fragmentation;
        (left / forward.max(1) as f64 + share) / (1.0 + share)
    }

    fn keys(&self) -> usize {
        self.layout.sequence as usize
    }
}

/// Returns how the software stores saved activations.
fn storage(model: &Config, layout: &ParallelConfig, stack: &Stack) -> Storage {
    let (tensor, bytes) = (layout.tp as usize, layout.precision.bytes() as usize);
    Storage {
        product_bytes: if layout.precision.is_narrow() && stack.saves_narrow == 1.0 { 1 } else { bytes },
        logit_bytes: stack.logit_bytes as usize,
        has_whole_logits: stack.has_whole_logits(),
        norm_bytes: stack.norm_saved_bytes as usize,
        keeps_gathered: stack.keeps_gathered == 1.0,
        score_bytes: score_bytes(model, layout, stack, layout.recompute.of_layer(true)),
        keys: layout.sequence as usize,
        mask_bytes: usize::from(has_dropout(model, stack)),
        is_frozen: model.lora.is_some(),
        keeps_gate: stack.keeps_gate == 1.0,
        tp: tensor,
        sp: if layout.sequence_parallel { tensor } else { 1 },
        etp: layout.etp as usize,
        load_percent: (100.0 * layout.routing.load(stack.natural_load)).round() as usize,
        ..Storage::whole(8, bytes, model.vocabulary_multiple.max(1), 0)
    }
}

fn has_dropout(model: &Config, stack: &Stack) -> bool {
    model.style == Style::Gpt && stack.dropout == 1.0
}

/// Returns the bytes saved per score: the softmax output, and with dropout its mask and output (Korthikanti et al., section
/// 4.1).
fn score_bytes(model: &Config, layout: &ParallelConfig, stack: &Stack, recompute: Recompute) -> usize {
    let bytes = layout.precision.bytes() as usize;
    match (stack.attention(layout), recompute) {
        (Attention::Flash, _) => 0,
        (_, recompute) if recompute != Recompute::Full && recompute.repeats(RecomputePart::CoreAttention) => 0,
        _ if stack.score_saved_bytes > 0.0 => stack.score_saved_bytes as usize,
        _ if has_dropout(model, stack) => 2 * bytes + 1,
        _ => bytes,
    }
}
