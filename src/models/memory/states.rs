//! Weights, gradients and optimizer states: their number of elements on one rank, and bytes of each.

use crate::hardware::Stack;
use crate::layout::{ParallelConfig, Precision, Replicas, Zero};
use crate::model_spec::ModelSpec;

/// Returns the elements of the token embedding on one of `ranks` tensor-parallel ranks; its gradient is allocated anew for each micro-batch.
pub(super) fn embedding_elements(spec: &ModelSpec, ranks: usize) -> u64 {
    let first = spec.parts.first().and_then(|part| part.tensors().next());
    first.map_or(0, |tensor| tensor.share(0, ranks).into_iter().map(|size| size as u64).product())
}

/// Returns the unsharded bytes of a parameter's weight, gradient and optimizer state.
pub(super) fn bytes(precision: Precision, stack: &Stack) -> [u64; 3] {
    let [weight, gradient, copy, state] = [
        stack.weight_bytes,
        stack.gradient(precision),
        stack.gradient_copy_bytes,
        stack.master_bytes + stack.moment_bytes,
    ]
    .map(|bytes| bytes as u64);
    match precision {
        Precision::Fp32 => [4, gradient, 8],
        Precision::Fp16 => [weight, gradient, state],
        _ => [weight, gradient + copy, state],
    }
}

/// Returns the bytes of weights, gradients and optimizer states of `elements` parameters on one of `replicas`, of which
/// groups share them by the layout's ZeRO stage (Rajbhandari et al., arXiv 1910.02054, figure 1).
pub(super) fn state_bytes(elements: u64, replicas: Replicas, layout: &ParallelConfig, stack: &Stack) -> [u64; 3] {
    let shared = [Zero::Weights, Zero::Gradients, Zero::Optimizer];
    let mut bytes = bytes(layout.precision, stack);
    for (bytes, from) in bytes.iter_mut().zip(shared) {
        let here = if layout.zero >= from { elements.div_ceil(u64::from(replicas.shard)) } else { elements };
        *bytes = bytes.saturating_mul(here);
    }
    let master = stack.master_bytes * stack.keeps_offloaded_master;
    let moved = layout.optimizer_offload * (1.0 - master / (stack.master_bytes + stack.moment_bytes).max(1.0));
    bytes[2] = (bytes[2] as f64 * (1.0 - moved)) as u64;
    bytes
}
