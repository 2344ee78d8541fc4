//! Products in cache-resident blocks (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008): the right
//! matrix is packed into panels of a few vectors, the left one is read where it is unless its rows are columns in memory.
//!
//! An element's bits depend on its operands and the inner length alone, not on the sizes or the layout of the matrices.

use crate::instructions;
use crate::matrix::{Matrix, MatrixMut};
use crate::pack::{self, AlignedBuffer};
use crate::prefetch::{Ahead, LINE};
use crate::tile::{LeftOperand, STEP, Tile};
use pulp::{Simd, WithSimd};
use std::cell::RefCell;

/// The longest part of the inner index between two visits of an output.
const INNER: usize = 512;
/// Elements of the right matrix in a block: 256 KiB, half of a small second-level cache.
const RIGHT: usize = 64 << 10;
/// Elements of the packed left matrix in a block.
const LEFT: usize = 256 << 10;
/// Rows of a tile.
const TILE: usize = 6;
/// Rows that are computed before they are transposed into the output: some tiles, and whole vectors.
const GROUP: usize = 48;

/// What a product is added to.
#[derive(Clone, Copy)]
pub(crate) enum Base<'a> {
    Zero,
    Out,
    /// The same for each row.
    Bias(&'a [f32]),
    /// A matrix with the output's row stride, and a bias that is added to each row.
    Residual {
        residual: &'a [f32],
        bias: Option<&'a [f32]>,
    },
}

#[derive(Default)]
struct Scratch {
    left: AlignedBuffer,
    right: AlignedBuffer,
    /// The right matrix's next block.
    next: AlignedBuffer,
    group: AlignedBuffer,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Sets `out` to `a b`; the previous content of `out` is not read.
pub fn set_product(out: MatrixMut, a: Matrix, b: Matrix) {
    base_product(out, Base::Zero, a, b);
}

/// Adds `a b` to `out`.
pub fn add_product(out: MatrixMut, a: Matrix, b: Matrix) {
    base_product(out, Base::Out, a, b);
}

/// Sets `out` to base + `a b`.
pub(crate) fn base_product(out: MatrixMut, base: Base, a: Matrix, b: Matrix) {
    assert!(a.rows == out.rows && b.columns == out.columns && a.columns == b.rows, "the shapes of a product differ");
    assert!(out.row_stride >= out.columns, "rows of a product overlap");
    if out.rows > 0 && out.columns > 0 {
        product(out, base, a, b);
    }
}

/// `out` = base + `a` `b`. The caller has checked the shapes.
fn product(out: MatrixMut, base: Base, a: Matrix, b: Matrix) {
    SCRATCH.with_borrow_mut(|scratch| instructions::dispatch(Product { out, base, a, b, scratch }));
}

struct Product<'a> {
    out: MatrixMut<'a>,
    base: Base<'a>,
    a: Matrix<'a>,
    b: Matrix<'a>,
    scratch: &'a mut Scratch,
}

/// Returns the start and height of each tile of these rows.
fn heights(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let height = match rows - start {
            0 => return None,
            // not 6 and 2: two rows of few registers keep no processor busy
            8 => 4,
            TILE.. => TILE,
            4 | 5 => 4,
            2 | 3 => 2,
            _ => 1,
        };
        start += height;
        Some((start - height, height))
    })
}

/// Vectors of columns in a tile: as many as leave registers for the operands.
const fn vectors<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 } else { 2 }
}

/// Columns of the panel that holds the last `columns` columns, at most a whole panel: 1, 2 or 4 vectors.
fn padded<S: Simd>(columns: usize) -> usize {
    columns.div_ceil(S::F32_LANES).next_power_of_two() * S::F32_LANES
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Product { out, base, a, b, scratch } = self;
        let (m, k, n) = (a.rows, a.columns, b.columns);
        // Transposing costs as much per element for an operand as for the output; take the way with fewer elements.
        let flip = b.column_stride != 1 && a.column_stride == 1 && m * k + m * n * k.div_ceil(INNER) < k * n;
        if flip {
            transposed(simd, out, base, b.transposed(), a.transposed(), scratch);
        } else {
            straight(simd, out, base, a, b, scratch);
        }
    }
}

/// Lengths into which a whole one is cut, as equal as can be.
fn part(whole: usize, most: usize) -> usize {
    whole.div_ceil(whole.div_ceil(most).max(1)).max(1)
}

/// Columns of the right matrix in a block whose inner length is `inner`.
fn block_columns<S: Simd>(inner: usize, most: usize) -> usize {
    let panel = vectors::<S>() * S::F32_LANES;
    (most / inner / panel).max(1) * panel
}

fn pack_right<'a, S: Simd>(
    buffer: &'a mut AlignedBuffer,
    b: Matrix,
    inner: [usize; 2],
    columns: [usize; 2],
) -> &'a [f32] {
    let panel = vectors::<S>() * S::F32_LANES;
    let [first, inner] = inner;
    let [start, columns] = columns;
    let to = buffer.take(inner * columns.next_multiple_of(panel));
    let from = &b.data[first * b.row_stride + start * b.column_stride..];
    if b.column_stride == 1 {
        pack::rows(to, panel, from, b.row_stride, inner, columns, padded::<S>);
    } else {
        pack::columns(to, panel, from, b.column_stride, inner, columns, padded::<S>);
    }
    to
}

fn straight<S: Simd>(simd: S, out: MatrixMut, base: Base, a: Matrix, b: Matrix, scratch: &mut Scratch) {
    let (m, k, n, stride) = (a.rows, a.columns, b.columns, out.row_stride);
    let length = part(k, INNER);
    let panel = vectors::<S>() * S::F32_LANES;
    let packs = a.column_stride != 1;
    let block_rows = if packs { part(m, (LEFT / length).max(TILE)) } else { m };
    for first in (0..k.max(1)).step_by(length) {
        let inner = length.min(k - first);
        for top in (0..m).step_by(block_rows) {
            let rows = block_rows.min(m - top);
            let mut packed: &[f32] = &[];
            if packs {
                let to = scratch.left.take(rows * inner);
                pack::left(to, &a.data[top + first * a.column_stride..], a.column_stride, inner, heights(rows));
                packed = to;
            }
            let block = block_columns::<S>(inner.max(1), if packs { RIGHT } else { RIGHT / 2 });
            let (mut here, mut next) = (&mut scratch.right, &mut scratch.next);
            let mut is_packed = false;
            for start in (0..n).step_by(block) {
                let columns = block.min(n - start);
                let right = if is_packed {
                    here.take(inner * columns)
                } else {
                    pack_right::<S>(here, b, [first, inner], [start, columns])
                };
                let mut ahead = Ahead::default();
                is_packed = false;
                let following = block.min(n - start - columns);
                if !packs && b.column_stride == 1 && following > 0 {
                    let data = &b.data[first * b.row_stride + start + columns..];
                    let steps = rows.div_ceil(TILE) * columns.div_ceil(panel) * inner.div_ceil(STEP);
                    ahead = Ahead::new(data, inner, following, b.row_stride, steps);
                    if following % panel == 0 && panel.is_multiple_of(LINE) {
                        ahead = ahead.into_panels(next.take(inner * following), panel);
                        is_packed = true;
                    }
                }
                for (row, height) in heights(rows) {
                    let out = &mut out.data[(top + row) * stride + start..];
                    let (out, next) = out.split_at_mut(out.len().min(height * stride));
                    let accumulate = if first == 0 {
                        let at = |row: usize| (top + row) * stride + start;
                        let rows = out.chunks_mut(stride).enumerate();
                        rows.fold(true, |_, (r, out)| {
                            let columns = columns.min(out.len());
                            prepare(&mut out[..columns], base, at(row + r), start)
                        })
                    } else {
                        true
                    };
                    if packs {
                        let left = LeftOperand::Packed(&packed[row * inner..][..height * inner]);
                        let steps = columns.div_ceil(panel) * inner.div_ceil(STEP);
                        let mut ahead = Ahead::new(next, TILE.min(rows - row - height), columns, stride, steps);
                        tiles(simd, left, height, inner, right, columns, out, stride, accumulate, &mut ahead);
                    } else {
                        let data = &a.data[(top + row) * a.row_stride + first..];
                        let left = LeftOperand::Rows { data, stride: a.row_stride };
                        tiles(simd, left, height, inner, right, columns, out, stride, accumulate, &mut ahead);
                    }
                }
                ahead.finish();
                std::mem::swap(&mut here, &mut next);
            }
        }
    }
}

/// Writes what the product is added to into `out`, part of a row: elements `at..` of the whole output, columns `column..`.
/// Returns whether there is anything to add to.
#[inline(always)]
fn prepare(out: &mut [f32], base: Base, at: usize, column: usize) -> bool {
    match base {
        Base::Zero => return false,
        Base::Out => {}
        Base::Bias(bias) => pack::copy(out, &bias[column..][..out.len()]),
        Base::Residual { residual, bias: None } => pack::copy(out, &residual[at..][..out.len()]),
        Base::Residual { residual, bias: Some(bias) } => {
            let residual = &residual[at..][..out.len()];
            for ((out, &residual), &bias) in out.iter_mut().zip(residual).zip(&bias[column..]) {
                *out = residual + bias;
            }
        }
    }
    true
}

/// `out`ᵀ = base + `a` `b`, whose rows are the columns of `out`: groups of them are computed and then transposed.
fn transposed<S: Simd>(simd: S, out: MatrixMut, base: Base, a: Matrix, b: Matrix, scratch: &mut Scratch) {
    let (m, k, n, stride) = (a.rows, a.columns, b.columns, out.row_stride);
    let length = part(k, INNER);
    let panel = vectors::<S>() * S::F32_LANES;
    for first in (0..k.max(1)).step_by(length) {
        let inner = length.min(k - first);
        let base = if first == 0 { base } else { Base::Out };
        let block = block_columns::<S>(inner.max(1), RIGHT);
        for start in (0..n).step_by(block) {
            let columns = block.min(n - start);
            let right = pack_right::<S>(&mut scratch.right, b, [first, inner], [start, columns]);
            let group = scratch.group.take(GROUP * columns);
            for top in (0..m).step_by(GROUP) {
                let rows = GROUP.min(m - top);
                for (row, height) in heights(rows) {
                    let data = &a.data[(top + row) * a.row_stride + first..];
                    let left = LeftOperand::Rows { data, stride: a.row_stride };
                    let group = &mut group[row * columns..];
                    let mut ahead = Ahead::default();
                    if start == 0 && top + row + height < m {
                        let next = &data[height * a.row_stride..];
                        let rows = TILE.min(m - top - row - height);
                        let steps = columns.div_ceil(panel) * inner.div_ceil(STEP);
                        ahead = Ahead::new(next, rows, inner, a.row_stride, steps);
                    }
                    tiles(simd, left, height, inner, right, columns, group, columns, false, &mut ahead);
                }
                finish(
                    simd,
                    &mut out.data[start * stride + top..],
                    base,
                    group,
                    start * stride + top,
                    [rows, columns, stride],
                );
            }
        }
    }
}

/// Adds the transpose of a group to its base, in the output.
fn finish<S: Simd>(
    simd: S,
    out: &mut [f32],
    base: Base,
    group: &[f32],
    offset: usize,
    [rows, columns, stride]: [usize; 3],
) {
    struct Finish<'a>(&'a mut [f32], Base<'a>, &'a [f32], usize, [usize; 3]);
    impl WithSimd for Finish<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Finish(out, base, group, offset, [rows, columns, stride]) = self;
            const STRIP: usize = 16;
            let mut strip = [0.0; STRIP * GROUP];
            for start in (0..columns).step_by(STRIP) {
                let here = STRIP.min(columns - start);
                pack::transpose(&mut strip, GROUP, &group[start..], columns, rows, here);
                for column in 0..here {
                    let sums = &strip[column * GROUP..][..rows];
                    let at = (start + column) * stride;
                    let out = &mut out[at..][..rows];
                    if prepare(out, base, offset + at, offset % stride) {
                        out.iter_mut().zip(sums).for_each(|(out, &sum)| *out += sum);
                    } else {
                        pack::copy(out, sums);
                    }
                }
            }
        }
    }
    simd.vectorize(Finish(out, base, group, offset, [rows, columns, stride]));
}

/// All tiles of one height over a block of packed columns.
#[allow(clippy::too_many_arguments)]
fn tiles<S: Simd>(
    simd: S,
    left: LeftOperand,
    height: usize,
    inner: usize,
    right: &[f32],
    columns: usize,
    out: &mut [f32],
    stride: usize,
    accumulate: bool,
    ahead: &mut Ahead,
) {
    let panel = vectors::<S>() * S::F32_LANES;
    for start in (0..columns).step_by(panel) {
        let width = panel.min(columns - start);
        let padded = padded::<S>(width);
        let right = &right[start * inner..][..padded * inner];
        let out = &mut out[start..];
        macro_rules! run {
            ($rows:literal, $vectors:literal) => {
                simd.vectorize(Tile::<$rows, $vectors> { left, right, out, stride, width, accumulate, ahead })
            };
        }
        match (height, padded / S::F32_LANES) {
            (6, 4) => run!(6, 4),
            (6, 2) => run!(6, 2),
            (6, 1) => run!(6, 1),
            (4, 4) => run!(4, 4),
            (4, 2) => run!(4, 2),
            (4, 1) => run!(4, 1),
            (2, 4) => run!(2, 4),
            (2, 2) => run!(2, 2),
            (2, 1) => run!(2, 1),
            (_, 4) => run!(1, 4),
            (_, 2) => run!(1, 2),
            (_, _) => run!(1, 1),
        }
    }
}
