//! Times in which FSDP gathers the weights of a stage, and reduces and scatters its gradients.

use super::Analytic;
use super::machine::Group;
use crate::cost::CollectiveCosts;
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
        let layout = &self.layout;
        let [dense, experts] = self.rank_parameters(vec![stage]);
        let replicas = u32::try_from(layout.edp()).unwrap_or(u32::MAX);
        let groups = [(dense, layout.dp * layout.cp, layout.tp), (experts, replicas, layout.ep * layout.etp)];
        let pieces = stage.layers().max(1) as f64;
        let seconds = |(parameters, ranks, stride): (f64, u32, u32)| {
            let group = Group::new(ranks, stride, self.machine.hardware.gpus_per_node);
            let listing = pieces * f64::from(ranks) * self.machine.stack.gather_rank_us * 1e-6;
            self.machine.gather_in(group, parameters * bytes, pieces) + listing
        };
        groups.into_iter().filter(|(parameters, ranks, _)| *parameters > 0.0 && *ranks > 1).map(seconds).sum()
    }
}
