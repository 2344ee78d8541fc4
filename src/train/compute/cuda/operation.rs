//! The model's operations on a device. Every call enqueues kernels or products on the compute stream. Shapes and formulas are in
//! the kernels' files.

use super::choices::Choices;
use super::timing::KernelTimer;
use crate::compute::AdamW;
use anyhow::Result;
use pipesim_gpu::Gpu;
use pipesim_gpu::Kernels;
use pipesim_gpu::api::{Address, Argument, Buffer, Pool};
use pipesim_gpu::attention::FusedAttention;
use pipesim_gpu::blas::Products;
use pipesim_gpu::kernel::{self, Launch, Precision};
use std::ops::Range;
use std::sync::Arc;

/// Kernels, products and temporary memory of one device.
pub(super) struct Operations {
    pub(super) gpu: Arc<Gpu>,
    pub(super) precision: Precision,
    pub(super) kernels: Arc<Kernels>,
    pub(super) products: Products,
    /// cuDNN, if it computes attention.
    pub(super) fused: Option<FusedAttention>,
    pub(super) pool: Pool,
    pub(super) timing: KernelTimer,
    pub(super) choices: Choices,
}

/// Index of one micro-batch's tokens: distinct tokens, first position of each in `order`, positions sorted by token.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenIndex {
    pub(super) ids: Address,
    pub(super) starts: Address,
    pub(super) order: Address,
    pub(super) distinct: usize,
}

/// Sizes of an attention over fused queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedShape {
    pub(super) sequences: usize,
    /// Keys per sequence; queries are those from token `first` on.
    pub(super) tokens: usize,
    pub(super) first: usize,
    pub(super) heads: usize,
    pub(super) size: usize,
}

/// Inputs of the LayerNorm's backward: (n, C), (n, C), (n, 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct NormOperands {
    pub(super) gradient: Address,
    pub(super) input: Address,
    pub(super) statistics: Address,
}

/// Operands of AdamW.
#[derive(Clone, Copy, Debug)]
pub(super) struct Updated {
    pub(super) values: Address,
    /// Copy of the values in the activations' precision, or null.
    pub(super) copy: Address,
    pub(super) gradients: Address,
    /// A second part of the gradients, or null.
    pub(super) other: Address,
    pub(super) first_moments: Address,
    pub(super) second_moments: Address,
    pub(super) count: usize,
}

pub(super) fn at(address: Address) -> Argument {
    Argument::Address(address)
}

/// A dimension, which [`super::check_kernel_sizes`] has checked to fit.
pub(super) fn int(size: usize) -> Argument {
    Argument::Int(size as i32)
}

/// Enqueues a kernel by its name, with pointers, then dimensions; `size` marks a first dimension of type `size_t`. The dimensions also
/// determine the grid.
macro_rules! launch {
    ($on:ident, $name:ident($($pointer:expr),+; $($dimension:expr),+)) => {
        $on.run(
            stringify!($name),
            kernel::$name($on.precision, $($dimension),+),
            &[$(at($pointer),)+ $(int($dimension)),+],
        )
    };
    ($on:ident, $name:ident($($pointer:expr),+; size $count:expr $(, $dimension:expr)*)) => {
        $on.run(
            stringify!($name),
            kernel::$name($on.precision, $count $(, $dimension)*),
            &[$(at($pointer),)+ Argument::Size($count) $(, int($dimension))*],
        )
    };
}

pub(super) use launch;

impl Operations {
    pub(super) fn run(&self, name: &'static str, launch: Launch, arguments: &[Argument]) -> Result<()> {
        self.timing.around(name, &self.gpu, || self.kernels.launch(&self.gpu.compute, name, launch, arguments))
    }

    /// Enqueues a product. Returns false if the library has no algorithm for it.
    pub(super) fn product(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Products) -> Result<bool>,
    ) -> Result<bool> {
        let Operations { gpu, products, timing, .. } = self;
        timing.around(name, gpu, || work(products))
    }

    /// Takes a buffer for `count` activations.
    pub(super) fn activations(&mut self, count: usize) -> Result<Buffer> {
        self.pool.take(count * self.precision.bytes(), &self.gpu.compute)
    }

    /// Takes a buffer for `count` float32 numbers.
    pub(super) fn floats(&mut self, count: usize) -> Result<Buffer> {
        self.pool.take(count * size_of::<f32>(), &self.gpu.compute)
    }

    /// Allows the attention kernels the shared memory that they need for this shape.
    pub(super) fn allow_attention(&self, shape: &FusedShape) -> Result<()> {
        let FusedShape { sequences, tokens, first, heads, size } = *shape;
        type Table = fn(Precision, usize, usize, usize, usize, usize) -> Launch;
        let tables: [(&str, Table); 3] = [
            ("attention_forward", kernel::attention_forward),
            ("attention_backward_keys", kernel::attention_backward_keys),
            ("attention_backward_queries", kernel::attention_backward_queries),
        ];
        tables.iter().try_for_each(|(name, table)| {
            self.kernels.allow(name, table(self.precision, sequences, tokens, first, heads, size))
        })?;
        if !kernel::has_wide_attention(self.precision, size) {
            return Ok(());
        }
        type WideTable = fn(Precision, usize, usize, usize, usize) -> Launch;
        let tables: [(&str, WideTable); 5] = [
            ("attention_forward_wide", kernel::attention_forward_wide),
            ("attention_backward_keys_stored", kernel::attention_backward_keys_stored),
            ("attention_backward_queries_stored", kernel::attention_backward_queries_stored),
            ("attention_backward_keys_wide", kernel::attention_backward_keys_wide),
            ("attention_backward_queries_wide", kernel::attention_backward_queries_wide),
        ];
        tables.iter().try_for_each(|(name, table)| {
            self.kernels.allow(name, table(self.precision, sequences, tokens, heads, size))
        })
    }

    /// The table by token has `held` rows and begins with the row of token `first`.
    pub(super) fn embedding_forward(
        &self,
        [out, tokens, wte, wpe]: [Address; 4],
        [n, t, c]: [usize; 3],
        [first, held]: [usize; 2],
    ) -> Result<()> {
        launch!(self, embedding_forward(out, tokens, wte, wpe; n, t, c, first, held))
    }

    pub(super) fn embedding_backward_token(
        &self,
        out: Address,
        gradient: Address,
        index: TokenIndex,
        c: usize,
        [first, held]: [usize; 2],
    ) -> Result<()> {
        let TokenIndex { ids, starts, order, distinct } = index;
        launch!(self, embedding_backward_token(out, gradient, ids, starts, order; distinct, c, first, held))
    }

    pub(super) fn embedding_backward_position(
        &self,
        [out, gradient]: [Address; 2],
        [b, t, c]: [usize; 3],
    ) -> Result<()> {
        launch!(self, embedding_backward_position(out, gradient; b, t, c))
    }

    pub(super) fn layernorm_forward(
        &self,
        [out, statistics, input]: [Address; 3],
        [weight, bias]: [Address; 2],
        [n, c]: [usize; 2],
    ) -> Result<()> {
        launch!(self, layernorm_forward(out, statistics, input, weight, bias; n, c))
    }

    /// `out` = the gradient of the input (+ `residual`, unless it is null). Returns the gradients of weight and bias, summed over
    /// groups of rows: (G, 2, C), G = [`kernel::norm_groups`].
    pub(super) fn layernorm_backward(
        &mut self,
        out: Address,
        operands: NormOperands,
        [weight, residual]: [Address; 2],
        [n, c]: [usize; 2],
    ) -> Result<Buffer> {
        let NormOperands { gradient, input, statistics } = operands;
        let groups = kernel::norm_groups(n);
        let buffer = self.floats(groups * 2 * c)?;
        let sums = buffer.address();
        if kernel::has_one_pass(c) {
            launch!(self, layernorm_backward(out, sums, gradient, input, statistics, weight, residual; n, c, groups))?;
        } else {
            launch!(self, layernorm_backward_sums(sums, gradient, input, statistics; n, c, groups))?;
            launch!(self, layernorm_backward_input(out, gradient, input, statistics, weight, residual; n, c))?;
        }
        Ok(buffer)
    }

    pub(super) fn layernorm_backward_weight(
        &self,
        [weight, bias]: [Address; 2],
        sums: Address,
        [n, c]: [usize; 2],
    ) -> Result<()> {
        launch!(self, layernorm_backward_weight(weight, bias, sums; kernel::norm_groups(n), c))
    }

    pub(super) fn rmsnorm_forward(
        &self,
        [out, statistics, input, weight]: [Address; 4],
        [n, c]: [usize; 2],
        epsilon: f32,
    ) -> Result<()> {
        let arguments = [at(out), at(statistics), at(input), at(weight), int(n), int(c), Argument::Float(epsilon)];
        self.run("rmsnorm_forward", kernel::rmsnorm_forward(self.precision, n, c), &arguments)
    }

    pub(super) fn rmsnorm_backward_input(
        &self,
        out: Address,
        operands: NormOperands,
        [weight, residual]: [Address; 2],
        [n, c]: [usize; 2],
    ) -> Result<()> {
        let NormOperands { gradient, input, statistics } = operands;
        launch!(self, rmsnorm_backward_input(out, gradient, input, statistics, weight, residual; n, c))
    }

    /// Returns the gradient of the weight, summed over groups of rows: (G, C), G = [`kernel::norm_groups`].
    pub(super) fn rmsnorm_backward_sums(&mut self, operands: NormOperands, [n, c]: [usize; 2]) -> Result<Buffer> {
        let NormOperands { gradient, input, statistics } = operands;
        let groups = kernel::norm_groups(n);
        let sums = self.floats(groups * c)?;
        launch!(self, rmsnorm_backward_sums(sums.address(), gradient, input, statistics; n, c, groups))?;
        Ok(sums)
    }

    pub(super) fn rmsnorm_backward_weight(&self, weight: Address, sums: Address, [n, c]: [usize; 2]) -> Result<()> {
        launch!(self, rmsnorm_backward_weight(weight, sums; kernel::norm_groups(n), c))
    }

    /// Rotates the first `heads` heads of `rows` in place.
    pub(super) fn heads_rotate(
        &self,
        [rows, cosines, sines]: [Address; 3],
        [n, t, heads, pairs, stride]: [usize; 5],
        backwards: bool,
    ) -> Result<()> {
        launch!(self, heads_rotate(rows, cosines, sines; n, t, heads, pairs, stride, usize::from(backwards)))
    }

    pub(super) fn heads_expand(
        &self,
        out: Address,
        fused: Address,
        [n, heads, groups, size]: [usize; 4],
    ) -> Result<()> {
        launch!(self, heads_expand(out, fused; n, heads, groups, size))
    }

    pub(super) fn heads_reduce(
        &self,
        out: Address,
        gradient: Address,
        [n, heads, groups, size]: [usize; 4],
    ) -> Result<()> {
        launch!(self, heads_reduce(out, gradient; n, heads, groups, size))
    }

    pub(super) fn swiglu_forward(&self, out: Address, values: Address, [n, width]: [usize; 2]) -> Result<()> {
        launch!(self, swiglu_forward(out, values; n, width))
    }

    /// Replaces `values` by their gradient.
    pub(super) fn swiglu_backward(&self, values: Address, gradient: Address, [n, width]: [usize; 2]) -> Result<()> {
        launch!(self, swiglu_backward(values, gradient; n, width))
    }

    /// Whether an attention takes wide tiles: of whole sequences, with enough blocks for the device.
    fn is_wide(&self, shape: &FusedShape) -> bool {
        let FusedShape { sequences, tokens, first, heads, size } = *shape;
        let blocks = kernel::wide_attention_blocks([sequences, tokens, heads]);
        let most = self.gpu.multiprocessors() as usize;
        first == 0
            && kernel::has_wide_attention(self.precision, size)
            && self.choices.wide_attention.is_some_and(|least| blocks >= least * most)
    }

    pub(super) fn attention_forward(&self, [out, log_sums, qkv]: [Address; 3], shape: &FusedShape) -> Result<()> {
        let FusedShape { sequences: b, tokens: t, first, heads, size } = *shape;
        if self.is_wide(shape) {
            return launch!(self, attention_forward_wide(out, log_sums, qkv; b, t, heads, size));
        }
        launch!(self, attention_forward(out, log_sums, qkv; b, t, first, heads, size))
    }

    /// Computes `out` (n, 3C) from the gradient of the attention's output, its operands and its output.
    pub(super) fn attention_backward(
        &mut self,
        out: Address,
        [gradient, qkv, output, log_sums]: [Address; 4],
        shape: &FusedShape,
    ) -> Result<()> {
        let buffer = self.attention_means([gradient, output], shape)?;
        self.attention_gradients(out, [gradient, qkv, log_sums, buffer.address()], shape)?;
        self.pool.give([buffer]);
        Ok(())
    }

    /// Returns the inner products (B, NH, T) of the rows of an output's heads with their gradients.
    pub(super) fn attention_means(&mut self, [gradient, output]: [Address; 2], shape: &FusedShape) -> Result<Buffer> {
        let FusedShape { sequences: b, tokens: t, heads, size, .. } = *shape;
        let means = self.floats(b * t * heads)?;
        launch!(self, attention_backward_mean(means.address(), gradient, output; b, t, heads, size))?;
        Ok(means)
    }

    /// Computes `out` (n, 3C) from the gradient of the attention's output, its operands and the means.
    pub(super) fn attention_gradients(
        &mut self,
        out: Address,
        [gradient, qkv, log_sums, means]: [Address; 4],
        shape: &FusedShape,
    ) -> Result<()> {
        let FusedShape { sequences: b, tokens: t, first, heads, size } = *shape;
        if self.is_wide(shape) {
            let at_once = kernel::stored_sequences(self.precision, [b, t, heads], size);
            if self.choices.stored_slopes && at_once > 0 {
                return self.attention_by_slopes(out, [gradient, qkv, log_sums, means], shape, at_once);
            }
            launch!(self, attention_backward_keys_wide(out, gradient, qkv, log_sums, means; b, t, heads, size))?;
            return launch!(self, attention_backward_queries_wide(out, gradient, qkv, log_sums, means; b, t, heads, size));
        }
        launch!(self, attention_backward_keys(out, gradient, qkv, log_sums, means; b, t, first, heads, size))?;
        launch!(self, attention_backward_queries(out, gradient, qkv, log_sums, means; b, t, first, heads, size))
    }

    /// The same with the slopes of `at_once` sequences in memory.
    fn attention_by_slopes(
        &mut self,
        out: Address,
        [gradient, qkv, log_sums, means]: [Address; 4],
        shape: &FusedShape,
        at_once: usize,
    ) -> Result<()> {
        let FusedShape { sequences, tokens: t, heads, size, .. } = *shape;
        let buffer = self.pool.take(kernel::slopes_bytes([at_once, t, heads]), &self.gpu.compute)?;
        let slopes = buffer.address();
        for start in (0..sequences).step_by(at_once) {
            let b = at_once.min(sequences - start);
            let (row, width) = (start * t, heads * size * self.precision.bytes());
            let [out, qkv] = [out, qkv].map(|place| place.offset(row * 3 * width));
            let gradient = gradient.offset(row * width);
            let [log_sums, means] = [log_sums, means].map(|place| place.offset(row * heads * size_of::<f32>()));
            launch!(self, attention_backward_keys_stored(out, slopes, gradient, qkv, log_sums, means; b, t, heads, size))?;
            launch!(self, attention_backward_queries_stored(out, slopes, qkv; b, t, heads, size))?;
        }
        self.pool.give([buffer]);
        Ok(())
    }

    /// Computes `losses` (n), and replaces `logits` (n, Vp) by their gradient.
    pub(super) fn classifier_forward(
        &self,
        [logits, losses, targets]: [Address; 3],
        weight: f32,
        [n, v, vp]: [usize; 3],
    ) -> Result<()> {
        let launch = kernel::classifier_forward(self.precision, n, v, vp);
        let arguments = [at(logits), at(losses), at(targets), Argument::Float(weight), int(n), int(v), int(vp)];
        self.run("classifier_forward", launch, &arguments)
    }

    pub(super) fn loss_mean(&self, out: Address, losses: Address, n: usize) -> Result<()> {
        launch!(self, loss_mean(out, losses; n))
    }

    /// `out` += `other`, float32.
    pub(super) fn add(&self, out: Address, other: Address, count: usize) -> Result<()> {
        launch!(self, add(out, other; size count))
    }

    /// `out` += `other`, activations.
    pub(super) fn residual(&self, out: Address, other: Address, count: usize) -> Result<()> {
        launch!(self, residual_forward(out, out, other; size count))
    }

    /// Converts float32 to the activations' precision.
    pub(super) fn cast(&self, out: Address, input: Address, count: usize) -> Result<()> {
        launch!(self, cast(out, input; size count))
    }

    /// Computes `out`, one double: the sum of the squares of `gradient` + `other`, of these runs of elements. `partial` holds
    /// [`MOST_NORM_GROUPS`] doubles.
    pub(super) fn squared_norm(
        &self,
        [out, partial]: [Address; 2],
        [gradient, other]: [Address; 2],
        runs: &[Range<usize>],
    ) -> Result<()> {
        let most = MOST_NORM_GROUPS / runs.len().max(1);
        let mut all = 0;
        for run in runs {
            let at = |place: Address| {
                if place == Address::NULL { place } else { place.offset(run.start * size_of::<f32>()) }
            };
            let (to, groups) = (partial.offset(all * size_of::<f64>()), norm_groups(run.len()).min(most));
            launch!(self, norm_partial(to, at(gradient), at(other); size run.len(), groups))?;
            all += groups;
        }
        launch!(self, norm_sum(out, partial; all))
    }

    /// Updates parameters. `scale` is the address of a float32 factor of the gradients, or null.
    pub(super) fn adamw_update(&self, what: &Updated, scale: Address, number: u32, hyper: &AdamW) -> Result<()> {
        let correction = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(f64::from(number)))) as f32;
        let AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } = *hyper;
        let places = [what.values, what.copy, what.gradients, what.other, what.first_moments, what.second_moments];
        let mut arguments = places.map(at).to_vec();
        arguments.extend([Argument::Size(what.count), at(scale)]);
        let numbers = [learning_rate, beta1, beta2, epsilon, weight_decay, correction(beta1), correction(beta2)];
        arguments.extend(numbers.map(Argument::Float));
        self.run("adamw_update", kernel::adamw_update(self.precision, what.count), &arguments)
    }
}

/// Number of groups in which a squared norm is summed. It depends on `count` alone, so that every device sums in the same order.
pub(super) fn norm_groups(count: usize) -> usize {
    count.div_ceil(4096).clamp(1, MOST_NORM_GROUPS)
}

/// Upper limit of [`norm_groups`].
pub(super) const MOST_NORM_GROUPS: usize = 1024;
