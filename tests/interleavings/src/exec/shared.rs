//! What the workers of a group share.

use super::arena::{Arena, ArenaLayout};
use super::heap::{Heap, HostBuffer};
use super::piece::PieceBuffers;
use super::reductions::Reductions;
use super::spanning::GroupList;
use super::watch::Watch;
use crate::mesh::Mesh;
use crate::ranks::Ranks;
use std::sync::Arc;

pub struct Shared {
    pub(super) mesh: Mesh,
    pub(super) heap: Arc<Heap>,
    pub(super) pieces: PieceBuffers,
    pub(super) watch: Watch,
    reductions: Reductions,
    /// From worker 0 to worker 1.
    channel: HostBuffer,
}

impl Shared {
    /// Returns what each of `workers` tensor-parallel workers of one device has: the same, or, `apart`, the memory of its own rank.
    pub fn all(workers: u32, apart: bool) -> (Vec<Arc<Ranks>>, Vec<Arc<Shared>>) {
        let ranks = Ranks::all(workers, apart);
        let one = || Arc::new(Shared::new(workers, Shared::arena(workers), &ranks[0]));
        let own = |rank: &Arc<Ranks>| Arc::new(Shared::new(workers, Shared::arena(workers), rank));
        let shared = if apart { ranks.iter().map(own).collect() } else { vec![one(); workers as usize] };
        (ranks, shared)
    }

    fn arena(workers: u32) -> Arc<Arena> {
        let (layout, ..) = Shared::layout(workers);
        Arc::new(Arena::private(layout.bytes()).expect("memory"))
    }

    fn layout(workers: u32) -> (ArenaLayout, GroupList, super::arena::Region, PieceBuffers, Reductions, HostBuffer) {
        let (mut layout, mut groups) = (ArenaLayout::default(), GroupList::default());
        let aborted = layout.signal();
        let pieces = PieceBuffers::new(&mut layout, &mut groups, Mesh::new(workers, 1), 1);
        let reductions = Reductions::new(&mut layout, &mut groups, workers, workers as usize);
        let channel = HostBuffer::new(&mut layout, 3);
        (layout, groups, aborted, pieces, reductions, channel)
    }

    fn new(workers: u32, arena: Arc<Arena>, ranks: &Arc<Ranks>) -> Shared {
        let (_, groups, aborted, pieces, reductions, channel) = Shared::layout(workers);
        let heap = Arc::new(Heap::new(arena, ranks.clone(), workers, groups, 1).expect("all ranks"));
        let watch = Watch { heap: heap.clone(), aborted };
        Shared { mesh: Mesh::new(workers, 1), heap, pieces, watch, reductions, channel }
    }

    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    pub fn reductions(&self) -> &Reductions {
        &self.reductions
    }

    pub fn channel(&self) -> &HostBuffer {
        &self.channel
    }
}
