//! Where the time of a training step goes, by operation, on one core: a GPT-2 with random weights, micro-batches of one
//! sequence, all of it through this crate's kernels in the order of `pipesim`'s trainer (forward, backward for the input,
//! backward for the weights; AdamW at the end).
//!
//!     cargo run --release -p pipesim-cpu-kernels --example step -- [--blocks 6] [--heads 6] [--channels 384]
//!         [--vocabulary 257] [--seq 128] [--micro 8] [--steps 6] [--json]
//!         [--instructions avx2]
//!
//! Of each call the least of all steps counts. The share is the step's rate, by its matrix products' FLOP, over that of the best
//! large product on the same core. On a machine that others use, too, compare the processor's time.

use cpu_kernels::attention::Shape;
use cpu_kernels::instructions::Instructions;
use cpu_kernels::matrix::{Matrix, MatrixMut};
use cpu_kernels::optimizer::{AdamW, ParameterGroup};
use cpu_kernels::product::{add_product, set_product};
use cpu_kernels::{attention, embedding, gelu, layernorm, linear, loss};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

/// Sizes of the model and of a step.
#[derive(Clone, Copy)]
struct Sizes {
    layers: usize,
    heads: usize,
    channels: usize,
    vocabulary: usize,
    tokens: usize,
    micro: usize,
    steps: usize,
}

/// Operation, nanoseconds and FLOP of each timed call of a step. Every step makes the same calls in the same order.
#[derive(Default)]
struct Profile {
    calls: Vec<(&'static str, u64, f64)>,
}

impl Profile {
    fn time<R>(&mut self, operation: &'static str, flops: f64, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.calls.push((operation, start.elapsed().as_nanos() as u64, flops));
        result
    }

    /// Keeps the shorter time of each call.
    fn least(&mut self, other: &Profile) {
        for (mine, other) in self.calls.iter_mut().zip(&other.calls) {
            mine.1 = mine.1.min(other.1);
        }
    }

    /// Nanoseconds and FLOP by operation.
    fn operations(&self) -> BTreeMap<&'static str, (u64, f64)> {
        let mut operations = BTreeMap::<_, (u64, f64)>::new();
        for &(operation, ns, flops) in &self.calls {
            let entry = operations.entry(operation).or_default();
            *entry = (entry.0 + ns, entry.1 + flops);
        }
        operations
    }
}

/// Nanoseconds that this thread has been running, without those that others took; 0 where the system does not say.
fn thread_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// What a block's forward leaves behind.
struct Saved {
    input: Vec<f32>,
    ln1: Vec<f32>,
    ln1_statistics: Vec<f32>,
    qkv: Vec<f32>,
    attention: Vec<f32>,
    log_sums: Vec<f32>,
    middle: Vec<f32>,
    ln2: Vec<f32>,
    ln2_statistics: Vec<f32>,
    fc: Vec<f32>,
    gelu: Vec<f32>,
}

/// Gradients that a block's backward for the input leaves for the one for the weights.
struct Gradients {
    qkv: Vec<f32>,
    middle: Vec<f32>,
    output: Vec<f32>,
    ln1: Vec<f32>,
    ln2: Vec<f32>,
}

/// Positions of the weights among a block's tensors; each has its bias behind it.
const LN1: usize = 0;
const QKV: usize = 2;
const ATTENTION_PROJECTION: usize = 4;
const LN2: usize = 6;
const FC: usize = 8;
const FC_PROJECTION: usize = 10;

const EPSILON: f32 = 1e-5;

/// Values of a weight and of the bias behind it.
fn parameters(group: &ParameterGroup, weight: usize) -> (&[f32], &[f32]) {
    (group.tensor(weight), group.tensor(weight + 1))
}

/// Numbers in [-1, 1) from a linear congruential generator.
fn random(length: usize, scale: f32, seed: &mut u64) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
    };
    (0..length).map(|_| next()).collect()
}

struct Model {
    sizes: Sizes,
    shape: Shape,
    blocks: Vec<ParameterGroup>,
    wte: ParameterGroup,
    wte_head_gradients: Vec<f32>,
    wpe: ParameterGroup,
    lnf: ParameterGroup,
    saved: Vec<Saved>,
    gradients: Vec<Gradients>,
    pool: Pool,
}

/// Buffers by length: none is allocated after the first micro-batch.
#[derive(Default)]
struct Pool(BTreeMap<usize, Vec<Vec<f32>>>);

impl Pool {
    /// A buffer that holds anything.
    fn take(&mut self, length: usize) -> Vec<f32> {
        self.0.get_mut(&length).and_then(Vec::pop).unwrap_or_else(|| vec![0.0; length])
    }

    fn give(&mut self, buffer: Vec<f32>) {
        self.0.entry(buffer.len()).or_default().push(buffer);
    }
}

impl Model {
    fn new(sizes: Sizes) -> Model {
        let (n, c) = (sizes.tokens, sizes.channels);
        let mut seed = 1;
        let mut group = |lengths: &[usize]| {
            let tensors: Vec<Vec<f32>> = lengths.iter().map(|&length| random(length, 0.03, &mut seed)).collect();
            ParameterGroup::new(&tensors.iter().map(|tensor| &tensor[..]).collect::<Vec<_>>())
        };
        let block = [c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c];
        let zeros = |length: usize| vec![0.0; length];
        let blocks = (0..sizes.layers).map(|_| group(&block)).collect();
        let saved = (0..sizes.layers).map(|_| Saved {
            input: zeros(n * c),
            ln1: zeros(n * c),
            ln1_statistics: zeros(2 * n),
            qkv: zeros(3 * n * c),
            attention: zeros(n * c),
            log_sums: zeros(n * sizes.heads),
            middle: zeros(n * c),
            ln2: zeros(n * c),
            ln2_statistics: zeros(2 * n),
            fc: zeros(4 * n * c),
            gelu: zeros(4 * n * c),
        });
        let gradients = (0..sizes.layers).map(|_| Gradients {
            qkv: zeros(3 * n * c),
            middle: zeros(n * c),
            output: zeros(n * c),
            ln1: zeros(2 * c),
            ln2: zeros(2 * c),
        });
        Model {
            sizes,
            shape: Shape { sequences: 1, tokens: n, heads: sizes.heads, groups: sizes.heads, size: c / sizes.heads },
            blocks,
            wte: group(&[sizes.vocabulary * c]),
            wte_head_gradients: zeros(sizes.vocabulary * c),
            wpe: group(&[n * c]),
            lnf: group(&[c, c]),
            saved: saved.collect(),
            gradients: gradients.collect(),
            pool: Pool::default(),
        }
    }

    /// FLOP of a product with a weight (outputs, inputs), for all tokens.
    fn flops(&self, outputs: usize, inputs: usize) -> f64 {
        2.0 * (self.sizes.tokens * outputs * inputs) as f64
    }

    fn block_forward(&mut self, index: usize, hidden: Vec<f32>, profile: &mut Profile) -> Vec<f32> {
        let (n, c, shape) = (self.sizes.tokens, self.sizes.channels, self.shape);
        let [narrow, qkv, wide] = [1, 3, 4].map(|times| self.flops(times * c, c));
        let attended = 2.0 * (n * n * c) as f64;
        let (group, s) = (&self.blocks[index], &mut self.saved[index]);
        self.pool.give(std::mem::replace(&mut s.input, hidden));
        let (weight, bias) = parameters(group, LN1);
        profile.time("norms", 0.0, || {
            layernorm::forward(&mut s.ln1, &mut s.ln1_statistics, &s.input, [weight, bias], EPSILON)
        });
        let (weight, bias) = parameters(group, QKV);
        profile.time("F qkv", qkv, || linear::forward(&mut s.qkv, &s.ln1, weight, bias));
        let mut scratch = self.pool.take(attention::forward_scratch(&shape));
        profile.time("attention F", attended, || {
            attention::forward(&mut s.attention, &mut s.log_sums, &s.qkv, &mut scratch, &shape)
        });
        let (weight, bias) = parameters(group, ATTENTION_PROJECTION);
        profile.time("F attention projection", narrow, || {
            linear::forward_residual(&mut s.middle, &s.input, &s.attention, weight, bias)
        });
        let (weight, bias) = parameters(group, LN2);
        profile.time("norms", 0.0, || {
            layernorm::forward(&mut s.ln2, &mut s.ln2_statistics, &s.middle, [weight, bias], EPSILON)
        });
        let (weight, bias) = parameters(group, FC);
        profile.time("F fc", wide, || linear::forward_without_bias(&mut s.fc, &s.ln2, weight, 4 * c));
        profile.time("GELU", 0.0, || gelu::forward(&mut s.gelu, &mut s.fc, bias));
        self.pool.give(scratch);
        let mut output = self.pool.take(n * c);
        let (weight, bias) = parameters(group, FC_PROJECTION);
        profile
            .time("F fc projection", wide, || linear::forward_residual(&mut output, &s.middle, &s.gelu, weight, bias));
        output
    }

    fn block_backward_input(&mut self, index: usize, hidden: Vec<f32>, profile: &mut Profile) -> Vec<f32> {
        let (n, c, shape) = (self.sizes.tokens, self.sizes.channels, self.shape);
        let [narrow, qkv, wide] = [1, 3, 4].map(|times| self.flops(times * c, c));
        let attended = 5.0 * (n * n * c) as f64;
        let (group, s, g) = (&self.blocks[index], &mut self.saved[index], &mut self.gradients[index]);
        self.pool.give(std::mem::replace(&mut g.output, hidden));
        let mut gradient = self.pool.take(4 * n * c);
        let weight = |layer| parameters(group, layer).0;
        profile.time("I fc projection", wide, || {
            linear::backward_input(&mut gradient, &g.output, weight(FC_PROJECTION), c)
        });
        profile.time("GELU", 0.0, || gelu::backward(&mut s.fc, &gradient));
        self.pool.give(gradient);
        let mut gradient = self.pool.take(n * c);
        profile.time("I fc", wide, || linear::backward_input(&mut gradient, &s.fc, weight(FC), 4 * c));
        let operands = layernorm::Operands {
            gradient: &gradient,
            input: &s.middle,
            statistics: &s.ln2_statistics,
            weight: weight(LN2),
        };
        profile.time("norms", 0.0, || layernorm::backward_input(&mut g.middle, &mut g.ln2, Some(&g.output), operands));
        profile.time("I attention projection", narrow, || {
            linear::backward_input(&mut gradient, &g.middle, weight(ATTENTION_PROJECTION), c)
        });
        let mut scratch = self.pool.take(attention::backward_scratch(&shape));
        let operands =
            attention::Operands { gradient: &gradient, qkv: &s.qkv, output: &s.attention, log_sums: &s.log_sums };
        profile.time("attention I", attended, || attention::backward(&mut g.qkv, operands, &mut scratch, &shape));
        profile.time("I qkv", qkv, || linear::backward_input(&mut gradient, &g.qkv, weight(QKV), 3 * c));
        self.pool.give(scratch);
        let mut input_gradient = self.pool.take(n * c);
        let operands = layernorm::Operands {
            gradient: &gradient,
            input: &s.input,
            statistics: &s.ln1_statistics,
            weight: weight(LN1),
        };
        profile.time("norms", 0.0, || {
            layernorm::backward_input(&mut input_gradient, &mut g.ln1, Some(&g.middle), operands)
        });
        self.pool.give(gradient);
        input_gradient
    }

    fn block_backward_weight(&mut self, index: usize, profile: &mut Profile) {
        let c = self.sizes.channels;
        let [narrow, qkv, wide] = [1, 3, 4].map(|times| self.flops(times * c, c));
        let (group, s, g) = (&mut self.blocks[index], &self.saved[index], &self.gradients[index]);
        let products = [
            ("W fc projection", wide, FC_PROJECTION, &g.output, &s.gelu),
            ("W fc", wide, FC, &s.fc, &s.ln2),
            ("W attention projection", narrow, ATTENTION_PROJECTION, &g.middle, &s.attention),
            ("W qkv", qkv, QKV, &g.qkv, &s.ln1),
        ];
        for (name, flops, layer, gradient, input) in products {
            let (weight_gradient, bias_gradient) = group.gradients(layer, true);
            let oc = bias_gradient.len();
            profile.time(name, flops, || linear::backward_weight(weight_gradient, bias_gradient, gradient, input, oc));
        }
        group.add_gradients(LN2, &g.ln2);
        group.add_gradients(LN1, &g.ln1);
    }

    fn microbatch(&mut self, ids: &[u32], targets: &[u32], profile: &mut Profile) -> f64 {
        let Sizes { tokens: n, channels: c, vocabulary, layers, micro, .. } = self.sizes;
        let head = self.flops(vocabulary, c);
        let mut hidden = self.pool.take(n * c);
        profile.time("embedding", 0.0, || {
            embedding::forward(&mut hidden, ids, &self.wte.values, Some(&self.wpe.values), n, c)
        });
        for index in 0..layers {
            hidden = self.block_forward(index, hidden, profile);
        }
        let (mut lnf, mut statistics) = (self.pool.take(n * c), self.pool.take(2 * n));
        let (weight, bias) = parameters(&self.lnf, 0);
        profile.time("norms", 0.0, || layernorm::forward(&mut lnf, &mut statistics, &hidden, [weight, bias], EPSILON));
        let stride = vocabulary.next_multiple_of(16);
        let mut logits = self.pool.take(n * stride);
        let wte = &self.wte.values;
        profile.time("classifier", head, || {
            let out = MatrixMut::new(&mut logits, n, vocabulary, stride);
            set_product(out, Matrix::new(&lnf, n, c, c), Matrix::new(wte, vocabulary, c, c).transposed());
        });
        let weight = 1.0 / (micro * n) as f32;
        let loss = profile.time("classifier", 0.0, || loss::forward(&mut logits, vocabulary, stride, targets, weight));
        let mut gradient = self.pool.take(n * c);
        profile.time("classifier", head, || {
            let slopes = Matrix::new(&logits, n, vocabulary, stride);
            set_product(MatrixMut::new(&mut gradient, n, c, c), slopes, Matrix::new(wte, vocabulary, c, c));
        });
        let mut sums = vec![0.0; 2 * c];
        let mut next = self.pool.take(n * c);
        let operands = layernorm::Operands {
            gradient: &gradient,
            input: &hidden,
            statistics: &statistics,
            weight: parameters(&self.lnf, 0).0,
        };
        profile.time("norms", 0.0, || layernorm::backward_input(&mut next, &mut sums, None, operands));
        for index in (0..layers).rev() {
            next = self.block_backward_input(index, next, profile);
        }
        profile.time("classifier", head, || {
            let slopes = Matrix::new(&logits, n, vocabulary, stride).transposed();
            let out = MatrixMut::new(&mut self.wte_head_gradients, vocabulary, c, c);
            add_product(out, slopes, Matrix::new(&lnf, n, c, c));
        });
        self.lnf.add_gradients(0, &sums);
        for index in (0..layers).rev() {
            self.block_backward_weight(index, profile);
        }
        profile.time("embedding", 0.0, || {
            embedding::backward_weight(&mut self.wte.gradients, Some(&mut self.wpe.gradients), ids, &next, n, c)
        });
        [hidden, lnf, statistics, logits, gradient, next].into_iter().for_each(|buffer| self.pool.give(buffer));
        loss / (micro * n) as f64
    }

    /// Returns the work of a step as JSON. FLOPs are those of the products that ran, and of the full square of attention scores.
    fn work(&self, operations: &BTreeMap<&'static str, (u64, f64)>) -> String {
        let Sizes { layers, heads, channels, vocabulary, tokens, micro, .. } = self.sizes;
        let groups = self.blocks.iter().chain([&self.wte, &self.wpe, &self.lnf]);
        let parameters: usize = groups.map(|group| group.values.len()).sum();
        let products = operations.iter().filter(|(name, _)| !name.starts_with("attention"));
        let products: f64 = products.map(|(_, (_, flops))| flops).sum();
        let flops_per_token = products / (micro * tokens) as f64 + (12 * layers * channels * tokens) as f64;
        format!(
            "{{\"blocks\": {layers}, \"heads\": {heads}, \"channels\": {channels}, \"vocabulary\": {vocabulary}, \"parameters\": \
             {parameters}, \"sequence_tokens\": {tokens}, \"sequences\": {micro}, \"flops_per_token\": {flops_per_token}}}"
        )
    }

    fn step(&mut self, ids: &[u32], number: u32, profile: &mut Profile) -> f64 {
        let n = self.sizes.tokens;
        let groups = |model: &mut Model, work: &mut dyn FnMut(&mut ParameterGroup)| {
            model.blocks.iter_mut().chain([&mut model.wte, &mut model.wpe, &mut model.lnf]).for_each(work);
        };
        profile.time("zero gradients", 0.0, || {
            groups(self, &mut |group| group.gradients.fill(0.0));
            self.wte_head_gradients.fill(0.0);
        });
        let mut loss = 0.0;
        for sequence in ids.chunks_exact(n + 1) {
            loss += self.microbatch(&sequence[..n], &sequence[1..], profile);
        }
        profile.time("AdamW", 0.0, || groups(self, &mut |group| group.adamw(None, number, &AdamW::default(), 1.0)));
        loss
    }
}

/// FLOP/s of a product of square matrices.
fn best_product(side: usize) -> f64 {
    let mut seed = 1;
    let (a, b) = (random(side * side, 1.0, &mut seed), random(side * side, 1.0, &mut seed));
    let mut out = vec![0.0; side * side];
    let mut least = f64::INFINITY;
    for _ in 0..if side > 600 { 8 } else { 40 } {
        let start = Instant::now();
        let view = |data| Matrix::new(data, side, side, side);
        set_product(MatrixMut::new(black_box(&mut out), side, side, side), view(&a), view(&b));
        least = least.min(start.elapsed().as_secs_f64());
    }
    2.0 * (side as f64).powi(3) / least
}

fn sizes() -> (Sizes, bool) {
    let mut sizes = Sizes { layers: 6, heads: 6, channels: 384, vocabulary: 257, tokens: 128, micro: 8, steps: 6 };
    let mut json = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let field = match word.as_str() {
            "--blocks" => &mut sizes.layers,
            "--heads" => &mut sizes.heads,
            "--channels" => &mut sizes.channels,
            "--vocabulary" => &mut sizes.vocabulary,
            "--seq" => &mut sizes.tokens,
            "--micro" => &mut sizes.micro,
            "--steps" => &mut sizes.steps,
            "--json" => {
                json = true;
                continue;
            }
            "--instructions" => {
                let set = words.next().and_then(|name| Instructions::named(&name));
                set.expect("expected baseline, avx2 or avx512").limit();
                continue;
            }
            _ => panic!("expected an option of the first lines of this file, found {word}"),
        };
        *field = words.next().and_then(|value| value.parse().ok()).expect("expected a number after an option");
    }
    (sizes, json)
}

fn main() {
    let (sizes, json) = sizes();
    let mut model = Model::new(sizes);
    let mut seed = 7;
    let ids = random(sizes.micro * (sizes.tokens + 1), 0.5, &mut seed);
    let ids: Vec<u32> = ids.iter().map(|x| ((x + 0.5) * sizes.vocabulary as f32) as u32).collect();
    let mut product = best_product(512).max(best_product(1024));
    let (mut best, mut total, mut total_cpu) = (Profile::default(), u64::MAX, u64::MAX);
    let mut loss = 0.0;
    for number in 0..=sizes.steps {
        let mut profile = Profile::default();
        let (start, start_cpu) = (Instant::now(), thread_ns());
        loss = model.step(&ids, number as u32 + 1, &mut profile);
        let (ns, cpu) = (start.elapsed().as_nanos() as u64, thread_ns() - start_cpu);
        match number {
            0 => continue,
            1 => best = profile,
            _ => best.least(&profile),
        }
        (total, total_cpu) = (total.min(ns), total_cpu.min(cpu));
        product = product.max(best_product(512));
    }
    let operations = best.operations();
    let least: u64 = operations.values().map(|entry| entry.0).sum();
    let flops: f64 = operations.values().map(|entry| entry.1).sum();
    let tokens = (sizes.micro * sizes.tokens) as f64;
    let (step_ms, cpu_ms, least_ms) = (total as f64 * 1e-6, total_cpu as f64 * 1e-6, least as f64 * 1e-6);
    let (per_second, product) = (|ms: f64| tokens / ms * 1e3, product * 1e-9);
    if json {
        println!(
            "{{\"work\": {}, \"step_ms\": {step_ms:.3}, \"cpu_ms\": {cpu_ms:.3}, \"least_calls_ms\": {least_ms:.3}, \
             \"tokens_per_second\": {:.1}, \"gflops\": {:.2}, \"product_gflops\": {product:.2}}}",
            model.work(&operations),
            per_second(cpu_ms),
            flops / cpu_ms * 1e-6,
        );
        return;
    }
    println!("{:<24} {:>9} {:>7} {:>9}", "operation", "ms", "%", "GFLOP/s");
    for (operation, (ns, flops)) in &operations {
        let rate = if *flops > 0.0 { format!("{:9.1}", flops / *ns as f64) } else { String::new() };
        println!("{operation:<24} {:>9.3} {:>7.1} {rate}", *ns as f64 * 1e-6, 100.0 * *ns as f64 / least as f64);
    }
    for (what, ms) in [("least step", step_ms), ("least processor time", cpu_ms), ("sum of least calls", least_ms)] {
        let rate = flops / ms * 1e-6;
        println!(
            "{what:<24} {ms:>9.1} ms {:>6.0} tokens/s {rate:>6.1} GFLOP/s, share {:.2}",
            per_second(ms),
            rate / product
        );
    }
    println!("best large product {product:.1} GFLOP/s; loss {loss:.6}");
}
