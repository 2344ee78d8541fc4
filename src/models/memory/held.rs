//! Weights, gradients and optimizer states that a device holds, and what ZeRO gathers of other ranks'.

use super::model::MemoryModel;
use super::states::{self, state_bytes};
use crate::layout::{ParallelConfig, Replicas, Zero};
use crate::model_spec::{EMBEDDING, HEAD, Part, Stage};
use std::borrow::Cow;

impl MemoryModel<'_> {
    /// Returns the trained elements of a device with these stages on one rank, without and of experts, and the bytes of all together.
    pub(super) fn states(&self, held: &[&Stage]) -> ([u64; 2], [u64; 3]) {
        let (all, trained) =
            (self.elements(held), self.spec.trained_under(held.iter().copied(), self.layout.degrees()));
        let mut states = [0_u64; 3];
        for ((all, trained), replicas) in all.into_iter().zip(trained).zip(self.layout.replicas()) {
            let bytes = |elements| state_bytes(elements, replicas, &self.layout, &self.stack);
            let [frozen, ..] = bytes(all - trained);
            states.iter_mut().zip(bytes(trained)).for_each(|(bytes, more)| *bytes = bytes.saturating_add(more));
            states[0] = states[0].saturating_add(frozen);
        }
        (trained, states)
    }

    fn elements(&self, held: &[&Stage]) -> [u64; 2] {
        self.spec.elements_under(held.iter().copied(), self.layout.degrees())
    }

    /// Returns the sum of what `of` makes of the elements without and of experts, each with the ranks that hold the same ones.
    pub(super) fn of_groups(&self, elements: [u64; 2], of: impl Fn(u64, Replicas) -> u64) -> u64 {
        let groups = elements.into_iter().zip(self.layout.replicas());
        groups.map(|(elements, replicas)| of(elements, replicas)).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of the whole weights and gradients of stages on one rank that its data-parallel shard does not hold.
    pub(super) fn whole(&self, held: &[&Stage]) -> [u64; 2] {
        let layout = ParallelConfig { zero: Zero::None, ..self.layout.clone().into_owned() };
        let whole = MemoryModel { layout: Cow::Owned(layout), ..self.clone() };
        let ((_, whole), (_, shard)) = (whole.states(held), self.states(held));
        [0, 1].map(|part| whole[part].saturating_sub(shard[part]))
    }

    /// Returns the number of `elements` that the optimizer updates on one rank.
    pub(super) fn shared_out(&self, elements: [u64; 2]) -> u64 {
        self.of_groups(elements, |elements, replicas| match self.layout.zero {
            Zero::None => elements,
            _ => elements.div_ceil(u64::from(replicas.shard)),
        })
    }

    /// Returns the bytes of gathered weights and unreduced gradients under ZeRO-3: the running layer, the next one's weights,
    /// and embedding and head, which stay; never more than what the rank lacks. Tensors that no other rank holds are not gathered.
    /// Software that keeps them between micro-batches holds all, gradients also under ZeRO-2.
    pub(super) fn gathered(&self, held: &[&Stage], [weights, ..]: [u64; 3]) -> u64 {
        if self.stack.keeps_unsharded > 0.0 {
            // a single micro-batch reduces each gradient at once
            let kinds = if self.layout.micro.max(self.layout.rounds) > 1 { 2 } else { 1 };
            return self.whole(held).into_iter().take(kinds).fold(0, u64::saturating_add);
        }
        if self.layout.zero < Zero::Weights {
            return 0;
        }
        let bytes = u64::from(self.layout.precision.bytes());
        let of = |part: &Part| {
            let here = held.iter().any(|stage| stage.has(part.name));
            let is_shared = self.layout.replicas().map(|replicas| replicas.shard > 1);
            let has_original = held.iter().any(|stage| stage.has(EMBEDDING));
            let own = part.tensors().filter(|tensor| tensor.tied.is_none() || !has_original);
            let own = own.filter(|tensor| is_shared[usize::from(tensor.is_of_experts)]);
            if here { own.map(|tensor| tensor.elements_under(self.layout.degrees())).sum() } else { 0 }
        };
        let is_end = |part: &&Part| part.name == EMBEDDING || part.name == HEAD;
        let ends: u64 = self.spec.parts.iter().filter(is_end).map(of).sum();
        let layer = self.spec.parts.iter().filter(|part| !is_end(part)).map(of).max().unwrap_or(0);
        let gathered = (2 * layer + ends).saturating_mul(bytes).saturating_add(layer.max(ends).saturating_mul(bytes));
        let [each, ..] = states::bytes(self.layout.precision, &self.stack);
        let whole = self.of_groups(self.elements(held), |elements, _| elements.saturating_mul(each));
        gathered.min(whole.saturating_sub(weights))
    }
}
