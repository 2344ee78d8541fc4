//! How FLOPs of a step are counted.

use pipesim_cost::analytic::Analytic;
use pipesim_models::layout::Recompute;
use pipesim_models::model_spec::MicroBatch;
use pipesim_schedule::op::Kind;
use serde::Serialize;

/// How FLOPs of a step are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlopCount {
    /// Products and all scores, without recomputation: as this program counts, and Megatron's print before 2025-03-06.
    Model,
    /// With half of the scores: Megatron's print since then.
    HalfScores,
    /// With what the backward recomputes.
    Hardware,
}

impl FlopCount {
    /// Returns the count with this name.
    pub fn named(name: &str) -> Option<FlopCount> {
        match name {
            "model" | "megatron-full" => Some(FlopCount::Model),
            "megatron-half" => Some(FlopCount::HalfScores),
            "hardware" => Some(FlopCount::Hardware),
            _ => None,
        }
    }

    /// Returns the FLOPs of a step.
    pub fn of_step(self, analytic: &Analytic) -> f64 {
        let whole = analytic.model_flops();
        let [short, long] = [1, 2].map(|times| sequence(analytic, times));
        // products grow with the tokens, scores with their square
        let scores = whole * ((long - 2.0 * short) / 2.0 / short).clamp(0.0, 1.0);
        whole
            + match (self, analytic.layout.recompute) {
                (FlopCount::HalfScores, _) => -scores / 2.0,
                (FlopCount::Hardware, some) if some.is_of_layers() => (whole - head(analytic)) / 3.0 * share(analytic),
                (FlopCount::Hardware, Recompute::Selective) => scores / 3.0,
                _ => 0.0,
            }
    }
}

/// Returns the FLOPs of a step's logits, which full recomputation does not repeat.
fn head(analytic: &Analytic) -> f64 {
    let model = &analytic.model;
    let heads = 1 + model.prediction_layers;
    6.0 * (model.channels * model.vocabulary * heads) as f64 * analytic.layout.tokens() as f64
}

/// Returns the share of the layers that are recomputed.
fn share(analytic: &Analytic) -> f64 {
    let (spec, recompute) = (&analytic.spec, analytic.layout.recompute);
    let stages = analytic.stages(analytic.layout.stages()).unwrap_or_default();
    let whole = |stage| (0..spec.parts.len()).map(|part| recompute.whole(spec, stage, part)).sum::<usize>();
    let layers = spec.parts.iter().filter(|part| part.is_layer()).map(|part| part.count).sum::<usize>();
    stages.iter().map(whole).sum::<usize>() as f64 / layers.max(1) as f64
}

/// Returns the FLOPs of one sequence that is `times` as long.
fn sequence(analytic: &Analytic, times: usize) -> f64 {
    let micro = MicroBatch { sequences: 1, tokens: times * analytic.layout.sequence as usize };
    [Kind::F, Kind::B].iter().map(|&kind| analytic.spec.flops(kind, micro)).sum::<u128>() as f64
}
