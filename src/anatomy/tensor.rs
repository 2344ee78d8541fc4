/// Initial values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Normal distribution with mean 0 and this standard deviation.
    Normal(f64),
    /// Ones.
    One,
    /// Zeros.
    Zero,
}

/// One tensor of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name in checkpoints.
    pub name: &'static str,
    /// Shape, row-major; the weight of a product is (outputs, inputs).
    pub shape: Vec<usize>,
    /// Number of padding rows at the end, which stay zero.
    pub padding: usize,
    /// Initial values.
    pub initial: Initial,
    /// Name of the tensor of an earlier part that this one shares, if any.
    pub tied: Option<&'static str>,
    /// Axis that tensor-parallel ranks share (Shoeybi et al., arXiv 1909.08053); `None`: each rank holds the whole tensor.
    pub split: Option<usize>,
}

impl Tensor {
    /// Returns an unshared tensor without padding or split axis.
    pub fn new(name: &'static str, shape: impl Into<Vec<usize>>, initial: Initial) -> Tensor {
        Tensor { name, shape: shape.into(), padding: 0, initial, tied: None, split: None }
    }

    /// Returns the tensor split along `axis`.
    pub fn split(self, axis: usize) -> Tensor {
        Tensor { split: Some(axis), ..self }
    }

    /// Returns the tensor with its last `rows` rows as padding.
    pub fn padded(self, rows: usize) -> Tensor {
        Tensor { padding: rows, ..self }
    }

    /// Returns a tensor that shares `other` under another name.
    pub fn tied_to(name: &'static str, other: &Tensor) -> Tensor {
        Tensor { name, tied: Some(other.name), ..other.clone() }
    }

    /// Returns the number of elements as stored, including padding.
    pub fn elements(&self) -> u128 {
        self.shape.iter().map(|&size| size as u128).product()
    }

    /// Returns the number of padding elements.
    pub fn padding_elements(&self) -> u128 {
        self.shape[1..].iter().map(|&size| size as u128).product::<u128>() * self.padding as u128
    }
}
