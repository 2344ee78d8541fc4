//! `pipesim help WORD`: the glossary's words, one at a time.

use super::terminal::wrap;
use clap::Command;
use pipesim_schedule::nearest::{hint, nearest, plain};
use std::ffi::OsString;

/// The page with all words, in tables: `| **word**, **other** | meaning |`.
const PAGE: &str = include_str!("../../docs/src/glossary.md");

/// A row of the glossary.
struct Row {
    words: Vec<&'static str>,
    meaning: String,
}

fn rows() -> impl Iterator<Item = Row> {
    PAGE.lines().filter_map(|line| {
        let (words, meaning) = line.strip_prefix("| **")?.strip_suffix(" |")?.split_once("** | ")?;
        let words = words.split("**, **").collect();
        Some(Row { words, meaning: without_links(meaning).replace("**", "").replace("\\|", "|") })
    })
}

/// Replaces links by their texts: `[overlap](overlap.md)`.
fn without_links(text: &str) -> String {
    let mut written = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let (Some((shown, after)), true) = (link.split_once("]("), link.contains(')')) else { break };
        written = written + before + shown;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    written + rest
}

/// Returns what a word means, in every sense; the error names words like it.
fn meaning(asked: &str) -> Result<String, String> {
    let is_asked = |word: &&str| plain(word) == plain(asked);
    let line = |row: Row| row.words.iter().any(|word| is_asked(&word)).then(|| (row.words.join(", "), row.meaning));
    let found: Vec<String> = rows().filter_map(line).map(|(words, meaning)| format!("{words}: {meaning}")).collect();
    if !found.is_empty() {
        return Ok(wrap(&found, 0));
    }
    let known: Vec<&str> = rows().flat_map(|row| row.words).collect();
    let near = hint(&nearest(asked, &known));
    Err(format!(
        "expected a verb or a word of the glossary after help, found {asked}{near}; `pipesim help` lists the verbs"
    ))
}

/// Returns what `pipesim help WORD..` prints, unless it asks for a verb.
pub fn asked(command: &Command, arguments: &[OsString]) -> Option<Result<String, String>> {
    let [_, help, words @ ..] = arguments else { return None };
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let is_verb = words.first().is_none_or(|word| word.starts_with('-') || command.find_subcommand(word).is_some());
    (help == "help" && !is_verb).then(|| meaning(&words.join(" ")))
}
