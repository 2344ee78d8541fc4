//! Texts that remember where they were written and what they depend on.
//!
//! Both are marks within the text: characters of the private planes, without width, so that they follow a text through concatenation,
//! splitting and `eval`. A name mark stands for a value that is set elsewhere; a place mark stands before what was written there.

use indexmap::IndexSet;

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
    names: IndexSet<String>,
    places: IndexSet<String>,
}

impl Marks {
    /// Returns the mark of a name; of too many, that of the last.
    pub(super) fn name(&mut self, name: &str) -> char {
        mark(&mut self.names, name, NAMES)
    }

    /// Returns the mark of a place.
    pub(super) fn place(&mut self, place: &str) -> char {
        mark(&mut self.places, place, PLACES as u32)
    }

    /// Returns the place that a text was written at.
    pub(super) fn place_of(&self, text: &str) -> Option<&str> {
        let mark = text.chars().find(|&c| is_place(c))?;
        self.places.get_index((mark as u32 - PLACES as u32) as usize).map(String::as_str)
    }

    /// Returns the names that a text depends on.
    pub(super) fn names_of(&self, text: &str) -> Vec<String> {
        names(text).chars().filter_map(|mark| self.names.get_index((mark as u32 - NAMES) as usize).cloned()).collect()
    }
}

fn mark(list: &mut IndexSet<String>, text: &str, first: u32) -> char {
    let number = match list.get_index_of(text) {
        Some(number) => number,
        None if list.len() >= MOST => MOST - 1,
        None => list.insert_full(text.to_string()).0,
    };
    u32::try_from(number).ok().and_then(|number| char::from_u32(first + number)).unwrap_or(PLACES)
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
