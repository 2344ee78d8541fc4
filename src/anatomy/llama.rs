//! Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped queries, gated MLP, RMSNorm, rotary positions, a head of its own.

use super::operation::Operation;
use super::part::{BLOCK, EMBEDDING, HEAD, Part};
use super::tensor::Initial::{Normal, One};
use super::tensor::Tensor;
use super::whole::Anatomy;

/// The sizes of a Llama.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of token ids, V.
    pub vocabulary: usize,
    /// Number of transformer blocks, L.
    pub layers: usize,
    /// Heads of queries; divides `channels`.
    pub heads: usize,
    /// Heads of keys and values, each shared by `heads / groups` of queries; divides `heads`.
    pub groups: usize,
    /// Width of the hidden state, C.
    pub channels: usize,
    /// Width of the MLP between its products, F.
    pub mlp: usize,
}

const fn sizes(vocabulary: usize, layers: usize, heads: usize, groups: usize, channels: usize, mlp: usize) -> Config {
    Config { vocabulary, layers, heads, groups, channels, mlp }
}

impl Config {
    /// The published sizes.
    pub const PRESETS: &[(&str, Config)] = &[
        ("llama-2-7b", sizes(32_000, 32, 32, 32, 4096, 11_008)),
        ("llama-2-13b", sizes(32_000, 40, 40, 40, 5120, 13_824)),
        ("llama-2-70b", sizes(32_000, 80, 64, 8, 8192, 28_672)),
        ("llama-3-8b", sizes(128_256, 32, 32, 8, 4096, 14_336)),
        ("llama-3-70b", sizes(128_256, 80, 64, 8, 8192, 28_672)),
        ("llama-3-405b", sizes(128_256, 126, 128, 8, 16_384, 53_248)),
    ];

    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Config> {
        Config::PRESETS.iter().find(|(preset, _)| *preset == name).map(|&(_, config)| config)
    }

    /// The model: L times x += o(attention(rotate(qkv(norm(x))))), x += down(swiglu(gate and up(norm(x)))); logits = norm(x) ·
    /// outputᵀ. Products that read the same input are one; its rows are queries, keys, values, and gate, up. Weights begin as
    /// N(0, 0.02), those of the two projections back into the hidden state as N(0, 0.02 / √(2L)), norms as ones.
    pub fn anatomy(&self) -> Anatomy {
        let Config { vocabulary, layers, heads, groups, channels: c, mlp } = *self;
        let size = c / heads.max(1);
        let qkv = (heads + 2 * groups) * size;
        let projection = Normal(0.02 / (2.0 * layers as f64).sqrt());
        let token = Tensor::new("tok_embeddings", [vocabulary, c], Normal(0.02)).split(0);
        let output = Tensor::new("output", [vocabulary, c], Normal(0.02)).split(0);
        let block = vec![
            Tensor::new("attention_norm", [c], One),
            Tensor::new("wqkv", [qkv, c], Normal(0.02)).split(0),
            Tensor::new("wo", [c, heads * size], projection).split(1),
            Tensor::new("ffn_norm", [c], One),
            Tensor::new("w13", [2 * mlp, c], Normal(0.02)).split(0),
            Tensor::new("w2", [c, mlp], projection).split(1),
        ];
        let norm = Operation::Norm { width: c, statistics: 1, vectors: 1 };
        let product = |inputs, outputs| Operation::Product { inputs, outputs };
        let operations = vec![
            norm,
            product(c, qkv),
            Operation::Rotate { width: (heads + groups) * size },
            Operation::Attention { heads, groups, size },
            product(heads * size, c),
            Operation::Add { width: c },
            norm,
            product(c, 2 * mlp),
            Operation::Activate { inputs: 2 * mlp, outputs: mlp },
            product(mlp, c),
            Operation::Add { width: c },
        ];
        let final_norm = vec![Tensor::new("norm", [c], One)];
        let lookup = vec![Operation::Lookup { width: c }];
        let part = |name, count, groups, operations| Part { name, count, groups, operations };
        let embedding = part(EMBEDDING, 1, vec![vec![token]], lookup);
        let block = part(BLOCK, layers, vec![block], operations);
        let classify = Operation::Classify { width: c, vocabulary };
        let head = part(HEAD, 1, vec![final_norm, vec![output]], vec![norm, classify]);
        Anatomy { width: c, parts: vec![embedding, block, head] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MicroBatch;
    use super::*;
    use crate::op::Kind;
    use crate::placement::Placement;

    #[test]
    fn parameters_are_those_published() {
        let published: [(&str, u128); 6] = [
            ("llama-2-7b", 6_738_415_616),
            ("llama-2-13b", 13_015_864_320),
            ("llama-2-70b", 68_976_648_192),
            ("llama-3-8b", 8_030_261_248),
            ("llama-3-70b", 70_553_706_496),
            ("llama-3-405b", 405_853_388_800),
        ];
        for ((name, parameters), (preset, config)) in published.into_iter().zip(Config::PRESETS) {
            assert_eq!((name, config.anatomy().parameters()), (*preset, parameters));
        }
    }

    #[test]
    fn flops_are_six_a_weight_and_token_and_the_attentions() {
        let config = Config::preset("llama-3-8b").unwrap();
        let (anatomy, micro) = (config.anatomy(), MicroBatch { sequences: 1, tokens: 8192 });
        let weights = anatomy.parameters() - (128_256 * 4096 + 65 * 4096); // neither the embedding's nor the norms'
        let attention = 12 * 32 * 8192 * 8192 * 4096;
        let found: u128 = [Kind::F, Kind::I, Kind::W].map(|kind| anatomy.flops(kind, micro)).iter().sum();
        assert_eq!(found, 6 * weights * 8192 + attention);
    }

    #[test]
    fn a_head_of_its_own_is_not_exchanged() {
        let anatomy = Config::preset("llama-2-7b").unwrap().anatomy();
        let (placement, stages) = (Placement::linear(4), anatomy.split(4, None).unwrap());
        assert_eq!(anatomy.outline().exchange(&placement, &stages), None);
        assert_eq!(anatomy.squares(), 1 + 32 + 2);
        assert_eq!(anatomy.tied_elements(|elements| elements), 0);
    }
}
