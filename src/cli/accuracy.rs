//! `pipesim report accuracy`: calibrate on one schedule and one m, predict all others for several m, measure them all.

use super::Failure;
use super::devices::DeviceOptions;
use super::guard::Guarded;
use super::model::ModelOptions;
use super::numbers::{Numbers, numbers, share, whole};
use super::options::{DetailOptions, WriteOptions};
use super::output::{OneFile, json, print};
use super::selection::{Names, names};
use super::signals::{Decides, heed};
use crate::experiment::{self, Extent, Finding, Recipe, Training, Transfer};
use crate::ranks::{Ranks, refuse_ranks};
use crate::report::{self, Report};
use crate::resolve::Selection;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of `report accuracy`.
#[derive(Args)]
pub struct Accuracy {
    /// Number of devices, p
    #[arg(long, short = 'p', default_value_t = 2, visible_alias = "pp", value_parser = whole::<u32>(1..=1024))]
    stages: u32,
    /// Numbers of micro-batches to measure at, of constant size
    #[arg(long, short = 'm', default_value = "4,8,16", value_parser = numbers(1..=4096))]
    micro: Numbers,
    /// Schedules to predict
    #[arg(long, short = 's', default_value = "naive,gpipe,1f1b,interleaved-1f1b,zb-h1,zb-h2,zb-v", value_parser = names)]
    schedule: Vec<Names>,
    /// The schedule that calibrates
    #[arg(long, default_value = "1f1b")]
    calibrate: String,
    /// Its number of micro-batches
    #[arg(long, default_value_t = 8, value_parser = whole::<u32>(1..=4096))]
    calibrate_micro: u32,
    /// Sizes of micro-batches to calibrate, in sequences, 1 among them: costs of those between are interpolated, for --transfer-to batch=2
    #[arg(long, value_name = "N,N,..", value_parser = numbers(1..=1024))]
    calibrate_batch: Option<Numbers>,
    /// Measured steps of each, at most [default: 20, with --until 1000]
    #[arg(long, value_parser = whole::<u32>(1..100_000))]
    steps: Option<u32>,
    /// Steps before them
    #[arg(long, default_value_t = 2, value_parser = whole::<u32>(0..1000))]
    warmup: u32,
    /// Stop once half the 95 % interval of every schedule's median step is at most this share of it, as in 1%; otherwise say how many steps it would take
    #[arg(long, value_name = "SHARE", value_parser = share)]
    until: Option<f64>,
    /// Training steps that follow each other at once, without a barrier, whenever a schedule's turn comes, at most 64: measures their period
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=64))]
    in_a_row: u32,
    /// Predict another training from the same costs, too, repeatable: batch=4 (sequences a micro-batch), seq=256, blocks=12, layers=5,3, stages=2; at --calibrate-micro
    #[arg(long, value_name = "WHAT=NUMBER", value_parser = change)]
    transfer_to: Vec<Change>,
    /// Write every measured step down, for --again
    #[arg(long, value_name = "FILE.json.gz", value_parser = packed)]
    record: Option<PathBuf>,
    /// Judge steps that --record wrote, instead of measuring: with the options that they were measured with, but --steps, --warmup, --until, --in-a-row and --device
    #[arg(long, value_name = "FILE.json.gz", value_parser = packed, conflicts_with_all = ["record", "steps", "warmup", "until", "in_a_row", "device"])]
    again: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    devices: DeviceOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    details: DetailOptions,
}

/// A file's name.
fn packed(text: &str) -> Result<PathBuf, String> {
    let is_named = text.len() > ".json.gz".len() && text.ends_with(".json.gz");
    is_named
        .then(|| text.into())
        .ok_or_else(|| format!("expected the name of a file that ends in .json.gz, found '{text}'"))
}

/// How another training differs.
#[derive(Clone, Debug)]
struct Change {
    name: String,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Batch(u32),
    Tokens(usize),
    Blocks(usize),
    Layers(Vec<usize>),
    Stages(u32),
}

fn change(text: &str) -> Result<Change, String> {
    let expected = || format!("expected batch=N, seq=N, blocks=N, layers=N,N,.. or stages=N, found '{text}'");
    let (what, value) = text.split_once('=').ok_or_else(expected)?;
    let values: Vec<u32> =
        value.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>().map_err(|_| expected())?;
    let what = match (what.trim(), &values[..]) {
        (_, values) if values.contains(&0) => return Err(expected()),
        ("batch", &[n]) => What::Batch(n),
        ("seq", &[n]) => What::Tokens(n as usize),
        ("blocks", &[n]) => What::Blocks(n as usize),
        ("layers", values) => What::Layers(values.iter().map(|&n| n as usize).collect()),
        ("stages", &[n @ 1..=1024]) => What::Stages(n),
        _ => return Err(expected()),
    };
    Ok(Change { name: text.to_string(), what })
}

/// The whole of a file.
fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    std::fs::read(path)
        .map_err(|error| Failure::Usage(format!("expected recorded steps at {name}, found none to read ({error})")))
}

impl Accuracy {
    /// The other trainings.
    fn transfers(&self, ranks: &Arc<Ranks>) -> Result<Vec<Transfer>, Failure> {
        let transfer = |Change { name, what }: &Change| {
            let (mut recipe, mut devices) = (self.model.recipe(), self.stages);
            match what {
                What::Batch(sequences) => recipe.batch = Some(*sequences),
                What::Tokens(tokens) => recipe.sequence_tokens = Some(*tokens),
                What::Blocks(blocks) => recipe.blocks = Some(*blocks),
                What::Layers(layers) => recipe.layers = Some(layers.clone()),
                What::Stages(stages) => devices = *stages,
            }
            let mut training = recipe.training(1, ranks)?;
            training.backend = self.devices.sole_backend(ranks, devices, self.details)?.0;
            let selection = Selection { host: &Guarded, ..Selection::new(devices, self.calibrate_micro) };
            Ok(Transfer { name: name.clone(), training, selection })
        };
        self.transfer_to.iter().map(transfer).collect()
    }

    /// The training with micro-batches of the other sizes that are calibrated.
    fn sizes(&self, ranks: &Arc<Ranks>) -> Result<Vec<Training>, Failure> {
        let asked = self.calibrate_batch.as_ref().map(Numbers::all).unwrap_or(&[1]);
        if !asked.contains(&1) {
            let found = asked.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            return Err(Failure::Usage(format!(
                "expected 1 among --calibrate-batch, the size of what is judged, found {found}; try 1,{found}"
            )));
        }
        let sized = |&sequences: &u32| {
            let recipe = Recipe { batch: Some(sequences), ..self.model.recipe() };
            let mut training = recipe.training(1, ranks)?;
            training.backend = self.devices.sole_backend(ranks, self.stages, self.details)?.0;
            Ok(training)
        };
        asked.iter().filter(|&&sequences| sequences > 1).map(sized).collect()
    }

    /// Measures, predicts, writes the report.
    pub fn run(&self) -> Result<(), Failure> {
        let DetailOptions { remarks, verbose } = self.details;
        let ranks = Ranks::alone();
        heed(ranks.stop(), Decides::Itself, remarks.quiet);
        let write = self.write.or_latest()?;
        write.check_writable()?;
        refuse_ranks("pipesim report accuracy")?;
        if self.model.batch.is_some() {
            return Err(Failure::Usage("micro-batches keep their size here: leave --batch out".to_string()));
        }
        let record = self.record.as_deref().map(|path| OneFile::at(Some(path), &[".json.gz"])).transpose()?;
        let mut training = self.model.recipe().training(1, &ranks)?;
        let (backend, link) = self.devices.sole_backend(&ranks, self.stages, self.details)?;
        training.backend = backend;
        let accuracy = experiment::Accuracy {
            schedules: self.schedule.iter().flat_map(Names::all).cloned().collect(),
            microbatches: self.micro.all().to_vec(),
            calibrate_on: self.calibrate.clone(),
            selection: Selection { host: &Guarded, ..Selection::new(self.stages, self.calibrate_micro) },
            transfers: self.transfers(&ranks)?,
            sizes: self.sizes(&ranks)?,
            extent: Extent {
                warmup: self.warmup,
                steps: self.steps.unwrap_or(if self.until.is_some() { 1000 } else { 20 }),
                until: self.until,
                in_a_row: self.in_a_row,
            },
        };
        let (runs, failure) = match &self.again {
            Some(path) => (accuracy.recorded(&training, &read_bytes(path)?)?, None),
            None => accuracy.measure(&training, &remarks.observer(true, verbose > 0))?,
        };
        if let Some(file) = record {
            file.write_bytes(&experiment::Accuracy::record(&training, &runs)?, remarks, |_| String::new())?;
        }
        let Finding { mut report, outcomes, .. } = accuracy.judge(&training, link.name, &runs)?;
        write.look.apply(&mut report).iter().for_each(|why| remarks.remark(why));
        report.provenance.extend(super::output::origin());
        let figures = serde_json::json!({"schema_version": 1, "provenance": report.provenance, "runs": outcomes});
        let only_tables =
            Report { entries: Vec::new(), extra_tables: report.extra_tables.clone(), ..Report::default() };
        let markdown = report::markdown(&only_tables);
        let more = [("accuracy.json", json(&figures)?), ("accuracy.md", markdown.clone())];
        let more = more.map(|(name, text)| (name.to_string(), text.into_bytes()));
        write.write_with(&report, &more, print(&markdown), remarks)?;
        failure.map_or(Ok(()), |failure| Err(Failure::ended(failure)))
    }
}
