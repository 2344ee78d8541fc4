//! `pipesim run`: train, measure, predict from one calibrated schedule, compare.

use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::costs::CostOptions;
use crate::cli::options::devices::{Chosen, DeviceOptions};
use crate::cli::options::output::{DrawOptions, WriteOptions, json, origin};
use crate::cli::options::ranks::{RankOptions, check_ranks};
use crate::cli::options::schedules::SearchOptions;
use crate::cli::options::threshold::{Figures, Scope, Side, ThresholdOptions};
use crate::cli::options::training::TrainingOptions;
use crate::cli::options::values::{real, share, whole};
use crate::cli::terminal::eprint;
use crate::cli::terminal::progress::DetailOptions;
use clap::Args;
use pipesim_answer::resolve::Costs;
use pipesim_cost::{GivenCosts, TimeUnit};
use pipesim_exec::link::{LinkKind, Transport};
use pipesim_exec::ranks::{Ranks, signal_name};
use pipesim_exec::{GRAPHS, PRODUCTS};
use pipesim_measure::experiment::{
    self, Experiment, Iteration, MOST_NOISE, Observer, Outcome, Results, TrainingConfig, Verdict,
};
use pipesim_report as report;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::statistics::LEAST_FOR_CI95;
use serde::Serialize;
use std::sync::Arc;

/// Steps of each schedule that are taken where no number is asked for: as many as an interval needs, and until the noise is low.
const LEAST_STEPS: u32 = LEAST_FOR_CI95 as u32;
const MOST_STEPS: u32 = 40;

#[derive(Args)]
#[command(after_help = LinkKind::legal_pairs())]
pub struct Run {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    training: TrainingOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    #[command(flatten)]
    ranks: RankOptions,
    /// Delivery that the link emulates: one-sided, buffered(k), channel, channel:per-peer, channel:per-direction, each channel also with ,front-loaded, ,deferred or ,ahead, batched, megatron, pytorch, pytorch:per-edge, pytorch:deferred or pytorch:2.11; a schedule that deadlocks under it is rejected
    #[arg(long, value_name = "DELIVERY", default_value = "one-sided")]
    delivery: Delivery,
    /// Training steps per schedule, at most [default: 6, and up to 40 within 10 s until the noise of a schedule is below 5 %; with --until 1000, with --device timed, --profile or ranks 5]
    #[arg(long, value_parser = whole::<u32>(1..1_000_000))]
    steps: Option<u32>,
    /// Stop once every schedule's median step is known to within this share (half-width of its 95 % confidence interval), as in 1%; otherwise report how many steps that needs
    #[arg(long, value_name = "SHARE", value_parser = share)]
    until: Option<f64>,
    /// Training steps that run back to back, without a barrier, in each turn of a schedule, at most 64; measures their period
    #[arg(long = "back-to-back", alias = "in-a-row", value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=64))]
    back_to_back: u32,
    /// Unmeasured steps before the measured ones; they do not change the model
    #[arg(long, default_value_t = 2, value_parser = whole::<u32>(0..1000))]
    warmup: u32,
    /// Schedule whose run calibrates the predictions of all others
    #[arg(long, default_value = "1f1b", value_name = "NAME|FILE", conflicts_with = "profile")]
    calibrate: String,
    /// Also measure one device with the same micro-batches, and give speed-ups over it
    #[arg(long)]
    baseline: bool,
    /// Milliseconds per unit of --costs, with --device timed
    #[arg(long, conflicts_with = "profile", default_value_t = 2.0, value_name = "MS", value_parser = real::<f64>)]
    unit_ms: f64,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    details: DetailOptions,
    #[command(flatten)]
    thresholds: ThresholdOptions,
}

/// The results of each link, and the error that ended the measurement early; or the error without any results.
type Found = Result<(Vec<Results>, Option<experiment::Error>), experiment::Error>;

#[derive(Serialize)]
struct Runs<'a> {
    schema_version: u32,
    calibrated_on: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Iteration>,
    /// Why fewer steps were measured than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a Verdict>,
    /// Algorithms of matrix products, with --products.
    #[serde(skip_serializing_if = "Option::is_none")]
    products: Option<&'a str>,
    /// What CUDA graphs did, with --cuda-graphs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    cuda_graphs: Option<&'a str>,
    runs: &'a [Outcome],
}

impl Run {
    pub fn run(&self) -> Result<(), Failure> {
        let (timeout, stages) = (self.training.training_config().timeout, self.schedules.stages.first());
        self.ranks.run(
            timeout,
            self.details.remarks.quiet,
            |ranks| check_ranks(ranks, self.training.mesh(), stages),
            |ranks| self.run_rank(ranks),
        )
    }

    /// Runs this rank's part: all ranks measure, rank 0 prints and writes.
    fn run_rank(&self, ranks: &Arc<Ranks>) -> Result<(), Failure> {
        let write = self.write.or_latest()?;
        let mut details = self.details;
        details.remarks.quiet |= !ranks.speaks();
        let remarks = details.remarks;
        if ranks.speaks() {
            write.check_writable()?;
        }
        self.schedules.reject_unused(&self.schedules.names(), remarks)?;
        self.training.training_config().chosen_heads().iter().for_each(|note| remarks.remark(&format!("note: {note}")));
        let mut experiment = self.experiment(ranks)?;
        let mesh = self.training.mesh();
        let (devices, workers) = (self.devices.for_mesh(mesh)?, mesh.world(self.schedules.stages.first()));
        if self.baseline && !mesh.is_single() {
            return Err(Failure::Usage(format!("--baseline measures one device, found {mesh}; leave it out")));
        }
        let mut chosen = devices.choose(ranks, workers, details)?;
        if self.until.is_some() && (matches!(chosen, Chosen::Timed) || self.costs.profile.is_some() || ranks.size() > 1)
        {
            return Err(Failure::Usage(
                "--until needs costs that one process measures while it trains; leave it out with --device timed, --profile or ranks"
                    .to_string(),
            ));
        }
        self.take_enough(&mut experiment, matches!(chosen, Chosen::Timed));
        self.thresholds.check_scope(Scope::Runs { trains: !matches!(chosen, Chosen::Timed) })?;
        let transports = devices.transports(chosen, ranks, workers, self.delivery)?;
        for transport in &transports {
            experiment.refuse_early(transport.delivery)?;
            remarks.remark(&format!("link: {}", transport.link.name));
        }
        experiment.costs = match chosen {
            Chosen::Timed => self.costs.costs()?,
            _ => match self.costs.file()? {
                Some(file) => self.costs.measured(file),
                None => Costs::default(), // measured
            },
        };
        let observer = remarks.observer(true, true);
        let mut measured = self.over(&transports, &experiment, chosen, &observer);
        if let (Err(experiment::Error::Unsupported(why)), 1, true) = (&measured, ranks.size(), devices.may_fall_back())
        {
            // the links may need GPUs
            if let Ok(transports) = devices.transports(Chosen::Cpu, ranks, workers, self.delivery) {
                remarks.remark(&format!("device: cpu, one thread per device (cuda: {why})"));
                chosen = Chosen::Cpu;
                measured = self.over(&transports, &experiment, chosen, &observer);
            }
        }
        let (of_links, failure) = measured?;
        let mut results = Results::merged(of_links);
        let failure = results.failure.take().or(failure);
        write.look.apply(&mut results.report).iter().for_each(|why| remarks.remark(why));
        results.report.provenance.extend(origin());
        results.report.title.extend(failure.as_ref().map(|failure| as_flags(format!(" ({failure})"))));
        let printed = || self.show(&results, chosen, failure.as_ref());
        let speaks = ranks.speaks();
        if speaks && ranks.rank() > 0 {
            eprint(&format!("rank {} writes the results so far", ranks.rank()));
        }
        let written = if speaks { write.write(&results.report, &[], printed(), remarks) } else { Ok(()) };
        if let Some(failure) = failure {
            if let Err(unwritten) = written {
                eprint(&format!("error: {unwritten}"));
            }
            if !matches!(failure, experiment::Error::Diverged { .. }) {
                remarks.remark("ended early; the results so far are shown and written");
            }
            return Err(Failure::ended(failure));
        }
        written?;
        if let Some(signal) = ranks.stop().asked() {
            let name = signal_name(i32::from(signal));
            return Err(Failure::Stopped(
                format!("stopped by {name} after the last step; everything is written"),
                128 + signal,
            ));
        }
        self.thresholds.judge(&figures(&results))?.result()
    }

    fn over(&self, transports: &[Transport], experiment: &Experiment, chosen: Chosen, observer: Observer<'_>) -> Found {
        let mut of_links: Vec<Results> = Vec::new();
        for &transport in transports {
            match self.measure(experiment, chosen, transport, observer) {
                // Keep the results of the other links.
                Err(error) if !of_links.is_empty() => return Ok((of_links, Some(error))),
                Err(error) => return Err(error),
                Ok(results) => of_links.push(results),
            }
            if of_links.iter().any(|results| results.failure.is_some()) {
                break;
            }
        }
        Ok((of_links, None))
    }

    fn measure(
        &self,
        experiment: &Experiment,
        chosen: Chosen,
        transport: Transport,
        observer: Observer<'_>,
    ) -> Result<Results, experiment::Error> {
        if matches!(chosen, Chosen::Timed) {
            return experiment.timed(self.unit_ms(), transport, observer);
        }
        let (ranks, workers) = (&experiment.ranks, self.training.mesh().world(self.schedules.stages.first()));
        let backend = self.devices.backend(chosen, transport, ranks, workers)?;
        experiment.train(backend, observer)
    }

    /// Returns the milliseconds per unit of the costs, 1 for a cost file.
    fn unit_ms(&self) -> f64 {
        let given = self.costs.costs.as_deref().and_then(GivenCosts::unit).map_or(self.unit_ms, TimeUnit::ms);
        if self.costs.profile.is_some() { 1.0 } else { given }
    }

    /// Returns the experiment without its costs.
    fn experiment(&self, ranks: &Arc<Ranks>) -> Result<Experiment, Failure> {
        Ok(Experiment {
            schedules: self.schedules.names(),
            selection: self.schedules.selection()?,
            leave_out: self.schedules.schedule.is_empty(),
            training_config: TrainingConfig { layers: self.costs.layers.clone(), ..self.training.training_config() },
            costs: Costs::default(),
            calibrate_on: self.calibrate.clone(),
            steps: self.steps.unwrap_or(if self.until.is_some() { 1000 } else { 5 }),
            warmup: self.warmup,
            until: self.until,
            least: 1,
            back_to_back: self.back_to_back,
            baseline: self.baseline,
            ranks: ranks.clone(),
        })
    }

    /// Takes more steps by itself where few are too noisy to judge, unless a number was asked for.
    fn take_enough(&self, experiment: &mut Experiment, is_timed: bool) {
        let is_asked = self.steps.is_some() || self.until.is_some();
        // ranks take equally many steps, and given costs have no steps of their own to follow
        if is_asked || is_timed || self.costs.profile.is_some() || experiment.ranks.size() > 1 {
            return;
        }
        (experiment.steps, experiment.least, experiment.until) = (MOST_STEPS, LEAST_STEPS, Some(MOST_NOISE));
    }

    fn show(&self, results: &Results, chosen: Chosen, ended: Option<&experiment::Error>) -> Result<(), Failure> {
        let Results { report, outcomes: runs, calibration, baseline, verdict, .. } = results;
        let calibrated_on = || match (calibration, &self.costs.profile) {
            (Some(calibration), _) => serde_json::json!(calibration),
            (None, None) if matches!(chosen, Chosen::Timed) => serde_json::json!({"costs": "given"}),
            (None, file) => serde_json::json!({"file": file}),
        };
        let ended_early = ended.map(as_flags);
        let runs = || Runs {
            schema_version: 1,
            calibrated_on: calibrated_on(),
            baseline: *baseline,
            ended_early,
            verdict: verdict.as_ref(),
            products: report.provenance.get(PRODUCTS).map(String::as_str),
            cuda_graphs: report.provenance.get(GRAPHS).map(String::as_str),
            runs,
        };
        if matches!(chosen, Chosen::Timed) {
            self.draw.print.show_assumed(&self.costs)?;
        }
        self.draw.print.show(report, || json(&runs()), || self.draw.terminal(report), || report::figures(report))
    }
}

fn figures(results: &Results) -> Vec<Figures<'_>> {
    let both = results.report.entries.iter().zip(&results.outcomes);
    let one = |(entry, outcome): (_, &Outcome)| {
        let period = outcome.period_ms.map(|period| period.median);
        Figures::of_entry(entry)
            .with_step(Side::Predicted, outcome.predicted.iteration, outcome.predicted.period)
            .with_step(Side::Measured, Some(outcome.iteration_ms.median), period)
            .with(Side::Measured, "tokens_per_second", Some(outcome.tokens_per_second))
    };
    both.map(one).collect()
}
