//! The straight engine: events where no message queues and no op is slowed down, so that each device has one next event.
//!
//! That event is the end of the op that runs. When it comes, the op's output is given its time of arrival; the device whose
//! next op waited for just this output now knows its start and gets its next event, as does the device itself when its next
//! op's input has a time of arrival already. No more than p events live at once, in a tournament by (time, device).

use super::prepared::Prepared;
use super::rule::Rule;
use super::{Observer, Outcome, TransferTime, Waits};
use crate::graph::TaskGraph;
use crate::metrics::Activity;
use crate::op::Op;
use crate::schedule::Overlap;

/// Not known yet.
pub(super) const UNKNOWN: u64 = u64::MAX;
/// The cell of a device that waits for nothing: [`TaskGraph`] keeps it for what is there from the start.
const NOTHING: usize = 0;

/// The earliest of the devices' next events: each inner node holds the earlier of its two children, by (time, device).
pub(super) struct Tournament {
    /// Number of leaves, a power of two; node n has the children 2n and 2n + 1.
    leaves: usize,
    nodes: Vec<(u64, u32)>,
}

impl Tournament {
    pub fn new(devices: usize) -> Tournament {
        let leaves = devices.next_power_of_two();
        Tournament { leaves, nodes: vec![(UNKNOWN, u32::MAX); 2 * leaves] }
    }

    /// The earliest event; at [`UNKNOWN`] when there is none.
    pub fn first(&self) -> (u64, u32) {
        self.nodes[1]
    }

    /// Sets the next event of `device`.
    #[inline]
    pub fn set(&mut self, device: u32, time: u64) {
        let nodes = self.nodes.as_mut_slice();
        let mut node = self.leaves + device as usize;
        let mut best = (time, device);
        nodes[node] = best;
        while node > 1 {
            let other = nodes[node ^ 1];
            // Devices of the left subtree have the smaller numbers.
            let left = node & 1 == 0;
            let stays = best.0 < other.0 || (best.0 == other.0 && left);
            best = if stays { best } else { other };
            node >>= 1;
            if nodes[node] == best {
                return; // nothing changes from here up
            }
            nodes[node] = best;
        }
    }
}

/// A device on the way through its program.
#[derive(Clone, Copy)]
struct Device {
    /// The op that runs or waits.
    next: usize,
    end: usize,
    free: u64,
    /// Start of the op that runs, and where its pair is divided.
    start: u64,
    middle: u64,
    activity: Activity,
    waits: Waits,
}

/// The ops that start and end together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Single,
    /// An atomic pair.
    Whole,
    /// The first of two ops in turn whose outputs leave together.
    First,
    Second,
}

struct Straight<'a, L, O> {
    graph: &'a TaskGraph,
    ops: &'a [Op],
    rules: &'a [Rule],
    pairs: bool,
    lasts: L,
    observer: &'a mut O,
    /// When what lies in each cell may be used.
    ready: Vec<u64>,
    /// By device: the cell whose filling it waits for.
    awaited: Vec<usize>,
    devices: Vec<Device>,
    events: Tournament,
}

/// One simulation of `prepared`.
pub(super) fn run<L: Fn(usize, u32, u64, u64) -> u64, O: Observer>(
    prepared: &Prepared<'_>,
    lasts: L,
    observer: &mut O,
) -> Outcome {
    let schedule = prepared.graph.schedule();
    let mut ready = vec![UNKNOWN; prepared.graph.cells()];
    ready[NOTHING..NOTHING + schedule.microbatches as usize].fill(0);
    let devices = 0..schedule.devices();
    let device = |device: u32| Device {
        next: schedule.range(device).start,
        end: schedule.range(device).end,
        free: prepared.begin[device as usize],
        start: 0,
        middle: 0,
        activity: Activity { first_start: UNKNOWN, ..Activity::default() },
        waits: Waits::default(),
    };
    let mut engine = Straight {
        graph: prepared.graph,
        ops: schedule.ops(),
        rules: &prepared.rules,
        pairs: schedule.has_pairs(),
        lasts,
        observer,
        ready,
        awaited: vec![NOTHING; devices.len()],
        devices: devices.clone().map(device).collect(),
        events: Tournament::new(devices.len()),
    };
    devices.for_each(|device| engine.begin(device));
    let mut events = 0;
    loop {
        let (time, device) = engine.events.first();
        if time == UNKNOWN {
            break;
        }
        engine.finish(device, time);
        events += 1;
    }
    Outcome {
        devices: engine.devices.iter().map(|device| device.activity.counted(device.free)).collect(),
        waits: engine.devices.iter().map(|device| device.waits).collect(),
        events,
    }
}

impl<L: Fn(usize, u32, u64, u64) -> u64, O: Observer> Straight<'_, L, O> {
    #[inline]
    fn rule(&self, index: usize) -> (&Rule, usize) {
        let op = self.ops[index];
        (&self.rules[op.slot()], op.microbatch() as usize)
    }

    /// How op number `index` of a device whose program starts at `first` starts and ends.
    #[inline]
    fn unit(&self, index: usize) -> Unit {
        if !self.pairs {
            return Unit::Single;
        }
        let runtime = self.graph.overlap() == Overlap::Runtime;
        match self.graph.pair(index) {
            None => Unit::Single,
            Some((first, _)) if first == index && runtime => Unit::First,
            Some((first, _)) if first == index => Unit::Whole,
            Some(_) => Unit::Second,
        }
    }

    /// Gives `device` its next event: the end of its next op, if that op's start is known.
    #[inline]
    fn begin(&mut self, device: u32) {
        let Device { next, end, free, .. } = self.devices[device as usize];
        if next == end {
            self.events.set(device, UNKNOWN);
            return;
        }
        let (&rule, microbatch) = self.rule(next);
        let cell = rule.input + microbatch;
        let (mut input, mut later) = (self.ready[cell], next);
        if input == UNKNOWN {
            return self.wait(device, cell);
        }
        let unit = self.unit(next);
        if unit == Unit::Whole {
            let (second, microbatch) = self.rule(next + 1);
            let cell = second.input + microbatch;
            if self.ready[cell] == UNKNOWN {
                return self.wait(device, cell);
            }
            if self.ready[cell] >= input {
                (input, later) = (self.ready[cell], next + 1);
            }
        }
        let start = free.max(input);
        let first = (self.lasts)(next, device, start, rule.duration);
        let (middle, end) = match unit {
            Unit::Whole => self.pair(next + 1, device, start, first),
            _ => (start, start + first),
        };
        if start > free {
            self.note_wait(device, later, free, start);
        }
        let state = &mut self.devices[device as usize];
        (state.start, state.middle) = (start, middle);
        self.events.set(device, end);
    }

    /// `device` waited from `free` to `start` for what op number `index` needs.
    fn note_wait(&mut self, device: u32, index: usize, free: u64, start: u64) {
        let maker = self.graph.upstream(index).map(|maker| self.rule(maker).0);
        let sent = start - maker.map_or(0, |maker| maker.transfer + maker.latency).min(start - free);
        let waits = &mut self.devices[device as usize].waits;
        waits.dependence += sent - free;
        waits.transfer += start - sent;
    }

    #[inline]
    fn wait(&mut self, device: u32, cell: usize) {
        self.awaited[device as usize] = cell;
        self.events.set(device, UNKNOWN);
    }

    /// Middle and end of an atomic pair, of which op number `second` is the second, and the first takes `first` ticks.
    fn pair(&self, second: usize, device: u32, start: u64, first: u64) -> (u64, u64) {
        let side_by_side = self.graph.overlap() == Overlap::Max;
        let from = if side_by_side { start } else { start + first };
        let second = (self.lasts)(second, device, from, self.rule(second).0.duration);
        divide(start, first, second, side_by_side)
    }

    /// The op of `device` that runs ends.
    #[inline]
    fn finish(&mut self, device: u32, time: u64) {
        let state = &mut self.devices[device as usize];
        let (index, start, middle) = (state.next, state.start, state.middle);
        state.activity.busy += time - start;
        state.activity.first_start = state.activity.first_start.min(start);
        state.activity.last_end = time;
        let unit = self.unit(index);
        let last = index + usize::from(unit == Unit::Whole);
        let state = &mut self.devices[device as usize];
        state.next = last + 1;
        state.free = time;
        if unit == Unit::Whole {
            self.observer.op(index, start, middle);
            self.observer.op(last, middle, time);
        } else {
            self.observer.op(index, start, time);
        }
        match unit {
            Unit::First => {}
            Unit::Single => self.hand_on(device, index, time),
            Unit::Whole => (index..=last).for_each(|op| self.hand_on(device, op, self.devices[device as usize].free)),
            Unit::Second => {
                (index - 1..=index).for_each(|op| self.hand_on(device, op, self.devices[device as usize].free))
            }
        }
        self.begin(device);
    }

    /// What op number `index` made leaves at `time`, and its device is free again when it has.
    #[inline]
    fn hand_on(&mut self, device: u32, index: usize, time: u64) {
        let (&rule, microbatch) = self.rule(index);
        let cell = rule.output + microbatch;
        let end = time + rule.transfer + rule.latency;
        self.ready[cell] = end;
        self.devices[device as usize].free = time + rule.after;
        if rule.consumer != device {
            self.observer.transfer(TransferTime { op: index, queued: time, start: time, end });
            if self.awaited[rule.consumer as usize] == cell {
                self.awaited[rule.consumer as usize] = NOTHING;
                self.begin(rule.consumer);
            }
        }
    }
}

/// Middle and end of a pair that starts at `start`: both ops are given shares of its time in proportion to what they take
/// alone. `first` and `second` are that, `side_by_side` whether the longer of them is what both take.
pub(super) fn divide(start: u64, first: u64, second: u64, side_by_side: bool) -> (u64, u64) {
    let whole = if side_by_side { first.max(second) } else { first + second };
    (start + share(whole, first, second), start + whole)
}

/// The first op's share of a pair's time.
pub(super) fn share(whole: u64, first: u64, second: u64) -> u64 {
    (u128::from(whole) * u128::from(first) / u128::from((first + second).max(1))) as u64
}
