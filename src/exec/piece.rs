//! Memory that collective calls pass data through, piece by piece.

use super::arena::{ArenaLayout, Region};
use super::spanning::{GroupList, Part};
use pipesim_schedule::mesh::Mesh;

/// Numbers in a piece: 256 KiB.
pub const PIECE: usize = 1 << 16;

/// A member's memory.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub data: [Region; 2],
    /// Signal: number of pieces that the member has written.
    pub written: Region,
    /// Number of the member's group.
    pub group: usize,
}

impl Slots {
    /// Returns the place of piece number `piece` (from 0), of `length` numbers.
    pub fn part(self, piece: u64, length: usize) -> Part {
        Part { data: self.data[(piece % 2) as usize].first(length * size_of::<f32>()), arrived: self.written }
    }
}

/// The memory of all groups, by worker; none if every group has one member.
#[derive(Debug, Default)]
pub struct PieceBuffers(Vec<Slots>);

impl PieceBuffers {
    /// Reserves memory for the workers of a pipeline of `devices` devices, and adds their groups.
    pub fn new(layout: &mut ArenaLayout, groups: &mut GroupList, mesh: Mesh, devices: u32) -> PieceBuffers {
        let workers = if mesh.tensor > 1 { mesh.world(devices) } else { 0 };
        let mut region = || layout.region(PIECE * size_of::<f32>());
        let data: Vec<[Region; 2]> = (0..workers).map(|_| [region(), region()]).collect();
        let groups: Vec<usize> = (0..workers / mesh.tensor)
            .map(|group| groups.add(mesh.tensor_group(group * mesh.tensor).collect()))
            .collect();
        let slots = data.into_iter().enumerate().map(|(worker, data)| Slots {
            data,
            written: layout.signal(),
            group: groups[worker / mesh.tensor as usize],
        });
        PieceBuffers(slots.collect())
    }

    pub fn of(&self, worker: u32) -> Slots {
        self.0[worker as usize]
    }
}
