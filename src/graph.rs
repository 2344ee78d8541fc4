//! The task graph: compute ops, the transfers between them, and what each waits for.
//!
//! Flat arrays; a device's ops are contiguous, in the schedule's order. An op waits for the op before it on its device and
//! for at most one op elsewhere (`upstream`): every other need (a W for its I, a backward for its own F) is on its device
//! and before it, which [`Schedule::validate`] has checked. A transfer is the edge between an op and its upstream op on
//! another device.

use crate::op::{Kind, Op};
use crate::schedule::Schedule;
use fixedbitset::FixedBitSet;
use petgraph::visit::{
    GraphBase, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers, NodeCount, NodeIndexable, Visitable,
};
use std::fmt;

/// No upstream op.
const NONE: u32 = u32::MAX;
/// Bit of an upstream entry that says: on another device.
const CROSSES: u32 = 1 << 31;

/// The graph of one training step's pipeline part.
#[derive(Clone, Debug)]
pub struct TaskGraph {
    schedule: Schedule,
    /// By op: index of the op whose output it waits for, with [`CROSSES`]; or [`NONE`].
    upstream: Vec<u32>,
    /// An order in which every op comes after all it waits for.
    order: Vec<u32>,
}

/// One device of a wait cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The device that is stuck.
    pub device: u32,
    /// The number of its op that cannot start.
    pub index: usize,
    /// That op.
    pub op: Op,
    /// The op it waits for.
    pub awaited: Op,
    /// The device where that op stands, behind another stuck op.
    pub on: u32,
}

/// Devices that wait for one another in a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// Who waits for whom; the last waits for the first.
    pub waits: Vec<Wait>,
    grid: String,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the devices wait for one another in a circle:")?;
        for wait in &self.waits {
            let Wait { device, index, op, awaited, on } = wait;
            writeln!(
                f,
                "  device {device} at op number {index} ({op}) waits for {awaited}, which stands later on device {on}"
            )?;
        }
        write!(f, "{}", self.grid)
    }
}

impl std::error::Error for Cycle {}

/// Where each (stage, micro-batch)'s forward and backward stand.
struct Positions {
    microbatches: usize,
    forward: Vec<u32>,
    backward: Vec<u32>,
}

impl Positions {
    fn new(schedule: &Schedule) -> Positions {
        let microbatches = schedule.microbatches as usize;
        let cells = schedule.placement.stages() as usize * microbatches;
        let mut positions = Positions { microbatches, forward: vec![NONE; cells], backward: vec![NONE; cells] };
        for (index, op) in schedule.ops().iter().enumerate() {
            let cell = op.stage() as usize * microbatches + op.microbatch() as usize;
            match op.kind() {
                Kind::F => positions.forward[cell] = index as u32,
                Kind::I | Kind::B => positions.backward[cell] = index as u32,
                Kind::W => {}
            }
        }
        positions
    }

    fn of(&self, kind: Kind, stage: u32, microbatch: u32) -> u32 {
        let cell = stage as usize * self.microbatches + microbatch as usize;
        if kind == Kind::F { self.forward[cell] } else { self.backward[cell] }
    }
}

impl TaskGraph {
    /// The graph of a schedule that [`Schedule::validate`] accepts.
    ///
    /// # Errors
    /// Devices that wait for one another in a circle.
    ///
    /// # Panics
    /// The schedule has 2^31 ops or more.
    pub fn new(schedule: Schedule) -> Result<TaskGraph, Cycle> {
        assert!(schedule.ops().len() < CROSSES as usize, "a schedule has less than 2^31 ops");
        let positions = Positions::new(&schedule);
        let (placement, stages) = (&schedule.placement, schedule.placement.stages());
        let mut upstream = Vec::with_capacity(schedule.ops().len());
        for op in schedule.ops() {
            upstream.push(op.upstream(stages).map_or(NONE, |stage| {
                let crosses = placement.device_of(stage) != placement.device_of(op.stage());
                positions.of(op.kind(), stage, op.microbatch()) | if crosses { CROSSES } else { 0 }
            }));
        }
        let mut graph = TaskGraph { schedule, upstream, order: Vec::new() };
        graph.order = graph.sweep_order(&positions)?;
        Ok(graph)
    }

    /// Runs each device until it must wait, wakes it when what it waits for has run.
    fn sweep_order(&self, positions: &Positions) -> Result<Vec<u32>, Cycle> {
        let schedule = &self.schedule;
        let devices = schedule.devices();
        let mut next: Vec<usize> = (0..devices).map(|device| schedule.range(device).start).collect();
        let mut order = Vec::with_capacity(schedule.ops().len());
        let mut runnable: Vec<u32> = (0..devices).rev().collect();
        // What has run is what lies before its device's `next`.
        while let Some(device) = runnable.pop() {
            let end = schedule.range(device).end;
            while next[device as usize] < end {
                let index = next[device as usize];
                if let Some(up) = self.upstream(index)
                    && up >= next[self.device_of(up) as usize]
                {
                    break;
                }
                order.push(index as u32);
                next[device as usize] += 1;
                if let Some(consumer) = self.downstream(index, positions)
                    && next[self.device_of(consumer) as usize] == consumer
                    && self.device_of(consumer) != device
                {
                    runnable.push(self.device_of(consumer));
                }
            }
        }
        if order.len() == schedule.ops().len() { Ok(order) } else { Err(self.cycle(&next)) }
    }

    fn downstream(&self, index: usize, positions: &Positions) -> Option<usize> {
        let op = self.op(index);
        let stage = match op.kind() {
            Kind::F => Some(op.stage() + 1).filter(|&stage| stage < self.schedule.placement.stages()),
            Kind::I | Kind::B => op.stage().checked_sub(1),
            Kind::W => None,
        }?;
        Some(positions.of(op.kind(), stage, op.microbatch()) as usize)
    }

    fn cycle(&self, next: &[usize]) -> Cycle {
        let stuck = |device: u32| -> Wait {
            let index = next[device as usize];
            let up = self.upstream(index).expect("only a wait can stop a device");
            let number = index - self.schedule.range(device).start;
            Wait { device, index: number, op: self.op(index), awaited: self.op(up), on: self.device_of(up) }
        };
        let first = (0..self.schedule.devices()).find(|&d| next[d as usize] < self.schedule.range(d).end);
        let mut waits: Vec<Wait> = vec![stuck(first.expect("some device is stuck"))];
        loop {
            let device = waits[waits.len() - 1].on;
            if let Some(start) = waits.iter().position(|wait| wait.device == device) {
                let grid = self.schedule.fault(device, Some(waits[start].index), String::new()).grid;
                return Cycle { waits: waits.split_off(start), grid };
            }
            waits.push(stuck(device));
        }
    }

    /// The schedule that this is the graph of.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Number of ops.
    pub fn len(&self) -> usize {
        self.upstream.len()
    }

    /// Whether there is no op.
    pub fn is_empty(&self) -> bool {
        self.upstream.is_empty()
    }

    /// Op number `index`.
    pub fn op(&self, index: usize) -> Op {
        self.schedule.ops()[index]
    }

    /// The device of op number `index`.
    pub fn device_of(&self, index: usize) -> u32 {
        self.schedule.placement.device_of(self.op(index).stage())
    }

    /// The op whose output op number `index` waits for, wherever it is.
    pub fn upstream(&self, index: usize) -> Option<usize> {
        let entry = self.upstream[index];
        (entry != NONE).then_some((entry & !CROSSES) as usize)
    }

    /// The op whose output must be transferred to op number `index` from another device.
    pub fn transfer(&self, index: usize) -> Option<usize> {
        let entry = self.upstream[index];
        (entry != NONE && entry & CROSSES != 0).then_some((entry & !CROSSES) as usize)
    }

    /// The op before it on its device.
    pub fn before(&self, index: usize) -> Option<usize> {
        (index > self.schedule.range(self.device_of(index)).start).then(|| index - 1)
    }

    /// Every op, after all it waits for.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// By op: the op that uses its output elsewhere, if any.
    pub fn consumers(&self) -> Vec<Option<usize>> {
        let mut consumers = vec![None; self.len()];
        for index in 0..self.len() {
            if let Some(up) = self.upstream(index) {
                consumers[up] = Some(index);
            }
        }
        consumers
    }

    /// By op: how many ops of each device are among what it waits for, directly or not, itself included.
    /// One entry a device: memory is ops × devices, so this is for graphs that are executed.
    pub fn ancestors(&self) -> Vec<Vec<u32>> {
        let devices = self.schedule.devices() as usize;
        let mut clocks: Vec<Vec<u32>> = vec![Vec::new(); self.len()];
        for &index in &self.order {
            let index = index as usize;
            let mut clock = self.before(index).map_or_else(|| vec![0; devices], |before| clocks[before].clone());
            if let Some(up) = self.upstream(index) {
                clock.iter_mut().zip(&clocks[up]).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
            }
            let device = self.device_of(index);
            clock[device as usize] = (index - self.schedule.range(device).start) as u32 + 1;
            clocks[index] = clock;
        }
        clocks
    }
}

// petgraph's traits, so that its algorithms run on the graph. A node is an op's index.

impl GraphBase for TaskGraph {
    type NodeId = usize;
    type EdgeId = (usize, usize);
}

impl NodeCount for TaskGraph {
    fn node_count(&self) -> usize {
        self.len()
    }
}

impl NodeIndexable for TaskGraph {
    fn node_bound(&self) -> usize {
        self.len()
    }
    fn to_index(&self, node: usize) -> usize {
        node
    }
    fn from_index(&self, index: usize) -> usize {
        index
    }
}

impl Visitable for TaskGraph {
    type Map = FixedBitSet;
    fn visit_map(&self) -> FixedBitSet {
        FixedBitSet::with_capacity(self.len())
    }
    fn reset_map(&self, map: &mut FixedBitSet) {
        map.clear();
        map.grow(self.len());
    }
}

impl IntoNodeIdentifiers for &TaskGraph {
    type NodeIdentifiers = std::ops::Range<usize>;
    fn node_identifiers(self) -> Self::NodeIdentifiers {
        0..self.len()
    }
}

impl IntoNeighbors for &TaskGraph {
    type Neighbors = std::vec::IntoIter<usize>;
    fn neighbors(self, node: usize) -> Self::Neighbors {
        self.neighbors_directed(node, petgraph::Direction::Outgoing)
    }
}

impl IntoNeighborsDirected for &TaskGraph {
    type NeighborsDirected = std::vec::IntoIter<usize>;
    fn neighbors_directed(self, node: usize, direction: petgraph::Direction) -> Self::NeighborsDirected {
        let neighbors: Vec<usize> = match direction {
            petgraph::Direction::Incoming => self.before(node).into_iter().chain(self.upstream(node)).collect(),
            petgraph::Direction::Outgoing => {
                let after = Some(node + 1).filter(|&next| next < self.len() && self.before(next) == Some(node));
                let op = self.op(node);
                // The op that waits for this one, found by its key: few enough to look through for an algorithm's use.
                let range = self.consumer_range(op);
                let consumer = range.into_iter().flatten().find(|&other| self.upstream(other) == Some(node));
                after.into_iter().chain(consumer).collect()
            }
        };
        neighbors.into_iter()
    }
}

impl TaskGraph {
    /// The program in which the consumer of `op`'s output stands.
    fn consumer_range(&self, op: Op) -> Option<std::ops::Range<usize>> {
        let placement = &self.schedule.placement;
        let stage = match op.kind() {
            Kind::F => Some(op.stage() + 1).filter(|&stage| stage < placement.stages()),
            Kind::I | Kind::B => op.stage().checked_sub(1),
            Kind::W => None,
        }?;
        Some(self.schedule.range(placement.device_of(stage)))
    }
}
