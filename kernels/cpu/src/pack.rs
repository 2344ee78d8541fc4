//! Parts of matrices, copied into the order in which tiles read them.

use crate::prefetch::prefetch;
use crate::vector;

/// Rows between the one that is packed and the one that is prefetched.
const AHEAD: usize = 12;

/// Rows and columns that are transposed in registers.
const SIDE: usize = 4;

/// The transpose of a block.
#[inline(always)]
fn turned(block: [[f32; SIDE]; SIDE]) -> [[f32; SIDE]; SIDE] {
    // Compilers take single elements instead.
    #[cfg(target_arch = "x86_64")]
    if let Some(sse) = pulp::core_arch::x86::Sse::try_new() {
        let [a, b, c, d] = block.map(pulp::cast);
        let (low, high) = (sse._mm_unpacklo_ps(a, b), sse._mm_unpackhi_ps(a, b));
        let (other_low, other_high) = (sse._mm_unpacklo_ps(c, d), sse._mm_unpackhi_ps(c, d));
        let rows = [
            sse._mm_movelh_ps(low, other_low),
            sse._mm_movehl_ps(other_low, low),
            sse._mm_movelh_ps(high, other_high),
            sse._mm_movehl_ps(other_high, high),
        ];
        return rows.map(pulp::cast);
    }
    std::array::from_fn(|row| std::array::from_fn(|column| block[column][row]))
}

/// Writes the transpose of `rows` x `columns` elements of `from`: `to[column * to_stride + row]`.
#[inline(always)]
pub(crate) fn transpose(
    to: &mut [f32],
    to_stride: usize,
    from: &[f32],
    from_stride: usize,
    rows: usize,
    columns: usize,
) {
    let (whole_rows, whole_columns) = (rows / SIDE * SIDE, columns / SIDE * SIDE);
    for row in (0..whole_rows).step_by(SIDE) {
        let lines: [&[[f32; SIDE]]; SIDE] =
            std::array::from_fn(|i| from[(row + i) * from_stride..][..whole_columns].as_chunks().0);
        for column in 0..whole_columns / SIDE {
            let block = turned(lines.map(|line| line[column]));
            for (i, line) in block.iter().enumerate() {
                to[(column * SIDE + i) * to_stride + row..][..SIDE].copy_from_slice(line);
            }
        }
        for column in whole_columns..columns {
            for i in 0..SIDE {
                to[column * to_stride + row + i] = from[(row + i) * from_stride + column];
            }
        }
    }
    for row in whole_rows..rows {
        for column in 0..columns {
            to[column * to_stride + row] = from[row * from_stride + column];
        }
    }
}

/// Buffer whose first element is at the start of a cache line.
#[derive(Default)]
pub(crate) struct AlignedBuffer(Vec<f32>);

impl AlignedBuffer {
    /// `length` elements that hold anything.
    pub(crate) fn take(&mut self, length: usize) -> &mut [f32] {
        const LINE: usize = 64;
        if self.0.len() < length + LINE {
            self.0.resize(length + LINE, 0.0);
        }
        let start = self.0.as_ptr().align_offset(LINE).min(LINE);
        &mut self.0[start..][..length]
    }
}

/// Copies a few vectors without a call.
#[inline(always)]
pub(crate) fn copy(to: &mut [f32], from: &[f32]) {
    let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<16>(), from.as_chunks::<16>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = *from);
}

/// Packs `inner` x `columns` elements, rows `from_stride` apart, into panels of `panel` columns; the last panel has as many
/// as `padded` says, filled up with zeros.
pub(crate) fn rows(
    to: &mut [f32],
    panel: usize,
    from: &[f32],
    from_stride: usize,
    inner: usize,
    columns: usize,
    padded: impl Fn(usize) -> usize,
) {
    let whole = columns / panel * panel;
    let rest = columns - whole;
    let width = padded(rest);
    vector::widest(
        #[inline(always)]
        || {
            for p in 0..inner {
                let ahead = (p + AHEAD).min(inner - 1);
                prefetch(&from[ahead * from_stride..][..columns]);
                let from = &from[p * from_stride..][..columns];
                for start in (0..whole).step_by(panel) {
                    copy(&mut to[start * inner + p * panel..][..panel], &from[start..][..panel]);
                }
                if rest > 0 {
                    let to = &mut to[whole * inner + p * width..][..width];
                    to[..rest].copy_from_slice(&from[whole..]);
                    to[rest..].fill(0.0);
                }
            }
        },
    );
}

/// As [`rows`] of the transposed matrix: `columns` rows of `inner` elements, `from_stride` apart.
pub(crate) fn columns(
    to: &mut [f32],
    panel: usize,
    from: &[f32],
    from_stride: usize,
    inner: usize,
    columns: usize,
    padded: impl Fn(usize) -> usize,
) {
    vector::widest(
        #[inline(always)]
        || {
            for start in (0..columns).step_by(panel) {
                let here = panel.min(columns - start);
                let width = if here == panel { panel } else { padded(here) };
                let to = &mut to[start * inner..][..width * inner];
                if here < width {
                    to.fill(0.0);
                }
                transpose(to, width, &from[start * from_stride..], from_stride, here, inner);
            }
        },
    );
}

/// Packs rows of the left matrix that are columns in memory (`inner` rows of `rows` elements, `from_stride` apart) into tiles
/// of the given heights, one after the other.
pub(crate) fn left(
    to: &mut [f32],
    from: &[f32],
    from_stride: usize,
    inner: usize,
    heights: impl Iterator<Item = (usize, usize)>,
) {
    for (start, height) in heights {
        let (from, to) = (&from[start..], &mut to[start * inner..][..height * inner]);
        match height {
            6 => left_tile::<6>(to, from, from_stride),
            4 => left_tile::<4>(to, from, from_stride),
            2 => left_tile::<2>(to, from, from_stride),
            _ => left_tile::<1>(to, from, from_stride),
        }
    }
}

fn left_tile<const R: usize>(to: &mut [f32], from: &[f32], from_stride: usize) {
    for (p, to) in to.as_chunks_mut::<R>().0.iter_mut().enumerate() {
        to.copy_from_slice(&from[p * from_stride..][..R]);
    }
}
