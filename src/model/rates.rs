//! How fast the elementary things are on one core of this machine, measured by the clock: what a table of hardware holds.

use cpu_kernels::attention::{self, Operands, Shape};
use cpu_kernels::{gelu, layernorm, linear};
use std::hint::black_box;
use std::time::Instant;

/// What a core reaches in float32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// FLOP/s of a product of large matrices.
    pub product: f64,
    /// FLOP/s of products with shorter inner lengths: the length, and what is reached.
    pub thin: [(usize, f64); 2],
    /// Bytes a second of a copy, read and written.
    pub copy: f64,
    /// Bytes a second, read and written, of operations between products: a norm and an activation, forward.
    pub between: f64,
    /// FLOP/s of attention in tiles, forward and backward; of a causal mask's half only.
    pub attention: [f64; 2],
}

/// Rows and columns of the large matrices.
const SIDE: usize = 768;
/// Times that each thing is measured, after once unmeasured; the least counts, for what others take of a core is not the machine's.
const TIMES: usize = 9;

/// Seconds that `work` takes.
fn seconds(mut work: impl FnMut()) -> f64 {
    work();
    let mut one = || {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as u64
    };
    (0..TIMES).map(|_| one()).min().unwrap_or(1).max(1) as f64 * 1e-9
}

/// FLOP/s of a product (rows, inner) by (inner, columns).
fn product(rows: usize, columns: usize, inner: usize) -> f64 {
    let (input, weight) = (vec![0.5; rows * inner], vec![0.25; columns * inner]);
    let mut out = vec![0.0; rows * columns];
    let took = seconds(|| linear::forward_without_bias(black_box(&mut out), black_box(&input), &weight, columns));
    2.0 * (rows * columns * inner) as f64 / took
}

/// Bytes a second of a copy that no cache holds.
fn copy() -> f64 {
    let from = vec![1.0_f32; 16 << 20];
    let mut to = vec![0.0_f32; from.len()];
    2.0 * size_of_val(&from[..]) as f64 / seconds(|| black_box(&mut to).copy_from_slice(black_box(&from)))
}

/// Bytes a second of a norm and an activation, a row of either read and written.
fn between() -> f64 {
    let (rows, width) = (1 << 10, SIDE);
    let (input, ones) = (vec![0.5; rows * width], vec![1.0; width]);
    let (mut out, mut statistics) = (vec![0.0; rows * width], vec![0.0; 2 * rows]);
    let mut values = input.clone();
    let took = seconds(|| {
        layernorm::forward(black_box(&mut out), &mut statistics, black_box(&input), [&ones, &ones], 1e-5);
        gelu::forward(black_box(&mut out), black_box(&mut values), &ones);
    });
    2.0 * 2.0 * size_of_val(&input[..]) as f64 / took
}

/// FLOP/s of attention, forward and backward.
fn tiles() -> [f64; 2] {
    let shape = Shape { sequences: 1, tokens: 512, heads: 12, groups: 12, size: SIDE / 12 };
    let rows = shape.sequences * shape.tokens;
    let qkv = vec![0.01; rows * shape.fused()];
    let (mut out, mut log_sums) = (vec![0.0; rows * SIDE], vec![0.0; shape.heads * rows]);
    let mut scratch = vec![0.0; attention::backward_scratch(&shape).max(attention::forward_scratch(&shape))];
    let forward = seconds(|| attention::forward(&mut out, &mut log_sums, black_box(&qkv), &mut scratch, &shape));
    let gradient = vec![0.01; rows * SIDE];
    let mut qkv_gradient = vec![0.0; qkv.len()];
    let backward = seconds(|| {
        let operands = Operands { gradient: &gradient, qkv: &qkv, output: &out, log_sums: &log_sums };
        attention::backward(black_box(&mut qkv_gradient), operands, &mut scratch, &shape);
    });
    // queries times keys, scores times values; backward five such products for two
    let flops = 2.0 * (rows * shape.tokens * SIDE) as f64;
    [flops / forward, 2.5 * flops / backward]
}

/// Measures them on the core that this thread runs on: some seconds.
pub fn rates() -> Rates {
    Rates {
        product: product(SIDE, SIDE, SIDE),
        thin: [16, 64].map(|inner| (inner, product(SIDE, SIDE, inner))),
        copy: copy(),
        between: between(),
        attention: tiles(),
    }
}
