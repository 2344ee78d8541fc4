//! What a shard does once a step, around the pipeline: gradients to zero, the tied embedding, replicas, the norm, AdamW.

use super::api::{Address, Buffer};
use super::batch::DOUBLE;
use super::group::{Group, download};
use super::shard::Shard;
use crate::model::{AdamW, Parameters, Quantity};
use crate::model_spec::gpt2::WTE;
use crate::model_spec::{BLOCK, EMBEDDING, HEAD, TiedSides};
use anyhow::{Context as _, Result, ensure};

/// A run of float32 on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins.
    pub address: Address,
    /// How many there are.
    pub count: usize,
}

impl Run {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.count * size_of::<f32>()
    }
}

impl Shard {
    /// Enqueues the start of a step: all gradients to zero. Drops what the ops of a step that was given up left behind.
    pub fn zero_gradients(&mut self) -> Result<()> {
        self.drop_stashes();
        self.operations.gpu.make_current()?;
        for group in self.groups() {
            group.clear_gradients(&self.operations)?;
        }
        if let Some(part) = &self.wte_head_gradients {
            self.operations.gpu.compute.clear(part.address(), part.bytes())?;
        }
        self.tied_received = false;
        Ok(())
    }

    /// Whether this device has the head.
    pub fn has_head(&self) -> bool {
        self.lnf.is_some()
    }

    /// This device's part of the gradient of the token embedding, where it has embedding (side 0) or head (side 1) but not
    /// both; `None` elsewhere, where nothing needs to be exchanged. Complete behind the last backward for the weights.
    pub fn tied_gradient(&self) -> Option<(usize, Run)> {
        self.tied_runs().map(|(side, own, _)| (side, own))
    }

    /// Where the other side's part must be put, of the same length. It is free from [`Shard::zero_gradients`] to
    /// [`Shard::take_tied`].
    pub fn tied_inbox(&self) -> Option<Run> {
        self.tied_runs().map(|(_, _, other)| other)
    }

    /// Notes that the other side's part is in the inbox once what is enqueued from now on runs. On both devices the gradient
    /// then is the embedding's part + the head's part, as where both live on one.
    pub fn take_tied(&mut self) {
        self.tied_received = true;
    }

    fn tied_runs(&self) -> Option<(usize, Run, Run)> {
        let (TiedSides::One(side), Some(wte), Some(part)) = (self.tied, &self.wte, &self.wte_head_gradients) else {
            return None;
        };
        let count = wte.count();
        let embedding = Run { address: wte.gradients.address(), count };
        let head = Run { address: part.address(), count };
        Some(if side == 0 { (0, embedding, head) } else { (1, head, embedding) })
    }

    /// The gradients of the parameters of `stage`, in one fixed order: what a device with another copy of the stage adds.
    /// Empty if the stage is not here.
    pub fn stage_gradient(&self, stage: u32) -> Vec<Run> {
        let Some(held) = self.stages.get(&stage) else { return Vec::new() };
        let run = |group: &Group| Run { address: group.gradients.address(), count: group.count() };
        let mut runs: Vec<Run> = held.blocks.iter().map(run).collect();
        if held.layers.has(EMBEDDING) {
            runs.extend(self.wte.iter().chain(&self.wpe).map(run));
        }
        if held.layers.has(HEAD) {
            runs.extend(self.lnf.iter().map(run));
            let part = self.wte_head_gradients.iter();
            runs.extend(part.map(|part| Run { address: part.address(), count: part.bytes() / size_of::<f32>() }));
        }
        runs
    }

    /// Where a device with another copy of `stage` puts its [`Shard::stage_gradient`]: runs of the same lengths. Allocated at
    /// the first call.
    pub fn stage_inbox(&mut self, stage: u32) -> Result<Vec<Run>> {
        let own = self.stage_gradient(stage);
        if !self.step.inboxes.contains_key(&stage) {
            let bytes = own.iter().map(Run::bytes).sum();
            let inbox = Buffer::new(self.operations.gpu.context(), bytes).context("for another copy's gradient")?;
            self.step.inboxes.insert(stage, inbox);
        }
        let mut address = self.step.inboxes.get(&stage).map_or(Address::NULL, Buffer::address);
        let place = |run: Run| {
            let placed = Run { address, count: run.count };
            address = address.offset(run.bytes());
            placed
        };
        Ok(own.into_iter().map(place).collect())
    }

    /// Enqueues: the inbox of `stage` is added to its gradients. Both devices then hold the same bits.
    pub fn add_stage_inbox(&mut self, stage: u32) -> Result<()> {
        self.operations.gpu.make_current()?;
        let inbox = self.stage_inbox(stage)?;
        for (own, other) in self.stage_gradient(stage).into_iter().zip(inbox) {
            self.operations.add(own.address, other.address, own.count)?;
        }
        Ok(())
    }

    /// Enqueues the squared norm of the gradients of each part of the model that is here, and its way to the host.
    ///
    /// # Errors
    /// The other part of the tied gradient was not taken in, or the GPU failed.
    pub fn squared_norms(&mut self) -> Result<()> {
        self.operations.gpu.make_current()?;
        let mut parts: Vec<(usize, &Group, Address)> = Vec::new();
        if let (Some(wte), Some(wpe)) = (&self.wte, &self.wpe) {
            self.ensure_tied_gradient_complete()?;
            let first = self.spec.square(EMBEDDING, 0);
            parts.push((first, wte, self.head_part()));
            parts.push((first + 1, wpe, Address::NULL));
        }
        let blocks = self.stages.values().flat_map(|stage| stage.layers.run(BLOCK).zip(&stage.blocks));
        parts.extend(blocks.map(|(number, block)| (self.spec.square(BLOCK, number), block, Address::NULL)));
        parts.extend(self.lnf.iter().map(|lnf| (self.spec.square(HEAD, 0), lnf, Address::NULL)));
        parts.sort_by_key(|&(order, _, _)| order);
        let step = &self.step;
        for (index, &(_, group, other)) in parts.iter().enumerate() {
            let places = [step.norms.address().offset(index * DOUBLE), step.partial.address()];
            self.operations.squared_norm(places, [group.gradients.address(), other], group.count())?;
        }
        let (stream, bytes) = (&self.operations.gpu.compute, parts.len() * DOUBLE);
        if bytes > 0 {
            stream.download(&step.host_norms, 0..bytes, step.norms.address())?;
        }
        stream.record(&step.norms_done)?;
        let orders = parts.into_iter().map(|(order, _, _)| order).collect();
        self.step.orders = orders;
        Ok(())
    }

    /// What [`Shard::squared_norms`] enqueued last, each with its place in the order in which they are to be added up,
    /// [`crate::model_spec::ModelSpec::square`]; the token embedding's on the embedding's device only, both parts summed. Waits.
    pub fn read_squared_norms(&self) -> Result<Vec<(usize, f64)>> {
        self.step.norms_done.synchronize()?;
        let mut norms = vec![0.0; self.step.orders.len()];
        self.step.host_norms.read(0, &mut norms);
        Ok(self.step.orders.iter().copied().zip(norms).collect())
    }

    /// Enqueues AdamW on all parameters here, with their gradients times `scale`. Steps count from 1.
    ///
    /// # Errors
    /// The other part of the tied gradient was not taken in, or the GPU failed.
    pub fn update(&mut self, hyper: &AdamW, number: u32, scale: f32) -> Result<()> {
        self.operations.gpu.make_current()?;
        self.ensure_tied_gradient_complete()?;
        let scale = if scale == 1.0 {
            Address::NULL
        } else {
            self.operations.gpu.compute.set(self.step.scale.address(), scale)?;
            self.step.scale.address()
        };
        for group in self.groups() {
            let is_wte = self.wte.as_ref().is_some_and(|wte| std::ptr::eq(wte, group));
            let other = if is_wte { self.head_part() } else { Address::NULL };
            group.adamw(&self.operations, other, scale, number, hyper)?;
        }
        Ok(())
    }

    /// Enqueues: parameters and optimizer state are remembered. The first call allocates.
    pub fn save(&mut self) -> Result<()> {
        self.operations.gpu.make_current()?;
        let Shard { operations, wte, wpe, lnf, stages, .. } = self;
        let blocks = stages.values_mut().flat_map(|stage| &mut stage.blocks);
        let mut groups = wte.iter_mut().chain(wpe).chain(blocks).chain(lnf);
        groups.try_for_each(|group| group.save(operations)).context("remembering parameters and moments")
    }

    /// Enqueues: parameters and optimizer state are those remembered last.
    ///
    /// # Errors
    /// None are, or the GPU failed.
    pub fn restore(&mut self) -> Result<()> {
        self.operations.gpu.make_current()?;
        for group in self.groups() {
            ensure!(group.restore(&self.operations)?, "expected saved parameters, found none: save them first");
        }
        Ok(())
    }

    /// Loss of each micro-batch's last forward, the mean over its tokens; empty where the head is not. Waits for all that is
    /// enqueued on the compute stream.
    pub fn losses(&self) -> Result<Vec<f32>> {
        self.operations.gpu.make_current()?;
        let mut losses = vec![0.0; if self.has_head() { self.losses.bytes() / size_of::<f32>() } else { 0 }];
        download(&self.operations, &mut losses, self.losses.address())?;
        Ok(losses)
    }

    /// Copies the parameters that are here, their gradients or their moments into the whole model's tensors. The token embedding's gradient
    /// is the sum of the parts that are here. Waits.
    ///
    /// # Errors
    /// The tensors are of another model, or the GPU failed.
    pub fn export(&self, into: &mut Parameters, what: Quantity) -> Result<()> {
        ensure!(
            into.config == self.config,
            "expected tensors of the model {:?}, found {:?}: pass those of this model",
            self.config,
            into.config
        );
        self.operations.gpu.make_current()?;
        for group in self.groups() {
            group.export(&self.operations, into, what)?;
        }
        if let (Quantity::Gradients, Some(part)) = (what, &self.wte_head_gradients) {
            let mut other = vec![0.0; into.tensors[WTE].len()];
            download(&self.operations, &mut other, part.address())?;
            into.tensors[WTE].iter_mut().zip(other).for_each(|(gradient, other)| *gradient += other);
        }
        Ok(())
    }

    /// Copies parameters or moments from the whole model's tensors. Waits.
    ///
    /// # Errors
    /// The tensors are of another model, or gradients, or the GPU failed.
    pub fn import(&mut self, from: &Parameters, what: Quantity) -> Result<()> {
        ensure!(from.config == self.config, "expected tensors of this model, found those of another one: pass its own");
        self.operations.gpu.make_current()?;
        self.groups().try_for_each(|group| group.import(&self.operations, from, what))
    }

    /// In the order in which they are updated.
    fn groups(&self) -> impl Iterator<Item = &Group> {
        let blocks = self.stages.values().flat_map(|stage| &stage.blocks);
        self.wte.iter().chain(&self.wpe).chain(blocks).chain(&self.lnf)
    }

    /// The head's part of the tied gradient, or null.
    fn head_part(&self) -> Address {
        self.wte_head_gradients.as_ref().map_or(Address::NULL, Buffer::address)
    }

    fn ensure_tied_gradient_complete(&self) -> Result<()> {
        ensure!(
            !matches!(self.tied, TiedSides::One(_)) || self.tied_received,
            "expected the other device's part of the token embedding's gradient, found none: exchange it first"
        );
        Ok(())
    }
}
