//! The steady state: the longest stretch of a timeline that repeats itself except for micro-batch numbers.

use pipesim_schedule::op::Op;
use pipesim_schedule::timeline::{Queue, Timeline};

/// Fewest repeats worth a cut.
const FEWEST: u64 = 3;

/// A stretch of `count` periods that differ only in micro-batch numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Start of the first period, in ns.
    pub start: u64,
    /// Length of a period, in ns.
    pub period: u64,
    pub count: u64,
}

impl Repeat {
    /// Returns the hidden interval if the first period is drawn for all, in ns.
    pub fn hidden(&self) -> (u64, u64) {
        (self.start + self.period, self.start + self.period * self.count)
    }

    fn hides(&self) -> u64 {
        self.period * (self.count - 1)
    }
}

/// Identity of a span. The micro-batch comes last, so that the same op of another micro-batch is found by binary
/// search.
type Key = (u32, Queue, Option<(u32, u32, u32, u32)>);

/// A span: key, start, end and phase.
type Item<'a> = (Key, u64, u64, Option<&'a str>);

/// Returns the stretch that hides most time if drawn once. On every device, whatever runs at t runs again one period
/// later, with all micro-batch numbers shifted alike. None if no stretch repeats three times. The comparison is exact,
/// so measured timelines have none.
pub fn steady(timeline: &Timeline) -> Option<Repeat> {
    let mut items: Vec<Item> = timeline
        .spans
        .iter()
        .filter(|span| span.start_ns < span.end_ns)
        .map(|span| {
            let op = span.op.parse().ok().map(|op: Op| {
                (
                    op.kind() as u32 + 16 * op.slice_number() as u32,
                    op.stage(),
                    span.peer.unwrap_or(u32::MAX),
                    op.microbatch(),
                )
            });
            ((span.device, span.queue, op), span.start_ns, span.end_ns, span.phase.as_deref())
        })
        .collect();
    items.sort_unstable();
    let one = items.first().map(|item| item.0.0)?;
    let of_one = &items[..items.partition_point(|item| item.0.0 == one)];
    let most = (timeline.microbatches / FEWEST as u32).min((2 * timeline.devices).max(8));
    // A single device has a longer stretch than all devices together, and is quick to search.
    let mut candidates: Vec<(Repeat, u32)> =
        (1..=most).filter_map(|shift| Some((longest(of_one, period(of_one, shift)?, shift)?, shift))).collect();
    candidates.sort_by_key(|(repeat, _)| (std::cmp::Reverse(repeat.hides()), repeat.period));
    let mut best: Option<Repeat> = None;
    for (bound, shift) in candidates {
        if best.is_some_and(|best| best.hides() >= bound.hides()) {
            break;
        }
        let found = longest(&items, bound.period, shift);
        best =
            [best, found].into_iter().flatten().max_by_key(|repeat| (repeat.hides(), std::cmp::Reverse(repeat.period)));
    }
    best
}

/// Returns the same op of a micro-batch shifted by `shift`.
fn shifted<'a, 'b>(items: &'b [Item<'a>], item: &Item, shift: i64) -> Option<&'b Item<'a>> {
    let (device, queue, op) = item.0;
    let (kind, stage, peer, microbatch) = op?;
    let target = (device, queue, Some((kind, stage, peer, u32::try_from(i64::from(microbatch) + shift).ok()?)));
    let found = &items[items.partition_point(|other| other.0 < target)..];
    found.first().filter(|other| other.0 == target)
}

/// Returns the most frequent distance between an op and the same op `shift` micro-batches later.
fn period(items: &[Item], shift: u32) -> Option<u64> {
    let compute = items.iter().filter(|item| item.0.1 == Queue::Compute);
    let mut apart: Vec<u64> =
        compute.filter_map(|item| shifted(items, item, i64::from(shift))?.1.checked_sub(item.1)).collect();
    apart.sort_unstable();
    apart.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).map(|same| same[0]).filter(|&period| period > 0)
}

/// Returns the longest stretch of `items` that repeats after `period`.
fn longest(items: &[Item], period: u64, shift: u32) -> Option<Repeat> {
    let fits = |item: &Item, shift: i64, period: i128| {
        shifted(items, item, shift).is_some_and(|other| {
            let moved = |ns: u64| i128::from(ns) + period;
            moved(item.1) == i128::from(other.1) && moved(item.2) == i128::from(other.2) && item.3 == other.3
        })
    };
    let (shift, apart) = (i64::from(shift), i128::from(period));
    // Intervals in which something is not repeated.
    let mut apart_at: Vec<(u64, u64)> = Vec::new();
    for item in items {
        if !fits(item, shift, apart) {
            apart_at.push((item.1, item.2));
        }
        if !fits(item, -shift, -apart) && item.2 > period {
            apart_at.push((item.1.saturating_sub(period), item.2 - period));
        }
    }
    apart_at.sort_unstable();
    let (mut free, mut best) = (0, (0, 0));
    for (from, to) in apart_at {
        if from > free && from - free > best.1 - best.0 {
            best = (free, from);
        }
        free = free.max(to);
    }
    let count = (best.1 - best.0) / period + 1;
    // If possible, the stretch starts with an op of the first device.
    let slack = best.0 + (best.1 - best.0) % period;
    let start = items.iter().filter(|item| item.0.1 == Queue::Compute && (best.0..=slack).contains(&item.1));
    let first = items.first()?.0.0;
    let start = start.filter(|item| item.0.0 == first).map(|item| item.1).min().unwrap_or(best.0);
    let worked = items.iter().any(|item| item.1 >= start && item.1 - start < period);
    (count >= FEWEST && worked).then_some(Repeat { start, period, count })
}
