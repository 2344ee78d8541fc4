//! Memory of mixtures of experts by name, and what is saved when parts of layers are recomputed.

use crate::layout::{Recompute, RecomputePart};
use crate::model_spec::{HEAD, MicroBatch, Operation, PREDICTION, Part, Split, Storage};
use pipesim_schedule::op::Kind;
use serde::Serialize;

/// Breakdown of a device's bytes for mixtures of experts; its other numbers include these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MixtureMemory {
    /// Weights of experts.
    pub expert_weights: u64,
    /// Gradients of experts.
    pub expert_gradients: u64,
    /// Optimizer states and master weights of experts, on one of the ranks that share them.
    pub expert_optimizer: u64,
    /// Saved by experts: permuted copies of rows, activations between their products, probabilities of the router.
    pub expert_activations: u64,
    /// Saved by attention, from its norm to its output.
    pub attention_activations: u64,
    /// Saved by layers for multi-token prediction.
    pub prediction_activations: u64,
    /// Saved logits, with the last norm.
    pub logits: u64,
    /// Buffers of rows that are sent and received.
    pub dispatch_buffers: u64,
}

impl MixtureMemory {
    /// Returns whether all are 0: the model has no experts.
    pub fn is_none(&self) -> bool {
        *self == MixtureMemory::default()
    }
}

/// Place of an operation in its layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpertPlace {
    Attention,
    /// The MLP of a dense layer, or a mixture's shared experts.
    Mlp,
    /// Router and experts.
    Mixture,
}

/// Returns the operations of a part with their places and splits.
fn places(part: &Part) -> impl Iterator<Item = (&Operation, Option<&Split>, ExpertPlace)> {
    let added = part.operations.iter().position(|operation| matches!(operation, Operation::Add { .. }));
    let is_mixed = part.operations.iter().any(Operation::mixes_tokens);
    let routed = part.operations.iter().position(|operation| matches!(operation, Operation::Route { .. }));
    part.with_splits().enumerate().map(move |(number, (operation, split))| {
        let place = if is_mixed && added.is_none_or(|added| number <= added) {
            ExpertPlace::Attention
        } else if routed.is_some_and(|routed| number >= routed) {
            ExpertPlace::Mixture
        } else {
            ExpertPlace::Mlp
        };
        (operation, split, place)
    })
}

/// Returns the bytes that F saves of one `part` if the backward recomputes parts of layers: of attention, of the MLP or shared
/// experts, and of router and experts. `width` is the hidden size.
pub(super) fn saved(part: &Part, recompute: Recompute, micro: MicroBatch, storage: &Storage, width: usize) -> [u64; 3] {
    let repeats = |what| recompute.repeats(what);
    let is_mixture = part.chosen_experts().is_some();
    let mlp = if is_mixture { RecomputePart::SharedExperts } else { RecomputePart::Mlp };
    let mut saved = [0_u64; 3];
    let mut after_norm = false;
    for (operation, split, place) in places(part) {
        let left = |operation: &Operation| operation.left(Kind::F, micro, storage, split);
        let all = left(operation);
        let whole = place != ExpertPlace::Attention && is_mixture && repeats(RecomputePart::Mixture);
        saved[place as usize] += match *operation {
            // the norm's input is the layer's, and stays; its output is computed again
            Operation::Product { inputs, .. } | Operation::Adapt { inputs, .. } if after_norm && inputs == width => {
                if repeats(RecomputePart::Norms) {
                    0
                } else {
                    all
                }
            }
            Operation::Route { keeps_input, width, experts, top_k } => {
                let scores = left(&Operation::Route { keeps_input: false, width, experts, top_k });
                let input = if keeps_input && !repeats(RecomputePart::Norms) { all - scores } else { 0 };
                input + if whole { 0 } else { scores }
            }
            Operation::Attention { .. } => {
                // scores or their sums, and queries, keys and values, which latent attention computes again from narrow rows
                let sums = operation.left(Kind::F, micro, &Storage { activation_bytes: 0, ..*storage }, None);
                let sums_saved = if repeats(RecomputePart::CoreAttention) { 0 } else { sums };
                sums_saved
                    + if repeats(RecomputePart::LatentUp) { operation.output_kept(micro, storage) } else { all - sums }
            }
            _ if whole => 0,
            Operation::Product { .. } | Operation::Adapt { .. } | Operation::Activate { .. }
                if place == ExpertPlace::Mlp && repeats(mlp) =>
            {
                0
            }
            // the output of the activation is the input of an expert's second product
            Operation::Grouped { axis: 1, .. } if repeats(RecomputePart::ExpertActivation) => 0,
            _ => all,
        };
        after_norm = matches!(operation, Operation::Norm { .. });
    }
    saved
}

/// Returns the bytes that are sent to experts and received for a micro-batch.
pub(super) fn dispatched(part: &Part, micro: MicroBatch, storage: &Storage) -> u64 {
    let copies = part.operations.iter().map(|operation| match *operation {
        Operation::Dispatch { width, top_k } => 2 * width as u64 * top_k as u64,
        _ => 0,
    });
    let elements = copies.sum::<u64>().saturating_mul(micro.rows() as u64).saturating_mul(storage.etp as u64);
    storage.loaded(elements.saturating_mul(storage.activation_bytes as u64) / storage.sp as u64)
}

impl MixtureMemory {
    /// Adds the `bytes` that layers of `part` save in F. Attention, MLP and experts have shares proportional to `places`.
    pub(super) fn add(&mut self, part: &Part, bytes: u64, places: [u64; 3]) {
        match part.name {
            HEAD => self.logits += bytes,
            PREDICTION => self.prediction_activations += bytes,
            _ => {}
        }
        let whole = u128::from(places.iter().sum::<u64>().max(1));
        let share = |of: u64| (u128::from(bytes) * u128::from(of) / whole) as u64;
        if part.is_layer() {
            self.attention_activations += share(places[0]);
            self.expert_activations += share(places[2]);
        }
    }

    /// Returns it with activations scaled by `held` / `of`.
    pub(super) fn scaled(self, held: u64, of: u64) -> MixtureMemory {
        let scale = |bytes: u64| (u128::from(bytes) * u128::from(held) / u128::from(of.max(1))) as u64;
        MixtureMemory {
            expert_activations: scale(self.expert_activations),
            attention_activations: scale(self.attention_activations),
            prediction_activations: scale(self.prediction_activations),
            logits: scale(self.logits),
            ..self
        }
    }
}
