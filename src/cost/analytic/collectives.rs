//! Times in which FSDP gathers the weights of a stage, and reduces and scatters its gradients.

use super::{Analytic, LONGEST_NS, ns};
use crate::CollectiveCosts;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::placement::Placement;

impl Analytic {
    /// Returns the times of the collectives of each stage, in nanoseconds: one gather and one reduction per layer, one after the other.
    pub(super) fn collectives(&self, placement: &Placement, stages: &[Stage]) -> CollectiveCosts {
        let stack = &self.machine.stack;
        let [gathered, reduced] = [stack.gathered(self.layout.precision), stack.reduced(self.layout.precision)];
        let own = |stage: usize| self.on(placement.device_of_stage(stage as u32, 0));
        let all = |bytes: f64, reduces: bool| {
            let times = stages.iter().enumerate().map(|(number, stage)| own(number).collective(stage, bytes, reduces));
            times.map(|seconds| ns(seconds).min(LONGEST_NS)).collect()
        };
        CollectiveCosts { gathers: all(gathered, false), reductions: all(reduced, true) }
    }

    /// Returns the seconds in which the ranks that share a stage exchange `bytes` per parameter; if they reduce, of trained parameters
    /// only, and with copies of their shards.
    fn collective(&self, stage: &Stage, bytes: f64, reduces: bool) -> f64 {
        let mixtures = self.spec.held(stage).filter(|(part, _)| part.chosen_experts().is_some());
        let mixtures: usize = mixtures.map(|(_, count)| count).sum();
        let pieces = [stage.layers(), mixtures].map(|layers| layers.max(1) as f64);
        let parameters = match reduces {
            true => self.rank_parameters(vec![stage]).map(|(parameters, _)| parameters),
            false => self.spec.elements_under([stage], self.layout.degrees()).map(|elements| elements as f64),
        };
        let within = self.machine.gather_replicas(&self.layout, parameters, pieces, bytes);
        let all = || self.machine.with_copies(&self.layout, within, parameters, pieces, bytes);
        if reduces { all() } else { within }
    }
}
