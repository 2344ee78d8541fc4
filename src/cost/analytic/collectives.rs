//! Times in which FSDP gathers the weights of a stage, and reduces and scatters its gradients.

use super::{Analytic, LONGEST_NS, ns};
use crate::CollectiveCosts;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::placement::Placement;

impl Analytic {
    /// Returns the times of the collectives of each stage, in nanoseconds: one gather and one reduction per layer, one after the other.
    pub(super) fn collectives(&self, placement: &Placement, stages: &[Stage]) -> CollectiveCosts {
        let stack = &self.machine.stack;
        let own = |stage: usize| self.on(placement.device_of_stage(stage as u32, 0));
        let all = |bytes: f64, is_whole: bool| {
            let times = stages.iter().enumerate().map(|(number, stage)| own(number).collective(stage, bytes, is_whole));
            times.map(|seconds| ns(seconds).min(LONGEST_NS)).collect()
        };
        let precision = self.layout.precision;
        CollectiveCosts {
            gathers: all(stack.gathered(precision), true),
            reductions: all(stack.reduced(precision), false),
        }
    }

    /// Returns the seconds in which the ranks that share a stage exchange `bytes` per parameter. `is_whole`: of frozen ones, too.
    fn collective(&self, stage: &Stage, bytes: f64, is_whole: bool) -> f64 {
        let mixtures = self.spec.held(stage).filter(|(part, _)| part.chosen_experts().is_some());
        let mixtures: usize = mixtures.map(|(_, count)| count).sum();
        let pieces = [stage.layers(), mixtures].map(|layers| layers.max(1) as f64);
        let parameters = match is_whole {
            true => self.spec.elements_under([stage], self.layout.degrees()).map(|elements| elements as f64),
            false => self.rank_parameters(vec![stage]).map(|(parameters, _)| parameters),
        };
        self.machine.gather_replicas(&self.layout, parameters, pieces, bytes)
    }
}
