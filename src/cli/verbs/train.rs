//! `pipesim train`: train a model until it is done, with checkpoints.

use crate::cli::Failure;
use crate::cli::flags::{as_flags, in_report};
use crate::cli::options::costs::read_costs;
use crate::cli::options::devices::{DeviceKind, DeviceOptions};
use crate::cli::options::output::origin;
use crate::cli::options::ranks::{RankOptions, check_ranks};
use crate::cli::options::schedules::{ScheduleOptions, names};
use crate::cli::options::training::TrainingOptions;
use crate::cli::options::training_loop::{LoopOptions, epoch_steps};
use crate::cli::options::values::{Numbers, whole};
use crate::cli::terminal::progress::DetailOptions;
use crate::cli::terminal::signals::remove_unfinished_on_signals;
use crate::cli::terminal::{eprint, print};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Command, ValueEnum};
use pipesim_answer::resolve::OrderedGraph;
use pipesim_exec::ranks::{Ranks, signal_name};
use pipesim_measure::experiment::{Training, TrainingConfig, fixed_graph, graph_of};
use pipesim_measure::training_loop::{
    DataSource, Ended, LoopConfig, LoopEvent, LossPage, Pipeline, SavedRun, TrainingLoop, loss_curve,
};
use pipesim_report::{ClaimedFolder, Output, OutputKind, Report, number, percent};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_train::checkpoint::{self, Checkpoint, NotFound, STATE};
use pipesim_train::model::Tokens;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
pub struct Train {
    #[command(flatten)]
    schedules: ScheduleOptions,
    #[command(flatten)]
    training: TrainingOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    #[command(flatten)]
    ranks: RankOptions,
    /// Measured costs that decide the order of the schedule: a cost file written by `pipesim profile` [default: measured in a few steps]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Blocks of each stage in model order: 7,5 [default: an even split]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<usize>(..))]
    layers: Option<Vec<usize>>,
    #[command(flatten)]
    training_loop: LoopOptions,
    /// Folder of the run: log, checkpoints and report [default: that of --resume]
    #[arg(long, short, value_name = "DIR", required_unless_present = "resume")]
    output: Option<PathBuf>,
    /// Go on from the newest checkpoint of this run, or from this checkpoint
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    details: DetailOptions,
    /// Whether --stages, --micro, --tp, --dp and --zero were given.
    #[arg(skip)]
    pub given: [bool; 5],
}

/// How it is called, since an option that is not required with another is not in clap's line.
const USAGE: &str = "pipesim train --stages <P> --micro <M> --schedule <NAME|FILE> --output <DIR> [OPTIONS]
       pipesim train --resume <DIR> [OPTIONS]";

/// Describes options that other verbs have, too, as this verb takes them.
pub fn described(train: Command) -> Command {
    let devices = DeviceKind::value_variants().iter().filter(|kind| **kind != DeviceKind::Timed);
    let devices = PossibleValuesParser::new(devices.filter_map(ValueEnum::to_possible_value));
    let schedule = "Schedule: a name (see `pipesim schedules`) with or without options (interleaved-1f1b:v=4), a .star file or a PyTorch \
                    .csv file [default: that of --resume]";
    train
        .override_usage(USAGE)
        .mut_arg("schedule", |arg| arg.help(schedule).required_unless_present("resume"))
        .mut_arg("set", |arg| arg.help("Set an option of the schedule, for example group=4; repeatable"))
        .mut_arg("link", |arg| arg.help("Link that moves messages between devices"))
        .mut_arg("data", |arg| arg.help("llm.c token file, or any text file; with --resume, the same tokens at another place [default: a built-in text]"))
        .mut_arg("device", |arg| arg.value_parser(devices.try_map(|name| DeviceKind::from_str(&name, false))))
}

/// Where a run begins.
struct Start {
    config: LoopConfig,
    pipeline: Pipeline,
    training: Training,
    graph: TaskGraph,
    resumed: Option<(Checkpoint, u32)>,
}

/// Name of the picture of the losses in the report.
const LOSSES: &str = "loss.svg";

/// Writes the report of the last steps to the folder of the run, with the losses of all.
fn save_report(mut report: Report, folder: &Path) -> Result<(), Failure> {
    in_report(&mut report);
    report.provenance.extend(origin());
    in_report(&mut report);
    let curve = loss_curve(folder)?.map(|plots| plots.svg()).transpose()?;
    let curve = curve.map(|svg| (LOSSES.to_string(), svg.into_bytes()));
    let place = Output::named(folder.join("report").join(""))?;
    Ok(place.write(&report, &Vec::from_iter(curve)).map(drop)?)
}

/// Says what a run reads and trains.
fn summary(config: &LoopConfig, training: &Training) -> String {
    let all = training.tokens.len();
    let data = match &config.data.path {
        Some(path) => path.display().to_string(),
        None => "the built-in text".to_string(),
    };
    let epoch = epoch_steps(all, config.validation, config.batch, config.sequence_tokens);
    let passes = f64::from(config.steps) / epoch;
    let passes = match config.repeat_batch {
        true => "all on the same batch".to_string(),
        false if passes < 1.0 => format!("{} of an epoch", percent(passes)),
        false => format!("{} epochs", number(passes)),
    };
    format!(
        "{} tokens of {} ids in {data}; a model of {} parameters; {} tokens per step, {} steps, {passes}",
        all,
        training.config().vocabulary,
        number(training.config().parameter_count() as f64),
        config.batch as usize * config.sequence_tokens,
        config.steps,
    )
}

impl Train {
    pub fn run(&self) -> Result<(), Failure> {
        // A checkpoint says how many devices there are unless it is asked for others.
        let stages = (self.resume.is_none() || self.given[0]).then(|| self.schedules.stages.first());
        let check = |ranks| stages.map_or(Ok(()), |stages| check_ranks(ranks, self.mesh(None), stages));
        let timeout = self.training.training_config().timeout;
        self.ranks.run(timeout, self.details.remarks.quiet, check, |ranks| self.run_rank(ranks))
    }

    /// Runs this rank's part: all ranks train, rank 0 prints and writes.
    fn run_rank(&self, ranks: &Arc<Ranks>) -> Result<(), Failure> {
        remove_unfinished_on_signals();
        let mut details = self.details;
        details.remarks.quiet |= ranks.rank() > 0;
        let remarks = details.remarks;
        let checkpoint = self.resume.as_deref().map(find).transpose()?;
        let folder = self.folder(checkpoint.as_ref())?;
        // No other training can write to it. Rank 0 writes.
        let claimed = (ranks.rank() == 0).then(|| ClaimedFolder::new(&folder)).transpose()?;
        let start = match checkpoint {
            Some(checkpoint) => self.resumed(checkpoint, ranks, details)?,
            None => self.begun(ranks, details)?,
        };
        let Pipeline { mesh, stages, .. } = start.pipeline;
        check_ranks(ranks.size(), mesh, stages)?;
        if mesh != Mesh::default() {
            remarks.remark(&ranks.workers_in_words(mesh, stages));
        }
        let typed_zero = self.given[4];
        start
            .training
            .check_sharing([&start.graph].into_iter(), typed_zero)?
            .iter()
            .for_each(|text| remarks.remark(text));
        if claimed.is_some() {
            check_newest(&folder, start.resumed.as_ref())?;
        }
        let Start { config, pipeline, training, graph, resumed } = start;
        let steps = config.steps;
        remarks.remark(&summary(&config, &training));
        match &resumed {
            Some((checkpoint, done)) => {
                remarks.remark(&format!("going on after step {done}, from {}", checkpoint.path.display()));
            }
            None => {
                let all = training.training_config.remarks(training.config())?;
                let all = all.into_iter().chain(training.training_config.chosen_heads());
                all.for_each(|remark| remarks.remark(&format!("note: {remark}")));
            }
        }
        let training_loop = TrainingLoop::new(config, pipeline, training, &folder, resumed)?;
        let rescued = |report| match save_report(report, &folder) {
            Ok(()) => eprint(&format!("rank {} wrote a report of the last steps", ranks.rank())),
            Err(failure) => eprint(&format!("error: {failure}")),
        };
        let (watcher, page) = (remarks.watcher(), LossPage::new(&folder, ranks.rank() == 0));
        remarks.remark(&format!("the losses so far: {}", page.path().display()));
        let not_shown = |error| remarks.remark(&format!("note: the losses are in the log, not on a page: {error:#}"));
        let watched = |event: LoopEvent<'_>| {
            watcher(event);
            page.show(event).unwrap_or_else(not_shown);
        };
        let ended = training_loop.run(graph, &watched, rescued)?;
        self.finish(ended, steps, &folder, ranks)
    }

    /// Writes the report, and says how the run ended.
    fn finish(&self, ended: Ended, steps: u32, folder: &Path, ranks: &Ranks) -> Result<(), Failure> {
        let Ended { step, signal, checkpoint, report, warning } = ended;
        let written = report.map_or(Ok(()), |report| save_report(report, folder));
        let (checkpoint, folder) = (checkpoint.display(), folder.display());
        if let Some(signal) = signal {
            let name = signal_name(i32::from(signal));
            let again = self.ranks.ranks.map_or(String::new(), |ranks| format!(" -n {ranks}"));
            return Err(Failure::Stopped(
                format!(
                    "stopped by {name} after step {step} of {steps}; everything is saved in {checkpoint}; go on with\n    pipesim train --resume {folder}{again}"
                ),
                128 + signal,
            ));
        }
        written?;
        if ranks.rank() > 0 {
            return Ok(());
        }
        let warning = warning.map_or_else(String::new, |warning| as_flags(format!("warning: {warning}\n")));
        print(&format!(
            "{step} steps done; the model is in {checkpoint}, the log and the report in {folder}\n{warning}"
        ))
    }

    /// Returns the folder of the run.
    fn folder(&self, resumed: Option<&Checkpoint>) -> Result<PathBuf, Failure> {
        let run = resumed.map(|checkpoint| checkpoint.run.as_path());
        let folder = self.output.as_deref().or(run).unwrap_or(Path::new("."));
        let is_file = matches!(Output::named(folder), Ok(Output { shape: OutputKind::File(..), .. }));
        if is_file || folder == Path::new("-") {
            return Err(Failure::Usage(format!(
                "expected the name of a folder for log, checkpoints and report, found '{0}'; give another -o, or {0}/ for a folder of this \
                 very name",
                folder.display()
            )));
        }
        Ok(folder.to_path_buf())
    }

    /// Prepares a new run.
    fn begun(&self, ranks: &Arc<Ranks>, details: DetailOptions) -> Result<Start, Failure> {
        let (name, fixed) = self.fixed(&self.schedules, details)?;
        let training_config = TrainingConfig { layers: self.layers.clone(), ..self.training.training_config() };
        let mut pipeline = Pipeline {
            schedule: name,
            stages: self.schedules.stages.first(),
            micro: self.schedules.micro.first(),
            mesh: self.training.mesh(),
            chunks: self.schedules.chunks,
            set: self.schedules.set.iter().cloned().collect(),
            layers: self.layers.clone(),
        };
        let training = self.training(&training_config, &pipeline, ranks, details)?;
        let graph = self.ordered(fixed, &self.schedules, &training, &mut pipeline, details)?;
        let config = self.training_loop.config(&training, pipeline.micro)?;
        Ok(Start { config, pipeline, training, graph, resumed: None })
    }

    /// Prepares a run that goes on from a checkpoint.
    fn resumed(&self, checkpoint: Checkpoint, ranks: &Arc<Ranks>, details: DetailOptions) -> Result<Start, Failure> {
        let mut saved: SavedRun = checkpoint.json(STATE)?;
        saved.check()?;
        saved.config = self.training_loop.resumed(saved.config)?;
        let (done, steps) = (saved.step, saved.config.steps);
        if done >= steps {
            return Err(Failure::Usage(format!(
                "expected a run with steps left: {done} are done in {}; ask for more than {done} --steps, found {steps}",
                checkpoint.path.display()
            )));
        }
        saved.pipeline = self.pipeline(&saved.pipeline)?;
        let mut schedules = self.schedules.clone();
        let of = |number: u32| Numbers::parse(&number.to_string(), &(1..=u32::MAX)).map_err(Failure::Usage);
        (schedules.stages, schedules.micro) = (of(saved.pipeline.stages)?, of(saved.pipeline.micro)?);
        schedules.schedule = vec![names(&saved.pipeline.schedule).map_err(Failure::Usage)?];
        schedules.chunks = saved.pipeline.chunks;
        schedules.set = saved.pipeline.set.clone().into_iter().collect();
        let (_, fixed) = self.fixed(&schedules, details)?;
        let timeout = self.training.training_config().timeout;
        let mut training_config = TrainingConfig { timeout, ..saved.training_config(&checkpoint.path) };
        match &self.training.data {
            None => saved.config.data.check_exists()?,
            Some(data) => {
                training_config.tokenizer = training_config.tokenizer.filter(|_| !Tokens::is_token_file(data));
                training_config.data = Some(data.clone());
            }
        }
        let training = self.training(&training_config, &saved.pipeline, ranks, details)?;
        let graph = self.ordered(fixed, &schedules, &training, &mut saved.pipeline, details)?;
        saved.config.data.check(&training)?;
        saved.config.data = DataSource::of(&training)?;
        let SavedRun { config, pipeline, .. } = saved;
        Ok(Start { config, pipeline, training, graph, resumed: Some((checkpoint, done)) })
    }

    /// Returns the mesh: the degrees given, and otherwise what was saved.
    fn mesh(&self, saved: Option<Mesh>) -> Mesh {
        let ([.., tp, dp, zero], asked) = (self.given, self.training.mesh());
        let Some(saved) = saved else { return asked };
        Mesh {
            tensor: if tp { asked.tensor } else { saved.tensor },
            data: if dp { asked.data } else { saved.data },
            sequence_parallel: asked.sequence_parallel || !tp && saved.sequence_parallel,
            zero: if zero { asked.zero } else { saved.zero },
        }
    }

    /// Returns the pipeline of a run that goes on: the options given, and otherwise what was saved. Options of a schedule and of a split
    /// of layers go with their schedule and their number of stages.
    fn pipeline(&self, saved: &Pipeline) -> Result<Pipeline, Failure> {
        let [stages, micro, ..] = self.given;
        let asked = self.schedules.asked();
        let name = if asked.is_empty() { None } else { Some(one(&asked)?) };
        let is_other = name.is_some() || stages;
        let saved_if_same = (!is_other).then(|| saved.clone());
        let set: std::collections::BTreeMap<_, _> = self.schedules.set.iter().cloned().collect();
        Ok(Pipeline {
            schedule: name.unwrap_or_else(|| saved.schedule.clone()),
            stages: if stages { self.schedules.stages.first() } else { saved.stages },
            micro: if micro { self.schedules.micro.first() } else { saved.micro },
            mesh: self.mesh(Some(saved.mesh)),
            chunks: self.schedules.chunks.or(saved_if_same.as_ref().and_then(|saved| saved.chunks)),
            set: match &saved_if_same {
                Some(saved) if set.is_empty() => saved.set.clone(),
                _ => set,
            },
            layers: self.layers.clone().or(saved_if_same.and_then(|saved| saved.layers)),
        })
    }

    /// Returns the name of the schedule, and its graph if costs do not decide its order.
    fn fixed(
        &self,
        schedules: &ScheduleOptions,
        details: DetailOptions,
    ) -> Result<(String, Option<OrderedGraph>), Failure> {
        let name = one(&schedules.asked())?;
        schedules.reject_unused(std::slice::from_ref(&name), details.remarks)?;
        let fixed = fixed_graph(&schedules.selection()?, &name)?;
        if fixed.is_some() && self.profile.is_some() {
            return Err(Failure::Usage(format!(
                "--profile: the order of {name} does not depend on costs; leave it out"
            )));
        }
        Ok((name, fixed))
    }

    /// Returns the graph to train with. Costs that decide its order come from --profile, or are measured. The name of a schedule that
    /// `auto` chose goes to the pipeline, so that a run that goes on has the same.
    fn ordered(
        &self,
        fixed: Option<OrderedGraph>,
        schedules: &ScheduleOptions,
        training: &Training,
        pipeline: &mut Pipeline,
        details: DetailOptions,
    ) -> Result<TaskGraph, Failure> {
        let costs = self.profile.as_deref().map(read_costs).transpose()?;
        let selection = schedules.selection()?;
        let measured = || {
            let observer = details.remarks.observer(false, false);
            graph_of(training, &selection, &pipeline.schedule, costs.as_ref(), &observer)
        };
        let OrderedGraph { graph, chosen, warnings } = fixed.map_or_else(measured, Ok)?;
        if training.ranks.rank() == 0 {
            warnings.iter().for_each(|warning| details.remarks.warn(warning));
        }
        if let Some(chosen) = chosen {
            details.remarks.remark(&format!("{} chose {chosen}", pipeline.schedule));
            (pipeline.schedule, pipeline.chunks) = (chosen, None);
        }
        Ok(graph)
    }

    /// Returns the training on the devices asked for.
    fn training(
        &self,
        config: &TrainingConfig,
        pipeline: &Pipeline,
        ranks: &Arc<Ranks>,
        details: DetailOptions,
    ) -> Result<Training, Failure> {
        let &Pipeline { mesh, micro, stages, .. } = pipeline;
        let config = TrainingConfig { layers: pipeline.layers.clone(), mesh, ..config.clone() };
        let mut training = config.training(micro, ranks)?;
        training.backend = self.devices.for_mesh(mesh)?.sole_backend(ranks, mesh.world(stages), details)?;
        Ok(training)
    }
}

/// Finds the checkpoint to go on from.
fn find(path: &Path) -> Result<Checkpoint, Failure> {
    Checkpoint::find(path).map_err(|error| match error {
        NotFound::Absent(why) => Failure::Usage(why),
        NotFound::Damaged(why) => why.into(),
    })
}

/// The schedule, if there is one.
fn one(names: &[String]) -> Result<String, Failure> {
    match names {
        [name] => Ok(name.clone()),
        several => Err(Failure::Usage(format!(
            "train runs one schedule: name one with --schedule, as in -s 1f1b, found {}",
            several.len()
        ))),
    }
}

/// Checks that a folder has no checkpoints, except checkpoints of a run that goes on from its newest one.
fn check_newest(folder: &Path, resumed: Option<&(Checkpoint, u32)>) -> Result<(), Failure> {
    let later = checkpoint::all(folder)?.into_iter().next_back();
    let run = resumed.map(|(checkpoint, _)| checkpoint.run.as_path());
    let same_run = run.is_some_and(|run| run.canonicalize().ok() == folder.canonicalize().ok());
    match (later, resumed) {
        (Some((step, _)), Some((_, done))) if same_run && step > *done => Err(Failure::Usage(format!(
            "expected the newest checkpoint of {0}, found that of step {done}, and one of step {step} is there; give another -o \
             folder, or --resume {0}",
            folder.display()
        ))),
        (Some(_), _) if !same_run => Err(Failure::Usage(format!(
            "expected a folder without checkpoints at {0}, found those of another training; go on with it by --resume {0}, or \
             give another -o folder",
            folder.display()
        ))),
        _ => Ok(()),
    }
}
