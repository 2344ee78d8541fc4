//! The steady state: the longest stretch of a timeline that repeats itself, micro-batch numbers aside.

use crate::op::Op;
use crate::timeline::{Queue, Timeline};

/// Fewer repeats are not worth a cut.
const FEWEST: u64 = 3;

/// A stretch of `count` periods, each the same on every device but for the numbers of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    /// Where the first period starts, in ns.
    pub(super) start: u64,
    /// How long it is, in ns.
    pub(super) period: u64,
    /// How often it comes.
    pub(super) count: u64,
}

impl Repeat {
    /// What is left out where the first period stands for all, from and to in ns.
    pub(super) fn hidden(&self) -> (u64, u64) {
        (self.start + self.period, self.start + self.period * self.count)
    }

    fn hides(&self) -> u64 {
        self.period * (self.count - 1)
    }
}

/// What a span is, micro-batch last, so that the same of another micro-batch is found by search.
type Key = (u32, Queue, Option<(u8, u32, u32, u32)>);

/// A span: its key, start, end and phase.
type Item<'a> = (Key, u64, u64, Option<&'a str>);

/// The stretch that hides most when it is drawn once: from t on, what every device does at t it does a period later, too, with
/// micro-batches that are all the same number further. Nothing where no stretch repeats three times; exact, so that measured
/// times, which never repeat, have none.
pub(super) fn steady(timeline: &Timeline) -> Option<Repeat> {
    let mut items: Vec<Item> = timeline
        .spans
        .iter()
        .filter(|span| span.start_ns < span.end_ns)
        .map(|span| {
            let op = span
                .op
                .parse()
                .ok()
                .map(|op: Op| (op.kind() as u8, op.stage(), span.peer.unwrap_or(u32::MAX), op.microbatch()));
            ((span.device, span.queue, op), span.start_ns, span.end_ns, span.phase.as_deref())
        })
        .collect();
    items.sort_unstable();
    let one = items.first().map(|item| item.0.0)?;
    let of_one = &items[..items.partition_point(|item| item.0.0 == one)];
    let most = (timeline.microbatches / FEWEST as u32).min((2 * timeline.devices).max(8));
    // One device alone has a longer stretch than all of them, and is soon looked through.
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

/// The same span of a micro-batch `shift` further, or back.
fn shifted<'a, 'b>(items: &'b [Item<'a>], item: &Item, shift: i64) -> Option<&'b Item<'a>> {
    let (device, queue, op) = item.0;
    let (kind, stage, peer, microbatch) = op?;
    let wanted = (device, queue, Some((kind, stage, peer, u32::try_from(i64::from(microbatch) + shift).ok()?)));
    let found = &items[items.partition_point(|other| other.0 < wanted)..];
    found.first().filter(|other| other.0 == wanted)
}

/// How far most spans are from the same span of a micro-batch `shift` further.
fn period(items: &[Item], shift: u32) -> Option<u64> {
    let compute = items.iter().filter(|item| item.0.1 == Queue::Compute);
    let mut apart: Vec<u64> =
        compute.filter_map(|item| shifted(items, item, i64::from(shift))?.1.checked_sub(item.1)).collect();
    apart.sort_unstable();
    apart.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).map(|same| same[0]).filter(|&period| period > 0)
}

/// The longest stretch of `items` that repeats after `period`.
fn longest(items: &[Item], period: u64, shift: u32) -> Option<Repeat> {
    let fits = |item: &Item, shift: i64, period: i128| {
        shifted(items, item, shift).is_some_and(|other| {
            let moved = |ns: u64| i128::from(ns) + period;
            moved(item.1) == i128::from(other.1) && moved(item.2) == i128::from(other.2) && item.3 == other.3
        })
    };
    let (shift, apart) = (i64::from(shift), i128::from(period));
    // When what is done is not done again, or was not done before.
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
    // Where there is room, the stretch starts with an op of the first device.
    let slack = best.0 + (best.1 - best.0) % period;
    let start = items.iter().filter(|item| item.0.1 == Queue::Compute && (best.0..=slack).contains(&item.1));
    let first = items.first()?.0.0;
    let start = start.filter(|item| item.0.0 == first).map(|item| item.1).min().unwrap_or(best.0);
    let worked = items.iter().any(|item| item.1 >= start && item.1 - start < period);
    (count >= FEWEST && worked).then_some(Repeat { start, period, count })
}
