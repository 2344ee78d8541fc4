//! Measured costs: one versioned JSON file that every command reads and writes.
//!
//! The atom is (part of the model, kind, micro-batch size); a stage is the sum of its parts, so what was measured under one
//! schedule or split serves every other.

use super::{CostTable, OpTime, Speed, StepCosts, Summary};
use crate::op::Kind;
use crate::placement::Placement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON schema that this program writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// Most blocks of a model, and longest time of one of its parts (18 minutes): sums over many ops still fit.
const MAX_BLOCKS: u32 = 1 << 12;
const MAX_NS: u64 = 1 << 40;

/// What a stage consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// Holds the token and position embedding.
    pub embedding: bool,
    /// Number of transformer blocks.
    pub blocks: u32,
    /// Holds the last layer norm, the projection to the vocabulary and the loss.
    pub head: bool,
}

/// One atom of cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartCost {
    /// `embedding`, `block` or `head`.
    pub part: String,
    /// `F`, `I` or `W`.
    pub kind: String,
    /// Sequences in a micro-batch.
    pub sequences: u32,
    /// Tokens in a sequence.
    pub tokens: u32,
    /// How long it takes.
    pub duration_ns: u64,
    /// Over how many measurements.
    pub samples: u64,
}

/// What moving data between devices costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Duration of the put of one micro-batch's hidden state.
    pub put_ns: u64,
    /// Whether the sender computes on while it puts; else the put holds it up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_compute: bool,
    /// Bytes of that put.
    pub bytes: u64,
    /// From the put's end until a waiting receiver goes on.
    pub latency_ns: u64,
}

/// What step ops cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRates {
    /// Optimizer step of the embedding, of one block, and of the head's own parameters.
    pub optimizer_embedding_ns: u64,
    /// Of one block.
    pub optimizer_block_ns: u64,
    /// Gradient norm, per block.
    pub norm_block_ns: u64,
    /// Put of the tied embedding's gradient.
    pub reduce_put_ns: u64,
    /// Adding the other device's.
    pub reduce_add_ns: u64,
}

/// A cost file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostFile {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What was measured, where, when, under which schedule; free text by key.
    pub provenance: BTreeMap<String, String>,
    /// The model's number of blocks.
    pub layers: u32,
    /// The atoms.
    pub parts: Vec<PartCost>,
    /// What an op takes beyond its parts, part of its busy time: by `F`, `I`, `W`.
    pub op_overhead_ns: BTreeMap<String, u64>,
    /// Host time between an op's end (or its put's) and the next op's start.
    pub gap_ns: u64,
    /// Between devices.
    pub link: LinkCost,
    /// Step ops.
    pub step: StepRates,
    /// Share of an activation that lives from I to W.
    pub keep: f64,
    /// How the machine's speed went in each measured step.
    #[serde(default)]
    pub speeds: Vec<Speed>,
}

impl CostFile {
    /// Reads a cost file.
    ///
    /// # Errors
    /// Not JSON, another schema or version, or numbers out of range.
    pub fn from_json(text: &str) -> Result<CostFile, String> {
        let file: CostFile = serde_json::from_str(text)
            .map_err(|e| format!("expected a cost file as `pipesim profile` writes it, found other JSON ({e})"))?;
        if file.schema_version != SCHEMA_VERSION {
            return Err(format!(
                "expected cost schema version {SCHEMA_VERSION}, found {}; measure again with `pipesim profile`",
                file.schema_version
            ));
        }
        if !(0.0..=1.0).contains(&file.keep) {
            return Err(format!("keep is a share between 0 and 1, found {}", file.keep));
        }
        if !file.speeds.iter().all(Speed::is_ordered) {
            return Err("the measured speeds are out of order; measure again with `pipesim profile`".to_string());
        }
        if file.layers > MAX_BLOCKS {
            return Err(format!("expected a model of at most {MAX_BLOCKS} blocks, found {}", file.layers));
        }
        let StepRates { optimizer_embedding_ns, optimizer_block_ns, norm_block_ns, reduce_put_ns, reduce_add_ns } =
            file.step;
        let rates = [optimizer_embedding_ns, optimizer_block_ns, norm_block_ns, reduce_put_ns, reduce_add_ns];
        let link = [file.gap_ns, file.link.put_ns, file.link.latency_ns];
        let parts = file.parts.iter().map(|part| part.duration_ns);
        let overheads = file.op_overhead_ns.values().copied();
        if parts.chain(link).chain(rates).chain(overheads).any(|ns| ns > MAX_NS) {
            return Err("a duration is longer than 18 minutes; measure again with `pipesim profile`".to_string());
        }
        Ok(file)
    }

    /// Duration of one part, for micro-batches of `sequences` sequences of `tokens` tokens.
    ///
    /// # Errors
    /// It was not measured.
    fn part(&self, part: &str, kind: Kind, (sequences, tokens): (u32, u32)) -> Result<u64, String> {
        let letter = kind.letter().to_string();
        let found = self
            .parts
            .iter()
            .find(|c| c.part == part && c.kind == letter && (c.sequences, c.tokens) == (sequences, tokens));
        found.map(|c| c.duration_ns).ok_or_else(|| {
            format!(
                "the cost file has no {letter} of the {part} for micro-batches of {sequences} x {tokens} tokens; \
                 measure it with `pipesim profile`"
            )
        })
    }

    /// The table for stages of `layers` on `placement`.
    ///
    /// # Errors
    /// A part was not measured at this micro-batch size.
    pub fn table(&self, placement: &Placement, layers: &[Layers], size: (u32, u32)) -> Result<CostTable, String> {
        let kinds = [Kind::F, Kind::I, Kind::W];
        let mut durations = Vec::with_capacity(layers.len());
        for stage in layers {
            let mut of = [0_u64; 4];
            for kind in kinds {
                let parts = [
                    ("embedding", u64::from(stage.embedding)),
                    ("block", u64::from(stage.blocks)),
                    ("head", u64::from(stage.head)),
                ];
                let mut sum = self.op_overhead_ns.get(&kind.letter().to_string()).copied().unwrap_or(0);
                for (part, count) in parts.into_iter().filter(|&(_, count)| count > 0) {
                    sum += count * self.part(part, kind, size)?;
                }
                of[kind as usize] = sum;
            }
            of[Kind::B as usize] = of[Kind::I as usize] + of[Kind::W as usize];
            durations.push(of);
        }
        let p = f64::from(placement.devices());
        let mean = |kind: Kind| durations.iter().map(|of| of[kind as usize] as f64).sum::<f64>() / p / 1e6;
        let (comm, keep) = ((self.link.put_ns + self.link.latency_ns) as f64 / 1e6, self.keep);
        let summary = Summary { F: mean(Kind::F), I: mean(Kind::I), W: mean(Kind::W), B: mean(Kind::B), comm, keep };
        let table = CostTable::new(placement, (1e6, "ms", 1_000_000), summary, |op| {
            let put = if placement.leaves_device(op) { self.link.put_ns } else { 0 };
            let duration = durations[op.stage() as usize][op.kind() as usize];
            let after = self.gap_ns + if self.link.beside_compute { 0 } else { put };
            OpTime { duration, after, arrival: put + self.link.latency_ns }
        });
        Ok(CostTable { speeds: self.speeds.clone(), ..table })
    }

    /// The exchange of the gradients of every stage that stands on two devices, `embedding` being that of the token
    /// embedding's alone. Time goes with the number of parameters, as the optimizer's does.
    fn replica_reductions(
        &self,
        placement: &Placement,
        layers: &[Layers],
        embedding: OpTime,
    ) -> Vec<(u32, u32, OpTime)> {
        let StepRates { optimizer_block_ns, optimizer_embedding_ns, .. } = self.step;
        let scaled = |ns: u64, layers: &Layers| {
            let ends = u128::from(layers.embedding) + u128::from(layers.head);
            let weight =
                u128::from(layers.blocks) * u128::from(optimizer_block_ns) + ends * u128::from(optimizer_embedding_ns);
            (u128::from(ns) * weight / u128::from(optimizer_embedding_ns.max(1))).min(u128::from(MAX_NS)) as u64
        };
        let mut pairs: BTreeMap<(u32, u32), OpTime> = BTreeMap::new();
        for (stage, layers) in layers.iter().enumerate() {
            let [a, b] = [0, 1].map(|direction| placement.device_of_stage(stage as u32, direction));
            let time =
                pairs.entry((a.min(b), a.max(b))).or_insert(OpTime { arrival: embedding.arrival, ..OpTime::default() });
            time.duration += scaled(embedding.duration, layers);
            time.after += scaled(embedding.after, layers);
        }
        pairs.into_iter().map(|((a, b), time)| (a, b, time)).collect()
    }

    /// What follows the last backward: the tied embedding's reduction where it is on two devices, the norm where
    /// gradients are clipped, the optimizer.
    pub fn step_costs(&self, placement: &Placement, layers: &[Layers], clip: bool) -> StepCosts {
        let devices = 0..placement.devices();
        let held = |device: u32| {
            let stages = placement.stages_of(device).map(|stage| layers[stage as usize]);
            stages.fold(Layers::default(), |sum, stage| Layers {
                embedding: sum.embedding || stage.embedding,
                blocks: sum.blocks + stage.blocks,
                head: sum.head || stage.head,
            })
        };
        let embedding = devices.clone().find(|&d| held(d).embedding);
        let head = devices.clone().find(|&d| held(d).head);
        let reduce =
            OpTime { duration: self.step.reduce_add_ns, after: self.step.reduce_put_ns, arrival: self.link.latency_ns };
        let share = |device: u32, block_ns: u64, embedding_ns: u64| {
            let held = held(device);
            u64::from(held.blocks) * block_ns + if held.embedding || held.head { embedding_ns } else { 0 }
        };
        StepCosts {
            reductions: match placement.directions() {
                1 => embedding.zip(head).filter(|(a, b)| a != b).map(|(a, b)| (a, b, reduce)).into_iter().collect(),
                _ => self.replica_reductions(placement, layers, reduce),
            },
            norm: if clip {
                devices.clone().map(|d| share(d, self.step.norm_block_ns, 0)).collect()
            } else {
                Vec::new()
            },
            optimizer: devices
                .map(|d| share(d, self.step.optimizer_block_ns, self.step.optimizer_embedding_ns))
                .collect(),
        }
    }
}
