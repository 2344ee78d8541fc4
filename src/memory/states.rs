//! Weights, gradients and optimizer states: their number of elements on one rank, and bytes of each.

use crate::hardware::Stack;
use crate::layout::{ParallelConfig, Precision, Zero};
use crate::model_spec::{ModelSpec, Part, Stage, Tensor};

/// AdamW's two moments, in fp32.
const MOMENT_BYTES: u64 = 8;

/// Returns the elements of a tensor on one of `ranks` tensor-parallel ranks.
fn on_a_rank(tensor: &Tensor, ranks: usize) -> u64 {
    tensor.share(0, ranks).into_iter().map(|size| size as u64).product()
}

/// Returns the elements of one `part` on a rank, without tensors shared from another part.
pub(super) fn part_elements(part: &Part, ranks: usize) -> u64 {
    part.tensors().filter(|tensor| tensor.tied.is_none()).map(|tensor| on_a_rank(tensor, ranks)).sum()
}

/// Returns the elements of the tensor that two parts share, on a rank.
fn tied_elements(spec: &ModelSpec, ranks: usize) -> u64 {
    let tied = spec.parts.iter().flat_map(Part::tensors).filter(|tensor| tensor.tied.is_some());
    tied.map(|tensor| on_a_rank(tensor, ranks)).sum()
}

/// Returns the elements of a device with these stages, on one tensor-parallel rank; a shared tensor counts once.
pub(super) fn elements<'a>(spec: &ModelSpec, ranks: usize, stages: impl IntoIterator<Item = &'a Stage> + Clone) -> u64 {
    let of = |stage| spec.held(stage).map(|(part, count)| count as u64 * part_elements(part, ranks)).sum::<u64>();
    let own: u64 = stages.clone().into_iter().map(of).sum();
    match spec.outline().tied {
        Some([original, other]) => {
            let has = |part: &str| stages.clone().into_iter().any(|stage| stage.has(part));
            own + if has(other) && !has(original) { tied_elements(spec, ranks) } else { 0 }
        }
        None => own,
    }
}

/// Returns the elements of the token embedding; its gradient is allocated anew for each micro-batch.
pub(super) fn embedding_elements(spec: &ModelSpec, ranks: usize) -> u64 {
    let first = spec.parts.first().and_then(|part| part.tensors().next());
    first.map_or(0, |tensor| on_a_rank(tensor, ranks))
}

/// Returns the unsharded bytes of a parameter's weight, gradient and optimizer state.
pub(super) fn bytes(precision: Precision, stack: &Stack) -> [u64; 3] {
    let [weight, gradient, copy, master] =
        [stack.weight_bytes, stack.gradient(precision), stack.gradient_copy_bytes, stack.master_bytes]
            .map(|bytes| bytes as u64);
    match precision {
        Precision::Fp32 => [4, gradient, MOMENT_BYTES],
        Precision::Fp16 => [weight, gradient, master + MOMENT_BYTES],
        _ => [weight, gradient + copy, master + MOMENT_BYTES],
    }
}

/// Returns the bytes of weights, gradients and optimizer states of `elements` parameters on one data-parallel rank, sharded by
/// the layout's ZeRO stage (Rajbhandari et al., arXiv 1910.02054, figure 1).
pub(super) fn state_bytes(elements: u64, layout: &ParallelConfig, stack: &Stack) -> [u64; 3] {
    let ranks = u64::from(layout.dp) * u64::from(layout.cp);
    let shared = [Zero::Weights, Zero::Gradients, Zero::Optimizer];
    let mut bytes = bytes(layout.precision, stack);
    for (bytes, from) in bytes.iter_mut().zip(shared) {
        let here = if layout.zero >= from { elements.div_ceil(ranks) } else { elements };
        *bytes = bytes.saturating_mul(here);
    }
    bytes
}
