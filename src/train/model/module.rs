//! What one device holds of the model, and its pipeline ops: forward, backward for the input, backward for the weights.

use super::catalog::{Catalog, Origin};
use super::held::HeldBytes;
use super::layers::{Layer, attention, compile};
use super::parameters::Parameters;
use super::shares::Shares;
use super::stages::{check_held, check_sizes};
use super::stash::Stash;
use crate::compute::cpu::Cpu;
use crate::compute::{Collective, Compute, OptimizerShare, Part, Side, TensorShare, Workload};
use anyhow::{Context as _, Result};
use pipesim_models::model_spec::transformer::{Config, check_rows};
use pipesim_models::model_spec::{self, EMBEDDING, HEAD, MicroBatch, ModelSpec, TiedSides};
use pipesim_schedule::op::Op;
use std::borrow::Cow;
use std::collections::btree_map::Entry::Vacant;
use std::collections::{BTreeMap, BTreeSet};

/// A repetition of a part that a stage holds.
pub(super) struct Repetition {
    /// Its number among the parts of the description.
    pub(super) part: usize,
    /// As which its times are measured.
    pub(super) timed: Part,
    /// The numbers of its groups of tensors among the device's groups.
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

/// A stage, with what its ops left behind by micro-batch and slice.
pub(super) struct HeldStage<B> {
    pub(super) layers: model_spec::Stage,
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
    pub(super) spec: ModelSpec,
    /// By part of the description.
    pub(super) layers: Vec<Vec<Layer>>,
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
    pub(super) microbatches: usize,
    /// Slices per micro-batch.
    pub(super) slices: usize,
    /// By stage and unit, whose forwards keep only what recomputing needs.
    pub(super) recomputed: BTreeSet<(u32, usize)>,
    /// Whether forwards keep nothing, because no backward follows; with slices only what later slices of the micro-batch read.
    pub forwards_only: bool,
    /// Whether sequences grow: what forwards keep for later tokens stays.
    pub(super) grows: bool,
    rows: usize,
    rows_between: usize,
    /// Of a token's loss: the step's is the mean over all its tokens.
    pub(super) weight: f32,
    pub(super) held: HeldBytes,
}

/// What a worker shares with others.
pub struct WorkerShare<C: ?Sized> {
    /// The tensor-parallel ranks that share its layers.
    pub ranks: Box<C>,
    /// Whether they also share the rows between products: sequence parallelism.
    pub shares_rows: bool,
    /// Its share of the optimizer's work: moments are kept, and gradients summed, for a slice of every group. Values of other
    /// slices come from the others.
    pub optimizer: OptimizerShare,
}

impl<C: ?Sized> From<Box<C>> for WorkerShare<C> {
    fn from(ranks: Box<C>) -> WorkerShare<C> {
        WorkerShare { ranks, shares_rows: false, optimizer: OptimizerShare::WHOLE }
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
    optimizer: OptimizerShare,
) -> Result<Workload> {
    check_sizes(config, [sequences, tokens, microbatches])?;
    config.check_tensor_ranks(tensor.size)?;
    check_rows("micro-batch", sequences * tokens, tensor.row_ranks())?;
    check_held(config, stages)?;
    let has = |part| stages.iter().any(|(_, stage)| stage.has(part));
    Ok(Workload {
        micro_batch: MicroBatch { sequences, tokens },
        microbatches,
        slices: Vec::new(),
        vocabulary: config.vocabulary,
        vocabulary_multiple: config.vocabulary_multiple,
        tensor,
        optimizer,
        attention: attention([config.heads, config.groups, config.head_size], tensor),
        frequencies: config.rotary.map_or(Vec::new(), |rotary| rotary.frequencies(config.head_size)),
        has_embedding: has(EMBEDDING),
        has_head: has(HEAD),
    })
}

impl StageModule<Cpu> {
    /// A module on the calling thread with one rank's share, for sequences that are cut into slices of these numbers of tokens; whole ones if there are none.
    pub fn on_cpu_slices(
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sizes: [usize; 3],
        slices: &[usize],
        share: impl Into<WorkerShare<dyn Collective>>,
    ) -> Result<StageModule<Cpu>> {
        let WorkerShare { ranks, shares_rows, optimizer } = share.into();
        let share = TensorShare { rank: ranks.rank(), size: ranks.size(), shares_rows };
        let workload = workload(&parameters.config, stages, sizes, share, optimizer)?.sliced(slices)?;
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
            let units = workload.microbatches * workload.slice_count();
            let stashes = (0..units).map(|_| Stash::Empty).collect();
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
            optimizer: workload.optimizer,
            microbatches: workload.microbatches,
            slices: workload.slice_count(),
            recomputed: BTreeSet::new(),
            forwards_only: false,
            grows: false,
            rows: workload.micro_batch.rows(),
            rows_between: workload.micro_batch.rows() / share.row_ranks(),
            weight: 1.0 / (workload.microbatches * workload.micro_batch.rows()) as f32,
            held: HeldBytes::default(),
        })
    }

    /// Makes the loss of a step the mean over `replicas` of this module, whose gradients are summed.
    pub fn average_over(&mut self, replicas: u32) {
        self.weight = 1.0 / (replicas as usize * self.microbatches * self.rows) as f32;
    }

    /// The machine.
    pub fn compute(&mut self) -> &mut C {
        &mut self.compute
    }

    /// The stages that are here, with their layers.
    pub fn held(&self) -> impl Iterator<Item = (u32, &model_spec::Stage)> {
        self.stages.iter().map(|(id, stage)| (*id, &stage.layers))
    }

    /// Tokens per micro-batch, n.
    pub fn rows(&self) -> usize {
        self.rows
    }

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

    /// Bytes that finished ops hold for those still to come.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// The most bytes that finished ops held for those still to come.
    pub fn peak_held_bytes(&self) -> usize {
        self.held.peak()
    }

    /// Changes of what finished ops hold in this step, or in the last one if it is over, in order: by which op, and how many bytes. A full
    /// backward is its two halves.
    pub fn held_changes(&self) -> Vec<(Op, i64)> {
        self.held.of_step()
    }

    /// Makes the forwards of the units that `ops` recompute keep only what these need: the stage's input, and with slices keys and
    /// values.
    ///
    /// # Errors
    /// An op that is not this module's.
    pub fn recompute(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        for op in ops {
            let (unit, _) = self.unit(op)?;
            self.recomputed.insert((op.stage(), unit));
        }
        Ok(())
    }
}
