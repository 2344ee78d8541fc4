//! How long each part of the model took in each op: what costs are calibrated from.

use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use pipesim_models::model_spec::{BLOCK, EMBEDDING, HEAD};
use pipesim_schedule::op::Kind;

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
    /// Returns the part with this name in the model's spec.
    pub fn named(name: &str) -> Option<Part> {
        [Part::Embedding, Part::Block, Part::Head].into_iter().find(|part| part.name() == name)
    }

    /// Its name in the model's spec.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => EMBEDDING,
            Part::Block => BLOCK,
            Part::Head => HEAD,
        }
    }
}

/// How long one part took in one op. An op over several blocks has a timing for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTiming {
    /// What ran.
    pub part: Part,
    /// F, I or W.
    pub kind: Kind,
    /// How long.
    pub duration_ns: u64,
}

/// Measures the parts of an op. A full backward is two ops.
pub trait PartTimer {
    /// Begins an op.
    fn start(&mut self, kind: Kind) -> Result<()>;

    /// What ran since the last call was `part`.
    fn end(&mut self, part: Part) -> Result<()>;

    /// Ends the op. What ran after its last part counts to no part.
    fn finish(&mut self) -> Result<()>;
}

/// Measures by the host's clock.
#[derive(Debug, Default)]
pub struct Stopwatch {
    /// What it measured so far.
    pub timings: Vec<PartTiming>,
    op: Option<(Kind, Instant)>,
}

impl PartTimer for Stopwatch {
    fn start(&mut self, kind: Kind) -> Result<()> {
        self.op = Some((kind, Instant::now()));
        Ok(())
    }

    fn end(&mut self, part: Part) -> Result<()> {
        if let Some((kind, since)) = &mut self.op {
            let now = Instant::now();
            self.timings.push(PartTiming { part, kind: *kind, duration_ns: (now - *since).as_nanos() as u64 });
            *since = now;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.op = None;
        Ok(())
    }
}
