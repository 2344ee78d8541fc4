//! Times of sub-ops in cost files.

use super::pair::{LayerOps, PassTimes, SubOps};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Maximum number of blocks of a model.
pub(super) const MAX_BLOCKS: u32 = 1 << 12;

/// Times of the sub-ops of equal layers of a stage, in ns; missing ones are 0. `F` is the forward, `B` the backward for
/// the input, `W` the backward for the weights.
#[allow(non_snake_case)] // the kinds' letters
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // part and pass are in the names
pub struct LayerCost {
    /// Number of such layers, consecutive in the model.
    #[serde(default = "one")]
    pub layers: u32,
    pub attn_F_ns: u64,
    pub dispatch_F_ns: u64,
    pub mlp_F_ns: u64,
    pub combine_F_ns: u64,
    pub combine_B_ns: u64,
    pub mlp_B_ns: u64,
    pub mlp_W_ns: u64,
    pub dispatch_B_ns: u64,
    pub attn_B_ns: u64,
    pub attn_W_ns: u64,
    /// On a side stream next to `mlp_W`.
    #[serde(skip_serializing_if = "is_zero")]
    pub side_W_ns: u64,
}

fn one() -> u32 {
    1
}

pub(super) fn is_zero(ns: &u64) -> bool {
    *ns == 0
}

/// Times of an embedding or a head, in ns.
#[allow(non_snake_case)] // the kinds' letters
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // the passes as in `LayerCost`
pub struct EndCost {
    pub F_ns: u64,
    pub B_ns: u64,
    pub W_ns: u64,
}

impl EndCost {
    pub(super) fn longest(&self) -> u64 {
        self.F_ns.max(self.B_ns).max(self.W_ns)
    }

    fn times(&self) -> PassTimes {
        PassTimes { forward: self.F_ns, input: self.B_ns, weights: self.W_ns }
    }
}

impl LayerCost {
    /// Returns the longest of its times.
    pub(super) fn longest(&self) -> u64 {
        let LayerOps { attn, dispatch, mlp, combine, side } = self.ops();
        let longest = |pass: PassTimes| pass.forward.max(pass.input).max(pass.weights);
        [attn, dispatch, mlp, combine].map(longest).into_iter().fold(side, u64::max)
    }

    fn ops(&self) -> LayerOps {
        let pass = |forward, input, weights| PassTimes { forward, input, weights };
        LayerOps {
            attn: pass(self.attn_F_ns, self.attn_B_ns, self.attn_W_ns),
            dispatch: pass(self.dispatch_F_ns, self.dispatch_B_ns, 0),
            mlp: pass(self.mlp_F_ns, self.mlp_B_ns, self.mlp_W_ns),
            combine: pass(self.combine_F_ns, self.combine_B_ns, 0),
            side: self.side_W_ns,
        }
    }
}

/// Returns the sub-ops of a stage of a file.
pub(super) fn sub_ops(layers: &[LayerCost], embedding: Option<EndCost>, head: Option<EndCost>) -> SubOps {
    let end = |cost: Option<EndCost>| cost.unwrap_or_default().times();
    SubOps {
        layers: layers.iter().flat_map(|cost| vec![cost.ops(); cost.layers as usize]).collect(),
        first: end(embedding),
        last: end(head),
        delays_weights: true,
        has_one_queue: false,
    }
}

/// Adds the fields that a file of sub-ops may leave out, the costs of a model's parts, to its JSON.
pub(super) fn completed(mut file: Value) -> Value {
    let Some(fields) = file.as_object_mut() else { return file };
    let mut layers = 0;
    for stage in fields.get_mut("stages").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(stage) = stage.as_object_mut() else { continue };
        let Some(listed) = stage.get("sub_ops").and_then(Value::as_array) else { continue };
        let of = |layer: &Value| layer.get("layers").map_or(Some(1), Value::as_u64).unwrap_or(0);
        let count = listed.iter().map(of).fold(0_u64, u64::saturating_add);
        layers = count.saturating_add(layers);
        stage.entry("layers").or_insert_with(|| count.into());
        stage.entry("kinds").or_insert_with(|| json!({}));
    }
    let none = [
        ("provenance", json!({})),
        ("layers", layers.into()),
        ("parts", json!([])),
        ("op_overhead_ns", json!({"F": 0, "I": 0, "W": 0})),
        ("gap_ns", 0.into()),
        ("link", json!({"put_ns": 0, "bytes": 0, "latency_ns": 0})),
        (
            "step",
            json!({"optimizer_embedding_ns": 0, "optimizer_block_ns": 0, "norm_block_ns": 0, "reduce_put_ns": 0, "reduce_add_ns": 0}),
        ),
        ("keep", 1.0.into()),
    ];
    for (name, value) in none {
        fields.entry(name).or_insert(value);
    }
    file
}
