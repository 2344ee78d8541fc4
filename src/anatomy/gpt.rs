//! Published models of the GPT family, for costs only: GPT-3 (arXiv 2005.14165, table 2.1), BLOOM, Nemotron-4, MPT.

use super::transformer::{Activation, Biases, Config, Style};

const fn gpt3(layers: usize, heads: usize, channels: usize) -> Config {
    Config::gpt(50_257, 2048, layers, heads, channels)
}

/// BLOOM and MPT: ALiBi instead of learned positions.
const fn alibi(vocabulary: usize, layers: usize, heads: usize, channels: usize) -> Config {
    Config { vocabulary_multiple: 1, ..Config::gpt(vocabulary, 0, layers, heads, channels) }
}

/// BLOOM normalizes its embedding (arXiv 2211.05100, section 3.2.2).
const BLOOM: Config = Config { embedding_norm: true, ..alibi(250_880, 70, 112, 14_336) };

/// MPT has no biases in products and norms (`no_bias` in its configuration).
const fn mpt(layers: usize, heads: usize, channels: usize) -> Config {
    Config { biases: Biases::NONE, ..alibi(50_432, layers, heads, channels) }
}

/// Nemotron-4 (arXiv 2402.16819, 2406.11704): squared ReLU, grouped queries, rotary positions, no biases, an untied head.
const fn nemotron(layers: usize, heads: usize, channels: usize) -> Config {
    let gpt = Config::gpt(256_000, 0, layers, heads, channels);
    let biases = Biases::NONE;
    Config { style: Style::Llama, biases, groups: 8, rotary: true, activation: Activation::Plain, tied: false, ..gpt }
}

/// The plan of an earlier pipeline program, called 512M there: eight blocks without biases or positions, whose output projection
/// reads queries, keys and values together, 3 C to C.
const PLAN: Config = {
    let gpt = Config::gpt(50_257, 0, 8, 16, 1024);
    let biases = Biases::NONE;
    Config { style: Style::Llama, biases, vocabulary_multiple: 1, tied: false, projected: Some(3 * 1024), ..gpt }
};

/// Published sizes.
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

/// Returns the preset with this name.
pub fn preset(name: &str) -> Option<Config> {
    PRESETS.iter().find(|(preset, _)| *preset == name).map(|&(_, config)| config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(name: &str) -> u128 {
        preset(name).unwrap().anatomy().parameters()
    }

    /// Counts of the published checkpoints; GPT-3's to the digits of arXiv 2005.14165, table D.1; Nemotron-4's embeddings and all
    /// else to those of arXiv 2402.16819 and 2406.11704.
    #[test]
    fn parameters_are_those_published() {
        assert_eq!(PLAN.anatomy().parameters(), 220_384_256);
        assert_eq!(parameters("bloom-176b"), 176_247_271_424);
        assert_eq!(parameters("mpt-7b"), 6_649_286_656);
        for (name, millions) in [("gpt-3-6.7b", 6_660.0), ("gpt-3-13b", 12_850.0), ("gpt-3-175b", 174_600.0)] {
            let found = parameters(name) as f64 / 1e6;
            assert!((found / millions - 1.0).abs() < 5e-4, "{name}: {found}");
        }
        for (name, embeddings, rest) in [("nemotron-4-15b", 3.2, 12.5), ("nemotron-4-340b", 9.4, 331.6)] {
            let config = preset(name).unwrap();
            let found = 2.0 * (config.vocabulary * config.channels) as f64 / 1e9;
            assert!((found - embeddings).abs() < 0.06, "{name}: {found}");
            assert!((parameters(name) as f64 / 1e9 - found - rest).abs() < 0.06, "{name}");
        }
        // 29.95B in its publisher's table
        assert!((parameters("mpt-30b") as f64 / 1e9 - 29.95).abs() < 0.01);
    }
}
