//! Options that several verbs share.

use super::Failure;
use crate::cost::{CostFile, CostTable, Decimal, GivenCosts, Slow};
use crate::dsl::{self, Budget, Request};
use crate::graph::TaskGraph;
use crate::placement::Placement;
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    /// Schedule: a name (see `pipesim schedules`) or a .star file; repeatable [default: naive, gpipe, 1f1b, zb-v]
    #[arg(long, short = 's', value_name = "NAME|FILE", value_delimiter = ',')]
    pub schedule: Vec<String>,
    /// Stages a device, where the schedule leaves it open
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub chunks: Option<u32>,
    /// An option of the schedule's own, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
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
    pub fn graphs(&self) -> Result<Vec<TaskGraph>, Failure> {
        self.names().iter().map(|name| self.graph(name)).collect()
    }

    /// The graph of one schedule, by name or path.
    ///
    /// # Errors
    /// As [`ScheduleOptions::graphs`].
    pub fn graph(&self, name: &str) -> Result<TaskGraph, Failure> {
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
        let locate = |cycle: crate::graph::Cycle| {
            let wait = &cycle.waits[0];
            let place = compiled.source.location(wait.device, wait.index);
            Failure::Schedule(format!("{place}: deadlock for p = {}, m = {}: {cycle}", self.stages, self.micro))
        };
        TaskGraph::new(compiled.schedule).map_err(locate)
    }
}

/// Longest evaluation of a schedule file.
const EVALUATION_LIMIT: Duration = Duration::from_secs(60);

/// Ends the process where a schedule file is evaluated beyond its budget within one built-in call, which the language's
/// own limits see only afterwards.
struct Guard {
    done: Arc<AtomicBool>,
}

impl Guard {
    /// Watches from now until the guard is dropped. The schedule itself may take `schedule_bytes` besides.
    fn start(file: &str, budget: Budget, schedule_bytes: u64) -> Guard {
        let done = Arc::new(AtomicBool::new(false));
        let (watched, file) = (done.clone(), file.to_string());
        let (begin, before) = (Instant::now(), resident_bytes());
        std::thread::spawn(move || {
            while !watched.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                let used = resident_bytes().saturating_sub(before);
                let what = if used > (2 * budget.bytes as u64).saturating_add(schedule_bytes) {
                    format!("the budget is {} bytes of memory for the language's values", budget.bytes)
                } else if begin.elapsed() > EVALUATION_LIMIT {
                    format!("the budget is {} s for evaluating it", EVALUATION_LIMIT.as_secs())
                } else {
                    continue;
                };
                if !watched.swap(true, Ordering::SeqCst) {
                    super::output::tell(&format!("error: {file} was stopped: {what}"));
                    std::process::exit(3);
                }
            }
        });
        Guard { done }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
    }
}

/// Memory of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Reads a plain file of at most `limit` bytes as text.
///
/// # Errors
/// It is none, too long, or no text.
pub fn read_text(path: &Path, limit: u64) -> Result<String, Failure> {
    let fail = |what: String| Failure::Usage(format!("cannot read {}: {what}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
    if !metadata.is_file() || metadata.len() > limit {
        return Err(fail(format!("expected a plain file of at most {} MiB", limit >> 20)));
    }
    std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))
}

/// Memory that is free on this machine, where the system tells.
pub fn free_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Refuses what would not fit in this machine's free memory; where that is unknown, everything passes.
fn require_memory(ops: u64) -> Result<(), Failure> {
    const BYTES_PER_OP: u64 = 40; // op, upstream, order, start, end, and slack
    let needed = ops.saturating_mul(BYTES_PER_OP);
    match free_memory_bytes() {
        Some(free) if needed > free => Err(Failure::Schedule(format!(
            "a step of {ops} ops needs about {} GiB of memory, but {} GiB are free; take fewer micro-batches",
            needed >> 30,
            free >> 30
        ))),
        _ => Ok(()),
    }
}

/// What ops cost when no run says so.
#[derive(Args, Clone, Debug)]
pub struct CostOptions {
    /// Costs per device (a chunk costs 1/v): F=1,I=1,W=1,B=2,comm=0.1,keep=1; B is I + W unless given [default: units]
    #[arg(long, value_name = "F=..,I=..", value_parser = clap::value_parser!(GivenCosts), conflicts_with = "profile")]
    pub costs: Option<GivenCosts>,
    /// Measured costs, as `pipesim profile` writes them
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// A device that runs slower by a factor, repeatable: 2=1.3
    #[arg(long, value_name = "DEVICE=FACTOR", value_parser = slow)]
    pub slow: Vec<(u32, Decimal)>,
    /// Blocks of each stage, in model order: 7,5 (with --profile)
    #[arg(long, value_name = "N,N,..", value_delimiter = ',')]
    pub layers: Option<Vec<usize>>,
}

fn slow(text: &str) -> Result<(u32, Decimal), String> {
    let (device, factor) = text.split_once('=').ok_or("expected DEVICE=FACTOR, as in 2=1.3")?;
    let device = device.trim().parse().map_err(|_| format!("expected a device number, found '{device}'"))?;
    let factor: Decimal = factor.trim().parse()?;
    if factor.to_f64() <= 0.0 {
        return Err("the factor must be above 0".to_string());
    }
    Ok((device, factor))
}

impl CostOptions {
    /// The cost file, where one is given.
    ///
    /// # Errors
    /// It cannot be read or is none.
    pub fn file(&self) -> Result<Option<CostFile>, Failure> {
        let Some(path) = &self.profile else { return Ok(None) };
        let text = read_text(path, 256 << 20)?;
        CostFile::from_json(&text).map(Some).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
    }

    /// The table of given costs for `placement`.
    ///
    /// # Errors
    /// A slow device that does not exist, or costs that overflow.
    pub fn given(&self, placement: &Placement, microbatches: u32) -> Result<CostTable, Failure> {
        let slow: Slow = self.slow.iter().copied().collect();
        self.costs.clone().unwrap_or_default().table(placement, microbatches, &slow).map_err(Failure::Usage)
    }
}

/// Shape of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Table and timeline for people.
    Table,
    /// One object, full precision.
    Json,
    /// A row a schedule.
    Csv,
    /// A Markdown table.
    Md,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Where output goes and what it looks like.
#[derive(Args, Clone, Debug)]
pub struct OutputOptions {
    /// What is printed to stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write a file (.svg .png .html .json .csv .trace.json .trace.json.gz) or, with any other name, a report folder; repeatable
    #[arg(long, short, value_name = "PATH")]
    pub output: Vec<PathBuf>,
    /// Colours in the terminal; NO_COLOR is respected
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// ASCII instead of Unicode in the terminal
    #[arg(long)]
    pub ascii: bool,
    /// Print nothing to stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// Print more to stderr; repeatable
    #[arg(long, short, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Exit with code 4 where this holds for a schedule: 'bubble>0.15', 'makespan>=40'; repeatable
    #[arg(long, value_name = "CONDITION", value_parser = clap::value_parser!(super::output::Condition))]
    pub fail_if: Vec<super::output::Condition>,
}
