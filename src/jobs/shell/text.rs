//! Texts that remember where they were written and what they depend on.
//!
//! Both are marks within the text: characters of the private planes, without width, so that they follow a text through concatenation,
//! splitting and `eval`. A name mark stands for a value that is set elsewhere; a place mark stands before what was written there.

use std::collections::BTreeMap;

/// First mark of a name.
const NAMES: u32 = 0xF_0000;
/// First mark of a place.
pub(super) const PLACES: char = '\u{100000}';
/// Most marks of a kind.
const MOST: usize = 0xFFF0;

pub(super) fn is_name(c: char) -> bool {
    ('\u{F0000}'..PLACES).contains(&c)
}

pub(super) fn is_place(c: char) -> bool {
    c >= PLACES
}

/// Names and places that marks stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    names: Vec<String>,
    places: Vec<String>,
    numbers: BTreeMap<String, u32>,
}

impl Marks {
    /// Returns the mark of a name; of too many, that of the last.
    pub(super) fn name(&mut self, name: &str) -> char {
        mark(&mut self.names, &mut self.numbers, name, NAMES)
    }

    /// Returns the mark of a place.
    pub(super) fn place(&mut self, place: &str) -> char {
        mark(&mut self.places, &mut self.numbers, place, PLACES as u32)
    }

    /// Returns the place that a text was written at.
    pub(super) fn place_of(&self, text: &str) -> Option<&str> {
        let mark = text.chars().find(|&c| is_place(c))?;
        self.places.get((mark as u32 - PLACES as u32) as usize).map(String::as_str)
    }

    /// Returns the names that a text depends on.
    pub(super) fn names_of(&self, text: &str) -> Vec<String> {
        let mut names = Vec::new();
        for mark in text.chars().filter(|&c| is_name(c)) {
            if let Some(name) = self.names.get((mark as u32 - NAMES) as usize)
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        names
    }
}

fn mark(list: &mut Vec<String>, numbers: &mut BTreeMap<String, u32>, text: &str, first: u32) -> char {
    let key = format!("{first} {text}");
    let number = match numbers.get(&key) {
        Some(&number) => number,
        None if list.len() >= MOST => MOST as u32 - 1,
        None => {
            list.push(text.to_string());
            numbers.insert(key, list.len() as u32 - 1);
            list.len() as u32 - 1
        }
    };
    char::from_u32(first + number).unwrap_or(PLACES)
}

/// A text without its marks.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|&c| !is_name(c) && !is_place(c)).collect()
}

/// The name marks of a text, each once.
pub(super) fn names(text: &str) -> String {
    let mut marks = String::new();
    for mark in text.chars().filter(|&c| is_name(c)) {
        if !marks.contains(mark) {
            marks.push(mark);
        }
    }
    marks
}
