//! Copies of what forwards kept to the host and back.

use super::module::StageModule;
use super::ops::find;
use super::stash::{LeftByPart, Parcel, Stash, Whereabouts};
use super::walk::{Left, Walk};
use crate::compute::Store as _;
use crate::compute::cpu::Cpu;
use crate::compute::cuda::{Cuda, Direction};
use crate::compute::{Compute, Memory};
use anyhow::{Error, Result, bail};
use pipesim_gpu::Event;
use pipesim_schedule::op::{Kind, Op};
use std::sync::Arc;

/// A copy, for a thread that copies.
pub type CopyWork = Box<dyn FnOnce() -> Result<()> + Send>;

/// What goes to the host, and where it is put.
type Leaving<B> = (LeftByPart<B>, Parcel<B>);

/// Bytes of all buffers.
fn bytes<B: Memory>(left: &LeftByPart<B>) -> i64 {
    left.iter().flatten().flat_map(Left::each).map(Memory::bytes).sum::<usize>() as i64
}

/// Moves all buffers.
fn moved<B>(left: LeftByPart<B>, mut to: impl FnMut(B) -> B) -> LeftByPart<B> {
    left.into_iter().map(|part| part.into_iter().map(|left| left.map(&mut to)).collect()).collect()
}

/// The same, until one fails.
fn try_moved<B>(left: LeftByPart<B>, mut to: impl FnMut(B) -> Result<B>) -> Result<LeftByPart<B>> {
    let mut all = Vec::with_capacity(left.len());
    for part in left {
        let moved = part.into_iter().map(|left| left.try_map(&mut to)).collect::<Result<Vec<_>>>();
        all.push(moved?);
    }
    Ok(all)
}

/// Takes out of a parcel what is on the host.
fn on_host<B>(parcel: &Parcel<B>, op: Op) -> Result<LeftByPart<B>> {
    let Whereabouts::Host(there) = parcel.take() else {
        bail!("expected an activation on the host, found none: run OFFLOAD before {op}");
    };
    Ok(there)
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
        let (left, parcel) = self.leaving(op)?;
        let (memories, held, leaving) = (self.compute.memories(), self.held.clone(), bytes(&left));
        Ok(Box::new(move || {
            parcel.put(Whereabouts::Host(moved(left, |buffer| memories.to_host(buffer))));
            held.change(op, -leaving);
            Ok(())
        }))
    }

    fn reload(&mut self, op: Op) -> Result<CopyWork> {
        let parcel = self.parcel(op)?;
        let (memories, held) = (self.compute.memories(), self.held.clone());
        Ok(Box::new(move || {
            let there = on_host(&parcel, op)?;
            held.change(op, bytes(&there));
            parcel.put(Whereabouts::Device(moved(there, |buffer| memories.to_device(buffer))));
            Ok(())
        }))
    }
}

impl StageModule<Cuda> {
    /// Enqueues the copy of `op`, an OFFLOAD or RELOAD, behind everything computed so far and the copies that end at `after`: see
    /// `StageModule::<Cpu>::copy`. Its memory is returned to work that waits for its end. Returns its start and end.
    ///
    /// # Errors
    /// The stage is not here, the op is out of order, or the GPU failed.
    pub fn enqueue_copy(&mut self, op: Op, after: &[Arc<Event>]) -> Result<[Arc<Event>; 2]> {
        self.compute.enter()?;
        match op.kind() {
            Kind::O => {
                let (left, parcel) = self.leaving(op)?;
                let leaving = bytes(&left);
                let start = self.compute.begin_copy(Direction::ToHost, after)?;
                parcel.put(Whereabouts::Host(try_moved(left, |buffer| self.compute.copy_out(buffer))?));
                self.held.change(op, -leaving);
                Ok([Arc::new(start), self.compute.end_copy(Direction::ToHost)?])
            }
            Kind::L => {
                let parcel = self.parcel(op)?;
                let there = on_host(&parcel, op)?;
                self.held.change(op, bytes(&there));
                let start = self.compute.begin_copy(Direction::FromHost, after)?;
                parcel.put(Whereabouts::Device(try_moved(there, |buffer| self.compute.copy_back(buffer))?));
                Ok([Arc::new(start), self.compute.end_copy(Direction::FromHost)?])
            }
            _ => bail!("expected OFFLOAD or RELOAD, found {op}: run it on the device"),
        }
    }
}

impl<C: Compute> StageModule<C> {
    /// Takes out what the forward of a unit left, to be copied to the host and put into the parcel. With slices, copies of keys and
    /// values stay.
    fn leaving(&mut self, op: Op) -> Result<Leaving<C::Buffer>> {
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
        Ok((left, parcel))
    }

    /// Returns where what went to the host is.
    fn parcel(&mut self, op: Op) -> Result<Parcel<C::Buffer>> {
        let (unit, _) = self.at(op)?;
        let Stash::Away(_, parcel) = &find(&mut self.stages, op.stage())?.stashes[unit] else {
            bail!("expected an activation that goes to the host, found none: run OFFLOAD before {op}");
        };
        Ok(parcel.clone())
    }

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
