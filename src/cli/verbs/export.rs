//! `pipesim export`: write a schedule for another program.

use crate::cli::Failure;
use crate::cli::options::costs::CostOptions;
use crate::cli::options::fsdp::FsdpOptions;
use crate::cli::options::output::OneFile;
use crate::cli::options::schedules::{SearchOptions, graphs};
use crate::cli::options::values::one_of;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use clap::Args;
use pipesim_cost::GivenCosts;
use pipesim_frameworks::Framework;
use pipesim_schedule::csv;
use pipesim_schedule::export;
use pipesim_schedule::graph::TaskGraph;
use std::path::PathBuf;

/// Writes a graph in a format (`true`: with the waits of PyTorch 2.15; the text names the costs that decide the order), the endings of
/// its files, whether it has collectives, and the format that frameworks load it in.
type To = (
    fn(&TaskGraph, bool, Option<&str>) -> Result<String, csv::Error>,
    &'static [&'static str],
    bool,
    Option<&'static str>,
);

/// PyTorch versions, and whether their files contain waits for sends and reductions.
const VERSIONS: [(&str, &str, bool); 5] = [
    ("2.11|2.11.0", "Without waits for sends and reductions", false),
    ("2.12|2.12.0|2.12.1", "As 2.11", false),
    ("2.13|2.13.0", "As 2.11", false),
    ("2.14|2.14.0|2.14.1", "As 2.11", false),
    ("2.15|2.15.0", "WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD", true),
];

const FORMATS: [(&str, &str, To); 5] = [
    (
        "pytorch-csv",
        "PyTorch's schedule file, ops only",
        (|g, _, _| csv::write(g.schedule(), csv::Format::ComputeOnly), &[".csv"], false, Some("compute_only")),
    ),
    (
        "pytorch-csv-comms",
        "PyTorch's schedule file with sends and receives; each receive is just before its use",
        (
            |g, waits, _| csv::write(g.schedule(), csv::Format::ComputeComms { waits }),
            &[".csv"],
            true,
            Some("compute_comms"),
        ),
    ),
    (
        "pytorch-csv-collectives",
        "Ops with UNSHARD, RESHARD and reductions, without sends and receives: PyTorch's lowering halfway, to read",
        (|g, _, _| csv::write(g.schedule(), csv::Format::ComputeCollectives), &[".csv"], true, None),
    ),
    ("json", "Placement and programs", (|g, _, costs| Ok(export::json(g.schedule(), costs)), &[".json"], false, None)),
    ("dot", "The task graph for Graphviz", (|g, _, costs| Ok(export::dot(g, costs)), &[".dot", ".gv"], false, None)),
];

#[derive(Args)]
#[command(mut_arg("schedule", |one| one.help("The schedule to write: a name (see `pipesim schedules`), a .star file, a PyTorch .csv file, or auto, the best under --memory-cap")))]
pub struct Export {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    fsdp: FsdpOptions,
    /// Format
    #[arg(long, value_parser = one_of(FORMATS))]
    to: To,
    /// PyTorch version that will load the file of --to pytorch-csv-comms [default: 2.15]
    #[arg(long, value_name = "VERSION", value_parser = one_of(VERSIONS))]
    torch: Option<bool>,
    /// File to write, with the ending of its format; - is stdout [default: -]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Export {
    pub fn run(&self) -> Result<(), Failure> {
        let found = self.schedules.asked().len();
        if found != 1 {
            return Err(Failure::Usage(format!("export writes one schedule: name it with --schedule, found {found}")));
        }
        let (written, endings, has_collectives, loaded_as) = self.to;
        if self.torch.is_some() && !endings.contains(&".csv") {
            return Err(Failure::Usage(
                "--torch is for PyTorch's files; leave it out, or use --to pytorch-csv-comms".to_string(),
            ));
        }
        if self.fsdp.max_active_stages.is_some() && !has_collectives {
            return Err(Failure::Usage(
                "--max-active-stages is for files with collectives; leave it out, or use --to pytorch-csv-comms"
                    .to_string(),
            ));
        }
        let file = OneFile::at(self.output.as_deref(), endings)?;
        if let Some(assumption) = self.costs.costs.as_deref().and_then(GivenCosts::assumption) {
            self.remarks.remark(&assumption);
        }
        let mut question = self.schedules.question();
        self.costs.ask(&mut question);
        self.fsdp.ask(&mut question);
        let graphs = graphs(&question, &self.costs, self.remarks)?;
        let made_with = if question.follows_costs(&Sandbox)? { Some(self.made_with()) } else { None };
        if let (Some(costs), None) = (&made_with, self.costs.first_given()) {
            self.remarks.remark(&format!(
                "note: costs decide this order; made with {costs}; give your own with --costs or --profile"
            ));
        }
        let waits = self.torch.unwrap_or(true);
        let write = |(_, graph): &(_, TaskGraph)| written(graph, waits, made_with.as_deref());
        let text = graphs.iter().map(write).collect::<Result<String, _>>();
        let text = text.map_err(|e| Failure::Schedule(e.to_string()))?;
        for (name, version) in [("pytorch", Some(if waits { "2.15" } else { "2.11" })), ("torchtitan", None)] {
            let Some(format) = loaded_as else { break };
            let lines = Framework::find(name, version).and_then(|one| one.loading(graphs[0].1.schedule(), format));
            lines.map_err(Failure::usage)?.iter().for_each(|line| self.remarks.remark(&format!("note: {line}")));
        }
        file.write(&text, self.remarks, |_| String::new())
    }

    /// Describes the costs that decide the order.
    fn made_with(&self) -> String {
        let slow: Vec<String> =
            self.costs.slow.iter().map(|(device, factor)| format!(", device {device} x {}", factor.to_f64())).collect();
        let costs = match &self.costs.profile {
            Some(path) => format!("the measured costs of {}", path.display()),
            None => self.costs.given().described(),
        };
        format!("{costs}{}", slow.concat())
    }
}
