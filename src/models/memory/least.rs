//! Lower bounds of the memory of every order.

use super::model::MemoryModel;
use super::peak::Peak;
use crate::model_spec::{SplitItems, Stage};
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::Placement;

impl MemoryModel<'_> {
    /// Returns a lower bound of the fullest device's bytes, for any schedule on `placement`: its states, one micro-batch's
    /// activations, and what is outside of the framework's allocator.
    pub fn least(&self, placement: &Placement, stages: &[Stage]) -> u64 {
        let context = if self.stack.outputs_kept == 1.0 { 0 } else { self.unmanaged(0, Peak::default()) };
        let of = |device: u32| {
            let held: Vec<&Stage> =
                placement.stages_of(device).filter_map(|stage| stages.get(stage as usize)).collect();
            let (_, states) = self.states(&held);
            let saved = if self.stack.outputs_kept == 1.0 {
                0
            } else {
                held.iter().map(|stage| self.left(stage).forward).max().unwrap_or(0)
            };
            states.into_iter().fold(saved, u64::saturating_add)
        };
        (0..placement.devices()).map(of).max().unwrap_or(0).saturating_add(context)
    }

    /// Returns a lower bound of the fullest device's bytes, for any schedule on `placement` and any split into `items`. It is the mean of the
    /// devices' states and of what they keep of a micro-batch of one of their stages, or what the head alone takes.
    pub fn least_of_splits(&self, items: &SplitItems, placement: &Placement) -> u64 {
        let keeps = self.stack.outputs_kept != 1.0;
        let kept = |stage: &Stage| if keeps { self.saved(stage, Kind::F) } else { 0 };
        let states = |stages: &[Stage]| {
            let (_, states) = self.states(&stages.iter().collect::<Vec<_>>());
            states.into_iter().fold(0, u64::saturating_add)
        };
        // what a layer keeps depends on its neighbours if some are recomputed
        let of_layers = if self.layout.recompute.is_of_layers() { None } else { items.kinds.iter().map(kept).min() };
        // the largest stage of a device has at least the mean of its stages
        let of_layers =
            of_layers.unwrap_or(0).saturating_mul(items.layers as u64) / u64::from(placement.stages().max(1));
        let all = states(&items.whole).saturating_mul(placement.directions().into());
        let mean = (all / u64::from(placement.devices().max(1))).saturating_add(of_layers);
        let head = states(&items.last).saturating_add(items.last.iter().map(kept).sum());
        let context = if keeps { self.unmanaged(0, Peak::default()) } else { 0 };
        // bytes of a device are rounded down
        mean.max(head).saturating_sub(64).saturating_add(context)
    }
}
