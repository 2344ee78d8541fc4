//! `pipesim export`: a schedule for other programs.

use super::Failure;
use super::options::{CostOptions, RemarkOptions, one_of};
use super::output::OneFile;
use super::selection::SearchOptions;
use crate::csv;
use crate::export;
use crate::graph::TaskGraph;
use clap::Args;
use std::path::PathBuf;

/// Writes a graph in the language of another program, into files with these endings.
type To = (fn(&TaskGraph) -> Result<String, csv::Error>, &'static [&'static str]);

const LANGUAGES: [(&str, &str, To); 4] = [
    (
        "pytorch-csv",
        "PyTorch's schedule file, ops only",
        (|g| csv::write(g.schedule(), csv::Format::ComputeOnly), &[".csv"]),
    ),
    (
        "pytorch-csv-comms",
        "PyTorch's schedule file with sends and receives, each receive just before its use",
        (|g| csv::write(g.schedule(), csv::Format::ComputeComms), &[".csv"]),
    ),
    ("json", "Placement and programs", (|g| Ok(export::json(g.schedule())), &[".json"])),
    ("dot", "The task graph for Graphviz", (|g| Ok(export::dot(g)), &[".dot", ".gv"])),
];

/// Arguments of `export`.
#[derive(Args)]
#[command(mut_arg("schedule", |one| one.help("The schedule to write: a name (see `pipesim schedules`), a .star file or a PyTorch .csv file; `auto` is the best under --memory-cap")))]
pub struct Export {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    /// What to write
    #[arg(long, value_parser = one_of(LANGUAGES))]
    to: To,
    /// Where to write it, a file with the ending of its language; - is stdout [default: -]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Export {
    /// Writes the one schedule that is asked for.
    pub fn run(&self) -> Result<(), Failure> {
        if self.schedules.schedule.len() != 1 {
            return Err(Failure::Usage(format!(
                "export writes one schedule: name it with --schedule, found {}",
                self.schedules.schedule.len()
            )));
        }
        let (written, endings) = self.to;
        let file = OneFile::at(self.output.as_deref(), endings)?;
        let graphs = self.schedules.graphs(&self.costs, self.remarks)?;
        let text = graphs.iter().map(written).collect::<Result<String, _>>();
        file.write(&text.map_err(|e| Failure::Schedule(e.to_string()))?, self.remarks, |_| String::new())
    }
}
