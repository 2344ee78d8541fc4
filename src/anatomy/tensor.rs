//! One tensor of a model's part.

/// What a tensor is before training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Normally distributed around 0 with this standard deviation.
    Normal(f64),
    /// Ones.
    One,
    /// Zeros.
    Zero,
}

/// One tensor of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// What files call it.
    pub name: &'static str,
    /// Row-major; a product's weight is (outputs, inputs).
    pub shape: Vec<usize>,
    /// How many of the last rows are zeros and stay so: they only fill the tensor up.
    pub padding: usize,
    /// What it is before training.
    pub initial: Initial,
    /// The tensor of an earlier part that this one is, where it is no tensor of its own.
    pub tied: Option<&'static str>,
    /// The axis along which ranks of a tensor-parallel group share it out (Shoeybi et al., arXiv 1909.08053); where there is
    /// none each holds all of it.
    pub split: Option<usize>,
}

impl Tensor {
    /// A tensor of its own without padding, whole on every rank.
    pub fn new(name: &'static str, shape: impl Into<Vec<usize>>, initial: Initial) -> Tensor {
        Tensor { name, shape: shape.into(), padding: 0, initial, tied: None, split: None }
    }

    /// The same tensor, shared out along `axis`.
    pub fn split(self, axis: usize) -> Tensor {
        Tensor { split: Some(axis), ..self }
    }

    /// The same tensor, the last `rows` rows of which only fill it up.
    pub fn padded(self, rows: usize) -> Tensor {
        Tensor { padding: rows, ..self }
    }

    /// A tensor that is `other`, under another name.
    pub fn tied_to(name: &'static str, other: &Tensor) -> Tensor {
        Tensor { name, tied: Some(other.name), ..other.clone() }
    }

    /// Elements as stored, padding included.
    pub fn elements(&self) -> u128 {
        self.shape.iter().map(|&size| size as u128).product()
    }

    /// Elements that only fill it up: the last ones.
    pub fn padding_elements(&self) -> u128 {
        self.shape[1..].iter().map(|&size| size as u128).product::<u128>() * self.padding as u128
    }
}
