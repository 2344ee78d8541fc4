//! When each op runs and what its start waits for, back to time 0.

use super::gates::{CollectiveSpan, Gates};
use super::sweep::sweep_lasting;
use pipesim_cost::CostTable;
use pipesim_schedule::graph::{Besides, TaskGraph, Until};
use pipesim_schedule::op::{Kind, Op};

/// By how many ticks contention for links delays what follows an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Until the op's device is free again.
    pub after: u64,
    /// Until the op's output may be used.
    pub arrival: u64,
}

/// When each op runs, in ticks, by the graph's op index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpTimes {
    /// Starts.
    pub start: Vec<u64>,
    /// Ends.
    pub end: Vec<u64>,
    /// Delays by contention for links; empty if no link is contended.
    pub delays: Vec<Delay>,
    /// By how long each op's start was late although all it waits for was there; empty for simulated times.
    pub held: Vec<Held>,
}

/// A start that was late although all that the op waits for was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Ticks between the time at which the op could start and its start.
    pub ticks: u64,
    /// The op after which the host was late; `None` before the first op of a device.
    pub after: Option<usize>,
}

impl OpTimes {
    /// Returns times that are all 0.
    pub fn of(graph: &TaskGraph) -> OpTimes {
        OpTimes { start: vec![0; graph.len()], end: vec![0; graph.len()], ..OpTimes::default() }
    }

    /// Returns whether the times were measured.
    pub fn is_measured(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns by how long the start of op number `index` was late.
    pub fn held(&self, index: usize) -> Held {
        self.held.get(index).copied().unwrap_or_default()
    }

    /// Returns the delays of op number `index` by contention.
    pub fn delay(&self, index: usize) -> Delay {
        self.delays.get(index).copied().unwrap_or_default()
    }

    /// Returns the times of a sweep at constant speed.
    pub fn swept(graph: &TaskGraph, costs: &CostTable) -> OpTimes {
        let mut times = OpTimes::of(graph);
        let note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        sweep_lasting(graph, costs, |_, _, _, duration| duration, note);
        hold_up(graph, costs, &mut times);
        times
    }

    /// Returns the end of the last op.
    pub fn makespan(&self) -> u64 {
        self.end.iter().copied().max().unwrap_or(0)
    }

    /// Returns how long op number `index` runs.
    pub fn duration(&self, index: usize) -> u64 {
        self.end[index] - self.start[index]
    }
}

/// Adds to `times` how long collectives delay each op: as host overhead of the op before it. Returns the gathers and reductions.
pub fn hold_up(graph: &TaskGraph, costs: &CostTable, times: &mut OpTimes) -> Vec<CollectiveSpan> {
    let (mut spans, Some(mut gates)) = (Vec::new(), Gates::new(graph, costs.extras.collectives.as_ref())) else {
        return Vec::new();
    };
    if times.delays.is_empty() {
        times.delays = vec![Delay::default(); graph.len()];
    }
    for device in 0..graph.schedule().devices() {
        let range = graph.schedule().range(device);
        let mut free = 0;
        for index in range.start..=range.end {
            let before = index.checked_sub(1).filter(|before| range.contains(before));
            let within = before.is_some_and(|before| graph.op(before).opens_pair());
            if !within {
                let start = gates.pass(device, index, free, |span| spans.push(span));
                if let Some(before) = before {
                    times.delays[before].after += start - free;
                }
            }
            if index < range.end {
                let after = |op: usize| costs.of(graph.op(op)).after + times.delay(op).after;
                let afters = graph.pair(index).map_or_else(|| after(index), |(first, last)| after(first) + after(last));
                free = times.end[index] + afters + costs.pause(index);
            }
        }
    }
    spans
}

/// What an op's start waits for: the end of another op, and some time after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The op that must end; of an overlapped pair the second.
    pub end_of: usize,
    /// The op whose output is awaited; `None` if only the device must be free again.
    pub maker: Option<usize>,
    /// Ticks from that end until the wait is over: host overhead or transfer.
    pub lag: u64,
}

impl Awaited {
    pub fn met(&self, times: &OpTimes) -> u64 {
        times.end[self.end_of] + self.lag
    }
}

/// What happens during a piece of a chain of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // ops are numbers of the graph
pub enum Doing {
    Running(usize),
    /// The output of `maker` travels to `user`, which waits for it.
    Transfer {
        maker: usize,
        user: usize,
    },
    /// The device is held up after this op.
    Overhead(usize),
}

/// A piece of a chain of waits, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPiece {
    /// Start.
    pub start: u64,
    /// The start of the next piece.
    pub end: u64,
    /// What happens meanwhile.
    pub doing: Doing,
}

/// A graph with the costs of its ops and when they run.
#[derive(Clone, Copy)]
pub struct TimedGraph<'a> {
    pub graph: &'a TaskGraph,
    pub costs: &'a CostTable,
    pub times: &'a OpTimes,
}

impl<'a> TimedGraph<'a> {
    /// Returns the host overhead after op number `index`. The overheads of both ops of an overlapped pair follow its second op.
    fn overhead(self, index: usize) -> u64 {
        let TimedGraph { graph, costs, times } = self;
        let after = |op: usize| costs.of(graph.op(op)).after + times.delay(op).after + costs.pause(op);
        match graph.pair(index) {
            Some((first, _)) if first == index => 0,
            Some((first, last)) => after(first) + after(last),
            None => after(index),
        }
    }

    fn output(self, maker: usize) -> Awaited {
        let TimedGraph { graph, costs, times } = self;
        let (op, pair) = (graph.op(maker), graph.pair(maker));
        let leaves = graph.schedule().placement.leaves_device(op);
        let transfer = if leaves { costs.of(op).arrival + times.delay(maker).arrival } else { 0 };
        let behind = match pair {
            Some((first, last)) if last == maker => costs.of(graph.op(first)).after + times.delay(first).after,
            _ => 0,
        };
        let end_of = pair.map_or(maker, |(_, last)| last);
        Awaited { end_of, maker: Some(maker), lag: transfer + behind }
    }

    /// Returns what op number `index` waits for, its device first: [`TaskGraph::needs`] with the lag of each.
    pub fn needs(self, index: usize) -> impl Iterator<Item = Awaited> + 'a {
        let TimedGraph { graph, costs, times } = self;
        let device = graph.before(index).filter(|_| graph.op(index).kind().is_compute()).map(|before| {
            let lag = self.overhead(before);
            Awaited { end_of: before, maker: None, lag }
        });
        let waits = graph.overlap().starts_together() && graph.op(index).opens_pair();
        let waits_with = if waits { graph.upstream(index + 1) } else { None };
        let makers = [graph.upstream(index), waits_with].into_iter().flatten();
        let others = graph.waits(index).iter().map(|&Besides { op, until }| {
            let maker = op as usize;
            let end_of = graph.pair(maker).map_or(maker, |(_, last)| last);
            match until {
                Until::Ended => Awaited { end_of, maker: Some(maker), lag: 0 },
                Until::Gathered => Awaited { end_of, maker: Some(maker), lag: costs.extras.vocabulary.barrier },
                // It begins some time after the op before it ends.
                Until::Begun => {
                    let before = graph.before(maker).unwrap_or(end_of);
                    Awaited { end_of: before, maker: None, lag: times.start[maker].saturating_sub(times.end[before]) }
                }
            }
        });
        device.into_iter().chain(makers.map(move |maker| self.output(maker))).chain(others)
    }

    /// Returns the need that op number `index` waits for longest; in a tie its own device, since a faster transfer would not help.
    pub fn binding(self, index: usize) -> Option<Awaited> {
        let latest = |best: Option<Awaited>, need: Awaited| match best {
            Some(best) if best.met(self.times) >= need.met(self.times) => Some(best),
            _ => Some(need),
        };
        self.needs(index).fold(None, latest)
    }

    /// Returns the chain of binding waits that ends with op number `last`, from time 0 on and without a gap: what would have to be
    /// shorter for that op to end earlier. Pieces of zero length are left out.
    pub fn chain(self, last: usize) -> Vec<WaitPiece> {
        let (mut pieces, mut index, mut at) = (Vec::new(), last, self.times.end[last]);
        let mut push = |at: &mut u64, start: u64, doing: Doing| {
            let end = std::mem::replace(at, start.min(*at));
            if start < end {
                pieces.push(WaitPiece { start, end, doing });
            }
        };
        while at > 0 {
            push(&mut at, self.times.start[index], Doing::Running(index));
            match self.binding(index) {
                Some(Awaited { end_of, maker, .. }) => {
                    let doing = maker.map_or(Doing::Overhead(end_of), |maker| Doing::Transfer { maker, user: index });
                    push(&mut at, self.times.end[end_of], doing);
                    index = end_of;
                }
                None => push(&mut at, 0, Doing::Overhead(index)),
            }
        }
        pieces.reverse();
        pieces
    }
}

/// A sum of costs, and their number.
type Sum = (u128, u128);

/// Average costs by kind.
struct Averages {
    all: [Sum; Kind::ALL.len()],
    /// By slice of a sequence; empty if sequences are not cut.
    slices: Vec<[Sum; Kind::ALL.len()]>,
}

impl Averages {
    fn new(graph: &TaskGraph, costs: &CostTable) -> Averages {
        let (schedule, counts) = (graph.schedule(), graph.schedule().counts());
        let count = if schedule.slices().is_cut() { schedule.slices().count() as usize } else { 0 };
        let none = [(0, 0); Kind::ALL.len()];
        let mut averages = Averages { all: none, slices: vec![none; count] };
        for op in schedule.op_classes() {
            let number = u128::from(counts[schedule.class(op)]);
            let of_slice = averages.slices.get_mut(op.slice_number());
            for sums in [Some(&mut averages.all), of_slice].into_iter().flatten() {
                let (sum, all) = &mut sums[op.kind() as usize];
                *sum += number * u128::from(costs.of(op).duration);
                *all += number;
            }
        }
        averages
    }

    /// Returns by how many 2^-[`Way::FINENESS`] ticks the ops of an op's slice exceed the average of their kind, on average over
    /// stages; in proportion if the op ran slower or faster than the costs say.
    fn excess_of_slice(&self, costs: &CostTable, op: Op, duration: u64) -> i128 {
        let mean = |(sum, number): Sum| (sum << Way::FINENESS).checked_div(number).unwrap_or(0) as i128;
        let (kind, cost) = (op.kind() as usize, i128::from(costs.of(op).duration.max(1)));
        let Some(of_slice) = self.slices.get(op.slice_number()) else { return 0 };
        (mean(of_slice[kind]) - mean(self.all[kind])).saturating_mul(i128::from(duration)) / cost
    }

    /// Returns by how many 2^-[`Way::FINENESS`] ticks an op that ran for `duration` exceeds the average of its kind; in
    /// proportion if it ran slower or faster than the costs say.
    fn excess(&self, costs: &CostTable, op: Op, duration: u64) -> i128 {
        let (sum, number) = self.all[op.kind() as usize];
        let nominal = u128::from(costs.of(op).duration) * number;
        let fine = u128::from(duration) << Way::FINENESS;
        let share = |over: u128| fine.saturating_mul(over).checked_div(nominal).unwrap_or(0) as i128;
        if nominal >= sum { share(nominal - sum) } else { -share(sum - nominal) }
    }
}

/// What a chain of binding waits consists of.
#[derive(Clone, Copy, Default)]
pub struct Way {
    /// Ticks in transfers and host overheads.
    pub underway: i64,
    /// By how much its ops exceed the average, in 2^-[`Way::FINENESS`] ticks: one op may exceed it by less than a tick.
    excess: i128,
    /// The part of it that is the excess of slices of a sequence, on all stages alike.
    excess_of_slices: i128,
    /// The last of its ops that exceeds the average.
    pub slow: Option<usize>,
    /// Ticks by which hosts were late, and the last op after which one was.
    held: i64,
    pub late: Option<usize>,
    /// By how many ticks its ops took longer than their costs, and the last one that did.
    overrun: i64,
    pub straggler: Option<usize>,
}

impl Way {
    const FINENESS: u32 = 20;

    /// Returns the chain with `underway` more ticks of transfers and host overheads.
    pub fn and(self, underway: u64) -> Way {
        Way { underway: self.underway + underway as i64, ..self }
    }

    /// Returns by how many more ticks its hosts were late than the hosts of `other`; at least 0.
    pub fn held_over(self, other: Way) -> u64 {
        (self.held - other.held).max(0) as u64
    }

    /// Returns by how many more ticks its ops exceed their costs than the ops of `other` do; at least 0.
    pub fn overrun_over(self, other: Way) -> u64 {
        (self.overrun - other.overrun).max(0) as u64
    }

    /// Returns by how many more ticks its ops exceed the average than the ops of `other` do; at least 0.
    pub fn excess_over(self, other: Way) -> u64 {
        let more = (self.excess - other.excess).max(0) + (1 << (Way::FINENESS - 1));
        (more >> Way::FINENESS) as u64
    }

    /// Returns the share of the excess over `other` that is due to slow slices, on all stages alike: 0 to 1. The rest is due to slow stages.
    pub fn share_of_slices_over(self, other: Way) -> f64 {
        let slices = (self.excess_of_slices - other.excess_of_slices).max(0) as f64;
        let stages = self.excess - other.excess - (self.excess_of_slices - other.excess_of_slices);
        let all = slices + stages.max(0) as f64;
        if all > 0.0 { slices / all } else { 0.0 }
    }
}

/// The chains of binding waits of all ops.
pub struct Ways {
    averages: Averages,
    /// By op: the chain that ends at its start.
    pub starts: Vec<Way>,
}

impl Ways {
    /// Follows the chains of all ops.
    pub fn new(timed: TimedGraph<'_>) -> Ways {
        let TimedGraph { graph, costs, times } = timed;
        let mut ways = Ways { averages: Averages::new(graph, costs), starts: vec![Way::default(); graph.len()] };
        for index in graph.order() {
            if let Some(need) = timed.binding(index) {
                let way = ways.end(timed, need.end_of);
                let Held { ticks, after } = times.held(index);
                let underway = times.start[index].saturating_sub(times.end[need.end_of]).saturating_sub(ticks);
                let late = if ticks > 0 { after.or(way.late) } else { way.late };
                ways.starts[index] = Way { held: way.held + ticks as i64, late, ..way.and(underway) };
            }
        }
        ways
    }

    pub fn end(&self, TimedGraph { graph, costs, times }: TimedGraph<'_>, index: usize) -> Way {
        let (way, op, ran) = (self.starts[index], graph.op(index), times.duration(index));
        if !op.kind().is_compute() {
            return way.and(ran); // a copy is a transfer
        }
        // A measured duration exceeds the average by its stage's share, which is imbalance, and by its own, which is a straggler's.
        let cost = costs.of(op).duration;
        let (duration, overrun) = if times.is_measured() { (cost, ran as i64 - cost as i64) } else { (ran, 0) };
        let excess = self.averages.excess(costs, op, duration);
        let slow = if excess > 0 { Some(index) } else { way.slow };
        let straggler = if overrun > 0 { Some(index) } else { way.straggler };
        let excess_of_slices = way.excess_of_slices + self.averages.excess_of_slice(costs, op, duration);
        Way { excess: way.excess + excess, excess_of_slices, slow, overrun: way.overrun + overrun, straggler, ..way }
    }
}
