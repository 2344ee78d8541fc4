//! Memory that collective calls pass data through, piece by piece.

use super::arena::{ArenaLayout, Region};
use crate::mesh::Mesh;

/// Numbers in a piece: 256 KiB.
pub const PIECE: usize = 1 << 16;

/// A member's memory.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub data: [Region; 2],
    /// Signal: number of pieces that the member has written.
    pub written: Region,
}

/// The memory of all groups, by worker; none if every group has one member.
#[derive(Debug, Default)]
pub struct PieceBuffers(Vec<Slots>);

impl PieceBuffers {
    /// Reserves memory for the workers of a pipeline of `devices` devices.
    pub fn new(layout: &mut ArenaLayout, mesh: Mesh, devices: u32) -> PieceBuffers {
        let workers = if mesh.tensor > 1 { mesh.world(devices) } else { 0 };
        let mut region = || layout.region(PIECE * size_of::<f32>());
        let data: Vec<[Region; 2]> = (0..workers).map(|_| [region(), region()]).collect();
        PieceBuffers(data.into_iter().map(|data| Slots { data, written: layout.signal() }).collect())
    }

    pub fn of(&self, worker: u32) -> Slots {
        self.0[worker as usize]
    }
}
