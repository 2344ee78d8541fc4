//! `pipesim report accuracy`: calibrate on one schedule and one m, predict all others for several m, measure them all.

use super::Failure;
use super::devices::DeviceOptions;
use super::guard::Guarded;
use super::model::ModelOptions;
use super::numbers::{Numbers, numbers};
use super::options::{DetailOptions, WriteOptions};
use super::output::{OneFile, json, print};
use super::selection::{Names, names};
use super::signals::{Decides, heed};
use crate::experiment::{self, Finding};
use crate::ranks::{Ranks, refuse_ranks};
use crate::report::{self, Report};
use crate::resolve::Selection;
use clap::Args;
use std::path::{Path, PathBuf};

/// Arguments of `report accuracy`.
#[derive(Args)]
pub struct Accuracy {
    /// Number of devices, p
    #[arg(long, short = 'p', default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
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
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    calibrate_micro: u32,
    /// Measured steps of each
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..100_000))]
    steps: u32,
    /// Steps before them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..1000))]
    warmup: u32,
    /// Write every measured step down, for --again
    #[arg(long, value_name = "FILE.json.gz")]
    record: Option<PathBuf>,
    /// Judge steps that --record wrote, measured with the same options, instead of measuring
    #[arg(long, value_name = "FILE.json.gz", conflicts_with_all = ["record", "steps", "warmup", "device"])]
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

/// The whole of a file.
fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    std::fs::read(path)
        .map_err(|error| Failure::Usage(format!("expected recorded steps at {name}, found none to read ({error})")))
}

impl Accuracy {
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
            steps: self.steps,
            warmup: self.warmup,
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
