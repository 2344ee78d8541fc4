//! `pipesim report accuracy`: calibrate on one schedule and one m, predict all others for several m, measure them all.

use super::Failure;
use super::devices::DeviceOptions;
use super::measure::{calibrate_on, measure, tables};
use super::model::ModelOptions;
use super::options::OutputOptions;
use super::output::print;
use super::selection::{ScheduleOptions, unknown_costs};
use crate::dsl::Budget;
use crate::experiment::outcome::{Outcome, Place, judge};
use crate::experiment::provenance;
use crate::experiment::training::{Measured, layers_of};
use crate::ranks::{Ranks, refuse_ranks};
use crate::report::{self, Report, Table};
use crate::schedule::Overlap;
use crate::statistics::quantile;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

/// Arguments of `report accuracy`.
#[derive(Args)]
pub struct Accuracy {
    /// Number of devices, p
    #[arg(long, short = 'p', default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    stages: u32,
    /// Numbers of micro-batches to measure at, of constant size
    #[arg(long, short = 'm', value_delimiter = ',', default_values_t = [4, 8, 16], value_parser = clap::value_parser!(u32).range(1..=4096))]
    micro: Vec<u32>,
    /// Schedules to predict
    #[arg(long, short = 's', value_delimiter = ',', default_values_t = ["naive", "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"].map(str::to_string))]
    schedule: Vec<String>,
    /// The schedule that calibrates
    #[arg(long, default_value = "1f1b")]
    calibrate: String,
    /// Its number of micro-batches
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    calibrate_micro: u32,
    /// Measured steps of each
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..100_000))]
    steps: u32,
    /// Steps before them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..1000))]
    warmup: u32,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    /// Where to write the report folder
    #[arg(long, short, default_value = "reports/latest")]
    output: PathBuf,
    /// Print nothing to stderr but errors
    #[arg(long, short)]
    quiet: bool,
    /// Print a line a step to stderr
    #[arg(long, short, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Accuracy {
    /// Measures, predicts, writes the report.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn run(&self) -> Result<(), Failure> {
        let output = OutputOptions::files(vec![self.output.clone()], self.quiet);
        output.check_writable()?;
        refuse_ranks("pipesim report accuracy")?;
        if self.model.batch.is_some() {
            return Err(Failure::Usage("micro-batches keep their size here: leave --batch out".to_string()));
        }
        let ranks = Ranks::alone();
        let mut training = self.model.training(1, None, &ranks)?;
        let (backend, link) = self.devices.sole_backend(&ranks, self.stages, &output)?;
        training.backend = backend;
        let mut runs = Vec::new();
        let calibration = std::iter::once((self.calibrate.as_str(), self.calibrate_micro));
        let wanted = self.micro.iter().flat_map(|&m| self.schedule.iter().map(move |name| (name.as_str(), m)));
        for (name, m) in calibration.chain(wanted) {
            let graph = Arc::new(self.options(m).graph(name, &unknown_costs)?);
            training.stages(&graph).map_err(|e| Failure::Usage(format!("{name}: {e:#}")))?;
            runs.push(Measured { session: training.session(&graph)?, graph, records: Vec::new() });
        }
        let bar = ProgressBar::new(u64::from(self.steps) * runs.len() as u64);
        if self.quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let verbose = self.verbose > 0;
        measure(&training, &mut runs, self.warmup, self.steps, &bar, |line| {
            if verbose {
                output.remark(line)
            }
        })?;
        let calibration = runs.remove(0);
        let costs = calibrate_on(&training, &calibration)?;
        let config = training.config();
        let mut report = Report {
            title: format!(
                "Accuracy: {} devices, calibrated on {} at m = {}",
                self.stages, self.calibrate, self.calibrate_micro
            ),
            subtitle: format!(
                "GPT-2 with {} blocks, {} channels; micro-batches of 1 x {} tokens; {} steps each, interleaved; {}",
                config.layers,
                config.channels,
                training.sequence_tokens,
                self.steps,
                training.devices_in_words()
            ),
            provenance: provenance::of(&training),
            ..Report::default()
        };
        let mut outcomes = Vec::new();
        let place =
            Place { device_kind: training.device_kind(), link: link.name(), provenance: report.provenance.clone() };
        for run in &runs {
            let stages = training.stages(&run.graph)?;
            debug_assert_eq!(layers_of(&stages).len(), stages.len());
            let (table, steps) = tables(&costs, &training, run, &stages).map_err(Failure::Usage)?;
            let (outcome, mut entry) = judge(run, &table, &steps, &place, training.sequence_tokens);
            entry.name = format!("{} m={}", outcome.schedule, outcome.microbatches);
            outcomes.push(outcome);
            report.entries.push(entry);
        }
        report.extra_tables = vec![rows(&outcomes), self.summary(&outcomes, &calibration)];
        let json = serde_json::json!({"schema_version": 1, "provenance": report.provenance, "runs": outcomes});
        report::folder(&report, &self.output)?;
        let text = format!("{}\n", serde_json::to_string_pretty(&json).map_err(anyhow::Error::from)?);
        report::write_atomic(&self.output.join("accuracy.json"), text.as_bytes())?;
        let only_tables = Report { entries: Vec::new(), ..report };
        let markdown = report::markdown(&only_tables);
        report::write_atomic(&self.output.join("accuracy.md"), markdown.as_bytes())?;
        output.remark(&format!("wrote {}", self.output.display()));
        print(&markdown)
    }

    fn options(&self, m: u32) -> ScheduleOptions {
        let Budget { ticks, ops, .. } = Budget::default();
        ScheduleOptions {
            stages: self.stages,
            micro: m,
            schedule: Vec::new(),
            chunks: None,
            set: Vec::new(),
            memory_cap: None,
            overlap: Overlap::Atomic,
            max_ticks: ticks,
            max_ops: ops,
        }
    }

    fn summary(&self, outcomes: &[Outcome], calibration: &Measured) -> Table {
        let unseen: Vec<&Outcome> =
            outcomes.iter().filter(|o| o.schedule != calibration.graph.schedule().name).collect();
        let errors: Vec<f64> = unseen.iter().map(|o| 100.0 * o.error.makespan).collect();
        let absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let bubbles: Vec<f64> = unseen.iter().map(|o| o.error.bubble.abs()).collect();
        let replays: Vec<f64> = outcomes.iter().map(|o| 100.0 * o.error.self_replay.abs()).collect();
        let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let (right, pairs) = ranking(outcomes);
        let row = |what: &str, value: String| vec![what.to_string(), value];
        Table {
            caption: format!(
                "Summary: schedules other than {}, which was calibrated on",
                calibration.graph.schedule().name
            ),
            header: ["what", "value"].map(str::to_string).to_vec(),
            rows: vec![
                row("mean absolute makespan error", format!("{:.2} %", mean(&absolute))),
                row(
                    "its middle half (quartiles)",
                    format!("{:.2} to {:.2} %", quantile(&absolute, 0.25), quantile(&absolute, 0.75)),
                ),
                row("largest makespan error", format!("{:.2} %", largest(&absolute))),
                row("mean signed makespan error", format!("{:+.2} %", mean(&errors))),
                row("mean absolute bubble error", format!("{:.2} points", mean(&bubbles))),
                row("mean self-replay error, all", format!("{:.2} %", mean(&replays))),
                row(
                    "pairs of schedules ordered right, of those further apart than their intervals",
                    format!("{right} of {pairs}"),
                ),
                row("drift of the machine over the run", format!("{:+.2} %", 100.0 * calibration.drift())),
            ],
        }
    }
}

/// Of all pairs at one m whose confidence intervals do not overlap: how many the prediction orders as measured.
fn ranking(outcomes: &[Outcome]) -> (usize, usize) {
    let (mut right, mut pairs) = (0, 0);
    for (i, a) in outcomes.iter().enumerate() {
        for b in outcomes[i + 1..].iter().filter(|b| b.microbatches == a.microbatches) {
            let ([a_low, a_high], [b_low, b_high]) = (a.iteration_ms.ci95, b.iteration_ms.ci95);
            if a_high < b_low || b_high < a_low {
                pairs += 1;
                let predicted = a.predicted.metrics.makespan < b.predicted.metrics.makespan;
                right += usize::from(predicted == (a.iteration_ms.median < b.iteration_ms.median));
            }
        }
    }
    (right, pairs)
}

fn rows(outcomes: &[Outcome]) -> Table {
    let header = [
        "schedule",
        "m",
        "measured ms",
        "95 % interval of the iteration",
        "predicted ms",
        "error",
        "bubble measured",
        "bubble error",
        "op start p95",
        "self-replay",
    ];
    Table {
        caption: "Makespan, predicted and measured".to_string(),
        header: header.map(str::to_string).to_vec(),
        rows: outcomes
            .iter()
            .map(|o| {
                let [low, high] = o.iteration_ms.ci95;
                vec![
                    o.schedule.clone(),
                    o.microbatches.to_string(),
                    format!("{:.1}", o.predicted.metrics.makespan / (1.0 + o.error.makespan)),
                    format!("{low:.1} to {high:.1}"),
                    format!("{:.1}", o.predicted.metrics.makespan),
                    format!("{:+.2} %", 100.0 * o.error.makespan),
                    format!("{:.2} %", 100.0 * o.measured.metrics.bubble),
                    format!("{:+.2} points", o.error.bubble),
                    format!("{:.2} %", 100.0 * o.error.op_start_p95),
                    format!("{:+.2} %", 100.0 * o.error.self_replay),
                ]
            })
            .collect(),
    }
}
