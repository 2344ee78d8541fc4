//! Models by name: published sizes, and messages for unknown names.

use super::gpt2;
use super::mixture_presets::PRESETS;
use super::spec::ModelSpec;
use super::transformer::{Activation, ActivationFunction, Biases, Config, Rotary, RotaryScaling, Style};
use crate::nearest::{hint, nearest, plain, same_numbers};

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
    let (biases, function) = (Biases::NONE, ActivationFunction::SquaredRelu);
    Config { style: Style::Llama, biases, groups: 8, rotary: Some(Rotary::new(10_000.0)), function, tied: false, ..gpt }
}

/// The plan of an earlier pipeline program, called 512M there: eight blocks without biases or positions, whose output projection
/// reads queries, keys and values together, 3 C to C.
const PLAN: Config = {
    let gpt = Config::gpt(50_257, 0, 8, 16, 1024);
    let biases = Biases::NONE;
    Config { style: Style::Llama, biases, vocabulary_multiple: 1, tied: false, projected: Some(3 * 1024), ..gpt }
};

/// GPT-3 (arXiv 2005.14165, table 2.1), BLOOM, Nemotron-4, MPT.
const GPT: &[(&str, Config)] = &[
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

/// Llama: grouped queries, gated MLP, RMSNorm, rotary positions, no biases. `heads` are those of queries, and of keys and values.
const fn llama(vocabulary: usize, layers: usize, heads: [usize; 2], channels: usize, mlp: usize, tied: bool) -> Config {
    let gpt = Config::gpt(vocabulary, 0, layers, heads[0], channels);
    let (style, activation, biases) = (Style::Llama, Activation::Gated, Biases::NONE);
    let theta = if vocabulary == 128_256 { 500_000.0 } else { 10_000.0 }; // Llama 3, and Llama 2 and Mistral
    let (rotary, function) = (Some(Rotary::new(theta)), ActivationFunction::Silu);
    Config { style, biases, vocabulary_multiple: 1, rotary, groups: heads[1], mlp, activation, function, tied, ..gpt }
}

/// Llama 3.1 and later: the rotary positions of a Llama 3 for sequences `factor` times as long (`rope_scaling` of their files).
const fn stretched(llama: Config, factor: f64) -> Config {
    let scaling = RotaryScaling::Llama3 { factor, low: 1.0, high: 4.0, original_positions: 8192.0 };
    Config { rotary: Some(Rotary { theta: 500_000.0, scaling }), ..llama }
}

/// Llama 2 and 3 (arXiv 2307.09288, 2407.21783) and Mistral.
const LLAMA: &[(&str, Config)] = &[
    ("llama-2-7b", llama(32_000, 32, [32, 32], 4096, 11_008, false)),
    ("llama-2-13b", llama(32_000, 40, [40, 40], 5120, 13_824, false)),
    ("llama-2-70b", llama(32_000, 80, [64, 8], 8192, 28_672, false)),
    ("llama-3-8b", llama(128_256, 32, [32, 8], 4096, 14_336, false)),
    ("llama-3-70b", llama(128_256, 80, [64, 8], 8192, 28_672, false)),
    ("llama-3-405b", llama(128_256, 126, [128, 8], 16_384, 53_248, false)),
    ("llama-3.2-1b", stretched(llama(128_256, 16, [32, 8], 2048, 8192, true), 32.0)),
    ("llama-3.2-3b", stretched(llama(128_256, 28, [24, 8], 3072, 8192, true), 32.0)),
    ("mistral-7b", llama(32_000, 32, [32, 8], 4096, 14_336, false)),
];

/// Models with the sizes of another one, and [`stretched`] positions.
const STRETCHED: [(&str, &str); 4] = [
    ("llama-3.1-8b", "llama-3-8b"),
    ("llama-3.1-70b", "llama-3-70b"),
    ("llama-3.1-405b", "llama-3-405b"),
    ("llama-3.3-70b", "llama-3-70b"),
];

/// Further names of models.
const ALIASES: [(&str, &str); 4] = [
    ("moonlight", "moonlight-16b-a3b"),
    ("mixtral-8x7b-v0.1", "mixtral-8x7b"),
    ("mixtral-8x22b-v0.1", "mixtral-8x22b"),
    ("kimi-k2-base", "kimi-k2"),
];

/// Returns the published model with this name; hyphens and case do not matter: `gpt2` to `gpt2-xl`, `gpt-3-175b`, `llama-3-70b`,
/// and the small models for training.
pub fn model_spec(name: &str) -> Option<ModelSpec> {
    Some(transformer_named(name)?.spec())
}

/// Returns the sizes of the model that [`model_spec`] returns.
pub fn transformer_named(name: &str) -> Option<Config> {
    let other = ALIASES.iter().find(|(alias, _)| plain(alias) == plain(name));
    let name = other.map_or(name, |(_, model)| *model);
    let name = names().find(|known| plain(known) == plain(name))?;
    let alias = STRETCHED.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name.as_str(), |(_, model)| *model);
    let found = GPT.iter().chain(LLAMA).chain(PRESETS).find(|(preset, _)| *preset == name).map(|&(_, config)| config);
    let found = found.or_else(|| gpt2::Config::preset(name).map(|config| config.transformer()));
    found.map(|config| if alias.is_some() { stretched(config, 8.0) } else { config })
}

/// Returns the names that [`model_spec`] knows.
pub fn names() -> impl Iterator<Item = String> {
    let presets = gpt2::Config::PRESETS.iter().map(|(name, _)| *name);
    let others =
        GPT.iter().chain(LLAMA).chain(PRESETS).map(|(name, _)| *name).chain(STRETCHED.iter().map(|(alias, _)| *alias));
    presets.chain(others).map(str::to_string)
}

/// Returns the last part of `OWNER/NAME`, as on Hugging Face; `None` for a path.
pub fn of_hub(name: &str) -> Option<&str> {
    let (owner, last) = name.split_once('/')?;
    let is_file = last.is_empty() || last.contains('/') || last.to_lowercase().ends_with(".json");
    (!owner.is_empty() && !owner.starts_with(['.', '~']) && !is_file).then_some(last)
}

/// Explains that there is no model with this name, and what to use instead.
pub fn unknown(name: &str) -> String {
    if transformer_named(name).is_some() {
        return format!("expected the name of a model without its owner; write --model {}", name.to_lowercase());
    }
    unknown_among(name, &names().collect::<Vec<_>>())
}

/// Explains that none of the models `known` has this name, and what to use instead.
pub fn unknown_among(name: &str, known: &[String]) -> String {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let like: Vec<&str> = nearest(name, &known).into_iter().filter(|found| same_numbers(name, found)).collect();
    let known = known.join(", ");
    format!(
        "no model is called '{name}'{}; known: {known}; or give a config.json from Hugging Face, or a shape file",
        hint(&like)
    )
}
