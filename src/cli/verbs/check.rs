//! `pipesim check`: whether schedules are valid, and under which deliveries they finish without deadlock.

use crate::cli::Failure;
use crate::cli::options::costs::CostOptions;
use crate::cli::options::output::{PrintOptions, versioned};
use crate::cli::options::schedules::{SearchOptions, graphs};
use crate::cli::terminal::progress::DetailOptions;
use crate::cli::terminal::table;
use clap::Args;
use pipesim_report::{self as report, Report, Table};
use pipesim_schedule::check;
use pipesim_schedule::communicators::{self, DirectedEdge};
use pipesim_schedule::delivery::{Delivery, PyTorch};
use pipesim_schedule::graph::TaskGraph;
use serde::Serialize;

/// Deliveries with a communicator per edge.
const PER_EDGE: [Delivery; 2] = [Delivery::PyTorch(PyTorch::PerEdge), Delivery::PyTorch(PyTorch::PerEdgeDeferred)];

const HELP: &str = include_str!("check.txt");

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Check {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    /// Delivery under which no schedule may deadlock: one-sided, buffered(k), channel, channel:per-peer, channel:per-direction, each channel also with ,front-loaded, ,deferred or ,ahead, batched, megatron, pytorch, pytorch:per-edge, pytorch:deferred or pytorch:2.11; repeatable [default: try all; a deadlock is no error]
    #[arg(long, value_name = "DELIVERY")]
    delivery: Vec<Delivery>,
    #[command(flatten)]
    print: PrintOptions,
    #[command(flatten)]
    details: DetailOptions,
}

#[derive(Serialize)]
struct Checked {
    schedule: String,
    devices: u32,
    chunks: u32,
    microbatches: u32,
    ops: usize,
    /// Fewest slots per channel with which buffered delivery does not deadlock.
    fewest_slots: u32,
    deliveries: Vec<Verdict>,
    /// Communicators by round of creation, each from one device to another, if a delivery has one per edge.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    communicators: Vec<Vec<DirectedEdge>>,
}

#[derive(Serialize)]
struct Verdict {
    delivery: String,
    /// `None` if the schedule cannot have this delivery.
    survives: Option<bool>,
    /// Why it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'static str>,
    /// Which device waits for which.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadlock: Option<String>,
}

impl Check {
    pub fn run(&self) -> Result<(), Failure> {
        let mut question = self.schedules.question();
        self.costs.ask(&mut question);
        let graphs = graphs(&question, &self.costs, self.details.remarks)?;
        for (graph, delivery) in graphs.iter().flat_map(|graph| self.delivery.iter().map(move |of| (graph, of))) {
            if let Some(why) = delivery.refuses(graph.schedule()) {
                let name = &graph.schedule().name;
                return Err(Failure::Usage(format!("--delivery {delivery}: {why} ({name}); leave one of the two out")));
            }
        }
        let checks: Vec<Checked> = graphs.iter().map(|graph| self.check(graph)).collect();
        let stuck: Vec<(String, String)> = checks.iter().flat_map(deadlocks).collect();
        let report = Report { extra_tables: vec![self.table(&checks)], ..Report::default() };
        let json = || versioned("checks", &checks);
        let tables = || format!("{}{}", self.frameworks(&checks), table(&report));
        self.print.show_assumed(&self.costs)?;
        self.print.show(&report, json, tables, || rows(&checks))?;
        if self.details.verbose > 0 && self.delivery.is_empty() {
            stuck.iter().for_each(|(schedule, text)| self.details.remarks.remark(&format!("{schedule}: {text}")));
        }
        match stuck.first() {
            Some((schedule, text)) if !self.delivery.is_empty() => {
                Err(Failure::Schedule(format!("{schedule}: {text}")))
            }
            Some(_) if self.details.verbose == 0 => {
                self.details
                    .remarks
                    .remark("run again with -v, or with --delivery, to see which device waits for which");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn deliveries(&self) -> Vec<Delivery> {
        if self.delivery.is_empty() { check::standard_deliveries() } else { self.delivery.clone() }
    }

    /// Says whether Megatron-LM and PyTorch run each schedule, a line per schedule; nothing with --delivery.
    fn frameworks(&self, checks: &[Checked]) -> String {
        if !self.delivery.is_empty() {
            let of = |checked: &&Checked| !checked.communicators.is_empty();
            let line = |checked: &Checked| {
                let rounds = communicators::described(&checked.communicators);
                format!("{}: communicators by round: {rounds}\n", checked.schedule)
            };
            let lines: String = checks.iter().filter(of).map(line).collect();
            return if lines.is_empty() { lines } else { lines + "\n" };
        }
        const BY: [(&str, Delivery); 2] =
            [("Megatron-LM", Delivery::Megatron), ("PyTorch 2.15", Delivery::PyTorch(PyTorch::Newest))];
        let width = checks.iter().map(|checked| checked.schedule.chars().count()).max().unwrap_or(0) + 2;
        let line = |checked: &Checked| {
            let one = |(name, delivery): (&str, Delivery)| {
                let delivery = delivery.to_string();
                let verdict = checked.deliveries.iter().find(|verdict| verdict.delivery == delivery)?;
                let word = match verdict.survives {
                    Some(true) => "runs",
                    Some(false) => "deadlocks",
                    None => "has no such ops",
                };
                Some(format!("{name}: {word}."))
            };
            let schedule = if checks.len() > 1 { format!("{:width$}", checked.schedule) } else { String::new() };
            format!("{schedule}{}\n", BY.into_iter().filter_map(one).collect::<Vec<_>>().join(" "))
        };
        checks.iter().map(line).collect::<String>() + "\n"
    }

    fn check(&self, graph: &TaskGraph) -> Checked {
        let verdict = |delivery: Delivery| {
            let refused = delivery.refuses(graph.schedule());
            let proof = refused.is_none().then(|| check::check(graph, delivery));
            let survives = proof.as_ref().map(Result::is_ok);
            let deadlock = proof.and_then(Result::err).map(|deadlock| deadlock.to_string());
            Verdict { delivery: delivery.to_string(), survives, refused, deadlock }
        };
        let schedule = graph.schedule();
        Checked {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            ops: graph.len(),
            fewest_slots: check::fewest_slots(graph),
            deliveries: self.deliveries().into_iter().map(verdict).collect(),
            communicators: match self.delivery.iter().any(|delivery| PER_EDGE.contains(delivery)) {
                true => communicators::rounds(&schedule.placement),
                false => Vec::new(),
            },
        }
    }

    fn table(&self, checks: &[Checked]) -> Table {
        let names: Vec<String> = self.deliveries().iter().map(Delivery::to_string).collect();
        let header = ["delivery".to_string()].into_iter().chain(checks.iter().map(|c| c.schedule.clone())).collect();
        let word =
            |survives: Option<bool>| survives.map_or("none", |runs| if runs { "runs" } else { "deadlock" }).to_string();
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (number, name) in names.into_iter().enumerate() {
            rows.push([name].into_iter().chain(checks.iter().map(|c| word(c.deliveries[number].survives))).collect());
        }
        let slots = checks.iter().map(|c| c.fewest_slots.to_string());
        rows.push(["fewest slots when buffered".to_string()].into_iter().chain(slots).collect());
        Table {
            caption: "Every op occurs once and in order. How the step ends under each delivery:".to_string(),
            header,
            rows,
        }
    }
}

fn deadlocks(checked: &Checked) -> Vec<(String, String)> {
    let text = |verdict: &Verdict| verdict.deadlock.clone().map(|text| (checked.schedule.clone(), text));
    checked.deliveries.iter().filter_map(text).collect()
}

/// Makes a CSV row per schedule and delivery.
fn rows(checks: &[Checked]) -> String {
    let mut text = String::from("schedule,delivery,survives,fewest_slots\n");
    for checked in checks {
        let name = report::csv_cell(&checked.schedule);
        for verdict in &checked.deliveries {
            let delivery = report::csv_cell(&verdict.delivery);
            let survives = verdict.survives.map(|survives| survives.to_string()).unwrap_or_default();
            text += &format!("{name},{delivery},{survives},{}\n", checked.fewest_slots);
        }
    }
    text
}
