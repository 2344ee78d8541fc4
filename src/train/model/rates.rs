//! Measures the speed of elementary operations on a core of this machine, for a hardware file. Cores share caches, memory and power,
//! so each operation is measured on all cores at once.

use cpu_kernels::attention::{self, Operands, Shape};
use cpu_kernels::optimizer::{AdamW, ParameterGroup};
use cpu_kernels::{gelu, layernorm, linear};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// What a core reaches in float32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    pub product: Product,
    /// Bytes per second that AdamW reads and writes.
    pub update: f64,
    /// Bytes per second that operations between products read and write: a norm and an activation, forward and backward.
    pub between: f64,
    /// FLOP/s of attention in tiles, forward and backward; of a causal mask's half only.
    pub attention: [f64; 2],
    /// Bytes per second of gradients that two cores exchange: each copies its own and sums both.
    pub exchange: f64,
}

/// Model of the time of a product (rows, inner) by (inner, columns): 2 · rows · columns · inner / `speed` · (1 + `depth` / inner +
/// `rows` / rows).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// FLOP/s.
    pub speed: f64,
    /// Inner length at which writing the outputs takes as long as the computation.
    pub depth: f64,
    /// Rows at which reading the weight from memory takes as long as the computation.
    pub rows: f64,
}

/// Width of a layer.
pub const WIDTH: usize = 768;
/// Tokens of a micro-batch, for products and operations between them.
pub const TOKENS: [usize; 4] = [32, 64, 128, 256];
/// Number of measurements of each operation, after a warm-up; their median is used.
const TIMES: usize = 7;
/// Number of weights that a core uses in turn, so that no cache holds the next one, as in a stage.
const WEIGHTS: usize = 6;

/// Returns the seconds that `work` takes, which gets the number of the call; all cores of the `barrier` begin together.
fn seconds(barrier: &Barrier, mut work: impl FnMut(usize)) -> f64 {
    work(0);
    let mut one = |number| {
        barrier.wait();
        let start = Instant::now();
        work(number);
        start.elapsed().as_nanos() as u64
    };
    let mut samples: Vec<u64> = (1..=TIMES).map(&mut one).collect();
    samples.sort_unstable();
    samples[TIMES / 2].max(1) as f64 * 1e-9
}

/// Returns the seconds of the products of F, I and W, for both linear layers of an MLP, by tokens.
fn products(barrier: &Barrier, tokens: usize) -> [f64; 3] {
    let (inputs, outputs) = (WIDTH, 4 * WIDTH);
    let weights = vec![vec![0.25_f32; inputs * outputs]; WEIGHTS];
    let mut gradients = vec![vec![0.0_f32; inputs * outputs]; WEIGHTS];
    let (narrow, wide) = (vec![0.5_f32; tokens * inputs], vec![0.5_f32; tokens * outputs]);
    let (mut to_narrow, mut to_wide) = (narrow.clone(), wide.clone());
    let forward = seconds(barrier, |_| {
        for pair in weights.chunks_exact(2) {
            linear::forward_without_bias(black_box(&mut to_wide), black_box(&narrow), &pair[0], outputs);
            linear::forward_without_bias(black_box(&mut to_narrow), black_box(&wide), &pair[1], inputs);
        }
    });
    let input = seconds(barrier, |_| {
        for pair in weights.chunks_exact(2) {
            linear::backward_input(black_box(&mut to_wide), black_box(&narrow), &pair[1], inputs);
            linear::backward_input(black_box(&mut to_narrow), black_box(&wide), &pair[0], outputs);
        }
    });
    let weight = seconds(barrier, |_| {
        for pair in gradients.chunks_exact_mut(2) {
            linear::backward_weight(black_box(&mut pair[0]), &mut [], black_box(&wide), &narrow, outputs);
            linear::backward_weight(black_box(&mut pair[1]), &mut [], black_box(&narrow), &wide, inputs);
        }
    });
    [forward, input, weight].map(|took| took / (WEIGHTS / 2) as f64)
}

/// Fits the model of a product to measured ones, by least relative squares. W also reads and writes its gradients, at `traffic`
/// bytes per second.
pub fn fit(measured: &[(usize, [f64; 3])], traffic: f64) -> Product {
    let (narrow, wide) = (WIDTH as f64, 4.0 * WIDTH as f64);
    let accumulation = 2.0 * 8.0 * narrow * wide / traffic;
    let mut normal = [[0.0; 3]; 3];
    let mut right = [0.0; 3];
    for &(tokens, passes) in measured {
        let tokens = tokens as f64;
        let flops = 4.0 * tokens * narrow * wide;
        // the mean of a short and a long inner length, or of few and many rows
        let inverse = (1.0 / narrow + 1.0 / wide) / 2.0;
        let shapes = [[1.0, inverse, 1.0 / tokens], [1.0, inverse, 1.0 / tokens], [1.0, 1.0 / tokens, inverse]];
        for ((shape, took), extra) in shapes.into_iter().zip(passes).zip([0.0, 0.0, accumulation]) {
            let row = shape.map(|part| part * flops / took);
            let is = ((took - extra) / took).max(0.0);
            for i in 0..3 {
                (0..3).for_each(|j| normal[i][j] += row[i] * row[j]);
                right[i] += row[i] * is;
            }
        }
    }
    let [one, depth, rows] = least(normal, right);
    let speed = 1.0 / one.max(1e-15);
    Product { speed, depth: depth * speed, rows: rows * speed }
}

/// Solves the normal equations for numbers of at least 0, by coordinate descent.
fn least(normal: [[f64; 3]; 3], right: [f64; 3]) -> [f64; 3] {
    let mut found = [0.0; 3];
    for _ in 0..2000 {
        for i in 0..3 {
            let others: f64 = (0..3).filter(|&j| j != i).map(|j| normal[i][j] * found[j]).sum();
            found[i] = ((right[i] - others) / normal[i][i].max(f64::MIN_POSITIVE)).max(0.0);
        }
    }
    found
}

/// Returns the bytes per second of AdamW on parameters outside of all caches. It reads four numbers, writes three, and sets the
/// gradient to zero.
fn update(barrier: &Barrier) -> f64 {
    let values = vec![0.5_f32; 4 << 20];
    let mut group = ParameterGroup::new(&[&values]);
    let took = seconds(barrier, |number| {
        group.adamw(None, number as u32 + 1, &AdamW::default(), 1.0);
        group.gradients.fill(0.0);
    });
    32.0 * values.len() as f64 / took
}

/// Returns the bytes per second of a norm and an activation of a micro-batch, which each read and write a row.
fn between(barrier: &Barrier) -> f64 {
    let (rows, width) = (TOKENS[2], WIDTH);
    let (input, ones) = (vec![0.5; rows * width], vec![1.0; width]);
    let (mut out, mut statistics) = (vec![0.0; rows * width], vec![0.0; 2 * rows]);
    let mut values = input.clone();
    let took = seconds(barrier, |_| {
        for _ in 0..8 {
            layernorm::forward(black_box(&mut out), &mut statistics, black_box(&input), [&ones, &ones], 1e-5);
            gelu::forward(black_box(&mut out), black_box(&mut values), &ones);
        }
    });
    8.0 * 2.0 * 2.0 * size_of_val(&input[..]) as f64 / took
}

/// Returns the FLOP/s of attention, forward and backward, for a micro-batch of short sequences.
fn tiles(barrier: &Barrier) -> [f64; 2] {
    let shape = Shape { sequences: 1, tokens: TOKENS[2], heads: 12, groups: 12, size: WIDTH / 12 };
    let rows = shape.sequences * shape.tokens;
    let qkv = vec![0.01; rows * shape.fused()];
    let (mut out, mut log_sums) = (vec![0.0; rows * WIDTH], vec![0.0; shape.heads * rows]);
    let mut scratch = vec![0.0; attention::backward_scratch(&shape).max(attention::forward_scratch(&shape))];
    let forward =
        seconds(barrier, |_| attention::forward(&mut out, &mut log_sums, black_box(&qkv), &mut scratch, &shape));
    let gradient = vec![0.01; rows * WIDTH];
    let mut qkv_gradient = vec![0.0; qkv.len()];
    let backward = seconds(barrier, |_| {
        let operands = Operands { gradient: &gradient, qkv: &qkv, output: &out, log_sums: &log_sums };
        attention::backward(black_box(&mut qkv_gradient), operands, &mut scratch, &shape);
    });
    // queries times keys, scores times values; backward five such products for two
    let flops = 2.0 * (rows * shape.tokens * WIDTH) as f64;
    [flops / forward, 2.5 * flops / backward]
}

/// Returns the bytes per second of gradients that two cores exchange: each copies its own and sums both copies.
fn exchange(barrier: &Barrier) -> f64 {
    let own = vec![1.0_f32; 4 << 20];
    let (mut slot, other) = (own.clone(), own.clone());
    let mut sum = own.clone();
    let took = seconds(barrier, |_| {
        slot.copy_from_slice(black_box(&own));
        sum.copy_from_slice(black_box(&slot));
        cpu_kernels::vector::add(&mut sum, black_box(&other));
    });
    size_of_val(&own[..]) as f64 / took
}

/// Measures the rates on the calling thread, in some seconds. All other threads of the `barrier` must call this at the same time.
fn here(barrier: &Barrier) -> Rates {
    let update = update(barrier);
    let measured = TOKENS.map(|tokens| (tokens, products(barrier, tokens)));
    Rates {
        product: fit(&measured, update),
        update,
        between: between(barrier),
        attention: tiles(barrier),
        exchange: exchange(barrier),
    }
}

/// Measures the rates of a core with `cores` threads at once, and returns the first thread's.
pub fn rates(cores: u32) -> Rates {
    let barrier = Barrier::new(cores.max(1) as usize);
    std::thread::scope(|scope| {
        (1..cores).for_each(|_| drop(scope.spawn(|| here(&barrier))));
        here(&barrier)
    })
}
