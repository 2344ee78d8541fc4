//! The calls of a model's layers on a CPU.

use super::group::Group;
use super::machine::Cpu;
use super::slices;
use crate::compute::{
    Activated, Attended, Attention, Classified, Classifier, Compute, Earlier, Embedded, Embedding, Function, Linear,
    Multiplied, Norm, NormKind, Normalized, Reduction, Rotation, Rows, Side, Stopwatch, Workload,
};
use anyhow::{Context as _, Result, ensure};
use cpu_kernels::matrix::{Matrix, MatrixMut};
use cpu_kernels::product::{add_product, set_product};
use cpu_kernels::{attention, embedding, gelu, layernorm, linear, loss, rmsnorm, swiglu};
use std::ops::Range;

/// Values of a layer's bias, if it has one.
pub(super) fn bias<'a>(group: &'a Group, layer: &Linear) -> Option<&'a [f32]> {
    layer.has_bias.then(|| group.own.tensor(layer.weight + 1))
}

/// The tokens of a range of a step's.
pub(super) fn share(tokens: &[u32], range: Range<usize>) -> Result<&[u32]> {
    tokens.get(range).context("expected a step's tokens, found none: begin it first")
}

impl Compute for Cpu {
    type Buffer = Vec<f32>;
    type Timer = Stopwatch;

    fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        let Workload { vocabulary, has_embedding, has_head, microbatches, .. } = self.workload;
        let expected = microbatches * self.workload.micro_batch.rows();
        for (what, wanted, from, into) in
            [("inputs", has_embedding, inputs, &mut self.inputs), ("targets", has_head, targets, &mut self.targets)]
        {
            if !wanted {
                continue;
            }
            ensure!(
                from.len() == expected,
                "expected {expected} {what} per step, found {}: pass all micro-batches one after the other",
                from.len()
            );
            let beyond = from.iter().find(|&&token| token as usize >= vocabulary);
            ensure!(
                beyond.is_none(),
                "expected {what} below the vocabulary's {vocabulary}, found {beyond:?}: use data or a tokenizer that fits the model"
            );
            into.clear();
            self.workload.in_order(from, into);
        }
        Ok(())
    }

    fn enter_slice(&mut self, slice: usize) -> Result<()> {
        self.slice = slice;
        Ok(())
    }

    fn take(&mut self, rows: Rows, width: usize, _output: Option<&&mut [f32]>) -> Result<Vec<f32>> {
        let rows = if rows == Rows::All { self.rows() } else { self.rows_between() };
        Ok(self.pool.take(rows * width))
    }

    fn give(&mut self, buffer: Vec<f32>) {
        self.pool.give(buffer);
    }

    fn receive(&mut self, message: &[f32], width: usize) -> Result<Vec<f32>> {
        let expected = self.rows_between() * width;
        ensure!(
            message.len() == expected,
            "expected a message of {expected} numbers, found {}: pass a whole micro-batch",
            message.len()
        );
        let mut buffer = self.pool.take(expected);
        buffer.copy_from_slice(message);
        Ok(buffer)
    }

    fn send(&mut self, buffer: Vec<f32>, output: &mut [f32]) -> Result<()> {
        ensure!(
            output.len() == buffer.len(),
            "expected room for a message of {} numbers, found {}: pass a whole micro-batch's",
            buffer.len(),
            output.len()
        );
        output.copy_from_slice(&buffer);
        self.pool.give(buffer);
        Ok(())
    }

    fn embed(&mut self, out: &mut Vec<f32>, layer: Embedding<&Group>, microbatch: usize) -> Result<Vec<f32>> {
        let rows = self.rows();
        let mut ids = self.pool.take(rows);
        let tokens = share(&self.inputs, self.tokens(microbatch))?;
        bytemuck::cast_slice_mut::<f32, u32>(&mut ids).copy_from_slice(tokens);
        if self.is_shared() {
            self.embed_share(out, layer, bytemuck::cast_slice(&ids))?;
            return Ok(ids);
        }
        let Range { start, end } = self.positions();
        let positions = layer.positions.map(|group| &group.own.tensor(0)[start * layer.width..]);
        embedding::forward(out, tokens, layer.tokens.own.tensor(0), positions, end - start, layer.width);
        Ok(ids)
    }

    fn embed_weight(
        &mut self,
        layer: Embedding<&mut Group>,
        _microbatch: usize,
        operands: Embedded<Vec<f32>>,
    ) -> Result<()> {
        let tokens = bytemuck::cast_slice::<f32, u32>(operands.ids);
        if self.is_shared() {
            return self.embed_weight_share(layer, tokens, operands.gradient);
        }
        let Range { start, end } = self.positions();
        let positions = layer.positions.map(|group| &mut group.own.gradient(0)[start * layer.width..]);
        let into = layer.tokens.own.gradient(0);
        embedding::backward_weight(into, positions, tokens, operands.gradient, end - start, layer.width);
        Ok(())
    }

    fn norm(&mut self, out: &mut Vec<f32>, group: &Group, layer: &Norm, input: &Vec<f32>) -> Result<Vec<f32>> {
        let weight = group.own.tensor(layer.weight);
        Ok(match layer.kind {
            NormKind::Layer => {
                let mut statistics = self.pool.take(2 * self.rows_between());
                let parameters = [weight, group.own.tensor(layer.weight + 1)];
                layernorm::forward(out, &mut statistics, input, parameters, layer.epsilon);
                statistics
            }
            NormKind::RootMeanSquare => {
                let mut statistics = self.pool.take(self.rows_between());
                rmsnorm::forward(out, &mut statistics, input, weight, layer.epsilon);
                statistics
            }
        })
    }

    fn norm_input(
        &mut self,
        out: &mut Vec<f32>,
        group: &Group,
        layer: &Norm,
        operands: Normalized<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let weight = group.own.tensor(layer.weight);
        let Normalized { gradient, input, statistics, residual } = operands;
        let residual = residual.map(|residual| &residual[..]);
        let mut sums = match layer.kind {
            NormKind::Layer => {
                let mut sums = self.pool.take(2 * layer.width);
                let operands = layernorm::Operands { gradient, input, statistics, weight };
                layernorm::backward_input(out, &mut sums, residual, operands);
                sums
            }
            NormKind::RootMeanSquare => {
                let mut sums = self.pool.take(layer.width);
                let operands = layernorm::Operands { gradient, input, statistics, weight };
                rmsnorm::backward_input(out, &mut sums, residual, operands);
                sums
            }
        };
        if self.workload.tensor.shares_rows {
            self.ranks.all_reduce(&mut sums)?;
        }
        Ok(sums)
    }

    fn norm_weight(&mut self, group: &mut Group, layer: &Norm, sums: &Vec<f32>) -> Result<()> {
        group.own.add_gradients(layer.weight, sums);
        Ok(())
    }

    fn linear(
        &mut self,
        out: &mut Vec<f32>,
        group: &Group,
        layer: &Linear,
        input: &Vec<f32>,
        residual: Option<&Vec<f32>>,
    ) -> Result<()> {
        if layer.reduction == Reduction::Output {
            return self.linear_share(out, group, layer, input, residual);
        }
        let gathered = if layer.reduction == Reduction::Gradient { self.gathered(input)? } else { None };
        let input = gathered.as_ref().unwrap_or(input);
        let weight = group.own.tensor(layer.weight);
        match (residual, bias(group, layer)) {
            (None, Some(bias)) => linear::forward(out, input, weight, bias),
            (None, None) => linear::forward_without_bias(out, input, weight, layer.outputs),
            (Some(residual), Some(bias)) => linear::forward_residual(out, residual, input, weight, bias),
            (Some(residual), None) => {
                linear::forward_residual_without_bias(out, residual, input, weight, layer.outputs);
            }
        }
        self.give_gathered(gathered);
        Ok(())
    }

    /// Keeps GELU's derivative, which the backward only multiplies, or SwiGLU's input.
    fn activated(
        &mut self,
        out: &mut Vec<f32>,
        group: &Group,
        layer: &Activated,
        input: &Vec<f32>,
    ) -> Result<Vec<f32>> {
        let linear = &layer.linear;
        let mut kept = self.pool.take(self.rows() * linear.outputs);
        match layer.function {
            Function::Gelu => {
                let gathered = if linear.reduction == Reduction::Gradient { self.gathered(input)? } else { None };
                let input = gathered.as_ref().unwrap_or(input);
                linear::forward_without_bias(&mut kept, input, group.own.tensor(linear.weight), linear.outputs);
                self.give_gathered(gathered);
                let bias = bias(group, linear).context("expected a bias in front of GELU, found none")?;
                gelu::forward(out, &mut kept, bias);
            }
            Function::SwiGlu => {
                self.linear(&mut kept, group, linear, input, None)?;
                swiglu::forward(out, &kept, layer.width);
            }
        }
        Ok(kept)
    }

    fn linear_input(&mut self, out: &mut Vec<f32>, group: &Group, layer: &Linear, gradient: &Vec<f32>) -> Result<()> {
        let weight = group.own.tensor(layer.weight);
        match layer.reduction {
            Reduction::None => linear::backward_input(out, gradient, weight, layer.outputs),
            Reduction::Gradient => {
                self.sum(out, |out| linear::backward_input(out, gradient, weight, layer.outputs))?;
            }
            Reduction::Output => {
                let gathered = self.gathered(gradient)?;
                linear::backward_input(out, gathered.as_ref().unwrap_or(gradient), weight, layer.outputs);
                self.give_gathered(gathered);
            }
        }
        Ok(())
    }

    fn sum_copies(&mut self, gradient: &mut Vec<f32>, layer: &Linear) -> Result<()> {
        let Some(copies) = layer.copies else { return Ok(()) };
        self.sum_heads(gradient, layer.outputs, copies)
    }

    fn activation_input(
        &mut self,
        group: &Group,
        layer: &Activated,
        after: &Linear,
        gradient: &Vec<f32>,
        mut kept: Vec<f32>,
    ) -> Result<Vec<f32>> {
        let mut output_gradient = self.pool.take(self.rows() * layer.width);
        self.linear_input(&mut output_gradient, group, after, gradient)?;
        match layer.function {
            Function::Gelu => gelu::backward(&mut kept, &output_gradient),
            Function::SwiGlu => swiglu::backward(&mut kept, &output_gradient, layer.width),
        }
        self.pool.give(output_gradient);
        Ok(kept)
    }

    fn linear_weight(&mut self, group: &mut Group, layer: &Linear, operands: Multiplied<Vec<f32>>) -> Result<()> {
        let Multiplied { mut gradient, mut input } = operands;
        let gathered = match layer.reduction {
            Reduction::None => None,
            Reduction::Gradient => self.gathered(input)?,
            Reduction::Output => self.gathered(gradient)?,
        };
        if let Some(gathered) = &gathered {
            *(if layer.reduction == Reduction::Output { &mut gradient } else { &mut input }) = gathered;
        }
        let (weight, bias) = group.own.gradients(layer.weight, layer.has_bias);
        linear::backward_weight(weight, bias, gradient, input, layer.outputs);
        self.give_gathered(gathered);
        Ok(())
    }

    fn rotate(&mut self, fused: &mut Vec<f32>, layer: &Rotation, backwards: bool) -> Result<()> {
        let table = self.rotations.as_ref().context("expected frequencies of rotary positions, found none")?;
        table.rotate(fused, layer.heads, layer.fused, self.workload.positions(self.slice), backwards);
        Ok(())
    }

    fn attention(&mut self, out: &mut Vec<f32>, layer: &Attention, fused: &Vec<f32>) -> Result<Vec<f32>> {
        let shape = self.shape(layer);
        let mut log_sums = self.pool.take(self.rows() * layer.heads);
        let mut scratch = self.pool.take(attention::forward_scratch(&shape));
        attention::forward(out, &mut log_sums, fused, &mut scratch, &shape);
        self.pool.give(scratch);
        Ok(log_sums)
    }

    fn attention_input(&mut self, out: &mut Vec<f32>, layer: &Attention, operands: Attended<Vec<f32>>) -> Result<()> {
        let shape = self.shape(layer);
        let mut scratch = self.pool.take(attention::backward_scratch(&shape));
        let Attended { gradient, fused: qkv, output, kept: log_sums } = operands;
        attention::backward(out, attention::Operands { gradient, qkv, output, log_sums }, &mut scratch, &shape);
        self.pool.give(scratch);
        Ok(())
    }

    fn keys_values(&mut self, fused: &Vec<f32>, layer: &Attention) -> Result<Vec<f32>> {
        let mut keys = self.pool.take(self.rows() * layer.cached());
        slices::copy_keys(&mut keys, fused, layer);
        Ok(keys)
    }

    fn slice_attention(
        &mut self,
        out: &mut Vec<f32>,
        layer: &Attention,
        fused: &Vec<f32>,
        earlier: &[&Vec<f32>],
    ) -> Result<Vec<f32>> {
        self.attention_to_slices(out, layer, fused, earlier)
    }

    fn slice_attention_input(
        &mut self,
        out: &mut Vec<f32>,
        layer: &Attention,
        operands: Attended<Vec<f32>>,
        later: Option<&Vec<f32>>,
        earlier: &mut [Earlier<Vec<f32>>],
    ) -> Result<()> {
        self.attention_to_slices_input(out, layer, operands, later, earlier)
    }

    fn classify(
        &mut self,
        group: &Group,
        layer: &Classifier,
        input: &Vec<f32>,
        microbatch: usize,
        weight: f32,
    ) -> Result<Vec<f32>> {
        let &Classifier { width, vocabulary, .. } = layer;
        let (rows, stride) = (self.rows(), self.stride);
        let mut logits = self.pool.take(rows * stride);
        let gathered = self.gathered(input)?;
        let input = gathered.as_ref().unwrap_or(input);
        if vocabulary > 0 {
            set_product(
                MatrixMut::new(&mut logits, rows, vocabulary, stride),
                Matrix::new(input, rows, width, width),
                Matrix::new(group.own.tensor(layer.weight), vocabulary, width, width).transposed(),
            );
        }
        self.give_gathered(gathered);
        if self.keep_logits {
            let unit = self.unit(microbatch);
            let kept = self.logits[unit].get_or_insert_default();
            kept.clear();
            logits.chunks_exact(stride).for_each(|row| kept.extend_from_slice(&row[..vocabulary]));
        }
        let sum = if self.is_shared() {
            self.loss_share(&mut logits, layer, microbatch, weight)?
        } else {
            loss::forward(&mut logits, vocabulary, stride, share(&self.targets, self.tokens(microbatch))?, weight)
        };
        let unit = self.unit(microbatch);
        self.losses[unit] = sum;
        Ok(logits)
    }

    fn classify_input(
        &mut self,
        out: &mut Vec<f32>,
        group: &Group,
        layer: &Classifier,
        logits_gradient: &Vec<f32>,
    ) -> Result<()> {
        let &Classifier { width, vocabulary, .. } = layer;
        let (rows, stride) = (self.rows(), self.stride);
        let product = |out: &mut [f32]| {
            if vocabulary == 0 {
                return out.fill(0.0);
            }
            set_product(
                MatrixMut::new(out, rows, width, width),
                Matrix::new(logits_gradient, rows, vocabulary, stride),
                Matrix::new(group.own.tensor(layer.weight), vocabulary, width, width),
            );
        };
        if self.is_shared() {
            return self.sum(out, product);
        }
        product(out);
        Ok(())
    }

    fn classify_weight(&mut self, group: &mut Group, layer: &Classifier, operands: Classified<Vec<f32>>) -> Result<()> {
        let &Classifier { width, vocabulary, .. } = layer;
        let range = group.own.range(layer.weight);
        let into = match layer.side {
            Side::Own => &mut group.own.gradients[range],
            Side::Shared => &mut group.shared_gradients[range],
        };
        let gathered = self.gathered(operands.input)?;
        if vocabulary > 0 {
            add_product(
                MatrixMut::new(into, vocabulary, width, width),
                Matrix::new(operands.logits_gradient, self.rows(), vocabulary, self.stride).transposed(),
                Matrix::new(gathered.as_ref().unwrap_or(operands.input), self.rows(), width, width),
            );
        }
        self.give_gathered(gathered);
        Ok(())
    }

    fn losses(&mut self) -> Result<Vec<f32>> {
        let rows = self.workload.micro_batch.rows() as f64;
        let sums = self.losses.chunks(self.workload.slice_count()).map(|slices| slices.iter().sum::<f64>());
        Ok(sums.map(|sum| (sum / rows) as f32).collect())
    }
}
