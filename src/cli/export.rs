//! `pipesim export`: a schedule for other programs.

use super::Failure;
use super::options::{CostOptions, RemarkOptions, one_of};
use super::output::print;
use super::selection::SearchOptions;
use crate::csv;
use crate::export;
use crate::graph::TaskGraph;
use crate::report::write_atomic;
use clap::Args;
use std::path::PathBuf;

/// Writes a graph in the language of another program.
type To = fn(&TaskGraph) -> Result<String, csv::Error>;

const LANGUAGES: [(&str, &str, To); 4] = [
    ("pytorch-csv", "PyTorch's schedule file, ops only", |g| csv::write(g.schedule(), csv::Format::ComputeOnly)),
    ("pytorch-csv-comms", "PyTorch's schedule file with sends and receives, each receive just before its use", |g| {
        csv::write(g.schedule(), csv::Format::ComputeComms)
    }),
    ("json", "Placement and programs", |g| Ok(export::json(g.schedule()))),
    ("dot", "The task graph for Graphviz", |g| Ok(export::dot(g))),
];

/// Arguments of `export`.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    /// What to write
    #[arg(long, value_parser = one_of(LANGUAGES))]
    to: To,
    /// Where to write it [default: stdout]
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
        let graphs = self.schedules.graphs(&self.costs, self.remarks)?;
        let text =
            graphs.iter().map(self.to).collect::<Result<String, _>>().map_err(|e| Failure::Schedule(e.to_string()))?;
        let Some(path) = &self.output else { return print(&text) };
        write_atomic(path, text.as_bytes())?;
        self.remarks.remark(&format!("wrote {}", path.display()));
        Ok(())
    }
}
