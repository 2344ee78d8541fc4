//! The model's operations on a device: every call enqueues a kernel or a product on the compute stream. Shapes and formulas
//! stand in the kernels' files.

use super::api::handle::Address;
use super::api::products::Epilogue;
use super::api::stream::Argument;
use super::blas::{Forward, Products, Sizes};
use super::code::Kernels;
use super::gpu::Gpu;
use super::kernel::{self, Launch, Precision};
use super::memory::{Buffer, Pool};
use crate::model::{AdamW, Shape};
use anyhow::{Context as _, Result, bail};
use std::sync::Arc;

/// What computes on one device: kernels, products, and the memory that comes and goes.
pub(super) struct Operations {
    pub(super) gpu: Arc<Gpu>,
    pub(super) precision: Precision,
    pub(super) kernels: Kernels,
    pub(super) products: Products,
    pub(super) pool: Pool,
}

/// What the LayerNorm's backward reads: (n, C), (n, C), (n, 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct NormOperands {
    pub(super) gradient: Address,
    pub(super) input: Address,
    pub(super) statistics: Address,
}

/// What AdamW works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Updated {
    pub(super) values: Address,
    /// In the activations' precision, or null.
    pub(super) copy: Address,
    pub(super) gradients: Address,
    /// A second part of the gradients, or null.
    pub(super) other: Address,
    pub(super) first_moments: Address,
    pub(super) second_moments: Address,
    pub(super) count: usize,
}

fn at(address: Address) -> Argument {
    Argument::Address(address)
}

/// A dimension; [`super::shard::Shard::new`] made sure that all fit.
fn int(size: usize) -> Argument {
    Argument::Int(size as i32)
}

impl Operations {
    fn run(&self, name: &'static str, launch: Launch, arguments: &[Argument]) -> Result<()> {
        let kernel = self.kernels.get(name);
        self.gpu.compute.launch(kernel, launch, arguments).with_context(|| format!("launching {name} as {launch:?}"))
    }

    /// A buffer for so many activations.
    pub(super) fn activations(&mut self, count: usize) -> Result<Buffer> {
        self.pool.take(count * self.precision.bytes())
    }

    /// A buffer for so many float32.
    pub(super) fn floats(&mut self, count: usize) -> Result<Buffer> {
        self.pool.take(count * size_of::<f32>())
    }

    /// Lets the attention kernels use the shared memory that they need for this shape.
    pub(super) fn allow_attention(&self, shape: &Shape) -> Result<()> {
        let Shape { sequences, tokens, heads, .. } = *shape;
        type Table = fn(Precision, usize, usize, usize, usize) -> Launch;
        let tables: [(&str, Table); 3] = [
            ("attention_forward", kernel::attention_forward),
            ("attention_backward_keys", kernel::attention_backward_keys),
            ("attention_backward_queries", kernel::attention_backward_queries),
        ];
        let size = shape.head_size();
        tables.iter().try_for_each(|(name, table)| {
            self.kernels.allow(name, table(self.precision, sequences, tokens, heads, size))
        })
    }

    pub(super) fn embedding_forward(&self, [out, tokens, wte, wpe]: [Address; 4], shape: &Shape) -> Result<()> {
        let (n, t, c) = (shape.rows(), shape.tokens, shape.channels);
        let launch = kernel::embedding_forward(self.precision, n, t, c);
        self.run("embedding_forward", launch, &[at(out), at(tokens), at(wte), at(wpe), int(n), int(t), int(c)])
    }

    pub(super) fn embedding_backward_token(
        &self,
        [out, gradient, ids, starts, order]: [Address; 5],
        distinct: usize,
        c: usize,
    ) -> Result<()> {
        let launch = kernel::embedding_backward_token(self.precision, distinct, c);
        let arguments = [at(out), at(gradient), at(ids), at(starts), at(order), int(distinct), int(c)];
        self.run("embedding_backward_token", launch, &arguments)
    }

    pub(super) fn embedding_backward_position(&self, [out, gradient]: [Address; 2], shape: &Shape) -> Result<()> {
        let (b, t, c) = (shape.sequences, shape.tokens, shape.channels);
        let launch = kernel::embedding_backward_position(self.precision, b, t, c);
        self.run("embedding_backward_position", launch, &[at(out), at(gradient), int(b), int(t), int(c)])
    }

    pub(super) fn layernorm_forward(
        &self,
        [out, statistics, input]: [Address; 3],
        [weight, bias]: [Address; 2],
        [n, c]: [usize; 2],
    ) -> Result<()> {
        let launch = kernel::layernorm_forward(self.precision, n, c);
        let arguments = [at(out), at(statistics), at(input), at(weight), at(bias), int(n), int(c)];
        self.run("layernorm_forward", launch, &arguments)
    }

    pub(super) fn layernorm_backward_input(
        &self,
        out: Address,
        operands: NormOperands,
        [weight, residual]: [Address; 2],
        [n, c]: [usize; 2],
    ) -> Result<()> {
        let NormOperands { gradient, input, statistics } = operands;
        let launch = kernel::layernorm_backward_input(self.precision, n, c);
        let arguments = [at(out), at(gradient), at(input), at(statistics), at(weight), at(residual), int(n), int(c)];
        self.run("layernorm_backward_input", launch, &arguments)
    }

    /// Gradients of weight and bias, summed over groups of rows: (G, 2, C), G = [`kernel::layernorm_groups`].
    pub(super) fn layernorm_backward_sums(&mut self, operands: NormOperands, [n, c]: [usize; 2]) -> Result<Buffer> {
        let NormOperands { gradient, input, statistics } = operands;
        let groups = kernel::layernorm_groups(n);
        let sums = self.floats(groups * 2 * c)?;
        let launch = kernel::layernorm_backward_sums(self.precision, n, c, groups);
        let partial = at(sums.address());
        let arguments = [partial, at(gradient), at(input), at(statistics), int(n), int(c), int(groups)];
        self.run("layernorm_backward_sums", launch, &arguments)?;
        Ok(sums)
    }

    pub(super) fn layernorm_backward_weight(
        &self,
        [weight, bias]: [Address; 2],
        sums: &Buffer,
        [n, c]: [usize; 2],
    ) -> Result<()> {
        let groups = kernel::layernorm_groups(n);
        let launch = kernel::layernorm_backward_weight(self.precision, groups, c);
        let arguments = [at(weight), at(bias), at(sums.address()), int(groups), int(c)];
        self.run("layernorm_backward_weight", launch, &arguments)
    }

    pub(super) fn attention_forward(&self, [out, log_sums, qkv]: [Address; 3], shape: &Shape) -> Result<()> {
        let Shape { sequences: b, tokens: t, heads, .. } = *shape;
        let size = shape.head_size();
        let launch = kernel::attention_forward(self.precision, b, t, heads, size);
        let arguments = [at(out), at(log_sums), at(qkv), int(b), int(t), int(heads), int(size)];
        self.run("attention_forward", launch, &arguments)
    }

    /// `out` (n, 3C) from the gradient of the attention's output, its operands and its output.
    pub(super) fn attention_backward(
        &mut self,
        out: Address,
        [gradient, qkv, output, log_sums]: [Address; 4],
        shape: &Shape,
    ) -> Result<()> {
        let Shape { sequences: b, tokens: t, heads, .. } = *shape;
        let (size, precision) = (shape.head_size(), self.precision);
        let sizes = [int(b), int(t), int(heads), int(size)];
        let means = self.floats(shape.rows() * heads)?;
        let launch = kernel::attention_backward_mean(precision, b, t, heads, size);
        let arguments = [&[at(means.address()), at(gradient), at(output)][..], &sizes].concat();
        self.run("attention_backward_mean", launch, &arguments)?;
        let operands = [at(out), at(gradient), at(qkv), at(log_sums), at(means.address())];
        let arguments = [&operands[..], &sizes].concat();
        let launch = kernel::attention_backward_keys(precision, b, t, heads, size);
        self.run("attention_backward_keys", launch, &arguments)?;
        let launch = kernel::attention_backward_queries(precision, b, t, heads, size);
        self.run("attention_backward_queries", launch, &arguments)?;
        self.pool.give([means]);
        Ok(())
    }

    fn gelu_forward(&self, out: Address, input: Address, count: usize) -> Result<()> {
        let launch = kernel::gelu_forward(self.precision, count);
        self.run("gelu_forward", launch, &[at(out), at(input), Argument::Size(count)])
    }

    /// In place: `gradient` times the derivative of GELU at `input`.
    fn gelu_backward_input(&self, gradient: Address, input: Address, count: usize) -> Result<()> {
        let launch = kernel::gelu_backward_input(self.precision, count);
        let arguments = [at(gradient), at(gradient), at(input), Argument::Size(count)];
        self.run("gelu_backward_input", launch, &arguments)
    }

    fn residual_forward(&self, out: Address, [a, b]: [Address; 2], count: usize) -> Result<()> {
        let launch = kernel::residual_forward(self.precision, count);
        self.run("residual_forward", launch, &[at(out), at(a), at(b), Argument::Size(count)])
    }

    /// `logits` (n, Vp) become their gradient; `losses` (n).
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
        self.run("loss_mean", kernel::loss_mean(self.precision, n), &[at(out), at(losses), int(n)])
    }

    /// `out` += `other`, float32.
    pub(super) fn add(&self, out: Address, other: Address, count: usize) -> Result<()> {
        let launch = kernel::add(self.precision, count);
        self.run("add", launch, &[at(out), at(other), Argument::Size(count)])
    }

    /// float32 to the activations' precision.
    pub(super) fn cast(&self, out: Address, input: Address, count: usize) -> Result<()> {
        let launch = kernel::cast(self.precision, count);
        self.run("cast", launch, &[at(out), at(input), Argument::Size(count)])
    }

    /// `out`, one double: the sum of the squares of `gradient` + `other`; `partial` has room for [`norm_groups`] doubles.
    pub(super) fn squared_norm(
        &self,
        [out, partial]: [Address; 2],
        [gradient, other]: [Address; 2],
        count: usize,
    ) -> Result<()> {
        let groups = norm_groups(count);
        let launch = kernel::norm_partial(self.precision, count, groups);
        let arguments = [at(partial), at(gradient), at(other), Argument::Size(count), int(groups)];
        self.run("norm_partial", launch, &arguments)?;
        let launch = kernel::norm_sum(self.precision, groups);
        self.run("norm_sum", launch, &[at(out), at(partial), int(groups)])
    }

    /// `scale` is the place of a float32 that gradients are multiplied by, or null.
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

    /// `out` = `input` `weight`ᵀ + `bias` (+ `residual`); no bias where it is null.
    pub(super) fn linear_forward(
        &mut self,
        [out, input]: [Address; 2],
        [weight, bias]: [Address; 2],
        residual: Option<Address>,
        sizes: Sizes,
    ) -> Result<()> {
        let stream = self.gpu.compute.handle;
        let epilogue = if bias == Address::NULL { Epilogue::None } else { Epilogue::Bias };
        let operands = Forward { out, input, weight, bias, residual, kept: Address::NULL };
        if self.products.forward(stream, sizes, epilogue, operands)? {
            return Ok(());
        }
        if let Some(residual) = residual {
            let operands = Forward { residual: None, ..operands };
            if self.products.forward(stream, sizes, epilogue, operands)? {
                return self.residual_forward(out, [out, residual], sizes.rows * sizes.outputs);
            }
        }
        unsupported("forward", sizes)
    }

    /// `out` = gelu(`kept`), `kept` = `input` `weight`ᵀ + `bias`. In bfloat16 one product does both where it can.
    pub(super) fn linear_gelu_forward(
        &mut self,
        [out, kept, input]: [Address; 3],
        [weight, bias]: [Address; 2],
        sizes: Sizes,
    ) -> Result<()> {
        let operands = Forward { out, input, weight, bias, residual: None, kept };
        if self.precision == Precision::Bf16
            && sizes.outputs.is_multiple_of(KEPT_STRIDE)
            && self.products.forward(self.gpu.compute.handle, sizes, Epilogue::BiasGelu, operands)?
        {
            return Ok(());
        }
        self.linear_forward([kept, input], [weight, bias], None, sizes)?;
        self.gelu_forward(out, kept, sizes.rows * sizes.outputs)
    }

    /// `out` (n, IC) = `gradient` (n, OC) `weight`
    pub(super) fn linear_backward_input(&mut self, [out, gradient, weight]: [Address; 3], sizes: Sizes) -> Result<()> {
        let places = [out, gradient, weight, Address::NULL];
        match self.products.backward_input(self.gpu.compute.handle, sizes, Epilogue::None, places)? {
            true => Ok(()),
            false => unsupported("backward for the input", sizes),
        }
    }

    /// `out` (n, IC) = `gradient` (n, OC) `weight`, times the derivative of GELU at `kept` (n, IC).
    pub(super) fn linear_gelu_backward_input(
        &mut self,
        [out, gradient, weight, kept]: [Address; 4],
        sizes: Sizes,
    ) -> Result<()> {
        let (places, stream) = ([out, gradient, weight, kept], self.gpu.compute.handle);
        if self.precision == Precision::Bf16
            && sizes.inputs.is_multiple_of(KEPT_STRIDE)
            && self.products.backward_input(stream, sizes, Epilogue::GeluBackward, places)?
        {
            return Ok(());
        }
        self.linear_backward_input([out, gradient, weight], sizes)?;
        self.gelu_backward_input(out, kept, sizes.rows * sizes.inputs)
    }

    /// `weight` (OC, IC) += `gradient`ᵀ `input`; `bias` (OC) += column sums of `gradient`, unless it is null.
    pub(super) fn linear_backward_weight(
        &mut self,
        [weight, bias]: [Address; 2],
        [gradient, input]: [Address; 2],
        sizes: Sizes,
    ) -> Result<()> {
        if !self.products.backward_weight(self.gpu.compute.handle, sizes, [weight, gradient, input])? {
            return unsupported("backward for the weights", sizes);
        }
        if bias == Address::NULL {
            return Ok(());
        }
        let launch = kernel::bias_backward_weight(self.precision, sizes.rows, sizes.outputs);
        let arguments = [at(bias), at(gradient), int(sizes.rows), int(sizes.outputs)];
        self.run("bias_backward_weight", launch, &arguments)
    }
}

/// Rows of what the GELU epilogues keep must be multiples of so many elements: cuBLASLt's documentation of
/// `CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`.
const KEPT_STRIDE: usize = 8;

/// Groups that a squared norm over so many elements is summed in: from the count alone, so that every device sums alike.
pub(super) fn norm_groups(count: usize) -> usize {
    count.div_ceil(4096).clamp(1, MOST_NORM_GROUPS)
}

/// Most groups of [`norm_groups`].
pub(super) const MOST_NORM_GROUPS: usize = 1024;

fn unsupported(what: &str, sizes: Sizes) -> Result<()> {
    bail!(
        "expected cuBLASLt to do the {what} of {sizes:?}, found no algorithm: choose channels that are a multiple of 8, or \
         float32"
    )
}
