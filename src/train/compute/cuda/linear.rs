//! Linear layers on a device: cuBLASLt's products, with as much in their epilogues as it supports, and kernels for the rest.

use super::operation::{Operations, at, int, launch};
use anyhow::{Result, bail};
use pipesim_gpu::api::{Address, Argument, Epilogue};
use pipesim_gpu::blas::{BackwardInput, BackwardWeight, Forward, Sizes};
use pipesim_gpu::kernel::{self, Precision};

/// Names of products among timed kernels.
const FORWARD: &str = "product forward";
const INPUT: &str = "product backward for the input";
const WEIGHT: &str = "product backward for the weights";

impl Operations {
    /// `out` = `input` `weight`ᵀ + `bias` (+ `residual`). `bias` may be null.
    pub(super) fn linear_forward(
        &mut self,
        [out, input]: [Address; 2],
        [weight, bias]: [Address; 2],
        residual: Option<Address>,
        sizes: Sizes,
    ) -> Result<()> {
        let epilogue = if bias == Address::NULL { Epilogue::None } else { Epilogue::Bias };
        let operands = Forward { out, input, weight, bias, residual, kept: Address::NULL };
        if self.product(FORWARD, |products| products.forward(sizes, epilogue, operands))? {
            return Ok(());
        }
        if let Some(residual) = residual {
            let operands = Forward { residual: None, ..operands };
            if self.product(FORWARD, |products| products.forward(sizes, epilogue, operands))? {
                return self.residual(out, residual, sizes.rows * sizes.outputs);
            }
        }
        unsupported("forward", sizes)
    }

    /// `out` = gelu(`kept`), `kept` = `input` `weight`ᵀ + `bias`. In bfloat16 one product computes both if possible.
    pub(super) fn linear_gelu_forward(
        &mut self,
        [out, kept, input]: [Address; 3],
        [weight, bias]: [Address; 2],
        sizes: Sizes,
    ) -> Result<()> {
        let operands = Forward { out, input, weight, bias, residual: None, kept };
        if self.precision == Precision::Bf16
            && sizes.outputs.is_multiple_of(KEPT_STRIDE)
            && self.product(FORWARD, |products| products.forward(sizes, Epilogue::BiasGelu, operands))?
        {
            return Ok(());
        }
        self.linear_forward([kept, input], [weight, bias], None, sizes)?;
        launch!(self, gelu_forward(out, kept; size sizes.rows * sizes.outputs))
    }

    /// `out` (n, IC) = `gradient` (n, OC) `weight`
    pub(super) fn linear_backward_input(&mut self, [out, gradient, weight]: [Address; 3], sizes: Sizes) -> Result<()> {
        let operands = BackwardInput { out, gradient, weight, kept: Address::NULL };
        let none = Epilogue::None;
        match self.product(INPUT, |products| products.backward_input(sizes, none, operands))? {
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
        let operands = BackwardInput { out, gradient, weight, kept };
        if self.precision == Precision::Bf16
            && sizes.inputs.is_multiple_of(KEPT_STRIDE)
            && self.product(INPUT, |products| products.backward_input(sizes, Epilogue::GeluBackward, operands))?
        {
            return Ok(());
        }
        self.linear_backward_input([out, gradient, weight], sizes)?;
        // In place: `out` times the derivative of GELU at `kept`.
        launch!(self, gelu_backward_input(out, out, kept; size sizes.rows * sizes.inputs))
    }

    /// `weight` (OC, IC) += `gradient`ᵀ `input`; `bias` (OC) += column sums of `gradient`, unless it is null.
    pub(super) fn linear_backward_weight(
        &mut self,
        [weight, bias]: [Address; 2],
        [gradient, input]: [Address; 2],
        sizes: Sizes,
    ) -> Result<()> {
        let operands = BackwardWeight { out: weight, gradient, input, bias: Address::NULL };
        let in_product = bias != Address::NULL && self.choices.bias_in_products;
        if in_product && self.linear_backward_both(bias, operands, sizes)? {
            return Ok(());
        }
        if !self.product(WEIGHT, |products| products.backward_weight(sizes, operands))? {
            return unsupported("backward for the weights", sizes);
        }
        if bias == Address::NULL { Ok(()) } else { self.bias_backward(bias, gradient, sizes) }
    }

    /// The gradients of weight and bias by one product. Returns false if the library has no algorithm for it.
    fn linear_backward_both(&mut self, bias: Address, operands: BackwardWeight, sizes: Sizes) -> Result<bool> {
        let sums = self.floats(sizes.outputs)?;
        let operands = BackwardWeight { bias: sums.address(), ..operands };
        let is_done = self.product(WEIGHT, |products| products.backward_weight(sizes, operands))?;
        if is_done {
            self.add(bias, sums.address(), sizes.outputs)?;
        }
        self.pool.give([sums]);
        Ok(is_done)
    }

    /// `bias` (OC) += the column sums of `gradient` (n, OC).
    fn bias_backward(&mut self, bias: Address, gradient: Address, sizes: Sizes) -> Result<()> {
        let Sizes { rows, outputs, .. } = sizes;
        let groups = kernel::bias_groups(rows);
        let sums = self.floats(groups * outputs)?;
        launch!(self, bias_backward_sums(sums.address(), gradient; rows, outputs, groups))?;
        launch!(self, bias_backward_weight(bias, sums.address(); groups, outputs))?;
        self.pool.give([sums]);
        Ok(())
    }
}

/// Required multiple of the row length of GELU's kept input, in elements: see `CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`.
const KEPT_STRIDE: usize = 8;

fn unsupported(what: &str, sizes: Sizes) -> Result<()> {
    bail!(
        "expected cuBLASLt to support the {what} of {sizes:?}, found no algorithm: choose channels that are a multiple of 8, or \
         float32"
    )
}
