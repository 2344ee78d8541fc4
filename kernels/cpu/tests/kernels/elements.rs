//! Norms, activation functions, positions, the loss and the optimizer.

use crate::guarded::{Guarded, SIZES, SameBits, compare, double, everywhere, noise};
use cpu_kernels::optimizer::{AdamW, ParameterGroup};
use cpu_kernels::{embedding, gelu, layernorm, loss, rmsnorm, rotary, swiglu, vector};

const EPSILON: f32 = 1e-5;

/// Output, gradient of the input and that of the weight of a norm of rows of `weight.len()`; RMSNorm has no mean and no bias.
fn norm(x: &[f32], dy: &[f32], weight: &[f32], bias: Option<&[f32]>) -> [Vec<f64>; 3] {
    let c = weight.len();
    let mut all = [Vec::new(), Vec::new(), vec![0.0; c]];
    for (x, dy) in x.chunks(c).zip(dy.chunks(c)) {
        let (x, dy, w) = (double(x), double(dy), double(weight));
        let average = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / c as f64;
        let mean = if bias.is_some() { average(&mut x.iter().copied()) } else { 0.0 };
        let scale = 1.0 / (average(&mut x.iter().map(|x| (x - mean).powi(2))) + f64::from(EPSILON)).sqrt();
        let normal: Vec<f64> = x.iter().map(|x| (x - mean) * scale).collect();
        let first = if bias.is_some() { average(&mut (0..c).map(|i| dy[i] * w[i])) } else { 0.0 };
        let second = average(&mut (0..c).map(|i| dy[i] * w[i] * normal[i]));
        for i in 0..c {
            all[0].push(normal[i] * w[i] + bias.map_or(0.0, |bias| f64::from(bias[i])));
            all[1].push((dy[i] * w[i] - first - normal[i] * second) * scale);
            all[2][i] += dy[i] * normal[i];
        }
    }
    all
}

#[test]
fn norms_forwards_and_backwards() {
    for (n, c) in SIZES.into_iter().flat_map(|n| SIZES.map(|c| (n, c))).filter(|(n, _)| *n < 50) {
        let (x, dy, r) = (noise(n * c, 1), noise(n * c, 2), noise(n * c, 3));
        let (w, b) = (noise(c, 4), noise(c, 5));
        let [layer, rms] = [Some(&b[..]), None].map(|bias| norm(&x, &dy, &w, bias));
        let with_residual =
            |slopes: &[f64]| -> Vec<f64> { slopes.iter().zip(&r).map(|(a, b)| a + f64::from(*b)).collect() };
        let what = format!("{n} rows of {c}");
        let mut bits: [SameBits; 4] = Default::default();
        everywhere(|set, side| {
            let guard = |values: &[f32]| Guarded::new(values, side);
            let (x, dy, r, w, b) = (guard(&x), guard(&dy), guard(&r), guard(&w), guard(&b));
            // one channel has no variance but that of rounding, so its slopes are all cancellation
            let tolerance = if c == 1 { 1e-3 } else { 2e-5 };
            let mut out = Guarded::filled(n * c, side);
            let mut statistics = Guarded::filled(2 * n, side);
            layernorm::forward(&mut out, &mut statistics, &x, [&w, &b], EPSILON);
            compare(&what, &out, &layer[0], tolerance);
            bits[0].check(&what, set, &out);
            let operands = layernorm::Operands { gradient: &dy, input: &x, statistics: &statistics, weight: &w };
            let mut sums = Guarded::filled(2 * c, side);
            layernorm::backward_input(&mut out, &mut sums, None, operands);
            compare(&what, &out, &layer[1], 10.0 * tolerance);
            layernorm::backward_input(&mut out, &mut sums, Some(&r), operands);
            compare(&what, &out, &with_residual(&layer[1]), 10.0 * tolerance);
            compare(&what, &sums[..c], &layer[2], tolerance);
            bits[1].check(&what, set, &out);

            let mut statistics = Guarded::filled(n, side);
            rmsnorm::forward(&mut out, &mut statistics, &x, &w, EPSILON);
            compare(&what, &out, &rms[0], tolerance);
            bits[2].check(&what, set, &out);
            let operands = layernorm::Operands { gradient: &dy, input: &x, statistics: &statistics, weight: &w };
            let mut sums = Guarded::filled(c, side);
            rmsnorm::backward_input(&mut out, &mut sums, None, operands);
            compare(&what, &out, &rms[1], 10.0 * tolerance);
            rmsnorm::backward_input(&mut out, &mut sums, Some(&r), operands);
            compare(&what, &out, &with_residual(&rms[1]), 10.0 * tolerance);
            compare(&what, &sums, &rms[2], tolerance);
            bits[3].check(&what, set, &out);
        });
    }
}

#[test]
fn activation_functions_forwards_and_backwards() {
    let gelu_at = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    let slope = |function: &dyn Fn(f64) -> f64, x: f64| (function(x + 1e-5) - function(x - 1e-5)) / 2e-5;
    for c in SIZES {
        let n = 3;
        let values: Vec<f32> = noise(2 * n * c, 1).iter().map(|x| 6.0 * x).collect();
        let (bias, dy) = (noise(c, 2), noise(n * c, 3));
        let biased: Vec<f64> = (0..n * c).map(|at| f64::from(values[at] + bias[at % c])).collect();
        let (mut gelu_bits, mut swiglu_bits) = (SameBits::default(), SameBits::default());
        everywhere(|set, side| {
            let (mut out, mut kept) = (Guarded::filled(n * c, side), Guarded::new(&values[..n * c], side));
            gelu::forward(&mut out, &mut kept, &Guarded::new(&bias, side));
            compare("GELU", &out, &biased.iter().map(|&x| gelu_at(x)).collect::<Vec<_>>(), 2e-6);
            gelu_bits.check("GELU", set, &out);
            let dy = Guarded::new(&dy, side);
            gelu::backward(&mut kept, &dy);
            let slopes = biased.iter().zip(&*dy).map(|(&x, &dy)| f64::from(dy) * slope(&gelu_at, x));
            compare("GELU's slope", &kept, &slopes.collect::<Vec<_>>(), 5e-6);

            let mut pairs = Guarded::new(&values, side);
            swiglu::forward(&mut out, &pairs, c);
            let value = |gate: f64, up: f64| gate / (1.0 + (-gate).exp()) * up;
            let pair = |at: usize| {
                let gate = at / c * 2 * c + at % c;
                (f64::from(values[gate]), f64::from(values[gate + c]))
            };
            let expected: Vec<f64> = (0..n * c).map(|at| value(pair(at).0, pair(at).1)).collect();
            compare("SwiGLU", &out, &expected, 2e-6);
            swiglu::backward(&mut pairs, &dy, c);
            let mut expected = vec![0.0; 2 * n * c];
            for at in 0..n * c {
                let ((gate, up), dy) = (pair(at), f64::from(dy[at]));
                expected[at / c * 2 * c + at % c] = dy * slope(&|gate| value(gate, up), gate);
                expected[at / c * 2 * c + at % c + c] = dy * value(gate, 1.0);
            }
            compare("SwiGLU's slopes", &pairs, &expected, 5e-6);
            swiglu_bits.check("SwiGLU", set, &pairs);
        });
    }
}

#[test]
fn rotations_turn_and_turn_back() {
    for pairs in [1, 3, 8, 17, 33] {
        let (tokens, heads, stride) = (5, 3, 3 * 2 * pairs + 7);
        let frequencies: Vec<f64> = (0..pairs).map(|i| 0.9f64.powi(i as i32)).collect();
        let table = rotary::Table::new(tokens, &frequencies);
        let before = noise(2 * tokens * stride, 1);
        let mut expected = double(&before);
        for row in 0..2 * tokens {
            for (pair, head) in (0..heads * pairs).map(|at| (at % pairs, at / pairs)) {
                let (sine, cosine) = (frequencies[pair] * (row % tokens) as f64).sin_cos();
                let first = row * stride + head * 2 * pairs + pair;
                let (a, b) = (expected[first], expected[first + pairs]);
                (expected[first], expected[first + pairs]) = (a * cosine - b * sine, b * cosine + a * sine);
            }
        }
        let mut bits = SameBits::default();
        everywhere(|set, side| {
            let mut values = Guarded::new(&before, side);
            table.rotate(&mut values, heads, stride, 0..tokens, false);
            compare("turned", &values, &expected, 1e-6);
            bits.check("turned", set, &values);
            table.rotate(&mut values, heads, stride, 0..tokens, true);
            compare("turned back", &values, &double(&before), 1e-6);
        });
    }
}

#[test]
fn loss_and_its_gradient() {
    for (vocabulary, stride) in SIZES.into_iter().flat_map(|v| [(v, v), (v, v.next_multiple_of(16))]) {
        let (n, weight) = (5, 0.3);
        let logits: Vec<f32> = noise(n * stride, 1).iter().map(|x| 9.0 * x).collect();
        let targets: Vec<u32> = (0..n).map(|row| (row * 5 % vocabulary) as u32).collect();
        let (mut expected, mut expected_loss) = (double(&logits), 0.0);
        for (row, &target) in expected.chunks_mut(stride).zip(&targets) {
            let sum: f64 = row[..vocabulary].iter().map(|x| x.exp()).sum();
            expected_loss += sum.ln() - row[target as usize];
            row[..vocabulary].iter_mut().for_each(|x| *x = f64::from(weight) * x.exp() / sum);
            row[target as usize] -= f64::from(weight);
        }
        let mut bits = SameBits::default();
        everywhere(|set, side| {
            let mut values = Guarded::new(&logits, side);
            let found = loss::forward(&mut values, vocabulary, stride, &targets, weight);
            assert!((found - expected_loss).abs() < 1e-5 * (1.0 + expected_loss), "{found}, expected {expected_loss}");
            compare("gradient of the logits", &values, &expected, 2e-6);
            bits.check("gradient of the logits", set, &values);
        });
    }
}

#[test]
fn embeddings_and_their_gradients() {
    for c in SIZES {
        let (tokens, words) = (3, 7);
        let (wte, wpe, dy) = (noise(words * c, 1), noise(tokens * c, 2), noise(2 * tokens * c, 3));
        let ids = [6, 0, 3, 3, 6, 6];
        everywhere(|_, side| {
            let (wte, wpe, dy) = (Guarded::new(&wte, side), Guarded::new(&wpe, side), Guarded::new(&dy, side));
            let mut out = Guarded::filled(6 * c, side);
            embedding::forward(&mut out, &ids, &wte, Some(&wpe), tokens, c);
            let (mut dwte, mut dwpe) = (Guarded::new(&wte, side), Guarded::new(&wpe, side));
            embedding::backward_weight(&mut dwte, Some(&mut dwpe), &ids, &dy, tokens, c);
            let (mut expected_wte, mut expected_wpe) = (double(&wte), double(&wpe));
            for at in 0..6 * c {
                let (word, position) = (ids[at / c] as usize * c + at % c, at / c % tokens * c + at % c);
                assert_eq!(out[at], wte[word] + wpe[position]);
                expected_wte[word] += f64::from(dy[at]);
                expected_wpe[position] += f64::from(dy[at]);
            }
            compare("gradients of words", &dwte, &expected_wte, 1e-6);
            compare("gradients of positions", &dwpe, &expected_wpe, 1e-6);
        });
    }
}

#[test]
fn adamw_and_the_norm_of_gradients() {
    let hyper = AdamW { weight_decay: 0.1, ..AdamW::default() };
    for length in SIZES {
        let (values, gradient, tied) = (noise(length, 1), noise(length, 2), noise(length, 3));
        let mut bits = SameBits::default();
        everywhere(|set, side| {
            let mut group = ParameterGroup::new(&[&values]);
            group.gradients.copy_from_slice(&gradient);
            let tied = Guarded::new(&tied, side);
            let norm = group.squared_norm(Some(&tied));
            let sum: Vec<f64> = gradient.iter().zip(&*tied).map(|(a, b)| f64::from(a + b)).collect();
            let expected = sum.iter().map(|x| x * x).sum::<f64>();
            assert!((norm - expected).abs() < 1e-12 * (1.0 + expected), "{norm}, expected {expected}");
            group.adamw(Some(&tied), 1, &hyper, 0.5);
            // after one step m̂ is the gradient and √v̂ its magnitude
            let expected = values.iter().zip(&sum).map(|(&value, &sum)| {
                let (value, gradient) = (f64::from(value), 0.5 * sum);
                let direction = gradient / (gradient.abs() + f64::from(hyper.epsilon));
                value - f64::from(hyper.learning_rate) * (direction + f64::from(hyper.weight_decay) * value)
            });
            compare("AdamW", &group.values, &expected.collect::<Vec<_>>(), 1e-6);
            bits.check("AdamW", set, &group.values);
        });
    }
}

#[test]
fn not_a_number_stays_one() {
    // a quiet one as processors make it, and one whose low bits are set
    for bad in [f32::NAN, -f32::NAN, f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_01ff)] {
        everywhere(|_, side| {
            assert!(vector::exp(bad).is_nan());
            let c = 35;
            let mut x = noise(3 * c, 1);
            x[c + 4] = bad;
            let (x, w, b) = (Guarded::new(&x, side), Guarded::filled(c, side), Guarded::filled(c, side));
            let mut out = Guarded::filled(3 * c, side);
            let rows =
                |out: &[f32]| out.chunks(c).map(|row| row.iter().filter(|x| x.is_nan()).count()).collect::<Vec<_>>();
            layernorm::forward(&mut out, &mut [0.0; 6], &x, [&w, &b], EPSILON);
            assert_eq!(rows(&out), [0, c, 0]);
            rmsnorm::forward(&mut out, &mut [0.0; 3], &x, &w, EPSILON);
            assert_eq!(rows(&out), [0, c, 0]);
            let mut kept = Guarded::new(&x, side);
            gelu::forward(&mut out, &mut kept, &b);
            assert_eq!((rows(&out), rows(&kept)), (vec![0, 1, 0], vec![0, 1, 0]));
            let mut logits = Guarded::new(&x, side);
            assert!(loss::forward(&mut logits, c, c, &[0, 1, 2], 1.0).is_nan());
            assert_eq!(rows(&logits), [0, c, 0]);
        });
    }
}

#[test]
fn gelu_far_from_zero_agrees_with_tanh_in_double_precision() {
    let xs: Vec<f32> = (-12_000..12_000).map(|i| i as f32 * 1e-3).collect();
    let (mut out, mut values) = (vec![0.0; xs.len()], xs.clone());
    gelu::forward(&mut out, &mut values, &vec![0.0; xs.len()]);
    let exact = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    for (i, &x) in xs.iter().enumerate() {
        let x = f64::from(x);
        assert!((f64::from(out[i]) - exact(x)).abs() < 2e-7 * (1.0 + x.abs()), "gelu({x})");
        let slope = (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5;
        assert!((f64::from(values[i]) - slope).abs() < 2e-6, "gelu'({x})");
    }
}

#[test]
fn exp_is_good_to_two_units_in_the_last_place() {
    for step in -870_000..880_000 {
        let x = step as f32 * 1e-4;
        let exact = f64::from(x).exp();
        assert!((f64::from(vector::exp(x)) - exact).abs() <= exact * 2.4e-7, "exp({x})");
    }
    assert_eq!(vector::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(vector::exp(-88.0), 0.0);
    assert_eq!(vector::exp(0.0), 1.0);
    assert!(vector::exp(1e30).is_finite());
}

#[test]
fn reductions_count_every_element_once() {
    for length in 0..100 {
        let values: Vec<f32> = (0..length).map(|i| i as f32).collect();
        let total = (length * (length - 1) / 2) as f32;
        assert_eq!(vector::sum(&values, |x| x), total);
        assert_eq!(vector::dot(&values, &vec![1.0; values.len()]), total);
        assert_eq!(vector::exponentials(&mut vec![0.0; values.len()], 1.0, 0.0), length as f32);
        assert_eq!(vector::max(&values), values.last().copied().unwrap_or(f32::NEG_INFINITY));
    }
}
