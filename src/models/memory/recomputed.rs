//! Memory of layers that the backward computes again, alone or together, and of backwards that autograd splits.

use super::model::MemoryModel;
use crate::layout::Recompute;
use crate::model_spec::{Operation, Part, Stage, Storage};
use pipesim_schedule::op::Kind;

impl MemoryModel<'_> {
    /// Returns the working memory of the backward of a stage. The first layers run backward last, when what later layers saved is freed.
    pub(super) fn in_backward(&self, stage: &Stage) -> u64 {
        let is_block = matches!(self.layout.recompute, Recompute::Block(_));
        let kept = self.held(stage).filter(|(part, _, how)| is_block && part.is_layer() && *how == Recompute::None);
        let kept = kept.map(|(part, count, how)| count.saturating_mul(self.part_left(part, Kind::F, how)));
        let freed = kept.fold(0, u64::saturating_add);
        let of = |(part, _, how): (&Part, u64, Recompute)| match (self.working(part, Kind::I, how), how) {
            (all, Recompute::Full) => all.saturating_sub(freed).max(self.working(part, Kind::F, how)),
            (all, _) => all,
        };
        self.held(stage).map(of).max().unwrap_or(0)
    }

    /// Returns the working memory of the backward of the layers of a stage that are recomputed together: the activations of a group, and
    /// gradients of one layer.
    pub(super) fn together(&self, stage: &Stage) -> u64 {
        let Recompute::Uniform(together) = self.layout.recompute else { return 0 };
        let layers: Vec<&Part> = self.spec.layers_of(stage).map(|number| &self.spec.parts[number]).collect();
        let of = |group: &[&Part]| {
            let gradients = group.iter().map(|part| self.working(part, Kind::F, Recompute::Full)).max().unwrap_or(0);
            let again = group.iter().map(|part| {
                let running = self.working(part, Kind::I, Recompute::Full);
                running.saturating_sub(self.working(part, Kind::F, Recompute::Full)).saturating_add(self.hidden())
            });
            again.fold(gradients, u64::saturating_add).saturating_sub(self.hidden())
        };
        layers.chunks((together as usize).max(1)).map(of).max().unwrap_or(0)
    }

    /// Returns the bytes of the gradients of the outputs of a layer's modules with weights.
    pub(super) fn gradients(&self, part: &Part) -> u64 {
        let Storage { activation_bytes: bytes, sp, .. } = self.storage;
        let of = part.with_splits().map(|(operation, split)| {
            let left = |kind| operation.left(kind, self.micro, &self.storage, split);
            match *operation {
                Operation::Norm { width, .. } => self.rows_of(width as u64, bytes, sp),
                Operation::Product { .. } | Operation::Grouped { .. } => left(Kind::I).saturating_sub(left(Kind::F)),
                _ => 0,
            }
        });
        of.fold(0, u64::saturating_add)
    }

    /// Returns the working memory of W of a stage if it recomputes layers: what operations without weights save stays for each module with
    /// weights, as autograd never gets to them.
    pub(super) fn again_in_weights(&self, stage: &Stage) -> u64 {
        let of = |(part, count, how): (&Part, u64, Recompute)| {
            if how != Recompute::Full || self.stack.splits_graph == 0.0 {
                return 0;
            }
            let stays = part.operations.iter().filter(|operation| !operation.has_weights());
            let stays = stays.map(|operation| operation.left(Kind::F, self.micro, &self.storage, None));
            stays.fold(0, u64::saturating_add).saturating_mul(count * part.modules() as u64)
        };
        self.held(stage).map(of).fold(0, u64::saturating_add)
    }
}
