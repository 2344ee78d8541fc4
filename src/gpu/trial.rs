//! Tries one kernel and one matrix product on a GPU, for a diagnosis: a library that opens may still fail to run.

use crate::api::{Argument, Buffer, Epilogue, Image, Nvrtc, Pinned};
use crate::blas::{Forward, Products, Sizes};
use crate::kernel::{self, Precision};
use crate::{Address, Gpu};
use anyhow::{Context as _, Result, ensure};
use std::sync::Arc;

/// Rows and columns of the matrices.
const SIZE: usize = 32;

/// The larger of two arrays' elements. It has the name of one of the program's kernels.
const TEXT: &str = "extern \"C\" __global__ void maximum_f32(float* out, const float* other, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (size_t)blockDim.x)
        out[i] = fmaxf(out[i], other[i]); }";

/// Compiles, loads and launches a kernel, and checks its result.
///
/// # Errors
/// The compiler or the driver fails, or the result is wrong.
pub fn try_kernel(gpu: &Arc<Gpu>) -> Result<()> {
    let image = Nvrtc::load()?.compile(TEXT, &["--gpu-architecture=compute_80".to_string()], Image::Ptx)?;
    gpu.make_current()?;
    let api = gpu.context().api;
    let module = api.load_module(&image).context("loading a kernel")?;
    let launched = || -> Result<Vec<f32>> {
        let function = api.function(module, c"maximum_f32")?;
        let [out, other] = [upload(gpu, |i| i as f32)?, upload(gpu, |i| 500.0 - i as f32)?];
        let count = SIZE * SIZE;
        let arguments = [Argument::Address(out.address()), Argument::Address(other.address()), Argument::Size(count)];
        gpu.compute.launch(function, kernel::maximum(Precision::F32, count), &arguments)?;
        download(gpu, &out)
    };
    let found = launched();
    api.unload_module(module)?;
    check(&found?, |i| (i as f32).max(500.0 - i as f32), "a kernel")
}

/// Multiplies a matrix by twice the identity, and checks the result.
///
/// # Errors
/// The library or the driver fails, or the result is wrong.
pub fn try_product(gpu: &Arc<Gpu>) -> Result<()> {
    let mut products = Products::new(gpu, Precision::F32)?;
    let weight = upload(gpu, |i| if i / SIZE == i % SIZE { 2.0 } else { 0.0 })?;
    let [input, out] = [upload(gpu, |i| i as f32)?, upload(gpu, |_| 0.0)?];
    let sizes = Sizes { rows: SIZE, outputs: SIZE, inputs: SIZE };
    let operands = Forward {
        out: out.address(),
        input: input.address(),
        weight: weight.address(),
        bias: Address::NULL,
        residual: None,
        kept: Address::NULL,
    };
    let done = products.forward(sizes, Epilogue::None, operands)?;
    ensure!(done, "expected cuBLASLt to multiply {SIZE} x {SIZE} matrices, found no algorithm");
    check(&download(gpu, &out)?, |i| 2.0 * i as f32, "a product")
}

fn upload(gpu: &Gpu, value: impl Fn(usize) -> f32) -> Result<Buffer> {
    let values: Vec<f32> = (0..SIZE * SIZE).map(value).collect();
    let buffer = Buffer::new(gpu.context(), size_of_val(&values[..]))?;
    let mut pinned = Pinned::new(gpu.context(), buffer.bytes())?;
    pinned.write(0, &values);
    gpu.compute.upload(buffer.address(), &pinned, 0..buffer.bytes())?;
    gpu.compute.synchronize()?;
    Ok(buffer)
}

fn download(gpu: &Gpu, buffer: &Buffer) -> Result<Vec<f32>> {
    let (mut values, pinned) = (vec![0.0; SIZE * SIZE], Pinned::new(gpu.context(), buffer.bytes())?);
    gpu.compute.download(&pinned, 0..buffer.bytes(), buffer.address())?;
    gpu.compute.synchronize()?;
    pinned.read(0, &mut values);
    Ok(values)
}

fn check(found: &[f32], expected: impl Fn(usize) -> f32, what: &str) -> Result<()> {
    let wrong = found.iter().enumerate().find(|&(i, &value)| value.to_bits() != expected(i).to_bits());
    let Some((i, value)) = wrong else { return Ok(()) };
    anyhow::bail!("expected {} from element {i} of {what}, found {value}", expected(i))
}
