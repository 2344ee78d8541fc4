//! Layers of each stage of a model whose layers have unlike costs.

use pipesim_models::model_spec::transformer::Config;
use pipesim_models::model_spec::{HEAD, MicroBatch, PREDICTION, Part, Storage};
use pipesim_schedule::op::Kind;

/// FLOPs that a GPU computes while it moves a byte: 989 TFLOP/s and 3.35 TB/s of an H100 (NVIDIA's data sheet).
const FLOPS_PER_BYTE: u128 = 295;

/// Tokens of the sequence whose attention counts.
const TOKENS: usize = 4096;

/// Returns the layers of each stage such that the most expensive stage costs least, by FLOPs and kept bytes of the forward; the last one also
/// has the head and what predicts further tokens. `None` if all layers are alike, windows and experts apart, or too few.
pub(super) fn balanced(model: &Config, stages: usize) -> Option<Vec<usize>> {
    let is_unlike = model.pattern.is_some_and(|pattern| pattern.kinds.len() > 1);
    if !is_unlike || stages < 2 || stages > model.layers {
        return None;
    }
    let spec = model.spec();
    let micro = MicroBatch { sequences: 1, tokens: TOKENS };
    let storage = Storage::whole(8, 2, 1, 0);
    let cost =
        |part: &Part| part.flops(Kind::F, micro) + FLOPS_PER_BYTE * u128::from(part.left(Kind::F, micro, &storage));
    let costs: Vec<u128> = spec.parts.iter().map(cost).collect();
    let is_last = |part: &Part| part.name == HEAD || part.name == PREDICTION;
    let last = spec.parts.iter().zip(&costs).filter(|(part, _)| is_last(part));
    let last: u128 = last.map(|(part, cost)| part.count as u128 * cost).sum();
    let layers: Vec<u128> = spec.order.iter().map(|&part| costs[part]).collect();
    // the smallest most expensive stage, between the mean and all
    let (mut low, mut high) = (0, layers.iter().sum::<u128>() + last);
    while low < high {
        let middle = low + (high - low) / 2;
        match filled(&layers, stages, last, middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    filled(&layers, stages, last, high)
}

/// Returns the layers of stages of at most `most`, filled from the last one, so that the first ones take what is left; each has at least one.
fn filled(layers: &[u128], stages: usize, last: u128, most: u128) -> Option<Vec<usize>> {
    let mut counts = vec![0; stages];
    let mut end = layers.len();
    for stage in (0..stages).rev() {
        let mut sum = if stage + 1 == stages { last } else { 0 };
        while end > stage && (counts[stage] == 0 || sum + layers[end - 1] <= most) {
            sum += layers[end - 1];
            end -= 1;
            counts[stage] += 1;
        }
        if sum > most {
            return None;
        }
    }
    (end == 0).then_some(counts)
}
