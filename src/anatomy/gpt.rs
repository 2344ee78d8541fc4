//! Published models of GPT's kind that only costs are asked of: GPT-3 (arXiv 2005.14165, table 2.1), BLOOM, Nemotron-4, MPT.

use super::transformer::{Activation, Biases, Config, Style};

const fn gpt3(layers: usize, heads: usize, channels: usize) -> Config {
    Config::gpt(50_257, 2048, layers, heads, channels)
}

/// BLOOM and MPT: ALiBi instead of positions that are learned.
const fn alibi(vocabulary: usize, layers: usize, heads: usize, channels: usize) -> Config {
    Config { vocabulary_multiple: 1, ..Config::gpt(vocabulary, 0, layers, heads, channels) }
}

/// BLOOM normalises its embedding (arXiv 2211.05100, section 3.2.2).
const BLOOM: Config = Config { embedding_norm: true, ..alibi(250_880, 70, 112, 14_336) };

/// MPT has no biases, neither at products nor at norms (`no_bias` in its configuration).
const fn mpt(layers: usize, heads: usize, channels: usize) -> Config {
    Config { biases: Biases::NONE, ..alibi(50_432, layers, heads, channels) }
}

/// Nemotron-4 (arXiv 2402.16819, 2406.11704): squared ReLU, grouped queries, rotary positions, no biases, a head of its own.
const fn nemotron(layers: usize, heads: usize, channels: usize) -> Config {
    let gpt = Config::gpt(256_000, 0, layers, heads, channels);
    let biases = Biases::NONE;
    Config { style: Style::Llama, biases, groups: 8, rotary: true, activation: Activation::Plain, tied: false, ..gpt }
}

/// The plan of an earlier pipeline program, called 512M there: eight blocks without biases or positions, whose attention hands
/// queries, keys and values together to the product behind it, 3 C to C.
const PLAN: Config = {
    let gpt = Config::gpt(50_257, 0, 8, 16, 1024);
    let biases = Biases::NONE;
    Config { style: Style::Llama, biases, vocabulary_multiple: 1, tied: false, projected: Some(3 * 1024), ..gpt }
};

/// The published sizes.
pub const PRESETS: &[(&str, Config)] = &[
    ("gpt-3-6.7b", gpt3(32, 32, 4096)),
    ("gpt-3-13b", gpt3(40, 40, 5120)),
    ("gpt-3-175b", gpt3(96, 96, 12_288)),
    ("bloom-176b", BLOOM),
    ("nemotron-4-15b", nemotron(32, 48, 6144)),
    ("nemotron-4-340b", nemotron(96, 96, 18_432)),
    ("gpt-512m-plan", PLAN),
    ("mpt-7b", mpt(32, 32, 4096)),
    ("mpt-30b", mpt(48, 64, 7168)),
];

/// The preset of this name.
pub fn preset(name: &str) -> Option<Config> {
    PRESETS.iter().find(|(preset, _)| *preset == name).map(|&(_, config)| config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_about_those_in_the_names() {
        assert_eq!(PLAN.anatomy().parameters(), 220_384_256);
        for (name, config) in PRESETS.iter().filter(|(name, _)| *name != "gpt-512m-plan") {
            let (_, billions) = name.rsplit_once('-').unwrap();
            let billions: f64 = billions.trim_end_matches('b').parse().unwrap();
            let found = config.anatomy().parameters() as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 0.05, "{name}: {found}");
        }
    }
}
