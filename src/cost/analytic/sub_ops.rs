//! Sub-ops of a model's stages, for forwards and backwards next to each other.

use super::pass::Passes;
use super::{Analytic, LONGEST_NS, ns};
use crate::pair::{LayerOps, PassTimes, SubOps};
use pipesim_models::model_spec::{EMBEDDING, HEAD, Stage};
use pipesim_schedule::placement::Placement;

fn times([forward, input, weights]: [f64; 3]) -> PassTimes {
    let [forward, input, weights] = [forward, input, weights].map(|seconds| ns(seconds).min(LONGEST_NS));
    PassTimes { forward, input, weights }
}

/// Returns the times of a part without experts, which exchanges nothing.
fn whole(passes: &Passes) -> PassTimes {
    times([passes.forward, passes.input, passes.weights].map(|pass| pass.total()))
}

/// Returns the sub-ops of one repetition of a layer.
fn layer(passes: &Passes) -> LayerOps {
    let Some(ops) = passes.ops else { return LayerOps { attn: whole(passes), ..LayerOps::default() } };
    let exchange = times([ops.exchange, ops.exchange, 0.0]);
    LayerOps { attn: times(ops.attn), dispatch: exchange, mlp: times(ops.mlp), combine: exchange, side: 0 }
}

impl Analytic {
    /// Returns the sub-ops of each stage, in model order; `None` for a model without experts, which has no communication to hide.
    pub fn sub_ops(&self, placement: &Placement, stages: &[Stage]) -> Option<Vec<SubOps>> {
        self.model.experts?;
        let of = |(number, stage): (usize, &Stage)| {
            let has_one_queue = self.machine.stack.has_one_queue();
            let mut ops = SubOps { delays_weights: self.layout.delay_wgrad, has_one_queue, ..SubOps::default() };
            let own = self.on(placement.device_of_stage(number as u32, 0));
            for (part, (passes, count)) in own.held(stage) {
                match (part.name, count) {
                    (_, 0) => {}
                    (EMBEDDING, _) => ops.first = whole(passes),
                    (HEAD, _) => ops.last = whole(passes),
                    (_, count) => ops.layers.extend(vec![layer(passes); count]),
                }
            }
            ops
        };
        Some(stages.iter().enumerate().map(of).collect())
    }
}
