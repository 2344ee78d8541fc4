//! Which requests stay in the folder of their run.
//!
//! Every value of a command line counts as a path, of whatever option: a new option needs no entry here. The folder holds no links,
//! and no shell reads the words, so a path stays inside if it is relative and goes up nowhere.

use std::path::{Component, Path};

/// Returns the first value of a command line that names something outside of the folder.
pub fn outside(command: clap::Command, arguments: &[String]) -> Option<String> {
    let words = ["pipesim"].into_iter().chain(arguments.iter().map(String::as_str));
    let Ok(matches) = with_texts(command).try_get_matches_from(words) else {
        // such a command line reads and writes nothing, unless it is read otherwise
        let values = |word: &String| leaves(word) || word.starts_with('-') && word.get(2..).is_some_and(leaves);
        return arguments.iter().find(|word| values(word)).cloned();
    };
    let mut level = Some(&matches);
    while let Some(matches) = level {
        let values = matches.ids().filter_map(|id| matches.get_raw(id.as_str())).flatten();
        let found = values.map(|value| value.to_string_lossy()).find(|value| leaves(value));
        if let Some(found) = found {
            return Some(found.into_owned());
        }
        level = matches.subcommand().map(|(_, below)| below);
    }
    None
}

/// Returns a command that takes any text for a value: its own parsers may read files, which are in the folder of the run.
fn with_texts(command: clap::Command) -> clap::Command {
    let text = |argument: clap::Arg| match argument.get_action().takes_values() {
        true => argument.value_parser(clap::builder::ValueParser::os_string()),
        false => argument,
    };
    command.mut_args(text).mut_subcommands(with_texts)
}

/// Whether a value, or a part of a list or of KEY=VALUE, is a path to another folder.
fn leaves(value: &str) -> bool {
    let is_number_list = |part: &str| part.starts_with(|c: char| c.is_ascii_digit()) && !part.contains('.');
    let is_outside = |part: &str| {
        let mut components = Path::new(part).components();
        // patterns of files may match .. in more than one way
        let has_folders = part.contains('/') && !is_number_list(part);
        has_folders
            || part.starts_with('~')
            || components.any(|one| !matches!(one, Component::Normal(_) | Component::CurDir))
    };
    value.split([',', '=', ':']).any(|part| is_outside(part.trim()))
}

/// Returns the key and the path outside of the folder that a file names: the base of a hardware or stack file, or any path in a question.
pub fn outside_base(name: &str, text: &str) -> Option<(String, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let table: toml::Table = text.parse().ok().filter(|_| name.ends_with(".toml"))?;
    let is_question = table.contains_key("version");
    let texts = |value: &toml::Value| match value {
        toml::Value::Array(list) => list.iter().filter_map(toml::Value::as_str).map(str::to_string).collect(),
        one => one.as_str().map(str::to_string).into_iter().collect::<Vec<_>>(),
    };
    let named = table.into_iter().filter(|(key, _)| is_question || key == "base");
    let mut paths = named.flat_map(|(key, value)| texts(&value).into_iter().map(move |path| (key.clone(), path)));
    paths.find(|(_, path)| leaves(path))
}
