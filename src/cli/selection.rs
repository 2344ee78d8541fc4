//! Which schedules a command is about: by name, file or `auto`, for how many devices and micro-batches.

use super::Failure;
use super::auto::{self, Candidate};
use super::guard::{Guard, require_memory};
use super::options::{OutputOptions, read_text};
use crate::cost::CostTable;
use crate::csv;
use crate::dsl::{self, Budget, Request, Source};
use crate::graph::{Cycle, TaskGraph};
use crate::open::{Goal, OpenSchedule, Order, Program};
use crate::placement::Placement;
use crate::schedule::{Overlap, Schedule};
use crate::settle::settle;
use clap::Args;
use std::collections::BTreeMap;
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
    /// Most activations a device may hold, in units of its whole share of layers for one micro-batch: bounds what is searched
    #[arg(long, value_name = "UNITS", value_parser = activations)]
    pub memory_cap: Option<f64>,
    /// What an overlapped pair of a forward and a backward means: atomic (starts with both inputs, lasts F + B), serial (in turn), runtime (in turn, outputs at the end), max (as atomic, lasts the longer: perfect overlap)
    #[arg(long, value_name = "MEANING", default_value = "atomic", value_parser = overlap)]
    pub overlap: Overlap,
    /// Budget of calls and loop turns for evaluating a schedule file
    #[arg(long, value_name = "N", default_value_t = Budget::default().ticks)]
    pub max_ticks: u64,
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

/// What decides the order of ops that float: the costs on a placement, for the schedule of a name.
pub type Costs<'a> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, Failure>;

impl ScheduleOptions {
    /// Names of the schedules asked for.
    pub fn names(&self) -> Vec<String> {
        if self.schedule.is_empty() { DEFAULT_SCHEDULES.map(str::to_string).to_vec() } else { self.schedule.clone() }
    }

    /// The same without chunks and options of a schedule's own: for another schedule than those asked for.
    pub fn without_options(&self) -> ScheduleOptions {
        ScheduleOptions { chunks: None, set: Vec::new(), ..self.clone() }
    }

    /// The graph of each schedule asked for.
    ///
    /// # Errors
    /// Unknown, invalid or deadlocking schedules; a step too large for this machine.
    pub fn graphs(&self, costs: Costs<'_>) -> Result<Vec<TaskGraph>, Failure> {
        self.names().iter().map(|name| self.graph(name, costs)).collect()
    }

    /// The graph of one schedule, by name or path.
    ///
    /// # Errors
    /// As [`ScheduleOptions::graphs`].
    pub fn graph(&self, name: &str, costs: Costs<'_>) -> Result<TaskGraph, Failure> {
        if is_auto(name) {
            self.no_options("auto tries all schedules")?;
            return self.best(costs);
        }
        let (order, source) = self.order(name)?;
        let schedule = match order {
            Order::Fixed(schedule) => schedule,
            Order::Open(open) => {
                let open = self.memory_cap.map_or(open.clone(), |cap| open.capped(cap));
                let table = costs(&open.name, &open.placement)?;
                settle(&open, &table).map_err(|e| Failure::Schedule(format!("{}: {e}", open.name)))?
            }
        };
        let locate = |cycle: Cycle| {
            let wait = &cycle.waits[0];
            let place = source.as_ref().map_or_else(|| name.to_string(), |s| s.location(wait.device, wait.index));
            Failure::Schedule(format!("{place}: deadlock for p = {}, m = {}: {cycle}", self.stages, self.micro))
        };
        TaskGraph::with_overlap(schedule, self.overlap).map_err(locate)
    }

    /// The order that a name or path stands for, and where its ops were written.
    ///
    /// # Errors
    /// As [`ScheduleOptions::graphs`].
    pub fn order(&self, name: &str) -> Result<(Order, Option<Source>), Failure> {
        if Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) {
            self.no_options("a .csv file holds one order")?;
            if self.chunks.is_some() {
                return Err(Failure::Usage(format!(
                    "{name} says itself how many stages a device has; leave --chunks out"
                )));
            }
            return Ok((Order::Fixed(self.imported(Path::new(name))?), None));
        }
        let path = dsl::resolve(name)?;
        let chunks = u64::from(self.chunks.unwrap_or(1));
        require_memory(2 * u64::from(self.stages) * u64::from(self.micro) * chunks)?;
        let request = Request {
            devices: self.stages,
            microbatches: self.micro,
            chunks: self.chunks,
            options: self.set.iter().cloned().collect::<BTreeMap<_, _>>(),
            budget: Budget { ticks: self.max_ticks, ops: self.max_ops, ..Budget::default() },
        };
        let guard =
            Guard::start(&path.file, request.budget, 16 * 3 * u64::from(self.stages) * u64::from(self.micro) * chunks);
        let compiled = dsl::compile(&path, &request)?;
        drop(guard);
        Ok((compiled.order, Some(compiled.source)))
    }

    /// Refuses options of a schedule's own where there is none to have them.
    fn no_options(&self, why: &str) -> Result<(), Failure> {
        match self.set.first() {
            Some((key, _)) => Err(Failure::Usage(format!("no option '{key}' here: {why}; leave --set out"))),
            None => Ok(()),
        }
    }

    /// The schedule in one of PyTorch's files, which must be for the numbers asked for.
    fn imported(&self, path: &Path) -> Result<Schedule, Failure> {
        let text = read_text(path, csv::MAX_BYTES as u64)?;
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let file = path.display().to_string();
        let imported = csv::read(&name, &file, &text).map_err(|e| Failure::Schedule(e.to_string()))?;
        imported.warnings.iter().for_each(|warning| super::output::tell(&format!("warning: {warning}")));
        let (p, m) = (imported.schedule.devices(), imported.schedule.microbatches);
        if (p, m) != (self.stages, self.micro) {
            return Err(Failure::Usage(format!(
                "{file} is a schedule for {p} devices and {m} micro-batches; ask for --stages {p} --micro {m}, found --stages {} --micro {}",
                self.stages, self.micro
            )));
        }
        let place = |fault| Failure::Schedule(format!("{file}: not a schedule for p = {p}, m = {m}: {fault}"));
        imported.schedule.validate().map_err(place)?;
        Ok(imported.schedule)
    }

    /// Says so where a schedule whose order costs do not decide exceeds --memory-cap.
    pub fn remark_cap(&self, graph: &TaskGraph, keep: f64, output: &OutputOptions) {
        let Some(cap) = self.memory_cap else { return };
        let (schedule, peak) = (graph.schedule(), graph.schedule().peak(keep));
        if peak > cap + 1e-9 {
            output.remark(&format!(
                "warning: {} holds {peak} activations, above --memory-cap {cap}; its order is fixed",
                schedule.name
            ));
        }
    }

    /// `auto`: of all schedules that come with the program and exist for these numbers the one with the smallest makespan
    /// that keeps the cap; among equals the smaller span, then the smaller peak, then the earlier in the list.
    fn best(&self, costs: Costs<'_>) -> Result<TaskGraph, Failure> {
        let (mut candidates, mut unfit) = (Vec::new(), None);
        let chunks = match self.chunks {
            Some(chunks) => vec![Some(chunks)],
            None => vec![None, Some(3), Some(4)],
        };
        for (name, chunks) in dsl::names().into_iter().flat_map(|name| chunks.iter().map(move |&chunks| (name, chunks)))
        {
            let options = ScheduleOptions { chunks, ..self.without_options() };
            let Ok((order, _)) = options.order(name) else { continue };
            let costs = match costs(name, order.placement()) {
                Ok(costs) => costs,
                // a model may have too few layers for so many stages
                Err(failure) => {
                    unfit.get_or_insert(failure);
                    continue;
                }
            };
            let order = match (order, self.memory_cap) {
                (Order::Open(open), Some(cap)) => Order::Open(open.capped(cap)),
                (order, _) => order,
            };
            candidates.push(Candidate { order, costs });
        }
        if let (true, Some(failure)) = (candidates.is_empty(), unfit) {
            return Err(failure);
        }
        candidates.extend(self.larger_search(costs)?);
        let graph = auto::best(candidates, self.overlap, self.memory_cap).ok_or_else(|| {
            let cap = self.memory_cap.map_or_else(String::new, |cap| format!(" within {cap} activations"));
            Failure::Schedule(format!(
                "no schedule for p = {}, m = {} runs{cap}; naive holds 1: raise --memory-cap",
                self.stages, self.micro
            ))
        })?;
        Ok(graph.renamed(|name| format!("auto ({name})")))
    }
}

impl ScheduleOptions {
    /// A search on a V for more than the p activations of the named ones, where the cap leaves room for more.
    fn larger_search(&self, costs: Costs<'_>) -> Result<Option<Candidate>, Failure> {
        let (p, limit) = (f64::from(self.stages), 2.0 * f64::from(self.stages));
        let cap = self.memory_cap.map_or(limit, |cap| cap.min(limit));
        if cap <= p {
            return Ok(None);
        }
        let placement = Placement::zigzag("V", self.stages, 2);
        let Ok(costs) = costs(LARGER_SEARCH, &placement) else { return Ok(None) };
        let search = Program::Search { split: true, cap: Some(cap), start: None };
        let order = Order::Open(OpenSchedule {
            name: LARGER_SEARCH.to_string(),
            placement,
            microbatches: self.micro,
            programs: vec![search; self.stages as usize],
            goal: Goal::Makespan,
        });
        Ok(Some(Candidate { order, costs }))
    }
}

/// What `auto` calls its own search.
const LARGER_SEARCH: &str = "searched on a V";

/// Whether a schedule's name asks for the best one.
fn is_auto(name: &str) -> bool {
    name.eq_ignore_ascii_case("auto")
}

/// Costs for a schedule that is itself to be measured for costs.
///
/// # Errors
/// Always: there are none yet.
pub fn unknown_costs(name: &str, _: &Placement) -> Result<CostTable, Failure> {
    Err(Failure::Usage(format!(
        "costs decide the order of {name}, but none are known before it is measured; calibrate on a schedule of fixed order, such as 1f1b"
    )))
}
