//! What a core computes of layers that several tensor-parallel ranks share (Shoeybi et al., arXiv 1909.08053, section 3).

use super::calls::{bias, share};
use super::group::Group;
use super::machine::Cpu;
use crate::compute::{Classifier, Copies, Embedding, Linear};
use anyhow::Result;
use cpu_kernels::{embedding, linear, loss, vector};

impl Cpu {
    /// Whether other ranks have shares of the same layers.
    pub(super) fn is_shared(&self) -> bool {
        self.workload.tensor.size > 1
    }

    /// Gathers the rows of all ranks; `input` has this rank's. `None` where ranks do not share rows. To be given back.
    pub(super) fn gathered(&mut self, input: &[f32]) -> Result<Option<Vec<f32>>> {
        let ranks = self.workload.tensor.row_ranks();
        if ranks == 1 {
            return Ok(None);
        }
        let mut whole = self.pool.take(ranks * input.len());
        self.ranks.all_gather(input, &mut whole)?;
        Ok(Some(whole))
    }

    /// Takes back what [`Cpu::gathered`] returned.
    pub(super) fn give_gathered(&mut self, whole: Option<Vec<f32>>) {
        if let Some(whole) = whole {
            self.pool.give(whole);
        }
    }

    /// Sets `out` to the sum over all ranks of what `compute` writes: all rows, or this rank's.
    pub(super) fn sum(&mut self, out: &mut [f32], compute: impl FnOnce(&mut [f32])) -> Result<()> {
        let ranks = self.workload.tensor.row_ranks();
        if ranks == 1 {
            compute(out);
            return self.ranks.all_reduce(out);
        }
        let mut whole = self.pool.take(ranks * out.len());
        compute(&mut whole);
        self.ranks.reduce_scatter(&whole, out)?;
        self.pool.give(whole);
        Ok(())
    }

    /// An embedding whose rows are split by id between ranks. Positions are added after the sum: they are whole on each rank.
    pub(super) fn embed_share(&mut self, out: &mut [f32], layer: Embedding<&Group>, tokens: &[u32]) -> Result<()> {
        let Embedding { width, first, tokens: table, positions } = layer;
        self.sum(out, |out| embedding::forward_share(out, tokens, first as u32, table.own.tensor(0), width))?;
        if let Some(group) = positions {
            let (rows, rank) = (self.rows_between(), self.workload.tensor.rank);
            let first = if self.workload.tensor.shares_rows { rank * rows } else { 0 };
            let positions = self.positions();
            embedding::add_positions(
                out,
                &group.own.tensor(0)[positions.start * width..],
                first,
                positions.len(),
                width,
            );
        }
        Ok(())
    }

    pub(super) fn embed_weight_share(
        &mut self,
        layer: Embedding<&mut Group>,
        tokens: &[u32],
        gradient: &Vec<f32>,
    ) -> Result<()> {
        let Embedding { width, first, tokens: table, positions } = layer;
        let gathered = self.gathered(gradient)?;
        let gradient = gathered.as_ref().unwrap_or(gradient);
        embedding::backward_share(table.own.gradient(0), tokens, first as u32, gradient, width);
        if let Some(group) = positions {
            let positions = self.positions();
            let into = &mut group.own.gradient(0)[positions.start * width..];
            embedding::backward_positions(into, gradient, positions.len(), width);
        }
        self.give_gathered(gathered);
        Ok(())
    }

    /// A linear layer whose inputs are split between ranks. Bias and residual are whole on each rank, and are added after the sum.
    pub(super) fn linear_share(
        &mut self,
        out: &mut [f32],
        group: &Group,
        layer: &Linear,
        input: &[f32],
        residual: Option<&Vec<f32>>,
    ) -> Result<()> {
        let weight = group.own.tensor(layer.weight);
        self.sum(out, |out| linear::forward_without_bias(out, input, weight, layer.outputs))?;
        if let Some(bias) = bias(group, layer) {
            out.chunks_exact_mut(layer.outputs).for_each(|row| vector::add(row, bias));
        }
        if let Some(residual) = residual {
            vector::add(out, residual);
        }
        Ok(())
    }

    /// Adds up the gradients (n, `outputs`) of heads that several ranks have. Ranks of other heads contribute zeros: one call of the
    /// whole group instead of groups within it.
    pub(super) fn sum_heads(&mut self, gradient: &mut [f32], outputs: usize, copies: Copies) -> Result<()> {
        let Copies { start, blocks, size, pieces, piece } = copies;
        let (held, width) = (start..start + blocks * size, blocks * pieces * size);
        let mut sums = self.pool.take(self.rows() * width);
        sums.fill(0.0);
        for (sums, row) in sums.chunks_exact_mut(width).zip(gradient.chunks_exact(outputs)) {
            for (all, own) in sums.chunks_exact_mut(pieces * size).zip(row[held.clone()].chunks_exact(size)) {
                all[piece * size..][..size].copy_from_slice(own);
            }
        }
        self.ranks.all_reduce(&mut sums)?;
        for (sums, row) in sums.chunks_exact(width).zip(gradient.chunks_exact_mut(outputs)) {
            for (all, own) in sums.chunks_exact(pieces * size).zip(row[held.clone()].chunks_exact_mut(size)) {
                own.copy_from_slice(&all[piece * size..][..size]);
            }
        }
        self.pool.give(sums);
        Ok(())
    }

    /// The sum of the tokens' losses from the logits of some ids, which become their gradients. All ranks return the same bits.
    pub(super) fn loss_share(
        &mut self,
        logits: &mut [f32],
        layer: &Classifier,
        microbatch: usize,
        weight: f32,
    ) -> Result<f64> {
        let rows = self.rows();
        let mut largest = self.pool.take(rows);
        let mut sums = self.pool.take(2 * rows);
        let targets = share(&self.targets, self.tokens(microbatch))?;
        let &Classifier { first, vocabulary, .. } = layer;
        let own = loss::Share { first: first as u32, vocabulary, stride: self.stride, targets };
        loss::largest(logits, own, &mut largest);
        self.ranks.all_reduce_max(&mut largest)?;
        loss::exponentials(logits, own, &largest, sums.split_at_mut(rows).into());
        self.ranks.all_reduce(&mut sums)?;
        let loss = loss::gradient(logits, own, sums.split_at(rows).into(), weight);
        self.pool.give(largest);
        self.pool.give(sums);
        Ok(loss)
    }
}
