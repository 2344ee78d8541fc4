//! What one device holds of the model, and its pipeline ops: forward, backward for the input, backward for the weights.

use super::catalog::{Catalog, Origin};
use super::layers::{Layer, attention, compile};
use super::parameters::Parameters;
use super::shares::Shares;
use super::stages::{check_held, check_sizes};
use super::stash::Stash;
use super::walk::Walk;
use crate::compute::cpu::Cpu;
use crate::compute::{Alone, Collective, Compute, OptimizerShare, Part, PartTimer, Side, TensorShare, Workload};
use crate::model_spec::transformer::Config;
use crate::model_spec::{self, EMBEDDING, HEAD, MicroBatch, ModelSpec, TiedSides};
use crate::op::{Kind, Op};
use anyhow::{Context as _, Error, Result, bail, ensure};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::Vacant;

/// A repetition of a part that a stage holds.
pub(super) struct Repetition {
    /// Its number among the parts of the description.
    part: usize,
    /// As which its times are measured.
    timed: Part,
    /// The numbers of its groups of tensors among those of the device.
    pub(super) groups: Vec<usize>,
    /// By group: the side of the gradient that is this part's.
    sides: Vec<Side>,
}

impl Repetition {
    /// Each group, with the side of its gradient that this part adds to.
    pub(super) fn sides(&self) -> impl Iterator<Item = (usize, Side)> {
        self.groups.iter().copied().zip(self.sides.iter().copied())
    }
}

/// A stage, with what its ops left behind by micro-batch.
pub(super) struct HeldStage<B> {
    layers: model_spec::Stage,
    pub(super) repetitions: Vec<Repetition>,
    pub(super) stashes: Vec<Stash<B>>,
}

/// Everything that one device owns of its stages: parameters, gradients and AdamW's moments (a shared tensor once, even if both
/// parts that share it are here), and what ops leave behind for each stage and micro-batch.
///
/// An op may only enqueue: it has read its input, and filled its output, when what is enqueued behind it runs. Methods that wait say
/// so. The backward for the input leaves behind exactly the operands that the backward for the weights needs, and every gradient
/// accumulates there, in the order of those calls: so no partition and no interleaving of stages changes a bit of a result.
pub struct StageModule<C: Compute> {
    pub(super) compute: C,
    pub(super) config: Config,
    spec: ModelSpec,
    /// By part of the description.
    layers: Vec<Vec<Layer>>,
    pub(super) groups: Vec<C::Group>,
    /// By group.
    pub(super) origins: Vec<Origin>,
    pub(super) shares: Shares,
    pub(super) stages: BTreeMap<u32, HeldStage<C::Buffer>>,
    /// The group of the tensor that two parts share, where one of them is here.
    pub(super) shared: Option<usize>,
    /// Which of those parts are here.
    pub(super) tied: TiedSides,
    /// Where one is: whether the other's gradient has arrived this step.
    pub(super) tied_received: bool,
    /// Its share of the optimizer's work.
    pub(super) optimizer: OptimizerShare,
    rows: usize,
    #[cfg(feature = "internals")]
    rows_between: usize,
    /// Of a token's loss: the step's is the mean over all its tokens.
    weight: f32,
    pub(super) held_bytes: usize,
    pub(super) peak_held_bytes: usize,
}

/// The tensor-parallel ranks that share a module's layers.
pub struct TensorRanks {
    pub members: Box<dyn Collective>,
    /// Whether they also share the rows between products: sequence parallelism.
    pub shares_rows: bool,
}

impl From<Box<dyn Collective>> for TensorRanks {
    fn from(members: Box<dyn Collective>) -> TensorRanks {
        TensorRanks { members, shares_rows: false }
    }
}

/// Returns what a device with these stages computes, all of their layers or a tensor-parallel rank's share. A micro-batch has
/// `sequences` sequences of `tokens` tokens.
///
/// # Errors
/// Sizes or stages that the model does not have, or ranks that cannot share its layers.
pub fn workload(
    config: &Config,
    stages: &[(u32, model_spec::Stage)],
    [sequences, tokens, microbatches]: [usize; 3],
    tensor: TensorShare,
) -> Result<Workload> {
    check_sizes(config, [sequences, tokens, microbatches])?;
    config.check_tensor_ranks(tensor.size).map_err(Error::msg)?;
    let (rows, ranks) = (sequences * tokens, tensor.row_ranks());
    ensure!(
        rows.is_multiple_of(ranks),
        "expected a micro-batch's {rows} tokens to be a multiple of --tp {ranks} under --sequence-parallel; choose another --seq"
    );
    check_held(config, stages)?;
    let has = |part| stages.iter().any(|(_, stage)| stage.has(part));
    Ok(Workload {
        micro_batch: MicroBatch { sequences, tokens },
        microbatches,
        vocabulary: config.vocabulary,
        vocabulary_multiple: config.vocabulary_multiple,
        tensor,
        attention: attention([config.heads, config.groups, config.head_size], tensor),
        frequencies: config.rotary.map_or(Vec::new(), |rotary| rotary.frequencies(config.head_size)),
        has_embedding: has(EMBEDDING),
        has_head: has(HEAD),
    })
}

impl StageModule<Cpu> {
    /// A module on the calling thread: see [`StageModule::new`].
    pub fn on_cpu(
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sizes: [usize; 3],
    ) -> Result<StageModule<Cpu>> {
        StageModule::on_cpu_rank(parameters, stages, sizes, Box::new(Alone) as Box<dyn Collective>)
    }

    /// A module on the calling thread with one tensor-parallel rank's share of each layer: see [`StageModule::new`]. Its
    /// forwards, and its backwards for the input, wait for those of the other ranks; all run the same ops in the same order.
    pub fn on_cpu_rank(
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sizes: [usize; 3],
        ranks: impl Into<TensorRanks>,
    ) -> Result<StageModule<Cpu>> {
        let TensorRanks { members: ranks, shares_rows } = ranks.into();
        let share = TensorShare { rank: ranks.rank(), size: ranks.size(), shares_rows };
        let workload = workload(&parameters.config, stages, sizes, share)?;
        StageModule::new(Cpu::new(workload.clone(), ranks)?, parameters, stages, &workload)
    }
}

impl<C: Compute> StageModule<C> {
    /// Copies what `stages` hold out of `parameters`, which are the whole model's, for the workload that `compute` was made for.
    ///
    /// # Errors
    /// A model that cannot be executed, or the machine failed.
    pub fn new(
        mut compute: C,
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        workload: &Workload,
    ) -> Result<StageModule<C>> {
        compute.enter()?;
        let (config, spec) = (parameters.config, parameters.config.spec());
        let share = workload.tensor;
        let layers = spec.parts.iter().map(|part| compile(part, &config, share)).collect::<Result<_>>()?;
        let shares = Shares::new(&spec, share);
        let tied = spec.outline().tied_sides(stages.iter().map(|(_, stage)| stage));
        let catalog = Catalog::new(&spec);
        let (mut groups, mut origins, mut numbers, mut shared) = (Vec::new(), Vec::new(), BTreeMap::new(), None);
        let mut held = BTreeMap::new();
        for (id, stage) in stages {
            let mut repetitions = Vec::new();
            for (part, description) in spec.parts.iter().enumerate() {
                for number in stage.run(description.name) {
                    let mut own = Vec::new();
                    for entry in &catalog.groups[part] {
                        let key = (entry.first, number);
                        if let Vacant(place) = numbers.entry(key) {
                            let layer = (entry.count > 1).then_some(number);
                            let tensors: Vec<_> = entry.tensors.iter().map(|&tensor| (tensor, layer)).collect();
                            let read = |&(tensor, layer)| shares.read(tensor, parameters.part(tensor, layer));
                            let values: Vec<Cow<[f32]>> = tensors.iter().map(read).collect();
                            let values: Vec<&[f32]> = values.iter().map(|values| &**values).collect();
                            let length = values.iter().map(|values| values.len()).sum();
                            groups.push(compute.group(&values, entry.is_shared)?);
                            if entry.is_shared {
                                shared = Some(origins.len());
                            }
                            let elsewhere = entry.is_shared && tied == TiedSides::One(1);
                            let square = (entry.square + number * entry.stride) * share.size + share.rank;
                            let counted = shares.counted(&entry.tensors);
                            origins.push(Origin { tensors, length, square: (!elsewhere).then_some(square), counted });
                            place.insert(origins.len() - 1);
                        }
                        own.push(numbers[&key]);
                    }
                    let timed = Part::named(description.name).context("expected a part that is measured")?;
                    let sides = catalog.groups[part].iter().map(|entry| entry.side).collect();
                    repetitions.push(Repetition { part, timed, groups: own, sides });
                }
            }
            let stashes = (0..workload.microbatches).map(|_| Stash::Empty).collect();
            held.insert(*id, HeldStage { layers: stage.clone(), repetitions, stashes });
        }
        Ok(StageModule {
            compute,
            config,
            spec,
            layers,
            groups,
            origins,
            shares,
            stages: held,
            shared,
            tied,
            tied_received: false,
            optimizer: OptimizerShare::WHOLE,
            rows: workload.micro_batch.rows(),
            #[cfg(feature = "internals")]
            rows_between: workload.micro_batch.rows() / share.row_ranks(),
            weight: 1.0 / (workload.microbatches * workload.micro_batch.rows()) as f32,
            held_bytes: 0,
            peak_held_bytes: 0,
        })
    }

    /// Makes the loss of a step the mean over `replicas` of this module, whose gradients are summed.
    pub fn average_over(&mut self, replicas: u32) {
        let microbatches = self.stages.values().map(|stage| stage.stashes.len()).max().unwrap_or(1);
        self.weight = 1.0 / (replicas as usize * microbatches * self.rows) as f32;
    }

    /// Shares the optimizer's work with other workers that hold the same parameters: moments are kept, and gradients summed,
    /// for a slice of every group. Values of other slices come from the others.
    ///
    /// # Errors
    /// The machine cannot, or failed.
    pub fn share_optimizer(&mut self, share: OptimizerShare) -> Result<()> {
        self.compute.enter()?;
        self.optimizer = share;
        self.groups.iter_mut().try_for_each(|group| self.compute.share_optimizer(group, share))
    }

    #[cfg(feature = "internals")]
    /// The machine.
    pub fn compute(&mut self) -> &mut C {
        &mut self.compute
    }

    /// The stages that are here, with their layers.
    pub fn held(&self) -> impl Iterator<Item = (u32, &model_spec::Stage)> {
        self.stages.iter().map(|(id, stage)| (*id, &stage.layers))
    }

    #[cfg(feature = "internals")]
    /// Tokens per micro-batch, n.
    pub fn rows(&self) -> usize {
        self.rows
    }

    #[cfg(feature = "internals")]
    /// Tokens per micro-batch of a hidden state here: fewer than n where tensor-parallel ranks share them.
    pub fn rows_between(&self) -> usize {
        self.rows_between
    }

    /// Elements per token of a hidden state: what stages hand to each other.
    pub fn width(&self) -> usize {
        self.spec.width
    }

    /// Begins a step with its tokens, all micro-batches' one after the other. Devices without the embedding need no inputs, those
    /// without the head no targets.
    ///
    /// # Errors
    /// Tokens that are not the step's or not the vocabulary's.
    pub fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        self.compute.enter()?;
        self.compute.begin(inputs, targets)
    }

    /// Runs an op: F, I, W, or B, which is I followed by W. Input and output are those of the op's own method.
    pub fn run(
        &mut self,
        op: Op,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let (stage, microbatch) = (op.stage(), op.microbatch());
        match op.kind() {
            Kind::F => self.forward(stage, microbatch, input, output, timer),
            Kind::I => self.backward_input(stage, microbatch, input, output, timer),
            Kind::W => self.backward_weight(stage, microbatch, timer),
            Kind::B => {
                self.backward_input(stage, microbatch, input, output, timer)?;
                self.backward_weight(stage, microbatch, timer)
            }
            Kind::R | Kind::O | Kind::L | Kind::S | Kind::IF | Kind::IB => {
                bail!("expected F, I, W or B, found {op}: the executor does not run it")
            }
        }
    }

    /// Forward of `stage` for `microbatch`. `input` is the hidden state (n, C) of the stage before, absent for the first; `output`
    /// receives that of this stage, absent for the last, which computes the loss.
    ///
    /// # Errors
    /// The stage is not here, the op is out of order, or something is there that should not be, or the other way round.
    pub fn forward(
        &mut self,
        stage: u32,
        microbatch: u32,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let call = || format!("forward of stage {stage}, micro-batch {microbatch}");
        self.forward_inner(stage, microbatch, input, output, timer).with_context(call)
    }

    fn forward_inner(
        &mut self,
        stage: u32,
        microbatch: u32,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let entry = find(&mut self.stages, stage, microbatch)?;
        let index = microbatch as usize;
        if !matches!(entry.stashes[index], Stash::Empty) {
            bail!("expected its first, found a second before the backward: run the backward first");
        }
        check_presence(input.is_some(), !entry.layers.has(EMBEDDING), "hidden state")?;
        check_presence(output.is_some(), !entry.layers.has(HEAD), "output")?;
        let compute = &mut self.compute;
        compute.enter()?;
        timer.start(Kind::F)?;
        let mut hidden = input.map(|input| compute.receive(input, self.spec.width)).transpose()?;
        let mut left = Vec::with_capacity(entry.repetitions.len());
        for (number, repetition) in entry.repetitions.iter().enumerate() {
            let place = output.as_ref().filter(|_| number + 1 == entry.repetitions.len());
            let (layers, groups) = (&self.layers[repetition.part], &repetition.groups);
            let walk = Walk { compute: &mut *compute, layers, groups, microbatch: index };
            let (of_part, next) = walk.forward(&self.groups, hidden, place, self.weight)?;
            left.push(of_part);
            hidden = next;
            timer.end(repetition.timed)?;
        }
        if let (Some(hidden), Some(output)) = (hidden, output) {
            compute.send(hidden, output)?;
        }
        timer.finish()?;
        self.keep(stage, index, Stash::Forward(left));
        Ok(())
    }

    /// Backward for the input. `gradient` is that of the stage's output, absent for the last stage; `output` receives the gradient of
    /// the stage's input, absent for the first.
    pub fn backward_input(
        &mut self,
        stage: u32,
        microbatch: u32,
        gradient: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let call = || format!("backward for the input of stage {stage}, micro-batch {microbatch}");
        self.backward_input_inner(stage, microbatch, gradient, output, timer).with_context(call)
    }

    fn backward_input_inner(
        &mut self,
        stage: u32,
        microbatch: u32,
        gradient: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let entry = find(&mut self.stages, stage, microbatch)?;
        let index = microbatch as usize;
        check_presence(gradient.is_some(), !entry.layers.has(HEAD), "gradient")?;
        check_presence(output.is_some(), !entry.layers.has(EMBEDDING), "output")?;
        let held = entry.stashes[index].bytes();
        let mut left = entry.stashes[index].take_forward().map_err(Error::msg)?;
        self.held_bytes -= held;
        let compute = &mut self.compute;
        compute.enter()?;
        timer.start(Kind::I)?;
        let mut hidden = gradient.map(|gradient| compute.receive(gradient, self.spec.width)).transpose()?;
        for (number, repetition) in entry.repetitions.iter().enumerate().rev() {
            let place = output.as_ref().filter(|_| number == 0);
            let (layers, groups) = (&self.layers[repetition.part], &repetition.groups);
            let walk = Walk { compute: &mut *compute, layers, groups, microbatch: index };
            let of_part = std::mem::take(&mut left[number]);
            let (of_part, next) = walk.backward_input(&self.groups, of_part, hidden, place)?;
            left[number] = of_part;
            hidden = next;
            timer.end(repetition.timed)?;
        }
        if let (Some(hidden), Some(output)) = (hidden, output) {
            compute.send(hidden, output)?;
        }
        timer.finish()?;
        self.keep(stage, index, Stash::Weight(left));
        Ok(())
    }

    /// Backward for the weights: adds this micro-batch's share to the gradients of the stage's parameters.
    pub fn backward_weight(&mut self, stage: u32, microbatch: u32, timer: &mut C::Timer) -> Result<()> {
        let call = || format!("backward for the weights of stage {stage}, micro-batch {microbatch}");
        self.backward_weight_inner(stage, microbatch, timer).with_context(call)
    }

    fn backward_weight_inner(&mut self, stage: u32, microbatch: u32, timer: &mut C::Timer) -> Result<()> {
        let entry = find(&mut self.stages, stage, microbatch)?;
        let index = microbatch as usize;
        let held = entry.stashes[index].bytes();
        let left = entry.stashes[index].take_weight().map_err(Error::msg)?;
        self.held_bytes -= held;
        self.compute.enter()?;
        timer.start(Kind::W)?;
        for (repetition, of_part) in entry.repetitions.iter().zip(left).rev() {
            let (layers, groups) = (&self.layers[repetition.part], &repetition.groups);
            let walk = Walk { compute: &mut self.compute, layers, groups, microbatch: index };
            walk.backward_weight(&mut self.groups, of_part)?;
            timer.end(repetition.timed)?;
        }
        timer.finish()
    }

    fn keep(&mut self, stage: u32, index: usize, stash: Stash<C::Buffer>) {
        self.held_bytes += stash.bytes();
        self.peak_held_bytes = self.peak_held_bytes.max(self.held_bytes);
        if let Some(entry) = self.stages.get_mut(&stage) {
            entry.stashes[index] = stash;
        }
    }

    #[cfg(feature = "internals")]
    /// Bytes that finished ops hold for those still to come.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The most that [`StageModule::held_bytes`] has been.
    pub fn peak_held_bytes(&self) -> usize {
        self.peak_held_bytes
    }
}

/// The stage with this number, if the micro-batch too is one of the step's.
fn find<B>(stages: &mut BTreeMap<u32, HeldStage<B>>, stage: u32, microbatch: u32) -> Result<&mut HeldStage<B>> {
    let known: Vec<u32> = stages.keys().copied().collect();
    let Some(entry) = stages.get_mut(&stage) else {
        bail!("expected one of this device's stages, {known:?}, found {stage}: send the op to the device that has it");
    };
    let count = entry.stashes.len();
    ensure!(
        (microbatch as usize) < count,
        "expected a micro-batch below {count}, found {microbatch}: use those of this step"
    );
    Ok(entry)
}

/// Whether something is there exactly when it should be.
fn check_presence(found: bool, wanted: bool, what: &str) -> Result<()> {
    ensure!(found || !wanted, "expected {what}, found none: pass it");
    ensure!(!found || wanted, "expected no {what} for a stage with these layers, found one: leave it out");
    Ok(())
}
