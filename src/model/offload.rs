//! Copies of what forwards kept to the host and back.

use super::module::StageModule;
use super::ops::find;
use super::stash::{LeftByPart, Parcel, Stash, Whereabouts};
use super::walk::{Left, Walk};
use crate::compute::cpu::Cpu;
use crate::compute::{Compute, Memory};
use crate::op::{Kind, Op};
use anyhow::{Error, Result, bail};

/// A copy, for a thread that copies.
pub type CopyWork = Box<dyn FnOnce() -> Result<()> + Send>;

/// Bytes of all buffers.
fn bytes<B: Memory>(left: &LeftByPart<B>) -> i64 {
    left.iter().flatten().flat_map(Left::each).map(Memory::bytes).sum::<usize>() as i64
}

/// Moves all buffers.
fn moved<B>(left: LeftByPart<B>, mut to: impl FnMut(B) -> B) -> LeftByPart<B> {
    left.into_iter().map(|part| part.into_iter().map(|left| left.map(&mut to)).collect()).collect()
}

impl StageModule<Cpu> {
    /// Returns the copy of `op`, an OFFLOAD or RELOAD, for another thread to run while ops run here: the OFFLOAD of a unit after its
    /// forward, its RELOAD after that, and its backward after both. With slices, keys and values stay here, too, for later slices.
    ///
    /// # Errors
    /// The stage is not here, or the op is out of order. The copy fails if it is.
    pub fn copy(&mut self, op: Op) -> Result<CopyWork> {
        match op.kind() {
            Kind::O => self.offload(op),
            Kind::L => self.reload(op),
            _ => bail!("expected OFFLOAD or RELOAD, found {op}: run it on the device"),
        }
    }

    fn offload(&mut self, op: Op) -> Result<CopyWork> {
        let (unit, slice) = self.at(op)?;
        self.enter(slice)?;
        let entry = find(&mut self.stages, op.stage())?;
        let mut left = entry.stashes[unit].take_forward().map_err(Error::msg)?;
        let mut stays = Vec::with_capacity(left.len());
        for (repetition, left) in entry.repetitions.iter().zip(&mut left) {
            let (layers, groups) = (&self.layers[repetition.part], &repetition.groups);
            let walk = Walk { compute: &mut self.compute, layers, groups, microbatch: op.microbatch() as usize };
            stays.push(walk.stay(left, self.slices > 1)?);
        }
        if self.slices > 1 {
            let keys = stays.iter().flatten().filter_map(Left::only_keys).map(Memory::bytes).sum::<usize>();
            self.held.change(op, keys as i64);
        }
        let parcel = Parcel::leaving();
        entry.stashes[unit] = Stash::Away(stays, parcel.clone());
        let (memories, held, leaving) = (self.compute.memories(), self.held.clone(), bytes(&left));
        Ok(Box::new(move || {
            parcel.put(Whereabouts::Host(moved(left, |buffer| memories.to_host(buffer))));
            held.change(op, -leaving);
            Ok(())
        }))
    }

    fn reload(&mut self, op: Op) -> Result<CopyWork> {
        let (unit, _) = self.at(op)?;
        let Stash::Away(_, parcel) = &find(&mut self.stages, op.stage())?.stashes[unit] else {
            bail!("expected an activation that goes to the host, found none: run OFFLOAD before {op}");
        };
        let (parcel, memories, held) = (parcel.clone(), self.compute.memories(), self.held.clone());
        Ok(Box::new(move || {
            let Whereabouts::Host(there) = parcel.take() else {
                bail!("expected an activation on the host, found none: run OFFLOAD before {op}");
            };
            held.change(op, bytes(&there));
            parcel.put(Whereabouts::Device(moved(there, |buffer| memories.to_device(buffer))));
            Ok(())
        }))
    }
}

impl<C: Compute> StageModule<C> {
    /// Puts together what came back from the host for the unit of `op` and what stayed, if it went there.
    pub(super) fn come_back(&mut self, op: Op, unit: usize) -> Result<()> {
        let stash = &mut find(&mut self.stages, op.stage())?.stashes[unit];
        let Some([stayed, mut back]) = stash.take_back().map_err(Error::msg)? else { return Ok(()) };
        let rest = back.iter_mut().flatten().zip(stayed.into_iter().flatten());
        let keys: Vec<C::Buffer> = rest.flat_map(|(back, stayed)| back.replace_stub(stayed)).collect();
        *stash = Stash::Forward(back);
        if self.slices > 1 {
            let bytes: usize = keys.iter().map(Memory::bytes).sum();
            self.held.change(op.of_kind(Kind::L), -(bytes as i64));
        }
        keys.into_iter().for_each(|buffer| self.compute.give(buffer));
        Ok(())
    }
}
