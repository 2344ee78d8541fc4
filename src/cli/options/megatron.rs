//! Megatron's three options for recomputed layers, which are one option here.

use clap::Command;
use std::ffi::OsString;

const NAMES: [&str; 3] = ["--recompute-granularity", "--recompute-method", "--recompute-num-layers"];

/// Returns the arguments of a verb with `--recompute` in place of Megatron's three options.
///
/// # Errors
/// They are incomplete.
pub fn as_recompute(verb: Option<&Command>, arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    if verb.is_none_or(|verb| !verb.get_arguments().any(|argument| argument.get_id() == "recompute")) {
        return Ok(arguments);
    }
    let (mut kept, mut found): (Vec<OsString>, [Option<String>; 3]) = Default::default();
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            kept.push(word);
            kept.extend(words);
            break;
        }
        let text = word.to_string_lossy();
        let (name, value) =
            text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value.to_string())));
        match NAMES.iter().position(|known| *known == name) {
            Some(which) => {
                found[which] = value.or_else(|| Some(words.next()?.to_string_lossy().into_owned()));
            }
            None => kept.push(word),
        }
    }
    let commanded = kept.iter().position(|word| word == "--").unwrap_or(kept.len());
    let layers = match found.each_ref().map(Option::as_deref) {
        [None, None, None] => return Ok(kept),
        [Some("selective"), None, None] => "selective".to_string(),
        [Some("full"), Some(method), Some(layers)] => format!("{method}:{layers}"),
        found => {
            let given = NAMES.iter().zip(found).filter_map(|(name, value)| Some(format!("{name} {}", value?)));
            return Err(format!(
                "expected {} selective, or full with {} and {}, found {}; give them, or --recompute block:5",
                NAMES[0],
                NAMES[1],
                NAMES[2],
                given.collect::<Vec<_>>().join(" ")
            ));
        }
    };
    kept.insert(commanded, format!("--recompute={layers}").into());
    Ok(kept)
}
