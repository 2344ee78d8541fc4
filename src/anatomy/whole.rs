//! A whole model: sums over its parts.

use super::operation::{MicroBatch, Operation, Storage};
use super::part::Part;
use super::stage::{Outline, Stage, TiedSides, Unsplittable};
use super::tensor::Tensor;
use crate::op::Kind;

/// A model, described.
#[derive(Clone, Debug, PartialEq)]
pub struct Anatomy {
    /// Elements a token of the hidden state, which is all that parts hand to each other; its gradient is as wide.
    pub width: usize,
    /// Its parts, in the order in which a token passes them.
    pub parts: Vec<Part>,
}

impl Anatomy {
    /// Its parts by name and number.
    pub fn outline(&self) -> Outline {
        let part_of = |name: &str| self.parts.iter().find(|part| part.tensors().any(|tensor| tensor.name == name));
        let tied = self.parts.iter().find_map(|part| {
            let original = part.tensors().find_map(|tensor| tensor.tied)?;
            Some([part_of(original)?.name, part.name])
        });
        Outline { parts: self.parts.iter().map(|part| (part.name, part.count)).collect(), tied }
    }

    /// What each of `stages` stages holds: runs of blocks, evenly or as `explicit` says; the first the embedding, the last the head.
    ///
    /// # Errors
    /// More stages than layers, or numbers that do not add up.
    pub fn split(&self, stages: usize, explicit: Option<&[usize]>) -> Result<Vec<Stage>, Unsplittable> {
        self.outline().split(stages, explicit)
    }

    /// Its tensors once each, with how often each stands in the model: the order of checkpoints.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let tensors = self.parts.iter().flat_map(|part| part.tensors().map(|tensor| (part.count, tensor)));
        tensors.filter(|(_, tensor)| tensor.tied.is_none())
    }

    /// Number of parameters, without padding.
    pub fn parameters(&self) -> u128 {
        self.tensors().map(|(count, tensor)| count as u128 * (tensor.elements() - tensor.padding_elements())).sum()
    }

    /// Elements of all its tensors as stored, padding included.
    pub fn elements(&self) -> u128 {
        self.tensors().map(|(count, tensor)| count as u128 * tensor.elements()).sum()
    }

    /// FLOPs of the whole model for a micro-batch, in F, I, W or B.
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        self.parts.iter().map(|part| part.count as u128 * part.flops(kind, micro)).sum()
    }

    /// Bytes that a stage leaves behind for a micro-batch, by F for I, or by I for W.
    pub fn left(&self, stage: &Stage, kind: Kind, micro: MicroBatch, storage: &Storage) -> usize {
        let left = self.held(stage).map(|(part, count)| count.saturating_mul(part.left(kind, micro, storage)));
        left.fold(0, usize::saturating_add)
    }

    /// Share of what F leaves behind that I leaves behind for W, over the whole model.
    pub fn keep(&self, micro: MicroBatch, storage: &Storage) -> f64 {
        let left = |kind| self.parts.iter().map(|part| part.count * part.left(kind, micro, storage)).sum::<usize>();
        (left(Kind::I) as f64 / left(Kind::F).max(1) as f64).min(1.0)
    }

    /// Elements that a stage sends to the next one for a micro-batch, and gets back from it.
    pub fn edge(&self, micro: MicroBatch) -> usize {
        micro.rows() * self.width
    }

    /// Elements of a tensor that two parts share, as one device sends its gradient to the other; 0 where none is. `stored` says
    /// how many elements a tensor of so many takes.
    pub fn tied_elements(&self, stored: impl Fn(usize) -> usize) -> usize {
        let tied = self.parts.iter().flat_map(Part::tensors).filter(|tensor| tensor.tied.is_some());
        tied.map(|tensor| stored(tensor.elements() as usize)).sum()
    }

    /// Elements of a stage's gradient: each part has its own of a tensor that it shares with another.
    pub fn gradient_elements(&self, stage: &Stage, stored: impl Fn(usize) -> usize) -> usize {
        let of = |part: &Part| part.tensors().map(|tensor| stored(tensor.elements() as usize)).sum::<usize>();
        self.held(stage).map(|(part, count)| count * of(part)).sum()
    }

    /// Elements of the tensors of a device with these stages: one that two parts share is there once.
    pub fn device_elements<'a>(
        &self,
        stages: impl IntoIterator<Item = &'a Stage> + Clone,
        stored: impl Fn(usize) -> usize,
    ) -> usize {
        let all: usize = stages.clone().into_iter().map(|stage| self.gradient_elements(stage, &stored)).sum();
        match self.outline().tied_sides(stages) {
            TiedSides::Both => all - self.tied_elements(stored),
            _ => all,
        }
    }

    /// Elements a token of its widest activation.
    pub fn widest(&self) -> usize {
        self.operations().map(Operation::widest).max().unwrap_or(0)
    }

    /// Most heads of an attention.
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

    /// Partial squares that add up to that of the gradient norm, in their order: one for each group of tensors.
    pub fn squares(&self) -> usize {
        self.parts.iter().map(|part| part.count * part.own_groups()).sum()
    }

    /// The place in that order of the first group of the part called `name` that has this number.
    pub fn square(&self, name: &str, number: usize) -> usize {
        let before = self.parts.iter().take_while(|part| part.name != name);
        let own = self.parts.iter().find(|part| part.name == name).map_or(0, Part::own_groups);
        before.map(|part| part.count * part.own_groups()).sum::<usize>() + number * own
    }

    /// The parts that a stage holds, and how many of each.
    pub fn held(&self, stage: &Stage) -> impl Iterator<Item = (&Part, usize)> {
        self.parts.iter().map(|part| (part, stage.count(part.name)))
    }
}
