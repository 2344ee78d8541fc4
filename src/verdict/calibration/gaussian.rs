//! Linear algebra of small symmetric matrices.

/// The lower triangle L of a positive definite matrix L Lᵀ, by rows.
#[derive(Clone, Debug, Default)]
pub struct Cholesky(Vec<Vec<f64>>);

impl Cholesky {
    /// Decomposes the matrix with `entry` in each row and column, which must be positive definite.
    pub fn of(size: usize, entry: impl Fn(usize, usize) -> f64) -> Cholesky {
        let mut lower: Vec<Vec<f64>> = Vec::with_capacity(size);
        for row in 0..size {
            let mut new = Vec::with_capacity(row + 1);
            for column in 0..=row {
                let above: &[f64] = if column == row { &new } else { &lower[column][..column] };
                let rest = entry(row, column) - above.iter().zip(&new).map(|(a, b)| a * b).sum::<f64>();
                // rounding may take the last bits of a pivot
                new.push(if column == row { rest.max(1e-12).sqrt() } else { rest / lower[column][column] });
            }
            lower.push(new);
        }
        Cholesky(lower)
    }

    /// Returns L `right`.
    pub fn times(&self, right: &[f64]) -> Vec<f64> {
        self.0.iter().map(|row| row.iter().zip(right).map(|(a, b)| a * b).sum()).collect()
    }

    /// Returns L⁻¹ `right`.
    pub fn forward(&self, right: &[f64]) -> Vec<f64> {
        let mut solved: Vec<f64> = Vec::with_capacity(right.len());
        for (row, right) in self.0.iter().zip(right) {
            let known: f64 = row.iter().zip(&solved).map(|(a, b)| a * b).sum();
            solved.push((right - known) / row[solved.len()]);
        }
        solved
    }
}
