//! Strided views of row-major matrices.

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
