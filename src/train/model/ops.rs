//! The ops of a schedule on a device's stages: forward, recompute, backward for the input, backward for the weights.

use super::layers::Layer;
use super::module::{HeldStage, Repetition, StageModule};
use super::stash::{LeftByPart, Stash, Walked};
use super::walk::{Left, Walk};
use crate::compute::{Compute, Memory, PartTimer};
use anyhow::{Context as _, Error, Result, bail, ensure};
use pipesim_models::model_spec::{EMBEDDING, HEAD};
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a forward pass keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeping {
    /// What the backward needs.
    Everything,
    /// What recomputing it needs: its input, and keys and values if `keys`.
    Stub { keys: bool },
    /// What forwards of later slices read if `keys`, otherwise nothing.
    Nothing { keys: bool },
}

/// A forward pass over the parts of a stage.
struct ForwardPass<'a, C: Compute> {
    compute: &'a mut C,
    layers: &'a [Vec<Layer>],
    groups: &'a [C::Group],
    repetitions: &'a [Repetition],
    microbatch: usize,
    weight: f32,
    keeping: Keeping,
}

impl<C: Compute> ForwardPass<'_, C> {
    /// Returns what the layers leave behind, and the output. `earlier` is what earlier slices of the micro-batch left.
    fn run(
        self,
        earlier: &[&LeftByPart<C::Buffer>],
        mut hidden: Option<C::Buffer>,
        output: Option<&C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<Walked<C::Buffer>> {
        let mut left = Vec::with_capacity(self.repetitions.len());
        for (number, repetition) in self.repetitions.iter().enumerate() {
            let place = output.filter(|_| number + 1 == self.repetitions.len());
            let (layers, groups) = (&self.layers[repetition.part][..], &repetition.groups[..]);
            let earlier: Vec<&[Left<C::Buffer>]> = earlier.iter().map(|left| &left[number][..]).collect();
            let walk = Walk { compute: &mut *self.compute, layers, groups, microbatch: self.microbatch };
            let (mut of_part, next) = walk.forward(self.groups, hidden, place, self.weight, &earlier)?;
            hidden = next;
            let walk = Walk { compute: &mut *self.compute, layers, groups, microbatch: self.microbatch };
            match self.keeping {
                Keeping::Everything => {}
                Keeping::Stub { keys } => of_part = walk.stub(of_part, number == 0, keys)?,
                Keeping::Nothing { keys } => walk.forget(&mut of_part, keys),
            }
            left.push(of_part);
            timer.end(repetition.timed)?;
        }
        Ok((left, hidden))
    }
}

impl<C: Compute> StageModule<C> {
    /// Runs an op: F, R, I, W, or B, which is I followed by W. `input` of F is the hidden state (n, C) of the stage before, absent for
    /// the first; `output` receives this stage's hidden state, absent for the last, which computes the loss. `input` of I and B is the
    /// gradient of the stage's output, absent for the last stage; `output` receives the gradient of its input, absent for the first.
    ///
    /// # Errors
    /// The stage is not here, the op is out of order, or something is there that should not be, or the other way round.
    pub fn run(
        &mut self,
        op: Op,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let call = |what: &str| {
            let slice = op.slice().map_or_else(String::new, |slice| format!(", slice {slice}"));
            format!("{what} of stage {}, micro-batch {}{slice}", op.stage(), op.microbatch())
        };
        match op.kind() {
            Kind::F => self.forward_unit(op, input, output, timer).with_context(|| call("forward")),
            Kind::I => {
                self.backward_input_unit(op, input, output, timer).with_context(|| call("backward for the input"))
            }
            Kind::W => self.backward_weight_unit(op, timer).with_context(|| call("backward for the weights")),
            Kind::B => {
                self.run(op.of_kind(Kind::I), input, output, timer)?;
                self.run(op.of_kind(Kind::W), None, None, timer)
            }
            Kind::R => self.recompute_unit(op, timer).with_context(|| call("recompute")),
            _ => bail!("expected F, I, W, B or R, found {op}: the executor does not run it"),
        }
    }

    /// Returns the number of an op's unit within its stage, and the number of its slice.
    pub(super) fn unit(&self, op: Op) -> Result<(usize, usize)> {
        let (microbatch, slice, count) = (op.microbatch() as usize, op.slice_number(), self.microbatches);
        ensure!(microbatch < count, "expected a micro-batch below {count}, found {microbatch}: use those of this step");
        ensure!(
            slice < self.slices && op.slice().is_some() == (self.slices > 1),
            "expected one of {} slices, found {op}: use those of this step",
            self.slices
        );
        Ok((microbatch * self.slices + slice, slice))
    }

    /// Prepares the machine for an op of `slice`.
    pub(super) fn enter(&mut self, slice: usize) -> Result<()> {
        self.compute.enter()?;
        if self.slices > 1 { self.compute.enter_slice(slice) } else { Ok(()) }
    }

    fn forward_unit(
        &mut self,
        op: Op,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let (unit, slice) = self.at(op)?;
        let entry = &self.stages[&op.stage()];
        if !matches!(entry.stashes[unit], Stash::Empty) {
            bail!("expected its first, found a second before the backward: run the backward first");
        }
        check_presence(input.is_some(), !entry.layers.has(EMBEDDING), "hidden state")?;
        check_presence(output.is_some(), !entry.layers.has(HEAD), "output")?;
        self.enter(slice)?;
        timer.start(Kind::F)?;
        let taken = (!self.forwards_only).then(|| self.held.begin(op));
        let hidden = input.map(|input| self.compute.receive(input, self.spec.width)).transpose()?;
        let is_recomputed = self.recomputed.contains(&(op.stage(), unit));
        let keeping = match (self.forwards_only, is_recomputed, self.grows) {
            (true, _, false) => Keeping::Nothing { keys: self.slices > 1 },
            (true, _, true) | (false, true, _) => Keeping::Stub { keys: self.slices > 1 },
            (false, false, _) => Keeping::Everything,
        };
        let (left, hidden) = self.walk_forward(op, hidden, output.as_ref(), keeping, timer)?;
        if let (Some(hidden), Some(output)) = (hidden, output) {
            self.compute.send(hidden, output)?;
        }
        timer.finish()?;
        let is_stub = matches!(keeping, Keeping::Stub { .. });
        let kept = self.keep(op.stage(), unit, if is_stub { Stash::Stub(left) } else { Stash::Forward(left) });
        if let Some(taken) = taken {
            self.held.took(taken, kept);
        } else if slice + 1 == self.slices && !self.grows {
            self.forget(op.stage(), unit - slice..unit + 1);
        }
        Ok(())
    }

    /// Drops what the forwards of units of a stage left.
    fn forget(&mut self, stage: u32, units: Range<usize>) {
        let stashes = self.stages.get_mut(&stage).into_iter().flat_map(|entry| &mut entry.stashes[units.clone()]);
        stashes.flat_map(Stash::clear).for_each(|buffer| self.compute.give(buffer));
    }

    /// Runs the forward of a unit over all parts of its stage.
    fn walk_forward(
        &mut self,
        op: Op,
        hidden: Option<C::Buffer>,
        output: Option<&C::Output<'_>>,
        keeping: Keeping,
        timer: &mut C::Timer,
    ) -> Result<Walked<C::Buffer>> {
        let (unit, slice) = self.at(op)?;
        let entry = &self.stages[&op.stage()];
        let earlier = entry.stashes[unit - slice..unit].iter().map(Stash::forward);
        let earlier = earlier.collect::<Result<Vec<_>, _>>().map_err(Error::msg)?;
        let forward = ForwardPass {
            compute: &mut self.compute,
            layers: &self.layers,
            groups: &self.groups,
            repetitions: &entry.repetitions,
            microbatch: op.microbatch() as usize,
            weight: self.weight,
            keeping,
        };
        forward.run(&earlier, hidden, output, timer)
    }

    /// Runs the forward again, from what its first run kept.
    fn recompute_unit(&mut self, op: Op, timer: &mut C::Timer) -> Result<()> {
        let (unit, slice) = self.at(op)?;
        let stash = &mut find(&mut self.stages, op.stage())?.stashes[unit];
        let held = stash.bytes() as i64;
        let mut stub = stash.take_stub().map_err(Error::msg)?;
        let taken = self.held.begin(op);
        self.enter(slice)?;
        timer.start(Kind::R)?;
        let hidden = stub.first_mut().and_then(|part| part.first_mut()).and_then(Left::take_input);
        let (mut left, hidden) = self.walk_forward(op, hidden, None, Keeping::Everything, timer)?;
        let rest = left.iter_mut().flatten().zip(stub.into_iter().flatten());
        let rest = rest.flat_map(|(left, stub)| left.replace_stub(stub));
        rest.chain(hidden).for_each(|buffer| self.compute.give(buffer));
        timer.finish()?;
        let kept = self.keep(op.stage(), unit, Stash::Forward(left));
        self.held.took(taken, kept - held);
        Ok(())
    }

    fn backward_input_unit(
        &mut self,
        op: Op,
        gradient: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        let (unit, slice) = self.at(op)?;
        self.enter(slice)?;
        self.come_back(op, unit)?;
        let entry = find(&mut self.stages, op.stage())?;
        check_presence(gradient.is_some(), !entry.layers.has(HEAD), "gradient")?;
        check_presence(output.is_some(), !entry.layers.has(EMBEDDING), "output")?;
        let (earlier, own) = entry.stashes[unit - slice..].split_at_mut(slice);
        let before = earlier.iter().chain(&own[..1]).map(Stash::bytes).sum::<usize>() as i64;
        let mut left = own[0].take_forward().map_err(Error::msg)?;
        timer.start(Kind::I)?;
        let compute = &mut self.compute;
        let mut hidden = gradient.map(|gradient| compute.receive(gradient, self.spec.width)).transpose()?;
        for (number, repetition) in entry.repetitions.iter().enumerate().rev() {
            let place = output.as_ref().filter(|_| number == 0);
            let (layers, groups) = (&self.layers[repetition.part], &repetition.groups);
            let walk = Walk { compute: &mut *compute, layers, groups, microbatch: op.microbatch() as usize };
            let of_part = std::mem::take(&mut left[number]);
            let mut earlier = earlier.iter_mut().map(|stash| part_of(stash, number)).collect::<Result<Vec<_>>>()?;
            let (of_part, next) = walk.backward_input(&self.groups, of_part, hidden, place, &mut earlier)?;
            left[number] = of_part;
            hidden = next;
            timer.end(repetition.timed)?;
        }
        if let (Some(hidden), Some(output)) = (hidden, output) {
            compute.send(hidden, output)?;
        }
        timer.finish()?;
        let of_earlier = earlier.iter().map(Stash::bytes).sum::<usize>() as i64;
        let kept = self.keep(op.stage(), unit, Stash::Weight(left));
        self.held.change(op, of_earlier + kept - before);
        Ok(())
    }

    fn backward_weight_unit(&mut self, op: Op, timer: &mut C::Timer) -> Result<()> {
        let (unit, slice) = self.at(op)?;
        self.enter(slice)?;
        let entry = find(&mut self.stages, op.stage())?;
        let held = entry.stashes[unit].bytes();
        let left = entry.stashes[unit].take_weight().map_err(Error::msg)?;
        timer.start(Kind::W)?;
        for (repetition, of_part) in entry.repetitions.iter().zip(left).rev() {
            let (layers, groups) = (&self.layers[repetition.part], &repetition.groups);
            let walk = Walk { compute: &mut self.compute, layers, groups, microbatch: op.microbatch() as usize };
            walk.backward_weight(&mut self.groups, of_part)?;
            timer.end(repetition.timed)?;
        }
        self.held.change(op, -(held as i64));
        timer.finish()
    }

    /// Checks that an op's stage is here, and returns its unit and slice.
    pub(super) fn at(&mut self, op: Op) -> Result<(usize, usize)> {
        find(&mut self.stages, op.stage())?;
        self.unit(op)
    }

    /// Keeps what an op left. Returns its bytes.
    fn keep(&mut self, stage: u32, unit: usize, stash: Stash<C::Buffer>) -> i64 {
        let bytes = stash.bytes() as i64;
        if let Some(entry) = self.stages.get_mut(&stage) {
            entry.stashes[unit] = stash;
        }
        bytes
    }
}

/// What a forward left for one part of its stage.
fn part_of<B: Memory>(stash: &mut Stash<B>, number: usize) -> Result<&mut [Left<B>]> {
    Ok(&mut stash.forward_mut().map_err(Error::msg)?[number])
}

/// The stage with this number.
pub(super) fn find<B>(stages: &mut BTreeMap<u32, HeldStage<B>>, stage: u32) -> Result<&mut HeldStage<B>> {
    let known: Vec<u32> = stages.keys().copied().collect();
    let Some(entry) = stages.get_mut(&stage) else {
        bail!("expected one of this device's stages, {known:?}, found {stage}: send the op to the device that has it");
    };
    Ok(entry)
}

/// Whether something is there exactly when it should be.
fn check_presence(found: bool, wanted: bool, what: &str) -> Result<()> {
    ensure!(found || !wanted, "expected {what}, found none: pass it");
    ensure!(!found || wanted, "expected no {what} for a stage with these layers, found one: leave it out");
    Ok(())
}
