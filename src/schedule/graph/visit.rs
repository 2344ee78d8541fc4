//! [`petgraph`]'s traits for the task graph, so that its algorithms run on it without a copy.
//!
//! A node is the number of an op. An edge leads from an op to one that waits for it, and its weight says why. Edges are computed from the
//! ops' keys, as everywhere else.

use super::TaskGraph;
use crate::op::Op;
use fixedbitset::FixedBitSet;
use petgraph::visit::{
    Data, EdgeRef, GraphBase, GraphProp, IntoEdgeReferences, IntoEdges, IntoEdgesDirected, IntoNeighbors,
    IntoNeighborsDirected, IntoNodeIdentifiers, IntoNodeReferences, NodeCompactIndexable, NodeCount, NodeIndexable,
    Visitable,
};
use petgraph::{Directed, Direction};
use std::fmt;
use std::iter::{Chain, Enumerate, FlatMap, Flatten, Map, Repeat, Zip, repeat};
use std::ops::Range;

/// Why an op waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    /// It comes later in the program of the same device.
    Order,
    /// It uses the other's output, which is made on the same device.
    Input,
    /// It uses the other's output, which another device sends.
    Transfer,
    /// It is a copy to or from the host, or needs one, or a result of all devices.
    Beside,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// One edge of the task graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Number of the op that comes first.
    pub from: usize,
    /// Number of the op that waits for it.
    pub to: usize,
    /// Why it waits.
    pub dependency: Dependency,
}

impl EdgeRef for Edge {
    type NodeId = usize;
    type EdgeId = (usize, usize);
    type Weight = Dependency;

    fn source(&self) -> usize {
        self.from
    }

    fn target(&self) -> usize {
        self.to
    }

    fn weight(&self) -> &Dependency {
        &self.dependency
    }

    fn id(&self) -> (usize, usize) {
        (self.from, self.to)
    }
}

/// Most edges at one op in one direction: the op after it, and for each op of an overlapped pair its user and the user's partner.
const MOST: usize = 5;

/// Edges that begin or end at one op, at most one per neighbor: at most `MOST` edges, and the edges of copies.
pub type Edges = Chain<Flatten<std::array::IntoIter<Option<Edge>, MOST>>, std::vec::IntoIter<Edge>>;

/// Numbers of the ops that wait for one op, or of those that it waits for.
pub type Neighbors = Map<Edges, fn(Edge) -> usize>;

/// All edges of the task graph, by the op that they lead from.
pub type AllEdges<'a> = FlatMap<Zip<Range<usize>, Repeat<&'a TaskGraph>>, Edges, fn((usize, &'a TaskGraph)) -> Edges>;

/// Collects edges, one per neighbor.
#[derive(Default)]
struct Found([Option<Edge>; MOST], Vec<Edge>);

impl Found {
    fn add(&mut self, graph: &TaskGraph, from: usize, to: usize) {
        if self.0.iter().flatten().any(|edge| (edge.from, edge.to) == (from, to)) {
            return;
        }
        let same = graph.device_of(from) == graph.device_of(to);
        let dependency = if same { Dependency::Input } else { Dependency::Transfer };
        self.put(Edge { from, to, dependency });
    }

    /// Adds a wait of a copy, or for one.
    fn add_wait(&mut self, from: usize, to: usize) {
        let found = self.0.iter().flatten().chain(&self.1).any(|edge| (edge.from, edge.to) == (from, to));
        if !found {
            self.1.push(Edge { from, to, dependency: Dependency::Beside });
        }
    }

    fn put(&mut self, edge: Edge) {
        if let Some(free) = self.0.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(edge);
        }
    }

    fn edges(self) -> Edges {
        self.0.into_iter().flatten().chain(self.1)
    }
}

impl TaskGraph {
    /// Whether both ops of an overlapped pair start only once the inputs of both have arrived.
    fn pairs_start_together(&self) -> bool {
        self.overlap.starts_together()
    }

    fn edges_of(&self, index: usize, direction: Direction) -> Edges {
        let mut found = Found::default();
        match direction {
            Direction::Incoming => {
                if let Some(before) = self.before(index).filter(|_| self.op(index).kind().is_compute()) {
                    found.put(Edge { from: before, to: index, dependency: Dependency::Order });
                }
                let partner = (self.pairs_start_together() && self.op(index).opens_pair()).then_some(index + 1);
                for need in [Some(index), partner].into_iter().flatten().filter_map(|user| self.upstream(user)) {
                    found.add(self, self.pair(need).map_or(need, |(_, last)| last), index);
                }
                self.waits(index).iter().for_each(|need| found.add_wait(need.op as usize, index));
            }
            Direction::Outgoing => {
                if let Some(after) = self.after(index).filter(|_| self.op(index).kind().is_compute()) {
                    found.put(Edge { from: index, to: after, dependency: Dependency::Order });
                }
                let leaving = match self.pair(index) {
                    Some((first, _)) if first == index => [None, None],
                    Some((first, _)) => [Some(first), Some(index)],
                    None => [Some(index), None],
                };
                for user in leaving.into_iter().flatten().filter_map(|maker| self.consumer(maker)) {
                    found.add(self, index, user);
                    let first = self.pair(user).map_or(user, |(first, _)| first);
                    if first != user && self.pairs_start_together() {
                        found.add(self, index, first);
                    }
                }
                self.waiting(index).iter().for_each(|user| found.add_wait(index, user.op as usize));
            }
        }
        found.edges()
    }
}

impl GraphBase for TaskGraph {
    type NodeId = usize;
    type EdgeId = (usize, usize);
}

impl Data for TaskGraph {
    type NodeWeight = Op;
    type EdgeWeight = Dependency;
}

impl GraphProp for TaskGraph {
    type EdgeType = Directed;
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

    fn to_index(&self, index: usize) -> usize {
        index
    }

    fn from_index(&self, index: usize) -> usize {
        index
    }
}

impl NodeCompactIndexable for TaskGraph {}

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
    type NodeIdentifiers = Range<usize>;

    fn node_identifiers(self) -> Range<usize> {
        0..self.len()
    }
}

impl<'a> IntoNodeReferences for &'a TaskGraph {
    type NodeRef = (usize, &'a Op);
    type NodeReferences = Enumerate<std::slice::Iter<'a, Op>>;

    fn node_references(self) -> Self::NodeReferences {
        self.schedule.ops().iter().enumerate()
    }
}

impl IntoNeighbors for &TaskGraph {
    type Neighbors = Neighbors;

    fn neighbors(self, index: usize) -> Neighbors {
        self.neighbors_directed(index, Direction::Outgoing)
    }
}

impl IntoNeighborsDirected for &TaskGraph {
    type NeighborsDirected = Neighbors;

    fn neighbors_directed(self, index: usize, direction: Direction) -> Neighbors {
        let far: fn(Edge) -> usize = if direction == Direction::Outgoing { |edge| edge.to } else { |edge| edge.from };
        self.edges_of(index, direction).map(far)
    }
}

impl<'a> IntoEdgeReferences for &'a TaskGraph {
    type EdgeRef = Edge;
    type EdgeReferences = AllEdges<'a>;

    fn edge_references(self) -> AllEdges<'a> {
        (0..self.len()).zip(repeat(self)).flat_map(|(index, graph)| graph.edges_of(index, Direction::Outgoing))
    }
}

impl IntoEdges for &TaskGraph {
    type Edges = Edges;

    fn edges(self, index: usize) -> Edges {
        self.edges_of(index, Direction::Outgoing)
    }
}

impl IntoEdgesDirected for &TaskGraph {
    type EdgesDirected = Edges;

    fn edges_directed(self, index: usize, direction: Direction) -> Edges {
        self.edges_of(index, direction)
    }
}
