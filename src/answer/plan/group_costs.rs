//! Costs that the layouts of a group share, calculated once.

use super::question::Question;
use pipesim_cost::analytic::{Analytic, Platform, SplitTimes};
use pipesim_models::layout::ParallelConfig;
use pipesim_schedule::placement::Placement;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Layers per stage.
type Layers = Option<Vec<usize>>;

/// The costs of each group's parts, and the splits that suit them.
pub struct GroupCosts {
    machine: Arc<Platform>,
    costs: Vec<OnceLock<Option<Analytic>>>,
    /// By group, without and with a split backward.
    times: Vec<[OnceLock<SplitTimes>; 2]>,
    /// By group and shape: see [`SplitTimes::lightest`].
    lightest: Mutex<BTreeMap<[u32; 2], Layers>>,
}

impl GroupCosts {
    /// Returns the costs of `count` groups.
    pub fn new(question: &Question, count: usize) -> GroupCosts {
        let (costs, times) = ((0..count).map(|_| OnceLock::new()), (0..count).map(|_| Default::default()));
        let machine = Arc::new(question.machine.clone());
        GroupCosts { machine, costs: costs.collect(), times: times.collect(), lightest: Mutex::default() }
    }

    /// Returns the costs of a layout of a group; `None` if the model or the machine does not allow it.
    pub fn of(&self, question: &Question, group: u32, layout: ParallelConfig) -> Option<Analytic> {
        let new = |layout| Analytic::new(question.model, self.machine.clone(), layout).ok();
        match self.costs.get(group as usize)?.get_or_init(|| new(layout.clone())) {
            Some(costs) => costs.under(layout).ok(),
            None => new(layout),
        }
    }

    /// Returns the times of what stages share, of a layout of a group with these costs.
    pub fn times(&self, group: u32, costs: &Analytic, splits: bool) -> Option<&SplitTimes> {
        Some(self.times.get(group as usize)?[usize::from(splits)].get_or_init(|| costs.split_times(splits)))
    }

    /// Returns the layers per stage whose busiest device is the lightest, of a layout of a group on the placement of a shape.
    pub fn lightest(&self, [group, shape]: [u32; 2], times: &SplitTimes, placement: &Placement) -> Layers {
        let known = || self.lightest.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&[group, shape]).cloned();
        found.unwrap_or_else(|| {
            let found = times.lightest(placement, &vec![usize::MAX; placement.devices() as usize]);
            known().insert([group, shape], found.clone());
            found
        })
    }
}
