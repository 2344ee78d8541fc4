//! Slices of sequences on a CPU: keys and values of earlier slices, and the gradients that later slices add to them.

use super::machine::Cpu;
use crate::compute::{Attended, Attention, Earlier};
use anyhow::{Context as _, Result, ensure};
use cpu_kernels::attention::{self, Cached, Shape};
use cpu_kernels::vector;

/// Copies the keys and values of fused rows.
pub(super) fn copy_keys(keys: &mut [f32], fused: &[f32], layer: &Attention) {
    let width = layer.cached();
    for (keys, row) in keys.chunks_exact_mut(width).zip(fused.chunks_exact(layer.fused())) {
        keys.copy_from_slice(&row[layer.fused() - width..]);
    }
}

/// Rows of keys and values, alone or at the end of fused rows, of a slice of sequences.
struct SliceRows<'a> {
    values: &'a [f32],
    stride: usize,
    /// Rows per sequence.
    tokens: usize,
}

impl<'a> SliceRows<'a> {
    /// Recognizes the rows of a slice of `rows` rows of `sequences` sequences.
    fn new(values: &'a [f32], layer: &Attention, sequences: usize, rows: usize) -> Result<SliceRows<'a>> {
        let stride = [layer.fused(), layer.cached()].into_iter().find(|stride| rows * stride == values.len());
        let stride = stride.context("expected the keys and values of an earlier slice, found another buffer")?;
        Ok(SliceRows { values, stride, tokens: rows / sequences })
    }

    /// The rows of a sequence, each with keys and values alone.
    fn of_sequence(&self, sequence: usize, width: usize) -> impl Iterator<Item = &'a [f32]> {
        let (length, stride) = (self.tokens * self.stride, self.stride);
        self.values[sequence * length..][..length].chunks_exact(stride).map(move |row| &row[stride - width..])
    }
}

impl Cpu {
    /// Gathers the keys and values of the slice and of all `earlier` ones (B, before + T, 2G HS). To be given back.
    fn gather_keys(&mut self, layer: &Attention, fused: &[f32], earlier: &[&Vec<f32>]) -> Result<Vec<f32>> {
        let (sequences, width) = (self.workload.micro_batch.sequences, layer.cached());
        ensure!(earlier.len() == self.slice, "expected {} earlier slices, found {}", self.slice, earlier.len());
        let mut keys = self.pool.take(sequences * self.positions().end * width);
        let sources = earlier.iter().map(|slice| &slice[..]).chain([fused]).enumerate().map(|(slice, values)| {
            SliceRows::new(values, layer, sequences, sequences * self.workload.positions(slice).len())
        });
        let sources: Vec<SliceRows> = sources.collect::<Result<_>>()?;
        let rows =
            (0..sequences).flat_map(|sequence| sources.iter().flat_map(move |rows| rows.of_sequence(sequence, width)));
        keys.chunks_exact_mut(width).zip(rows).for_each(|(keys, row)| keys.copy_from_slice(row));
        Ok(keys)
    }

    /// Scratch for the slice and everything before it.
    fn slice_scratch(&mut self, shape: &Shape, elements: fn(&Shape) -> usize) -> Vec<f32> {
        let length = elements(&Shape { tokens: self.positions().end, ..*shape });
        self.pool.take(length)
    }

    /// See [`Compute::slice_attention`](crate::compute::Compute::slice_attention).
    pub(super) fn attention_to_slices(
        &mut self,
        out: &mut [f32],
        layer: &Attention,
        fused: &[f32],
        earlier: &[&Vec<f32>],
    ) -> Result<Vec<f32>> {
        let (shape, before) = (self.shape(layer), self.positions().start);
        let mut log_sums = self.pool.take(self.rows() * layer.heads);
        let keys = if before > 0 { Some(self.gather_keys(layer, fused, earlier)?) } else { None };
        let mut scratch = self.slice_scratch(&shape, attention::forward_scratch);
        let cached = keys.as_ref().map(|keys| Cached { keys_values: keys, before });
        attention::forward_slice(out, &mut log_sums, fused, cached, &mut scratch, &shape);
        [Some(scratch), keys].into_iter().flatten().for_each(|buffer| self.pool.give(buffer));
        Ok(log_sums)
    }

    /// See [`Compute::slice_attention_input`](crate::compute::Compute::slice_attention_input).
    pub(super) fn attention_to_slices_input(
        &mut self,
        out: &mut [f32],
        layer: &Attention,
        operands: Attended<Vec<f32>>,
        later: Option<&Vec<f32>>,
        earlier: &mut [Earlier<Vec<f32>>],
    ) -> Result<()> {
        let Attended { gradient, fused: qkv, output, kept: log_sums } = operands;
        let (shape, before) = (self.shape(layer), self.positions().start);
        let mut scratch = self.slice_scratch(&shape, attention::backward_scratch);
        let operands = attention::Operands { gradient, qkv, output, log_sums };
        if before == 0 {
            attention::backward(out, operands, &mut scratch, &shape);
        } else {
            let sources: Vec<&Vec<f32>> = earlier.iter().map(|slice| slice.keys).collect();
            let keys = self.gather_keys(layer, qkv, &sources)?;
            let mut gradients = self.pool.take(keys.len());
            let cached = Cached { keys_values: &keys, before };
            attention::backward_slice(out, Some((cached, &mut gradients)), operands, &mut scratch, &shape);
            self.scatter(out, layer, &gradients, earlier);
            self.pool.give(keys);
            self.pool.give(gradients);
        }
        self.pool.give(scratch);
        if let Some(later) = later {
            let (fused, width) = (layer.fused(), layer.cached());
            let rows = out.chunks_exact_mut(fused).zip(later.chunks_exact(width));
            rows.for_each(|(row, later)| vector::add(&mut row[fused - width..], later));
        }
        Ok(())
    }

    /// Adds the gradients (B, before + T, 2G HS) of keys and values to the gradients of `earlier` slices, and sets the slice's own
    /// gradients in the fused rows `out`.
    fn scatter(&mut self, out: &mut [f32], layer: &Attention, gradients: &[f32], earlier: &mut [Earlier<Vec<f32>>]) {
        let (sequences, width, fused) = (self.workload.micro_batch.sequences, layer.cached(), layer.fused());
        let own = self.positions();
        let all = || gradients.chunks_exact(own.end * width);
        for (slice, earlier) in earlier.iter_mut().enumerate() {
            let positions = self.workload.positions(slice);
            let length = positions.len() * width;
            let from = all().map(|sequence| &sequence[positions.start * width..][..length]);
            match earlier.gradient {
                Some(into) => into.chunks_exact_mut(length).zip(from).for_each(|(into, from)| vector::add(into, from)),
                None => {
                    let into = earlier.gradient.insert(self.pool.take(sequences * length));
                    into.chunks_exact_mut(length).zip(from).for_each(|(into, from)| into.copy_from_slice(from));
                }
            }
        }
        let from = all().flat_map(|sequence| sequence[own.start * width..].chunks_exact(width));
        out.chunks_exact_mut(fused).zip(from).for_each(|(row, from)| row[fused - width..].copy_from_slice(from));
    }
}
