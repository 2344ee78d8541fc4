//! The task graph of one training step: compute ops, the transfers between them, and what each op waits for.
//!
//! The two ops of an overlapped pair count as one where the graph's [`Overlap`] says so: the outputs of both leave at the end of the
//! second.
//!
//! The graph is stored in flat arrays; the ops of a device are contiguous, in the schedule's order. An op waits for the op before it on its
//! device and for at most one op elsewhere (`upstream`): every other need (a W for its I, a backward for its own F) is earlier on the same
//! device, which [`Schedule::validate`] has checked. A transfer is the edge between an op and its upstream op on another device.
//!
//! Each output has a cell: every stage has a row of cells for its forwards and one for its backwards, with a cell per micro-batch and slice. The
//! cells of an op follow from its key ([`Route`]), so no edge is stored.
//!
//! [`TaskGraph`] implements petgraph's traits, so that petgraph's algorithms run on it without a copy: a node is the number of an op, an
//! edge leads from an op to one that waits for it.
//!
//! ```
//! use petgraph::algo::{has_path_connecting, tarjan_scc, toposort};
//! use pipesim_schedule::graph::TaskGraph;
//! use pipesim_schedule::op::{Kind, Op};
//! use pipesim_schedule::placement::Placement;
//! use pipesim_schedule::schedule::{Programs, Schedule};
//!
//! let device = |stage| vec![Op::new(Kind::F, stage, 0), Op::new(Kind::B, stage, 0)];
//! let programs = Programs::from_iter((0..4).map(device));
//! let graph = TaskGraph::new(Schedule::new("naive", Placement::linear(4), 1, programs))?;
//! let order = toposort(&graph, None).expect("a task graph has no cycle");
//! assert_eq!(graph.op(order[0]).to_string(), "0F0"); // the first stage's forward of micro-batch 0
//! assert_eq!(tarjan_scc(&graph).len(), graph.len()); // every op is a component of its own
//! assert!(has_path_connecting(&graph, order[0], graph.len() - 1, None)); // the last op depends on it
//! # Ok::<(), pipesim_schedule::deadlock::Deadlock>(())
//! ```

mod beside;
mod visit;

use self::beside::Beside;
pub use self::beside::{Until, Wait as Besides};
pub use visit::{AllEdges, Dependency, Edge, Edges, Neighbors};

use crate::deadlock::{Awaited, Deadlock, Party, Wait};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::{Overlap, Schedule};
use petgraph::Direction;
use petgraph::algo::kosaraju_scc;
use petgraph::graph::{Graph, NodeIndex};
use petgraph::visit::{Dfs, IntoNeighborsDirected};
use std::collections::BTreeSet;

/// A cell that no op has filled.
const NONE: u32 = u32::MAX;
/// First cell of the row that holds what is there before the step: the input of ops that wait for no other stage.
pub const SOURCE: usize = 0;

/// The graph of one training step's pipeline part.
#[derive(Clone, Debug)]
pub struct TaskGraph {
    schedule: Schedule,
    overlap: Overlap,
    /// By [`Op::slot`].
    routes: Vec<Route>,
    /// By cell: index of the op that fills it.
    makers: Vec<u32>,
    /// All ops in an order in which each comes after what it waits for.
    runs: Vec<Run>,
    /// Waits of copies and for copies; `None` without copies.
    beside: Option<Box<Beside>>,
}

/// Where the ops of one stage and kind take their input and leave their output: the cells of the first micro-batch's first slice.
/// The cells of the others follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// What they wait for.
    pub input: usize,
    /// What they hand on. W's and other ops that no other stage waits for have a row that nobody reads.
    pub output: usize,
    /// The device where their output is used; their own where it is used nowhere.
    pub consumer: u32,
    /// What their output's users hand on in turn; [`SOURCE`] where it is used nowhere.
    consumer_output: usize,
}

/// Ops of one device that run one after the other: those up to `end` that no earlier run held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The device.
    pub device: u32,
    /// Index after the run's last op.
    pub end: u32,
}

/// Where what ops hand on lies: a row of cells for each lane's forwards, one for its backwards and one for all other ops, which
/// nobody reads; before them the row of what is there from the start.
#[derive(Clone, Copy, Debug)]
pub struct Cells {
    lanes: usize,
    width: usize,
}

impl Cells {
    /// Rows for `units` cells, one per micro-batch and slice. A lane, such as the stage, distinguishes ops of the same kind.
    pub fn new(lanes: usize, units: usize) -> Cells {
        // Rows of 2^n cells would compete for the same few lines of the processor's caches.
        Cells { lanes, width: units + (units / 8).min(24) }
    }

    /// First cell of the row that ops of `kind` fill.
    pub fn row(&self, kind: Kind, lane: usize) -> usize {
        let row = match kind {
            Kind::F => 1 + lane,
            Kind::I | Kind::B => 1 + self.lanes + lane,
            _ => 1 + 2 * self.lanes,
        };
        row * self.width
    }

    /// Number of cells.
    pub fn count(&self) -> usize {
        (2 + 2 * self.lanes) * self.width
    }
}

/// The routes of all stages, directions and kinds, and the number of cells.
fn routes(placement: &Placement, units: u32) -> (Vec<Route>, usize) {
    let stages = placement.stages();
    let cells = Cells::new(stages as usize, units as usize);
    let row = |op: Op, stage: Option<u32>| stage.map_or(SOURCE, |stage| cells.row(op.kind(), stage as usize));
    let nowhere = Route { input: SOURCE, output: SOURCE, consumer: 0, consumer_output: SOURCE };
    let mut routes = vec![nowhere; placement.slots()];
    for op in placement.op_kinds() {
        routes[op.slot()] = Route {
            input: row(op, op.upstream(stages)),
            output: row(op, Some(op.stage())),
            consumer: placement.receiver(op).unwrap_or(placement.device_of(op)),
            consumer_output: row(op, op.downstream(stages)),
        };
    }
    (routes, cells.count())
}

impl TaskGraph {
    /// The graph of a schedule that [`Schedule::validate`] accepts; its overlapped pairs are atomic.
    ///
    /// # Errors
    /// Devices that wait for one another in a circle.
    ///
    /// # Panics
    /// The schedule has 2^31 ops or more.
    pub fn new(schedule: Schedule) -> Result<TaskGraph, Deadlock> {
        TaskGraph::with_overlap(schedule, Overlap::Atomic)
    }

    /// [`TaskGraph::new`] with another meaning of overlapped pairs.
    ///
    /// # Errors
    /// As [`TaskGraph::new`].
    ///
    /// # Panics
    /// As [`TaskGraph::new`].
    pub fn with_overlap(schedule: Schedule, overlap: Overlap) -> Result<TaskGraph, Deadlock> {
        assert!(schedule.ops().len() < 1 << 31, "a schedule has less than 2^31 ops");
        let schedule = if overlap == Overlap::Serial { schedule.without_pairs() } else { schedule };
        let (routes, cells) = routes(&schedule.placement, schedule.units());
        let mut makers = vec![NONE; cells];
        makers[SOURCE..SOURCE + schedule.units() as usize].fill(0); // there from the start, no matter which op made it
        let beside = Beside::of(&schedule).map(Box::new);
        let mut graph = TaskGraph { schedule, overlap, routes, makers, runs: Vec::new(), beside };
        if graph.schedule.shares_vocabulary() {
            graph.order_waits()?
        } else if graph.schedule.is_beyond_microbatches() {
            graph.order_runs::<true>()?
        } else {
            graph.order_runs::<false>()?
        }
        Ok(graph)
    }

    /// Finds a topological order: runs each device until it must wait, and wakes it when what it waits for has run; an op that has run is
    /// its cell's maker.
    ///
    /// This is the one algorithm on the graph that petgraph does not run: its `toposort` takes 9 to 15 times as long (1F1B, opt-level 3, on a busy
    /// machine; benchmark group `topological order`: 83 instead of 5.5 ns per op for 8 devices and 64 micro-batches, 273 instead of 32 for 2
    /// million ops), and needs the edges that this pass finds. Tests compare the two.
    /// `BEYOND` says whether there are slices, or kinds besides F, I, W and B, which hand nothing to other devices.
    fn order_runs<const BEYOND: bool>(&mut self) -> Result<(), Deadlock> {
        let devices = self.schedule.devices();
        let slices = if BEYOND { self.slices() } else { 1 };
        let unit = |op: &Op| if BEYOND { op.unit(slices) } else { op.microbatch() as usize };
        let mut next: Vec<usize> = (0..devices).map(|device| self.schedule.range(device).start).collect();
        let mut awaited: Vec<usize> = vec![SOURCE; devices as usize]; // by device: the cell that it waits for
        let mut runnable: Vec<u32> = (0..devices).rev().collect();
        while let Some(device) = runnable.pop() {
            let rest = next[device as usize]..self.schedule.range(device).end;
            let mut index = rest.start;
            let ops = &self.schedule.ops()[rest.clone()];
            let mut paired = false; // the op before opened a pair: both inputs are there
            for (at, op) in ops.iter().enumerate() {
                if BEYOND && op.plane() > 0 {
                    index += 1;
                    continue;
                }
                let (route, unit_number) = (&self.routes[op.slot()], unit(op));
                let mut input = route.input + unit_number;
                if op.opens_pair() && self.makers[input] != NONE {
                    let second = ops[at + 1];
                    input = self.routes[second.slot()].input + unit(&second);
                }
                if !paired && self.makers[input] == NONE {
                    awaited[device as usize] = input;
                    break;
                }
                paired = op.opens_pair();
                let output = route.output + unit_number;
                self.makers[output] = index as u32;
                if awaited[route.consumer as usize] == output {
                    awaited[route.consumer as usize] = SOURCE;
                    runnable.push(route.consumer);
                }
                index += 1;
            }
            next[device as usize] = index;
            if index > rest.start {
                self.runs.push(Run { device, end: index as u32 });
            }
        }
        let done = (0..devices).all(|device| next[device as usize] == self.schedule.range(device).end);
        if done { Ok(()) } else { Err(self.cycle(&next)) }
    }

    /// As [`TaskGraph::order_runs`], where ops wait for several others: asks every device in turn until none can go on.
    fn order_waits(&mut self) -> Result<(), Deadlock> {
        let devices = self.schedule.devices();
        let slices = self.slices();
        let mut next: Vec<usize> = (0..devices).map(|device| self.schedule.range(device).start).collect();
        let mut made = fixedbitset::FixedBitSet::with_capacity(self.len());
        loop {
            let before = self.runs.len();
            for device in 0..devices {
                let range = next[device as usize]..self.schedule.range(device).end;
                for index in range.clone() {
                    let op = self.op(index);
                    let input = self.route(op).input + op.unit(slices);
                    let is_source = op.upstream(self.schedule.placement.stages()).is_none();
                    let waits = self.waits(index).iter().all(|wait| made.contains(wait.op as usize));
                    if !waits || !(is_source || self.makers[input] != NONE) {
                        break;
                    }
                    if op.plane() == 0 {
                        self.makers[self.routes[op.slot()].output + op.unit(slices)] = index as u32;
                    }
                    made.insert(index);
                    next[device as usize] = index + 1;
                }
                if next[device as usize] > range.start {
                    self.runs.push(Run { device, end: next[device as usize] as u32 });
                }
            }
            if self.runs.len() == before {
                break;
            }
        }
        let done = (0..devices).all(|device| next[device as usize] == self.schedule.range(device).end);
        if done { Ok(()) } else { Err(self.cycle(&next)) }
    }

    /// The circle in which devices wait that are stuck at their ops `next`.
    ///
    /// Every stuck device waits for one other. The strongly connected components of these waits are the circles; the report is of the one
    /// that the first stuck device leads into, in the order of waiting.
    fn cycle(&mut self, next: &[usize]) -> Deadlock {
        let slices = self.slices();
        for (index, op) in self.schedule.ops().iter().enumerate() {
            if op.plane() == 0 {
                self.makers[self.routes[op.slot()].output + op.unit(slices)] = index as u32;
            }
        }
        let stuck: Vec<u32> =
            (0..self.schedule.devices()).filter(|&d| next[d as usize] < self.schedule.range(d).end).collect();
        let waits =
            Graph::<(), ()>::from_edges(stuck.iter().map(|&device| (device, self.wait(device, next).on.device())));
        let is_circle = |devices: &Vec<NodeIndex>| devices.len() > 1 || waits.contains_edge(devices[0], devices[0]);
        let circular: BTreeSet<NodeIndex> = kosaraju_scc(&waits).into_iter().filter(is_circle).flatten().collect();
        let mut walk = Dfs::new(&waits, NodeIndex::from(stuck[0]));
        let way = std::iter::from_fn(|| walk.next(&waits));
        let circle: Vec<Wait> = way
            .filter(|device| circular.contains(device))
            .map(|device| self.wait(device.index() as u32, next))
            .collect();
        let mut deadlock = Deadlock { under: String::new(), waits: circle, grid: String::new() };
        if let Some((device, number)) = deadlock.place() {
            deadlock.grid = self.schedule.around(device, Some(number));
        }
        deadlock
    }

    /// What `device` waits for, where each device is stuck at its op `next`.
    fn wait(&self, device: u32, next: &[usize]) -> Wait {
        let stands = |index: usize| {
            let device = self.device_of(index);
            let number = index - self.schedule.range(device).start;
            Party::Device { device, number, op: Some(self.op(index)) }
        };
        let at = next[device as usize];
        let (first, last) = self.pair(at).unwrap_or((at, at));
        let needs = |index: usize| {
            let others = self.waits(index).iter().map(|wait| wait.op as usize);
            self.upstream(index).into_iter().chain(others).map(move |up| (index, up))
        };
        let mut needs = (first..=last).flat_map(needs);
        let unmade = needs.find(|&(_, up)| up >= next[self.device_of(up) as usize]);
        let (index, up) = unmade.expect("only a wait can stop a device");
        let other = next[self.device_of(up) as usize];
        let behind = up > self.pair(other).map_or(other, |(_, last)| last);
        let on = stands(if behind { other } else { up });
        Wait { party: stands(index), awaited: Awaited::Op(self.op(up)), on, seconds: None }
    }

    /// The same graph with the schedule's name changed.
    pub fn renamed(mut self, name: impl FnOnce(&str) -> String) -> TaskGraph {
        self.schedule.name = name(&self.schedule.name);
        self
    }

    /// What overlapped pairs mean here. Under [`Overlap::Serial`] there are none.
    pub fn overlap(&self) -> Overlap {
        self.overlap
    }

    /// The overlapped pair that op number `index` belongs to.
    pub fn pair(&self, index: usize) -> Option<(usize, usize)> {
        if self.op(index).opens_pair() {
            return Some((index, index + 1));
        }
        let first = self.before(index)?;
        self.op(first).opens_pair().then_some((first, index))
    }

    /// The schedule that this is the graph of.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Number of slices of a micro-batch.
    #[inline]
    pub fn slices(&self) -> u32 {
        self.schedule.slices().count()
    }

    /// Number of ops.
    pub fn len(&self) -> usize {
        self.schedule.ops().len()
    }

    /// Whether there is no op.
    pub fn is_empty(&self) -> bool {
        self.schedule.ops().is_empty()
    }

    /// Op number `index`.
    pub fn op(&self, index: usize) -> Op {
        self.schedule.ops()[index]
    }

    /// The device of op number `index`.
    pub fn device_of(&self, index: usize) -> u32 {
        self.schedule.placement.device_of(self.op(index))
    }

    /// The op whose output op number `index` waits for, wherever it is.
    pub fn upstream(&self, index: usize) -> Option<usize> {
        let op = self.op(index);
        op.upstream(self.schedule.placement.stages())?;
        Some(self.makers[self.routes[op.slot()].input + op.unit(self.slices())] as usize)
    }

    /// The op whose output must be transferred to op number `index` from another device.
    pub fn transfer(&self, index: usize) -> Option<usize> {
        self.upstream(index).filter(|&up| self.device_of(up) != self.device_of(index))
    }

    /// The op that waits for the output of op number `index`, wherever it is.
    pub fn consumer(&self, index: usize) -> Option<usize> {
        let op = self.op(index);
        let cell = self.routes[op.slot()].consumer_output;
        (cell != SOURCE && op.plane() == 0).then(|| self.makers[cell + op.unit(self.slices())] as usize)
    }

    /// Whether there are waits beyond those for the op before and the stage before: [`TaskGraph::waits`].
    #[inline]
    pub fn has_waits(&self) -> bool {
        self.beside.is_some()
    }

    /// The ops that op number `index` waits for besides the compute op before it and its input: for a copy the compute op and the copy
    /// before it and, if it is a RELOAD, its OFFLOAD; for a backward its RELOAD; and what a vocabulary that all devices share needs.
    #[inline]
    pub fn waits(&self, index: usize) -> &[Besides] {
        self.beside.as_ref().map_or(&[], |beside| beside.waits(index))
    }

    /// The ops whose [`TaskGraph::waits`] include op number `index`.
    pub fn waiting(&self, index: usize) -> &[Besides] {
        self.beside.as_ref().map_or(&[], |beside| beside.users(index))
    }

    /// The compute op before it on its device.
    pub fn before(&self, index: usize) -> Option<usize> {
        if let Some(beside) = &self.beside {
            return beside.before(index);
        }
        (index > self.schedule.range(self.device_of(index)).start).then(|| index - 1)
    }

    /// The compute op after it on its device.
    pub fn after(&self, index: usize) -> Option<usize> {
        if let Some(beside) = &self.beside {
            return beside.after(index);
        }
        (index + 1 < self.schedule.range(self.device_of(index)).end).then_some(index + 1)
    }

    /// Where an op takes its input and leaves its output: for other kinds than F, I, W and B where nothing is and nobody reads.
    pub fn route(&self, op: Op) -> Route {
        match op.plane() {
            0 => self.routes[op.slot()],
            _ => {
                let weights = self.routes[op.of_kind(Kind::W).slot()];
                Route { consumer: self.schedule.placement.device_of(op), ..weights }
            }
        }
    }

    /// Where ops of F, I, W and B take their input and leave their output, by [`Op::slot`].
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Number of cells that [`TaskGraph::routes`] lead to.
    pub fn cells(&self) -> usize {
        self.makers.len()
    }

    /// Every op, after all it waits for, as runs of ops of one device.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Every op, after all it waits for.
    pub fn order(&self) -> Vec<usize> {
        let mut next: Vec<usize> =
            (0..self.schedule.devices()).map(|device| self.schedule.range(device).start).collect();
        let mut order = Vec::with_capacity(self.len());
        for run in &self.runs {
            let start = std::mem::replace(&mut next[run.device as usize], run.end as usize);
            order.extend(start..run.end as usize);
        }
        order
    }

    /// By op: the op that uses its output elsewhere, if any.
    pub fn consumers(&self) -> Vec<Option<usize>> {
        (0..self.len()).map(|index| self.consumer(index)).collect()
    }

    /// By op: how many ops of each device are among what it waits for, directly or not, itself included.
    /// One entry a device: memory is ops × devices, so this is for graphs that are executed.
    pub fn ancestors(&self) -> Vec<Vec<u32>> {
        let devices = self.schedule.devices() as usize;
        let mut clocks: Vec<Vec<u32>> = vec![Vec::new(); self.len()];
        for index in self.order() {
            let mut clock = vec![0; devices];
            for need in self.neighbors_directed(index, Direction::Incoming) {
                clock.iter_mut().zip(&clocks[need]).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
            }
            let device = self.device_of(index);
            clock[device as usize] = (index - self.schedule.range(device).start) as u32 + 1;
            clocks[index] = clock;
        }
        clocks
    }
}
