//! How long each part of the model took in each op: what costs are calibrated from.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::model_spec::{BLOCK, EMBEDDING, HEAD};
use crate::op::Kind;

/// The parts of the model that costs are kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Token and position embedding.
    Embedding,
    /// One transformer block.
    Block,
    /// Final LayerNorm, logits and loss.
    Head,
}

impl Part {
    /// Its name in the model's spec.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => EMBEDDING,
            Part::Block => BLOCK,
            Part::Head => HEAD,
        }
    }
}

/// How long one part took in one op. An op over several blocks yields a lap for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTiming {
    /// What ran.
    pub part: Part,
    /// F, I or W.
    pub kind: Kind,
    /// How long.
    pub duration_ns: u64,
}

/// Measures the parts of an op.
pub(super) struct Laps<'a> {
    laps: &'a mut Vec<PartTiming>,
    kind: Kind,
    since: Instant,
}

impl<'a> Laps<'a> {
    /// Starts the clock.
    pub(super) fn start(laps: &'a mut Vec<PartTiming>, kind: Kind) -> Laps<'a> {
        Laps { laps, kind, since: Instant::now() }
    }

    /// What ran since the last call, or since the start, was `part`.
    pub(super) fn end(&mut self, part: Part) {
        let now = Instant::now();
        self.laps.push(PartTiming { part, kind: self.kind, duration_ns: (now - self.since).as_nanos() as u64 });
        self.since = now;
    }
}
