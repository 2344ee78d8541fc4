//! The innermost part of a product: a tile of few rows and whole vectors of columns, kept in registers while the inner index runs.

use crate::instructions::multiply_add;
use crate::prefetch::{Ahead, prefetch};
use pulp::{Simd, WithSimd};

/// Inner indices between two steps of a prefetch.
pub(crate) const STEP: usize = 16;

/// The rows of the left matrix that meet one tile.
#[derive(Clone, Copy)]
pub(crate) enum LeftOperand<'a> {
    /// Rows as they are in memory, `stride` apart.
    Rows { data: &'a [f32], stride: usize },
    /// The elements of each column of the tile one after the other.
    Packed(&'a [f32]),
}

/// Adds one inner index's products to the sums of a tile of at most 6 rows and 4 vectors. Written out, because the compiler
/// keeps in registers only what constants name.
macro_rules! unrolled {
    ($simd:ident, $right:ident, $rows:ident, $vectors:ident, $sums:ident, [$($row:literal: $value:expr),*]) => {
        $(
            if $row < $rows {
                let value = $simd.splat_f32s($value);
                $sums[$row][0] = multiply_add($simd, value, $right[0], $sums[$row][0]);
                if $vectors > 1 {
                    $sums[$row][1] = multiply_add($simd, value, $right[1], $sums[$row][1]);
                }
                if $vectors > 2 {
                    $sums[$row][2] = multiply_add($simd, value, $right[2], $sums[$row][2]);
                    $sums[$row][3] = multiply_add($simd, value, $right[3], $sums[$row][3]);
                }
            }
        )*
    };
}

/// Writes the sums of a tile without padding, each row's vectors as constants name them.
macro_rules! whole_rows {
    ($simd:ident, $out:ident, $stride:ident, $rows:ident, $vectors:ident, $sums:ident, $accumulate:ident, [$($row:literal),*]) => {
        $(
            if $row < $rows {
                let (out, _) = S::as_mut_simd_f32s(&mut $out[$row * $stride..][..$vectors * S::F32_LANES]);
                if $accumulate {
                    $sums[$row][0] = $simd.add_f32s(out[0], $sums[$row][0]);
                    if $vectors > 1 {
                        $sums[$row][1] = $simd.add_f32s(out[1], $sums[$row][1]);
                    }
                    if $vectors > 2 {
                        $sums[$row][2] = $simd.add_f32s(out[2], $sums[$row][2]);
                        $sums[$row][3] = $simd.add_f32s(out[3], $sums[$row][3]);
                    }
                }
                out[0] = $sums[$row][0];
                if $vectors > 1 {
                    out[1] = $sums[$row][1];
                }
                if $vectors > 2 {
                    out[2] = $sums[$row][2];
                    out[3] = $sums[$row][3];
                }
            }
        )*
    };
}

/// One tile of `R` rows and `V` vectors: `out` = left · `right`, or `out` += left · `right`.
///
/// Every element is the sum of its products in the order of the inner index, starting from 0, whatever the sizes of the tile.
pub(crate) struct Tile<'a, 'b, const R: usize, const V: usize> {
    pub(crate) left: LeftOperand<'a>,
    /// One row of `V` vectors per inner index.
    pub(crate) right: &'a [f32],
    pub(crate) out: &'a mut [f32],
    /// Elements from one row of `out` to the next.
    pub(crate) stride: usize,
    /// Columns of `out`; those beyond are padding of `right`.
    pub(crate) width: usize,
    pub(crate) accumulate: bool,
    /// What is fetched meanwhile, one step per [`STEP`] of the inner index.
    pub(crate) ahead: &'a mut Ahead<'b>,
}

impl<const R: usize, const V: usize> WithSimd for Tile<'_, '_, R, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Tile { left, right, out, stride, width, accumulate, ahead } = self;
        let (right, _) = S::as_simd_f32s(right);
        let (right, _) = right.as_chunks::<V>();
        let inner = right.len();
        if accumulate {
            (0..R).for_each(|r| prefetch(&out[r * stride..][..width]));
        }
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        match left {
            LeftOperand::Rows { data, stride } => {
                // Named slices of one length: no bounds are checked in the inner loop.
                let row = |r: usize| if r < R { &data[r * stride..][..inner] } else { &[] };
                let (row0, row1, row2, row3, row4, row5) = (row(0), row(1), row(2), row(3), row(4), row(5));
                for start in (0..inner).step_by(STEP) {
                    ahead.step();
                    for p in start..inner.min(start + STEP) {
                        let right = &right[p];
                        unrolled!(simd, right, R, V, sums, [
                            0: row0[p], 1: row1[p], 2: row2[p], 3: row3[p], 4: row4[p], 5: row5[p]
                        ]);
                    }
                }
            }
            LeftOperand::Packed(data) => {
                let columns = &data.as_chunks::<R>().0[..inner];
                for start in (0..inner).step_by(STEP) {
                    ahead.step();
                    for p in start..inner.min(start + STEP) {
                        let (right, left) = (&right[p], &columns[p]);
                        unrolled!(simd, right, R, V, sums, [
                            0: left[0], 1: left[1], 2: left[2], 3: left[3], 4: left[4], 5: left[5]
                        ]);
                    }
                }
            }
        }
        if width == V * S::F32_LANES {
            whole_rows!(simd, out, stride, R, V, sums, accumulate, [0, 1, 2, 3, 4, 5]);
            return;
        }
        // A copy: what the loops above name by constants stays in registers.
        let sums = sums;
        for (r, sums) in sums.iter().enumerate() {
            let (vectors, rest) = S::as_mut_simd_f32s(&mut out[r * stride..][..width]);
            let whole = vectors.len();
            for (value, &sum) in vectors.iter_mut().zip(sums) {
                *value = if accumulate { simd.add_f32s(*value, sum) } else { sum };
            }
            if !rest.is_empty() {
                let last = sums[whole.min(V - 1)];
                let sum = if accumulate { simd.add_f32s(simd.partial_load_f32s(rest), last) } else { last };
                simd.partial_store_f32s(rest, sum);
            }
        }
    }
}
