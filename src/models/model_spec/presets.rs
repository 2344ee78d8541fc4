//! Models by name: the files of the folder `models`, GPT-2's sizes, and messages for unknown names.

use super::configuration::Configuration;
use super::spec::ModelSpec;
use super::transformer::Config;
use super::{gpt2, json, shape};
use pipesim_schedule::nearest::{hint, nearest, plain, same_numbers};

/// Name and text of the files in the folder `models`: configurations from Hugging Face, and shape files.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/models.rs"));

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
    let name = plain(other.map_or(name, |(_, model)| *model));
    if let Some((_, sizes)) = gpt2::Config::PRESETS.iter().find(|(preset, _)| plain(preset) == name) {
        return Some(sizes.transformer());
    }
    let (_, text) = FILES.iter().find(|(file, _)| plain(file) == name)?;
    let config = match shape::is_shape(text) {
        true => shape::read(text, 0),
        false => json::object(text, "a model").and_then(|keys| Configuration::of(&keys)?.sizes()),
    };
    Some(config.expect("a test reads every file"))
}

/// Returns the names that [`model_spec`] knows.
pub fn names() -> impl Iterator<Item = String> {
    let presets = gpt2::Config::PRESETS.iter().map(|(name, _)| *name);
    presets.chain(FILES.iter().map(|(name, _)| *name)).map(str::to_string)
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
        return format!("expected the name of a model without its owner; write `model` {}", name.to_lowercase());
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
