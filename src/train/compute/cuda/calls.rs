//! The calls of a model's layers on a GPU.

use super::estimate::check_address;
use super::operation::{FusedShape, NormOperands};
use super::{Activations, Cuda, EventTimer, Group};
use crate::compute::{
    Activated, Attended, Attention, Classified, Classifier, Compute, Earlier, Embedded, Embedding, Function, Linear,
    Multiplied, Norm, NormKind, Normalized, Reduction, Rotation, Rows, Side,
};
use anyhow::{Context as _, Result};
use pipesim_gpu::api::Address;
use pipesim_gpu::blas::Sizes;

impl Cuda {
    /// A buffer of `count` activations.
    pub(super) fn activations(&mut self, count: usize) -> Result<Activations> {
        Ok(Activations::Pooled(self.operations.activations(count)?))
    }

    pub(super) fn floats(&mut self, count: usize) -> Result<Activations> {
        Ok(Activations::Pooled(self.operations.floats(count)?))
    }

    pub(super) fn sizes(&self, layer: &Linear) -> Sizes {
        Sizes { rows: self.rows(), outputs: layer.outputs, inputs: layer.inputs }
    }

    fn logits(&self, layer: &Classifier) -> Sizes {
        Sizes { rows: self.rows(), outputs: layer.rows, inputs: layer.width }
    }

    /// Queries, keys and values with a head of keys and values for every head of queries, unless they have that already.
    fn expanded(&mut self, layer: &Attention, fused: &Activations) -> Result<Option<Activations>> {
        let &Attention { heads, groups, size } = layer;
        if heads == groups {
            return Ok(None);
        }
        let wide = self.activations(3 * self.rows() * heads * size)?;
        self.operations.heads_expand(wide.address(), fused.address(), [self.rows(), heads, groups, size])?;
        Ok(Some(wide))
    }

    fn shape(&self, layer: &Attention) -> FusedShape {
        let (micro, &Attention { heads, size, .. }) = (self.workload.micro_batch, layer);
        FusedShape { sequences: micro.sequences, tokens: self.positions().len(), first: 0, heads, size }
    }
}

/// Addresses of a layer's weight and bias; null without a bias.
fn parameters(group: &Group, layer: &Linear) -> [Address; 2] {
    let bias = if layer.has_bias { group.tensor(layer.weight + 1) } else { Address::NULL };
    [group.tensor(layer.weight), bias]
}

impl Compute for Cuda {
    type Buffer = Activations;
    type Timer = EventTimer;

    fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        if self.is_awake {
            self.ranks.begin()?;
        }
        if let Some(graphs) = &mut self.graphs {
            self.operations.gpu.compute.begin_step(graphs);
            self.operations.pool.sort(&self.operations.gpu.compute)?;
        }
        self.batch.begin(inputs, targets)
    }

    fn enter_slice(&mut self, slice: usize) -> Result<()> {
        self.slice = slice;
        Ok(())
    }

    fn take(&mut self, rows: Rows, width: usize, output: Option<&Address>) -> Result<Activations> {
        match output {
            Some(&address) => {
                check_address(address, "output")?;
                Ok(Activations::Placed(address))
            }
            None => {
                let rows = if rows == Rows::All { self.rows() } else { self.rows_between() };
                self.activations(rows * width)
            }
        }
    }

    fn give(&mut self, buffer: Activations) {
        if let Activations::Pooled(buffer) = buffer {
            self.operations.pool.give([buffer]);
        }
    }

    fn receive(&mut self, message: Address, width: usize) -> Result<Activations> {
        check_address(message, "message")?;
        let buffer = self.operations.activations(self.rows_between() * width)?;
        self.operations.gpu.compute.copy(buffer.address(), message, buffer.bytes())?;
        Ok(Activations::Pooled(buffer))
    }

    fn send(&mut self, buffer: Activations, output: Address) -> Result<()> {
        if let Activations::Pooled(buffer) = buffer {
            check_address(output, "output")?;
            self.operations.gpu.compute.copy(output, buffer.address(), buffer.bytes())?;
            self.operations.pool.give([buffer]);
        }
        Ok(())
    }

    /// Ids are stored with the step's batch, so nothing is kept.
    fn embed(&mut self, out: &mut Activations, layer: Embedding<&Group>, microbatch: usize) -> Result<Activations> {
        let Embedding { width, first, tokens, positions } = layer;
        let (of_slice, number) = (self.positions(), self.operations.precision.bytes());
        let begin = |group: &Group| group.tensor(0).offset(of_slice.start * width * number);
        let positions = positions.filter(|_| self.adds_whole()).map_or(Address::NULL, begin);
        let (ids, table) = (self.batch.inputs(microbatch, self.slice), tokens.tensor(0));
        let (dimensions, held) = ([self.rows(), of_slice.len(), width], tokens.length(0) / width);
        self.sum(out, width, |this, out| {
            this.operations.embedding_forward([out, ids, table, positions], dimensions, [first, held])
        })?;
        Ok(Activations::Placed(Address::NULL))
    }

    fn embed_weight(
        &mut self,
        layer: Embedding<&mut Group>,
        microbatch: usize,
        operands: Embedded<Activations>,
    ) -> Result<()> {
        let Embedding { width, first, tokens, positions } = layer;
        let gathered = self.gathered(operands.gradient, width)?;
        let index = self.batch.index(microbatch, self.slice)?;
        let gradient = gathered.as_ref().unwrap_or(operands.gradient).address();
        let (into, held) = (tokens.gradient(0, Side::Own), tokens.length(0) / width);
        self.operations.embedding_backward_token(into, gradient, index, width, [first, held])?;
        if let Some(positions) = positions {
            let of_slice = self.positions();
            let dimensions = [self.workload.micro_batch.sequences, of_slice.len(), width];
            let into = positions.gradient(0, Side::Own).offset(of_slice.start * width * size_of::<f32>());
            self.operations.embedding_backward_position([into, gradient], dimensions)?;
        }
        self.give_gathered(gathered);
        Ok(())
    }

    fn norm(&mut self, out: &mut Activations, group: &Group, layer: &Norm, input: &Activations) -> Result<Activations> {
        let (dimensions, weight) = ([self.rows_between(), layer.width], group.tensor(layer.weight));
        Ok(match layer.kind {
            NormKind::Layer => {
                let statistics = self.floats(self.rows_between() * 2)?;
                let places = [out.address(), statistics.address(), input.address()];
                let parameters = [weight, group.tensor(layer.weight + 1)];
                self.operations.layernorm_forward(places, parameters, dimensions)?;
                statistics
            }
            NormKind::RootMeanSquare => {
                let statistics = self.floats(self.rows_between())?;
                let places = [out.address(), statistics.address(), input.address(), weight];
                self.operations.rmsnorm_forward(places, dimensions, layer.epsilon)?;
                statistics
            }
        })
    }

    fn norm_input(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Norm,
        operands: Normalized<Activations>,
    ) -> Result<Activations> {
        let dimensions = [self.rows_between(), layer.width];
        let others = [group.tensor(layer.weight), operands.residual.map_or(Address::NULL, Activations::address)];
        let operands = NormOperands {
            gradient: operands.gradient.address(),
            input: operands.input.address(),
            statistics: operands.statistics.address(),
        };
        let (operations, out) = (&mut self.operations, out.address());
        let sums = match layer.kind {
            NormKind::Layer => operations.layernorm_backward(out, operands, others, dimensions)?,
            NormKind::RootMeanSquare => {
                let sums = operations.rmsnorm_backward_sums(operands, dimensions)?;
                operations.rmsnorm_backward_input(out, operands, others, dimensions)?;
                sums
            }
        };
        self.sum_of_rows(sums.address(), sums.bytes() / size_of::<f32>())?;
        Ok(Activations::Pooled(sums))
    }

    fn norm_weight(&mut self, group: &mut Group, layer: &Norm, sums: &Activations) -> Result<()> {
        let (dimensions, weight) = ([self.rows_between(), layer.width], group.gradient(layer.weight, Side::Own));
        match layer.kind {
            NormKind::Layer => {
                let into = [weight, group.gradient(layer.weight + 1, Side::Own)];
                self.operations.layernorm_backward_weight(into, sums.address(), dimensions)
            }
            NormKind::RootMeanSquare => self.operations.rmsnorm_backward_weight(weight, sums.address(), dimensions),
        }
    }

    fn linear(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Linear,
        input: &Activations,
        residual: Option<&Activations>,
    ) -> Result<()> {
        let (parameters, residual) = (parameters(group, layer), residual.map(Activations::address));
        if layer.reduction == Reduction::Output {
            return self.linear_share(out, parameters, layer, input.address(), residual);
        }
        let gathered = self.gathered(input, layer.inputs)?;
        let places = [out.address(), gathered.as_ref().unwrap_or(input).address()];
        self.operations.linear_forward(places, parameters, residual, self.sizes(layer))?;
        self.give_gathered(gathered);
        Ok(())
    }

    /// Keeps the activation's input.
    fn activated(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Activated,
        input: &Activations,
    ) -> Result<Activations> {
        let kept = self.activations(self.rows() * layer.linear.outputs)?;
        let (parameters, sizes) = (parameters(group, &layer.linear), self.sizes(&layer.linear));
        let gathered = self.gathered(input, layer.linear.inputs)?;
        let input = gathered.as_ref().unwrap_or(input);
        match layer.function {
            Function::Gelu => {
                let places = [out.address(), kept.address(), input.address()];
                self.operations.linear_gelu_forward(places, parameters, sizes)?;
            }
            Function::SwiGlu => {
                let places = [kept.address(), input.address()];
                self.operations.linear_forward(places, parameters, None, sizes)?;
                self.operations.swiglu_forward(out.address(), kept.address(), [self.rows(), layer.width])?;
            }
        }
        self.give_gathered(gathered);
        Ok(kept)
    }

    fn linear_input(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Linear,
        gradient: &Activations,
    ) -> Result<()> {
        let (weight, sizes) = (group.tensor(layer.weight), self.sizes(layer));
        if layer.reduction == Reduction::Gradient {
            let gradient = gradient.address();
            return self.sum(out, layer.inputs, |this, out| {
                this.operations.linear_backward_input([out, gradient, weight], sizes)
            });
        }
        let gathered =
            if layer.reduction == Reduction::Output { self.gathered(gradient, layer.outputs)? } else { None };
        let places = [out.address(), gathered.as_ref().unwrap_or(gradient).address(), weight];
        self.operations.linear_backward_input(places, sizes)?;
        self.give_gathered(gathered);
        Ok(())
    }

    fn sum_copies(&mut self, gradient: &mut Activations, layer: &Linear) -> Result<()> {
        let Some(copies) = layer.copies else { return Ok(()) };
        self.sum_heads(gradient, layer.outputs, copies)
    }

    fn activation_input(
        &mut self,
        group: &Group,
        layer: &Activated,
        after: &Linear,
        gradient: &Activations,
        kept: Activations,
    ) -> Result<Activations> {
        let out = self.activations(self.rows() * layer.width)?;
        let gathered = self.gathered(gradient, after.outputs)?;
        let gradient = gathered.as_ref().unwrap_or(gradient).address();
        let places = [out.address(), gradient, group.tensor(after.weight)];
        match layer.function {
            Function::Gelu => {
                let [out, gradient, weight] = places;
                self.operations
                    .linear_gelu_backward_input([out, gradient, weight, kept.address()], self.sizes(after))?;
            }
            Function::SwiGlu => {
                self.operations.linear_backward_input(places, self.sizes(after))?;
                self.operations.swiglu_backward(kept.address(), out.address(), [self.rows(), layer.width])?;
            }
        }
        self.give_gathered(gathered);
        // GELU's gradient is in the new buffer, SwiGLU's in the wider one that was kept
        let (gradient, free) = if layer.function == Function::Gelu { (out, kept) } else { (kept, out) };
        self.give(free);
        Ok(gradient)
    }

    fn linear_weight(&mut self, group: &mut Group, layer: &Linear, operands: Multiplied<Activations>) -> Result<()> {
        let bias = if layer.has_bias { group.gradient(layer.weight + 1, Side::Own) } else { Address::NULL };
        let into = [group.gradient(layer.weight, Side::Own), bias];
        let Multiplied { mut gradient, mut input } = operands;
        let gathered = match layer.reduction {
            Reduction::None => None,
            Reduction::Gradient => self.gathered(input, layer.inputs)?,
            Reduction::Output => self.gathered(gradient, layer.outputs)?,
        };
        if let Some(gathered) = &gathered {
            *(if layer.reduction == Reduction::Output { &mut gradient } else { &mut input }) = gathered;
        }
        let places = [gradient.address(), input.address()];
        self.operations.linear_backward_weight(into, places, self.sizes(layer))?;
        self.give_gathered(gathered);
        Ok(())
    }

    fn rotate(&mut self, fused: &mut Activations, layer: &Rotation, backwards: bool) -> Result<()> {
        let tables = self.rotations.as_ref().context("expected frequencies of rotary positions, found none")?;
        let (pairs, of_slice) = (self.workload.frequencies.len(), self.positions());
        let [cosines, sines] =
            tables.each_ref().map(|table| table.address().offset(of_slice.start * pairs * size_of::<f32>()));
        let dimensions = [self.rows(), of_slice.len(), layer.heads, pairs, layer.fused];
        self.operations.heads_rotate([fused.address(), cosines, sines], dimensions, backwards)
    }

    /// With fewer heads of keys than of queries, each is repeated for the queries that share it, unless cuDNN computes it.
    fn attention(&mut self, out: &mut Activations, layer: &Attention, fused: &Activations) -> Result<Activations> {
        let log_sums = self.floats(self.rows() * layer.heads)?;
        if self.operations.choices.cudnn_attention {
            self.fused_attention([out.address(), log_sums.address(), fused.address()], layer)?;
            return Ok(log_sums);
        }
        let expanded = self.expanded(layer, fused)?;
        let qkv = expanded.as_ref().unwrap_or(fused).address();
        self.operations.attention_forward([out.address(), log_sums.address(), qkv], &self.shape(layer))?;
        expanded.into_iter().for_each(|buffer| self.give(buffer));
        Ok(log_sums)
    }

    fn attention_input(
        &mut self,
        out: &mut Activations,
        layer: &Attention,
        operands: Attended<Activations>,
    ) -> Result<()> {
        if self.operations.choices.cudnn_attention {
            return self.fused_attention_input(out.address(), layer, &operands);
        }
        let Attended { gradient, fused, output, kept } = operands;
        let expanded = self.expanded(layer, fused)?;
        let places = [gradient, expanded.as_ref().unwrap_or(fused), output, kept].map(Activations::address);
        let Some(expanded) = expanded else {
            return self.operations.attention_backward(out.address(), places, &self.shape(layer));
        };
        let wide = self.activations(3 * self.rows() * layer.heads * layer.size)?;
        self.operations.attention_backward(wide.address(), places, &self.shape(layer))?;
        let dimensions = [self.rows(), layer.heads, layer.groups, layer.size];
        self.operations.heads_reduce(out.address(), wide.address(), dimensions)?;
        self.give(wide);
        self.give(expanded);
        Ok(())
    }

    fn keys_values(&mut self, fused: &Activations, layer: &Attention) -> Result<Activations> {
        self.copy_keys(fused, layer)
    }

    fn slice_attention(
        &mut self,
        out: &mut Activations,
        layer: &Attention,
        fused: &Activations,
        earlier: &[&Activations],
    ) -> Result<Activations> {
        self.attention_to_slices(out, layer, fused, earlier)
    }

    fn slice_attention_input(
        &mut self,
        out: &mut Activations,
        layer: &Attention,
        operands: Attended<Activations>,
        later: Option<&Activations>,
        earlier: &mut [Earlier<Activations>],
    ) -> Result<()> {
        self.attention_to_slices_input(out, layer, operands, later, earlier)
    }

    fn classify(
        &mut self,
        group: &Group,
        layer: &Classifier,
        input: &Activations,
        microbatch: usize,
        weight: f32,
    ) -> Result<Activations> {
        let (rows, sizes) = (self.rows(), self.logits(layer));
        let logits = self.activations(rows * layer.rows)?;
        let gathered = self.gathered(input, layer.width)?;
        let places = [logits.address(), gathered.as_ref().unwrap_or(input).address()];
        if layer.rows > 0 {
            self.operations.linear_forward(places, [group.tensor(layer.weight), Address::NULL], None, sizes)?;
        }
        self.give_gathered(gathered);
        let losses = self.operations.floats(rows)?;
        if self.is_shared() {
            self.classify_share(logits.address(), losses.address(), layer, microbatch, weight)?;
        } else {
            let places = [logits.address(), losses.address(), self.batch.targets(microbatch, self.slice)];
            self.operations.classifier_forward(places, weight, [rows, layer.vocabulary, layer.rows])?;
        }
        let unit = microbatch * self.workload.slice_count() + self.slice;
        let loss = self.losses.address().offset(unit * size_of::<f32>());
        self.operations.loss_mean(loss, losses.address(), rows)?;
        self.operations.pool.give([losses]);
        Ok(logits)
    }

    fn classify_input(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Classifier,
        logits_gradient: &Activations,
    ) -> Result<()> {
        let (from, weight, sizes) = (logits_gradient.address(), group.tensor(layer.weight), self.logits(layer));
        self.sum(out, layer.width, |this, out| {
            if layer.rows == 0 {
                let bytes = sizes.rows * layer.width * this.operations.precision.bytes();
                return Ok(this.operations.gpu.compute.clear(out, bytes)?);
            }
            this.operations.linear_backward_input([out, from, weight], sizes)
        })
    }

    fn classify_weight(
        &mut self,
        group: &mut Group,
        layer: &Classifier,
        operands: Classified<Activations>,
    ) -> Result<()> {
        if layer.rows == 0 {
            return Ok(());
        }
        let gathered = self.gathered(operands.input, layer.width)?;
        let input = gathered.as_ref().unwrap_or(operands.input).address();
        let into = [group.gradient(layer.weight, layer.side), Address::NULL];
        let places = [operands.logits_gradient.address(), input];
        self.operations.linear_backward_weight(into, places, self.logits(layer))?;
        self.give_gathered(gathered);
        Ok(())
    }

    fn losses(&mut self) -> Result<Vec<f32>> {
        let slices = self.workload.slice_count();
        let mut losses = vec![0.0_f32; self.workload.microbatches * slices];
        let (compute, bytes) = (&self.operations.gpu.compute, 0..size_of_val(&losses[..]));
        compute.download(&self.step.host_losses, bytes, self.losses.address())?;
        compute.synchronize()?;
        self.step.host_losses.read(0, &mut losses);
        if slices == 1 {
            return Ok(losses);
        }
        // the mean of each slice counts by its tokens
        let share = |slice| self.workload.slice_rows(slice) as f64 / self.workload.micro_batch.rows() as f64;
        let mean = |of: &[f32]| of.iter().enumerate().map(|(slice, &loss)| f64::from(loss) * share(slice)).sum::<f64>();
        Ok(losses.chunks(slices).map(|of| mean(of) as f32).collect())
    }
}
