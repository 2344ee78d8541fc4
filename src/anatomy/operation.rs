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

/// How a machine stores what passes leave behind for those still to come, and how much of it falls to one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Bytes of a token id; 0 where ids lie elsewhere.
    pub id_bytes: usize,
    /// Bytes of an activation, or of its gradient.
    pub activation_bytes: usize,
    /// Bytes of what F leaves behind of a logit.
    pub logit_bytes: usize,
    /// A row of logits is as long as the next multiple of this.
    pub logits_multiple: usize,
    /// Partial sums that make up the gradient of a norm's weights.
    pub partial_sums: usize,
    /// Bytes kept of every score of a query and a key; 0 where attention goes in tiles and keeps none.
    pub score_bytes: usize,
    /// Keys that each query meets, those on other ranks too.
    pub keys: usize,
    /// Bytes of the mask of an element that dropout may zero; 0 without dropout.
    pub mask_bytes: usize,
    /// Whether a gated activation keeps the half that went through the function, besides its input.
    pub keeps_gate: bool,
    /// Ranks that share out what stands behind products whose outputs are split (Shoeybi et al., arXiv 1909.08053).
    pub inside: usize,
    /// Ranks that share out the rest: the same ones under sequence parallelism (Korthikanti et al., arXiv 2205.05198), else 1.
    pub outside: usize,
}

impl Storage {
    /// All of it on one rank, in one type, attention in tiles, no dropout.
    pub const fn whole(
        id_bytes: usize,
        activation_bytes: usize,
        logits_multiple: usize,
        partial_sums: usize,
    ) -> Storage {
        Storage {
            id_bytes,
            activation_bytes,
            logit_bytes: activation_bytes,
            logits_multiple,
            partial_sums,
            score_bytes: 0,
            keys: 0,
            mask_bytes: 0,
            keeps_gate: false,
            inside: 1,
            outside: 1,
        }
    }
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
    /// `split` is the axis of a product's weight that ranks share out: 0 outputs, 1 inputs.
    pub fn left(&self, kind: Kind, micro: MicroBatch, storage: &Storage, split: Option<usize>) -> usize {
        let rows = micro.rows();
        let &Storage { activation_bytes: bytes, inside, outside, .. } = storage;
        let shared =
            |width: usize, bytes: usize, ranks: usize| rows.saturating_mul(width).saturating_mul(bytes).div_ceil(ranks);
        let [inputs_by, outputs_by] = match split {
            Some(1) => [inside, outside],
            _ => [outside, inside],
        };
        let ids = rows.saturating_mul(storage.id_bytes);
        match (*self, kind) {
            (Operation::Lookup { width }, Kind::F) => ids.saturating_add(shared(width, storage.mask_bytes, outside)),
            (Operation::Lookup { width }, Kind::I) => ids.saturating_add(shared(width, bytes, outside)),
            (Operation::Norm { width, statistics, .. }, Kind::F) => {
                shared(width, bytes, outside).saturating_add(shared(statistics, FLOAT, outside))
            }
            (Operation::Norm { width, vectors, .. }, Kind::I) => storage.partial_sums * vectors * width * FLOAT,
            (Operation::Product { inputs, .. }, Kind::F) => shared(inputs, bytes, inputs_by),
            (Operation::Product { inputs, outputs }, Kind::I) => {
                shared(inputs, bytes, inputs_by).saturating_add(shared(outputs, bytes, outputs_by))
            }
            (Operation::Attention { heads, groups, size }, Kind::F) => {
                // with fewer heads of keys than ranks each rank has a copy of one
                let operands = shared((heads + 2 * groups.max(inside)) * size, bytes, inside);
                let rest = match storage.score_bytes {
                    0 => shared(heads, FLOAT, inside),
                    score => shared(heads.saturating_mul(storage.keys), score, inside),
                };
                operands.saturating_add(rest)
            }
            (Operation::Activate { inputs, outputs }, Kind::F) => {
                let half = if storage.keeps_gate && inputs != outputs { outputs } else { 0 };
                shared(inputs + half, bytes, inside)
            }
            (Operation::Add { width }, Kind::F) => shared(width, storage.mask_bytes, outside),
            (Operation::Classify { width, vocabulary }, Kind::F | Kind::I) => {
                let logit = if kind == Kind::F { storage.logit_bytes } else { bytes };
                let logits = shared(vocabulary.next_multiple_of(storage.logits_multiple), logit, inside);
                shared(width, bytes, outside).saturating_add(logits)
            }
            _ => 0,
        }
    }

    /// Whether it is attention.
    pub fn has_heads(&self) -> bool {
        matches!(self, Operation::Attention { .. })
    }

    /// Whether the wider of its rows is one that ranks share out: it stands behind a product whose outputs are split.
    pub fn has_split_rows(&self) -> bool {
        match *self {
            Operation::Product { inputs, outputs } => inputs != outputs,
            Operation::Attention { .. } | Operation::Activate { .. } | Operation::Rotate { .. } => true,
            _ => false,
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
