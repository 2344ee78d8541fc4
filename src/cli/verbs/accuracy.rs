//! `pipesim report accuracy`: calibrate on one schedule and one m, predict others for several m, measure all.

use crate::cli::Failure;
use crate::cli::options::devices::DeviceOptions;
use crate::cli::options::output::{OneFile, WriteOptions, json, origin};
use crate::cli::options::schedules::{Names, names};
use crate::cli::options::training::TrainingOptions;
use crate::cli::options::values::{Numbers, numbers, share, whole};
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::print;
use crate::cli::terminal::progress::DetailOptions;
use crate::cli::terminal::stopping::{Decides, install_signal_handler};
use clap::Args;
use pipesim_answer::resolve::Selection;
use pipesim_exec::ranks::{Ranks, refuse_ranks};
use pipesim_measure::experiment::{self, Extent, Results, Training, TrainingConfig, Transfer};
use pipesim_report::Report;
use pipesim_schedule::mesh::Mesh;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
pub struct Accuracy {
    /// Number of devices, p
    #[arg(long, short = 'p', default_value_t = 2, visible_alias = "pp", value_parser = whole::<u32>(1..=1024))]
    stages: u32,
    /// Numbers of micro-batches per step to measure; their size stays the same
    #[arg(long, short = 'm', default_value = "4,8,16", value_parser = numbers(1..=4096))]
    micro: Numbers,
    /// Schedules to predict
    #[arg(long, short = 's', default_value = "naive,gpipe,1f1b,interleaved-1f1b,zb-h1,zb-h2,zb-v", value_parser = names)]
    schedule: Vec<Names>,
    /// Schedule that calibrates the costs
    #[arg(long, default_value = "1f1b")]
    calibrate: String,
    /// Number of micro-batches per step of the calibrating schedule
    #[arg(long, default_value_t = 8, value_parser = whole::<u32>(1..=4096))]
    calibrate_micro: u32,
    /// Micro-batch sizes to calibrate, in sequences, including 1; costs in between are interpolated, for --transfer-to batch=2 [default: 1]
    #[arg(long, value_name = "N,N,..", value_parser = numbers(1..=1024))]
    calibrate_batch: Option<Numbers>,
    /// Measured steps per schedule and m, at most [default: 20, with --until 1000]
    #[arg(long, value_parser = whole::<u32>(1..100_000))]
    steps: Option<u32>,
    /// Unmeasured steps before the measured ones
    #[arg(long, default_value_t = 2, value_parser = whole::<u32>(0..1000))]
    warmup: u32,
    /// Stop once every schedule's median step is known to within this share (half-width of its 95 % confidence interval), as in 1%; otherwise report how many steps that needs
    #[arg(long, value_name = "SHARE", value_parser = share)]
    until: Option<f64>,
    /// Training steps that run back to back, without a barrier, in each turn of a schedule, at most 64; measures their period
    #[arg(long = "back-to-back", alias = "in-a-row", value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=64))]
    back_to_back: u32,
    /// Also predict a different training configuration from the same costs, at --calibrate-micro: batch=4 (sequences per micro-batch), seq=256, blocks=12, layers=5,3 or stages=2; repeatable
    #[arg(long, value_name = "WHAT=NUMBER", value_parser = change)]
    transfer_to: Vec<TrainingChange>,
    /// Record every measured step in a file for --again
    #[arg(long, value_name = "FILE.json.gz", value_parser = packed)]
    record: Option<PathBuf>,
    /// Evaluate steps saved with --record instead of measuring; pass the same options as in that run, except --steps, --warmup, --until, --back-to-back, --device, --products, --cuda-graphs and --attention
    #[arg(long, value_name = "FILE.json.gz", value_parser = packed, conflicts_with_all = ["record", "steps", "warmup", "until", "back_to_back", "device", "products", "cuda_graphs", "cudnn"])]
    again: Option<PathBuf>,
    #[command(flatten)]
    training: TrainingOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    details: DetailOptions,
}

fn packed(text: &str) -> Result<PathBuf, String> {
    let is_named = text.len() > ".json.gz".len() && text.ends_with(".json.gz");
    is_named.then(|| text.into()).ok_or_else(|| format!("expected a file name that ends in .json.gz, found '{text}'"))
}

/// A difference to the calibrated training: its text, what differs, the numbers.
#[derive(Clone, Debug)]
struct TrainingChange {
    text: String,
    what: String,
    numbers: Vec<u32>,
}

fn change(text: &str) -> Result<TrainingChange, String> {
    let expected = || format!("expected batch=N, seq=N, blocks=N, layers=N,N,.. or stages=N, found '{text}'");
    let (what, value) = text.split_once('=').ok_or_else(expected)?;
    let numbers =
        value.split(',').map(|n| n.trim().parse()).collect::<Result<Vec<u32>, _>>().map_err(|_| expected())?;
    let is_known = match (what.trim(), &numbers[..]) {
        (_, numbers) if numbers.contains(&0) => false,
        ("batch" | "seq" | "blocks", [_]) | ("layers", _) => true,
        ("stages", [n]) => *n <= 1024,
        _ => false,
    };
    let change = || TrainingChange { text: text.to_string(), what: what.trim().to_string(), numbers };
    is_known.then(change).ok_or_else(expected)
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    std::fs::read(path)
        .map_err(|error| Failure::Usage(format!("expected recorded steps at {name}, found none to read ({error})")))
}

impl Accuracy {
    /// Returns the trainings of --transfer-to.
    fn transfers(&self, ranks: &Arc<Ranks>) -> Result<Vec<Transfer>, Failure> {
        let mesh = self.training.mesh();
        let transfer = |TrainingChange { text, what, numbers }: &TrainingChange| {
            let (mut training_config, mut devices) = (self.training.training_config(), self.stages);
            match what.as_str() {
                "batch" => training_config.batch = Some(numbers[0].saturating_mul(mesh.data)),
                "seq" => training_config.sequence_tokens = Some(numbers[0] as usize),
                "blocks" => training_config.blocks = Some(numbers[0] as usize),
                "layers" => training_config.layers = Some(numbers.iter().map(|&n| n as usize).collect()),
                _ => devices = numbers[0],
            }
            let mut training = training_config.training(1, ranks)?;
            training.backend = self.devices.for_mesh(mesh)?.sole_backend(ranks, mesh.world(devices), self.details)?;
            let selection = Selection { host: &Sandbox, ..Selection::new(devices, self.calibrate_micro) };
            Ok(Transfer { name: text.clone(), training, selection })
        };
        self.transfer_to.iter().map(transfer).collect()
    }

    /// Returns the training with each micro-batch size of --calibrate-batch but 1.
    fn sizes(&self, ranks: &Arc<Ranks>) -> Result<Vec<Training>, Failure> {
        let mesh = self.training.mesh();
        let asked = self.calibrate_batch.as_ref().map(Numbers::all).unwrap_or(&[1]);
        if !asked.contains(&1) {
            let found = asked.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            return Err(Failure::Usage(format!(
                "expected 1 among --calibrate-batch, the size that is judged, found {found}; try 1,{found}"
            )));
        }
        let sized = |&sequences: &u32| {
            let batch = Some(sequences.saturating_mul(mesh.data));
            let training_config = TrainingConfig { batch, ..self.training.training_config() };
            let mut training = training_config.training(1, ranks)?;
            training.backend =
                self.devices.for_mesh(mesh)?.sole_backend(ranks, mesh.world(self.stages), self.details)?;
            Ok(training)
        };
        asked.iter().filter(|&&sequences| sequences > 1).map(sized).collect()
    }

    pub fn run(&self) -> Result<(), Failure> {
        let DetailOptions { remarks, verbose } = self.details;
        let ranks = Ranks::alone();
        install_signal_handler(ranks.stop(), Decides::Itself, remarks.quiet);
        let write = self.write.or_latest()?;
        write.check_writable()?;
        refuse_ranks("pipesim report accuracy")?;
        if self.training.batch.is_some() {
            return Err(Failure::Usage("the size of micro-batches is fixed here; leave --batch out".to_string()));
        }
        let record = self.record.as_deref().map(|path| OneFile::at(Some(path), &[".json.gz"])).transpose()?;
        self.training.training_config().chosen_heads().iter().for_each(|note| remarks.remark(&format!("note: {note}")));
        let mut training = self.training.training_config().training(1, &ranks)?;
        let mesh = self.training.mesh();
        let devices = self.devices.for_mesh(mesh)?;
        let backend = devices.sole_backend(&ranks, mesh.world(self.stages), self.details)?;
        if mesh != Mesh::default() {
            remarks.remark(&mesh.in_words(self.stages));
        }
        training.backend = backend;
        let accuracy = experiment::Accuracy {
            schedules: self.schedule.iter().flat_map(Names::all).cloned().collect(),
            microbatches: self.micro.all().to_vec(),
            calibrate_on: self.calibrate.clone(),
            selection: Selection { host: &Sandbox, ..Selection::new(self.stages, self.calibrate_micro) },
            transfers: self.transfers(&ranks)?,
            sizes: self.sizes(&ranks)?,
            extent: Extent {
                warmup: self.warmup,
                steps: self.steps.unwrap_or(if self.until.is_some() { 1000 } else { 20 }),
                until: self.until,
                least: 1,
                back_to_back: self.back_to_back,
            },
        };
        let (runs, failure) = match &self.again {
            Some(path) => (accuracy.recorded(&training, &read_bytes(path)?)?, None),
            None => accuracy.measure(&training, &remarks.observer(true, verbose > 0))?,
        };
        if let Some(file) = record {
            file.write(experiment::Accuracy::record(&training, &runs)?, remarks, |_| String::new())?;
        }
        let Results { mut report, outcomes, .. } = accuracy.judge(&training, &runs)?;
        write.look.apply(&mut report).iter().for_each(|why| remarks.remark(why));
        report.provenance.extend(origin());
        let figures = serde_json::json!({"schema_version": 1, "provenance": report.provenance, "runs": outcomes});
        let only_tables =
            Report { entries: Vec::new(), extra_tables: report.extra_tables.clone(), ..Report::default() };
        let markdown = only_tables.markdown();
        let more = [("accuracy.json", json(&figures)?), ("accuracy.md", markdown.clone())];
        let more = more.map(|(name, text)| (name.to_string(), text.into_bytes()));
        write.write(&report, &more, print(&markdown), remarks)?;
        failure.map_or(Ok(()), |failure| Err(Failure::ended(failure)))
    }
}
