//! Measured costs of whole stages, as a run without measured parts of the model has them.

use super::layer_cost::{self, EndCost, LayerCost, MAX_BLOCKS};
use super::pair::SubOps;
use pipesim_schedule::op::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Costs of one stage's ops of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageKindCost {
    /// Mean duration, which predictions use: a pipeline waits for its slow ops, too.
    pub duration_ns: u64,
    /// Median duration.
    pub median_ns: u64,
    /// 10th percentile.
    pub p10_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// Number of measured ops.
    pub samples: u64,
    /// Mean host time between the end of such an op and the next op, if that waits for nothing else; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ns: Option<u64>,
    /// Mean time from the end of such an op until a waiting device starts with its output; absent if none waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_ns: Option<u64>,
}

/// Costs of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageCost {
    /// Number of layers; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// By kind: `F` with `B`, with `I` and `W`, or with all three; may be empty if there are sub-ops.
    pub kinds: BTreeMap<String, StageKindCost>,
    /// Times of the sub-ops of a forward and a backward next to each other, by layer in model order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_ops: Vec<LayerCost>,
    /// The embedding, before the first layer; only with sub-ops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<EndCost>,
    /// The head and the loss, after the last layer; only with sub-ops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<EndCost>,
}

impl StageCost {
    /// Returns the costs of the ops of `kind` themselves, not of their halves.
    pub fn of(&self, kind: Kind) -> Option<&StageKindCost> {
        self.kinds.get(kind.letter().encode_utf8(&mut [0; 4]) as &str)
    }

    /// Returns its sub-ops.
    pub fn sub_ops(&self) -> SubOps {
        layer_cost::sub_ops(&self.sub_ops, self.embedding, self.head)
    }

    /// Returns the duration of `kind` in ns: a B is I + W, and I and W are halves of a B, where they were not measured.
    pub fn duration(&self, kind: Kind) -> u64 {
        if self.kinds.is_empty() {
            return self.sub_ops().alone(kind);
        }
        let own = |kind| self.of(kind).map(|cost| cost.duration_ns);
        let half = || own(Kind::B).map(|whole| whole / 2);
        let found = match kind {
            Kind::F => own(Kind::F),
            Kind::I => own(Kind::I).or_else(half),
            Kind::W => own(Kind::W).or_else(|| own(Kind::B).map(|whole| whole - whole / 2)),
            _ => own(Kind::B).or_else(|| Some(own(Kind::I)? + own(Kind::W)?)),
        };
        found.unwrap_or(0)
    }

    /// Describes what is missing or unknown.
    pub(super) fn fault(&self) -> Option<String> {
        let has = |kind| self.of(kind).is_some();
        let complete = has(Kind::F) && (has(Kind::B) || has(Kind::I) && has(Kind::W));
        if !self.sub_ops.is_empty() {
            let count: u64 = self.sub_ops.iter().map(|layer| u64::from(layer.layers)).sum();
            let stated = self.layers.map_or(count, u64::from);
            if count != stated || count > u64::from(MAX_BLOCKS) {
                return Some(format!("sub_ops: expected {} layers, found {count}", stated.min(MAX_BLOCKS.into())));
            }
            if self.kinds.is_empty() {
                return None;
            }
        } else if self.embedding.is_some() || self.head.is_some() {
            return Some("embedding and head belong to sub_ops, found none".to_string());
        }
        let unknown =
            self.kinds.keys().find(|name| !Kind::COSTED.iter().any(|kind| kind.letter().to_string() == **name));
        match unknown {
            Some(name) => Some(format!("expected the kinds F, I, W and B, found {name:?}")),
            None if !complete => Some("expected F, and B or I and W; one is missing".to_string()),
            None => None,
        }
    }

    /// Returns the longest time in it.
    pub(super) fn longest(&self) -> u64 {
        let times =
            |cost: &StageKindCost| cost.duration_ns.max(cost.gap_ns.unwrap_or(0)).max(cost.message_ns.unwrap_or(0));
        let sub_ops = self.sub_ops.iter().map(LayerCost::longest);
        let ends = [self.embedding, self.head].into_iter().flatten().map(|end| end.longest());
        self.kinds.values().map(times).chain(sub_ops).chain(ends).max().unwrap_or(0)
    }
}
