//! What a part computes, operation by operation with its shapes: FLOPs, and what passes leave behind, follow from them.

use crate::op::Kind;

/// The size of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences, B.
    pub sequences: usize,
    /// Tokens a sequence, T.
    pub tokens: usize,
}

impl MicroBatch {
    /// Tokens of all sequences, n.
    pub fn rows(&self) -> usize {
        self.sequences * self.tokens
    }
}

/// How a machine stores what passes leave behind for those still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Bytes of a token id; 0 where ids lie elsewhere.
    pub id_bytes: usize,
    /// Bytes of an activation, or of its gradient.
    pub activation_bytes: usize,
    /// A row of logits is as long as the next multiple of this.
    pub logits_multiple: usize,
    /// Partial sums that make up the gradient of a norm's weights.
    pub partial_sums: usize,
}

/// Bytes of what is kept in float32 whatever the activations' type: statistics, logarithms of sums, gradients.
const FLOAT: usize = size_of::<f32>();

/// One operation on each of a micro-batch's n tokens. Widths are elements a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Rows of tables, at the token's id or position, added up.
    Lookup { width: usize },
    /// LayerNorm or RMSNorm: its backward needs 2 statistics a token (mean and deviation) or 1; it has 2 vectors of weights
    /// (weight and bias) or 1.
    Norm { width: usize, statistics: usize, vectors: usize },
    /// A product with a weight (outputs, inputs).
    Product { inputs: usize, outputs: usize },
    /// Rotary embedding of queries and keys, in place; both together are so wide.
    Rotate { width: usize },
    /// Attention of a token to its sequence, computed in tiles: scores are never kept. `heads` of queries, `groups` of keys and
    /// values (as many unless they are shared), `size` channels each.
    Attention { heads: usize, groups: usize, size: usize },
    /// A function of each element, GELU, or of two halves of the input, SwiGLU.
    Activate { inputs: usize, outputs: usize },
    /// The residual stream and what is added to it.
    Add { width: usize },
    /// Logits of a vocabulary and their cross entropy. The forward leaves the logits' gradient behind, in their place.
    Classify { width: usize, vocabulary: usize },
}

impl Operation {
    /// FLOPs of the matrix products of F, I, W or B; two for each multiplication and addition. The rest is bound by memory and
    /// counts as none. Attention counts the full square of scores, as Narayanan et al. 2021 and Megatron do; where a mask lets
    /// half of it be skipped, time is half. Per layer these are Qi et al.'s F = sbh(24h + 4s), I = sbh(24h + 8s), W = 24sbh²
    /// (arXiv 2401.10241, table 1).
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        if kind == Kind::B {
            return self.flops(Kind::I, micro) + self.flops(Kind::W, micro);
        }
        let product = |a: usize, b: usize| 2 * micro.rows() as u128 * a as u128 * b as u128;
        match (*self, kind) {
            (Operation::Product { inputs, outputs }, _) => product(inputs, outputs),
            (Operation::Classify { width, vocabulary }, _) => product(width, vocabulary),
            // queries times keys, scores times values; each has two operands that need a gradient, and no weights
            (Operation::Attention { heads, size, .. }, Kind::F) => 2 * product(heads * size, micro.tokens),
            (Operation::Attention { heads, size, .. }, Kind::I) => 4 * product(heads * size, micro.tokens),
            _ => 0,
        }
    }

    /// Bytes that F leaves behind for I, or I for W; other kinds leave nothing. F leaves every operation's input (an attention's
    /// output is the input of the product after it), I exactly the operands of W: products' inputs and gradients of outputs.
    pub fn left(&self, kind: Kind, micro: MicroBatch, storage: &Storage) -> usize {
        let activations = |width: usize| micro.rows() * width * storage.activation_bytes;
        let floats = |width: usize| micro.rows() * width * FLOAT;
        let ids = micro.rows() * storage.id_bytes;
        match (*self, kind) {
            (Operation::Lookup { .. }, Kind::F) => ids,
            (Operation::Lookup { width }, Kind::I) => ids + activations(width),
            (Operation::Norm { width, statistics, .. }, Kind::F) => activations(width) + floats(statistics),
            (Operation::Norm { width, vectors, .. }, Kind::I) => storage.partial_sums * vectors * width * FLOAT,
            (Operation::Product { inputs, .. }, Kind::F) => activations(inputs),
            (Operation::Product { inputs, outputs }, Kind::I) => activations(inputs + outputs),
            (Operation::Attention { heads, groups, size }, Kind::F) => {
                activations((heads + 2 * groups) * size) + floats(heads)
            }
            (Operation::Activate { inputs, .. }, Kind::F) => activations(inputs),
            (Operation::Classify { width, vocabulary }, Kind::F | Kind::I) => {
                activations(width + vocabulary.next_multiple_of(storage.logits_multiple))
            }
            _ => 0,
        }
    }

    /// The longer of the rows that it reads and writes; of logits, those that it reads.
    pub fn widest(&self) -> usize {
        match *self {
            Operation::Lookup { width }
            | Operation::Norm { width, .. }
            | Operation::Rotate { width }
            | Operation::Add { width }
            | Operation::Classify { width, .. } => width,
            Operation::Product { inputs, outputs } | Operation::Activate { inputs, outputs } => inputs.max(outputs),
            Operation::Attention { heads, groups, size } => (heads + 2 * groups) * size,
        }
    }
}
