//! Lower bounds of the memory of every order.

use super::model::MemoryModel;
use super::peak::Peak;
use crate::layout::Recompute;
use crate::model_spec::{SplitItems, Stage};
use pipesim_schedule::moments::Moments;
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

    /// Returns what bounds the memory of the layout's devices from below, whatever the schedule and the split into `items`.
    pub fn least_of_splits(&self, items: &SplitItems) -> LeastMemory {
        let keeps = self.stack.outputs_kept != 1.0;
        let kept = |stage: &Stage| if keeps { self.saved(stage, Kind::F) } else { 0 };
        let states = |stages: &[Stage]| {
            let (_, states) = self.states(&stages.iter().collect::<Vec<_>>());
            states.into_iter().fold(0, u64::saturating_add)
        };
        // what a layer keeps depends on its neighbours if some are recomputed
        let is_of_some = self.layout.recompute.is_of_layers() && self.layout.recompute != Recompute::Full;
        let of_layers = if is_of_some { None } else { items.kinds.iter().map(kept).min() };
        let context = if keeps { self.unmanaged(0, Peak::default()) } else { 0 };
        let lost = self.unmanaged(1 << 40, Peak::default()) - self.unmanaged(0, Peak::default());
        LeastMemory {
            layers: items.layers as u64,
            states: states(&items.whole),
            layer_states: items.kinds.iter().map(|kind| states(std::slice::from_ref(kind))).min().unwrap_or(0),
            layer_kept: of_layers.unwrap_or(0),
            head: states(&items.last).saturating_add(items.last.iter().map(kept).sum()),
            context,
            lost: if keeps { lost as f64 / (1_u64 << 40) as f64 } else { 0.0 },
        }
    }
}

/// What bounds the memory of a layout's devices from below, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LeastMemory {
    layers: u64,
    /// States of the whole model, of the layer that has the fewest, and of what the last stage holds besides layers with what that keeps.
    states: u64,
    layer_states: u64,
    head: u64,
    /// What a layer keeps of a micro-batch, at least.
    layer_kept: u64,
    /// What is outside of the framework's allocator, and the share of what is inside that is lost.
    context: u64,
    lost: f64,
}

impl LeastMemory {
    /// Returns a lower bound of the fullest device's bytes, for any schedule on `placement` and any split. It is the mean of the devices'
    /// states and of what they keep of a micro-batch of one of their stages, or what the head alone takes.
    pub fn of_any(&self, placement: &Placement) -> u64 {
        // the largest stage of a device has at least the mean of its stages
        let of_layers = self.layer_kept.saturating_mul(self.layers) / u64::from(placement.stages().max(1));
        self.with_context(self.mean_states(placement).saturating_add(of_layers).max(self.head))
    }

    /// Returns a lower bound of the fullest device's bytes, and of the devices' mean, for a schedule with these moments and `layers` per
    /// stage.
    pub fn of(&self, moments: &Moments, layers: &[usize]) -> [u64; 2] {
        let layers_of = |stage: u32| layers.get(stage as usize).copied().unwrap_or(0) as u64;
        let (mut sum, mut most) = (0_u64, 0);
        for device in 0..moments.placement.devices() {
            let held = moments.most_held(device).iter();
            let held = held.map(|&(stage, count)| layers_of(stage) * u64::from(count)).sum::<u64>();
            let kept = self.layer_kept.saturating_mul(held);
            let own = moments.placement.stages_of(device).map(layers_of).sum::<u64>();
            // each layer's bytes are rounded up
            let states = own.saturating_mul(self.layer_states.saturating_sub(64));
            sum = sum.saturating_add(kept);
            most = kept.saturating_add(states).max(most);
        }
        let mean = sum / u64::from(moments.placement.devices().max(1));
        let mean = mean.saturating_add(self.mean_states(&moments.placement));
        [most.max(mean), mean].map(|bytes| self.with_context(bytes))
    }

    /// Returns a lower bound of the devices' mean, for a schedule with these moments and any split of which only the first and the last stage
    /// may be empty.
    pub fn of_any_split(&self, moments: &Moments) -> u64 {
        let stages = moments.placement.stages() as usize;
        let mut layers: Vec<usize> = (0..stages).map(|stage| usize::from(stage > 0 && stage + 1 < stages)).collect();
        let mut held = vec![0; stages];
        let all = (0..moments.placement.devices()).flat_map(|device| moments.most_held(device));
        all.for_each(|&(stage, count)| held[stage as usize] += count);
        // the others where the fewest micro-batches are in flight
        let rest = (self.layers as usize).saturating_sub(layers.iter().sum());
        let lowest = (0..stages).min_by_key(|stage| held[*stage]);
        lowest.into_iter().for_each(|stage| layers[stage] += rest);
        self.of(moments, &layers)[1]
    }

    fn mean_states(&self, placement: &Placement) -> u64 {
        self.states.saturating_mul(placement.directions().into()) / u64::from(placement.devices().max(1))
    }

    fn with_context(&self, bytes: u64) -> u64 {
        // bytes of a device are rounded down
        let bytes = bytes.saturating_sub(64);
        bytes.saturating_add((self.lost * bytes as f64) as u64).saturating_add(self.context)
    }
}
