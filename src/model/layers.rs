//! The layers of a part of the model, compiled from its description.

use crate::compute::{Activated, Attention, Classifier, Function, Linear, Norm, NormKind, Rotation, Side};
use crate::model_spec::transformer::{ActivationFunction, Config};
use crate::model_spec::{Operation, Part};
use anyhow::{Context as _, Result, bail};

/// A layer, and the group of the part's tensors that its weights are in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    pub group: usize,
    pub call: Call,
}

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// The table by token is in the layer's group, that by position in the next one.
    Embed {
        width: usize,
        has_positions: bool,
    },
    Norm(Norm),
    /// With the number of the layer whose input is added to the output.
    Linear(Linear, Option<usize>),
    Activated(Activated),
    Rotate(Rotation),
    Attention(Attention),
    Classify(Classifier),
}

/// Returns the layers of a part, in order. A product takes the activation or the addition behind it along.
///
/// # Errors
/// An operation that cannot be executed.
pub fn compile(part: &Part, config: &Config) -> Result<Vec<Layer>> {
    let places =
        part.groups.iter().enumerate().flat_map(|(group, tensors)| (0..tensors.len()).map(move |i| (group, i)));
    let mut tensors = places;
    let mut next = || tensors.next().context("expected a tensor for every weight of the description, found too few");
    let mut layers: Vec<Layer> = Vec::new();
    let mut norm = None;
    let mut operations = part.operations.iter().peekable();
    while let Some(operation) = operations.next() {
        let layer = match *operation {
            Operation::Lookup { width } => {
                let has_positions = config.positions > 0;
                let (group, _) = next()?;
                if has_positions {
                    next()?;
                }
                Layer { group, call: Call::Embed { width, has_positions } }
            }
            Operation::Norm { width, statistics, vectors } => {
                let (group, weight) = next()?;
                let kind = match (statistics, vectors) {
                    (2, 2) => NormKind::Layer,
                    (1, 1) => NormKind::RootMeanSquare,
                    _ => bail!("expected a LayerNorm with or an RMSNorm without biases, found another norm"),
                };
                if kind == NormKind::Layer {
                    next()?;
                }
                norm = Some(layers.len());
                let epsilon = config.norm_epsilon as f32;
                Layer { group, call: Call::Norm(Norm { kind, width, epsilon, weight }) }
            }
            Operation::Product { inputs, outputs, has_bias } => {
                let (group, weight) = next()?;
                if has_bias {
                    next()?;
                }
                let linear = Linear { weight, has_bias, inputs, outputs };
                let call = match operations.peek() {
                    Some(&&Operation::Activate { outputs: width, .. }) => {
                        operations.next();
                        Call::Activated(Activated { linear, function: function(config)?, width })
                    }
                    Some(Operation::Add { .. }) => {
                        operations.next();
                        Call::Linear(linear, norm)
                    }
                    _ => Call::Linear(linear, None),
                };
                Layer { group, call }
            }
            Operation::Rotate { width } => {
                let fused = (config.heads + 2 * config.groups) * config.head_size;
                Layer { group: 0, call: Call::Rotate(Rotation { heads: width / config.head_size, fused }) }
            }
            Operation::Attention { heads, groups, size } => {
                Layer { group: 0, call: Call::Attention(Attention { heads, groups, size }) }
            }
            Operation::Classify { width, vocabulary } => {
                let (group, weight) = next()?;
                let is_shared = part.groups[group][weight].tied.is_some();
                let (side, rows) = (if is_shared { Side::Shared } else { Side::Own }, config.padded_vocabulary());
                Layer { group, call: Call::Classify(Classifier { weight, side, width, vocabulary, rows }) }
            }
            Operation::Activate { .. } | Operation::Add { .. } => {
                bail!("expected a product in front of every activation and addition, found none")
            }
        };
        layers.push(layer);
    }
    Ok(layers)
}

fn function(config: &Config) -> Result<Function> {
    use crate::model_spec::transformer::Activation::{Gated, Plain};
    match (config.activation, config.function) {
        (Plain, ActivationFunction::GeluTanh) if config.biases.mlp => Ok(Function::Gelu),
        (Gated, ActivationFunction::Silu) => Ok(Function::SwiGlu),
        _ => bail!("expected GELU with biases or SwiGLU in the MLP, found another activation"),
    }
}
