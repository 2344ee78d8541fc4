//! Collective calls among the tensor-parallel ranks of a device, through shared memory, or MPI between ranks that have none.
//!
//! Every member has two slots for a piece of data, and a signal that counts its pieces. A call passes its data in pieces: a member
//! writes the next piece to its slot, raises its signal, waits for the signals of all others, and reads their slots. A member that
//! has raised its signal for piece q has read all pieces before q. So a member that has seen the signals of all others for piece q may
//! overwrite the slot of piece q - 1, which is the slot of piece q + 1: two slots are enough, and reads need no signal.

use super::piece::{PIECE, Slots};
use super::shared::Shared;
use super::spanning::Part;
use anyhow::{Result, ensure};
use pipesim_train::compute::Collective;
use std::ops::Range;
use std::sync::Arc;

/// A member of the group of tensor-parallel ranks of a device.
pub struct TensorGroup {
    worker: u32,
    members: Range<u32>,
    shared: Arc<Shared>,
    /// Number of pieces so far.
    pieces: u64,
}

impl TensorGroup {
    /// Creates `worker`'s member of its group. Each worker of the group creates one.
    pub fn new(worker: u32, shared: &Arc<Shared>) -> TensorGroup {
        TensorGroup { worker, members: shared.mesh.tensor_group(worker), shared: shared.clone(), pieces: 0 }
    }

    fn slots(&self, member: u32) -> Slots {
        self.shared.pieces.of(member)
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.worker;
        self.members.clone().filter(move |&member| member != own)
    }

    /// Passes pieces of `length` numbers: `write` fills this member's piece, and `read` gets all members' pieces in order.
    ///
    /// # Errors
    /// The run was aborted.
    fn pass(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut [f32]),
        read: impl FnOnce(&mut dyn Iterator<Item = &[f32]>),
    ) -> Result<()> {
        let (heap, piece) = (&self.shared.heap, self.pieces + 1);
        let parts: Vec<Part> =
            self.members.clone().map(|member| self.slots(member).part(self.pieces, length)).collect();
        let (own, group) = (self.rank(), self.slots(self.worker).group);
        // SAFETY: this member alone writes its slot, and all others have read the piece before last, as their signals for the last
        // one showed.
        write(unsafe { heap.arena().data_mut(parts[own].data) });
        // SAFETY: nobody reads the piece before the signal, and this member does not write it again before they have read it.
        unsafe { heap.publish(group, own, &parts, piece) };
        self.others().try_for_each(|member| self.wait(member, piece))?;
        // SAFETY: all members have written their pieces, and write the slots again only after this member's next signal.
        read(&mut parts.iter().map(|part| unsafe { heap.arena().data(part.data) }));
        self.pieces = piece;
        Ok(())
    }

    /// Waits until `member` has written `piece` pieces. A wait that is not over at once counts for the watch.
    fn wait(&self, member: u32, piece: u64) -> Result<()> {
        let Shared { heap, watch, .. } = &*self.shared;
        let written = heap.signal(self.slots(member).written);
        if written.value() < piece {
            watch.note_wait(self.worker, true);
            written.wait(piece, watch)?;
            watch.note_wait(self.worker, false);
        }
        Ok(())
    }

    /// Combines all members' `data` in their order.
    fn fold(&mut self, data: &mut [f32], join: impl Fn(f32, f32) -> f32) -> Result<()> {
        for piece in data.chunks_mut(PIECE) {
            // The piece is read to the slot before it is written.
            let cell = std::cell::RefCell::new(piece);
            let length = cell.borrow().len();
            let write = |slot: &mut [f32]| slot.copy_from_slice(&cell.borrow());
            self.pass(length, write, |parts| combine(&mut cell.borrow_mut(), parts, &join))?;
        }
        Ok(())
    }
}

/// Combines parts in order.
fn combine(into: &mut [f32], parts: &mut dyn Iterator<Item = &[f32]>, join: impl Fn(f32, f32) -> f32) {
    if let Some(first) = parts.next() {
        into.copy_from_slice(first);
    }
    for part in parts {
        into.iter_mut().zip(part).for_each(|(into, &value)| *into = join(*into, value));
    }
}

impl Collective for TensorGroup {
    fn size(&self) -> usize {
        self.members.len()
    }

    fn rank(&self) -> usize {
        (self.worker - self.members.start) as usize
    }

    fn all_reduce(&mut self, data: &mut [f32]) -> Result<()> {
        self.fold(data, |a, b| a + b)
    }

    fn all_reduce_max(&mut self, data: &mut [f32]) -> Result<()> {
        self.fold(data, f32::max)
    }

    fn reduce_scatter(&mut self, data: &[f32], share: &mut [f32]) -> Result<()> {
        let (size, rank, length) = (self.size(), self.rank(), share.len());
        check_length(data.len(), size * length)?;
        // A piece holds the same part of every member's share.
        let part = PIECE / size;
        for start in (0..length).step_by(part) {
            let count = part.min(length - start);
            let write = |slot: &mut [f32]| {
                for (number, into) in slot.chunks_exact_mut(count).enumerate() {
                    into.copy_from_slice(&data[number * length + start..][..count]);
                }
            };
            self.pass(size * count, write, |parts| {
                let mut own = parts.map(|slot| &slot[rank * count..][..count]);
                combine(&mut share[start..start + count], &mut own, |a, b| a + b);
            })?;
        }
        Ok(())
    }

    fn all_gather(&mut self, share: &[f32], data: &mut [f32]) -> Result<()> {
        let length = share.len();
        check_length(data.len(), self.size() * length)?;
        for start in (0..length).step_by(PIECE) {
            let count = PIECE.min(length - start);
            let write = |slot: &mut [f32]| slot.copy_from_slice(&share[start..start + count]);
            self.pass(count, write, |parts| {
                for (number, part) in parts.enumerate() {
                    data[number * length + start..][..count].copy_from_slice(part);
                }
            })?;
        }
        Ok(())
    }
}

fn check_length(found: usize, expected: usize) -> Result<()> {
    ensure!(
        found == expected,
        "expected {expected} numbers for a collective call, found {found}: pass all members' pieces"
    );
    Ok(())
}
