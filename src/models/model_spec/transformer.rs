//! Sizes of decoders: GPT, Llama and their relatives, with layers of attention and an MLP or experts.

use super::layer_kind::{Gate, LayerKind, LayerPattern, Mlp, SelfAttention};
use super::lora::Lora;
use super::mixture::{Experts, Latent};
use super::operation::Window;
use super::sizes::{MOST_LAYERS, validate};

pub use super::sizes::{InvalidSizes, TensorRanksError, check_rows};

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
    /// The head.
    pub head: bool,
}

impl Biases {
    /// The biases of GPT-2: all except the head's.
    pub const ALL: Biases = Biases { norms: true, qkv: true, projection: true, mlp: true, head: false };
    /// None: Llama.
    pub const NONE: Biases = Biases { norms: false, qkv: false, projection: false, mlp: false, head: false };
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Of each head alone, with the same weights: Qwen3.
    Head,
    /// Of each head, with weights of its own: Command R+.
    Each,
    /// Of all heads together: OLMo 2.
    All,
}

/// Norms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Before attention and MLP.
    Before,
    /// After both, before their outputs are added: OLMo 2.
    After,
    /// Before and after: Gemma 2.
    Both,
    /// One, whose output attention and MLP take: Cohere.
    One,
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

/// How frequencies are scaled for sequences longer than in the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryScaling {
    /// They are not.
    None,
    /// Llama 3.1 (`rope_type` `llama3`): turns = `original_positions` · f / 2π; keep = (turns - `low`) / (`high` - `low`) within
    /// 0 and 1; f becomes keep · f + (1 - keep) · f / `factor`.
    Llama3 {
        /// `factor`
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
                let keep = match high > low {
                    true => ((turns - low) / (high - low)).clamp(0.0, 1.0),
                    false => f64::from(u8::from(turns > low)), // Llama 4 Scout: a step
                };
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
    /// Which products and norms have biases.
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
    /// Attention window of the layers; `None`: unlimited.
    pub window: Option<Window>,
    /// Every n-th layer has full attention in spite of a window; 0: none.
    pub full_every: usize,
    /// Input width of the attention's output projection, if it differs from `heads` x `head_size`.
    pub projected: Option<usize>,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Where layers have norms.
    pub norms: Norms,
    /// Whether each head has a learned score that no key has, as in gpt-oss.
    pub has_sinks: bool,
    /// Whether the input of attention and MLP is a weighted sum of earlier layers' outputs, as in Kimi-K3.
    pub has_residual_scores: bool,
    /// Experts in place of the MLP, if any; `mlp` is the width in layers without them.
    pub experts: Option<Experts>,
    /// Latent attention, if any; then `groups` is `heads` and `head_size` the channels of a query.
    pub latent: Option<Latent>,
    /// Number of layers that predict further tokens, which `layers` does not count.
    pub prediction_layers: usize,
    /// Kinds of layers, if they differ in more than windows and experts; attention, window, width of the MLP, and which layers have
    /// experts follow from it.
    pub pattern: Option<&'static LayerPattern>,
    /// Adapters that are trained instead of the weights, if any.
    pub lora: Option<Lora>,
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
            mlp: channels.saturating_mul(4),
            activation: Activation::Plain,
            function: ActivationFunction::GeluTanh,
            norm_epsilon: 1e-5,
            tied: true,
            window: None,
            full_every: 0,
            projected: None,
            qk_norm: QkNorm::None,
            norms: Norms::Before,
            has_sinks: false,
            has_residual_scores: false,
            experts: None,
            latent: None,
            prediction_layers: 0,
            pattern: None,
            lora: None,
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
        self.experts.map_or(Ok(()), |experts| experts.check())?;
        self.latent.map_or(Ok(()), |latent| latent.check())?;
        // if layers differ, check each
        let layers = self.layers.max(self.prediction_layers);
        if (!self.is_uniform() || self.prediction_layers > 0) && layers > MOST_LAYERS {
            return Err(InvalidSizes::Layers { most: MOST_LAYERS, found: layers });
        }
        if let Some(pattern) = self.pattern {
            pattern.kinds.iter().chain(&pattern.predictions).try_for_each(LayerKind::check)?;
        }
        let lacks = |experts: &Experts| layers > 0 && !experts.are_in_any_of(self.layers);
        if let Some(Experts { dense_first, every, .. }) = self.experts.filter(lacks).filter(|_| self.pattern.is_none())
        {
            return Err(InvalidSizes::NoExperts { layers: self.layers, dense_first, every });
        }
        if self.window.is_some_and(|window| window.tokens == 0) {
            return Err(InvalidSizes::Window);
        }
        validate(&sizes, &[[2, 3]], || self.spec().elements())
    }

    /// Returns these sizes with latent attention.
    pub(super) fn with_latent(self, latent: Latent) -> Config {
        let head_size = latent.plain_size.saturating_add(latent.rotary_size);
        Config { latent: Some(latent), groups: self.heads, head_size, ..self }
    }

    /// Returns the kind of a layer.
    pub fn kind(&self, layer: usize) -> LayerKind {
        if let Some(pattern) = self.pattern {
            return pattern.kind(layer);
        }
        let is_full = self.full_every > 0 && layer % self.full_every == self.full_every - 1;
        let window = self.window.filter(|_| !is_full);
        let has_experts = self.experts.is_some_and(|experts| experts.has(layer));
        let mlp = if has_experts { Mlp::Experts } else { Mlp::Dense(self.mlp) };
        LayerKind { attention: Some(self.attention(window)), scan: None, mlp }
    }

    /// Returns the model's usual attention, with a window or without.
    pub fn attention(&self, window: Option<Window>) -> SelfAttention {
        SelfAttention {
            heads: self.heads,
            groups: self.groups,
            size: self.head_size,
            value: self.latent.map_or(self.head_size, |latent| latent.value_size),
            window,
            keys_are_values: false,
            has_sinks: self.has_sinks,
            gate: Gate::None,
            is_latent: self.latent.is_some(),
            sparse: None,
        }
    }

    /// Returns what layers have besides softmax attention and an MLP or experts, each once.
    pub fn rare_parts(&self) -> Vec<&'static str> {
        let kinds = self.pattern.map_or(&[][..], |pattern| &pattern.kinds[..]);
        let parts = kinds.iter().flat_map(|kind| kind.rare_parts(&self.attention(None)));
        let latent = self.experts.and_then(|experts| experts.latent).map(|_| "latent experts");
        let mut rare: Vec<&'static str> = Vec::new();
        parts.chain(latent).for_each(|part| {
            if !rare.contains(&part) {
                rare.push(part)
            }
        });
        rare
    }

    /// Returns the number of layers with experts.
    pub fn mixtures(&self) -> usize {
        (0..self.layers).filter(|&layer| self.kind(layer).has_experts()).count()
    }

    /// Returns whether all layers are alike, apart from those that predict further tokens.
    pub fn is_uniform(&self) -> bool {
        if let Some(pattern) = self.pattern {
            return pattern.kinds.len() == 1;
        }
        let experts = self.experts.is_some_and(|experts| experts.dense_first > 0 || experts.every > 1);
        !experts && (self.window.is_none() || self.full_every == 0)
    }

    /// Checks that `ranks` tensor-parallel ranks can share the layers. The rows of the vocabulary need not divide: the last ranks
    /// have fewer.
    ///
    /// # Errors
    /// What they cannot share.
    pub fn check_tensor_ranks(&self, ranks: usize) -> Result<(), TensorRanksError> {
        if let Some(pattern) = self.pattern {
            pattern.kinds.iter().chain(&pattern.predictions).try_for_each(|kind| kind.check_ranks(ranks))?;
        }
        let has_mlp = self.pattern.is_none()
            && self.experts.is_none_or(|experts| !(0..self.layers).all(|layer| experts.has(layer)));
        let shared = self.experts.map_or(0, |experts| experts.shared_width);
        let mlp = if has_mlp { self.mlp } else { 0 };
        let sizes = [("heads", self.heads), ("channels of the MLP", mlp), ("channels of the shared experts", shared)];
        if let Some((what, size)) = sizes.into_iter().find(|(_, size)| !size.is_multiple_of(ranks)) {
            return Err(TensorRanksError::Uneven { what, size, or: "", ranks });
        }
        // with fewer key and value heads than ranks, ranks share copies of one
        if !self.groups.is_multiple_of(ranks) && !ranks.is_multiple_of(self.groups) {
            let (what, size, or) = ("key and value heads", self.groups, ", or the reverse");
            return Err(TensorRanksError::Uneven { what, size, or, ranks });
        }
        if ranks > self.vocabulary {
            return Err(TensorRanksError::Vocabulary { vocabulary: self.vocabulary, ranks });
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

    /// Returns the number of elements of each tensor, all layers together, in the order of `ModelSpec::tensors`.
    pub fn tensor_lengths(&self) -> Vec<usize> {
        self.spec().tensors().map(|(count, tensor)| count * tensor.elements() as usize).collect()
    }

    /// Returns the longest sequence: the rows of learned positions; `None` without them.
    pub fn longest_sequence(&self) -> Option<usize> {
        (self.positions > 0).then_some(self.positions)
    }
}
