//! `pipesim profile`: measure costs with one schedule and write a cost file.

use super::import::costs_of_steps;
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::costs::read_text;
use crate::cli::options::devices::DeviceOptions;
use crate::cli::options::output::{OneFile, json};
use crate::cli::options::schedules::ScheduleOptions;
use crate::cli::options::training::TrainingOptions;
use crate::cli::options::values::{Numbers, numbers, whole};
use crate::cli::terminal::progress::DetailOptions;
use crate::cli::terminal::stopping::{Decides, install_signal_handler};
use clap::Args;
use pipesim_answer::resolve::{self, OrderedGraph};
use pipesim_cost::CostFile;
use pipesim_exec::ranks::{Ranks, refuse_ranks};
use pipesim_measure::experiment::{self, TrainingConfig};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::timeline::Timeline;
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(mut_arg("schedule", |one| one.help("The schedule to measure: a name (see `pipesim schedules`), a .star file or a PyTorch .csv file [default: 1f1b]")))]
pub struct Profile {
    #[command(flatten)]
    schedules: ScheduleOptions,
    #[command(flatten)]
    training: TrainingOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    /// Blocks of each stage in model order: 7,5 [default: an even split; with --from, unknown]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<usize>(..))]
    layers: Option<Vec<usize>>,
    /// Micro-batch sizes to measure, in sequences, instead of --batch; predict --profile --micro-batch-size interpolates between them
    #[arg(long, value_name = "N,N,..", value_parser = numbers(1..=1024), conflicts_with = "batch")]
    calibrate_batch: Option<Numbers>,
    /// Measured training steps
    #[arg(long, default_value_t = 10, value_parser = whole::<u32>(1..1_000_000))]
    steps: u32,
    /// Unmeasured steps before the measured ones
    #[arg(long, default_value_t = 2, value_parser = whole::<u32>(0..1000))]
    warmup: u32,
    /// Measure this machine instead, for predict --hardware: matrix products, memory, attention, messages between cores
    #[arg(long = "hardware")]
    machine: bool,
    /// Take the costs from the timelines of a measured run (`pipesim import`, or `run -o FILE.json`) instead: by stage and kind, with host delays and messages
    #[arg(long, value_name = "RUN.json")]
    from: Option<PathBuf>,
    /// Cost file to write (.json), or hardware file (.toml); - is stdout [default: -]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    details: DetailOptions,
}

impl Profile {
    /// Returns the schedule, 1F1B by default, and its graph.
    fn graph(&self) -> Result<(String, TaskGraph), Failure> {
        let name = match self.schedules.asked().as_slice() {
            [] => "1f1b".to_string(),
            [name] => name.clone(),
            more => {
                let found = more.len();
                return Err(Failure::Usage(format!(
                    "profile measures one schedule: name one with --schedule, found {found}"
                )));
            }
        };
        self.schedules.reject_unused(std::slice::from_ref(&name), self.details.remarks)?;
        let OrderedGraph { graph, warnings, .. } =
            self.schedules.selection()?.graph::<resolve::Error>(&name, &resolve::unknown_costs)?;
        warnings.iter().for_each(|warning| self.details.remarks.warn(warning));
        Ok((name, graph))
    }

    /// Returns the costs of the run at `path`.
    fn of_run(&self, path: &Path) -> Result<CostFile, Failure> {
        let named = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
        let timelines =
            Timeline::list_from_json(&read_text(path, 4 << 30)?).map_err(|error| named(error.to_string()))?;
        let costs = costs_of_steps(&timelines.iter().collect::<Vec<_>>(), self.details.remarks).map_err(named)?;
        match &self.layers {
            Some(layers) => costs.with_stage_layers(layers).map_err(Failure::usage),
            None => Ok(costs),
        }
    }

    pub fn run(&self) -> Result<(), Failure> {
        let remarks = self.details.remarks;
        let (ranks, stages) = (Ranks::alone(), self.schedules.stages.first());
        install_signal_handler(ranks.stop(), Decides::Itself, remarks.quiet);
        let file = OneFile::at(self.output.as_deref(), if self.machine { &[".toml"] } else { &[".json"] })?;
        refuse_ranks("pipesim profile")?;
        if self.machine {
            return file.write(as_flags(experiment::measured_hardware()), remarks, |path| {
                format!("; use it with pipesim predict --hardware {path} --precision fp32 --stack pipesim --model gpt2")
            });
        }
        if let Some(path) = &self.from {
            return file.write(&json(&self.of_run(path)?)?, remarks, |path| {
                format!("; use it with pipesim predict --profile {path}")
            });
        }
        let (name, graph) = self.graph()?;
        let mesh = self.training.mesh();
        let devices = self.devices.for_mesh(mesh)?;
        if mesh != Mesh::default() {
            remarks.remark(&mesh.in_words(stages));
        }
        self.training.training_config().chosen_heads().iter().for_each(|note| remarks.remark(&format!("note: {note}")));
        let training_config = TrainingConfig { layers: self.layers.clone(), ..self.training.training_config() };
        let training = |sequences: Option<u32>, micro: u32| {
            let all = micro.saturating_mul(mesh.data);
            let batch = sequences.map_or(self.training.batch, |sequences| Some(sequences.saturating_mul(all)));
            let training_config = TrainingConfig { batch, ..training_config.clone() };
            let mut training = training_config.training(micro, &ranks)?;
            training.backend = devices.sole_backend(&ranks, mesh.world(stages), self.details)?;
            Ok::<_, Failure>(training)
        };
        let asked = self.calibrate_batch.as_ref().map(Numbers::all).unwrap_or_default();
        let first = training(asked.first().copied(), self.schedules.micro.first())?;
        first.stages(&graph)?;
        first.check_sharing([&graph].into_iter(), true)?.iter().for_each(|text| remarks.remark(text));
        let sizes =
            asked.iter().skip(1).map(|&sequences| training(Some(sequences), 1)).collect::<Result<Vec<_>, _>>()?;
        let extent =
            experiment::Extent { warmup: self.warmup, steps: self.steps, until: None, least: 1, back_to_back: 1 };
        let (selection, observer) = (self.schedules.selection()?, remarks.observer(true, true));
        let (costs, ended) = experiment::profile(&first, &sizes, &name, &selection, extent, &observer)?;
        file.write(&json(&costs)?, remarks, |path| format!("; use it with pipesim predict --profile {path}"))?;
        ended.map_or(Ok(()), |ended| Err(Failure::ended(ended)))
    }
}
