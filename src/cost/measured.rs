//! Measured costs: a versioned JSON file.
//!
//! Its unit is (part of the model, kind, micro-batch size). The cost of a stage is the sum over its parts, so measurements under
//! one schedule or split apply to all others.

use super::layer_cost::{MAX_BLOCKS, completed, is_zero};
use super::{
    Contention, CostError, CostTable, Extras, MachineEffects, OpTime, SharedPuts, Slowdown, StageCost, StepCosts,
    Summary, TickUnits,
};
use pipesim_models::model_spec::{BLOCK, EMBEDDING, HEAD, MicroBatch, Outline, Stage, TiedSides};
use pipesim_schedule::epilogue::{GradientSync, StepEpilogue, StepNode, StepOp, stage_group};
use pipesim_schedule::mesh::{MAX_DEGREE, Mesh};
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::Placement;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use std::collections::{BTreeMap, BTreeSet};

/// Version of cost files.
pub const SCHEMA_VERSION: u32 = 1;

/// Maximum time of a part (18 minutes), so that sums over many ops do not overflow.
const MAX_NS: u64 = 1 << 40;

/// Measured time of one pass through a part of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartCost {
    /// Name of the part: `embedding`, `block` or `head`.
    pub part: String,
    /// `F`, `I`, `W`, or of copies of what F keeps `O` (to the host) and `L` (back).
    pub kind: String,
    /// Sequences per micro-batch.
    pub sequences: u32,
    /// Tokens per sequence.
    pub tokens: u32,
    /// Of a slice of the sequences: its first token, and its number of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<[u32; 2]>,
    /// Typical time, in nanoseconds.
    pub duration_ns: u64,
    /// Number of measured passes; 0 if it was derived from others.
    pub samples: u64,
}

impl PartCost {
    /// Returns the cost of a micro-batch size or slice that was not measured.
    pub(super) fn derived(part: &str, kind: Kind, size: MicroBatch, slice: Option<[u32; 2]>, ns: f64) -> PartCost {
        let (part, kind, duration_ns) = (part.to_string(), kind.letter().to_string(), ns.round() as u64);
        let [sequences, tokens] = [size.sequences, size.tokens].map(|count| count as u32);
        PartCost { part, kind, sequences, tokens, slice, duration_ns, samples: 0 }
    }

    /// Returns its micro-batch size.
    pub fn size(&self) -> MicroBatch {
        MicroBatch { sequences: self.sequences as usize, tokens: self.tokens as usize }
    }
}

/// Cost of moving data between devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Duration of the put of one micro-batch's hidden state.
    pub put_ns: u64,
    /// Whether the sender continues to compute during a put; otherwise the put blocks it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_compute: bool,
    /// Size of that hidden state.
    pub bytes: u64,
    /// Time from the end of a put until a waiting receiver continues.
    pub latency_ns: u64,
    /// Duration of a put while 1, 2, .. puts are in progress, in per mille of a single one; the last entry holds for more. If
    /// empty, `put_ns` includes the contention of the measured step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_mille: Vec<u32>,
}

/// Cost of step ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRates {
    /// Optimizer step of the embedding, and of the head's own parameters.
    pub optimizer_embedding_ns: u64,
    /// Optimizer step, per block.
    pub optimizer_block_ns: u64,
    /// Gradient norm, per block.
    pub norm_block_ns: u64,
    /// Put of the tied embedding's gradient.
    pub reduce_put_ns: u64,
    /// Addition of the other device's gradient.
    pub reduce_add_ns: u64,
    /// Sums of the gradients of stages that several workers hold, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<GroupRates>,
}

/// Cost of summing the gradients of stages in a group of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRates {
    /// Number of workers.
    pub size: u32,
    /// Put of the gradient of the embedding, and of the head's own parameters.
    pub put_embedding_ns: u64,
    /// Put of the gradient of a block.
    pub put_block_ns: u64,
    /// Addition of the parts of all other workers.
    pub add_embedding_ns: u64,
    /// The same per block.
    pub add_block_ns: u64,
    /// Put of the updated parameters, if the workers share the optimizer's work.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub put_values_embedding_ns: u64,
    /// The same per block.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub put_values_block_ns: u64,
    /// Copy of the parameters that the others have updated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gather_embedding_ns: u64,
    /// The same per block.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gather_block_ns: u64,
}

/// Costs measured on a machine, as a JSON file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostFile {
    /// Schema version, 1.
    pub schema_version: u32,
    /// What was measured, where, when, and under which schedule; free text by key.
    pub provenance: BTreeMap<String, String>,
    /// Number of blocks of the model.
    pub layers: u32,
    /// The workers of each pipeline device. Costs are valid only for the mesh that they were measured on.
    #[serde(default, skip_serializing_if = "Mesh::is_default")]
    pub mesh: Mesh,
    /// Whether embedding and head share a tensor, whose gradient is exchanged if they are on two devices. Written only if false.
    #[serde(default = "yes", skip_serializing_if = "bool::clone")]
    pub tied: bool,
    /// By part, kind, size and slice.
    pub parts: Vec<PartCost>,
    /// Busy time of an op beyond its parts, by kind: `F`, `I`, `W`.
    pub op_overhead_ns: BTreeMap<String, u64>,
    /// Host time between the end of an op (or its put) and the start of the next.
    pub gap_ns: u64,
    /// Cost of transfers between devices.
    pub link: LinkCost,
    /// Cost of step ops.
    pub step: StepRates,
    /// Fraction of an activation that is kept from I to W.
    pub keep: f64,
    /// Speed of the machine over time in each measured step.
    #[serde(default)]
    pub speeds: Vec<Slowdown>,
    /// Contention between devices that compute at the same time. If absent, durations include the contention of the measured step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contention: Option<Contention>,
    /// Costs of whole stages, in model order, instead of costs of parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageCost>,
}

fn yes() -> bool {
    true
}

impl StepRates {
    fn optimizer_ns(&self, part: &str) -> u64 {
        if part == BLOCK { self.optimizer_block_ns } else { self.optimizer_embedding_ns }
    }
}

impl GroupRates {
    fn ns(&self, op: StepOp, part: &str) -> u64 {
        let (block, embedding) = match op {
            StepOp::Put => (self.put_block_ns, self.put_embedding_ns),
            StepOp::PutValues => (self.put_values_block_ns, self.put_values_embedding_ns),
            StepOp::Gather => (self.gather_block_ns, self.gather_embedding_ns),
            _ => (self.add_block_ns, self.add_embedding_ns),
        };
        if part == BLOCK { block } else { embedding }
    }

    /// Returns all its times.
    fn all(&self) -> impl Iterator<Item = u64> + use<> {
        let ops = [StepOp::Put, StepOp::Reduce, StepOp::PutValues, StepOp::Gather];
        let rates = *self;
        ops.into_iter().flat_map(move |op| [BLOCK, EMBEDDING].map(|part| rates.ns(op, part)))
    }
}

impl CostFile {
    /// Returns the parts of the measured model.
    pub fn outline(&self) -> Outline {
        Outline::transformer(self.layers as usize, self.tied)
    }

    /// Reads a cost file.
    ///
    /// # Errors
    /// The text is not JSON, has another schema or version, or has numbers out of range.
    pub fn from_json(text: &str) -> Result<CostFile, CostError> {
        let unreadable = |message: String, error: &serde_json::Error| {
            let found = match error.classify() {
                _ if text.trim().is_empty() => "an empty file".to_string(),
                Category::Eof => format!("JSON that is cut off ({message})"),
                Category::Syntax | Category::Io => format!("invalid JSON ({message})"),
                Category::Data => format!("other JSON ({message})"),
            };
            CostError::File(format!("expected a cost file, found {found}; write one with `pipesim profile`"))
        };
        let file: CostFile = if text.contains("\"sub_ops\"") {
            let json = serde_json::from_str(text).map_err(|error| unreadable(error.to_string(), &error))?;
            serde_path_to_error::deserialize(completed(json))
                .map_err(|error| unreadable(error.to_string(), error.inner()))?
        } else {
            let mut json = serde_json::Deserializer::from_str(text);
            let file = serde_path_to_error::deserialize(&mut json)
                .map_err(|error| unreadable(error.to_string(), error.inner()))?;
            json.end().map_err(|error| unreadable(error.to_string(), &error))?;
            file
        };
        match file.fault() {
            Some(fault) => Err(CostError::File(format!("{fault}; measure again with `pipesim profile`"))),
            None => Ok(file),
        }
    }

    /// Describes the first number or name out of range.
    fn fault(&self) -> Option<String> {
        const KINDS: [&str; 5] = ["F", "I", "W", "O", "L"];
        let devices: BTreeSet<usize> = self.speeds.iter().map(|speed| speed.devices.len()).collect();
        let is_sound = self.contention.as_ref().is_none_or(Contention::is_sound);
        let factors = format!("factors that grow from 1000 to at most {} per mille", Contention::MOST);
        let overheads: Vec<&str> = self.op_overhead_ns.keys().map(String::as_str).collect();
        let StepRates {
            optimizer_embedding_ns,
            optimizer_block_ns,
            norm_block_ns,
            reduce_put_ns,
            reduce_add_ns,
            stages,
        } = self.step;
        let rates = [optimizer_embedding_ns, optimizer_block_ns, norm_block_ns, reduce_put_ns, reduce_add_ns];
        let group = stages.unwrap_or_default();
        let times = rates.into_iter().chain(group.all()).chain([self.gap_ns, self.link.put_ns, self.link.latency_ns]);
        let times = times.chain(self.parts.iter().map(|part| part.duration_ns));
        let times = times.chain(self.stages.iter().map(StageCost::longest));
        let longest = times.chain(self.op_overhead_ns.values().copied()).max().unwrap_or(0);
        let stage_fault = self.stages.iter().enumerate().find_map(|(stage, cost)| Some((stage, cost.fault()?)));
        let known = self.stages.iter().filter_map(|stage| stage.layers);
        let (known, layers) = (known.clone().count(), known.map(u64::from).sum::<u64>());
        let faults = [
            (
                self.schema_version != SCHEMA_VERSION,
                format!("expected cost schema version {SCHEMA_VERSION}, found {}", self.schema_version),
            ),
            (!(0.0..=1.0).contains(&self.keep), format!("keep: expected a share between 0 and 1, found {}", self.keep)),
            (!self.speeds.iter().all(Slowdown::is_ordered), "speeds: expected times in order".to_string()),
            (
                devices.contains(&0) || devices.len() > 1,
                format!("speeds: expected the same devices in every step, found {devices:?}"),
            ),
            (!is_sound, format!("contention: expected one core or more, and {factors}")),
            (!Contention::grows(&self.link.per_mille), format!("link.per_mille: expected {factors}")),
            (overheads != KINDS[..3], format!("op_overhead_ns: expected F, I and W, found {}", overheads.join(", "))),
            (
                stage_fault.is_some(),
                stage_fault.map_or_else(String::new, |(stage, fault)| format!("stages[{stage}]: {fault}")),
            ),
            (
                known > 0 && (known < self.stages.len() || layers != u64::from(self.layers)),
                format!(
                    "stages: expected the layers of every stage, {} in total, or of none, found {layers}",
                    self.layers
                ),
            ),
            (self.layers > MAX_BLOCKS, format!("layers: expected at most {MAX_BLOCKS}, found {}", self.layers)),
            (!self.mesh.is_sound(), format!("mesh: expected degrees from 1 to {MAX_DEGREE}, found {}", self.mesh)),
            (longest > MAX_NS, format!("expected durations of at most 18 minutes, found {longest} ns")),
        ];
        let mut seen = BTreeSet::new();
        let part_fault = |PartCost { part, kind, sequences, tokens, slice, .. }: &PartCost| {
            if ![EMBEDDING, BLOCK, HEAD].contains(&part.as_str()) || !KINDS.contains(&kind.as_str()) {
                let expected = format!("F, I, W, O or L of {EMBEDDING}, {BLOCK} or {HEAD}");
                return Some(format!("parts: expected {expected}, found {kind:?} of {part:?}"));
            }
            let size = format!("micro-batches of {sequences} x {tokens} tokens");
            if slice.is_some_and(|[first, length]| u64::from(first) + u64::from(length) > u64::from(*tokens)) {
                return Some(format!("parts: expected slices of {tokens} tokens, found {slice:?} of the {part}"));
            }
            let is_new = seen.insert((part.clone(), kind.clone(), *sequences, *tokens, *slice));
            (!is_new).then(|| format!("parts: {kind} of the {part} for {size} is listed twice"))
        };
        let fault = faults.into_iter().find_map(|(is_wrong, fault)| is_wrong.then_some(fault));
        fault.or_else(|| self.parts.iter().find_map(part_fault))
    }

    /// Returns the duration of one part, for micro-batches of this size or for a slice of them.
    pub(super) fn part(
        &self,
        part: &str,
        kind: Kind,
        size: MicroBatch,
        slice: Option<[u32; 2]>,
    ) -> Result<u64, CostError> {
        let (letter, MicroBatch { sequences, tokens }) = (kind.letter().to_string(), size);
        let is_it = |c: &&PartCost| (&c.part[..], &c.kind, c.size(), c.slice) == (part, &letter, size, slice);
        self.parts.iter().find(is_it).map(|c| c.duration_ns).ok_or_else(|| {
            CostError::File(format!(
                "the cost file has no {letter} of the {part} for micro-batches of {sequences} x {tokens} tokens; \
                 measure it with `pipesim profile`"
            ))
        })
    }

    /// Returns the micro-batch size of the first part.
    pub fn size(&self) -> MicroBatch {
        self.parts.first().map_or(MicroBatch { sequences: 0, tokens: 0 }, PartCost::size)
    }

    /// Returns the cost table of these stages on `placement`.
    ///
    /// # Errors
    /// A part was not measured at this micro-batch size, or stages have other layers than the measured ones.
    pub fn table(&self, placement: &Placement, stages: &[Stage], size: MicroBatch) -> Result<CostTable, CostError> {
        self.table_of(placement, stages, size, None)
    }

    /// Returns the cost table of micro-batches, or of one slice of them.
    pub(super) fn table_of(
        &self,
        placement: &Placement,
        stages: &[Stage],
        size: MicroBatch,
        slice: Option<[u32; 2]>,
    ) -> Result<CostTable, CostError> {
        if self.is_staged() {
            let layers: Vec<usize> = stages.iter().map(|stage| stage.count(BLOCK)).collect();
            return self.staged_table(placement, &layers);
        }
        let of_stage = |stage: &Stage| {
            let of = |kind: Kind| {
                let overhead = self.op_overhead_ns.get(&kind.letter().to_string()).copied().unwrap_or(0);
                Ok(overhead + self.parts_of(stage, kind, size, slice)?)
            };
            let [forward, input, weights] = [of(Kind::F)?, of(Kind::I)?, of(Kind::W)?];
            Ok([forward, input, weights, input + weights])
        };
        let durations = stages.iter().map(of_stage).collect::<Result<Vec<[u64; 4]>, CostError>>()?;
        let p = f64::from(placement.devices());
        let mean = |kind: Kind| durations.iter().map(|of| of[kind as usize] as f64).sum::<f64>() / p / 1e6;
        let put_ns =
            slice.map_or(self.link.put_ns, |[_, length]| of_ratio(self.link.put_ns.into(), length, size.tokens as u32));
        let summary = Summary::new(mean, (put_ns + self.link.latency_ns) as f64 / 1e6, self.keep);
        let table = CostTable::new(placement, TickUnits::MILLISECONDS, summary, |op| {
            let put = if placement.leaves_device(op) { put_ns } else { 0 };
            let duration = durations[op.stage() as usize][op.kind() as usize];
            let after = self.gap_ns + if self.link.beside_compute { 0 } else { put };
            OpTime { duration, after, arrival: put + self.link.latency_ns }
        });
        let (speeds, contention) = (self.speeds.clone(), self.contention.clone());
        Ok(CostTable {
            effects: MachineEffects { speeds, contention, puts: self.shared_puts() },
            extras: Extras { copies: self.copies(stages, size, slice), ..Extras::default() },
            ..table
        })
    }

    /// Returns how long the parts of a stage take.
    pub(super) fn parts_of(
        &self,
        stage: &Stage,
        kind: Kind,
        size: MicroBatch,
        slice: Option<[u32; 2]>,
    ) -> Result<u64, CostError> {
        let held = stage.counts().filter(|&(_, count)| count > 0);
        held.map(|(part, count)| Ok(count as u64 * self.part(part, kind, size, slice)?)).sum()
    }

    /// Returns the contention between puts, if any.
    fn shared_puts(&self) -> Option<SharedPuts> {
        let LinkCost { put_ns: duration, beside_compute, per_mille, .. } = self.link.clone();
        let matters = per_mille.iter().any(|&factor| factor > 1000);
        matters.then_some(SharedPuts { duration, beside_compute, per_mille })
    }

    /// Returns the costs of what follows the last backward: the exchange of gradients that two devices share, the norm if
    /// gradients are clipped, the optimizer.
    pub fn step_costs(&self, placement: &Placement, stages: &[Stage], clip: bool) -> StepCosts {
        let outline = self.outline();
        let share = |device: u32, of_part: &dyn Fn(&str) -> u64| {
            let held = || placement.stages_of(device).map(|stage| &stages[stage as usize]);
            let all: u64 = held().flat_map(Stage::counts).map(|(part, count)| count as u64 * of_part(part)).sum();
            match outline.tied {
                // the shared tensor is stored once
                Some([part, _]) if outline.tied_sides(held()) == TiedSides::Both => all - of_part(part),
                _ => all,
            }
        };
        let exchanged = |op: StepOp, gradients: &[GradientSync]| {
            let of = |&gradient: &GradientSync| self.exchange_ns(op, gradient, placement, stages);
            gradients.iter().map(of).sum::<u64>()
        };
        // If workers share the optimizer's work, rates are for one slice.
        let group = stage_group(placement, self.mesh.data);
        let measured_group = self.step.stages.map_or(1, |rates| rates.size.max(1));
        let sliced = |ns: u64| if self.mesh.zero { of_ratio(ns.into(), measured_group, group) } else { ns };
        let epilogue = StepEpilogue::on_mesh(placement, self.mesh, outline.exchange(placement, stages), clip);
        StepCosts::new(epilogue, |StepNode { device, op, gradients, .. }| match op {
            StepOp::Put => (exchanged(*op, gradients), self.link.latency_ns),
            StepOp::Reduce => (sliced(exchanged(*op, gradients)), 0),
            StepOp::Norm => {
                (sliced(share(*device, &|part| if part == BLOCK { self.step.norm_block_ns } else { 0 })), 0)
            }
            StepOp::Optimizer => (sliced(share(*device, &|part| self.step.optimizer_ns(part))), 0),
            StepOp::PutValues => (sliced(exchanged(*op, gradients)), self.link.latency_ns),
            StepOp::Gather => (sliced(exchanged(*op, gradients)), 0),
        })
    }

    /// Returns the time to put `gradient` or its parameters, or to add or copy the other workers' parts, which is
    /// proportional to their number. If no sum of stages was measured, the time for the token embedding's gradient is scaled: time is
    /// proportional to the number of parameters, as the optimizer's is.
    fn exchange_ns(&self, op: StepOp, gradient: GradientSync, placement: &Placement, stages: &[Stage]) -> u64 {
        let is_put = matches!(op, StepOp::Put | StepOp::PutValues);
        let ns = if is_put { self.step.reduce_put_ns } else { self.step.reduce_add_ns };
        let GradientSync::Stage(chunk) = gradient else { return ns };
        if let Some(rates) = &self.step.stages {
            let of_part = |(part, count): (&str, usize)| count as u128 * u128::from(rates.ns(op, part));
            let all: u128 = stages[chunk.stage as usize].counts().map(of_part).sum();
            let others = |size: u32| size.max(2) - 1;
            let (own, measured) = (others(stage_group(placement, self.mesh.data)), others(rates.size));
            return if is_put { of_ratio(all, 1, 1) } else { of_ratio(all, own, measured) };
        }
        let part = |(part, count)| count as u128 * u128::from(self.step.optimizer_ns(part));
        let weight = stages[chunk.stage as usize].counts().map(part).sum::<u128>();
        let unit = u128::from(self.step.optimizer_embedding_ns.max(1));
        (u128::from(ns) * weight / unit).min(u128::from(MAX_NS)) as u64
    }
}

/// Returns `ns` times a ratio, at most the largest time.
fn of_ratio(ns: u128, numerator: u32, denominator: u32) -> u64 {
    (ns.saturating_mul(numerator.into()) / u128::from(denominator.max(1))).min(u128::from(MAX_NS)) as u64
}
