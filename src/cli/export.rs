//! `pipesim export`: a schedule for other programs.

use super::Failure;
use super::choice::one_of;
use super::options::{CostOptions, RemarkOptions};
use super::output::OneFile;
use super::selection::SearchOptions;
use crate::cost::GivenCosts;
use crate::csv;
use crate::export;
use crate::graph::TaskGraph;
use clap::Args;
use std::path::PathBuf;

/// Writes a graph in the language of another program (`true`: PyTorch's newest; with which costs the order was made, where they decide it), into files with these endings.
type To = (fn(&TaskGraph, bool, Option<&str>) -> Result<String, csv::Error>, &'static [&'static str]);

/// Whether a PyTorch of this version wants sends and reductions to be waited for.
const VERSIONS: [(&str, &str, bool); 5] = [
    ("2.11|2.11.0", "Sends and reductions are not waited for", false),
    ("2.12|2.12.0|2.12.1", "As 2.11", false),
    ("2.13|2.13.0", "As 2.11", false),
    ("2.14|2.14.0|2.14.1", "As 2.11", false),
    ("2.15|2.15.0", "WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD", true),
];

const LANGUAGES: [(&str, &str, To); 4] = [
    (
        "pytorch-csv",
        "PyTorch's schedule file, ops only",
        (|g, _, _| csv::write(g.schedule(), csv::Format::ComputeOnly), &[".csv"]),
    ),
    (
        "pytorch-csv-comms",
        "PyTorch's schedule file with sends and receives, each receive just before its use",
        (|g, waits, _| csv::write(g.schedule(), csv::Format::ComputeComms { waits }), &[".csv"]),
    ),
    ("json", "Placement and programs", (|g, _, costs| Ok(export::json(g.schedule(), costs)), &[".json"])),
    ("dot", "The task graph for Graphviz", (|g, _, costs| Ok(export::dot(g, costs)), &[".dot", ".gv"])),
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
    /// The PyTorch that is to load the file, of --to pytorch-csv-comms [default: 2.15]
    #[arg(long, value_name = "VERSION", value_parser = one_of(VERSIONS))]
    torch: Option<bool>,
    /// Where to write it, a file with the ending of its language; - is stdout [default: -]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Export {
    /// Writes the one schedule that is asked for.
    pub fn run(&self) -> Result<(), Failure> {
        let found = self.schedules.asked().len();
        if found != 1 {
            return Err(Failure::Usage(format!("export writes one schedule: name it with --schedule, found {found}")));
        }
        let (written, endings) = self.to;
        if self.torch.is_some() && !endings.contains(&".csv") {
            return Err(Failure::Usage(
                "--torch is for PyTorch's files; leave it out, or use --to pytorch-csv-comms".to_string(),
            ));
        }
        let file = OneFile::at(self.output.as_deref(), endings)?;
        if let Some(assumption) = self.costs.costs.as_ref().and_then(GivenCosts::assumption) {
            self.remarks.remark(&assumption);
        }
        let graphs = self.schedules.graphs(&self.costs, self.remarks)?;
        let made_with = self.made_with()?;
        if let (Some(costs), false) = (&made_with, self.costs.any()) {
            self.remarks.remark(&format!(
                "note: costs decide this order; made with {costs}; give your own with --costs or --profile"
            ));
        }
        let write = |graph| written(graph, self.torch.unwrap_or(true), made_with.as_deref());
        let text = graphs.iter().map(write).collect::<Result<String, _>>();
        file.write(&text.map_err(|e| Failure::Schedule(e.to_string()))?, self.remarks, |_| String::new())
    }

    /// The costs that decide the order, in words; none where it is the same whatever they are.
    fn made_with(&self) -> Result<Option<String>, Failure> {
        if !self.schedules.follows_costs()? {
            return Ok(None);
        }
        let slow: Vec<String> =
            self.costs.slow.iter().map(|(device, factor)| format!(", device {device} x {}", factor.to_f64())).collect();
        let costs = match &self.costs.profile {
            Some(path) => format!("the measured costs of {}", path.display()),
            None => self.costs.of_all().described(),
        };
        Ok(Some(format!("{costs}{}", slow.concat())))
    }
}
