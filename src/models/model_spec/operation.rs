//! The operations of a part with their shapes; FLOPs and saved activations follow from them.

use super::split::Split;
use pipesim_schedule::op::Kind;

/// Size of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences, B.
    pub sequences: usize,
    /// Tokens per sequence, T.
    pub tokens: usize,
}

impl MicroBatch {
    /// Returns the tokens of all sequences, n.
    pub fn rows(&self) -> usize {
        self.sequences * self.tokens
    }

    /// Returns [`MicroBatch::rows`] of a micro-batch that need not fit this machine's memory.
    fn wide_rows(&self) -> u64 {
        (self.sequences as u64).saturating_mul(self.tokens as u64)
    }
}

/// How saved activations are stored, and which share of them one rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Bytes of a token id; 0 if ids are stored elsewhere.
    pub id_bytes: usize,
    /// Bytes of an activation or its gradient.
    pub activation_bytes: usize,
    /// Bytes of an operand that a product saves: fewer where it is cast to 8 bits before.
    pub product_bytes: usize,
    /// Bytes per logit that F saves.
    pub logit_bytes: usize,
    /// Whether each tensor-parallel rank has all logits instead of its share of the vocabulary.
    pub has_whole_logits: bool,
    /// Bytes per element that a norm saves besides its input.
    pub norm_bytes: usize,
    /// Logits per row are rounded up to a multiple of this.
    pub logits_multiple: usize,
    /// Number of partial sums that make up the gradient of a norm's weights.
    pub partial_sums: usize,
    /// Bytes saved per attention score; 0 with FlashAttention, which saves none.
    pub score_bytes: usize,
    /// Keys that each query attends to, including those on other ranks.
    pub keys: usize,
    /// Bytes per element of dropout's mask; 0 without dropout.
    pub mask_bytes: usize,
    /// Whether a product saves its input as gathered from sequence-parallel ranks.
    pub keeps_gathered: bool,
    /// Whether weights are frozen, so that products do not save their inputs.
    pub is_frozen: bool,
    /// Whether a gated activation saves the activated half in addition to its input.
    pub keeps_gate: bool,
    /// Tensor-parallel degree: ranks that share the rows between products (Shoeybi et al., arXiv 1909.08053).
    pub tp: usize,
    /// Sequence-parallel degree: ranks that share the remaining rows (Korthikanti et al., arXiv 2205.05198); 1 without sequence
    /// parallelism.
    pub sp: usize,
    /// Expert-tensor-parallel degree: ranks that share each expert and have copies of its rows.
    pub etp: usize,
    /// Rows of the busiest rank's experts, in percent of the mean.
    pub load_percent: usize,
}

impl Storage {
    /// Everything on one rank and in one type, with FlashAttention and without dropout.
    pub const fn whole(
        id_bytes: usize,
        activation_bytes: usize,
        logits_multiple: usize,
        partial_sums: usize,
    ) -> Storage {
        Storage {
            id_bytes,
            activation_bytes,
            product_bytes: activation_bytes,
            logit_bytes: activation_bytes,
            has_whole_logits: false,
            norm_bytes: 0,
            logits_multiple,
            partial_sums,
            score_bytes: 0,
            keys: 0,
            mask_bytes: 0,
            keeps_gathered: false,
            is_frozen: false,
            keeps_gate: false,
            tp: 1,
            sp: 1,
            etp: 1,
            load_percent: 100,
        }
    }
}

impl Storage {
    /// Returns what the busiest rank has of `bytes` of rows of experts.
    pub fn loaded(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * self.load_percent as u128 / 100) as u64
    }
}

/// Bytes of what is kept in float32 for any activation type: statistics, log-sum-exps, gradients of norms.
const FLOAT: usize = size_of::<f32>();

/// Keys that a query attends to, if not all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of tokens, w.
    pub tokens: usize,
    /// Whether sequences are cut into chunks of w tokens that do not see each other (Llama 4); otherwise each query sees the
    /// last w tokens.
    pub is_chunked: bool,
}

impl Window {
    /// Returns twice the scores under a causal mask per sequence of `tokens` tokens and head, which without a window is the
    /// full square.
    pub fn scores(window: Option<Window>, tokens: usize) -> u128 {
        let all = tokens as u128;
        match window.filter(|window| window.tokens < tokens) {
            None => all * all,
            Some(Window { tokens, is_chunked: true }) => tokens as u128 * all,
            Some(Window { tokens, is_chunked: false }) => tokens as u128 * (2 * all - tokens as u128),
        }
    }
}

/// What a fused kernel does per token: of a scan in chunks, or of what comes with a choice of keys. Ranks share all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanWork {
    /// FLOPs of the forward; the backward takes twice as many.
    pub flops: usize,
    /// Elements kept for the backward, as wide as activations.
    pub kept: usize,
    /// Numbers of 4 bytes kept for the backward.
    pub floats: usize,
    /// Elements that the forward's kernels read and write.
    pub moved: usize,
    /// Kernels of the forward.
    pub kernels: usize,
}

/// One operation on each of the n tokens of a micro-batch. Widths are elements per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // fields are widths and counts, as the variants say
pub enum Operation {
    /// Sum of rows of tables, at the token's id or position.
    Lookup { width: usize },
    /// LayerNorm or RMSNorm. The backward needs 2 statistics per token (mean and deviation) or 1; there are 2 vectors of weights
    /// (weight and bias) or 1.
    Norm { width: usize, statistics: usize, vectors: usize },
    /// A product with a weight (outputs, inputs), and perhaps a bias.
    Product { inputs: usize, outputs: usize, has_bias: bool },
    /// In-place rotary embedding of queries and keys, `width` elements together.
    Rotate { width: usize },
    /// Attention over the sequence: `heads` of queries, `groups` of keys and values; `size` channels per query and key, `value`
    /// per value.
    Attention { heads: usize, groups: usize, size: usize, value: usize, window: Option<Window> },
    /// Scores of all keys by an indexer of `heads` heads with `size` channels, and the choice of keys; `has_sum`: the heads' scores are
    /// weighted and added up.
    Index { heads: usize, size: usize, has_sum: bool },
    /// A convolution of each channel over `taps` tokens.
    Convolve { width: usize, taps: usize },
    /// A scan over the sequence.
    Scan(ScanWork),
    /// A gate of `gates` numbers that scales `width` channels.
    Gate { width: usize, gates: usize },
    /// An elementwise function (GELU), or one of two halves of the input (SwiGLU).
    Activate { inputs: usize, outputs: usize },
    /// Addition to the residual stream.
    Add { width: usize },
    /// Logits and their cross entropy. The forward leaves the gradient of the logits in their place.
    Classify { width: usize, vocabulary: usize },
    /// A router: scores of `experts` experts, and the choice of `top_k` per token. `keeps_input`: no other operation saves its
    /// input.
    Route { width: usize, experts: usize, top_k: usize, keeps_input: bool },
    /// `top_k` copies of each row, sorted by expert and sent to the ranks that have them.
    Dispatch { width: usize, top_k: usize },
    /// A grouped product: each of `top_k` copies of a row with the weight (outputs, inputs) of its expert. Of the weight,
    /// expert-tensor ranks share axis 0, the outputs, or 1, the inputs.
    Grouped { experts: usize, top_k: usize, inputs: usize, outputs: usize, axis: usize },
    /// [`Operation::Activate`] on `top_k` copies of each row.
    ActivateCopies { top_k: usize, inputs: usize, outputs: usize },
    /// An adapter next to a product with a frozen weight: two products over `rank`, added to the other's output. `has_split_inputs`:
    /// ranks share its inputs, otherwise its outputs. `keeps_input`: no other operation saves its input.
    Adapt { inputs: usize, outputs: usize, rank: usize, has_split_inputs: bool, keeps_input: bool },
    /// The copies sent back, weighted and added up per token.
    Combine { width: usize, top_k: usize },
}

impl Operation {
    /// Returns the FLOPs of the matrix products in F, I, W or B, two per multiply-add; other operations are memory-bound and
    /// count 0. Attention counts the full square of scores, as Narayanan et al. 2021 and Megatron do; a causal mask halves the
    /// time. Per layer: F = sbh(24h + 4s), I = sbh(24h + 8s), W = 24sbh² (Qi et al., arXiv 2401.10241, table 1).
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        if kind == Kind::B {
            return self.flops(Kind::I, micro) + self.flops(Kind::W, micro);
        }
        let product = |a: usize, b: usize| 2 * u128::from(micro.wide_rows()) * a as u128 * b as u128;
        match (*self, kind) {
            (Operation::Product { inputs, outputs, .. }, _) => product(inputs, outputs),
            (Operation::Classify { width, vocabulary }, _) => product(width, vocabulary),
            (Operation::Route { width, experts, .. }, _) => product(width, experts),
            (Operation::Adapt { inputs, outputs, rank, .. }, _) => product(rank, inputs) + product(rank, outputs),
            (Operation::Grouped { top_k, inputs, outputs, .. }, _) => top_k as u128 * product(inputs, outputs),
            // queries times keys and scores times values; both operands of each need a gradient, and there are no weights
            (Operation::Attention { heads, size, value, window, .. }, Kind::F | Kind::I) => {
                let scores = micro.sequences as u128 * heads as u128 * Window::scores(window, micro.tokens);
                let products = if kind == Kind::F { 2 } else { 4 };
                products * scores * (size as u128 + value as u128)
            }
            // per head a product with each key, and its sum
            (Operation::Index { heads, size, has_sum }, Kind::F | Kind::I) => {
                let scores = micro.sequences as u128 * heads as u128 * Window::scores(None, micro.tokens);
                (if kind == Kind::F { 2 } else { 4 }) * scores * (size as u128 + u128::from(has_sum))
            }
            (Operation::Convolve { width, taps }, _) => product(width, taps),
            (Operation::Scan(work), Kind::F) => u128::from(micro.wide_rows()) * work.flops as u128,
            (Operation::Scan(work), Kind::I) => 2 * u128::from(micro.wide_rows()) * work.flops as u128,
            _ => 0,
        }
    }

    /// Returns the bytes that F saves for I, or I for W; 0 for other kinds. F saves the input of every operation (the output of
    /// an attention is the input of the next product); I saves exactly the operands of W: inputs of products and gradients of
    /// their outputs. `split` is how ranks share a product's weight.
    pub fn left(&self, kind: Kind, micro: MicroBatch, storage: &Storage, split: Option<&Split>) -> u64 {
        let rows = micro.wide_rows();
        let &Storage { activation_bytes: bytes, product_bytes, tp, sp, .. } = storage;
        let wide = |width: u64, bytes: usize, ranks: usize| {
            rows.saturating_mul(width).saturating_mul(bytes as u64).div_ceil(ranks as u64)
        };
        let shared = |width: usize, bytes: usize, ranks: usize| wide(width as u64, bytes, ranks);
        // a rank has its pieces of the axis that ranks share; the other axis is stored like rows between products
        let held = |axis: usize, width: usize| match split {
            Some(split) if split.axis == axis => shared(split.length(0, tp), product_bytes, 1),
            Some(split) if split.axis != axis && axis == 1 && storage.keeps_gathered => shared(width, product_bytes, 1),
            _ => shared(width, product_bytes, sp),
        };
        // of the copies of rows; each expert-tensor rank has all copies
        let copies = |width: usize, bytes: usize, ranks: usize| {
            let rows = shared(width, bytes, sp).saturating_mul(storage.etp as u64).div_ceil(ranks as u64);
            storage.loaded(rows)
        };
        let ids = rows.saturating_mul(storage.id_bytes as u64);
        match (*self, kind) {
            // only the gradients of weights need these
            (Operation::Lookup { .. } | Operation::Product { .. }, _) if storage.is_frozen => 0,
            (Operation::Adapt { inputs, outputs, rank, has_split_inputs, keeps_input }, Kind::F | Kind::I) => {
                let input = shared(inputs, product_bytes, if has_split_inputs { tp } else { 1 });
                let operands = shared(rank, product_bytes, 1).saturating_add(if keeps_input { input } else { 0 });
                let gradients = shared(rank, product_bytes, 1).saturating_add(shared(outputs, product_bytes, tp));
                operands.saturating_add(if kind == Kind::I { gradients } else { 0 })
            }
            (Operation::Lookup { width }, Kind::F) => ids.saturating_add(shared(width, storage.mask_bytes, sp)),
            (Operation::Lookup { width }, Kind::I) => ids.saturating_add(shared(width, bytes, sp)),
            (Operation::Norm { width, statistics, .. }, Kind::F) => {
                shared(width, bytes + storage.norm_bytes, sp).saturating_add(shared(statistics, FLOAT, sp))
            }
            (Operation::Norm { width, vectors, .. }, Kind::I) => {
                storage.partial_sums as u64 * vectors as u64 * width as u64 * FLOAT as u64
            }
            (Operation::Product { inputs, .. }, Kind::F) => held(1, inputs),
            (Operation::Product { inputs, outputs, .. }, Kind::I) => held(1, inputs).saturating_add(held(0, outputs)),
            (Operation::Attention { heads, groups, size, value, .. }, Kind::F) => {
                // with fewer key heads than ranks, each rank has a copy of one
                let operands = shared(heads * size + groups.max(tp) * (size + value), bytes, tp);
                let rest = match storage.score_bytes {
                    0 => shared(heads, FLOAT, tp),
                    score => wide((heads as u64).saturating_mul(storage.keys as u64), score, tp),
                };
                operands.saturating_add(rest).saturating_add(self.output_kept(micro, storage))
            }
            // queries, the key that all heads share, and weights; ranks have copies
            (Operation::Index { heads, size, has_sum }, Kind::F) => {
                let weights = if has_sum { heads } else { 0 };
                shared((heads + 1) * size + weights, bytes, 1)
            }
            (Operation::Convolve { width, .. }, Kind::F) => shared(width, bytes, tp),
            (Operation::Convolve { width, .. }, Kind::I) => shared(2 * width, bytes, tp),
            (Operation::Scan(work), Kind::F) => {
                shared(work.kept, bytes, tp).saturating_add(shared(work.floats, FLOAT, tp))
            }
            (Operation::Gate { width, gates }, Kind::F) => shared(width + gates, bytes, tp),
            (Operation::Activate { inputs, outputs }, Kind::F) => {
                let half = if storage.keeps_gate && inputs != outputs { outputs } else { 0 };
                shared(inputs + half, bytes, tp)
            }
            (Operation::Add { width }, Kind::F) => shared(width, storage.mask_bytes, sp),
            (Operation::Classify { width, vocabulary }, Kind::F | Kind::I) => {
                let logit = if kind == Kind::F { storage.logit_bytes } else { bytes };
                let ranks = if storage.has_whole_logits { 1 } else { tp };
                let logits = shared(vocabulary.next_multiple_of(storage.logits_multiple), logit, ranks);
                if storage.is_frozen { logits } else { shared(width, bytes, sp).saturating_add(logits) }
            }
            // scores and probabilities in float32
            (Operation::Route { width, experts, keeps_input, .. }, Kind::F) => {
                let input = if keeps_input { shared(width, bytes, sp) } else { 0 };
                shared(2 * experts, FLOAT, sp).saturating_add(input)
            }
            (Operation::Route { width, experts, .. }, Kind::I) => {
                shared(experts, FLOAT, sp).saturating_add(shared(width, bytes, sp))
            }
            // the place of each copy, and its inverse
            (Operation::Dispatch { top_k, .. }, Kind::F) => shared(2 * top_k, FLOAT, sp),
            (Operation::Grouped { top_k, inputs, outputs, axis, .. }, Kind::F | Kind::I) => {
                let [out, into] = if axis == 0 { [storage.etp, 1] } else { [1, storage.etp] };
                let operand = copies(top_k * inputs, product_bytes, into);
                if kind == Kind::F {
                    operand
                } else {
                    operand.saturating_add(copies(top_k * outputs, product_bytes, out))
                }
            }
            (Operation::ActivateCopies { top_k, inputs, outputs }, Kind::F) => {
                let half = if storage.keeps_gate && inputs != outputs { outputs } else { 0 };
                copies(top_k * (inputs + half), bytes, storage.etp)
            }
            _ => 0,
        }
    }

    /// Returns the bytes of an attention's output that its backward needs, if the next product saves it in fewer bits or not at all.
    pub fn output_kept(&self, micro: MicroBatch, storage: &Storage) -> u64 {
        let is_saved = storage.product_bytes == storage.activation_bytes && !storage.is_frozen;
        let bytes = if is_saved { 0 } else { storage.activation_bytes };
        match *self {
            Operation::Attention { heads, value, .. } => {
                micro.wide_rows().saturating_mul((heads * value * bytes) as u64).div_ceil(storage.tp as u64)
            }
            _ => 0,
        }
    }

    /// Returns the bytes of the keys and values that F saves for a micro-batch.
    pub fn keys(&self, micro: MicroBatch, storage: &Storage) -> u64 {
        let &Storage { activation_bytes: bytes, tp, .. } = storage;
        match *self {
            Operation::Attention { groups, size, value, .. } => {
                let elements = micro.wide_rows().saturating_mul((groups.max(tp) * (size + value)) as u64);
                elements.saturating_mul(bytes as u64).div_ceil(tp as u64)
            }
            _ => 0,
        }
    }

    /// Returns whether it has weights of its own.
    pub fn has_weights(&self) -> bool {
        use Operation::{Classify, Convolve, Grouped, Lookup, Norm, Product, Route};
        matches!(
            self,
            Convolve { .. }
                | Lookup { .. }
                | Norm { .. }
                | Product { .. }
                | Classify { .. }
                | Route { .. }
                | Grouped { .. }
        )
    }

    /// Returns whether this is an attention.
    pub fn has_heads(&self) -> bool {
        matches!(self, Operation::Attention { .. })
    }

    /// Returns whether it mixes tokens.
    pub fn mixes_tokens(&self) -> bool {
        matches!(self, Operation::Attention { .. } | Operation::Convolve { .. } | Operation::Scan(_))
    }

    /// Returns whether it works on copies of rows, one per chosen expert.
    pub fn is_of_experts(&self) -> bool {
        matches!(
            self,
            Operation::Dispatch { .. }
                | Operation::Grouped { .. }
                | Operation::ActivateCopies { .. }
                | Operation::Combine { .. }
        )
    }

    /// Returns whether tensor-parallel ranks share the wider of its rows.
    pub fn has_split_rows(&self) -> bool {
        match *self {
            Operation::Product { inputs, outputs, .. } | Operation::Adapt { inputs, outputs, .. } => inputs != outputs,
            Operation::Attention { .. } | Operation::Activate { .. } | Operation::Rotate { .. } => true,
            Operation::Convolve { .. } | Operation::Scan(_) | Operation::Gate { .. } => true,
            _ => false,
        }
    }

    /// Returns the width of the longer of its input and output rows; for logits, of the input.
    pub fn widest(&self) -> usize {
        match *self {
            Operation::Lookup { width }
            | Operation::Norm { width, .. }
            | Operation::Rotate { width }
            | Operation::Add { width }
            | Operation::Convolve { width, .. }
            | Operation::Gate { width, .. }
            | Operation::Classify { width, .. } => width,
            Operation::Product { inputs, outputs, .. }
            | Operation::Adapt { inputs, outputs, .. }
            | Operation::Activate { inputs, outputs } => inputs.max(outputs),
            Operation::Attention { heads, groups, size, value, .. } => heads * size + groups * (size + value),
            Operation::Index { heads, size, .. } => heads * size,
            // of what a scan keeps, about half is one operand
            Operation::Scan(work) => work.kept / 2,
            Operation::Route { width, experts, .. } => width.max(experts),
            Operation::Dispatch { width, top_k } | Operation::Combine { width, top_k } => top_k * width,
            Operation::Grouped { top_k, inputs, outputs, .. }
            | Operation::ActivateCopies { top_k, inputs, outputs } => top_k * inputs.max(outputs),
        }
    }
}
