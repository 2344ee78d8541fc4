//! The sizes of a GPT-2.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// The sizes of a GPT-2, as in the header of llm.c's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// Longest sequence that has position embeddings.
    pub max_sequence: usize,
    /// Number of token ids, V.
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

impl Config {
    /// The named sizes, smallest first. Those up to `base` have a vocabulary of the 256 bytes and an end-of-text token
    /// (256); `base` is GPT-2's trunk with that vocabulary; the others are the published GPT-2 models.
    pub const PRESETS: &[(&str, Config)] = &[
        ("tiny", sizes(256, 257, 8, 6, 384)),
        ("small", sizes(512, 257, 12, 8, 512)),
        ("base", sizes(1024, 257, 12, 12, 768)),
        ("gpt2", sizes(1024, 50257, 12, 12, 768)),
        ("gpt2-medium", sizes(1024, 50257, 24, 16, 1024)),
        ("gpt2-large", sizes(1024, 50257, 36, 20, 1280)),
        ("gpt2-xl", sizes(1024, 50257, 48, 25, 1600)),
    ];

    /// Most parameters that a configuration may have: 2^40, four TiB in float32.
    const MOST_PARAMETERS: u128 = 1 << 40;

    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Config> {
        Config::PRESETS.iter().find(|(preset, _)| *preset == name).map(|&(_, config)| config)
    }

    /// The vocabulary rounded up to a multiple of 128, Vp: the rows of the token embedding. Rows from V on are zero.
    pub fn padded_vocabulary(&self) -> usize {
        self.vocabulary.next_multiple_of(128)
    }

    /// Channels of one attention head, HS.
    pub fn head_size(&self) -> usize {
        self.channels / self.heads
    }

    /// Whether a model of these sizes can exist; an error says what is wrong.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("max_sequence", self.max_sequence),
            ("vocabulary", self.vocabulary),
            ("layers", self.layers),
            ("heads", self.heads),
            ("channels", self.channels),
        ];
        for (name, size) in sizes {
            ensure!(
                (1..=i32::MAX as usize - 128).contains(&size),
                "expected a model whose {name} is between 1 and 2^31 - 129, found {size}: correct that size"
            );
        }
        ensure!(
            self.channels.is_multiple_of(self.heads),
            "expected channels to be a multiple of heads, found {} channels and {} heads: choose another number of heads",
            self.channels,
            self.heads
        );
        let total: u128 = self.lengths().into_iter().sum();
        ensure!(
            total <= Config::MOST_PARAMETERS,
            "expected a model of at most 2^40 parameters, found {total}: choose smaller sizes"
        );
        Ok(())
    }

    /// Number of parameters as llm.c counts and stores them: padding rows included, the tied embedding once.
    pub fn parameter_count(&self) -> usize {
        self.tensor_lengths().iter().sum()
    }

    /// Number of elements of the parameters' gradients of a stage. The token embedding's has two parts, the embedding's and the
    /// head's.
    pub fn stage_parameters(&self, embedding: bool, blocks: usize, head: bool) -> usize {
        let (c, vp) = (self.channels, self.padded_vocabulary());
        let ends = usize::from(embedding) * (vp + self.max_sequence) * c + usize::from(head) * (vp + 2) * c;
        ends + blocks * (12 * c + 13) * c
    }

    /// Number of elements of each of the 16 parameter tensors, all layers together, in llm.c's order.
    pub fn tensor_lengths(&self) -> [usize; 16] {
        self.lengths().map(|length| length as usize)
    }

    fn lengths(&self) -> [u128; 16] {
        let [t, vp, l, c] =
            [self.max_sequence, self.padded_vocabulary(), self.layers, self.channels].map(|size| size as u128);
        [
            vp * c,
            t * c,
            l * c,
            l * c,
            l * 3 * c * c,
            l * 3 * c,
            l * c * c,
            l * c,
            l * c,
            l * c,
            l * 4 * c * c,
            l * 4 * c,
            l * 4 * c * c,
            l * c,
            c,
            c,
        ]
    }
}
