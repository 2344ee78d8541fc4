//! `pipesim export`: a schedule for other programs.

use super::Failure;
use super::options::CostOptions;
use super::output::{print, tell};
use super::selection::ScheduleOptions;
use crate::csv;
use crate::export;
use crate::graph::TaskGraph;
use crate::report::write_atomic;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The languages of other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// PyTorch's schedule file, ops only.
    PytorchCsv,
    /// PyTorch's schedule file with sends and receives, each receive just before its use.
    PytorchCsvComms,
    /// Placement and programs.
    Json,
    /// The task graph for Graphviz.
    Dot,
}

/// Arguments of `export`.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    schedules: ScheduleOptions,
    #[command(flatten)]
    costs: CostOptions,
    /// What to write
    #[arg(long, value_enum)]
    to: To,
    /// Where to write it [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print nothing to stderr but errors
    #[arg(long, short)]
    quiet: bool,
}

impl Export {
    /// Writes the one schedule that is asked for.
    pub fn run(&self) -> Result<(), Failure> {
        let [name] = self.schedules.schedule.as_slice() else {
            return Err(Failure::Usage(format!(
                "export writes one schedule: name it with --schedule, found {}",
                self.schedules.schedule.len()
            )));
        };
        let costs = self.costs.costs()?;
        let graph = self.schedules.graph(name, &costs.of_orders(self.schedules.micro))?;
        let text = self.text(&graph)?;
        let Some(path) = &self.output else { return print(&text) };
        write_atomic(path, text.as_bytes())?;
        if !self.quiet {
            tell(&format!("wrote {}", path.display()));
        }
        Ok(())
    }

    fn text(&self, graph: &TaskGraph) -> Result<String, Failure> {
        let csv = |format| csv::write(graph.schedule(), format).map_err(|e| Failure::Schedule(e.to_string()));
        match self.to {
            To::PytorchCsv => csv(csv::Format::ComputeOnly),
            To::PytorchCsvComms => csv(csv::Format::ComputeComms),
            To::Json => Ok(export::json(graph.schedule())),
            To::Dot => Ok(export::dot(graph)),
        }
    }
}
