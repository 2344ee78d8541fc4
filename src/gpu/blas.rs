//! Matrix products by cuBLASLt, in the model's terms: row-major, weights (OC, IC).
//!
//! cuBLASLt is column-major. A row-major (r, c) matrix has the same bytes as a column-major (c, r) one, so every product is computed
//! transposed: outᵀ = (W inᵀ), and so on. Descriptors and algorithm of a shape are created once.

use super::algorithms::{self, Choice, MOST_CANDIDATES};
use super::api::{
    Address, Buffer, Element, Epilogue, Layout, Lt, NOT_SUPPORTED, Operands, Product, ProductError, Shape, Workspace,
};
use super::compiler::digest;
use super::gpu::Gpu;
use super::kernel::Precision;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Size of the memory for partial sums of products, as the library recommends for the newest devices.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// A planned product.
struct Plan {
    product: Arc<Product>,
    /// Number of the algorithm to use.
    algorithm: usize,
    /// Whether the library has done it.
    was_done: bool,
}

/// The products of one shard, on the GPU's compute stream.
pub struct Products {
    gpu: Arc<Gpu>,
    lt: Arc<Lt>,
    workspace: Buffer,
    /// By shape; `None` if the library has no algorithm.
    chosen: BTreeMap<Shape, Option<Plan>>,
    /// Number of multiprocessors of a slice.
    multiprocessors: Option<u32>,
    element: Element,
    /// Whether algorithms come from the table of [`algorithms`], not from the library's first proposal.
    is_chosen: bool,
    /// Whether products that are not in the table are timed: their operands may then be overwritten several times.
    is_timed: bool,
}

/// Sizes of a product: rows (tokens), and the sizes of the weight.
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
    pub fn new(gpu: &Arc<Gpu>, precision: Precision) -> Result<Products> {
        gpu.make_current()?;
        let element = match precision {
            Precision::F32 => Element::F32,
            Precision::Bf16 => Element::Bf16,
        };
        Ok(Products {
            gpu: gpu.clone(),
            lt: Arc::new(Lt::open()?),
            workspace: Buffer::new(gpu.context(), WORKSPACE_BYTES)?,
            chosen: BTreeMap::new(),
            multiprocessors: gpu.slice().map(|_| gpu.multiprocessors()),
            element,
            is_chosen: !algorithms::takes_first(),
            is_timed: false,
        })
    }

    /// Begins or ends the timing of products that are new, if algorithms are timed.
    pub fn warm_up(&mut self, begins: bool) {
        self.is_timed = begins && algorithms::are_timed();
    }

    /// Plans products again, with timed algorithms or with the library's first proposals.
    pub fn choose_again(&mut self, is_timed: bool) {
        self.forget();
        (self.is_chosen, self.is_timed) = (is_timed, is_timed);
    }

    /// Takes the algorithms of the table, which may have changed, for the products so far.
    ///
    /// # Errors
    /// The library proposes others here.
    pub fn take_chosen(&mut self) -> Result<()> {
        let keys: Vec<Shape> = self.chosen.keys().copied().filter(|_| self.is_chosen).collect();
        for shape in keys {
            let name = self.name(&shape);
            if let (Some(Some(plan)), Some(choice)) = (self.chosen.get_mut(&shape), algorithms::chosen(&name)?) {
                plan.algorithm = number(&plan.product, &name, &choice)?;
                plan.was_done = false;
            }
        }
        Ok(())
    }

    /// Name of a product in the table.
    fn name(&self, shape: &Shape) -> String {
        let sides = shape.transposed.map(|transposed| if transposed { "T" } else { "N" }).concat();
        let slice = self.multiprocessors.map_or(String::new(), |count| format!(", {count} multiprocessors"));
        let (product, element, gpu) = (asked(shape), shape.a.element, &self.gpu.facts().name);
        format!("{product} {sides} of {element:?} on {gpu}{slice}")
    }

    /// Chooses the algorithm of a new product.
    fn choose(
        &self,
        shape: &Shape,
        product: &Arc<Product>,
        operands: &Operands,
        workspace: Workspace,
    ) -> Result<usize> {
        let name = self.name(shape);
        match algorithms::chosen(&name)? {
            Some(choice) => number(product, &name, &choice),
            None if self.is_timed => {
                let Some((fastest, choice)) = self.fastest(product, operands, workspace)? else { return Ok(0) };
                algorithms::choose(name, choice);
                Ok(fastest)
            }
            None => Ok(0),
        }
    }

    /// Times all candidates and returns the fastest, the first one of equals; nothing if the library rejects all. Waits.
    fn fastest(
        &self,
        product: &Arc<Product>,
        operands: &Operands,
        workspace: Workspace,
    ) -> Result<Option<(usize, Choice)>> {
        let candidates = 0..product.algorithms().count();
        let times = candidates.map(|candidate| self.time_us(product, candidate, operands, workspace));
        let times = times.collect::<Result<Vec<_>>>()?;
        let mut ranked: Vec<(usize, f64)> =
            times.iter().enumerate().filter_map(|(i, time)| Some((i, (*time)?))).collect();
        ranked.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let Some(&(fastest, _)) = ranked.first() else { return Ok(None) };
        let all: Vec<String> =
            times.iter().map(|time| time.map_or("rejected".to_string(), |time| format!("{time:.1}"))).collect();
        let why = format!("number {} of {} us", fastest + 1, all.join(", "));
        Ok(hashes(product).nth(fastest).map(|algorithm| (fastest, Choice { algorithm, why })))
    }

    /// Returns the shortest time of a product in microseconds, after a call that is not timed; nothing if the library rejects it.
    fn time_us(
        &self,
        product: &Arc<Product>,
        algorithm: usize,
        operands: &Operands,
        workspace: Workspace,
    ) -> Result<Option<f64>> {
        let compute = &self.gpu.compute;
        let mut least = f64::INFINITY;
        for call in 0..=TIMED_CALLS {
            let before = self.gpu.mark(compute)?;
            match compute.multiply(&self.lt, product, algorithm, *operands, workspace, false) {
                Err(ProductError::Refused { code: NOT_SUPPORTED, .. }) => return Ok(None),
                outcome => outcome?,
            }
            let after = self.gpu.mark(compute)?;
            compute.synchronize()?;
            if call > 0 {
                least = least.min(after.elapsed_ns(&before)? / 1e3);
            }
        }
        Ok(Some(least))
    }

    /// Returns each product so far by its epilogue and sizes, and whether the library supports it; if not, it was computed in parts.
    pub fn asked(&self) -> Vec<(String, bool)> {
        self.chosen.iter().map(|(shape, product)| (asked(shape), product.is_some())).collect()
    }

    /// `out` (n, OC) = `input` (n, IC) `weight`ᵀ (+ `residual`), with an epilogue. Returns false, and enqueues nothing, if the library
    /// has no algorithm for it.
    pub fn forward(&mut self, sizes: Sizes, epilogue: Epilogue, operands: Forward) -> Result<bool> {
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
        self.multiply(shape, operands)
    }

    /// `out` (n, IC) = `gradient` (n, OC) `weight`, with an epilogue that may read `kept` (n, IC).
    pub fn backward_input(
        &mut self,
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
        self.multiply(shape, Operands { a: weight, b: gradient, c: out, d: out, bias: Address::NULL, kept })
    }

    /// `out` (OC, IC), float32, += `gradient` (n, OC)ᵀ `input` (n, IC), and `bias` (OC), float32, = the sum of the rows of `gradient`,
    /// unless it is null.
    pub fn backward_weight(
        &mut self,
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
        self.multiply(shape, operands)
    }

    fn multiply(&mut self, shape: Shape, operands: Operands) -> Result<bool> {
        let workspace = Workspace { address: self.workspace.address(), bytes: WORKSPACE_BYTES };
        if !self.chosen.contains_key(&shape) {
            let plan = self.plan(&shape, &operands, workspace)?;
            self.chosen.insert(shape, plan);
        }
        let Some(Some(plan)) = self.chosen.get_mut(&shape) else { return Ok(false) };
        let Plan { product, algorithm, was_done } = plan;
        match self.gpu.compute.multiply(&self.lt, product, *algorithm, operands, workspace, *was_done) {
            Ok(()) => {
                *was_done = true;
                Ok(true)
            }
            // The product may reject what the heuristic has promised, before anything is enqueued.
            Err(ProductError::Refused { code: NOT_SUPPORTED, .. }) => {
                self.chosen.insert(shape, None);
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("multiplying {shape:?}")),
        }
    }

    /// Plans a product. Returns nothing if the library has no algorithm for it.
    fn plan(&self, shape: &Shape, operands: &Operands, workspace: Workspace) -> Result<Option<Plan>> {
        let candidates = if self.is_chosen { MOST_CANDIDATES } else { 1 };
        let product = match self.lt.product(shape, self.multiprocessors, candidates, workspace) {
            Ok(product) => Arc::new(product),
            Err(error) if error.is_not_supported() => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("planning the product {shape:?}")),
        };
        let algorithm = if self.is_chosen { self.choose(shape, &product, operands, workspace)? } else { 0 };
        Ok(Some(Plan { product, algorithm, was_done: false }))
    }
}

/// Timed calls of an algorithm.
const TIMED_CALLS: usize = 3;

/// Epilogue and sizes of a product, in row-major terms.
fn asked(shape: &Shape) -> String {
    let Shape { a, d, epilogue, adds, .. } = shape;
    let inner = if shape.transposed[0] { a.rows } else { a.columns };
    let added = if *adds { " added" } else { "" };
    format!("{epilogue:?}{added}, {} x {} x {inner} to {:?}", d.columns, d.rows, d.element)
}

/// Hashes of the algorithms of a product.
fn hashes(product: &Product) -> impl Iterator<Item = String> {
    product.algorithms().map(|words| digest(0, &[&format!("{words:x?}")]))
}

/// Returns the number of the algorithm that was chosen for a product.
fn number(product: &Product, name: &str, choice: &Choice) -> Result<usize> {
    let Some(number) = hashes(product).position(|hash| hash == choice.algorithm) else {
        bail!(
            "expected algorithm {} of the product {name} among the {} that cuBLASLt proposes here, found others: use the cuBLASLt and GPU of the record, on all ranks, or `products` timed",
            choice.algorithm,
            product.algorithms().count()
        );
    };
    Ok(number)
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

impl Products {
    fn forget(&mut self) {
        // A fault here was already reported by an earlier call.
        let _ = self.gpu.make_current();
        self.chosen.clear();
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.forget();
    }
}
