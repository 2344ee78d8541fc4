//! What a shard does once a step, around the pipeline: gradients to zero, the tied embedding, the norm, AdamW.

use super::parameters::{Parameters, Quantity};
use super::shard::Shard;
use crate::model_spec::gpt2::{BLOCK_TENSORS, LNF_TENSORS, WPE, WTE};
use crate::model_spec::{BLOCK, EMBEDDING, HEAD, TiedSides};
use anyhow::{Result, bail, ensure};
use cpu_kernels::optimizer::{AdamW, ParameterGroup};
use std::ops::Range;

/// A copy of a shard's parameters and optimizer state.
#[derive(Clone)]
pub struct Snapshot {
    /// Values, first and second moments of each group.
    groups: Vec<[Vec<f32>; 3]>,
}

impl Shard {
    /// Starts a step: all gradients to zero. Drops what the ops of a step that was given up left behind.
    pub fn zero_gradients(&mut self) {
        self.drop_stashes();
        self.groups_mut().for_each(|group| group.gradients.fill(0.0));
        self.wte_head_gradients.fill(0.0);
        self.tied_received = false;
    }

    /// Whether this device has the head.
    pub fn has_head(&self) -> bool {
        self.lnf.is_some()
    }

    /// This device's part of the gradient of the token embedding (Vp, C), where it has embedding or head but not both;
    /// empty elsewhere, where nothing needs to be exchanged.
    pub fn tied_gradient(&self) -> &[f32] {
        match (self.tied, &self.wte) {
            (TiedSides::One(0), Some(wte)) => &wte.gradients,
            (TiedSides::One(_), _) => &self.wte_head_gradients,
            _ => &[],
        }
    }

    /// Takes in the other device's part of the gradient of the token embedding. On both devices it then is the embedding's
    /// part + the head's part, as where both live on one. To be called once a step, after the last backward for the
    /// weights; panics where nothing is to be exchanged or the length is wrong.
    pub fn add_tied_gradient(&mut self, other: &[f32]) {
        match (self.tied, &mut self.wte) {
            (TiedSides::One(0), _) => self.wte_head_gradients.copy_from_slice(other),
            (TiedSides::One(_), Some(wte)) => wte.gradients.copy_from_slice(other),
            _ => panic!("this device has both embedding and head, or neither: its gradient is complete"),
        }
        self.tied_received = true;
    }

    /// Writes the gradients of all parameters of `stage`, in one fixed order.
    pub fn stage_gradient(&mut self, stage: u32, into: &mut Vec<f32>) {
        into.clear();
        self.stage_gradients(stage, |gradients| into.extend_from_slice(gradients));
    }

    /// Adds what [`Shard::stage_gradient`] wrote on the device that holds another copy of `stage`. Both then hold the same
    /// bits. Panics if the length is another stage's.
    pub fn add_stage_gradient(&mut self, stage: u32, other: &[f32]) {
        let mut rest = other;
        self.stage_gradients(stage, |gradients| {
            let (part, after) = rest.split_at(gradients.len());
            gradients.iter_mut().zip(part).for_each(|(gradient, other)| *gradient += other);
            rest = after;
        });
        assert!(rest.is_empty(), "the gradient is of another stage");
    }

    /// The gradients of the parameters of `stage`, group by group.
    fn stage_gradients(&mut self, stage: u32, mut each: impl FnMut(&mut [f32])) {
        let Some(held) = self.stages.get_mut(&stage) else { return };
        held.blocks.iter_mut().for_each(|block| each(&mut block.gradients));
        if held.layers.has(EMBEDDING) {
            self.wte.iter_mut().chain(&mut self.wpe).for_each(|group| each(&mut group.gradients));
        }
        if held.layers.has(HEAD) {
            self.lnf.iter_mut().for_each(|group| each(&mut group.gradients));
            each(&mut self.wte_head_gradients);
        }
    }

    /// The squared norm of the gradients of each group of tensors that is here, with its place in the order in which they are
    /// to be added up, [`crate::model_spec::ModelSpec::square`]; the token embedding's on the embedding's device only, both parts
    /// summed.
    pub fn squared_norms(&self) -> Vec<(usize, f64)> {
        let mut norms = Vec::new();
        if let (Some(wte), Some(wpe)) = (&self.wte, &self.wpe) {
            self.assert_tied_gradient_complete();
            let first = self.spec.square(EMBEDDING, 0);
            norms.push((first, wte.squared_norm(Some(&self.wte_head_gradients))));
            norms.push((first + 1, wpe.squared_norm(None)));
        }
        let block =
            |(number, group): (usize, &ParameterGroup)| (self.spec.square(BLOCK, number), group.squared_norm(None));
        norms.extend(self.numbered_blocks().map(block));
        norms.extend(self.lnf.iter().map(|lnf| (self.spec.square(HEAD, 0), lnf.squared_norm(None))));
        norms.sort_by_key(|&(order, _)| order);
        norms
    }

    /// AdamW on all parameters here, with their gradients times `gradient_scale`. Steps count from 1. Panics if the other
    /// part of the tied gradient has not been added.
    pub fn adamw(&mut self, step: u32, hyper: &AdamW, gradient_scale: f32) {
        self.assert_tied_gradient_complete();
        if let Some(wte) = &mut self.wte {
            wte.adamw(Some(&self.wte_head_gradients), step, hyper, gradient_scale);
        }
        let blocks = self.stages.values_mut().flat_map(|stage| &mut stage.blocks);
        for group in self.wpe.iter_mut().chain(blocks).chain(&mut self.lnf) {
            group.adamw(None, step, hyper, gradient_scale);
        }
    }

    /// A copy of parameters and optimizer state.
    pub fn snapshot(&self) -> Snapshot {
        let copy =
            |group: &ParameterGroup| [group.values.clone(), group.first_moments.clone(), group.second_moments.clone()];
        Snapshot { groups: self.groups().map(copy).collect() }
    }

    /// Goes back to parameters and optimizer state of a snapshot of this shard. Panics if it is another shard's.
    pub fn restore(&mut self, snapshot: &Snapshot) {
        assert_eq!(self.groups().count(), snapshot.groups.len(), "the snapshot is of another shard");
        for (group, [values, first_moments, second_moments]) in self.groups_mut().zip(&snapshot.groups) {
            group.values.copy_from_slice(values);
            group.first_moments.copy_from_slice(first_moments);
            group.second_moments.copy_from_slice(second_moments);
        }
    }

    /// Copies what is here into tensors of the whole model. The token embedding's gradient is the sum of the parts that are here.
    pub fn export(&self, into: &mut Parameters, what: Quantity) {
        assert_eq!(self.config, into.config, "the tensors are of a model of other sizes");
        let mut write = |tensors: Range<usize>, layer: Option<usize>, group: &ParameterGroup| {
            let mut values = match what {
                Quantity::Values => &group.values[..],
                Quantity::Gradients => &group.gradients,
                Quantity::FirstMoments => &group.first_moments,
                Quantity::SecondMoments => &group.second_moments,
            };
            for tensor in tensors {
                let part = into.part_mut(tensor, layer);
                let (from, rest) = values.split_at(part.len());
                part.copy_from_slice(from);
                values = rest;
            }
        };
        self.wte.iter().for_each(|wte| write(WTE..WTE + 1, None, wte));
        self.wpe.iter().for_each(|wpe| write(WPE..WPE + 1, None, wpe));
        self.numbered_blocks().for_each(|(layer, group)| write(BLOCK_TENSORS, Some(layer), group));
        self.lnf.iter().for_each(|lnf| write(LNF_TENSORS, None, lnf));
        if what == Quantity::Gradients && self.wte.is_some() {
            cpu_kernels::vector::add(&mut into.tensors[WTE], &self.wte_head_gradients);
        }
    }

    /// Copies what is here from tensors of the whole model. Gradients cannot be imported.
    pub fn import(&mut self, from: &Parameters, what: Quantity) -> Result<()> {
        ensure!(self.config == from.config, "expected tensors of this model, found those of another one: pass its own");
        let read = |tensors: Range<usize>, layer: Option<usize>, group: &mut ParameterGroup| {
            let into = match what {
                Quantity::Values => &mut group.values,
                Quantity::FirstMoments => &mut group.first_moments,
                Quantity::SecondMoments => &mut group.second_moments,
                Quantity::Gradients => {
                    bail!("expected values or moments to import, found gradients: steps compute those")
                }
            };
            from.copy_parts(tensors, layer, into);
            Ok(())
        };
        self.wte.iter_mut().try_for_each(|wte| read(WTE..WTE + 1, None, wte))?;
        self.wpe.iter_mut().try_for_each(|wpe| read(WPE..WPE + 1, None, wpe))?;
        for stage in self.stages.values_mut() {
            let mut blocks = stage.layers.run(BLOCK).zip(&mut stage.blocks);
            blocks.try_for_each(|(layer, group)| read(BLOCK_TENSORS, Some(layer), group))?;
        }
        self.lnf.iter_mut().try_for_each(|lnf| read(LNF_TENSORS, None, lnf))
    }

    fn groups(&self) -> impl Iterator<Item = &ParameterGroup> {
        let blocks = self.stages.values().flat_map(|stage| &stage.blocks);
        self.wte.iter().chain(&self.wpe).chain(blocks).chain(&self.lnf)
    }

    fn groups_mut(&mut self) -> impl Iterator<Item = &mut ParameterGroup> {
        let blocks = self.stages.values_mut().flat_map(|stage| &mut stage.blocks);
        self.wte.iter_mut().chain(&mut self.wpe).chain(blocks).chain(&mut self.lnf)
    }

    fn assert_tied_gradient_complete(&self) {
        assert!(
            !matches!(self.tied, TiedSides::One(_)) || self.tied_received,
            "the other device's part of the token embedding's gradient has not been added"
        );
    }
}
