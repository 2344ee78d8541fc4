//! Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped queries, gated MLP, RMSNorm, rotary positions, untied head.

use super::transformer::{Activation, Biases, Config, Style};

const fn sizes(
    vocabulary: usize,
    layers: usize,
    heads: usize,
    groups: usize,
    channels: usize,
    mlp: usize,
    tied: bool,
) -> Config {
    Config {
        style: Style::Llama,
        biases: Biases::NONE,
        embedding_norm: false,
        vocabulary,
        vocabulary_multiple: 1,
        positions: 0,
        rotary: true,
        layers,
        heads,
        groups,
        head_size: channels / if heads == 0 { 1 } else { heads },
        channels,
        mlp,
        activation: Activation::Gated,
        tied,
        window: None,
        projected: None,
    }
}

/// Published sizes.
pub const PRESETS: &[(&str, Config)] = &[
    ("llama-2-7b", sizes(32_000, 32, 32, 32, 4096, 11_008, false)),
    ("llama-2-13b", sizes(32_000, 40, 40, 40, 5120, 13_824, false)),
    ("llama-2-70b", sizes(32_000, 80, 64, 8, 8192, 28_672, false)),
    ("llama-3-8b", sizes(128_256, 32, 32, 8, 4096, 14_336, false)),
    ("llama-3-70b", sizes(128_256, 80, 64, 8, 8192, 28_672, false)),
    ("llama-3-405b", sizes(128_256, 126, 128, 8, 16_384, 53_248, false)),
    ("llama-3.2-1b", sizes(128_256, 16, 32, 8, 2048, 8192, true)),
    ("llama-3.2-3b", sizes(128_256, 28, 24, 8, 3072, 8192, true)),
    ("mistral-7b", sizes(32_000, 32, 32, 8, 4096, 14_336, false)),
];

/// Returns the preset with this name. Llama 3.1 and 3.3 have the sizes of Llama 3.
pub fn preset(name: &str) -> Option<Config> {
    let name = name.replace("llama-3.1", "llama-3").replace("llama-3.3", "llama-3");
    PRESETS.iter().find(|(preset, _)| *preset == name).map(|&(_, config)| config)
}

#[cfg(test)]
mod tests {
    use super::super::MicroBatch;
    use super::*;
    use crate::op::Kind;
    use crate::placement::Placement;

    #[test]
    fn parameters_are_those_published() {
        let published: [(&str, u128); 9] = [
            ("llama-2-7b", 6_738_415_616),
            ("llama-2-13b", 13_015_864_320),
            ("llama-2-70b", 68_976_648_192),
            ("llama-3-8b", 8_030_261_248),
            ("llama-3-70b", 70_553_706_496),
            ("llama-3-405b", 405_853_388_800),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.2-3b", 3_212_749_824),
            ("mistral-7b", 7_241_732_096),
        ];
        for ((name, parameters), (preset, config)) in published.into_iter().zip(PRESETS) {
            assert_eq!((name, config.anatomy().parameters()), (*preset, parameters));
        }
    }

    #[test]
    fn flops_are_six_a_weight_and_token_and_the_attentions() {
        let config = preset("llama-3-8b").unwrap();
        let (anatomy, micro) = (config.anatomy(), MicroBatch { sequences: 1, tokens: 8192 });
        let weights = anatomy.parameters() - (128_256 * 4096 + 65 * 4096); // neither the embedding's nor the norms'
        let attention = 12 * 32 * 8192 * 8192 * 4096;
        let found: u128 = [Kind::F, Kind::I, Kind::W].map(|kind| anatomy.flops(kind, micro)).iter().sum();
        assert_eq!(found, 6 * weights * 8192 + attention);
    }

    #[test]
    fn a_head_of_its_own_is_not_exchanged() {
        let anatomy = preset("llama-2-7b").unwrap().anatomy();
        let (placement, stages) = (Placement::linear(4), anatomy.split(4, None).unwrap());
        assert_eq!(anatomy.outline().exchange(&placement, &stages), None);
        assert_eq!(anatomy.squares(), 1 + 32 + 2);
        assert_eq!(anatomy.tied_elements(|elements| elements), 0);
    }
}
