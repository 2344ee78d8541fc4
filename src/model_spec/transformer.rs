//! The decoder architecture of GPT and Llama: blocks of attention and MLP between an embedding and a head.

use super::operation::Operation;
use super::part::Initial::{Normal, One, Zero};
use super::part::{BLOCK, EMBEDDING, HEAD, Part, Tensor};
use super::spec::ModelSpec;
use super::split::Block;

/// Kind of norm, and naming of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// LayerNorm: GPT-2, GPT-3, BLOOM, MPT. Tensors have llm.c's names.
    Gpt,
    /// RMSNorm: Llama. Tensors have Meta's names.
    Llama,
}

/// Which layers have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Norms.
    pub norms: bool,
    /// Product that makes queries, keys and values.
    pub qkv: bool,
    /// Output projection of the attention.
    pub projection: bool,
    /// Both products of the MLP.
    pub mlp: bool,
}

impl Biases {
    /// All of them: GPT-2.
    pub const ALL: Biases = Biases { norms: true, qkv: true, projection: true, mlp: true };
    /// None: Llama.
    pub const NONE: Biases = Biases { norms: false, qkv: false, projection: false, mlp: false };
}

/// Shape of the MLP's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// An elementwise function: GELU, squared ReLU.
    Plain,
    /// A gate: SwiGLU, GeGLU.
    Gated,
}

/// The function that [`Activation`] applies. Execution depends on it, and the power that products need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFunction {
    /// GELU with the tanh approximation: GPT-2's.
    GeluTanh,
    /// x · sigmoid(x): Llama's gate, as SwiGLU.
    Silu,
    /// max(x, 0)²: Nemotron's, which can only be predicted. Most of its outputs and of its gradient are zeros.
    SquaredRelu,
    /// Another one, which can only be predicted.
    Other,
}

/// Rotary positions (Su et al., arXiv 2104.09864) in Hugging Face's convention: the two halves of a head are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies: f(i) = theta^(-2i / head size).
    pub theta: f64,
    /// Change of the frequencies for longer sequences.
    pub scaling: RotaryScaling,
}

/// How frequencies are scaled for sequences longer than those of the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryScaling {
    /// They are not.
    None,
    /// Llama 3.1 (`rope_type` `llama3`): turns = `original_positions` · f / 2π; keep = (turns - `low`) / (`high` - `low`) within
    /// 0 and 1; f becomes keep · f + (1 - keep) · f / `factor`.
    Llama3 {
        factor: f64,
        /// `low_freq_factor`
        low: f64,
        /// `high_freq_factor`
        high: f64,
        /// `original_max_position_embeddings`
        original_positions: f64,
    },
    /// Another one, which can only be predicted.
    Other,
}

impl Rotary {
    /// Unscaled frequencies.
    pub const fn new(theta: f64) -> Rotary {
        Rotary { theta, scaling: RotaryScaling::None }
    }

    /// Returns the angle per position of each pair of channels of a head, in radians: `head_size` / 2 frequencies.
    pub fn frequencies(&self, head_size: usize) -> Vec<f64> {
        let plain = |pair: usize| self.theta.powf(-2.0 * pair as f64 / head_size as f64);
        let scaled = |frequency: f64| match self.scaling {
            RotaryScaling::Llama3 { factor, low, high, original_positions } => {
                let turns = original_positions * frequency / std::f64::consts::TAU;
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                keep * frequency + (1.0 - keep) * frequency / factor
            }
            RotaryScaling::None | RotaryScaling::Other => frequency,
        };
        (0..head_size / 2).map(|pair| scaled(plain(pair))).collect()
    }
}

/// Sizes of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Norms and tensor names.
    pub style: Style,
    pub biases: Biases,
    /// Whether the output of the token embedding is normalized, as in BLOOM.
    pub embedding_norm: bool,
    /// Vocabulary size, V.
    pub vocabulary: usize,
    /// Rows of the token embedding are rounded up to a multiple of this; those beyond V are zeros.
    pub vocabulary_multiple: usize,
    /// Rows of learned positions; 0 with rotary positions or none.
    pub positions: usize,
    /// Rotary embedding of queries and keys, if any.
    pub rotary: Option<Rotary>,
    /// Number of transformer blocks, L.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub groups: usize,
    /// Channels per head.
    pub head_size: usize,
    /// Width of the hidden state, C.
    pub channels: usize,
    /// Width of the MLP, F.
    pub mlp: usize,
    /// Activation of the MLP.
    pub activation: Activation,
    /// Function of the activation.
    pub function: ActivationFunction,
    /// Number that norms add to the variance, or to the mean square.
    pub norm_epsilon: f64,
    /// Whether the head shares the weights of the embedding.
    pub tied: bool,
    /// Attention window in tokens; `None`: unlimited.
    pub window: Option<usize>,
    /// Input width of the attention's output projection, if it differs from `heads` x `head_size`.
    pub projected: Option<usize>,
}

impl Config {
    /// Sizes of a GPT-2 or GPT-3: no grouped queries, an MLP of 4 C, learned positions, a tied head.
    pub const fn gpt(vocabulary: usize, positions: usize, layers: usize, heads: usize, channels: usize) -> Config {
        Config {
            style: Style::Gpt,
            biases: Biases::ALL,
            embedding_norm: false,
            vocabulary,
            vocabulary_multiple: 128,
            positions,
            rotary: None,
            layers,
            heads,
            groups: heads,
            head_size: channels / if heads == 0 { 1 } else { heads },
            channels,
            mlp: 4 * channels,
            activation: Activation::Plain,
            function: ActivationFunction::GeluTanh,
            norm_epsilon: 1e-5,
            tied: true,
            window: None,
            projected: None,
        }
    }

    /// Checks that a model of these sizes can exist.
    ///
    /// # Errors
    /// A size that is 0 or out of range, `heads` that are no multiple of `groups`, or too many parameters.
    pub fn validate(&self) -> Result<(), InvalidSizes> {
        let sizes = [
            ("vocabulary", self.vocabulary),
            ("layers", self.layers),
            ("heads", self.heads),
            ("key and value heads", self.groups),
            ("head size", self.head_size),
            ("channels", self.channels),
            ("mlp width", self.mlp),
            ("vocabulary multiple", self.vocabulary_multiple),
        ];
        validate(&sizes, &[[2, 3]], || self.spec().elements())
    }

    /// Checks that `ranks` tensor-parallel ranks can share the layers. The rows of the vocabulary need not divide: the last ranks
    /// have fewer.
    ///
    /// # Errors
    /// What they cannot share, by name.
    pub fn check_tensor_ranks(&self, ranks: usize) -> Result<(), String> {
        for (what, size) in [("heads", self.heads), ("channels of the MLP", self.mlp)] {
            if !size.is_multiple_of(ranks) {
                return Err(format!(
                    "expected the model's {size} {what} to be a multiple of --tp, found {ranks}; choose another --tp"
                ));
            }
        }
        // with fewer key and value heads than ranks, ranks share copies of one
        if !self.groups.is_multiple_of(ranks) && !ranks.is_multiple_of(self.groups) {
            return Err(format!(
                "expected the model's {} key and value heads to be a multiple of --tp, or the reverse, found {ranks}; choose another --tp",
                self.groups
            ));
        }
        if ranks > self.vocabulary {
            return Err(format!(
                "expected --tp to be at most the model's vocabulary of {}, found {ranks}; choose a smaller --tp",
                self.vocabulary
            ));
        }
        Ok(())
    }

    /// Returns the rows of the token embedding: the vocabulary with its padding. Rows from the vocabulary on are zero.
    pub fn padded_vocabulary(&self) -> usize {
        self.vocabulary.next_multiple_of(self.vocabulary_multiple.max(1))
    }

    /// Returns the number of parameters as stored: including padding, a tied embedding once.
    pub fn parameter_count(&self) -> usize {
        self.spec().elements() as usize
    }

    /// Returns the number of elements of each tensor, all layers together, in the order of [`ModelSpec::tensors`].
    pub fn tensor_lengths(&self) -> Vec<usize> {
        self.spec().tensors().map(|(count, tensor)| count * tensor.elements() as usize).collect()
    }

    /// Returns the longest sequence: the rows of learned positions; `None` without them.
    pub fn longest_sequence(&self) -> Option<usize> {
        (self.positions > 0).then_some(self.positions)
    }

    /// Returns the model: L times x += o(attention(qkv(norm(x)))), x += down(activation(up(norm(x)))); logits = norm(x) ·
    /// outputᵀ. Products with the same input are one: queries, keys, values; gate, up. Weights start as N(0, 0.02), the two
    /// projections into the residual stream as N(0, 0.02 / √(2L)), biases 0, norms 1, padding rows 0.
    pub fn spec(&self) -> ModelSpec {
        let Config { channels: c, mlp, heads, groups, head_size: size, .. } = *self;
        let names = Names::of(self.style);
        let (query, qkv) = (self.projected.unwrap_or(heads * size), (heads + 2 * groups) * size);
        let inner = if self.activation == Activation::Gated { 2 * mlp } else { mlp };
        let projection = Normal(0.02 / (2.0 * self.layers as f64).sqrt());
        let rows = self.padded_vocabulary();
        let table = |name| {
            let table = Tensor::new(name, [rows, c], Normal(0.02)).padded(rows - self.vocabulary);
            table.split(0, &[Block::new(rows, 1)])
        };
        let token = table(names.token);
        let output = match self.tied {
            true => Tensor::tied_to(names.output, &token),
            false => table(names.output),
        };
        let norm_tensors = |place: usize| {
            let mut tensors = vec![Tensor::new(names.norms[place], [c], One)];
            if self.biases.norms {
                tensors.push(Tensor::new(names.biases[place], [c], Zero));
            }
            tensors
        };
        // a weight (outputs, inputs) and its bias, if any; the bias is split with the outputs
        let weight = |place: usize, shape: [usize; 2], initial, axis: usize, blocks: &[Block]| {
            let weight = Tensor::new(names.weights[place], shape, initial).split(axis, blocks);
            let bias = Tensor::new(names.weight_biases[place], [shape[0]], Zero);
            let bias = if axis == 0 { bias.split(0, blocks) } else { bias };
            let Biases { qkv, projection, mlp, .. } = self.biases;
            if [qkv, projection, mlp, mlp][place] { vec![weight, bias] } else { vec![weight] }
        };
        let keys = Block::copied(groups, size);
        let heads_of_projection = self.projected.map_or(Block::new(heads, size), |width| Block::new(width, 1));
        let halves = [Block::new(mlp, 1); 2];
        let block = [
            norm_tensors(0),
            weight(0, [qkv, c], Normal(0.02), 0, &[Block::new(heads, size), keys, keys]),
            weight(1, [c, query], projection, 1, &[heads_of_projection]),
            norm_tensors(1),
            weight(2, [inner, c], Normal(0.02), 0, &halves[..inner / mlp.max(1)]),
            weight(3, [c, mlp], projection, 1, &halves[..1]),
        ];
        let statistics = if self.style == Style::Gpt { 2 } else { 1 };
        let norm = Operation::Norm { width: c, statistics, vectors: 1 + usize::from(self.biases.norms) };
        let product = |inputs, outputs, has_bias| Operation::Product { inputs, outputs, has_bias };
        let rotate = self.rotary.map(|_| Operation::Rotate { width: (heads + groups) * size });
        let operations = [norm, product(c, qkv, self.biases.qkv)].into_iter().chain(rotate).chain([
            Operation::Attention { heads, groups, size },
            product(query, c, self.biases.projection),
            Operation::Add { width: c },
            norm,
            product(c, inner, self.biases.mlp),
            Operation::Activate { inputs: inner, outputs: mlp },
            product(mlp, c, self.biases.mlp),
            Operation::Add { width: c },
        ]);
        let mut embedding = vec![vec![token]];
        if self.positions > 0 {
            embedding.push(vec![Tensor::new("wpe", [self.positions, c], Normal(0.02))]);
        }
        let mut embed = vec![Operation::Lookup { width: c }];
        if self.embedding_norm {
            embedding.push(norm_tensors(3));
            embed.push(norm);
        }
        let part = |name, count, groups, operations| Part { name, count, groups, operations };
        let classify = Operation::Classify { width: c, vocabulary: self.vocabulary };
        let embedding = part(EMBEDDING, 1, embedding, embed);
        let block = part(BLOCK, self.layers, vec![block.concat()], operations.collect());
        let head = part(HEAD, 1, vec![norm_tensors(2), vec![output]], vec![norm, classify]);
        ModelSpec { width: c, parts: vec![embedding, block, head] }
    }
}

/// Tensor names of a style's checkpoints.
struct Names {
    token: &'static str,
    output: &'static str,
    /// Before attention, MLP and head, and after the embedding.
    norms: [&'static str; 4],
    biases: [&'static str; 4],
    /// Into and out of the attention, into and out of the MLP.
    weights: [&'static str; 4],
    weight_biases: [&'static str; 4],
}

impl Names {
    fn of(style: Style) -> Names {
        match style {
            Style::Gpt => Names {
                token: "wte",
                output: "logits",
                norms: ["ln1w", "ln2w", "lnfw", "lnew"],
                biases: ["ln1b", "ln2b", "lnfb", "lneb"],
                weights: ["qkvw", "attprojw", "fcw", "fcprojw"],
                weight_biases: ["qkvb", "attprojb", "fcb", "fcprojb"],
            },
            Style::Llama => Names {
                token: "tok_embeddings",
                output: "output",
                norms: ["attention_norm", "ffn_norm", "norm", "embedding_norm"],
                biases: ["attention_norm_bias", "ffn_norm_bias", "norm_bias", "embedding_norm_bias"],
                weights: ["wqkv", "wo", "w13", "w2"],
                weight_biases: ["bqkv", "bo", "b13", "b2"],
            },
        }
    }
}

/// Sizes that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSizes {
    /// A size is out of range.
    #[error("expected a model whose {name} is between 1 and 2^31 - 129, found {size}: correct that size")]
    Size { name: &'static str, size: usize },
    /// A size is not a multiple of another.
    #[error(
        "expected {of} to be a multiple of {what}, found {of_size} {of} and {size} {what}: choose another number of {what}"
    )]
    Multiple { of: &'static str, of_size: usize, what: &'static str, size: usize },
    /// Too many parameters for any machine.
    #[error("expected a model of at most 2^40 parameters, found {0}: choose smaller sizes")]
    Parameters(u128),
}

/// Maximum number of parameters: 2^40, 4 TiB in float32. Known models are smaller.
const MOST_PARAMETERS: u128 = 1 << 40;

/// Checks the sizes of a model. Each pair in `shared` holds the indices of two sizes; the first must be a multiple of the
/// second.
pub(super) fn validate(
    sizes: &[(&'static str, usize)],
    shared: &[[usize; 2]],
    elements: impl Fn() -> u128,
) -> Result<(), InvalidSizes> {
    let absurd = sizes.iter().find(|(_, size)| !(1..=i32::MAX as usize - 128).contains(size));
    if let Some(&(name, size)) = absurd {
        return Err(InvalidSizes::Size { name, size });
    }
    for places in shared {
        let [(of, of_size), (what, size)] = places.map(|place| sizes[place]);
        if !of_size.is_multiple_of(size) {
            return Err(InvalidSizes::Multiple { of, of_size, what, size });
        }
    }
    match elements() {
        total if total > MOST_PARAMETERS => Err(InvalidSizes::Parameters(total)),
        _ => Ok(()),
    }
}
