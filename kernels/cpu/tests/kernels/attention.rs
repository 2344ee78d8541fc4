//! Attention with and without grouped queries.

use crate::guarded::{Guarded, SameBits, compare, double, everywhere, noise};
use cpu_kernels::attention::{self, Operands, Shape};

/// Outputs, log sums and the gradient of `qkv`, in double precision, one query after the other.
fn reference(qkv: &[f32], gradient: &[f32], shape: &Shape) -> [Vec<f64>; 3] {
    let Shape { sequences, tokens, heads, groups, size } = *shape;
    let (fused, width, scale) = (shape.fused(), shape.width(), 1.0 / (size as f64).sqrt());
    let (qkv, gradient) = (double(qkv), double(gradient));
    let mut out = vec![0.0; sequences * tokens * width];
    let mut log_sums = vec![0.0; sequences * heads * tokens];
    let mut slopes = vec![0.0; qkv.len()];
    for (index, sum) in log_sums.iter_mut().enumerate() {
        let (sequence, head, token) = (index / heads / tokens, index / tokens % heads, index % tokens);
        let group = head / (heads / groups);
        let query = (sequence * tokens + token) * fused + head * size;
        let key = |t: usize| (sequence * tokens + t) * fused + (heads + group) * size;
        let value = |t: usize| (sequence * tokens + t) * fused + (heads + groups + group) * size;
        let output = (sequence * tokens + token) * width + head * size;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let scores: Vec<f64> =
            (0..=token).map(|t| scale * dot(&qkv[query..][..size], &qkv[key(t)..][..size])).collect();
        let log_sum = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
        let weights: Vec<f64> = scores.iter().map(|score| (score - log_sum).exp()).collect();
        *sum = log_sum;
        for (t, weight) in weights.iter().enumerate() {
            (0..size).for_each(|i| out[output + i] += weight * qkv[value(t) + i]);
        }
        let gradient = &gradient[output..][..size];
        let mean = dot(gradient, &out[output..][..size]);
        for (t, weight) in weights.iter().enumerate() {
            let slope = weight * (dot(gradient, &qkv[value(t)..][..size]) - mean) * scale;
            for i in 0..size {
                slopes[value(t) + i] += weight * gradient[i];
                slopes[query + i] += slope * qkv[key(t) + i];
                slopes[key(t) + i] += slope * qkv[query + i];
            }
        }
    }
    [out, log_sums, slopes]
}

#[test]
fn attention_forwards_and_backwards() {
    let shapes = [
        [1, 1, 1, 1, 1],
        [2, 3, 2, 1, 7],
        [1, 17, 3, 3, 5],
        [2, 31, 4, 2, 16],
        [1, 33, 6, 2, 17],
        [1, 65, 4, 1, 33],
        [2, 129, 2, 2, 64],
    ];
    for [sequences, tokens, heads, groups, size] in shapes {
        let shape = Shape { sequences, tokens, heads, groups, size };
        let what = format!("{shape:?}");
        let qkv: Vec<f32> = noise(sequences * tokens * shape.fused(), 1).iter().map(|value| 2.0 * value).collect();
        let gradient = noise(sequences * tokens * shape.width(), 2);
        let [expected, expected_sums, expected_slopes] = reference(&qkv, &gradient, &shape);
        let mut bits: [SameBits; 3] = Default::default();
        everywhere(|set, side| {
            let (qkv, gradient) = (Guarded::new(&qkv, side), Guarded::new(&gradient, side));
            let mut out = Guarded::filled(expected.len(), side);
            let mut log_sums = Guarded::filled(expected_sums.len(), side);
            let mut scratch = Guarded::filled(attention::forward_scratch(&shape), side);
            attention::forward(&mut out, &mut log_sums, &qkv, &mut scratch, &shape);
            compare(&what, &out, &expected, 3e-6);
            compare(&what, &log_sums, &expected_sums, 3e-6);
            let mut slopes = Guarded::filled(qkv.len(), side);
            let mut scratch = Guarded::filled(attention::backward_scratch(&shape), side);
            let operands = Operands { gradient: &gradient, qkv: &qkv, output: &out, log_sums: &log_sums };
            attention::backward(&mut slopes, operands, &mut scratch, &shape);
            compare(&what, &slopes, &expected_slopes, 2e-5);
            for (bits, found) in bits.iter_mut().zip([&out, &log_sums, &slopes]) {
                bits.check(&what, set, found);
            }
        });
    }
}

#[test]
fn not_a_number_reaches_its_token_and_later_ones_only() {
    let shape = Shape { sequences: 2, tokens: 70, heads: 2, groups: 1, size: 9 };
    let (bad, width) = (40, shape.width());
    everywhere(|_, side| {
        let mut qkv = Guarded::new(&noise(2 * 70 * shape.fused(), 1), side);
        qkv[bad * shape.fused() + 2 * 9] = f32::NAN; // a key
        let mut out = Guarded::filled(2 * 70 * width, side);
        let mut log_sums = Guarded::filled(2 * 2 * 70, side);
        let mut scratch = Guarded::filled(attention::forward_scratch(&shape), side);
        attention::forward(&mut out, &mut log_sums, &qkv, &mut scratch, &shape);
        for (row, values) in out.chunks(width).enumerate() {
            assert_eq!(values.iter().all(|value| value.is_nan()), (bad..70).contains(&row), "row {row}");
            assert_eq!(values.iter().any(|value| value.is_nan()), (bad..70).contains(&row), "row {row}");
        }
    });
}
