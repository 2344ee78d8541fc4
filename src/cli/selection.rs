//! Which schedules a command is about: by name, file or `auto`, for how many devices and micro-batches.

use super::Failure;
use super::guard::Guarded;
use super::options::{CostOptions, RemarkOptions};
use super::output::tell;
use crate::dsl::Budget;
use crate::graph::TaskGraph;
use crate::open::{Order, Program};
use crate::resolve::{Costs, Resolved, Selection, Warning};
use crate::schedule::Overlap;
use clap::Args;
use std::ops::Deref;
use std::path::Path;

/// The schedules that are taken when none is named.
pub const DEFAULT_SCHEDULES: [&str; 4] = ["naive", "gpipe", "1f1b", "zb-v"];

/// Which schedules, for how many devices and micro-batches.
#[derive(Args, Clone, Debug)]
pub struct ScheduleOptions {
    /// Number of devices, p
    #[arg(long, short = 'p', value_name = "P", alias = "pipeline-model-parallel-size", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub stages: u32,
    /// Number of micro-batches a step, m
    #[arg(long, short = 'm', value_name = "M", value_parser = clap::value_parser!(u32).range(1..1 << 31))]
    pub micro: u32,
    /// Schedule: a name (see `pipesim schedules`), a .star file or a PyTorch .csv file; `auto` is the best under --memory-cap; repeatable [default: naive, gpipe, 1f1b, zb-v]
    #[arg(long, short = 's', value_name = "NAME|FILE", value_delimiter = ',')]
    pub schedule: Vec<String>,
    /// Stages a device, where the schedule leaves it open
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub chunks: Option<u32>,
    /// An option of the schedule's own, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// What an overlapped pair of a forward and a backward means: atomic (starts with both inputs, lasts F + B), serial (in turn), runtime (in turn, outputs at the end), max (as atomic, lasts the longer: perfect overlap)
    #[arg(long, value_name = "MEANING", default_value = "atomic", value_parser = overlap)]
    pub overlap: Overlap,
    /// Budget of evaluation.
    #[arg(long, value_name = "N", help = format!("Budget of calls and loop turns for evaluating a schedule file [default: {}]", Budget::default().ticks))]
    pub max_ticks: Option<u64>,
    /// Budget of ops of a schedule
    #[arg(long, value_name = "N", default_value_t = Budget::default().ops, value_parser = clap::value_parser!(u64).range(1..=Budget::MAX_OPS))]
    pub max_ops: u64,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as in group=4")?;
    Ok((key.trim().to_string(), value.trim().to_string()))
}

fn activations(text: &str) -> Result<f64, String> {
    if text.ends_with(['B', 'b']) {
        return Err("a cap in bytes needs the bytes of a model's activations, which are not predicted yet; give activation units, as in 8".to_string());
    }
    match text.parse::<f64>() {
        Ok(units) if (0.001..=1e9).contains(&units) => Ok(units),
        _ => Err("expected activation units from 0.001 up, as in 8 or 2.5".to_string()),
    }
}

fn overlap(text: &str) -> Result<Overlap, String> {
    let names = Overlap::ALL.map(Overlap::name);
    let found = Overlap::ALL.into_iter().find(|overlap| overlap.name() == text);
    found.ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// The same, and what they may hold.
#[derive(Args, Clone, Debug)]
pub struct SearchOptions {
    #[command(flatten)]
    pub schedules: ScheduleOptions,
    /// Most activations a device may hold, in units of its whole share of layers for one micro-batch: bounds what is searched
    #[arg(long, value_name = "UNITS", value_parser = activations)]
    pub memory_cap: Option<f64>,
}

impl Deref for SearchOptions {
    type Target = ScheduleOptions;

    fn deref(&self) -> &ScheduleOptions {
        &self.schedules
    }
}

impl ScheduleOptions {
    /// Names of the schedules asked for.
    pub fn names(&self) -> Vec<String> {
        if self.schedule.is_empty() { DEFAULT_SCHEDULES.map(str::to_string).to_vec() } else { self.schedule.clone() }
    }

    /// What is asked of each of them.
    pub fn selection(&self) -> Selection {
        let usual = Budget::default();
        Selection {
            chunks: self.chunks,
            options: self.set.iter().cloned().collect(),
            overlap: self.overlap,
            budget: Budget { ticks: self.max_ticks.unwrap_or(usual.ticks), ops: self.max_ops, ..usual },
            host: &Guarded,
            ..Selection::new(self.stages, self.micro)
        }
    }

    /// Refuses options that none of the schedules `names` has a use for.
    pub fn refuse_idle(&self, names: &[String]) -> Result<(), Failure> {
        let idle = |option: &str, why: &str| {
            let names = names.join(", ");
            Err(Failure::Usage(format!("{option}: {names} {why}; leave it out")))
        };
        if self.max_ticks.is_some() && names.iter().all(|name| is_csv(name)) {
            return idle("--max-ticks", "is a list of ops, of which nothing is evaluated");
        }
        if self.overlap != Overlap::default() && !self.any(names, has_pairs)? {
            return idle("--overlap", "has no overlapped pairs");
        }
        Ok(())
    }

    /// Whether the order of any of `names`, before costs are known, is so; of `auto` it is.
    fn any(&self, names: &[String], is_so: fn(&Order) -> bool) -> Result<bool, Failure> {
        for name in names {
            if is_auto(name) || is_so(&self.selection().order(name)?.order) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl SearchOptions {
    /// What is asked of each of them.
    pub fn selection(&self) -> Selection {
        Selection { memory_cap: self.memory_cap, ..self.schedules.selection() }
    }

    /// Each schedule asked for, with its costs.
    pub fn resolved(&self, costs: &Costs, remarks: RemarkOptions) -> Result<Vec<Resolved>, Failure> {
        self.refuse_idle(&self.names())?;
        let selection = self.selection();
        let one = |name: String| {
            let busy = remarks.busy(&format!("making the order of {name}"), None);
            let resolved = selection.resolve(&name, costs)?;
            drop(busy);
            resolved.warnings.iter().for_each(|warning| warn(warning, remarks));
            Ok(resolved)
        };
        self.names().into_iter().map(one).collect()
    }

    /// The graph of each schedule asked for. Costs decide orders only, and are refused where they decide none.
    pub fn graphs(&self, costs: &CostOptions, remarks: RemarkOptions) -> Result<Vec<TaskGraph>, Failure> {
        let names = self.names();
        if costs.any() && !self.any(&names, |order| matches!(order, Order::Open(_)))? {
            let names = names.join(", ");
            return Err(Failure::Usage(format!(
                "{}: the order of {names} is the same whatever ops cost; leave it out",
                costs.named()
            )));
        }
        let resolved = self.resolved(&costs.costs()?, remarks)?;
        Ok(resolved.into_iter().map(|resolved| resolved.graph).collect())
    }
}

fn is_auto(name: &str) -> bool {
    name.eq_ignore_ascii_case("auto")
}

fn is_csv(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"))
}

fn has_pairs(order: &Order) -> bool {
    match order {
        Order::Fixed(schedule) => schedule.has_pairs(),
        Order::Open(open) => open.programs.iter().any(|program| match program {
            Program::Fixed(ops) | Program::Fill { ops, .. } => ops.iter().any(|op| op.opens_pair()),
            Program::Greedy { .. } | Program::Search { .. } => false,
        }),
    }
}

/// Tells people of a warning.
pub fn warn(warning: &Warning, remarks: RemarkOptions) {
    let text = format!("warning: {warning}");
    match warning {
        Warning::Imported(_) => tell(&text),
        Warning::AboveCap { .. } => remarks.remark(&text),
    }
}
