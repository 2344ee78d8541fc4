//! The state of copies to and from the host, and of what else ops wait for besides inputs.

use pipesim_schedule::graph::TaskGraph;
use std::collections::VecDeque;

/// One direction of a link to the host.
#[derive(Clone, Debug, Default)]
pub(super) struct HostLink {
    pub busy: bool,
    /// Copies that could start, in the order in which they could.
    pub waiting: VecDeque<u32>,
}

/// The copies of a simulation; empty without copies.
#[derive(Clone, Debug, Default)]
pub(super) struct CopyState {
    /// By op: number of its [`TaskGraph::waits`] that have not ended.
    pub left: Vec<u32>,
    /// By op: when it started, for copies.
    pub starts: Vec<u64>,
    pub links: Vec<HostLink>,
}

impl CopyState {
    pub fn new(graph: &TaskGraph) -> CopyState {
        if !graph.has_waits() {
            return CopyState::default();
        }
        let left = (0..graph.len()).map(|index| graph.waits(index).len() as u32).collect();
        let links = vec![HostLink::default(); 2 * graph.schedule().devices() as usize];
        CopyState { left, starts: vec![0; graph.len()], links }
    }

    /// Whether everything is ready that op number `index` waits for besides its input.
    pub fn inputs_ready(&self, index: usize) -> bool {
        self.left.get(index).is_none_or(|&left| left == 0)
    }
}
