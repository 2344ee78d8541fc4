//! `pipesim check`: whether schedules are valid, and under which deliveries they finish without deadlock.

use crate::cli::Failure;
use crate::cli::job_file::{JobGpus, JobOptions};
use crate::cli::options::costs::CostOptions;
use crate::cli::options::output::{PrintOptions, versioned};
use crate::cli::options::schedules::{SearchOptions, graphs};
use crate::cli::terminal::progress::DetailOptions;
use crate::cli::terminal::{table, wrap};
use clap::Args;
use pipesim_frameworks::{FrameworkCheck, RunVerdict, chosen, sentences};
use pipesim_report::{self as report, Report, Table};
use pipesim_schedule::check;
use pipesim_schedule::communicators::{self, DirectedEdge};
use pipesim_schedule::deadlock::Deadlock;
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
    /// Frameworks that must run every schedule, such as megatron,pytorch; repeatable [default: say it of all whose sends and receives are known; a refusal is no error]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    framework: Vec<String>,
    /// Version of the framework [default: the newest]
    #[arg(long, value_name = "VERSION")]
    framework_version: Option<String>,
    #[command(flatten)]
    pub print: PrintOptions,
    #[command(flatten)]
    details: DetailOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub job_gpus: JobGpus,
    /// Hardware of the job, whose framework may refuse what it cannot do
    #[arg(long, value_name = "NAME|FILE", requires = "job", help_heading = "A training job")]
    hardware: Option<String>,
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
    /// Empty with --delivery and without --framework.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    frameworks: Vec<FrameworkCheck>,
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
    /// The same in one line.
    #[serde(skip)]
    brief: String,
}

/// Most deliveries that a verdict names.
const NAMED: usize = 3;

impl Checked {
    /// Says in one line under which deliveries the schedule deadlocks, and which device waits for what; nothing if it does not.
    fn verdict(&self) -> Option<String> {
        let stuck: Vec<&Verdict> = self.deliveries.iter().filter(|one| one.deadlock.is_some()).collect();
        let mut names: Vec<String> = stuck.iter().take(NAMED).map(|one| one.delivery.clone()).collect();
        names.extend(stuck.len().checked_sub(NAMED).filter(|more| *more > 0).map(|more| format!("{more} more")));
        let first = stuck.first()?;
        let of = if stuck.len() > 1 { format!("under {}, ", first.delivery) } else { String::new() };
        Some(format!("{} deadlocks under {}: {of}{}.", self.schedule, names.join(", "), first.brief))
    }
}

impl Check {
    pub fn run(&self) -> Result<(), Failure> {
        let mut question = self.schedules.question();
        self.costs.ask(&mut question);
        let graphs = graphs(&question, &self.costs, self.details.remarks)?;
        for ((_, graph), delivery) in graphs.iter().flat_map(|graph| self.delivery.iter().map(move |of| (graph, of))) {
            if let Some(why) = delivery.refuses(graph.schedule()) {
                let name = &graph.schedule().name;
                return Err(Failure::Usage(format!("--delivery {delivery}: {why} ({name}); leave one of the two out")));
            }
        }
        let checks: Vec<Checked> =
            graphs.iter().map(|(built_in, graph)| self.check(graph, *built_in)).collect::<Result<_, _>>()?;
        let stuck: Vec<(String, String)> = checks.iter().flat_map(deadlocks).collect();
        let report = Report { extra_tables: vec![self.table(&checks)], ..Report::default() };
        let json = || versioned("checks", &checks);
        let tables = || format!("{}{}", self.first_lines(&checks), table(&report));
        self.print.show_assumed(&self.costs)?;
        self.print.show(&report, json, tables, || rows(&checks))?;
        if self.details.verbose > 0 && self.delivery.is_empty() {
            stuck.iter().for_each(|(schedule, text)| self.details.remarks.remark(&format!("{schedule}: {text}")));
        }
        let refusals = checks.iter().flat_map(|checked| checked.frameworks.iter().map(move |one| (checked, one)));
        if let Some((checked, one)) =
            refusals.filter(|_| !self.framework.is_empty()).find(|(_, one)| one.verdict != RunVerdict::Runs)
        {
            return Err(Failure::Schedule(format!("{}: {}", checked.schedule, one.sentence(false))));
        }
        if let Some(why) = self.print.job.as_ref().and_then(|job| job.refused.first()) {
            return Err(Failure::Schedule(format!("the job's framework refuses it: {why}")));
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

    /// Says where schedules deadlock under the deliveries asked for, whether frameworks run each, a line per schedule, and which
    /// communicators --delivery needs.
    fn first_lines(&self, checks: &[Checked]) -> String {
        let width = checks.iter().map(|checked| checked.schedule.chars().count()).max().unwrap_or(0) + 2;
        let asked = checks.iter().filter(|_| !self.delivery.is_empty());
        let mut text: String = asked.filter_map(Checked::verdict).map(|line| wrap(&[line], 0)).collect();
        for Checked { schedule, frameworks, communicators, .. } in checks {
            if !communicators.is_empty() {
                text += &format!("{schedule}: communicators by round: {}\n", communicators::described(communicators));
            }
            let sentences = sentences(frameworks, self.framework.is_empty());
            let head = if checks.len() > 1 { format!("{schedule:width$}") } else { String::new() };
            if !sentences.is_empty() {
                text += &format!("{head}{sentences}\n");
            }
        }
        if text.is_empty() { text } else { text + "\n" }
    }

    fn check(&self, graph: &TaskGraph, built_in: Option<&str>) -> Result<Checked, Failure> {
        let chosen = chosen(&self.framework, self.framework_version.as_deref());
        let mut frameworks = chosen.map_err(Failure::usage)?;
        frameworks.retain(|_| self.delivery.is_empty() || !self.framework.is_empty());
        let frameworks = frameworks.into_iter().map(|one| FrameworkCheck::of(one, graph, built_in));
        let verdict = |delivery: Delivery| {
            let refused = delivery.refuses(graph.schedule());
            let proof = refused.is_none().then(|| check::check(graph, delivery));
            let survives = proof.as_ref().map(Result::is_ok);
            let found = proof.and_then(Result::err);
            let brief = found.as_ref().map(Deadlock::in_brief).unwrap_or_default();
            let deadlock = found.map(|deadlock| deadlock.to_string());
            Verdict { delivery: delivery.to_string(), survives, refused, deadlock, brief }
        };
        let schedule = graph.schedule();
        Ok(Checked {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            ops: graph.len(),
            fewest_slots: check::fewest_slots(graph),
            deliveries: self.deliveries().into_iter().map(verdict).collect(),
            frameworks: frameworks.collect::<Result<_, _>>().map_err(Failure::usage)?,
            communicators: match self.delivery.iter().any(|delivery| PER_EDGE.contains(delivery)) {
                true => communicators::rounds(&schedule.placement),
                false => Vec::new(),
            },
        })
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
