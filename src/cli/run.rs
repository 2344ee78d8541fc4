//! `pipesim run`: really train, measure, predict from one calibrated schedule, compare.

use super::Failure;
use super::condition::{Judged, Scope, StepTimes};
use super::devices::{Chosen, DeviceOptions};
use super::model::ModelOptions;
use super::numbers::{real, share, whole};
use super::options::{CostOptions, DetailOptions, DrawOptions, JudgeOptions, WriteOptions};
use super::output::{json, tell};
use super::selection::SearchOptions;
use super::signals::{Decides, heed};
use crate::cost::{GivenCosts, TimeUnit};
use crate::delivery::Delivery;
use crate::exec::link::LinkKind;
use crate::experiment::{self, Experiment, Finding, Iteration, Observer, Outcome, Recipe, Verdict};
use crate::ranks::{Misfit, Patience, Ranks, Role, launch, role, signal_name};
use crate::report;
use crate::resolve::Costs;
use clap::Args;
use serde::Serialize;
use std::sync::Arc;

/// Arguments of `run`.
#[derive(Args)]
#[command(after_help = LinkKind::legal_pairs())]
pub struct Run {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    /// Processes that share the devices, started here on this machine; under mpirun leave it out
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<u32>(1..4096))]
    ranks: Option<u32>,
    /// For tests: ranks under mpirun share no memory even on one machine
    #[arg(long, hide = true)]
    apart: bool,
    /// What the link is to promise, emulated: one-sided, buffered(k), channel, channel:per-peer or channel:per-direction, those with ,front-loaded or ,ahead too, batched, megatron, pytorch or pytorch:2.11; a schedule that deadlocks under it is refused
    #[arg(long, value_name = "DELIVERY", default_value = "one-sided")]
    delivery: Delivery,
    /// Training steps of each schedule, at most [default: 5, with --until 1000]
    #[arg(long, value_parser = whole::<u32>(1..1_000_000))]
    steps: Option<u32>,
    /// Stop once half the 95 % interval of every schedule's median step is at most this share of it, as in 1%; otherwise say how many steps it would take
    #[arg(long, value_name = "SHARE", value_parser = share)]
    until: Option<f64>,
    /// Training steps that follow each other at once, without a barrier, whenever a schedule's turn comes, at most 64: measures their period
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=64))]
    in_a_row: u32,
    /// Steps before them that leave no trace
    #[arg(long, default_value_t = 2, value_parser = whole::<u32>(0..1000))]
    warmup: u32,
    /// The schedule whose run calibrates the predictions of all others
    #[arg(long, default_value = "1f1b", value_name = "NAME|FILE")]
    calibrate: String,
    /// Measure one device with the same micro-batches too, interleaved with the others, and give speed-ups over it
    #[arg(long)]
    baseline: bool,
    /// With --device timed: milliseconds that one unit of --costs lasts; what --profile says lasts as long as it says
    #[arg(long, default_value_t = 2.0, value_name = "MS", value_parser = real::<f64>)]
    unit_ms: f64,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    details: DetailOptions,
    #[command(flatten)]
    judge: JudgeOptions,
}

/// What was found over all links, with what ended that early; or why there is nothing.
type Found = Result<(Vec<Finding>, Option<experiment::Error>), experiment::Error>;

/// What `--format json` prints.
#[derive(Serialize)]
struct Runs<'a> {
    schema_version: u32,
    calibrated_on: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Iteration>,
    /// Why fewer steps were measured than were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a Verdict>,
    runs: &'a [Outcome],
}

impl Run {
    /// Trains, prints, writes the report.
    pub fn run(&self) -> Result<(), Failure> {
        let patience = Patience::of(self.model.recipe().timeout);
        let role = match role(self.ranks, self.apart, patience) {
            // The launcher knows who it was, and says so.
            Err(misfit @ Misfit::Lost(_)) if std::env::var_os("PIPESIM_RANK").is_some() => {
                return Err(Failure::Told(Failure::from(misfit).code()));
            }
            role => role?,
        };
        match role {
            Role::Launch(size) => {
                self.enough_devices(size)?;
                let stop = Arc::default();
                heed(&stop, Decides::Launcher, self.details.remarks.quiet);
                let ended = launch(size, patience, &stop)
                    .map_err(|error| Failure::Environment(format!("starting {size} ranks: {error}")))?;
                if let (Some(problem), true) = (&ended.problem, ended.code > 128) {
                    return Err(Failure::Stopped(problem.clone(), ended.code));
                }
                ended.problem.iter().for_each(|problem| tell(&format!("error: {problem}")));
                if ended.code == 0 { Ok(()) } else { Err(Failure::Told(ended.code)) }
            }
            Role::Rank(ranks) => {
                let decides = if ranks.size() == 1 { Decides::Itself } else { Decides::Others };
                heed(ranks.stop(), decides, self.details.remarks.quiet);
                let result = self.enough_devices(ranks.size()).and_then(|()| self.run_rank(&ranks));
                if ranks.size() == 1 {
                    return result;
                }
                let Err(failure) = result else {
                    ranks.leave(None, 0);
                    return Ok(());
                };
                if let Failure::Stopped(text, code) = failure {
                    if ranks.rank() == 0 {
                        tell(&text);
                    }
                    ranks.leave(None, code);
                    return Err(Failure::Told(code));
                }
                if ranks.rank() == 0 {
                    tell(&format!("error: {failure}"));
                }
                ranks.leave(Some(&failure.to_string()), failure.code());
                Err(Failure::Told(failure.code()))
            }
        }
    }

    fn enough_devices(&self, ranks: u32) -> Result<(), Failure> {
        let stages = self.schedules.stages.first();
        if ranks <= stages {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "expected at most as many ranks as devices, --stages {stages}, found {ranks}; start fewer ranks or ask for more --stages"
        )))
    }

    /// This rank's part: all ranks measure, rank 0 speaks.
    fn run_rank(&self, ranks: &Arc<Ranks>) -> Result<(), Failure> {
        let write = self.write.or_latest()?;
        let mut details = self.details;
        details.remarks.quiet |= !ranks.speaks();
        let remarks = details.remarks;
        if ranks.speaks() {
            write.check_writable()?;
        }
        self.schedules.refuse_idle(&self.schedules.names(), remarks)?;
        let mut experiment = self.experiment(ranks);
        let stages = self.schedules.stages.first();
        let mut chosen = self.devices.choose(ranks, stages, details)?;
        if self.until.is_some() && (matches!(chosen, Chosen::Timed) || self.costs.profile.is_some() || ranks.size() > 1)
        {
            return Err(Failure::Usage(
                "--until is about costs that one process measures while it trains: leave it out on timed devices, with --profile and with \
                 ranks"
                    .to_string(),
            ));
        }
        self.judge.refuse(Scope::Runs { trains: !matches!(chosen, Chosen::Timed) })?;
        let links = self.devices.links(chosen, ranks, stages)?;
        for &link in &links {
            experiment.delivery = link.delivery(chosen.is_cuda(), ranks, self.delivery)?;
            experiment.refuse_early()?;
            remarks.remark(&format!("link: {}", link.name));
        }
        experiment.costs = match chosen {
            Chosen::Timed => self.costs.costs()?,
            _ => match self.costs.file()? {
                Some(file) => self.costs.measured(file),
                None => Costs::default(), // they are measured
            },
        };
        let observer = remarks.observer(true, true);
        let mut measured = self.over(&links, &mut experiment, chosen, &observer)?;
        if let (Err(experiment::Error::Unfit(why)), 1, true) = (&measured, ranks.size(), self.devices.may_fall_back()) {
            // the links may be those of GPUs alone
            if let Ok(links) = self.devices.links(Chosen::Cpu, ranks, stages) {
                remarks.remark(&format!("device: cpu, a thread a device (cuda: {why})"));
                chosen = Chosen::Cpu;
                measured = self.over(&links, &mut experiment, chosen, &observer)?;
            }
        }
        let (findings, failure) = measured?;
        let mut finding = Finding::merged(findings);
        let failure = finding.failure.take().or(failure);
        write.look.apply(&mut finding.report).iter().for_each(|why| remarks.remark(why));
        finding.report.provenance.extend(super::output::origin());
        finding.report.title.extend(failure.as_ref().map(|failure| format!(" ({failure})")));
        let printed = || self.show(&finding, chosen, failure.as_ref());
        if ranks.speaks() && ranks.rank() > 0 {
            tell(&format!("rank {} writes what was measured until then", ranks.rank()));
        }
        let written = if ranks.speaks() { write.write(&finding.report, printed(), remarks) } else { Ok(()) };
        if let Some(failure) = failure {
            if let Err(unwritten) = written {
                tell(&format!("error: {unwritten}"));
            }
            if !matches!(failure, experiment::Error::Diverged { .. }) {
                remarks.remark("ended early; what was measured until then is shown and written");
            }
            return Err(Failure::ended(failure));
        }
        written?;
        if let Some(signal) = ranks.stop().asked() {
            let name = signal_name(i32::from(signal));
            return Err(Failure::Stopped(
                format!("stopped by {name} after the last step; all is written"),
                128 + signal,
            ));
        }
        self.judge.held(&judged(&finding))?.judge()
    }

    /// Measures over each link: what was found, and what ended it early.
    fn over(
        &self,
        links: &[&'static LinkKind],
        experiment: &mut Experiment,
        chosen: Chosen,
        observer: Observer<'_>,
    ) -> Result<Found, Failure> {
        let mut findings: Vec<Finding> = Vec::new();
        for &link in links {
            experiment.delivery = link.delivery(chosen.is_cuda(), &experiment.ranks, self.delivery)?;
            match self.measure(experiment, chosen, link, observer) {
                // What other links gave is worth something.
                Err(error) if !findings.is_empty() => return Ok(Ok((findings, Some(error)))),
                Err(error) => return Ok(Err(error)),
                Ok(finding) => findings.push(finding),
            }
            if findings.iter().any(|finding| finding.failure.is_some()) {
                break;
            }
        }
        Ok(Ok((findings, None)))
    }

    /// Measures over one link.
    fn measure(
        &self,
        experiment: &Experiment,
        chosen: Chosen,
        link: &'static LinkKind,
        observer: Observer<'_>,
    ) -> Result<Finding, experiment::Error> {
        if matches!(chosen, Chosen::Timed) {
            return experiment.timed(self.unit_ms(), link.name, observer);
        }
        let (ranks, stages) = (&experiment.ranks, self.schedules.stages.first());
        let backend = self.devices.backend(chosen, (link, experiment.delivery), ranks, stages)?;
        experiment.train(backend, link.name, observer)
    }

    /// Milliseconds of a unit of the costs; a cost file's unit is one.
    fn unit_ms(&self) -> f64 {
        let given = self.costs.costs.as_ref().and_then(GivenCosts::unit).map_or(self.unit_ms, TimeUnit::ms);
        if self.costs.profile.is_some() { 1.0 } else { given }
    }

    /// What is asked for, but for the costs and for what each link delivers.
    fn experiment(&self, ranks: &Arc<Ranks>) -> Experiment {
        Experiment {
            schedules: self.schedules.names(),
            selection: self.schedules.selection(),
            leave_out: self.schedules.schedule.is_empty(),
            recipe: Recipe { layers: self.costs.layers.clone(), ..self.model.recipe() },
            costs: Costs::default(),
            calibrate_on: self.calibrate.clone(),
            steps: self.steps.unwrap_or(if self.until.is_some() { 1000 } else { 5 }),
            warmup: self.warmup,
            until: self.until,
            in_a_row: self.in_a_row,
            baseline: self.baseline,
            delivery: self.delivery,
            ranks: ranks.clone(),
        }
    }

    fn show(&self, finding: &Finding, chosen: Chosen, ended: Option<&experiment::Error>) -> Result<(), Failure> {
        let Finding { report, outcomes: runs, calibration, baseline, verdict, .. } = finding;
        let calibrated_on = || match (calibration, &self.costs.profile) {
            (Some(calibration), _) => serde_json::json!(calibration),
            (None, None) if matches!(chosen, Chosen::Timed) => serde_json::json!({"costs": "given"}),
            (None, file) => serde_json::json!({"file": file}),
        };
        let ended_early = ended.map(ToString::to_string);
        let runs = || Runs {
            schema_version: 1,
            calibrated_on: calibrated_on(),
            baseline: *baseline,
            ended_early,
            verdict: verdict.as_ref(),
            runs,
        };
        if matches!(chosen, Chosen::Timed) {
            self.draw.print.tell_assumed(&self.costs)?;
        }
        self.draw.print.show(report, || json(&runs()), || self.draw.terminal(report), || report::figures(report))
    }
}

/// What thresholds are held against.
fn judged(finding: &Finding) -> Vec<Judged<'_>> {
    let both = finding.report.entries.iter().zip(&finding.outcomes);
    let one = |(entry, outcome): (_, &Outcome)| Judged {
        predicted_step: StepTimes { iteration: outcome.predicted.iteration, period: outcome.predicted.period },
        measured_step: StepTimes {
            iteration: Some(outcome.iteration_ms.median),
            period: outcome.period_ms.map(|period| period.median),
        },
        tokens_per_second: Some(outcome.tokens_per_second),
        ..Judged::entry(entry)
    };
    both.map(one).collect()
}
