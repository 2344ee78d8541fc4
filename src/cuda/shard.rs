//! What one GPU owns of the model, and its pipeline ops: forward, backward for the input, backward for the weights. The twin
//! of [`crate::model::Shard`], but that every op only enqueues on the compute stream.

use super::api::{Address, Buffer, Move, Pool};
use super::batch::{Batch, Step};
use super::blas::Products;
use super::compiler::Kernels;
use super::estimate::{self, Demand};
use super::gpu::Gpu;
use super::group::Group;
use super::kernel::Precision;
use super::operation::Operations;
use super::timing::EventTimer;
use super::{block, head};
use crate::model::stash::{self, Stash, find};
use crate::model::{Parameters, Part, Shape, check_held};
use crate::model_spec::gpt2::{self, BLOCK_TENSORS, LNF_TENSORS, WPE, WTE};
use crate::model_spec::transformer::Config;
use crate::model_spec::{self, BLOCK, EMBEDDING, HEAD, ModelSpec, TiedSides};
use crate::op::Kind;
use anyhow::{Context as _, Error, Result, bail, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stage on a GPU, where token ids lie with the step's batch.
type Stage = stash::Stage<Group, Buffer, ()>;

/// Everything that one GPU owns: parameters, gradients and AdamW's moments of its stages (the tied token embedding once,
/// even if embedding and head are both here), and what ops leave behind for each stage and micro-batch.
///
/// Hidden states and their gradients (B, T, C) are in the activations' precision, at addresses that the caller gives, each a
/// multiple of 256 bytes. An op has read its input, and filled its output, when what is enqueued behind it runs.
///
/// No op waits on the host. Methods that do wait say so.
pub struct Shard {
    pub(super) operations: Operations,
    pub(super) config: Config,
    pub(super) spec: ModelSpec,
    pub(super) shape: Shape,
    pub(super) microbatches: usize,
    pub(super) stages: BTreeMap<u32, Stage>,
    /// Token embedding (Vp, C), the logits' weights too; its gradients are the embedding's part.
    pub(super) wte: Option<Group>,
    /// The head's part of the token embedding's gradient, or the place for it.
    pub(super) wte_head_gradients: Option<Buffer>,
    /// Which sides of the tied token embedding are here.
    pub(super) tied: TiedSides,
    /// Where one side is: whether the other's gradient has arrived this step.
    pub(super) tied_received: bool,
    pub(super) wpe: Option<Group>,
    pub(super) lnf: Option<Group>,
    batch: Batch,
    /// Loss of each micro-batch, where the head is.
    pub(super) losses: Buffer,
    pub(super) step: Step,
    /// By stage and kind: what an op takes from the pool and gives back.
    pub(super) moves: BTreeMap<(u32, Kind), Vec<Move>>,
    held_bytes: usize,
    pub(super) peak_held_bytes: usize,
}

impl Shard {
    /// Copies what `stages` hold out of `parameters`. A micro-batch has `sequences` sequences of `tokens` tokens, a step
    /// `microbatches` of them: the loss is the mean over all tokens of the step. Every op is run once on made-up data, so that
    /// all code is loaded, every product planned, and a first micro-batch's memory allocated. Waits.
    ///
    /// # Errors
    /// The sizes do not fit the model or the kernels, the memory does not suffice (the error has the numbers), a library is
    /// missing, or the GPU fails.
    pub fn new(
        gpu: &Arc<Gpu>,
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        [sequences, tokens, microbatches]: [usize; 3],
        precision: Precision,
    ) -> Result<Shard> {
        let config = parameters.config;
        estimate::check_kernel_sizes(&config, [sequences, tokens, microbatches])?;
        check_held(&config, stages)?;
        ensure!(
            gpt2::Config::of(&config).is_some(),
            "expected a GPT-2 on a GPU, found another model: train it with --device cpu"
        );
        let demand = Demand { sequences, tokens, microbatches, in_flight: 1, precision };
        let spec = config.spec();
        estimate::check_memory(gpu, &spec, stages, &demand)?;

        gpu.make_current()?;
        let operations = Operations {
            gpu: gpu.clone(),
            precision,
            kernels: Kernels::load(gpu.context(), gpu.facts(), precision)?,
            products: Products::new(gpu, precision)?,
            pool: Pool::new(gpu.context()),
        };
        let shape = Shape { sequences, tokens, heads: config.heads, channels: config.channels };
        operations.allow_attention(&shape)?;
        let tied = spec.outline().tied_sides(stages.iter().map(|(_, stage)| stage));
        let has = |part| stages.iter().any(|(_, stage)| stage.has(part));
        let (embedding, head) = (has(EMBEDDING), has(HEAD));
        let group = |tensors, layer| Group::new(&operations, parameters, tensors, layer);
        let wte = (embedding || head).then(|| group(WTE..WTE + 1, None)).transpose()?;
        let wte_head_gradients = match &wte {
            Some(wte) => Some(Buffer::new(gpu.context(), wte.gradients.bytes())?),
            None => None,
        };
        let wpe = embedding.then(|| group(WPE..WPE + 1, None)).transpose()?;
        let lnf = head.then(|| group(LNF_TENSORS, None)).transpose()?;
        let mut held = BTreeMap::new();
        for (id, layers) in stages {
            let blocks = layers.run(BLOCK).map(|layer| group(BLOCK_TENSORS, Some(layer)));
            let blocks = blocks.collect::<Result<Vec<_>>>()?;
            held.insert(*id, Stage::new(layers.clone(), blocks, microbatches));
        }
        let sizes = [microbatches, shape.rows(), config.vocabulary];
        let step = Step::new(gpu, spec.squares())?;
        let mut shard = Shard {
            config,
            spec,
            shape,
            microbatches,
            stages: held,
            wte,
            wte_head_gradients,
            tied,
            tied_received: false,
            wpe,
            lnf,
            batch: Batch::new(gpu, sizes, [embedding, head])?,
            losses: Buffer::new(gpu.context(), microbatches * size_of::<f32>())?,
            step,
            moves: BTreeMap::new(),
            held_bytes: 0,
            peak_held_bytes: 0,
            operations,
        };
        shard.warm_up().context("running every op once")?;
        Ok(shard)
    }

    /// Bytes of a hidden state, B * T * C activations: what stages hand to each other.
    pub fn hidden_bytes(&self) -> usize {
        self.shape.rows() * self.shape.channels * self.operations.precision.bytes()
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.operations.gpu
    }

    /// Begins a step: enqueues the upload of its tokens, all micro-batches' one after the other. Devices without the
    /// embedding need no inputs, those without the head no targets.
    ///
    /// # Errors
    /// Tokens that are not the step's or not the vocabulary's; or the GPU failed.
    pub fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        self.operations.gpu.make_current()?;
        self.batch.begin(inputs, targets)
    }

    /// Enqueues the forward of `stage` for `microbatch`. `input` is the stage's hidden state, absent for the stage with the
    /// embedding; a stage without the head fills `output`; the one with it computes the loss.
    ///
    /// # Errors
    /// The stage is not here, the op is out of order, or something is there that should not be; or the GPU failed.
    pub fn forward(
        &mut self,
        stage: u32,
        microbatch: u32,
        input: Option<Address>,
        output: Option<Address>,
        marks: &mut EventTimer,
    ) -> Result<()> {
        let call = || format!("forward of stage {stage}, micro-batch {microbatch}");
        self.forward_inner(stage, microbatch, [input, output], marks).with_context(call)
    }

    fn forward_inner(
        &mut self,
        stage: u32,
        microbatch: u32,
        [input, output]: [Option<Address>; 2],
        marks: &mut EventTimer,
    ) -> Result<()> {
        let (shape, index) = (self.shape, microbatch as usize);
        let entry = find(&mut self.stages, stage, microbatch)?;
        if !matches!(entry.stashes[index], Stash::Empty) {
            bail!("expected its first, found a second before the backward: run the backward first");
        }
        estimate::check_address(input, !entry.layers.has(EMBEDDING), "hidden state")?;
        estimate::check_address(output, !entry.layers.has(HEAD), "output")?;
        let operations = &mut self.operations;
        operations.gpu.make_current()?;
        marks.start(Kind::F)?;
        let count = shape.rows() * shape.channels;
        // what is passed on goes straight to the output, except what the head keeps
        let mut target = Targets { output, left: entry.blocks.len() };
        let mut hidden = match (input, &self.wte, &self.wpe) {
            (Some(input), _, _) => {
                let hidden = operations.activations(count)?;
                operations.gpu.compute.copy(hidden.address(), input, hidden.bytes())?;
                Some(hidden)
            }
            (None, Some(wte), Some(wpe)) => {
                let (hidden, place) = target.next(operations, count, entry.blocks.is_empty())?;
                let places = [place, self.batch.inputs(index), wte.tensor(0), wpe.tensor(0)];
                operations.embedding_forward(places, &shape)?;
                marks.end(Part::Embedding)?;
                hidden
            }
            _ => bail!("expected a hidden state, found none: pass what the stage before made"),
        };
        let mut blocks = Vec::with_capacity(entry.blocks.len());
        for group in &entry.blocks {
            let Some(before) = hidden.take() else { bail!("the hidden state was written to the output too early") };
            target.left -= 1;
            let (next, place) = target.next(operations, count, target.left == 0)?;
            blocks.push(block::forward(operations, group, &shape, before, place)?);
            hidden = next;
            marks.end(Part::Block)?;
        }
        let head = match (entry.layers.has(HEAD), hidden) {
            (true, Some(hidden)) => {
                let context = head_context(shape, &self.config, &self.lnf, &self.wte)?;
                let weight = 1.0 / (self.microbatches * shape.rows()) as f32;
                let places = [self.losses.address().offset(index * size_of::<f32>()), self.batch.targets(index)];
                let stash = head::forward(operations, &context, hidden, places, weight)?;
                marks.end(Part::Head)?;
                Some(stash)
            }
            (false, Some(hidden)) => {
                // a stage that holds nothing passes on what it got
                let place = output.context("expected an output, found none: pass one")?;
                operations.gpu.compute.copy(place, hidden.address(), hidden.bytes())?;
                operations.pool.give([hidden]);
                None
            }
            _ => None,
        };
        marks.finish()?;
        let stash = Stash::Forward((None, blocks, head));
        self.held_bytes += bytes(&stash);
        self.peak_held_bytes = self.peak_held_bytes.max(self.held_bytes);
        entry.stashes[index] = stash;
        Ok(())
    }

    /// Enqueues the backward for the input. `gradient` is that of the stage's output, absent for the stage with the head;
    /// `output` receives the gradient of the stage's input, absent for the stage with the embedding.
    pub fn backward_input(
        &mut self,
        stage: u32,
        microbatch: u32,
        gradient: Option<Address>,
        output: Option<Address>,
        marks: &mut EventTimer,
    ) -> Result<()> {
        let call = || format!("backward for the input of stage {stage}, micro-batch {microbatch}");
        self.backward_input_inner(stage, microbatch, [gradient, output], marks).with_context(call)
    }

    fn backward_input_inner(
        &mut self,
        stage: u32,
        microbatch: u32,
        [gradient, output]: [Option<Address>; 2],
        marks: &mut EventTimer,
    ) -> Result<()> {
        let shape = self.shape;
        let entry = find(&mut self.stages, stage, microbatch)?;
        estimate::check_address(gradient, !entry.layers.has(HEAD), "gradient")?;
        estimate::check_address(output, !entry.layers.has(EMBEDDING), "output")?;
        let place = &mut entry.stashes[microbatch as usize];
        let held = bytes(place);
        let (_, blocks, head) = place.take_forward().map_err(Error::msg)?;
        self.held_bytes -= held;
        let operations = &mut self.operations;
        operations.gpu.make_current()?;
        marks.start(Kind::I)?;
        let count = shape.rows() * shape.channels;
        let mut target = Targets { output, left: blocks.len() };
        let mut hidden;
        let head = match (head, gradient) {
            (Some(stash), _) => {
                let context = head_context(shape, &self.config, &self.lnf, &self.wte)?;
                let (next, place) = target.next(operations, count, blocks.is_empty())?;
                let stash = head::backward_input(operations, &context, stash, place)?;
                hidden = next;
                marks.end(Part::Head)?;
                Some(stash)
            }
            (None, Some(gradient)) => {
                let copy = operations.activations(count)?;
                operations.gpu.compute.copy(copy.address(), gradient, copy.bytes())?;
                hidden = Some(copy);
                None
            }
            (None, None) => bail!("expected a gradient, found none: pass what the stage after made"),
        };
        let mut left = Vec::with_capacity(blocks.len());
        for (group, stash) in entry.blocks.iter().zip(blocks).rev() {
            let Some(before) = hidden.take() else { bail!("the gradient was written to the output too early") };
            target.left -= 1;
            let (next, place) = target.next(operations, count, target.left == 0)?;
            left.push(block::backward_input(operations, group, &shape, stash, before, place)?);
            hidden = next;
            marks.end(Part::Block)?;
        }
        let embedding = if entry.layers.has(EMBEDDING) {
            marks.end(Part::Embedding)?;
            hidden.map(|gradient| ((), gradient))
        } else if let (Some(hidden), Some(place)) = (hidden, output) {
            operations.gpu.compute.copy(place, hidden.address(), hidden.bytes())?;
            operations.pool.give([hidden]);
            None
        } else {
            None
        };
        marks.finish()?;
        let stash = Stash::Weight((embedding, left, head));
        self.held_bytes += bytes(&stash);
        self.peak_held_bytes = self.peak_held_bytes.max(self.held_bytes);
        entry.stashes[microbatch as usize] = stash;
        Ok(())
    }

    /// Enqueues the backward for the weights: adds this micro-batch's share to the gradients of the stage's parameters.
    pub fn backward_weight(&mut self, stage: u32, microbatch: u32, marks: &mut EventTimer) -> Result<()> {
        let call = || format!("backward for the weights of stage {stage}, micro-batch {microbatch}");
        self.backward_weight_inner(stage, microbatch, marks).with_context(call)
    }

    fn backward_weight_inner(&mut self, stage: u32, microbatch: u32, marks: &mut EventTimer) -> Result<()> {
        let shape = self.shape;
        let entry = find(&mut self.stages, stage, microbatch)?;
        let place = &mut entry.stashes[microbatch as usize];
        let held = bytes(place);
        let (embedding, blocks, head) = place.take_weight().map_err(Error::msg)?;
        self.held_bytes -= held;
        let operations = &mut self.operations;
        operations.gpu.make_current()?;
        marks.start(Kind::W)?;
        if let (Some(stash), Some(gradients)) = (head, &self.wte_head_gradients) {
            let context = head_context(shape, &self.config, &self.lnf, &self.wte)?;
            head::backward_weight(operations, &context, gradients.address(), stash)?;
            marks.end(Part::Head)?;
        }
        for (group, stash) in entry.blocks.iter().rev().zip(blocks) {
            block::backward_weight(operations, group, &shape, stash)?;
            marks.end(Part::Block)?;
        }
        if let (Some(((), gradient)), Some(wte), Some(wpe)) = (embedding, &self.wte, &self.wpe) {
            let index = self.batch.index(microbatch as usize);
            operations.embedding_backward_token(wte.gradient(0), gradient.address(), index, shape.channels)?;
            operations.embedding_backward_position([wpe.gradient(0), gradient.address()], &shape)?;
            operations.pool.give([gradient]);
            marks.end(Part::Embedding)?;
        }
        marks.finish()
    }

    #[cfg(feature = "internals")]
    /// Bytes that finished ops hold for those still to come.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    #[cfg(feature = "internals")]
    /// Each matrix product so far, and whether cuBLASLt does it; where it does not, it was done in parts.
    pub fn products(&self) -> Vec<(String, bool)> {
        self.operations.products.asked()
    }

    /// The most that [`Shard::held_bytes`] has been.
    pub fn peak_held_bytes(&self) -> usize {
        self.peak_held_bytes
    }

    /// Drops what the ops of a step that was given up left behind.
    pub(super) fn drop_stashes(&mut self) {
        for place in self.stages.values_mut().flat_map(|stage| &mut stage.stashes) {
            self.operations.pool.give(place.clear());
        }
        self.held_bytes = 0;
    }
}

/// Where the hidden states of an op go: the last of them to the op's output, where it has one, the others to the pool.
struct Targets {
    output: Option<Address>,
    /// Blocks still to come.
    left: usize,
}

impl Targets {
    /// A place for the next hidden state, and its buffer unless that is the output.
    fn next(&self, operations: &mut Operations, count: usize, is_last: bool) -> Result<(Option<Buffer>, Address)> {
        match self.output {
            Some(output) if is_last => Ok((None, output)),
            _ => {
                let buffer = operations.activations(count)?;
                let address = buffer.address();
                Ok((Some(buffer), address))
            }
        }
    }
}

/// Bytes of all that is in a stash.
fn bytes(stash: &Stash<Buffer, ()>) -> usize {
    stash.bytes(Buffer::bytes, |()| 0)
}

fn head_context<'a>(
    shape: Shape,
    config: &Config,
    lnf: &'a Option<Group>,
    wte: &'a Option<Group>,
) -> Result<head::Context<'a>> {
    let (Some(lnf), Some(wte)) = (lnf, wte) else { bail!("the head is on another device") };
    Ok(head::Context { shape, vocabulary: [config.vocabulary, config.padded_vocabulary()], lnf, wte })
}
