//! When each op runs and what its start waits for: the binding waits behind an op, followed back to time 0.

use super::sweep::{Late, sweep_lasting};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::Op;
use crate::schedule::Overlap;

/// When each op runs, in ticks, by the graph's op index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpTimes {
    /// Starts.
    pub start: Vec<u64>,
    /// Ends.
    pub end: Vec<u64>,
    /// What others on the links did to the ops' outputs; empty where nobody shares a link.
    pub late: Vec<Late>,
}

impl OpTimes {
    /// Room for the ops of `graph`.
    pub fn of(graph: &TaskGraph) -> OpTimes {
        OpTimes { start: vec![0; graph.len()], end: vec![0; graph.len()], late: Vec::new() }
    }

    /// What others on the links did to the output of op number `index`.
    pub fn late(&self, index: usize) -> Late {
        self.late.get(index).copied().unwrap_or_default()
    }

    /// The times of a sweep at constant speed.
    pub fn swept(graph: &TaskGraph, costs: &CostTable) -> OpTimes {
        let mut times = OpTimes::of(graph);
        let note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        sweep_lasting(graph, costs, |_, _, _, duration| duration, note);
        times
    }

    /// End of the last op.
    pub fn makespan(&self) -> u64 {
        self.end.iter().copied().max().unwrap_or(0)
    }

    /// How long op number `index` runs.
    pub fn duration(&self, index: usize) -> u64 {
        self.end[index] - self.start[index]
    }
}

/// One thing that an op's start waits for: the end of an op, and some time after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The op whose end it is; of an overlapped pair the second.
    pub end_of: usize,
    /// The op whose output is awaited; `None` where only the device must be free again.
    pub maker: Option<usize>,
    /// From that end until the wait is over: host overhead or transfer.
    pub lag: u64,
}

impl Need {
    /// When the wait is over.
    pub fn met(&self, times: &OpTimes) -> u64 {
        times.end[self.end_of] + self.lag
    }
}

/// The latest host overhead of op number `index`: of an overlapped pair both ops', after its second.
fn overhead(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, index: usize) -> u64 {
    let after = |op: usize| costs.of(graph.op(op)).after + times.late(op).after;
    match graph.pair(index) {
        Some((first, _)) if first == index => 0,
        Some((first, last)) => after(first) + after(last),
        None => after(index),
    }
}

/// The end of `maker`, from which its output travels to whoever waits for it.
fn output(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, maker: usize) -> Need {
    let (op, pair) = (graph.op(maker), graph.pair(maker));
    let leaves = graph.schedule().placement.leaves_device(op);
    let transfer = if leaves { costs.of(op).arrival + times.late(maker).arrival } else { 0 };
    let behind = match pair {
        Some((first, last)) if last == maker => costs.of(graph.op(first)).after + times.late(first).after,
        _ => 0,
    };
    let end_of = pair.map_or(maker, |(_, last)| last);
    Need { end_of, maker: Some(maker), lag: transfer + behind }
}

/// What op number `index` waits for, its device first: [`TaskGraph::needs`] with the time that must lie between.
pub fn needs<'a>(
    graph: &'a TaskGraph,
    costs: &'a CostTable,
    times: &'a OpTimes,
    index: usize,
) -> impl Iterator<Item = Need> + 'a {
    let device = graph.before(index).map(|before| {
        let lag = overhead(graph, costs, times, before);
        Need { end_of: before, maker: None, lag }
    });
    let waits_with = match graph.overlap() {
        Overlap::Atomic | Overlap::Max if graph.op(index).opens_pair() => graph.upstream(index + 1),
        _ => None,
    };
    let makers = [graph.upstream(index), waits_with].into_iter().flatten();
    device.into_iter().chain(makers.map(|maker| output(graph, costs, times, maker)))
}

/// The need that op number `index` waits for longest; in a tie its own device, since a faster transfer would not help.
pub fn binding(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, index: usize) -> Option<Need> {
    let latest = |best: Option<Need>, need: Need| match best {
        Some(best) if best.met(times) >= need.met(times) => Some(best),
        _ => Some(need),
    };
    needs(graph, costs, times, index).fold(None, latest)
}

/// What a piece of a chain of waits is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// This op runs.
    Running(usize),
    /// The output of `maker` is on its way to `user`, which waits for it.
    Transfer { maker: usize, user: usize },
    /// The device is held up after this op.
    Overhead(usize),
}

/// A piece of a chain of waits, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its start.
    pub start: u64,
    /// Its end: the start of the next piece.
    pub end: u64,
    /// What it is.
    pub doing: Doing,
}

/// The chain of binding waits that ends with an op, from there back to time 0 without a hole: what would have to be shorter
/// for that op to end earlier. Pieces of no length are left out.
pub struct Chain<'a> {
    graph: &'a TaskGraph,
    costs: &'a CostTable,
    times: &'a OpTimes,
    /// The chain so far starts at `at`; what runs before that is `next`.
    at: u64,
    next: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Wait(usize),
    Run(usize),
    Done,
}

impl<'a> Chain<'a> {
    /// The chain that ends with op number `index`.
    pub fn through(graph: &'a TaskGraph, costs: &'a CostTable, times: &'a OpTimes, index: usize) -> Chain<'a> {
        Chain { graph, costs, times, at: times.end[index], next: Step::Run(index) }
    }

    fn piece(&mut self, start: u64, doing: Doing) -> Option<Piece> {
        let end = self.at;
        self.at = start.min(end);
        (start < end).then_some(Piece { start, end, doing })
    }
}

impl Iterator for Chain<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while self.at > 0 {
            let piece = match self.next {
                Step::Done => return None,
                Step::Run(index) => {
                    self.next = Step::Wait(index);
                    self.piece(self.times.start[index], Doing::Running(index))
                }
                Step::Wait(index) => match binding(self.graph, self.costs, self.times, index) {
                    Some(Need { end_of, maker, .. }) => {
                        self.next = Step::Run(end_of);
                        let doing =
                            maker.map_or(Doing::Overhead(end_of), |maker| Doing::Transfer { maker, user: index });
                        self.piece(self.times.end[end_of], doing)
                    }
                    None => {
                        self.next = Step::Done;
                        self.piece(0, Doing::Overhead(index))
                    }
                },
            };
            if piece.is_some() {
                return piece;
            }
        }
        None
    }
}

/// What ops of each kind take on average by the costs: (sum, number) by kind.
struct Averages([(u128, u128); 4]);

impl Averages {
    fn new(graph: &TaskGraph, costs: &CostTable) -> Averages {
        let (counts, mut sums) = (graph.schedule().counts(), [(0, 0); 4]);
        for op in graph.schedule().placement.op_kinds() {
            let (sum, number) = &mut sums[op.kind() as usize];
            *sum += u128::from(counts[op.slot()]) * u128::from(costs.of(op).duration);
            *number += u128::from(counts[op.slot()]);
        }
        Averages(sums)
    }

    /// By how many 2^-[`Way::FINENESS`] ticks an op that ran for `duration` is longer than the average of its kind; in
    /// proportion where it ran slower or faster than the costs say.
    fn excess(&self, costs: &CostTable, op: Op, duration: u64) -> i128 {
        let (sum, number) = self.0[op.kind() as usize];
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
    /// By how much its ops exceed the average, in 2^-[`Way::FINENESS`] ticks: an op may exceed it by less than one.
    excess: i128,
    /// The last op in it that does.
    pub slow: Option<usize>,
}

impl Way {
    const FINENESS: u32 = 20;

    /// The same chain and so many ticks of transfers and host overheads more.
    pub fn and(self, underway: u64) -> Way {
        Way { underway: self.underway + underway as i64, ..self }
    }

    /// By how many ticks more than those of `other` its ops exceed the average, not less than 0.
    pub fn excess_over(self, other: Way) -> u64 {
        let more = (self.excess - other.excess).max(0) + (1 << (Way::FINENESS - 1));
        (more >> Way::FINENESS) as u64
    }
}

/// By op: the chain of binding waits that ends at its start.
pub struct Ways {
    averages: Averages,
    /// The chains.
    pub starts: Vec<Way>,
}

impl Ways {
    /// The chains of all ops.
    pub fn new(graph: &TaskGraph, costs: &CostTable, times: &OpTimes) -> Ways {
        let mut ways = Ways { averages: Averages::new(graph, costs), starts: vec![Way::default(); graph.len()] };
        for index in graph.order() {
            if let Some(need) = binding(graph, costs, times, index) {
                let way = ways.end(graph, costs, times, need.end_of);
                let underway = times.start[index].saturating_sub(times.end[need.end_of]);
                ways.starts[index] = way.and(underway);
            }
        }
        ways
    }

    /// The chain that ends at the end of op number `index`.
    pub fn end(&self, graph: &TaskGraph, costs: &CostTable, times: &OpTimes, index: usize) -> Way {
        let (way, excess) = (self.starts[index], self.averages.excess(costs, graph.op(index), times.duration(index)));
        let slow = if excess > 0 { Some(index) } else { way.slow };
        Way { excess: way.excess + excess, slow, ..way }
    }
}
