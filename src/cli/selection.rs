//! Which schedules a command is about: by name, file or `auto`, for how many devices and micro-batches.

use super::Failure;
use super::guard::Guarded;
use super::numbers::{Numbers, numbers, whole};
use super::options::{CostOptions, RemarkOptions};
use super::output::tell;
use crate::dsl::{Budget, MAX_CHUNKS, Takes};
use crate::graph::TaskGraph;
use crate::open::{Order, Program};
use crate::resolve::{Costs, MachineOptions, Resolved, Selection, Variant, Warning, memory_cap};
use crate::schedule::Overlap;
use clap::Args;
use std::ops::Deref;

/// The schedules that are taken when none is named.
pub const DEFAULT_SCHEDULES: [&str; 4] = ["naive", "gpipe", "1f1b", "zb-v"];

/// Which schedules, for how many devices and micro-batches.
#[derive(Args, Clone, Debug)]
pub struct ScheduleOptions {
    /// Number of devices, p; predict takes several: 4,8,16 or 4..64*2 or 4..16+4
    #[arg(long, short = 'p', value_name = "P", visible_alias = "pp", aliases = ["pipeline-model-parallel-size", "pipeline-parallel-size", "pipeline-parallel-degree"], value_parser = numbers(1..=1 << 20))]
    pub stages: Numbers,
    /// Number of micro-batches a step, m; predict takes several
    #[arg(long, short = 'm', value_name = "M", visible_aliases = ["num-microbatches", "micro-batches"], aliases = ["num-micro-batches", "microbatches"], value_parser = numbers(1..=(1 << 31) - 1))]
    pub micro: Numbers,
    /// Schedule: a name (see `pipesim schedules`), a .star file or a PyTorch .csv file, with options of its own (interleaved-1f1b:v=4) or without; `auto` is the best under --memory-cap; repeatable [default: naive, gpipe, 1f1b, zb-v]
    #[arg(long, short = 's', value_name = "NAME|FILE", value_parser = names)]
    pub schedule: Vec<Names>,
    /// Virtual stages per device, for schedules that leave it open
    #[arg(long, value_name = "V", visible_aliases = ["vpp", "virtual-pipeline-model-parallel-size"], value_parser = whole::<u32>(1..=u64::from(MAX_CHUNKS)))]
    pub chunks: Option<u32>,
    /// An option of the schedules that have it, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// What an overlapped pair of a forward and a backward means: atomic (starts with both inputs, lasts F + B), serial (in turn), runtime (in turn, outputs at the end), max (as atomic, lasts the longer: perfect overlap)
    #[arg(long, value_name = "MEANING", default_value = "atomic", value_parser = overlap)]
    pub overlap: Overlap,
    /// Budget of evaluation.
    #[arg(long, value_name = "N", help = format!("Budget of calls and loop turns for evaluating a schedule file [default: {}]", Budget::default().ticks), value_parser = whole::<u64>(..))]
    pub max_ticks: Option<u64>,
    /// Budget of ops of a schedule
    #[arg(long, value_name = "N", default_value_t = Budget::default().ops, value_parser = whole::<u64>(1..=Budget::MAX_OPS))]
    pub max_ops: u64,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as in group=4")?;
    Ok((key.trim().to_string(), value.trim().to_string()))
}

/// What a device may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cap {
    /// Activations, in units of its whole share of layers for one micro-batch.
    Units(f64),
    /// All memory, in bytes.
    Bytes(u64),
}

/// Units of bytes.
const BYTES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];

impl Cap {
    fn parse(text: &str) -> Result<Cap, String> {
        if let Some((number, unit)) = BYTES.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes))) {
            return match number.trim().parse::<f64>() {
                Ok(number) if (1.0..=1e15).contains(&(number * unit as f64)) => {
                    Ok(Cap::Bytes((number * unit as f64) as u64))
                }
                _ => Err("expected a number of bytes from 1 B to 900 TiB, as in 80GiB or 79.5GiB".to_string()),
            };
        }
        if let Some((number, letter)) = sloppy_bytes(text) {
            return Err(format!("expected bytes with a unit, as in 80GiB; write {number}{letter}iB"));
        }
        memory_cap(text).map(Cap::Units).map_err(|error| error.to_string())
    }

    /// The activation units.
    pub fn units(self) -> Option<f64> {
        match self {
            Cap::Units(units) => Some(units),
            Cap::Bytes(_) => None,
        }
    }

    /// The bytes.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Cap::Bytes(bytes) => Some(bytes),
            Cap::Units(_) => None,
        }
    }
}

/// A number of bytes whose unit is written otherwise: `80G`, `80gb`; the number, and the unit's first letter.
fn sloppy_bytes(text: &str) -> Option<(&str, char)> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_lowercase();
    let letter = ['k', 'm', 'g', 't']
        .into_iter()
        .find(|letter| unit.strip_prefix(*letter).is_some_and(|rest| ["", "i", "b", "ib"].contains(&rest)))?;
    let number = number.trim_end();
    number.parse::<f64>().ok().map(|_| (number, letter.to_ascii_uppercase()))
}

/// Names of schedules that were given together, separated by commas.
#[derive(Clone, Debug)]
pub struct Names(Vec<String>);

impl Names {
    /// All.
    pub fn all(&self) -> &[String] {
        &self.0
    }
}

/// Reads a list of names.
pub fn names(text: &str) -> Result<Names, String> {
    let names = Variant::list(text);
    names.iter().try_for_each(|name| Variant::parse(name).map(|_| ()).map_err(|error| error.to_string()))?;
    Ok(Names(names))
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
    /// Most that a device may hold: activations in units of its whole share of layers for one micro-batch (8), or, of a model on hardware, all memory in bytes (80GiB) [default there: what the hardware has]: bounds what is searched
    #[arg(long, value_name = "UNITS|BYTES", value_parser = Cap::parse)]
    pub memory_cap: Option<Cap>,
    /// Activation units that searches find room for.
    #[arg(skip)]
    pub room: Option<f64>,
    /// What the machine does beyond costs.
    #[arg(skip)]
    pub machine: MachineOptions,
    /// How many times the usual work searches for orders do
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
    /// Names of the schedules asked for.
    pub fn names(&self) -> Vec<String> {
        let asked = self.asked();
        if asked.is_empty() { DEFAULT_SCHEDULES.map(str::to_string).to_vec() } else { asked }
    }

    /// Those that were named.
    pub fn asked(&self) -> Vec<String> {
        self.schedule.iter().flat_map(Names::all).cloned().collect()
    }

    /// What is asked of each of them, for each p and m.
    pub fn selections(&self) -> impl Iterator<Item = Selection> {
        let pairs = self.stages.all().iter().flat_map(|&p| self.micro.all().iter().map(move |&m| (p, m)));
        pairs.map(|(devices, microbatches)| Selection { devices, microbatches, ..self.selection() })
    }

    /// What is asked of each of them, for the first p and m.
    pub fn selection(&self) -> Selection {
        let usual = Budget::default();
        Selection {
            chunks: self.chunks,
            options: self.set.iter().cloned().collect(),
            lenient: self.names().len() > 1,
            overlap: self.overlap,
            budget: Budget { ticks: self.max_ticks.unwrap_or(usual.ticks), ops: self.max_ops, ..usual },
            host: &Guarded,
            ..Selection::new(self.stages.first(), self.micro.first())
        }
    }

    /// Refuses options that none of the schedules `names` has a use for.
    pub fn refuse_idle(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        let idle = |option: &str, why: &str| {
            let names = names.join(", ");
            Err(Failure::Usage(format!("{option}: {names} {why}; leave it out")))
        };
        self.refuse_unknown(names, remarks)?;
        if self.max_ticks.is_some()
            && names.iter().all(|name| Variant::parse(name).is_ok_and(|variant| variant.is_csv()))
        {
            return idle("--max-ticks", "is a list of ops, of which nothing is evaluated");
        }
        if self.overlap != Overlap::default() && !self.any(names, has_pairs)? {
            return idle("--overlap", "has no overlapped pairs");
        }
        Ok(())
    }

    /// Refuses --chunks and --set of which none of several schedules knows, and says which do not know them.
    fn refuse_unknown(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        let selection = self.selection();
        if !selection.lenient || self.chunks.is_none() && self.set.is_empty() {
            return Ok(());
        }
        let mut takes = Vec::new();
        for name in names {
            let variant = Variant::parse(name)?;
            takes.push((name.as_str(), selection.takes(&variant)?));
        }
        let chunks = self.chunks.map(|v| (format!("--chunks {v}"), None)).into_iter();
        let set = self.set.iter().map(|(key, value)| (format!("--set {key}={value}"), Some(key)));
        for (flag, key) in chunks.chain(set) {
            let known = |(_, takes): &&(&str, Takes)| key.map_or(takes.chunks, |key| takes.options.contains(key));
            let without: Vec<&str> = takes.iter().filter(|one| !known(one)).map(|(name, _)| *name).collect();
            let what = if key.is_some() { "has no such option" } else { "says itself how many stages a device has" };
            let text = format!("{flag}: {} {what}", without.join(", "));
            if without.len() == names.len() {
                return Err(Failure::Usage(format!("{text}; leave it out")));
            }
            if !without.is_empty() {
                remarks.remark(&format!("{text}, and goes without"));
            }
        }
        Ok(())
    }

    /// Whether the order of any of `names`, before costs are known, is so; of `auto` it is.
    fn any(&self, names: &[String], is_so: fn(&Order) -> bool) -> Result<bool, Failure> {
        let several = self.stages.are_several() || self.micro.are_several();
        for name in names {
            if Variant::parse(name)?.is_auto() {
                return Ok(true);
            }
            for selection in self.selections() {
                match selection.order(name) {
                    Err(error) if several && error.is_of_numbers() => {} // it may exist for others
                    found => {
                        if is_so(&found?.order) {
                            return Ok(true);
                        }
                        break;
                    }
                }
            }
        }
        Ok(false)
    }
}

impl SearchOptions {
    /// What is asked of each of them.
    pub fn selection(&self) -> Selection {
        let effort = self.effort.unwrap_or(1);
        let memory_cap = self.memory_cap.and_then(Cap::units);
        Selection { memory_cap, room: self.room, effort, machine: self.machine.clone(), ..self.schedules.selection() }
    }

    /// Refuses options that none of the schedules `names` has a use for.
    pub fn refuse_idle(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        self.schedules.refuse_idle(names, remarks)?;
        if self.effort.is_some() && !self.any(names, is_searched)? {
            let names = names.join(", ");
            return Err(Failure::Usage(format!("--effort: {names} has no order that is searched; leave it out")));
        }
        Ok(())
    }

    /// Each schedule asked for, with its costs.
    pub fn resolved(&self, costs: &Costs, balance: bool, remarks: RemarkOptions) -> Result<Vec<Resolved>, Failure> {
        self.refuse_idle(&self.names(), remarks)?;
        let selection = Selection { balance, ..self.selection() };
        let one = |name: String| {
            let busy = remarks.busy(&format!("making the order of {name}"), None);
            let resolved = selection.resolve(&name, costs)?;
            drop(busy);
            resolved.warnings.iter().for_each(|warning| warn(warning, remarks));
            Ok(resolved)
        };
        self.names().into_iter().map(one).collect()
    }

    /// Whether costs decide the order of any schedule asked for.
    pub fn follows_costs(&self) -> Result<bool, Failure> {
        self.any(&self.names(), |order| matches!(order, Order::Open(_)))
    }

    /// The graph of each schedule asked for. Costs decide orders only, and are refused where they decide none.
    pub fn graphs(&self, costs: &CostOptions, remarks: RemarkOptions) -> Result<Vec<TaskGraph>, Failure> {
        let names = self.names();
        if costs.any() && !self.follows_costs()? {
            let names = names.join(", ");
            return Err(Failure::Usage(format!(
                "{}: the order of {names} is the same whatever ops cost; leave it out",
                costs.named()
            )));
        }
        let resolved = self.resolved(&costs.costs()?, costs.balance, remarks)?;
        resolved.iter().for_each(|resolved| tell_balance(resolved, remarks));
        Ok(resolved.into_iter().map(|resolved| resolved.graph).collect())
    }
}

/// Whether a search decides it.
fn is_searched(order: &Order) -> bool {
    matches!(order, Order::Open(open) if open.programs.iter().any(|program| matches!(program, Program::Search { .. })))
}

/// Tells people of a split that was searched.
pub fn tell_balance(resolved: &Resolved, remarks: RemarkOptions) {
    if let Some(found) = &resolved.balance {
        remarks.remark(&format!("{}: {found}", resolved.graph.schedule().name));
    }
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
        Warning::AboveCap { .. } | Warning::NoneFits { .. } => remarks.remark(&text),
    }
}
