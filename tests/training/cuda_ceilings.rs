//! Rates of the card that the times of kernels are shares of: a copy, a product, and the host's cost of enqueueing a small piece of work.
//! With `PIPESIM_TEST_LARGE`, as `tests/gpu` sets it, at sizes that fill a GPU; without, at small sizes, whose rates mean nothing.

use super::{child, driver};
use pipesim_gpu::api::Epilogue;
use pipesim_gpu::blas::{Forward, Products, Sizes};
use pipesim_gpu::{Address, Buffer, Gpu, Pinned, Precision};
use std::sync::Arc;
use std::time::Instant;

/// Timed repetitions.
const TIMES: u32 = 10;

/// Returns the seconds of one repetition of what is enqueued on the compute stream, after one that is not timed.
fn seconds(gpu: &Gpu, mut enqueue: impl FnMut()) -> f64 {
    enqueue();
    let before = gpu.mark(&gpu.compute).unwrap();
    (0..TIMES).for_each(|_| enqueue());
    let after = gpu.mark(&gpu.compute).unwrap();
    gpu.compute.synchronize().unwrap();
    after.elapsed_ns(&before).unwrap() / 1e9 / f64::from(TIMES)
}

#[test]
fn the_cards_rates_are_measured() {
    child("ceilings::the_cards_rates_are_measured", &[], || {
        let is_large = std::env::var_os("PIPESIM_TEST_LARGE").is_some();
        let (bytes, width) = if is_large { (2 << 30, 8192) } else { (1 << 20, 64) };
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        let buffer = |bytes| Buffer::new(gpu.context(), bytes).unwrap();

        let [from, to] = [bytes, bytes].map(buffer);
        gpu.compute.clear(from.address(), bytes).unwrap();
        let copy = seconds(&gpu, || gpu.compute.copy(to.address(), from.address(), bytes).unwrap());

        // bfloat16 between 0.5 and 1 with either sign: operands of zeros take less power
        let mut word = 1_u32;
        let values: Vec<u16> = (0..width * width)
            .map(|_| {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                0x3f00 | (word >> 25) as u16 | (word >> 16 & 0x8000) as u16
            })
            .collect();
        let mut pinned = Pinned::new(gpu.context(), 2 * values.len()).unwrap();
        pinned.write(0, &values);
        let [input, weight, out] = [(); 3].map(|()| buffer(2 * values.len()));
        for operand in [&input, &weight] {
            gpu.compute.upload(operand.address(), &pinned, 0..pinned.bytes()).unwrap();
        }
        let mut products = Products::new(&gpu, Precision::Bf16).unwrap();
        let operands = Forward {
            out: out.address(),
            input: input.address(),
            weight: weight.address(),
            bias: Address::NULL,
            residual: None,
            kept: Address::NULL,
        };
        let sizes = Sizes { rows: width, outputs: width, inputs: width };
        let product = seconds(&gpu, || assert!(products.forward(sizes, Epilogue::None, operands).unwrap()));

        let begin = Instant::now();
        (0..500).for_each(|_| gpu.compute.clear(out.address(), 4).unwrap());
        let enqueue = begin.elapsed().as_secs_f64() / 500.0;
        gpu.compute.synchronize().unwrap();

        println!("\nceiling rates of the card"); // a harness puts its own words in front of the first line
        println!("ceiling copy {:.1} GB/s", 2.0 * bytes as f64 / copy / 1e9);
        println!("ceiling product {:.3} TFLOP/s", 2.0 * (width as f64).powi(3) / product / 1e12);
        println!("ceiling enqueue {:.2} us", enqueue * 1e6);
        assert!(copy > 0.0 && product > 0.0);
    });
}
