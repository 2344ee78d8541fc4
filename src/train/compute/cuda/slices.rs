//! Slices of sequences on a GPU: keys and values of earlier slices, and the gradients that later slices add to them.
//!
//! The attention kernels get the slice and everything before it as rows of fused queries, keys and values (B, before + T, 3C), in
//! which the queries of earlier slices are 0, and compute the tiles of the slice's queries only.

use super::operation::{FusedShape, Operations, at, int, launch};
use super::{Activations, Cuda};
use crate::compute::{Attended, Attention, Compute as _, Earlier, Memory as _};
use anyhow::{Result, ensure};
use pipesim_gpu::Precision;
use pipesim_gpu::api::{Address, Argument};
use pipesim_gpu::kernel;

impl Operations {
    /// Copies runs of `length` elements, `count` elements in all, between places where runs begin at these distances.
    fn strided_copy(&self, [out, input]: [Address; 2], count: usize, [length, to, from]: [usize; 3]) -> Result<()> {
        launch!(self, strided_copy(out, input; size count, length, to, from))
    }
}

impl Cuda {
    /// The whole attention of the slice: its keys, and the first of its queries.
    fn prefix(&self, layer: &Attention) -> FusedShape {
        let (own, &Attention { heads, size, .. }) = (self.positions(), layer);
        FusedShape { sequences: self.workload.micro_batch.sequences, tokens: own.end, first: own.start, heads, size }
    }

    /// See [`Compute::keys_values`](crate::compute::Compute::keys_values).
    pub(super) fn copy_keys(&mut self, fused: &Activations, layer: &Attention) -> Result<Activations> {
        let (rows, width) = (self.rows(), layer.cached());
        let keys = self.activations(rows * width)?;
        let from = fused.address().offset((layer.fused() - width) * self.operations.precision.bytes());
        self.operations.strided_copy([keys.address(), from], rows * width, [width, width, layer.fused()])?;
        Ok(keys)
    }

    /// Copies a slice's keys and values into the rows of all slices so far, and its queries if it is the current slice.
    fn gather(&mut self, wide: Address, source: &Activations, slice: usize, layer: &Attention) -> Result<()> {
        let (rows, of_slice) = (self.workload.slice_rows(slice), self.workload.positions(slice));
        let number = self.operations.precision.bytes();
        let stride = source.bytes() / (rows * number);
        ensure!(
            [layer.fused(), layer.cached()].contains(&stride),
            "expected the keys and values of slice {slice}, found another buffer"
        );
        let (own, &Attention { heads, groups, size }) = (usize::from(slice == self.slice), layer);
        let operations = &self.operations;
        let (from, end) = (source.address(), self.positions().end);
        launch!(operations, slice_gather(wide, from; rows, of_slice.len(), end, of_slice.start, stride, own, heads, groups, size))
    }

    /// Gathers the rows of the slice and of all `earlier` ones (B, before + T, 3C). To be given back.
    fn gathered_slices(
        &mut self,
        layer: &Attention,
        fused: &Activations,
        earlier: &[&Activations],
    ) -> Result<Activations> {
        ensure!(earlier.len() == self.slice, "expected {} earlier slices, found {}", self.slice, earlier.len());
        let shape = self.prefix(layer);
        let wide = self.activations(shape.sequences * shape.tokens * 3 * shape.heads * shape.size)?;
        let sources = earlier.iter().copied().chain([fused]).enumerate();
        for (slice, source) in sources {
            self.gather(wide.address(), source, slice, layer)?;
        }
        Ok(wide)
    }

    /// Copies the slice's query rows (`runs`, T, `width`) into rows for all keys (`runs`, before + T, `width`); earlier rows are 0.
    fn spread(&mut self, wide: &Activations, own: Address, [runs, width]: [usize; 2]) -> Result<()> {
        let (of_slice, number) = (self.positions(), self.operations.precision.bytes());
        self.operations.gpu.compute.clear(wide.address(), wide.bytes())?;
        let (length, to) = (of_slice.len() * width, of_slice.end * width);
        let place = wide.address().offset(of_slice.start * width * number);
        self.operations.strided_copy([place, own], runs * length, [length, to, length])
    }

    /// Copies the rows of the slice's queries back.
    fn own_rows(&mut self, own: Address, wide: Address, [runs, width]: [usize; 2]) -> Result<()> {
        let (of_slice, number) = (self.positions(), self.operations.precision.bytes());
        let (length, from) = (of_slice.len() * width, of_slice.end * width);
        let place = wide.offset(of_slice.start * width * number);
        self.operations.strided_copy([own, place], runs * length, [length, length, from])
    }

    /// Activations that take the room of a float32.
    fn per_float(&self) -> usize {
        if self.operations.precision == Precision::F32 { 1 } else { 2 }
    }

    /// See [`Compute::slice_attention`](crate::compute::Compute::slice_attention).
    pub(super) fn attention_to_slices(
        &mut self,
        out: &Activations,
        layer: &Attention,
        fused: &Activations,
        earlier: &[&Activations],
    ) -> Result<Activations> {
        let shape = self.prefix(layer);
        let (rows, width) = (shape.sequences * shape.tokens, layer.heads * layer.size);
        let log_sums = self.floats(self.rows() * layer.heads)?;
        let wide = self.gathered_slices(layer, fused, earlier)?;
        let (all_out, all_sums) = (self.activations(rows * width)?, self.floats(rows * layer.heads)?);
        let places = [&all_out, &all_sums, &wide].map(Activations::address);
        self.operations.attention_forward(places, &shape)?;
        self.own_rows(out.address(), all_out.address(), [shape.sequences, width])?;
        let heads = [shape.sequences * layer.heads, self.per_float()];
        self.own_rows(log_sums.address(), all_sums.address(), heads)?;
        [wide, all_out, all_sums].into_iter().for_each(|buffer| self.give(buffer));
        Ok(log_sums)
    }

    /// See [`Compute::slice_attention_input`](crate::compute::Compute::slice_attention_input).
    pub(super) fn attention_to_slices_input(
        &mut self,
        out: &Activations,
        layer: &Attention,
        operands: Attended<Activations>,
        later: Option<&Activations>,
        earlier: &mut [Earlier<Activations>],
    ) -> Result<()> {
        let Attended { gradient, fused, output, kept } = operands;
        let (shape, heads) =
            (self.prefix(layer), [self.workload.micro_batch.sequences * layer.heads, self.per_float()]);
        let (rows, width) = (shape.sequences * shape.tokens, layer.heads * layer.size);
        let own = FusedShape { tokens: self.positions().len(), first: 0, ..shape };
        let means = self.operations.attention_means([gradient.address(), output.address()], &own)?;
        let sources: Vec<&Activations> = earlier.iter().map(|slice| slice.keys).collect();
        let wide = self.gathered_slices(layer, fused, &sources)?;
        let (all_means, all_sums) = (self.floats(rows * layer.heads)?, self.floats(rows * layer.heads)?);
        let (all_gradient, gradients) = (self.activations(rows * width)?, self.activations(rows * 3 * width)?);
        self.spread(&all_means, means.address(), heads)?;
        self.spread(&all_sums, kept.address(), heads)?;
        self.spread(&all_gradient, gradient.address(), [shape.sequences, width])?;
        let places = [&all_gradient, &wide, &all_sums, &all_means].map(Activations::address);
        self.operations.attention_gradients(gradients.address(), places, &shape)?;
        let others = later.map_or(Address::NULL, Activations::address);
        self.reduce([out.address(), gradients.address(), others], self.slice, layer)?;
        for (slice, earlier) in earlier.iter_mut().enumerate() {
            let (into, other) = match earlier.gradient.take() {
                Some(buffer) => {
                    let address = buffer.address();
                    (buffer, address)
                }
                None => (self.activations(self.workload.slice_rows(slice) * layer.cached())?, Address::NULL),
            };
            self.reduce([into.address(), gradients.address(), other], slice, layer)?;
            *earlier.gradient = Some(into);
        }
        self.operations.pool.give([means]);
        [wide, all_means, all_sums, all_gradient, gradients].into_iter().for_each(|buffer| self.give(buffer));
        Ok(())
    }

    /// Takes one slice's gradients from the gradients of all slices so far and adds up repeated heads. Includes queries if the slice is
    /// the current one. Adds `other`.
    fn reduce(&self, [out, wide, other]: [Address; 3], slice: usize, layer: &Attention) -> Result<()> {
        let (rows, of_slice) = (self.workload.slice_rows(slice), self.workload.positions(slice));
        let (own, &Attention { heads, groups, size }) = (usize::from(slice == self.slice), layer);
        let (operations, end) = (&self.operations, self.positions().end);
        launch!(operations, slice_reduce(out, wide, other; rows, of_slice.len(), end, of_slice.start, own, heads, groups, size))
    }
}
