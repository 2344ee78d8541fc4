//! Tensors and operations of a part, while it is built.

use super::operation::Operation;
use super::part::Initial::Zero;
use super::part::Tensor;

/// Tensors and operations, in the same order.
#[derive(Default)]
pub(super) struct LayerPiece {
    pub tensors: Vec<Tensor>,
    pub operations: Vec<Operation>,
}

impl LayerPiece {
    pub fn add(&mut self, tensors: impl IntoIterator<Item = Tensor>, operation: Operation) {
        self.tensors.extend(tensors);
        self.operations.push(operation);
    }

    /// Adds a product with a weight (outputs, inputs).
    pub fn product(&mut self, weight: Tensor) {
        self.product_with(weight, None);
    }

    /// Adds a product with a weight (outputs, inputs) and its bias, if any; the bias is split with the outputs.
    pub fn product_with(&mut self, weight: Tensor, bias: Option<&'static str>) {
        let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
        let bias = bias.map(|name| {
            let bias = Tensor::new(name, [outputs], Zero);
            match &weight.split {
                Some(split) if split.axis == 0 => bias.split(0, &split.blocks),
                _ => bias,
            }
        });
        let has_bias = bias.is_some();
        self.add([weight].into_iter().chain(bias), Operation::Product { inputs, outputs, has_bias });
    }
}
