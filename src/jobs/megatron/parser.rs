//! What Megatron-LM's own parser and validation refuse, in their words.

use super::names::{PARSER, Parser};
use crate::reading::Reading;
use crate::setting::{Setting, Settings, same_name};
use crate::vocabulary::{Meaning, Vocabulary};

/// Options without which Megatron-LM does not start, unless a checkpoint or a pattern of layers says them.
const REQUIRED: [&str; 3] = ["hidden-size", "num-attention-heads", "max-position-embeddings"];

/// Returns what the parser says of the options as the job writes them.
pub(super) fn refused(vocabulary: &Vocabulary, settings: &Settings) -> Vec<String> {
    // a job that writes all names with underscores is read by a program of its own, which hands them on
    if !settings.0.iter().any(|setting| setting.name.contains('-')) {
        return Vec::new();
    }
    let given = settings.0.iter().filter(|setting| setting.unresolved.is_empty());
    given.filter_map(|setting| complaint(&PARSER, vocabulary, setting)).collect()
}

fn complaint(parser: &Parser, vocabulary: &Vocabulary, setting: &Setting) -> Option<String> {
    let name = setting.name.as_str();
    let unrecognized = |words: &[String]| Some(format!("unrecognized arguments: {}", words.join(" ")));
    let is_option =
        |word: &String| word.starts_with('-') && word[1..].starts_with(|c: char| c == '-' || c.is_alphabetic());
    if let Some(at) = setting.values.iter().position(is_option) {
        return unrecognized(&setting.values[at..]);
    }
    let meaning = vocabulary.meaning(name, &setting.values);
    if !matches!(meaning, Meaning::Unknown(_)) && name.contains('_') && !vocabulary.writes(name) {
        return unrecognized(&[vec![format!("--{name}")], setting.values.clone()].concat());
    }
    if meaning != Meaning::Read {
        return None;
    }
    let is_in = |list: &[String]| list.iter().any(|known| known == name);
    let is_list = is_in(&parser.lists);
    let most = if is_in(&parser.flags) {
        0
    } else if is_list {
        usize::MAX
    } else {
        1
    };
    let known = most == 0 || is_list || is_in(&parser.numbers) || parser.choices.contains_key(name);
    match setting.values.first() {
        _ if !known => None,
        _ if setting.values.len() > most => unrecognized(&setting.values[most..]),
        None if is_list => Some(format!("argument --{name}: expected at least one argument")),
        None if most == 1 => Some(format!("argument --{name}: expected one argument")),
        Some(value) if is_in(&parser.numbers) && !is_number(value) => {
            Some(format!("argument --{name}: invalid int value: '{value}'"))
        }
        Some(value) => {
            let choices = parser.choices.get(name).filter(|choices| !choices.contains(value))?;
            Some(format!("argument --{name}: invalid choice: '{value}' (choose from '{}')", choices.join("', '")))
        }
        None => None,
    }
}

/// Whether Python's `int` takes a text: digits with single underscores between them.
fn is_number(text: &str) -> bool {
    let text = text.trim();
    text.strip_prefix(['-', '+'])
        .unwrap_or(text)
        .split('_')
        .all(|part| !part.is_empty() && part.chars().all(char::is_numeric))
}

/// Returns what the validation says of sizes that are not given or do not divide each other.
pub(super) fn invalid(settings: &Settings, read: &Reading) -> Vec<String> {
    let is_given = |name: &str| settings.0.iter().any(|setting| same_name(&setting.name, name));
    let of_checkpoint = is_given("use-checkpoint-args") || is_given("use-mp-args-from-checkpoint-args");
    let absent = REQUIRED.iter().filter(|name| read.layers.is_some() && !of_checkpoint && !is_given(name));
    let mut all: Vec<String> = absent.map(|name| format!("{} argument is None", name.replace('-', "_"))).collect();
    let model = [read.tp, read.pp, read.cp].iter().flatten().fold(1u32, |product, size| product.saturating_mul(*size));
    if let Some(world) = read.world.filter(|world| !world.is_multiple_of(model)) {
        all.push(format!("world size ({world}) is not divisible by total_model_size ({model})"));
    } else if let (Some(batch), Some(micro), Some(dp)) = (read.global_batch, read.micro_batch, read.dp) {
        let step = micro.saturating_mul(dp);
        if step > 0 && !batch.is_multiple_of(step) {
            all.push(format!("global batch size ({batch}) is not divisible by micro batch size ({micro}) times data parallel size ({dp})"));
        }
    }
    all
}
