//! What a module does once a step, around the pipeline: gradients to zero, gradients that other devices hold too, the norm, AdamW;
//! and its state, copied out and in.

use super::module::StageModule;
use super::parameters::{Parameters, TensorPart};
use crate::compute::{AdamW, Compute, Merge, OptimizerShare, Quantity, Side, Squared};
use anyhow::{Result, bail, ensure};
use pipesim_models::model_spec::TiedSides;
use pipesim_schedule::epilogue::GradientSync;
use pipesim_schedule::placement::Chunk;

impl<C: Compute> StageModule<C> {
    /// Starts a step: all gradients to zero. Drops what the ops of a step that was given up left behind.
    pub fn zero_gradients(&mut self) -> Result<()> {
        self.compute.enter()?;
        for stash in self.stages.values_mut().flat_map(|stage| &mut stage.stashes) {
            stash.clear().for_each(|buffer| self.compute.give(buffer));
        }
        self.held.end();
        self.tied_received = false;
        self.groups.iter_mut().try_for_each(|group| self.compute.zero(group))
    }

    /// Copies this device's part of a gradient that another device also holds to the beginning of `to`. Complete behind the last
    /// backward for the weights.
    ///
    /// # Errors
    /// Nothing is to be exchanged, or the machine failed.
    pub fn copy_gradient(&mut self, gradient: GradientSync, mut to: C::Output<'_>) -> Result<()> {
        self.compute.enter()?;
        for (number, side) in self.exchanged(gradient)?.into_iter().map(|(number, [own, _])| (number, own)) {
            self.compute.copy_gradients(&self.groups[number], side, &mut to)?;
        }
        Ok(())
    }

    /// Takes in what [`StageModule::copy_gradient`] wrote on the other device. Both then hold the same bits; of the shared tensor's,
    /// the sides stay apart, as where both are on one device. To be called once a step, after the last backward for the weights.
    ///
    /// # Errors
    /// Nothing is to be exchanged, or the machine failed.
    pub fn merge_gradient(&mut self, gradient: GradientSync, mut from: C::Input<'_>) -> Result<()> {
        self.compute.enter()?;
        let merge = match gradient {
            GradientSync::Tied => Merge::Replace,
            GradientSync::Stage(_) => Merge::Add,
        };
        for (number, [_, other]) in self.exchanged(gradient)? {
            self.compute.merge_gradients(&mut self.groups[number], other, &mut from, merge)?;
        }
        self.tied_received |= gradient == GradientSync::Tied;
        Ok(())
    }

    /// Sets this device's part of the gradient of a stage to what [`StageModule::copy_gradient`] wrote on another device: the first
    /// summand, where the sum does not begin with this device's own.
    ///
    /// # Errors
    /// As [`StageModule::merge_gradient`].
    pub fn replace_gradient(&mut self, gradient: GradientSync, mut from: C::Input<'_>) -> Result<()> {
        self.compute.enter()?;
        for (number, [_, other]) in self.exchanged(gradient)? {
            self.compute.merge_gradients(&mut self.groups[number], other, &mut from, Merge::Replace)?;
        }
        Ok(())
    }

    /// Copies the parameters of a stage that this device has updated to their places in `to`: the parameters in its share of the
    /// optimizer's work.
    ///
    /// # Errors
    /// Nothing is to be exchanged, or the machine failed.
    pub fn copy_values(&mut self, gradient: GradientSync, mut to: C::Output<'_>) -> Result<()> {
        self.compute.enter()?;
        for number in self.updated(gradient)? {
            self.compute.copy_values(&self.groups[number], &mut to)?;
        }
        Ok(())
    }

    /// Takes in the parameters that [`StageModule::copy_values`] wrote on the worker with the share `of`.
    ///
    /// # Errors
    /// As [`StageModule::copy_values`].
    pub fn replace_values(&mut self, gradient: GradientSync, of: OptimizerShare, mut from: C::Input<'_>) -> Result<()> {
        self.compute.enter()?;
        for number in self.updated(gradient)? {
            self.compute.replace_values(&mut self.groups[number], of, &mut from)?;
        }
        Ok(())
    }

    /// The groups whose parameters are exchanged after an update. If both parts that share a tensor are here, it goes with its
    /// owner's.
    pub(super) fn updated(&self, gradient: GradientSync) -> Result<Vec<usize>> {
        let is_once = |side: Side| side == Side::Own || self.tied != TiedSides::Both;
        let exchanged = self.exchanged(gradient)?.into_iter();
        Ok(exchanged.filter(|(_, [side, _])| is_once(*side)).map(|(number, _)| number).collect())
    }

    /// The groups whose gradients are exchanged, in one fixed order: the side that is sent, and the side that is received.
    pub(super) fn exchanged(&self, gradient: GradientSync) -> Result<Vec<(usize, [Side; 2])>> {
        match (gradient, self.tied, self.shared) {
            (GradientSync::Tied, TiedSides::One(0), Some(shared)) => Ok(vec![(shared, [Side::Own, Side::Shared])]),
            (GradientSync::Tied, TiedSides::One(_), Some(shared)) => Ok(vec![(shared, [Side::Shared, Side::Own])]),
            (GradientSync::Tied, ..) => {
                bail!(
                    "expected one of the two parts that share a tensor, found both or neither: its gradient is complete"
                )
            }
            (GradientSync::Stage(Chunk { stage, .. }), ..) => {
                let Some(held) = self.stages.get(&stage) else {
                    bail!(
                        "expected a stage of this device, found {stage}: send its gradient to the device that has it"
                    );
                };
                let of_repetition = held.repetitions.iter().flat_map(|repetition| repetition.sides());
                Ok(of_repetition.map(|(number, side)| (number, [side; 2])).collect())
            }
        }
    }

    /// Squares the gradients of each group that is here, what several tensor-parallel ranks have on the first of them only.
    /// [`StageModule::squared_norms`] returns the sums.
    ///
    /// # Errors
    /// The other device's side of the shared tensor's gradient has not been merged, or the machine failed.
    pub fn square(&mut self) -> Result<()> {
        self.compute.enter()?;
        self.ensure_tied_gradient_complete()?;
        let squared = |(_, group): (_, usize)| Squared {
            group: &self.groups[group],
            only: self.origins[group].counted.as_deref(),
        };
        let groups: Vec<Squared<C::Group>> = self.squared().map(squared).collect();
        self.compute.square(&groups)
    }

    /// What [`StageModule::square`] summed last, each with its place in the order in which they are to be added up:
    /// [`pipesim_models::model_spec::ModelSpec::square`], then the tensor-parallel rank, then the share of the optimizer's work. A shared
    /// tensor's on its owner's device only, both sides added up. Waits.
    pub fn squared_norms(&mut self) -> Result<Vec<(usize, f64)>> {
        let (sums, OptimizerShare { member, members }) = (self.compute.squares()?, self.optimizer);
        Ok(self.squared().map(|(order, _)| order * members + member).zip(sums).collect())
    }

    /// The groups that are squared here, with their orders, in order.
    fn squared(&self) -> impl Iterator<Item = (usize, usize)> + use<C> {
        let orders = self.origins.iter().enumerate().filter_map(|(group, origin)| Some((origin.square?, group)));
        let mut orders: Vec<(usize, usize)> = orders.collect();
        orders.sort_unstable();
        orders.into_iter()
    }

    /// AdamW on all parameters here, with their gradients times `scale`. Steps count from 1.
    ///
    /// # Errors
    /// The other device's side of the shared tensor's gradient has not been merged, or the machine failed.
    pub fn update(&mut self, step: u32, hyper: &AdamW, scale: f32) -> Result<()> {
        self.compute.enter()?;
        self.ensure_tied_gradient_complete()?;
        self.compute.update(&mut self.groups, step, hyper, scale)
    }

    /// Remembers parameters and optimizer state.
    pub fn save(&mut self) -> Result<()> {
        self.compute.enter()?;
        self.groups.iter_mut().try_for_each(|group| self.compute.save(group))
    }

    /// Goes back to the parameters and optimizer state that were saved last.
    ///
    /// # Errors
    /// None are, or the machine failed.
    pub fn restore(&mut self) -> Result<()> {
        self.compute.enter()?;
        self.groups.iter_mut().try_for_each(|group| {
            ensure!(self.compute.restore(group)?, "expected saved parameters, found none: save them first");
            Ok(())
        })
    }

    /// The tensors whose parameters are here.
    pub fn tensors(&self) -> Vec<TensorPart> {
        let parts = self.origins.iter().flat_map(|origin| &origin.tensors);
        parts.map(|&(tensor, layer)| TensorPart { tensor, layer }).collect()
    }

    /// Copies what is here into tensors of the whole model. A shared tensor's gradient is the sum of the sides that are here. Waits.
    ///
    /// # Errors
    /// The tensors are of another model, or the machine failed.
    pub fn export(&mut self, into: &mut Parameters, what: Quantity) -> Result<()> {
        self.ensure_model(into)?;
        self.compute.enter()?;
        for (group, origin) in self.groups.iter().zip(&self.origins) {
            for (index, &(tensor, layer)) in origin.tensors.iter().enumerate() {
                let fill = |held: &mut [f32]| self.compute.export(group, index, what, held);
                self.shares.write(tensor, into.part_mut(tensor, layer), fill)?;
            }
        }
        Ok(())
    }

    /// Copies what is here from tensors of the whole model. Gradients cannot be imported. Waits.
    ///
    /// # Errors
    /// The tensors are of another model, or gradients, or the machine failed.
    pub fn import(&mut self, from: &Parameters, what: Quantity) -> Result<()> {
        self.ensure_model(from)?;
        self.compute.enter()?;
        for (group, origin) in self.groups.iter_mut().zip(&self.origins) {
            for (index, &(tensor, layer)) in origin.tensors.iter().enumerate() {
                self.compute.import(group, index, what, &self.shares.read(tensor, from.part(tensor, layer)))?;
            }
        }
        Ok(())
    }

    /// Whether this device has the head, and thus the losses.
    pub fn has_head(&self) -> bool {
        self.held().any(|(_, stage)| stage.has(pipesim_models::model_spec::HEAD))
    }

    /// Loss of each micro-batch's last forward, the mean over its tokens; empty where the head is not. Waits.
    pub fn losses(&mut self) -> Result<Vec<f32>> {
        self.compute.enter()?;
        if self.has_head() { self.compute.losses() } else { Ok(Vec::new()) }
    }

    fn ensure_model(&self, other: &Parameters) -> Result<()> {
        ensure!(
            other.config == self.config,
            "expected tensors of the model {:?}, found {:?}: pass those of this model",
            self.config,
            other.config
        );
        Ok(())
    }

    fn ensure_tied_gradient_complete(&self) -> Result<()> {
        ensure!(
            !matches!(self.tied, TiedSides::One(_)) || self.tied_received,
            "expected the other device's part of the shared tensor's gradient, found none: exchange it first"
        );
        Ok(())
    }
}
