//! GPT-2 in llm.c's format (<https://github.com/karpathy/llm.c>): learned positions, LayerNorm, GELU, a tied head.

use super::sizes::{InvalidSizes, validate};
use super::transformer;
use super::whole::Anatomy;
use serde::{Deserialize, Serialize};
use std::ops::Range;

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

#[cfg(feature = "internals")]
/// llm.c's names of the 16 tensors, in the order of its files and of [`Anatomy::tensors`].
pub const TENSOR_NAMES: [&str; 16] = [
    "wte", "wpe", "ln1w", "ln1b", "qkvw", "qkvb", "attprojw", "attprojb", "ln2w", "ln2b", "fcw", "fcb", "fcprojw",
    "fcprojb", "lnfw", "lnfb",
];
/// Index of the token embedding among the 16 tensors.
pub const WTE: usize = 0;
/// Index of the position embedding.
pub const WPE: usize = 1;
/// Indices of the tensors of a block.
pub const BLOCK_TENSORS: Range<usize> = 2..14;
/// Indices of the tensors of the final LayerNorm.
pub const LNF_TENSORS: Range<usize> = 14..16;

/// Layers of a block in this order, each a weight followed by its bias.
pub mod layer {
    /// LayerNorm before the attention.
    pub const LN1: usize = 0;
    /// Queries, keys and values.
    pub const QKV: usize = 1;
    /// Output projection of the attention.
    pub const ATTENTION_PROJECTION: usize = 2;
    /// LayerNorm before the MLP.
    pub const LN2: usize = 3;
    /// First product of the MLP.
    pub const FC: usize = 4;
    /// Second product of the MLP.
    pub const FC_PROJECTION: usize = 5;
}

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

    /// Returns the channels per attention head, HS.
    pub fn head_size(&self) -> usize {
        self.channels / self.heads.max(1)
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
        validate(&sizes, &[[4, 3]], || self.anatomy().elements())
    }

    /// Returns the number of parameters as llm.c stores them: including padding, the tied embedding once.
    pub fn parameter_count(&self) -> usize {
        self.anatomy().elements() as usize
    }

    /// Returns the number of elements of each of the 16 tensors, all layers together, in llm.c's order.
    pub fn tensor_lengths(&self) -> [usize; 16] {
        let anatomy = self.anatomy();
        let mut lengths = anatomy.tensors().map(|(count, tensor)| count * tensor.elements() as usize);
        [(); 16].map(|()| lengths.next().unwrap_or(0))
    }

    /// Returns the sizes as those of a general decoder.
    pub fn transformer(&self) -> transformer::Config {
        let Config { max_sequence, vocabulary, layers, heads, channels } = *self;
        let gpt = transformer::Config::gpt(vocabulary, max_sequence, layers, heads, channels);
        transformer::Config { vocabulary_multiple: VOCABULARY_MULTIPLE, ..gpt }
    }

    /// Returns the model: x = wte\[token\] + wpe\[position\]; L times x += attproj(attention(LN1(x))), x +=
    /// fcproj(gelu(fc(LN2(x)))); logits = LNf(x) · wteᵀ. Weights start as GPT-2's: N(0, 0.02), the two projections into the
    /// residual stream N(0, 0.02 / √(2L)), biases 0, LayerNorm weights 1, padding rows 0.
    pub fn anatomy(&self) -> Anatomy {
        self.transformer().anatomy()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK, EMBEDDING, HEAD, MicroBatch, Storage};
    use super::*;
    use crate::op::Kind;

    fn preset(name: &str) -> Config {
        Config::preset(name).unwrap()
    }

    #[test]
    fn parameters_are_those_published() {
        let published = [
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
        ];
        for (name, parameters) in published {
            assert_eq!(preset(name).anatomy().parameters(), parameters, "{name}");
        }
        assert_eq!(preset("gpt2").parameter_count(), 124_475_904, "llm.c pads the vocabulary to 50304");
    }

    #[test]
    fn tensors_stand_in_the_order_of_llm_cs_files() {
        let anatomy = preset("gpt2").anatomy();
        let names: Vec<&str> = anatomy.tensors().map(|(_, tensor)| tensor.name).collect();
        assert_eq!(names, TENSOR_NAMES);
        assert_eq!((names[WTE], names[WPE]), ("wte", "wpe"));
        assert!(names[BLOCK_TENSORS].starts_with(&["ln1w"]) && names[BLOCK_TENSORS].ends_with(&["fcprojb"]));
        assert_eq!(names[LNF_TENSORS], ["lnfw", "lnfb"]);
        let weight = |layer: usize| names[BLOCK_TENSORS.start + 2 * layer];
        assert_eq!(weight(layer::QKV), "qkvw");
        assert_eq!(weight(layer::FC_PROJECTION), "fcprojw");
        // llm.c's table of elements of GPT-2 124M
        let lengths = preset("gpt2").tensor_lengths();
        assert_eq!(lengths[..5], [38_633_472, 786_432, 9_216, 9_216, 21_233_664]);
    }

    #[test]
    fn flops_are_narayanans() {
        // Narayanan et al. 2021 (arXiv 2104.04473): 96 B s l h² (1 + s/6h + V/16lh) with full recomputation of the blocks
        for (name, config) in Config::PRESETS {
            let micro = MicroBatch { sequences: 3, tokens: 128 };
            let [b, s, l, h, v] = [3, 128, config.layers, config.channels, config.vocabulary].map(|size| size as u128);
            let anatomy = config.anatomy();
            let [f, i, w, full] = [Kind::F, Kind::I, Kind::W, Kind::B].map(|kind| anatomy.flops(kind, micro));
            assert_eq!(full, i + w);
            let recomputed = anatomy.parts[1].flops(Kind::F, micro) * l;
            assert_eq!(
                f + full + recomputed,
                96 * b * s * l * h * h + 16 * b * s * s * l * h + 6 * b * s * h * v,
                "{name}"
            );
            assert_eq!(f + full, 72 * b * s * l * h * h + 12 * b * s * s * l * h + 6 * b * s * h * v, "{name}");
            // Qi et al. 2023 (arXiv 2401.10241), table 1, of a block
            let block = [Kind::F, Kind::I, Kind::W].map(|kind| anatomy.parts[1].flops(kind, micro));
            let sbh = s * b * h;
            assert_eq!(block, [sbh * (24 * h + 4 * s), sbh * (24 * h + 8 * s), sbh * 24 * h], "{name}");
        }
    }

    #[test]
    fn a_block_keeps_16_c_elements_a_token_for_either_backward() {
        let config = preset("gpt2");
        let (micro, n, c) = (MicroBatch { sequences: 4, tokens: 64 }, 256, 768);
        let storage = Storage::whole(0, 2, 128, 3);
        let left = |part: usize, kind| config.anatomy().parts[part].left(kind, micro, &storage);
        // inputs of the four products 7C, gradients of their outputs 9C; two LayerNorms' sums
        assert_eq!(left(1, Kind::F), n * (16 * c * 2 + 4 * (4 + 12)));
        assert_eq!(left(1, Kind::I), n * 16 * c * 2 + 2 * 3 * 2 * c * 4);
        assert_eq!(left(2, Kind::F), n * ((2 * c + 50304) * 2 + 8));
        assert_eq!(left(2, Kind::I), n * (c + 50304) * 2 + 3 * 2 * c * 4);
        assert_eq!([left(0, Kind::F), left(0, Kind::I), left(1, Kind::W)], [0, n * c * 2, 0]);
    }

    #[test]
    fn the_gradient_norm_has_a_square_for_each_group() {
        let anatomy = preset("tiny").anatomy();
        assert_eq!(anatomy.squares(), 8 + 3, "token and position embedding, blocks, final LayerNorm");
        assert_eq!([anatomy.square(EMBEDDING, 0), anatomy.square(BLOCK, 5), anatomy.square(HEAD, 0)], [0, 7, 10]);
    }

    #[test]
    fn a_device_has_the_tied_embedding_once() {
        let anatomy = preset("gpt2").anatomy();
        let [first, last]: [_; 2] = anatomy.split(2, None).unwrap().try_into().unwrap();
        let same = |elements| elements;
        assert_eq!(anatomy.device_elements([&first, &last], same), 124_475_904);
        let apart: usize = [&first, &last].map(|stage| anatomy.device_elements([stage], same)).iter().sum();
        assert_eq!(apart, 124_475_904 + 50304 * 768);
        assert_eq!(anatomy.tied_elements(same), 50304 * 768);
    }
}
