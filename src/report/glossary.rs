//! The glossary's words, one at a time.

use pipesim_schedule::nearest::{hint, nearest, plain};

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

/// Returns what a word means, in every sense, one line each.
///
/// # Errors
/// The glossary lacks it: the words that it may be, as a question in brackets.
pub fn meaning(asked: &str) -> Result<Vec<String>, String> {
    let name = |word: &str| plain(word).trim_end_matches('s').to_string();
    let is_asked = |word: &&str| name(word) == name(asked);
    let found: Vec<String> = rows()
        .filter(|row| row.words.iter().any(is_asked))
        .map(|row| format!("{}: {}", row.words.join(", "), row.meaning))
        .collect();
    if found.is_empty() {
        let known: Vec<&str> = rows().flat_map(|row| row.words).collect();
        return Err(hint(&nearest(asked, &known)));
    }
    Ok(found)
}
