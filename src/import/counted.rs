//! Ranges without numbers, as Megatron-LM names its forward and backward steps: counted in order.
//!
//! A rank's k-th forward and k-th backward of a step follow from the schedule. Which one it is shows in the order: how many forwards the
//! first rank runs before its first backward (Megatron-LM, `schedules.py`: `get_pp_rank_microbatches`).

use super::error::ImportError;
use super::pipeline;
use super::rank::{RankOp, RankRun, RankStep};
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;

/// Gives the ops of runs whose ranges have no numbers their micro-batches, chunks and steps.
///
/// # Errors
/// The order is that of no schedule that Megatron-LM runs.
pub fn number(runs: &mut [RankRun], warnings: &mut Vec<String>) -> Result<(), ImportError> {
    let mut pipelines: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
    for (at, run) in runs.iter().enumerate().filter(|(_, run)| run.is_counted) {
        let ranks = run.groups.iter().find(|group| pipeline::is_pipeline(group)).map(|group| group.ranks.clone());
        pipelines.entry(ranks.unwrap_or_default()).or_default().push(at);
    }
    let mut said: Vec<String> = Vec::new();
    for (ranks, mut members) in pipelines {
        members.sort_by_key(|&at| (runs[at].rank.or_else(|| pipeline::rank_of_name(&runs[at].file)), at));
        let order = Order::of(&members.iter().map(|&at| &runs[at]).collect::<Vec<_>>(), ranks.len())?;
        said.push(order.to_string());
        members.into_iter().for_each(|at| order.number(&mut runs[at]));
    }
    said.dedup();
    warnings.extend(said);
    Ok(())
}

/// The order that Megatron-LM runs.
struct Order {
    /// p, m and v.
    ranks: usize,
    microbatches: usize,
    chunks: usize,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Order { ranks, microbatches, chunks } = self;
        let name = if *chunks > 1 { format!("interleaved 1F1B with {chunks} chunks") } else { "1F1B".to_string() };
        write!(
            f,
            "the ranges have no numbers; they are counted in the order of {name} on {ranks} ranks, {microbatches} micro-batches"
        )
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

    /// Numbers the ops of a run: interleaved forwards go through the chunks in groups of p micro-batches, backwards from the last chunk on.
    fn number(&self, run: &mut RankRun) {
        let &Order { ranks: p, microbatches: m, chunks: v } = self;
        let marks: Vec<(u64, Option<(i64, i64)>)> = run.steps.iter().map(|step| (step.number, step.marked)).collect();
        let all: Vec<RankOp> = ops(run).copied().collect();
        let step = |(at, ops): (usize, &[RankOp])| {
            let mut seen = [0_usize; 2];
            let numbered = |op: &RankOp| {
                let counter = &mut seen[usize::from(is_forward(op))];
                let k = std::mem::replace(counter, *counter + 1);
                let (chunk, microbatch) = if v == 1 { (0, k) } else { (k / p % v, k / (p * v) * p + k % p) };
                let chunk = if is_forward(op) { chunk } else { v - 1 - chunk };
                RankOp { op: Op::new(op.op.kind(), chunk as u32, microbatch as u32), ..*op }
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
