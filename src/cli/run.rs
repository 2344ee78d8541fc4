//! `pipesim run`: really train, measure, predict from one calibrated schedule, compare.

use super::Failure;
use super::measure::Experiment;
use super::model::ModelOptions;
use super::options::{CostOptions, Format, OutputOptions};
use super::outcome::{Iteration, Outcome};
use super::output::print;
use super::selection::ScheduleOptions;
use crate::delivery::Delivery;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// The best kind that is usable here: CPU threads.
    Auto,
    /// A thread a device.
    Cpu,
    /// Each op lasts as long as --costs or --profile says; for trying the executor at many devices.
    Timed,
    /// NVIDIA GPUs.
    Cuda,
}

/// What moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// The best that is usable here.
    Auto,
    /// Shared memory between threads.
    Local,
    /// Peer copies and events (with cuda).
    Copy,
    /// NVSHMEM puts on a stream (with cuda).
    Nvshmem,
    /// NCCL (with cuda).
    Nccl,
    /// MPI.
    Mpi,
}

/// Arguments of `run`.
#[derive(Args)]
#[command(after_help = "Legal device and link pairs in this build: cpu with local, timed with local.")]
pub struct Run {
    #[command(flatten)]
    schedules: ScheduleOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    costs: CostOptions,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    device: DeviceKind,
    /// What moves data
    #[arg(long, value_enum, default_value_t = LinkKind::Auto)]
    link: LinkKind,
    /// What the link is to promise, emulated: one-sided, buffered(k), channel, channel:per-peer or channel:per-direction, those with ,front-loaded too; a schedule that deadlocks under it is refused
    #[arg(long, value_name = "DELIVERY", default_value = "one-sided")]
    delivery: Delivery,
    /// Training steps of each schedule
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    steps: u32,
    /// Steps before them that leave no trace
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..1000))]
    warmup: u32,
    /// The schedule whose run calibrates the predictions of all others
    #[arg(long, default_value = "1f1b", value_name = "NAME|FILE")]
    calibrate: String,
    /// Measure one device with the same micro-batches too, interleaved with the others, and give speed-ups over it
    #[arg(long)]
    baseline: bool,
    /// With --device timed: milliseconds that one unit of --costs lasts
    #[arg(long, default_value_t = 2.0, value_name = "MS")]
    unit_ms: f64,
    #[command(flatten)]
    output: OutputOptions,
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Runs<'a> {
    schema_version: u32,
    calibrated_on: &'a serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Iteration>,
    runs: Vec<&'a Outcome>,
}

impl Run {
    /// Trains, prints, writes the report.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn run(&self) -> Result<(), Failure> {
        self.legal()?;
        let mut output = self.output.clone();
        if output.output.is_empty() {
            output.output.push(PathBuf::from("reports/latest/"));
        }
        output.check_writable()?;
        let experiment = Experiment {
            schedules: &self.schedules,
            model: &self.model,
            costs: &self.costs,
            delivery: self.delivery,
            calibrate: &self.calibrate,
            steps: self.steps,
            warmup: self.warmup,
            baseline: self.baseline,
            output: &output,
        };
        if self.device == DeviceKind::Auto {
            output.remark("device: cpu, a thread a device (this build drives no GPU)");
        }
        let finding = match self.device {
            DeviceKind::Timed => experiment.timed(self.unit_ms)?,
            _ => experiment.train()?,
        };
        match self.output.format {
            Format::Json => {
                let runs = finding.outcomes.iter().collect();
                let json =
                    Runs { schema_version: 1, calibrated_on: &finding.calibrated_on, baseline: finding.baseline, runs };
                print(&format!("{}\n", serde_json::to_string_pretty(&json).map_err(anyhow::Error::from)?))?;
            }
            Format::Table => print(&output.terminal(&finding.report))?,
            Format::Md => print(&crate::report::markdown(&finding.report))?,
            Format::Csv => print(&crate::report::csv(&finding.report))?,
        }
        output.write(&finding.report)?;
        output.check_thresholds(finding.outcomes.iter().map(|o| (o.schedule.as_str(), &o.measured.metrics)))
    }

    fn legal(&self) -> Result<(), Failure> {
        if self.device == DeviceKind::Cuda {
            return Err(Failure::Environment(
                "this build has no CUDA device; run on the CPU with --device cpu, or try the executor with --device timed".to_string(),
            ));
        }
        match self.link {
            LinkKind::Auto | LinkKind::Local => Ok(()),
            other => {
                let name = other.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string());
                Err(Failure::Usage(format!(
                    "the CPU and timed devices use --link local, found {name}; leave --link out"
                )))
            }
        }
    }
}
