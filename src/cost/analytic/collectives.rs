//! Times in which FSDP gathers the weights of a stage, and reduces and scatters its gradients.

use super::Analytic;
use super::machine::Group;
use crate::cost::CollectiveCosts;
use crate::layout::Replicas;
use crate::model_spec::Stage;

impl Analytic {
    /// Returns the times of the collectives of each stage, in nanoseconds: one gather and one reduction per layer, one after the other.
    pub(super) fn collectives(&self, stages: &[Stage]) -> CollectiveCosts {
        let stack = &self.machine.stack;
        let ns = |bytes: f64| {
            let all = stages.iter().map(|stage| (self.collective(stage, bytes) * 1e9).round().clamp(0.0, 1e15) as u64);
            all.collect()
        };
        let precision = self.layout.precision;
        CollectiveCosts { gathers: ns(stack.gathered(precision)), reductions: ns(stack.reduced(precision)) }
    }

    /// Returns the seconds in which the ranks that share a stage exchange `bytes` per parameter.
    fn collective(&self, stage: &Stage, bytes: f64) -> f64 {
        let mixtures = self.spec.held(stage).filter(|(part, _)| part.chosen_experts().is_some());
        let mixtures: usize = mixtures.map(|(_, count)| count).sum();
        let pieces = [stage.layers(), mixtures].map(|layers| layers.max(1) as f64);
        let seconds = |((parameters, replicas), pieces): ((f64, Replicas), f64)| {
            let group = Group::of(replicas, self.machine.hardware.gpus_per_node);
            let listing = pieces * f64::from(replicas.ranks) * self.machine.stack.gather_rank_us * 1e-6;
            self.machine.gather_in(group, parameters * bytes, pieces) + listing
        };
        let parameters = self.layout.together(self.rank_parameters(vec![stage]).map(|(parameters, _)| parameters));
        let shared = parameters.into_iter().zip(self.layout.replicas()).zip(pieces);
        shared.filter(|((parameters, replicas), _)| *parameters > 0.0 && replicas.ranks > 1).map(seconds).sum()
    }
}
