//! Ops without numbers, as of Megatron-LM: counted in order.
//!
//! A rank's k-th forward and k-th backward of a step follow from the schedule. Which one it is shows in the order: how many forwards the
//! first rank runs before its first backward (Megatron-LM, `schedules.py`: `get_pp_rank_microbatches`) or, where autograd's numbers tell
//! which backward belongs to which forward, in which order the backwards come.

use super::error::ImportError;
use super::pipeline;
use super::rank::{RankOp, RankRun, RankStep, Stages};
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;

/// Gives the ops of runs whose ranges have no numbers their micro-batches, chunks and steps.
///
/// # Errors
/// The order is that of no schedule that Megatron-LM runs.
pub fn number(runs: &mut [RankRun], warnings: &mut Vec<String>) -> Result<(), ImportError> {
    let mut said: Vec<String> = Vec::new();
    for (ranks, mut members) in pipelines(runs, |run| run.is_counted) {
        members.sort_by_key(|&at| (runs[at].rank.or_else(|| pipeline::rank_of_name(&runs[at].file)), at));
        let order = Order::of(&members.iter().map(|&at| &runs[at]).collect::<Vec<_>>(), ranks.len())?;
        said.push(format!("the ranges have no numbers; they are counted in the order of {order}"));
        for (device, at) in members.into_iter().enumerate() {
            order.number(&mut runs[at]);
            said.extend(order.doubt(&runs[at], device));
        }
    }
    said.dedup();
    warnings.extend(said);
    Ok(())
}

/// Returns the positions of the runs of each pipeline that `is_meant`, by its ranks; those are empty if no file says them.
fn pipelines(runs: &[RankRun], is_meant: fn(&RankRun) -> bool) -> BTreeMap<Vec<u32>, Vec<usize>> {
    let mut pipelines: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
    for (at, run) in runs.iter().enumerate().filter(|(_, run)| is_meant(run)) {
        let ranks = run.groups.iter().find(|group| pipeline::is_pipeline(group)).map(|group| group.ranks.clone());
        pipelines.entry(ranks.unwrap_or_default()).or_default().push(at);
    }
    pipelines
}

/// Finds the chunks of runs whose forwards all seem to be of one: interleaved backwards come in another order than the forwards.
pub fn divide(runs: &mut [RankRun], warnings: &mut Vec<String>) {
    let is_undivided =
        |run: &RankRun| run.stages == Stages::OfRank && !run.is_counted && ops(run).all(|op| op.op.stage() == 0);
    for (ranks, members) in pipelines(runs, is_undivided) {
        if members.iter().all(|&at| runs[at].steps.iter().all(is_in_order)) {
            continue;
        }
        let p = if ranks.is_empty() { members.len() } else { ranks.len() };
        let most =
            members.iter().flat_map(|&at| &runs[at].steps).map(|step| step.ops.len() / 2).max().unwrap_or_default();
        let orders = (2..=most / p.max(1)).filter(|v| most.is_multiple_of(p * v));
        let mut orders = orders.map(|chunks| Order { ranks: p, microbatches: most / chunks, chunks });
        let whole = |step: &&RankStep| step.ops.len() == 2 * most;
        let fits = |order: &Order| {
            members.iter().flat_map(|&at| &runs[at].steps).filter(whole).all(|step| order.has_backwards_of(step))
        };
        let Some(order) = orders.find(fits) else {
            warnings.push(
                "backwards come in another order than their forwards, as with several chunks a rank, but in none of Megatron-LM's: \
                 what is shown has one chunk; name the ops by ranges such as PP:0F3"
                    .to_string(),
            );
            continue;
        };
        warnings.push(format!("the order of the backwards is that of {order}: the ops are counted in it"));
        for &at in &members {
            let before = runs[at].steps.len();
            runs[at].steps.retain(|step| step.ops.len() == 2 * most);
            if runs[at].steps.len() < before {
                warnings.push(format!(
                    "{}: {} incomplete steps are left out",
                    runs[at].file,
                    before - runs[at].steps.len()
                ));
            }
            for op in runs[at].steps.iter_mut().flat_map(|step| &mut step.ops) {
                let (chunk, microbatch) = order.nth(Kind::F, op.op.microbatch() as usize);
                op.op = Op::new(op.op.kind(), chunk, microbatch);
            }
        }
    }
}

fn backwards(step: &RankStep) -> impl Iterator<Item = usize> {
    step.ops.iter().filter(|op| !is_forward(op)).map(|op| op.op.microbatch() as usize)
}

/// Whether the backwards come in the order of their forwards.
fn is_in_order(step: &RankStep) -> bool {
    backwards(step).is_sorted()
}

/// The order that Megatron-LM runs.
pub struct Order {
    /// p, m and v.
    pub ranks: usize,
    pub microbatches: usize,
    pub chunks: usize,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Order { ranks, microbatches, chunks } = self;
        let name = if *chunks > 1 { format!("interleaved 1F1B with {chunks} chunks") } else { "1F1B".to_string() };
        write!(f, "{name} on {ranks} ranks, {microbatches} micro-batches")
    }
}

fn is_forward(op: &RankOp) -> bool {
    op.op.kind() == Kind::F
}

fn ops(run: &RankRun) -> impl Iterator<Item = &RankOp> {
    run.steps.iter().flat_map(|step| &step.ops)
}

impl Order {
    /// Recognises the order of the ranks of one pipeline, of `size` ranks if that is known.
    fn of(runs: &[&RankRun], size: usize) -> Result<Order, ImportError> {
        let p = if size == 0 { runs.len() } else { size };
        let wrong = |found: String| {
            ImportError::new(format!(
                "expected forward_step and backward_step ranges of whole steps of 1F1B or interleaved 1F1B on each of the {p} ranks, found {found}; \
                 record whole training steps on all ranks, or number the ranges and name them with `label`"
            ))
        };
        if runs.len() != p {
            return Err(wrong(format!("files of {}", runs.len())));
        }
        // On the first rank, no forward is without its backward only between steps.
        let (mut open, mut per_step, mut warmup) = (0_i64, 0, 0);
        for op in ops(runs[0]) {
            (open, per_step) = (open + if is_forward(op) { 1 } else { -1 }, per_step + usize::from(is_forward(op)));
            warmup += usize::from(is_forward(op) && open as usize == per_step);
            if open <= 0 {
                break;
            }
        }
        if open != 0 || per_step == 0 {
            return Err(wrong(format!("{} in {}", ops(runs[0]).count(), runs[0].file)));
        }
        // Interleaved, the first rank runs 2 (p - 1) + (v - 1) p + 1 forwards first, or all of them if m = p.
        let chunks = match warmup {
            all if all == per_step && per_step > p => per_step / p,
            some if some > p => (some + 1).saturating_sub(p) / p,
            _ => 1,
        };
        let order = Order { ranks: p, microbatches: per_step / chunks.max(1), chunks: chunks.max(1) };
        for (device, run) in runs.iter().enumerate() {
            let count = ops(run).count();
            let first = ops(run).take_while(|op| is_forward(op)).count();
            let is_whole = count > 0 && count.is_multiple_of(2 * per_step) && per_step.is_multiple_of(order.chunks);
            // Older versions run all forwards first if m = p.
            let all_first = order.chunks > 1 && order.microbatches == p && first == per_step;
            if !is_whole || first != order.forwards_first(device) && !all_first {
                return Err(wrong(format!("{count} in {}, {first} forwards before the first backward", run.file)));
            }
        }
        Ok(order)
    }

    /// Returns how many forwards a device runs before its first backward.
    fn forwards_first(&self, device: usize) -> usize {
        let &Order { ranks: p, microbatches: m, chunks: v } = self;
        match v {
            1 => (p - device).min(m),
            _ => (2 * (p - 1 - device) + (v - 1) * p + 1).min(m * v),
        }
    }

    /// Returns the chunk and the micro-batch of a device's k-th forward or backward: interleaved forwards go through the chunks in groups
    /// of p micro-batches, backwards from the last chunk on.
    fn nth(&self, kind: Kind, k: usize) -> (u32, u32) {
        let &Order { ranks: p, chunks: v, .. } = self;
        let (chunk, microbatch) = if v == 1 { (0, k) } else { (k / p % v, k / (p * v) * p + k % p) };
        (if kind == Kind::F { chunk } else { v - 1 - chunk } as u32, microbatch as u32)
    }

    /// Whether the backwards of a step, each with the number of its forward, come in this order.
    fn has_backwards_of(&self, step: &RankStep) -> bool {
        backwards(step).enumerate().all(|(at, forward)| self.nth(Kind::B, at) == self.nth(Kind::F, forward))
    }

    /// Returns the ops of a device in order, with global stages.
    pub fn ops(&self, device: usize) -> Vec<Op> {
        let (all, first) = (self.microbatches * self.chunks, self.forwards_first(device));
        let op = |kind, k| {
            let (chunk, microbatch) = self.nth(kind, k);
            Op::new(kind, chunk * self.ranks as u32 + device as u32, microbatch)
        };
        let mut ops: Vec<Op> = (0..first).map(|k| op(Kind::F, k)).collect();
        for k in 0..all {
            ops.push(op(Kind::B, k));
            ops.extend((first + k < all).then(|| op(Kind::F, first + k)));
        }
        ops
    }

    /// Says in which steps a run's forwards and backwards alternate otherwise: a time may be damaged.
    fn doubt(&self, run: &RankRun, device: usize) -> Option<String> {
        let expected = self.ops(device);
        let all_first = |step: &RankStep| self.chunks > 1 && step.ops.is_sorted_by_key(|op| !is_forward(op));
        let differs = |step: &&RankStep| {
            let as_expected = step.ops.iter().map(|op| op.op.kind()).eq(expected.iter().map(|op| op.kind()));
            !as_expected && !all_first(step) || step.ops.iter().any(|op| op.end <= op.start)
        };
        let steps: Vec<String> = run.steps.iter().filter(differs).map(|step| step.number.to_string()).take(8).collect();
        (!steps.is_empty()).then(|| {
            format!(
                "{}: forwards and backwards of step {} alternate in another order than that, or take no time; times may be damaged",
                run.file,
                steps.join(", ")
            )
        })
    }

    /// Numbers the ops of a run.
    fn number(&self, run: &mut RankRun) {
        let &Order { microbatches: m, chunks: v, .. } = self;
        let marks: Vec<(u64, Option<(i64, i64)>)> = run.steps.iter().map(|step| (step.number, step.marked)).collect();
        let all: Vec<RankOp> = ops(run).copied().collect();
        let step = |(at, ops): (usize, &[RankOp])| {
            let mut seen = [0_usize; 2];
            let numbered = |op: &RankOp| {
                let counter = &mut seen[usize::from(is_forward(op))];
                let k = std::mem::replace(counter, *counter + 1);
                let (chunk, microbatch) = self.nth(op.op.kind(), k);
                RankOp { op: Op::new(op.op.kind(), chunk, microbatch), ..*op }
            };
            let ops: Vec<RankOp> = ops.iter().map(numbered).collect();
            let begin = ops.first().map_or(0, |op| op.start);
            let mark = marks.iter().find(|(_, mark)| mark.is_some_and(|(start, end)| (start..end).contains(&begin)));
            let (number, marked) = mark.copied().unwrap_or((at as u64, None));
            RankStep { number, marked, ops, ..RankStep::default() }
        };
        run.steps = all.chunks(2 * m * v).enumerate().map(step).collect();
    }
}
