//! Loops over slices, compiled for the widest vectors of the machine at hand, and the few functions they need.
//! Sums have a fixed order: LANES interleaved sums, then a tree.

use crate::instructions;

/// Number of interleaved partial sums of a reduction: two vectors of AVX-512.
pub const LANES: usize = 32;

/// Runs `work` compiled for the widest vector instructions that may be used. `work` must be `#[inline(always)]`.
#[inline(always)]
pub fn widest<R>(work: impl FnOnce() -> R) -> R {
    instructions::dispatch(work)
}

/// e^x, good to 2 units in the last place; 0 below -87, e^88 above 88; NaN of NaN. Argument reduction by powers of two and the
/// polynomial of Cephes' `expf`; no branch and no table, so that loops over it vectorise.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    let clamped = if x > 88.0 { 88.0 } else { x };
    let clamped = if clamped < -87.0 { -87.0 } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let power = shifted - ROUND;
    let r = power.mul_add(2.121_944_4e-4, power.mul_add(-0.693_359_4, clamped));
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 5e-1);
    let p = p.mul_add(r * r, r) + 1.0;
    let value = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    // adding to the exponent would turn a NaN into a number
    let value = if x.is_nan() { x } else { value };
    if x < -87.0 { 0.0 } else { value }
}

/// The sum of the lanes.
#[inline(always)]
pub fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of `term(x)` over a slice.
#[inline(always)]
pub fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += term(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += term(value);
    }
    tree(lanes)
}

/// The inner product of two slices of the same length.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] = a[lane].mul_add(b[lane], lanes[lane]);
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(rest) {
        *lane = a.mul_add(b, *lane);
    }
    tree(lanes)
}

/// The largest element of a slice, minus infinity for an empty one.
#[inline(always)]
pub fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = if value > *lane { value } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |most, lane| if lane > most { lane } else { most })
}

/// Replaces each value by e^(value * scale - shift) and returns the sum of the results.
#[inline(always)]
pub fn exponentials(values: &mut [f32], scale: f32, shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let mut chunks = values.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane].mul_add(scale, -shift));
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(chunks.into_remainder()) {
        *value = exp(value.mul_add(scale, -shift));
        *lane += *value;
    }
    tree(lanes)
}

/// `out[i] += values[i]`.
pub fn add(out: &mut [f32], values: &[f32]) {
    widest(
        #[inline(always)]
        || {
            for (out, &value) in out.iter_mut().zip(values) {
                *out += value;
            }
        },
    );
}
