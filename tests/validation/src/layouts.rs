//! Measured grids of layouts: which runs out of memory, how long steps are, and what the predictions say.

use crate::errors::Errors;
use anyhow::{Context, Result, bail};
use pipesim::Host;
use pipesim::ParallelConfig;
use pipesim::StepEstimate;
use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::{TransformerConfig, hardware, micro_batches, stack, transformer_named};
use pipesim::schedules::Files;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// One run of a grid.
#[derive(Clone, Debug, Deserialize)]
pub struct LayoutRow {
    /// Identifier in the table.
    pub id: String,
    /// Name of the model: llama-13b, llama-30b or llama-65b.
    pub model: String,
    /// Name of the hardware.
    pub gpu: String,
    /// Total number of GPUs.
    pub gpus: u64,
    /// Tokens per sequence.
    pub seq: u32,
    /// Sequences per step.
    pub batch: u32,
    /// Sequences per micro-batch.
    pub micro_batch_size: u32,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Devices per pipeline.
    pub pp: u32,
    /// Pipelines.
    pub dp: u32,
    /// Whether sequence parallelism is on.
    pub sequence_parallel: bool,
    /// Activation recomputation.
    pub recompute: String,
    /// Kernels of attention and norm.
    pub kernels: String,
    /// `timed`, `oom` or `other`.
    pub outcome: String,
    /// Time of one iteration, in seconds, if timed.
    pub iteration_s: Option<f64>,
}

/// Kernels and the stack that describes them.
const KERNELS: [(&str, &str); 5] = [
    ("torch", "scaling-torch"),
    ("fused", "scaling-fused"),
    ("flash-1", "scaling-flash-1"),
    ("flash-2", "scaling-flash-2"),
    ("flash-2 + fused RMSNorm", "scaling"),
];

impl LayoutRow {
    /// Returns the sizes of the model: those of the original, with the grid's vocabulary.
    ///
    /// # Errors
    /// An unknown model.
    pub fn sizes(&self) -> Result<TransformerConfig> {
        let (layers, heads, channels, mlp) = match self.model.as_str() {
            "llama-13b" => (40, 40, 5120, 13824),
            "llama-30b" => (60, 52, 6656, 17920),
            "llama-65b" => (80, 64, 8192, 22016),
            other => bail!("expected llama-13b, llama-30b or llama-65b, found '{other}'"),
        };
        let base = transformer_named("llama-2-13b").context("no llama-2-13b")?;
        Ok(TransformerConfig {
            vocabulary: 128_000,
            layers,
            heads,
            groups: heads,
            head_size: channels / heads,
            channels,
            mlp,
            ..base
        })
    }

    /// Returns the costs of the run. Embedding, blocks, norm and head are split as equal items.
    ///
    /// # Errors
    /// Unknown names, or a layout that the model does not allow.
    pub fn costs(&self) -> Result<Analytic> {
        let sizes = self.sizes()?;
        let known = KERNELS.iter().find(|(kernels, _)| *kernels == self.kernels);
        let stack_name = known.with_context(|| format!("unknown kernels '{}'", self.kernels))?.1;
        let (size, micro) = micro_batches(Some(self.batch), self.dp, Some(self.micro_batch_size), None)?;
        let (items, stages) = (sizes.layers + 3, self.pp as usize);
        let mut layers: Vec<usize> =
            (0..stages).map(|stage| items / stages + usize::from(stage < items % stages)).collect();
        layers[0] -= 1;
        layers[stages - 1] -= 2;
        let layout = ParallelConfig {
            pp: self.pp,
            tp: self.tp,
            dp: self.dp,
            micro_batch_size: size,
            micro,
            sequence: self.seq,
            recompute: self.recompute.parse()?,
            zero: "1".parse()?,
            sequence_parallel: self.sequence_parallel,
            stack: stack_name.to_string(),
            layers: Some(layers),
            ..ParallelConfig::default()
        };
        let machine = Platform { hardware: hardware(&self.gpu)?, stack: stack(stack_name)? };
        Ok(Analytic::new(sizes, machine, layout)?)
    }

    /// Returns whether it ran out of memory.
    pub fn ran_out(&self) -> bool {
        self.outcome == "oom"
    }
}

/// A run and its prediction under 1F1B.
#[derive(Debug)]
pub struct LayoutPrediction {
    /// What was measured.
    pub row: LayoutRow,
    /// Time and memory, or why the run cannot be predicted.
    pub estimate: Result<StepEstimate, String>,
}

impl LayoutPrediction {
    /// Returns predicted over measured time, minus 1.
    pub fn error(&self) -> Option<f64> {
        Some(self.estimate.as_ref().ok()?.iteration_s / self.row.iteration_s? - 1.0)
    }

    /// Returns whether it is predicted to run out of memory; `None` if it cannot be predicted.
    pub fn misfits(&self) -> Option<bool> {
        Some(!self.estimate.as_ref().ok()?.memory.fits)
    }
}

/// Reads a grid in JSON.
///
/// # Errors
/// The text is not a list of runs.
pub fn read(text: &str) -> Result<Vec<LayoutRow>> {
    serde_json::from_str(text).context("expected a list of runs of layouts")
}

/// Predicts all runs.
pub fn predict(rows: Vec<LayoutRow>) -> Vec<LayoutPrediction> {
    let found: Mutex<BTreeMap<usize, LayoutPrediction>> = Mutex::default();
    Files.each(rows.len(), &|number| {
        let row = rows[number].clone();
        let estimate = row.costs().and_then(|costs| Ok(costs.estimate("1f1b")?)).map_err(|error| error.to_string());
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(number, LayoutPrediction { row, estimate });
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// How well predictions tell which runs go out of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OutOfMemoryScore {
    /// Predicted and measured to run out.
    pub hits: usize,
    /// Measured, not predicted.
    pub missed: usize,
    /// Predicted, not measured.
    pub false_alarms: usize,
}

impl OutOfMemoryScore {
    /// Counts the runs that were timed or ran out of memory.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a LayoutPrediction>) -> OutOfMemoryScore {
        let mut score = OutOfMemoryScore::default();
        for run in runs.into_iter().filter(|run| run.row.ran_out() || run.row.iteration_s.is_some()) {
            match (run.row.ran_out(), run.misfits()) {
                (true, Some(true)) => score.hits += 1,
                (true, _) => score.missed += 1,
                (false, Some(true)) => score.false_alarms += 1,
                (false, _) => {}
            }
        }
        score
    }

    /// Returns the share of the runs out of memory that are predicted to be.
    pub fn recall(&self) -> f64 {
        self.hits as f64 / (self.hits + self.missed).max(1) as f64
    }

    /// Returns the share of the runs predicted out of memory that are.
    pub fn precision(&self) -> f64 {
        self.hits as f64 / (self.hits + self.false_alarms).max(1) as f64
    }
}

/// A name and a function that groups runs.
type Grouping = (&'static str, fn(&LayoutRow) -> String);

const GROUPINGS: [Grouping; 6] = [
    ("all", |_| String::new()),
    ("kernels", |row| row.kernels.clone()),
    ("model", |row| format!("{}, {} tokens, {} GPUs", row.model, row.seq, row.gpus)),
    ("recompute", |row| row.recompute.clone()),
    ("tp", |row| row.tp.to_string()),
    ("pp", |row| row.pp.to_string()),
];

/// Prints recall and precision of running out of memory, and errors of steps, by kind of run.
///
/// # Errors
/// An unreadable table, or no run that can be predicted.
pub fn print(text: &str) -> Result<()> {
    let runs = predict(read(text)?);
    for (name, of) in GROUPINGS {
        let mut kinds: BTreeMap<String, Vec<&LayoutPrediction>> = BTreeMap::new();
        runs.iter().for_each(|run| kinds.entry(of(&run.row)).or_default().push(run));
        for (kind, runs) in kinds {
            let score = OutOfMemoryScore::of(runs.iter().copied());
            let errors: Vec<(f64, f64)> = runs.iter().filter_map(|run| Some((run.error()?, 1.0))).collect();
            let Errors { rows, mean, median, bias, .. } = Errors::of(&errors);
            let percent = |share: f64| 100.0 * share;
            println!(
                "{:48} out of memory: recall {:5.1} %, precision {:5.1} % ({} of {}); steps: {rows:3}, mean error {:4.1} %, median {:4.1} %, bias {:+5.1} %",
                format!("{name} {kind}"),
                percent(score.recall()),
                percent(score.precision()),
                score.hits,
                score.hits + score.missed,
                percent(mean),
                percent(median),
                percent(bias)
            );
        }
    }
    let unknown: Vec<String> =
        runs.iter().filter_map(|run| Some(format!("{}: {}", run.row.id, run.estimate.as_ref().err()?))).collect();
    if !unknown.is_empty() {
        bail!("{} of {} runs cannot be predicted:\n  {}", unknown.len(), runs.len(), unknown.join("\n  "));
    }
    Ok(())
}
