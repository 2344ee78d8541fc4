//! Matrix products by cuBLASLt, in the model's terms: row-major, weights (OC, IC).
//!
//! cuBLASLt is column-major. A row-major (r, c) matrix has the same bytes as a column-major (c, r) one, so every product is computed
//! transposed: outᵀ = (W inᵀ), and so on. Descriptors and algorithm of a shape are created once.

use super::api::{
    Address, Buffer, Context, Element, Epilogue, Layout, Lt, NOT_SUPPORTED, Operands, Product, ProductError, Shape,
    StreamHandle, Workspace,
};
use super::gpu::Gpu;
use super::kernel::Precision;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Size of the memory for partial sums of products, as the library recommends for the newest devices.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// The products of one shard. Their workspace is used on one stream.
pub struct Products {
    context: Arc<Context>,
    lt: Lt,
    workspace: Buffer,
    /// By shape; `None` if the library has no algorithm.
    chosen: BTreeMap<Shape, Option<Product>>,
    /// Number of multiprocessors of a slice.
    multiprocessors: Option<u32>,
    element: Element,
}

/// Sizes of a product: rows (tokens), and those of the weight.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// n
    pub rows: usize,
    /// OC
    pub outputs: usize,
    /// IC
    pub inputs: usize,
}

impl Products {
    pub fn new(gpu: &Gpu, precision: Precision) -> Result<Products> {
        gpu.make_current()?;
        let element = match precision {
            Precision::F32 => Element::F32,
            Precision::Bf16 => Element::Bf16,
        };
        Ok(Products {
            context: gpu.context().clone(),
            lt: Lt::open()?,
            workspace: Buffer::new(gpu.context(), WORKSPACE_BYTES)?,
            chosen: BTreeMap::new(),
            multiprocessors: gpu.slice().map(|_| gpu.multiprocessors()),
            element,
        })
    }

    /// Returns each product so far by its epilogue and sizes, and whether the library supports it; if not, it was computed in parts.
    pub fn asked(&self) -> Vec<(String, bool)> {
        let name = |shape: &Shape| {
            let Shape { a, d, epilogue, adds, .. } = shape;
            let inner = if shape.transposed[0] { a.rows } else { a.columns };
            let added = if *adds { " added" } else { "" };
            format!("{epilogue:?}{added}, {} x {} x {inner} to {:?}", d.columns, d.rows, d.element)
        };
        self.chosen.iter().map(|(shape, product)| (name(shape), product.is_some())).collect()
    }

    /// `out` (n, OC) = `input` (n, IC) `weight`ᵀ (+ `residual`), with an epilogue. Returns false, and enqueues nothing, if the library
    /// has no algorithm for it.
    pub fn forward(
        &mut self,
        stream: StreamHandle,
        sizes: Sizes,
        epilogue: Epilogue,
        operands: Forward,
    ) -> Result<bool> {
        let Sizes { rows, outputs, inputs } = sizes;
        let element = self.element;
        let shape = Shape {
            a: Layout { element, rows: inputs, columns: outputs },
            b: Layout { element, rows: inputs, columns: rows },
            d: Layout { element, rows: outputs, columns: rows },
            transposed: [true, false],
            adds: operands.residual.is_some(),
            epilogue,
        };
        let Forward { out, input, weight, bias, residual, kept } = operands;
        let operands = Operands { a: weight, b: input, c: residual.unwrap_or(out), d: out, bias, kept };
        self.multiply(stream, shape, operands)
    }

    /// `out` (n, IC) = `gradient` (n, OC) `weight`, with an epilogue that may read `kept` (n, IC).
    pub fn backward_input(
        &mut self,
        stream: StreamHandle,
        sizes: Sizes,
        epilogue: Epilogue,
        BackwardInput { out, gradient, weight, kept }: BackwardInput,
    ) -> Result<bool> {
        let Sizes { rows, outputs, inputs } = sizes;
        let element = self.element;
        let shape = Shape {
            a: Layout { element, rows: inputs, columns: outputs },
            b: Layout { element, rows: outputs, columns: rows },
            d: Layout { element, rows: inputs, columns: rows },
            transposed: [false, false],
            adds: false,
            epilogue,
        };
        self.multiply(stream, shape, Operands { a: weight, b: gradient, c: out, d: out, bias: Address::NULL, kept })
    }

    /// `out` (OC, IC), float32, += `gradient` (n, OC)ᵀ `input` (n, IC), and `bias` (OC), float32, = the sum of the rows of `gradient`,
    /// unless it is null.
    pub fn backward_weight(
        &mut self,
        stream: StreamHandle,
        sizes: Sizes,
        BackwardWeight { out, gradient, input, bias }: BackwardWeight,
    ) -> Result<bool> {
        let Sizes { rows, outputs, inputs } = sizes;
        let element = self.element;
        let shape = Shape {
            a: Layout { element, rows: inputs, columns: rows },
            b: Layout { element, rows: outputs, columns: rows },
            d: Layout { element: Element::F32, rows: inputs, columns: outputs },
            transposed: [false, true],
            adds: true,
            epilogue: if bias == Address::NULL { Epilogue::None } else { Epilogue::BiasGradient },
        };
        let operands = Operands { a: input, b: gradient, c: out, d: out, bias, kept: Address::NULL };
        self.multiply(stream, shape, operands)
    }

    fn multiply(&mut self, stream: StreamHandle, shape: Shape, operands: Operands) -> Result<bool> {
        let workspace = Workspace { address: self.workspace.address(), bytes: WORKSPACE_BYTES };
        if !self.chosen.contains_key(&shape) {
            let product = match self.lt.product(&shape, self.multiprocessors, workspace) {
                Ok(product) => Some(product),
                Err(error) if error.is_not_supported() => None,
                Err(error) => return Err(error).with_context(|| format!("planning the product {shape:?}")),
            };
            self.chosen.insert(shape, product);
        }
        let Some(Some(product)) = self.chosen.get(&shape) else { return Ok(false) };
        match self.lt.multiply(product, &operands, workspace, stream) {
            Ok(()) => Ok(true),
            // The product may reject what the heuristic has promised, before anything is enqueued.
            Err(ProductError::Refused { code: NOT_SUPPORTED, .. }) => {
                if let Some(Some(product)) = self.chosen.insert(shape, None) {
                    self.lt.destroy(product);
                }
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("multiplying {shape:?}")),
        }
    }
}

/// Operands of [`Products::forward`].
#[derive(Clone, Copy, Debug)]
pub struct Forward {
    pub out: Address,
    pub input: Address,
    pub weight: Address,
    /// (OC), if the epilogue has one.
    pub bias: Address,
    pub residual: Option<Address>,
    /// Where the epilogue stores GELU's input.
    pub kept: Address,
}

/// Operands of [`Products::backward_input`].
#[derive(Clone, Copy, Debug)]
pub struct BackwardInput {
    pub out: Address,
    pub gradient: Address,
    pub weight: Address,
    /// GELU's input, if the epilogue reads it.
    pub kept: Address,
}

/// Operands of [`Products::backward_weight`].
#[derive(Clone, Copy, Debug)]
pub struct BackwardWeight {
    pub out: Address,
    pub gradient: Address,
    pub input: Address,
    /// (OC), or null.
    pub bias: Address,
}

impl Drop for Products {
    fn drop(&mut self) {
        // A fault here was already reported by an earlier call.
        let _ = self.context.make_current();
        for product in std::mem::take(&mut self.chosen).into_values().flatten() {
            self.lt.destroy(product);
        }
    }
}
