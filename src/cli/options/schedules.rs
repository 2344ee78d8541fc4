//! Options that name schedules, with their numbers of devices and micro-batches.

use super::costs::CostOptions;
use super::values::{Numbers, numbers_of_sweep, one_of, whole};
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use clap::{ArgMatches, Args};
use pipesim_answer::question::{DEFAULT_SCHEDULES, MemoryCap, Question};
use pipesim_answer::resolve::{Resolved, Selection, Variant};
use pipesim_language::{Budget, MAX_CHUNKS};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::schedule::Overlap;
use pipesim_schedule::slices::Slices;
use std::ops::Deref;

#[derive(Args, Clone, Debug)]
pub struct ScheduleOptions {
    /// Pipeline-parallel degree p: number of devices
    #[arg(long, short = 'p', value_name = "P", visible_alias = "pp", aliases = ["pipeline-model-parallel-size", "pipeline-parallel-size", "pipeline-parallel-degree"], value_parser = numbers_of_sweep(1..=1 << 20))]
    pub stages: Numbers,
    /// Number of micro-batches per step, m
    #[arg(long, short = 'm', value_name = "M", visible_aliases = ["num-microbatches", "micro-batches"], aliases = ["num-micro-batches", "microbatches"], value_parser = numbers_of_sweep(1..=(1 << 31) - 1))]
    pub micro: Numbers,
    /// Schedule: a name (see `pipesim schedules`) with or without options (interleaved-1f1b:v=4), a .star file, a PyTorch .csv file, or auto, the best under --memory-cap; repeatable [default: naive, gpipe, 1f1b, zb-v]
    #[arg(long, short = 's', value_name = "NAME|FILE", value_parser = names)]
    pub schedule: Vec<Names>,
    /// Take only this one of the schedules named, counted from 1, with options as for all of them; for programs that show one of several
    #[arg(long, hide = true, value_name = "K", value_parser = whole::<u32>(1..))]
    pub only: Option<u32>,
    /// Virtual stages per device (v), for interleaved schedules
    #[arg(long, value_name = "V", visible_aliases = ["vpp", "virtual-pipeline-model-parallel-size"], value_parser = whole::<u32>(1..=u64::from(MAX_CHUNKS)))]
    pub chunks: Option<u32>,
    /// Set an option of every schedule that has it, for example group=4; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Lengths of the slices of a sequence, for schedules with slices: 4:3:2:2, in any unit [default: equal]
    #[arg(long, value_name = "N:N:..", value_parser = slice_lengths)]
    pub slice_lengths: Option<Slices>,
    /// How an overlapped pair of a forward and a backward runs
    #[arg(long, value_name = "MEANING", default_value = "atomic", value_parser = one_of(Overlap::ALL.map(|o| (o.name(), meaning(o), o))))]
    pub overlap: Overlap,
    /// Budget
    #[arg(long, value_name = "N", help = format!("Maximum number of calls and loop iterations when evaluating a schedule file [default: {}]", Budget::default().ticks), value_parser = whole::<u64>(..))]
    pub max_ticks: Option<u64>,
    /// Maximum number of ops of a schedule
    #[arg(long, value_name = "N", default_value_t = Budget::default().ops, value_parser = whole::<u64>(1..=Budget::MAX_OPS))]
    pub max_ops: u64,
}

fn slice_lengths(text: &str) -> Result<Slices, String> {
    let lengths = text.split(':').map(|length| length.trim().parse()).collect::<Result<Vec<u32>, _>>();
    let lengths = lengths.map_err(|_| "expected whole numbers between colons, as in 4:3:2:2".to_string())?;
    Slices::of_lengths(&lengths).map_err(|error| error.to_string())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as in group=4")?;
    Ok((key.trim().to_string(), value.trim().to_string()))
}

pub fn memory_cap(text: &str) -> Result<MemoryCap, String> {
    text.parse().map_err(|error: String| as_flags(error))
}

/// Names of schedules, separated by commas.
#[derive(Clone, Debug)]
pub struct Names(Vec<String>);

impl Names {
    pub fn all(&self) -> &[String] {
        &self.0
    }
}

pub fn names(text: &str) -> Result<Names, String> {
    let names = Variant::list(text);
    names.iter().try_for_each(|name| Variant::parse(name).map(|_| ()).map_err(|error| error.to_string()))?;
    Ok(Names(names))
}

fn meaning(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Atomic => "Starts with both inputs, lasts F + B, both outputs leave at its end",
        Overlap::Serial => "One after the other, as if they were not a pair",
        Overlap::Runtime => "One after the other, both outputs leave at the end",
        Overlap::Max => "As atomic, but lasts as long as the longer of the two: perfect overlap",
        Overlap::Streams => "As atomic, but lasts as long as the sub-ops of both on two streams; needs their times",
    }
}

#[derive(Args, Clone, Debug)]
pub struct SearchOptions {
    #[command(flatten)]
    pub schedules: ScheduleOptions,
    /// Memory limit per device: a number of micro-batches' activations (8), or bytes for a model on hardware (80GiB) [default: none, or the hardware's memory]
    #[arg(long, value_name = "UNITS|BYTES", value_parser = memory_cap)]
    pub memory_cap: Option<MemoryCap>,
    /// Search effort multiplier [default: 1]
    #[arg(long, value_name = "TIMES", value_parser = whole::<u32>(1..=1000))]
    pub effort: Option<u32>,
}

impl Deref for SearchOptions {
    type Target = ScheduleOptions;

    fn deref(&self) -> &ScheduleOptions {
        &self.schedules
    }
}

impl ScheduleOptions {
    /// Returns the question about these schedules.
    pub fn question(&self) -> Question {
        Question {
            schedule: self.asked(),
            stages: self.stages.all().to_vec(),
            micro: self.micro.all().to_vec(),
            only: self.only,
            chunks: self.chunks,
            set: self.set.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            slice_lengths: self.slice_lengths.as_ref().map_or_else(Vec::new, |slices| slices.lengths().to_vec()),
            overlap: self.overlap,
            max_ticks: self.max_ticks,
            max_ops: self.max_ops,
            ..Question::default()
        }
    }

    /// Returns the names of the schedules, the default ones if none is named.
    pub fn names(&self) -> Vec<String> {
        self.question().names()
    }

    pub fn asked(&self) -> Vec<String> {
        self.schedule.iter().flat_map(Names::all).cloned().collect()
    }

    /// Returns the selection for the first p and m.
    pub fn selection(&self) -> Result<Selection, Failure> {
        Ok(self.question().selection(&Sandbox)?)
    }

    /// Rejects options that have no effect on any of the schedules `names`.
    pub fn reject_unused(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        Ok(self.question().reject_unused(names, &Sandbox, &remarks)?)
    }
}

impl SearchOptions {
    /// Returns the question about these schedules.
    pub fn question(&self) -> Question {
        Question { memory_cap: self.memory_cap, effort: self.effort, ..self.schedules.question() }
    }

    /// Returns the selection for the first p and m.
    pub fn selection(&self) -> Result<Selection, Failure> {
        Ok(self.question().selection(&Sandbox)?)
    }

    /// Rejects options that have no effect on any of the schedules `names`.
    pub fn reject_unused(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        Ok(self.question().reject_unused(names, &Sandbox, &remarks)?)
    }
}

/// Returns the graph of each schedule of a question, with its name if it is a built-in one. Here costs only decide orders, and are rejected
/// if no order depends on them.
pub fn graphs(
    question: &Question,
    costs: &CostOptions,
    remarks: RemarkOptions,
) -> Result<Vec<(Option<&'static str>, TaskGraph)>, Failure> {
    if let Some(option) = costs.first_given()
        && question.overlap != Overlap::Streams
        && !question.follows_costs(&Sandbox)?
    {
        let names = question.names().join(", ");
        return Err(Failure::Usage(format!("{option}: the order of {names} does not depend on costs; leave it out")));
    }
    let mut graphs = Vec::new();
    for (question, costs) in question.prepare(&Sandbox, &remarks)?.questions(&Sandbox)? {
        for (name, resolved) in question.names().iter().zip(question.resolved(&costs, &Sandbox, &remarks)?) {
            remark_balance(&resolved, remarks);
            graphs.push((resolved.built_in(name), resolved.graph));
        }
    }
    Ok(graphs)
}

/// Says of a failure of one of the default schedules that nobody named it.
pub fn named_by_default(failure: Failure, matches: &ArgMatches) -> Failure {
    let is_named = |(_, given): (&str, &ArgMatches)| !matches!(given.try_get_raw("schedule"), Ok(None));
    let text = match &failure {
        Failure::Usage(text) | Failure::Schedule(text) => text,
        _ => return failure,
    };
    let name = DEFAULT_SCHEDULES.iter().find(|name| text.starts_with(&format!("{name}: ")));
    match name.filter(|_| !matches.subcommand().is_none_or(is_named)) {
        Some(name) => {
            let text = format!("{text}; or name schedules with -s: {name} is one of the default ones");
            if matches!(failure, Failure::Usage(_)) { Failure::Usage(text) } else { Failure::Schedule(text) }
        }
        None => failure,
    }
}

/// Prints the split that --balance found.
pub fn remark_balance(resolved: &Resolved, remarks: RemarkOptions) {
    if let Some(found) = &resolved.balance {
        remarks.remark(&format!("{}: {found}", resolved.graph.schedule().name));
    }
}
