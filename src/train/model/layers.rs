//! The layers of a part of the model, compiled from its description.

use crate::compute::{
    Activated, Attention, Classifier, Copies, Function, Linear, Norm, NormKind, Reduction, Rotation, Side, TensorShare,
};
use anyhow::{Context as _, Result, bail};
use pipesim_models::model_spec::transformer::{ActivationFunction, Config};
use pipesim_models::model_spec::{Operation, Part, Tensor};

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
        first: usize,
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

/// Returns the layers of a part, in order, as a tensor-parallel rank has them. A product takes the activation or the addition behind
/// it along.
///
/// # Errors
/// An operation that cannot be executed.
pub fn compile(part: &Part, config: &Config, share: TensorShare) -> Result<Vec<Layer>> {
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
                let (group, table) = next()?;
                if has_positions {
                    next()?;
                }
                let (first, _) = rows(&part.groups[group][table], share);
                Layer { group, call: Call::Embed { width, first, has_positions } }
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
            Operation::Product { has_bias, .. } => {
                let (group, weight) = next()?;
                if has_bias {
                    next()?;
                }
                let linear = linear(&part.groups[group][weight], weight, has_bias, share);
                let call = match operations.peek() {
                    Some(&&Operation::Activate { outputs: width, .. }) => {
                        operations.next();
                        Call::Activated(Activated { linear, function: function(config)?, width: width / share.size })
                    }
                    Some(Operation::Add { .. }) => {
                        operations.next();
                        Call::Linear(linear, norm)
                    }
                    _ => Call::Linear(linear, None),
                };
                Layer { group, call }
            }
            Operation::Rotate { .. } => {
                let Attention { heads, groups, size } =
                    attention([config.heads, config.groups, config.head_size], share);
                let fused = (heads + 2 * groups) * size;
                Layer { group: 0, call: Call::Rotate(Rotation { heads: heads + groups, fused }) }
            }
            Operation::Attention { heads, groups, size, .. } => {
                Layer { group: 0, call: Call::Attention(attention([heads, groups, size], share)) }
            }
            Operation::Classify { width, vocabulary } => {
                let (group, weight) = next()?;
                let table = &part.groups[group][weight];
                let side = if table.tied.is_some() { Side::Shared } else { Side::Own };
                let (first, rows) = rows(table, share);
                let vocabulary = vocabulary.saturating_sub(first).min(rows);
                Layer { group, call: Call::Classify(Classifier { weight, side, width, first, vocabulary, rows }) }
            }
            Operation::Activate { .. } | Operation::Add { .. } => {
                bail!("expected a product in front of every activation and addition, found none")
            }
            Operation::Route { .. }
            | Operation::Dispatch { .. }
            | Operation::Grouped { .. }
            | Operation::ActivateCopies { .. }
            | Operation::Combine { .. } => bail!("expected a dense model, found a mixture of experts"),
            Operation::Index { .. } | Operation::Convolve { .. } | Operation::Scan(_) | Operation::Gate { .. } => {
                bail!("expected plain softmax attention, found another mixer of tokens")
            }
            Operation::Adapt { .. } => bail!("expected a model whose weights are trained, found adapters"),
        };
        layers.push(layer);
    }
    Ok(layers)
}

/// The attention to these heads, groups and channels that a rank has.
pub fn attention([heads, groups, size]: [usize; 3], share: TensorShare) -> Attention {
    Attention { heads: heads / share.size, groups: (groups / share.size).max(1), size }
}

/// The first row of a table that a rank has, and their number.
fn rows(table: &Tensor, share: TensorShare) -> (usize, usize) {
    let run = table.split.as_ref().and_then(|split| split.runs(share.rank, share.size).next());
    run.map_or((0, table.shape[0]), |run| (run.start, run.len()))
}

/// A product with a rank's share of this weight.
fn linear(tensor: &Tensor, weight: usize, has_bias: bool, TensorShare { rank, size, .. }: TensorShare) -> Linear {
    let shape = tensor.share(rank, size);
    let split = tensor.split.as_ref().filter(|_| size > 1);
    let reduction = match split.map(|split| split.axis) {
        None => Reduction::None,
        Some(0) => Reduction::Gradient,
        Some(_) => Reduction::Output,
    };
    let copied = split.and_then(|split| {
        let first = split.blocks.iter().position(|block| block.has_copies(size))?;
        let block = split.blocks[first];
        Some(Copies {
            start: split.runs(rank, size).take(first).map(|run| run.len()).sum(),
            blocks: split.blocks.len() - first,
            size: block.size,
            pieces: block.pieces,
            piece: block.held(rank, size).start,
        })
    });
    Linear { weight, has_bias, inputs: shape[1], outputs: shape[0], reduction, copies: copied }
}

fn function(config: &Config) -> Result<Function> {
    use pipesim_models::model_spec::transformer::Activation::{Gated, Plain};
    match (config.activation, config.function) {
        (Plain, ActivationFunction::GeluTanh) if config.biases.mlp => Ok(Function::Gelu),
        (Gated, ActivationFunction::Silu) => Ok(Function::SwiGlu),
        _ => bail!("expected GELU with biases or SwiGLU in the MLP, found another activation"),
    }
}
