//! A coarse timeline from Megatron-LM's log: `--timing-log-level 2 --timing-log-option all` prints how long each rank computed.
//!
//! A log has sums per step and rank. A stage's forwards take its share each, so do its backwards; they are placed in the order that
//! Megatron-LM runs (`schedules.py`), each as soon as its input is there. What the log's waits exceed the placed ones by is said.

use super::counted::Order;
use super::error::ImportError;
use super::rank::{RankOp, RankRun, RankStep};
use pipesim_schedule::op::{Kind, Op};
use regex::Regex;
use std::collections::BTreeMap;

/// How `Run::format` names what is read here.
pub const FORMAT: &str = "Megatron-LM's timers";
/// A rank that computes this much longer than the median of its stage is named.
const SLOW: f64 = 1.05;
/// Most ranks and ops of a step that are read.
const MOST_RANKS: u64 = 1 << 16;
const MOST_OPS: u64 = 1 << 20;

/// Whether a text is a log with times of each rank.
pub fn is_log(text: &str) -> bool {
    text.contains("times across ranks (ms):") || text.contains("time across ranks (ms):")
}

/// One print of the timers: ms by name and rank.
#[derive(Default)]
struct Print {
    iteration: u64,
    ms: BTreeMap<String, BTreeMap<u32, f64>>,
}

/// The sizes that the log states among its arguments.
struct Sizes {
    world: u32,
    p: u32,
    microbatches: u32,
    chunks: u32,
}

/// Reads a log: a run per stage, a step per print.
///
/// # Errors
/// The log has no times of each rank, or does not state its sizes.
pub fn read(file: &str, text: &str, warnings: &mut Vec<String>) -> Result<Vec<RankRun>, ImportError> {
    let sizes = Sizes::of(file, text)?;
    let prints = prints(text);
    let is_whole = |print: &&Print| {
        ["forward-compute", "backward-compute"]
            .iter()
            .all(|name| print.ms.get(*name).is_some_and(|ranks| ranks.len() as u32 == sizes.world))
    };
    let whole: Vec<&Print> = prints.iter().filter(is_whole).collect();
    if whole.is_empty() {
        return Err(ImportError::new(format!(
            "expected forward-compute and backward-compute of all {} ranks in {file}, found {}; \
             run with --timing-log-level 2 --timing-log-option all",
            sizes.world,
            prints.iter().find_map(|print| print.ms.get("forward-compute")).map_or(0, BTreeMap::len)
        )));
    }
    let order =
        Order { ranks: sizes.p as usize, microbatches: sizes.microbatches as usize, chunks: sizes.chunks as usize };
    let mut runs: Vec<RankRun> = (0..sizes.p).map(|rank| RankRun::of_table(file, rank)).collect();
    let (mut placed_ms, mut measured_ms) = (Vec::new(), Vec::new());
    for print in &whole {
        let times: Vec<[i64; 2]> = (0..sizes.p).map(|stage| sizes.op_ns(print, stage)).collect();
        let steps = order.placed(&times);
        let last = steps.iter().flatten().map(|op| op.end).max().unwrap_or_default();
        placed_ms.push(last as f64 / 1e6);
        measured_ms.extend(print.ms.get("forward-backward").and_then(|ranks| ranks.values().copied().reduce(f64::max)));
        for (run, ops) in runs.iter_mut().zip(steps) {
            run.steps.push(RankStep { number: print.iteration, ops, ..RankStep::default() });
        }
    }
    warnings.push(format!(
        "a log has sums per step: the ops of a stage have equal times, and stand in the order of {order}"
    ));
    if let (Some(placed), Some(measured)) = (median(&placed_ms), median(&measured_ms)) {
        let apart = (measured - placed).abs();
        let what = if measured < placed {
            "less, as the ops of a step are not equal"
        } else {
            "of sends, unequal ops and the host are in no op"
        };
        warnings.push(format!(
            "forward-backward took {measured:.1} ms in the log, placed {placed:.1} ms: {apart:.1} ms ({:.1} %) {what}",
            apart / measured.max(f64::MIN_POSITIVE) * 100.0
        ));
    }
    warnings.extend(sizes.slow_ranks(&whole));
    Ok(runs)
}

impl Sizes {
    /// Takes the sizes from the arguments that Megatron-LM prints when it begins.
    fn of(file: &str, text: &str) -> Result<Sizes, ImportError> {
        let argument = |name: &str| -> Option<u64> {
            let pattern = Regex::new(&format!(r"(?m)(?:^|\s){name} \.+ (\d+)\s*$")).ok()?;
            pattern.captures(text)?.get(1)?.as_str().parse().ok()
        };
        let needed = |name: &str| {
            argument(name).filter(|&number| number > 0).ok_or_else(|| {
                ImportError::new(format!(
                    "expected Megatron-LM's printed argument {name} in {file}, found none; give the log from its beginning"
                ))
            })
        };
        let (world, p) = (needed("world_size")?, needed("pipeline_model_parallel_size")?);
        let (batch, micro) = (needed("global_batch_size")?, needed("micro_batch_size")?);
        let split = needed("tensor_model_parallel_size")? * argument("context_parallel_size").unwrap_or(1).max(1) * p;
        let replicas = argument("data_parallel_size").unwrap_or(world / split.max(1)).max(1);
        let microbatches = batch / (micro * replicas).max(1);
        let chunks = argument("virtual_pipeline_model_parallel_size").unwrap_or(1).max(1);
        let fits =
            world.is_multiple_of(p) && world <= MOST_RANKS && p * chunks * microbatches <= MOST_OPS && microbatches > 0;
        if !fits || chunks > 1 && !microbatches.is_multiple_of(p) {
            return Err(ImportError::new(format!(
                "expected sizes that fit each other in {file}, found world_size {world}, pipeline_model_parallel_size {p}, \
                 global_batch_size {batch}, micro_batch_size {micro}; give the log of one run"
            )));
        }
        Ok(Sizes { world: world as u32, p: p as u32, microbatches: microbatches as u32, chunks: chunks as u32 })
    }

    /// Returns the ranks of a stage: the pipeline is the outermost dimension (`parallel_state.py`, order `tp-cp-ep-dp-pp`).
    fn ranks(&self, stage: u32) -> std::ops::Range<u32> {
        let each = self.world / self.p;
        stage * each..(stage + 1) * each
    }

    /// Returns the mean time of a forward and a backward of a stage's ranks, in ns.
    fn op_ns(&self, print: &Print, stage: u32) -> [i64; 2] {
        ["forward-compute", "backward-compute"].map(|name| {
            let sum_ms: f64 = self.ranks(stage).filter_map(|rank| print.ms[name].get(&rank)).sum();
            let ops = f64::from(self.world / self.p) * f64::from(self.microbatches * self.chunks);
            (sum_ms / ops * 1e6).round() as i64
        })
    }

    /// Names the ranks that compute longer than the others of their stage, the slowest first.
    fn slow_ranks(&self, prints: &[&Print]) -> Option<String> {
        let busy = |rank: u32| {
            let of = |print: &&Print| print.ms["forward-compute"][&rank] + print.ms["backward-compute"][&rank];
            median(&prints.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
        };
        let mut slow: Vec<(f64, u32, u32)> = Vec::new();
        for stage in 0..self.p {
            let times: Vec<f64> = self.ranks(stage).map(busy).collect();
            let middle = median(&times).unwrap_or_default();
            slow.extend(
                self.ranks(stage)
                    .zip(times)
                    .filter(|(_, ms)| *ms > SLOW * middle)
                    .map(|(rank, ms)| (ms / middle, rank, stage)),
            );
        }
        slow.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let names: Vec<String> = slow
            .iter()
            .take(4)
            .map(|(factor, rank, stage)| format!("rank {rank} of stage {stage} by {:.1} %", (factor - 1.0) * 100.0))
            .collect();
        let more =
            if slow.len() > names.len() { format!(" and {} more", slow.len() - names.len()) } else { String::new() };
        (!names.is_empty())
            .then(|| format!("ranks that compute longer than the median of their stage: {}{more}", names.join(", ")))
    }
}

/// Reads all prints of the timers of single ranks; each belongs to the iteration whose line is before it.
fn prints(text: &str) -> Vec<Print> {
    let mut prints: Vec<Print> = Vec::new();
    let (mut iteration, mut name): (u64, Option<String>) = (0, None);
    for line in text.lines() {
        if let Some(number) = iteration_of(line) {
            iteration = number;
        } else if line.contains("times across ranks (ms):") {
            prints.push(Print { iteration, ..Print::default() });
            name = None;
        } else if let Some((_, rest)) = line.rsplit_once("    rank ") {
            let time =
                rest.split_once(':').and_then(|(rank, ms)| Some((rank.trim().parse().ok()?, ms.trim().parse().ok()?)));
            if let (Some(print), Some(name), Some((rank, ms))) = (prints.last_mut(), &name, time)
                && (0.0..1e9).contains(&ms)
            {
                print.ms.entry(name.clone()).or_default().insert(rank, ms);
            }
        } else {
            name = line.trim_end().strip_suffix(':').and_then(|line| line.rsplit(' ').next()).map(str::to_string);
        }
    }
    let mut numbers = std::collections::BTreeSet::new();
    // A run that began again printed an iteration twice; the last counts.
    prints.reverse();
    prints.retain(|print| numbers.insert(print.iteration));
    prints.reverse();
    prints
}

fn iteration_of(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(" iteration ")?;
    rest.contains("elapsed time per iteration").then(|| rest.split('/').next()?.trim().parse().ok())?
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

impl Order {
    /// Places all ops of a step: a device runs its ops in order, each when its input is there. `times` has the ns of a forward and a
    /// backward of each rank.
    fn placed(&self, times: &[[i64; 2]]) -> Vec<Vec<RankOp>> {
        let Order { ranks: p, chunks, .. } = *self;
        let stages = (p * chunks) as u32;
        let orders: Vec<Vec<Op>> = (0..p).map(|device| self.ops(device)).collect();
        let mut ends: BTreeMap<Op, i64> = BTreeMap::new();
        let mut placed: Vec<Vec<RankOp>> = vec![Vec::new(); p];
        loop {
            let mut moved = false;
            for (device, order) in orders.iter().enumerate() {
                while let Some(&op) = order.get(placed[device].len()) {
                    let input = op.upstream(stages).map(|stage| Op::new(op.kind(), stage, op.microbatch()));
                    let own = (op.kind() == Kind::B).then(|| Op::new(Kind::F, op.stage(), op.microbatch()));
                    let ready = [input, own].into_iter().flatten().map(|before| ends.get(&before).copied());
                    let Some(ready) = ready.collect::<Option<Vec<i64>>>() else { break };
                    let free = placed[device].last().map_or(0, |last| last.end);
                    let start = ready.into_iter().fold(free, i64::max);
                    let end = start + times[device][usize::from(op.kind() == Kind::B)];
                    ends.insert(op, end);
                    placed[device].push(RankOp::new(op, start, end));
                    moved = true;
                }
            }
            if !moved {
                return placed;
            }
        }
    }
}
