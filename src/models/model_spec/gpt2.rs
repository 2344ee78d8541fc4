//! GPT-2 in llm.c's format (<https://github.com/karpathy/llm.c>): learned positions, LayerNorm, GELU, a tied head.

use super::sizes::{InvalidSizes, validate};
use super::spec::ModelSpec;
use super::transformer;
use serde::{Deserialize, Serialize};

/// Sizes of a GPT-2, as in the header of llm.c's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// Number of position embeddings, maxT.
    pub max_sequence: usize,
    /// Vocabulary size, V.
    pub vocabulary: usize,
    /// Number of transformer blocks, L.
    pub layers: usize,
    /// Number of attention heads, NH; divides `channels`.
    pub heads: usize,
    /// Width of the hidden state, C.
    pub channels: usize,
}

const fn sizes(max_sequence: usize, vocabulary: usize, layers: usize, heads: usize, channels: usize) -> Config {
    Config { max_sequence, vocabulary, layers, heads, channels }
}

/// llm.c's names of the 16 tensors, in the order of its files and of [`ModelSpec::tensors`].
pub const TENSOR_NAMES: [&str; 16] = [
    "wte", "wpe", "ln1w", "ln1b", "qkvw", "qkvb", "attprojw", "attprojb", "ln2w", "ln2b", "fcw", "fcb", "fcprojw",
    "fcprojb", "lnfw", "lnfb",
];

/// The vocabulary is padded to a multiple of this.
pub const VOCABULARY_MULTIPLE: usize = 128;

impl Config {
    /// Presets, smallest first. The vocabulary of those up to `base` is the 256 bytes and an end-of-text token (256); `base` is
    /// GPT-2's trunk with that vocabulary; the others are the published GPT-2 models.
    pub const PRESETS: &[(&str, Config)] = &[
        ("tiny", sizes(256, 257, 8, 6, 384)),
        ("small", sizes(512, 257, 12, 8, 512)),
        ("base", sizes(1024, 257, 12, 12, 768)),
        ("gpt2", sizes(1024, 50257, 12, 12, 768)),
        ("gpt2-medium", sizes(1024, 50257, 24, 16, 1024)),
        ("gpt2-large", sizes(1024, 50257, 36, 20, 1280)),
        ("gpt2-xl", sizes(1024, 50257, 48, 25, 1600)),
    ];

    /// Returns the preset with this name.
    pub fn preset(name: &str) -> Option<Config> {
        Config::PRESETS.iter().find(|(preset, _)| *preset == name).map(|&(_, config)| config)
    }

    /// Returns the padded vocabulary, Vp: the rows of the token embedding. Rows from V on are zero.
    pub fn padded_vocabulary(&self) -> usize {
        self.vocabulary.next_multiple_of(VOCABULARY_MULTIPLE)
    }

    /// Checks that a model of these sizes can exist.
    pub fn validate(&self) -> Result<(), InvalidSizes> {
        let sizes = [
            ("max_sequence", self.max_sequence),
            ("vocabulary", self.vocabulary),
            ("layers", self.layers),
            ("heads", self.heads),
            ("channels", self.channels),
        ];
        validate(&sizes, &[[4, 3]], || self.spec().elements())
    }

    /// Returns the number of parameters as llm.c stores them: including padding, the tied embedding once.
    pub fn parameter_count(&self) -> usize {
        self.spec().elements() as usize
    }

    /// Returns the sizes in the form of a general decoder.
    pub fn transformer(&self) -> transformer::Config {
        let Config { max_sequence, vocabulary, layers, heads, channels } = *self;
        let gpt = transformer::Config::gpt(vocabulary, max_sequence, layers, heads, channels);
        transformer::Config { vocabulary_multiple: VOCABULARY_MULTIPLE, ..gpt }
    }

    /// Returns the model: x = wte\[token\] + wpe\[position\]; L times x += attproj(attention(LN1(x))), x +=
    /// fcproj(gelu(fc(LN2(x)))); logits = LNf(x) · wteᵀ. Weights start as GPT-2's: N(0, 0.02), the two projections into the
    /// residual stream N(0, 0.02 / √(2L)), biases 0, LayerNorm weights 1, padding rows 0.
    pub fn spec(&self) -> ModelSpec {
        self.transformer().spec()
    }
}
