//! The specification of a model, and sums over its parts.

use super::operation::{MicroBatch, Operation, Storage};
use super::part::{Degrees, PREDICTION, Part, Tensor};
use super::stage::{Outline, SplitError, Stage, TiedSides};
use super::stage_layout::StageLayout;
use pipesim_schedule::op::Kind;

/// The specification of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Hidden size, in elements per token: what parts pass to each other; its gradient has the same size.
    pub width: usize,
    /// Parts, in the order of the forward pass.
    pub parts: Vec<Part>,
    /// Index of the part of each layer, in model order; empty: the parts follow each other.
    pub order: Vec<usize>,
}

/// What the stages of every split of a model share.
#[derive(Clone, Debug, Default)]
pub struct SplitItems {
    /// The whole model as one stage.
    pub whole: Vec<Stage>,
    /// Layers, one for each run of the same kind.
    pub kinds: Vec<Stage>,
    /// What the last stage holds besides layers.
    pub last: Vec<Stage>,
    /// Number of layers.
    pub layers: usize,
}

impl ModelSpec {
    /// Returns the names and counts of the parts.
    pub fn outline(&self) -> Outline {
        let part_of = |name: &str| self.parts.iter().find(|part| part.tensors().any(|tensor| tensor.name == name));
        let tied = self.parts.iter().find_map(|part| {
            let original = part.tensors().find_map(|tensor| tensor.tied)?;
            Some([part_of(original)?.name, part.name])
        });
        let parts = self.parts.iter().map(|part| (part.name, part.count)).collect();
        Outline { parts, order: self.order.clone(), tied }
    }

    /// Splits the model into stages of contiguous blocks, evenly or by `explicit` counts; the first has the embedding, the last
    /// the head.
    ///
    /// # Errors
    /// There are more stages than layers, or counts do not add up.
    pub fn split(&self, stages: usize, explicit: Option<&[usize]>) -> Result<Vec<Stage>, SplitError> {
        self.outline().split(stages, explicit)
    }

    /// Returns what the stages of every split share; `None` without layers.
    pub fn items(&self) -> Option<SplitItems> {
        let layers = self.outline().layers();
        let alone: Vec<usize> = (0..layers + 2).map(|item| usize::from(item > 0 && item <= layers)).collect();
        let (whole, mut kinds) = (self.split(1, None).ok()?, self.split(layers + 2, Some(&alone)).ok()?);
        let last = kinds.split_off(layers + 1);
        kinds.remove(0);
        kinds.dedup_by(|one, other| one.counts().eq(other.counts()));
        Some(SplitItems { whole, kinds, last, layers })
    }

    /// Arranges the model in the stages of a layout.
    ///
    /// # Errors
    /// The layout has another number of layers.
    pub fn arranged(&self, layout: &StageLayout) -> Result<Vec<Stage>, SplitError> {
        self.outline().arranged(layout)
    }

    /// Returns the index of the part of each layer of a stage, in model order, without layers that predict further tokens.
    pub fn layers_of<'a>(&'a self, stage: &'a Stage) -> impl Iterator<Item = usize> + 'a {
        let is_inner = |part: &Part| part.is_layer() && part.name != PREDICTION;
        let inner = self.parts.iter().enumerate().filter(move |(_, part)| is_inner(part));
        let first = inner.clone().map(|(_, part)| stage.run(part.name).start).sum::<usize>();
        let ordered = self.order.iter().skip(first).take(stage.layers()).copied();
        let alike = inner.flat_map(|(number, part)| std::iter::repeat_n(number, stage.count(part.name)));
        ordered.chain(alike.take(if self.order.is_empty() { usize::MAX } else { 0 }))
    }

    /// Returns each tensor once with its number of repetitions, in the order of checkpoints.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let tensors = self.parts.iter().flat_map(|part| part.tensors().map(|tensor| (part.count, tensor)));
        tensors.filter(|(_, tensor)| tensor.tied.is_none())
    }

    /// Returns the number of parameters as published: without padding, and without layers that predict further tokens.
    pub fn parameters(&self) -> u128 {
        let main = self.parts.iter().filter(|part| part.name != PREDICTION);
        main.map(|part| part.count as u128 * part.parameters(|tensor| !tensor.is_adapter)).sum()
    }

    /// Returns whether adapters are trained instead of the weights.
    pub fn is_frozen(&self) -> bool {
        self.parts.iter().flat_map(Part::tensors).any(|tensor| tensor.is_adapter)
    }

    /// Returns the number of parameters of adapters.
    pub fn adapter_parameters(&self) -> u128 {
        self.parts.iter().map(|part| part.count as u128 * part.parameters(|tensor| tensor.is_adapter)).sum()
    }

    /// Returns the number of parameters of layers that predict further tokens, which are trained, too.
    pub fn prediction_parameters(&self) -> u128 {
        let layers = self.parts.iter().filter(|part| part.name == PREDICTION);
        layers.map(|part| part.count as u128 * part.parameters(|_| true)).sum()
    }

    /// Returns the parameters that a token passes: [`ModelSpec::parameters`] without experts that were not chosen.
    pub fn active_parameters(&self) -> u128 {
        let main = self.parts.iter().filter(|part| part.name != PREDICTION);
        let active = main.map(|part| {
            let routed = part.parameters(|tensor| tensor.is_of_experts);
            let (chosen, experts) = part.chosen_experts().unwrap_or((1, 1));
            part.count as u128 * (part.parameters(|tensor| !tensor.is_adapter) - routed + routed * chosen / experts)
        });
        active.sum()
    }

    /// Returns the elements on one rank of a device with these stages, without and of experts; a shared tensor counts once.
    pub fn elements_under<'a>(
        &self,
        stages: impl IntoIterator<Item = &'a Stage> + Clone,
        degrees: Degrees,
    ) -> [u64; 2] {
        self.elements_of(stages, degrees, |_| true)
    }

    /// Returns [`ModelSpec::elements_under`] of what is trained.
    pub fn trained_under<'a>(&self, stages: impl IntoIterator<Item = &'a Stage> + Clone, degrees: Degrees) -> [u64; 2] {
        let is_frozen = self.is_frozen();
        self.elements_of(stages, degrees, |tensor| tensor.is_adapter || !is_frozen)
    }

    fn elements_of<'a>(
        &self,
        stages: impl IntoIterator<Item = &'a Stage> + Clone,
        degrees: Degrees,
        counts: impl Fn(&Tensor) -> bool,
    ) -> [u64; 2] {
        let mut elements = [0; 2];
        for part in &self.parts {
            let count: usize = stages.clone().into_iter().map(|stage| stage.count(part.name)).sum();
            let own = part.tensors().filter(|tensor| count > 0 && tensor.tied.is_none() && counts(tensor));
            own.for_each(|tensor| {
                elements[usize::from(tensor.is_of_experts)] += count as u64 * tensor.elements_under(degrees);
            });
        }
        if let Some([original, other]) = self.outline().tied {
            let has = |part: &str| stages.clone().into_iter().any(|stage| stage.has(part));
            let tied =
                self.parts.iter().flat_map(Part::tensors).filter(|tensor| tensor.tied.is_some() && counts(tensor));
            if has(other) && !has(original) {
                elements[0] += tied.map(|tensor| tensor.elements_under(degrees)).sum::<u64>();
            }
        }
        elements
    }

    /// Returns the number of elements of all tensors as stored, including padding.
    pub fn elements(&self) -> u128 {
        self.tensors().map(|(count, tensor)| count as u128 * tensor.elements()).sum()
    }

    /// Returns the FLOPs of the whole model for a micro-batch, in F, I, W or B; W of what is trained.
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        if kind == Kind::B {
            return self.flops(Kind::I, micro) + self.flops(Kind::W, micro);
        }
        let is_frozen = kind == Kind::W && self.is_frozen();
        let counts = |operation: &&Operation| !is_frozen || matches!(operation, Operation::Adapt { .. });
        let of = |part: &Part| -> u128 {
            part.operations.iter().filter(counts).map(|operation| operation.flops(kind, micro)).sum()
        };
        self.parts.iter().map(|part| part.count as u128 * of(part)).sum()
    }

    /// Returns the bytes that a stage saves for a micro-batch: F for I, or I for W.
    pub fn left(&self, stage: &Stage, kind: Kind, micro: MicroBatch, storage: &Storage) -> u64 {
        let left = self.held(stage).map(|(part, count)| (count as u64).saturating_mul(part.left(kind, micro, storage)));
        left.fold(0, u64::saturating_add)
    }

    /// Returns the bytes of the keys and values that F of a stage saves for a micro-batch.
    pub fn keys(&self, stage: &Stage, micro: MicroBatch, storage: &Storage) -> u64 {
        let of = |part: &Part| part.operations.iter().map(|operation| operation.keys(micro, storage)).sum::<u64>();
        self.held(stage).map(|(part, count)| count as u64 * of(part)).fold(0, u64::saturating_add)
    }

    /// Returns the fraction of what F saves that I saves for W, over the whole model.
    pub fn keep(&self, micro: MicroBatch, storage: &Storage) -> f64 {
        let left =
            |kind| self.parts.iter().map(|part| part.count as u64 * part.left(kind, micro, storage)).sum::<u64>();
        (left(Kind::I) as f64 / left(Kind::F).max(1) as f64).min(1.0)
    }

    /// Returns the elements that a stage sends to the next one per micro-batch, and receives back.
    pub fn edge(&self, micro: MicroBatch) -> usize {
        micro.rows() * self.width
    }

    /// Returns the elements of a tensor that two parts share, whose gradient two devices exchange; 0 if there is none. `stored`
    /// maps the elements of a tensor to those allocated.
    pub fn tied_elements(&self, stored: impl Fn(u64) -> u64) -> u64 {
        let tied = self.parts.iter().flat_map(Part::tensors).filter(|tensor| tensor.tied.is_some());
        tied.map(|tensor| stored(tensor.elements() as u64)).sum()
    }

    /// Returns the elements of a stage's gradients; both parts that share a tensor have their own gradient.
    pub fn gradient_elements(&self, stage: &Stage, stored: impl Fn(u64) -> u64) -> u64 {
        let of = |part: &Part| part.tensors().map(|tensor| stored(tensor.elements() as u64)).sum::<u64>();
        self.held(stage).map(|(part, count)| count as u64 * of(part)).sum()
    }

    /// Returns the elements of a stage's gradients on the tensor-parallel rank that holds most, the first of `ranks`.
    pub fn gradient_share(&self, stage: &Stage, ranks: usize) -> usize {
        let of = |part: &Part| part.tensors().map(|tensor| tensor.share_elements(ranks)).sum::<usize>();
        self.held(stage).map(|(part, count)| count * of(part)).sum()
    }

    /// Returns the elements of the tied tensor on the tensor-parallel rank that holds most, the first of `ranks`.
    pub fn tied_share(&self, ranks: usize) -> usize {
        let tied = self.parts.iter().flat_map(Part::tensors).filter(|tensor| tensor.tied.is_some());
        tied.map(|tensor| tensor.share_elements(ranks)).sum()
    }

    /// Returns the elements of the tensors of a device with these stages; a shared tensor counts once.
    pub fn device_elements<'a>(
        &self,
        stages: impl IntoIterator<Item = &'a Stage> + Clone,
        stored: impl Fn(u64) -> u64,
    ) -> u64 {
        let all: u64 = stages.clone().into_iter().map(|stage| self.gradient_elements(stage, &stored)).sum();
        match self.outline().tied_sides(stages) {
            TiedSides::Both => all - self.tied_elements(stored),
            _ => all,
        }
    }

    /// Returns the elements per token of the widest activation.
    pub fn widest(&self) -> usize {
        self.operations().map(Operation::widest).max().unwrap_or(0)
    }

    /// Returns the maximum number of attention heads.
    pub fn heads(&self) -> usize {
        let heads = |operation: &Operation| match operation {
            Operation::Attention { heads, .. } => *heads,
            _ => 0,
        };
        self.operations().map(heads).max().unwrap_or(0)
    }

    fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.parts.iter().flat_map(|part| &part.operations)
    }

    /// Returns the number of partial squares of the gradient norm: one per group of tensors.
    pub fn squares(&self) -> usize {
        self.parts.iter().map(|part| part.count * part.own_groups()).sum()
    }

    /// Returns the index of the partial square of the first group in repetition `number` of the part `name`.
    pub fn square(&self, name: &str, number: usize) -> usize {
        let before = self.parts.iter().take_while(|part| part.name != name);
        let own = self.parts.iter().find(|part| part.name == name).map_or(0, Part::own_groups);
        before.map(|part| part.count * part.own_groups()).sum::<usize>() + number * own
    }

    /// Returns the parts with the number that a stage holds of each.
    pub fn held(&self, stage: &Stage) -> impl Iterator<Item = (&Part, usize)> {
        self.parts.iter().map(|part| (part, stage.count(part.name)))
    }
}
