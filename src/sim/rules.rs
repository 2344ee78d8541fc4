//! What a sweep needs besides a graph: times of ops, and of overlapped pairs.

use pipesim_cost::Extras;
use pipesim_cost::pair::{PairCosts, PairTime};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::schedule::Overlap;

/// How the ops of one (stage, direction, kind, slice) run: times in ticks, and the cells of their input and output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SweepRule {
    pub duration: u64,
    /// From an op's end until its device is free again.
    pub after: u64,
    /// From an op's end until the op that waits for it may start.
    pub arrival: u64,
    /// Cell of micro-batch 0's input.
    pub input: usize,
    /// Cell of micro-batch 0's output.
    pub output: usize,
}

/// Times that a sweep needs, besides a graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine<'a> {
    /// By [`Schedule::class`](pipesim_schedule::schedule::Schedule::class).
    pub rules: &'a [SweepRule],
    /// What costs time besides these.
    pub extras: &'a Extras,
    /// By device: when it can begin; 0 for missing devices.
    pub begin: &'a [u64],
}

/// Start and end of the two ops of an overlapped pair.
pub(super) struct Pair {
    pub starts: [u64; 2],
    pub ends: [u64; 2],
}

impl Pair {
    /// Places a pair on a device that is free from `free` on and whose inputs arrive at `inputs`. `lasts(which, start)` returns
    /// how long either op takes alone, `streams` how long the pair takes on two streams.
    pub fn new(
        overlap: Overlap,
        streams: Option<PairTime>,
        free: u64,
        inputs: [u64; 2],
        lasts: impl Fn(usize, u64) -> u64,
    ) -> Pair {
        let start = free.max(inputs[0]);
        if overlap == Overlap::Runtime || overlap == Overlap::Serial {
            let end = start + lasts(0, start);
            let second = end.max(inputs[1]);
            return Pair { starts: [start, second], ends: [end, second + lasts(1, second)] };
        }
        let start = start.max(inputs[1]);
        let first = lasts(0, start);
        let second = lasts(1, if overlap.is_shorter() { start } else { start + first });
        let whole = pair_duration(overlap, streams, first, second);
        let middle = start + first_share(whole, first, second);
        Pair { starts: [start, middle], ends: [middle, start + whole] }
    }
}

/// Returns the duration of a pair whose ops start together and take `first` and `second` ticks alone; their sum if the times of its
/// sub-ops are unknown.
pub(super) fn pair_duration(overlap: Overlap, streams: Option<PairTime>, first: u64, second: u64) -> u64 {
    match (overlap, streams) {
        (Overlap::Max, _) => first.max(second),
        (Overlap::Streams, Some(time)) => time.lasting(first, second),
        _ => first + second,
    }
}

/// Returns the durations of pairs if the graph's pairs run on two streams.
pub(super) fn pairs<'a>(graph: &TaskGraph, extras: &'a Extras) -> Option<&'a PairCosts> {
    extras.pairs.as_ref().filter(|_| graph.overlap() == Overlap::Streams)
}

/// Returns the first op's share of the `whole` time of a pair, in proportion to what both ops take alone: timelines show the
/// ops of a pair one after the other.
pub(super) fn first_share(whole: u64, first: u64, second: u64) -> u64 {
    (u128::from(whole) * u128::from(first) / u128::from((first + second).max(1))) as u64
}
