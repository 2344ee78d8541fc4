//! Options that name schedules, with their numbers of devices and micro-batches.

use super::costs::CostOptions;
use super::memory_cap::MemoryCap;
use super::values::{Numbers, numbers_of_sweep, one_of, whole};
use crate::cli::Failure;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cost::analytic::Analytic;
use crate::dsl::{Budget, MAX_CHUNKS, Takes};
use crate::fsdp::Fsdp;
use crate::graph::TaskGraph;
use crate::model_spec::StageLayout;
use crate::open::{Order, Program};
use crate::resolve::{Costs, PlatformOptions, Resolved, Selection, Variant};
use crate::schedule::Overlap;
use crate::slices::Slices;
use clap::{ArgMatches, Args};
use std::ops::Deref;

const DEFAULT_SCHEDULES: [&str; 4] = ["naive", "gpipe", "1f1b", "zb-v"];

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
    Slices::of_lengths(&lengths)
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as in group=4")?;
    Ok((key.trim().to_string(), value.trim().to_string()))
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
    #[arg(long, value_name = "UNITS|BYTES", value_parser = MemoryCap::parse)]
    pub memory_cap: Option<MemoryCap>,
    /// Activation units that fit in the hardware's memory.
    #[arg(skip)]
    pub room: Option<f64>,
    #[arg(skip)]
    pub machine: PlatformOptions,
    /// How FSDP gathers parameters between ops.
    #[arg(skip)]
    pub fsdp: Option<Fsdp>,
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
    /// Returns the names of the schedules, the default ones if none is named.
    pub fn names(&self) -> Vec<String> {
        let asked = self.asked();
        match self.only {
            Some(number) => asked.into_iter().skip(number as usize - 1).take(1).collect(),
            None if asked.is_empty() => DEFAULT_SCHEDULES.map(str::to_string).to_vec(),
            None => asked,
        }
    }

    pub fn asked(&self) -> Vec<String> {
        self.schedule.iter().flat_map(Names::all).cloned().collect()
    }

    /// Returns the selection for each p and m.
    pub fn selections(&self) -> impl Iterator<Item = Selection> {
        let pairs = self.stages.all().iter().flat_map(|&p| self.micro.all().iter().map(move |&m| (p, m)));
        pairs.map(|(devices, microbatches)| Selection { devices, microbatches, ..self.selection() })
    }

    /// Returns the selection for the first p and m.
    pub fn selection(&self) -> Selection {
        let usual = Budget::default();
        Selection {
            chunks: self.chunks,
            options: self.set.iter().cloned().collect(),
            slices: self.slice_lengths.clone(),
            lenient: self.only.is_some() || self.names().len() > 1,
            overlap: self.overlap,
            budget: Budget { ticks: self.max_ticks.unwrap_or(usual.ticks), ops: self.max_ops, ..usual },
            host: &Sandbox,
            ..Selection::new(self.stages.first(), self.micro.first())
        }
    }

    /// Rejects options that have no effect on any of the schedules `names`.
    pub fn reject_unused(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        let idle = |option: &str, why: &str| {
            let names = names.join(", ");
            Err(Failure::Usage(format!("{option}: {names} {why}; leave it out")))
        };
        if self.only.is_some() {
            return Ok(()); // options may be for the others
        }
        self.reject_unknown(names, remarks)?;
        if self.max_ticks.is_some()
            && names.iter().all(|name| Variant::parse(name).is_ok_and(|variant| variant.is_csv()))
        {
            return idle("--max-ticks", "is a list of ops and needs no evaluation");
        }
        if self.overlap != Overlap::default() && !self.any(names, has_pairs)? {
            return idle("--overlap", "has no overlapped pairs");
        }
        Ok(())
    }

    /// Rejects --chunks and --set that none of several schedules has, and says which schedules do not have them.
    fn reject_unknown(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        let selection = self.selection();
        if !selection.lenient || self.chunks.is_none() && self.set.is_empty() && self.slice_lengths.is_none() {
            return Ok(());
        }
        let mut takes = Vec::new();
        for name in names {
            let variant = Variant::parse(name)?;
            takes.push((name.as_str(), selection.takes(&variant)?));
        }
        let chunks = self.chunks.map(|v| (format!("--chunks {v}"), None)).into_iter();
        let set = self.set.iter().map(|(key, value)| (format!("--set {key}={value}"), Some(key)));
        let slices = "slices".to_string();
        let lengths = self.slice_lengths.as_ref().map(|_| ("--slice-lengths".to_string(), Some(&slices)));
        for (flag, key) in chunks.chain(set).chain(lengths) {
            let known = |(_, takes): &&(&str, Takes)| key.map_or(takes.chunks, |key| takes.options.contains(key));
            let without: Vec<&str> = takes.iter().filter(|one| !known(one)).map(|(name, _)| *name).collect();
            let what = if key.is_some() { "has no such option" } else { "has a fixed number of stages per device" };
            let text = format!("{flag}: {} {what}", without.join(", "));
            if without.len() == names.len() {
                return Err(Failure::Usage(format!("{text}; leave it out")));
            }
            if !without.is_empty() {
                remarks.remark(&format!("{text}; it is ignored there"));
            }
        }
        Ok(())
    }

    /// Whether any schedule cuts its sequences in slices, as far as orders before costs are known tell.
    pub fn are_cut(&self) -> Result<bool, Failure> {
        self.any(&self.names(), |order| match order {
            Order::Fixed(schedule) => schedule.slices().is_cut(),
            Order::Open(open) => open.slices.is_cut(),
        })
    }

    /// Whether `is_so` holds for the order, before costs are known, of any of `names`; for `auto` it does.
    fn any(&self, names: &[String], is_so: fn(&Order) -> bool) -> Result<bool, Failure> {
        let several = self.stages.are_several() || self.micro.are_several();
        for name in names {
            if Variant::parse(name)?.is_auto() {
                return Ok(true);
            }
            for selection in self.selections() {
                match selection.order(name) {
                    Err(error) if several && error.is_of_numbers() => {} // may exist for other numbers
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
    /// Returns the schedules for the number of micro-batches of the batch and the memory of `analytic`. Without a name, several stages per
    /// device mean interleaved-1f1b.
    pub fn under(&self, analytic: &Analytic) -> Result<SearchOptions, Failure> {
        let mut asked = self.clone();
        let one = |number: u32| Numbers::parse(&number.to_string(), &(1..=u32::MAX)).map_err(Failure::Usage);
        asked.schedules.micro = one(analytic.layout.micro)?;
        asked.schedules.stages = one(analytic.layout.pp)?;
        asked.room = analytic.room();
        if let Some(layout) = &analytic.layout.layout {
            asked = asked.arranged(layout)?;
        }
        if analytic.layout.moe_overlap {
            asked.schedules.overlap = Overlap::Streams;
            asked.pair_up(analytic.layout.chunks)?;
        }
        if asked.schedule.is_empty() && asked.chunks.is_some_and(|chunks| chunks > 1) {
            asked.schedules.schedule = vec![names("interleaved-1f1b").map_err(Failure::Usage)?];
        }
        Ok(asked)
    }

    /// Returns the schedules with as many stages per device as `layout` has, if they leave that open.
    pub fn arranged(&self, layout: &StageLayout) -> Result<SearchOptions, Failure> {
        let mut asked = self.clone();
        let chunks =
            layout.chunks(self.stages.first()).map_err(|error| Failure::Usage(format!("--layout: {error}")))?;
        let takes = |name: &String| Variant::parse(name).and_then(|variant| self.selection().takes(&variant));
        let fixed = self.asked().iter().map(takes).any(|takes| takes.is_ok_and(|takes| !takes.chunks));
        let is_named = !self.schedule.is_empty();
        asked.schedules.chunks = if fixed || chunks == 1 && !is_named { None } else { Some(chunks) };
        if !is_named && chunks == 1 {
            asked.schedules.schedule = vec![names("naive,gpipe,1f1b").map_err(Failure::Usage)?];
        } else if !is_named {
            asked.schedules.schedule = vec![names("interleaved-1f1b").map_err(Failure::Usage)?];
        }
        Ok(asked)
    }

    /// Makes schedules hide the communication of experts: interleaved-overlap if none is named.
    ///
    /// # Errors
    /// A schedule without overlapped pairs is named.
    fn pair_up(&mut self, chunks: u32) -> Result<(), Failure> {
        if self.schedule.is_empty() {
            if chunks == 1 && self.stages.first() > 1 {
                return Err(Failure::Usage(
                    "expected several virtual stages with --moe-overlap and a pipeline, as in Megatron; add --chunks 2"
                        .to_string(),
                ));
            }
            self.schedules.schedule = vec![names("interleaved-overlap").map_err(Failure::Usage)?];
            self.schedules.chunks = Some(chunks);
            return Ok(());
        }
        for name in self.asked() {
            if !self.any(std::slice::from_ref(&name), has_pairs)? {
                return Err(Failure::Usage(format!(
                    "--moe-overlap runs forwards next to backwards, and {name} has no such pairs; take -s interleaved-overlap or leave \
                     --moe-overlap out"
                )));
            }
        }
        Ok(())
    }

    /// Returns the selection for the first p and m.
    pub fn selection(&self) -> Selection {
        let effort = self.effort.unwrap_or(1);
        let memory_cap = self.memory_cap.and_then(MemoryCap::units);
        let (machine, fsdp) = (self.machine.clone(), self.fsdp.clone());
        Selection { memory_cap, room: self.room, effort, machine, fsdp, ..self.schedules.selection() }
    }

    /// Rejects options that have no effect on any of the schedules `names`.
    pub fn reject_unused(&self, names: &[String], remarks: RemarkOptions) -> Result<(), Failure> {
        self.schedules.reject_unused(names, remarks)?;
        if self.only.is_none() && self.effort.is_some() && !self.any(names, is_searched)? {
            let names = names.join(", ");
            return Err(Failure::Usage(format!("--effort: the order of {names} is not searched; leave it out")));
        }
        Ok(())
    }

    pub fn resolved(&self, costs: &Costs, balance: bool, remarks: RemarkOptions) -> Result<Vec<Resolved>, Failure> {
        self.reject_unused(&self.names(), remarks)?;
        let selection = Selection { balance, ..self.selection() };
        let one = |name: String| {
            let busy = remarks.busy(&format!("making the order of {name}"), None);
            let resolved = selection.resolve(&name, costs)?;
            drop(busy);
            resolved.warnings.iter().for_each(|warning| remarks.warn(warning));
            Ok(resolved)
        };
        self.names().into_iter().map(one).collect()
    }

    /// Whether costs decide the order of any schedule.
    pub fn follows_costs(&self) -> Result<bool, Failure> {
        self.any(&self.names(), |order| matches!(order, Order::Open(_)))
    }

    /// Returns the graph of each schedule. Here costs only decide orders, and are rejected if no order depends on them.
    pub fn graphs(&self, costs: &CostOptions, remarks: RemarkOptions) -> Result<Vec<TaskGraph>, Failure> {
        if let Some(option) = costs.first_given()
            && self.overlap != Overlap::Streams
            && !self.follows_costs()?
        {
            let names = self.names().join(", ");
            return Err(Failure::Usage(format!(
                "{option}: the order of {names} does not depend on costs; leave it out"
            )));
        }
        let layout = costs.stage_layout(self.stages.first(), self.chunks)?;
        let asked = layout.as_ref().map_or_else(|| Ok(self.clone()), |layout| self.arranged(layout))?;
        let resolved = asked.resolved(&costs.costs()?.with_layout(layout), costs.balance, remarks)?;
        resolved.iter().for_each(|resolved| remark_balance(resolved, remarks));
        Ok(resolved.into_iter().map(|resolved| resolved.graph).collect())
    }
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

fn is_searched(order: &Order) -> bool {
    matches!(order, Order::Open(open) if open.programs.iter().any(|program| matches!(program, Program::Search { .. })))
}

/// Prints the split that --balance found.
pub fn remark_balance(resolved: &Resolved, remarks: RemarkOptions) {
    if let Some(found) = &resolved.balance {
        remarks.remark(&format!("{}: {found}", resolved.graph.schedule().name));
    }
}

fn has_pairs(order: &Order) -> bool {
    match order {
        Order::Fixed(schedule) => schedule.has_pairs(),
        Order::Open(open) => open.programs.iter().any(|program| match program {
            Program::Fixed(ops) | Program::Fill { ops, .. } | Program::Offload { ops, .. } => {
                ops.iter().any(|op| op.opens_pair())
            }
            Program::Greedy { .. } | Program::Search { .. } => false,
        }),
    }
}
