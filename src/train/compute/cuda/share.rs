//! A GPU's part of layers that several tensor-parallel ranks share (Shoeybi et al., arXiv 1909.08053, section 3).
//!
//! Biases, residuals and position embeddings are whole on every rank. The first rank adds them inside its product or
//! lookup, at no cost. With sequence parallelism residuals are added after the sum, because ranks have different rows.

use super::collective::{DeviceCollective, Join, Numbers};
use super::{Activations, Cuda, Group};
use crate::compute::{Classifier, Compute, Copies, Linear};
use anyhow::Result;
use pipesim_gpu::Precision;
use pipesim_gpu::api::Address;

impl Cuda {
    /// Whether other ranks have shares of the same layers.
    pub(super) fn is_shared(&self) -> bool {
        self.workload.tensor.size > 1
    }

    /// Whether this rank adds biases, residuals and positions, which all ranks have.
    pub(super) fn adds_whole(&self) -> bool {
        self.workload.tensor.rank == 0
    }

    /// Whether ranks share the rows between products.
    pub(super) fn shares_rows(&self) -> bool {
        self.workload.tensor.row_ranks() > 1
    }

    /// Returns the number of rows between products; with sequence parallelism, only this rank's.
    pub(super) fn rows_between(&self) -> usize {
        self.rows() / self.workload.tensor.row_ranks()
    }

    /// The same of the longest slice.
    pub fn most_rows_between(&self) -> usize {
        let rows = (0..self.workload.slice_count()).map(|slice| self.workload.slice_rows(slice)).max();
        rows.unwrap_or(0) / self.workload.tensor.row_ranks()
    }

    /// Enables collective calls. A warm-up skips them because members warm up one after the other.
    pub fn wake(&mut self) {
        self.is_awake = true;
    }

    /// Returns the group of tensor-parallel ranks; `None` during the warm-up.
    fn group(&mut self) -> Option<(&super::operation::Operations, &mut dyn DeviceCollective)> {
        self.is_awake.then_some((&self.operations, &mut *self.ranks))
    }

    fn numbers(&self, address: Address, count: usize) -> Numbers {
        Numbers { address, count, precision: self.operations.precision }
    }

    /// Reduces `data` over all ranks, in place.
    fn all_reduce(&mut self, data: Numbers, join: Join) -> Result<()> {
        self.group().map_or(Ok(()), |(operations, group)| operations.all_reduce(group, &[data], join))
    }

    /// Sums float32 arrays over all ranks if they share rows.
    pub(super) fn sum_of_rows(&mut self, address: Address, count: usize) -> Result<()> {
        if !self.shares_rows() {
            return Ok(());
        }
        self.all_reduce(Numbers { address, count, precision: Precision::F32 }, Join::Sum)
    }

    /// Sums the gradients at `places` over the members of `group`; if they share the optimizer's work, only this worker's slices.
    pub fn sum_gradients(&mut self, places: &[Numbers], group: &mut dyn DeviceCollective) -> Result<()> {
        match self.workload.optimizer.members {
            1 => self.operations.all_reduce(group, places, Join::Sum),
            _ => self.operations.reduce_scatter_in_place(group, places),
        }
    }

    /// Gathers the values of `groups`. Each member of `group` has updated its slice of them.
    pub fn gather_values(&mut self, groups: &[&Group], group: &mut dyn DeviceCollective) -> Result<()> {
        let places: Vec<Numbers> = groups.iter().map(|group| group.values()).collect();
        group.all_gather_in_place(&places)?;
        groups.iter().try_for_each(|group| group.refresh(&self.operations))
    }

    /// Gathers the rows of all ranks, `width` wide; `input` has this rank's. `None` if ranks do not share rows. Release the result
    /// with [`Cuda::give_gathered`].
    pub(super) fn gathered(&mut self, input: &Activations, width: usize) -> Result<Option<Activations>> {
        if !self.shares_rows() {
            return Ok(None);
        }
        let whole = self.activations(self.rows() * width)?;
        let share = self.numbers(input.address(), self.rows_between() * width);
        if let Some((_, group)) = self.group() {
            group.all_gather(share, whole.address())?;
        }
        Ok(Some(whole))
    }

    /// Releases the result of [`Cuda::gathered`].
    pub(super) fn give_gathered(&mut self, whole: Option<Activations>) {
        whole.into_iter().for_each(|buffer| self.give(buffer));
    }

    /// Sums over all ranks what `compute` writes to an address, and writes all rows of `width`, or this rank's, to `out`.
    pub(super) fn sum(
        &mut self,
        out: &Activations,
        width: usize,
        compute: impl FnOnce(&mut Cuda, Address) -> Result<()>,
    ) -> Result<()> {
        let count = self.rows() * width;
        if !self.shares_rows() {
            compute(self, out.address())?;
            let data = self.numbers(out.address(), count);
            return if self.is_shared() { self.all_reduce(data, Join::Sum) } else { Ok(()) };
        }
        let whole = self.activations(count)?;
        compute(self, whole.address())?;
        let data = self.numbers(whole.address(), count);
        if let Some((operations, group)) = self.group() {
            operations.reduce_scatter(group, data, out.address())?;
        }
        self.give(whole);
        Ok(())
    }

    /// Runs a linear layer whose inputs are split among the ranks.
    pub(super) fn linear_share(
        &mut self,
        out: &Activations,
        [weight, bias]: [Address; 2],
        layer: &Linear,
        input: Address,
        residual: Option<Address>,
    ) -> Result<()> {
        let bias = if self.adds_whole() { bias } else { Address::NULL };
        let (added, behind) = match residual {
            Some(residual) if self.shares_rows() => (None, Some(residual)),
            residual => (residual.filter(|_| self.adds_whole()), None),
        };
        let sizes = self.sizes(layer);
        self.sum(out, layer.outputs, |this, out| {
            this.operations.linear_forward([out, input], [weight, bias], added, sizes)
        })?;
        behind.map_or(Ok(()), |residual| {
            self.operations.residual(out.address(), residual, self.rows_between() * layer.outputs)
        })
    }

    /// Sums the gradients (n, `outputs`) of heads that several ranks have. Ranks with other heads contribute zeros, so one call of
    /// the whole group replaces calls of groups within it.
    pub(super) fn sum_heads(&mut self, gradient: &Activations, outputs: usize, copies: Copies) -> Result<()> {
        let count = self.rows() * copies.blocks * copies.pieces * copies.size;
        let wide = self.activations(count)?;
        let places = [wide.address(), gradient.address()];
        self.operations.heads_spread(places, [self.rows(), outputs], copies)?;
        let data = self.numbers(wide.address(), count);
        self.all_reduce(data, Join::Sum)?;
        self.operations.heads_collect([gradient.address(), wide.address()], [self.rows(), outputs], copies)?;
        self.give(wide);
        Ok(())
    }

    /// Computes the tokens' `losses` (n) from this rank's logits, and replaces the logits by their gradients. All ranks compute the
    /// same losses.
    pub(super) fn classify_share(
        &mut self,
        logits: Address,
        losses: Address,
        layer: &Classifier,
        microbatch: usize,
        weight: f32,
    ) -> Result<()> {
        let rows = self.rows();
        let (largest, local) = (self.floats(rows)?, self.floats(3 * rows)?);
        let sums = self.floats(2 * rows)?;
        let floats =
            |buffer: &Activations, count| Numbers { address: buffer.address(), count, precision: Precision::F32 };
        let targets = self.batch.targets(microbatch, self.slice);
        let sizes = [layer.first, rows, layer.vocabulary, layer.rows];
        let places = [largest.address(), local.address(), logits, targets];
        self.operations.classifier_share(places, sizes)?;
        self.all_reduce(floats(&largest, rows), Join::Largest)?;
        let places = [sums.address(), local.address(), largest.address(), targets];
        self.operations.classifier_rescale(places, sizes)?;
        self.all_reduce(floats(&sums, 2 * rows), Join::Sum)?;
        let places = [logits, losses, sums.address(), largest.address(), targets];
        self.operations.classifier_gradient(places, weight, sizes)?;
        [sums, local, largest].into_iter().for_each(|buffer| self.give(buffer));
        Ok(())
    }
}
