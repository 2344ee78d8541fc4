//! Matrix products on row-major, strided views.

use crate::product::{Base, product};

/// A view of a matrix: element (i, j) is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `columns` consecutive elements; a row starts `row_stride` elements after the one before.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Matrix<'a> {
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same elements with rows and columns swapped.
    pub fn transposed(self) -> Matrix<'a> {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// The output of a product: rows that do not overlap, each of consecutive elements.
pub struct MatrixMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `columns` consecutive elements; a row starts `row_stride` elements after the one before.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> MatrixMut<'a> {
        MatrixMut { data, rows, columns, row_stride }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_strided_and_transposed_views() {
        let a: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..40).map(|i| (i * i % 7) as f32).collect();
        // a is 3 x 5 with rows 8 apart, b is 4 x 5 with rows 6 apart, used transposed
        let mut out = vec![1.0; 3 * 7];
        set_product(MatrixMut::new(&mut out, 3, 4, 7), Matrix::new(&a, 3, 5, 8), Matrix::new(&b, 4, 5, 6).transposed());
        add_product(MatrixMut::new(&mut out, 3, 4, 7), Matrix::new(&a, 3, 5, 8), Matrix::new(&b, 4, 5, 6).transposed());
        for i in 0..3 {
            for j in 0..4 {
                let expected: f32 = (0..5).map(|k| 2.0 * a[i * 8 + k] * b[j * 6 + k]).sum();
                assert_eq!(out[i * 7 + j], expected);
            }
            assert!(i == 2 || out[i * 7 + 4..i * 7 + 7] == [1.0; 3]);
        }
    }
}
