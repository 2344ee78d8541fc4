//! Expansion of words: quotes, variables, substitutions and splitting.

use super::state::Value;
use super::state::{Shell, Stop};
use super::syntax::{Assign, Assigned, Raw};
use super::text::{is_name, is_place, names, plain};
use std::collections::BTreeMap;

/// What becomes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Several words; those that only stand for a value from elsewhere are kept.
    Words,
    /// Several words, as bash has them.
    Existing,
    /// One text.
    Text,
    /// One pattern: what is quoted is so by `\`.
    Pattern,
    /// The same as a regular expression.
    Regex,
}

/// Words that come about.
pub(super) struct Out {
    mode: Mode,
    fields: Vec<String>,
    current: String,
    /// Whether the current word exists even if it is empty.
    open: bool,
    place: Option<char>,
    separators: String,
    dropped: String,
}

impl Out {
    fn close(&mut self) {
        let text = std::mem::take(&mut self.current);
        let marked = text.chars().any(is_name);
        if self.open || !plain(&text).is_empty() || marked && self.mode == Mode::Words {
            self.fields.push(text);
        } else {
            self.dropped += &names(&text);
        }
        self.open = false;
    }

    pub(super) fn single(&self) -> bool {
        !matches!(self.mode, Mode::Words | Mode::Existing)
    }

    fn push(&mut self, c: char) {
        if self.single() {
            self.current.push(c);
        } else if is_place(c) {
            self.place = Some(c);
        } else {
            if self.current.is_empty() {
                self.current.extend(self.place);
            }
            self.current.push(c);
        }
    }

    /// Adds a literal text, or a value in quotes.
    fn literal(&mut self, text: &str, quoted: bool) {
        let quotes = quoted && !self.single();
        self.open |= quotes;
        for c in text.chars() {
            let special = match self.mode {
                Mode::Pattern => quoted && "*?[]\\!+@|()".contains(c),
                Mode::Regex => quoted && ".*+?()[]{}|^$\\".contains(c),
                _ => false,
            };
            if special {
                self.current.push('\\');
            }
            // what is in quotes may be a script, and keeps its places
            if quotes && is_place(c) { self.current.push(c) } else { self.push(c) }
        }
    }

    /// Adds a value without quotes, which is split.
    fn value(&mut self, text: &str) {
        if self.single() {
            return self.literal(text, false);
        }
        for c in text.chars() {
            if self.separators.contains(c) {
                if !c.is_whitespace() {
                    self.open = true;
                }
                self.close();
            } else {
                self.push(c);
            }
        }
    }
}

impl Shell<'_> {
    /// Expands a word.
    pub(super) fn fields(&mut self, raw: &Raw, mode: Mode) -> Result<Vec<String>, Stop> {
        let separators = self.scalar("IFS").map_or(" \t\n".to_string(), |text| plain(&text));
        let mut all = Vec::new();
        let split = matches!(mode, Mode::Words | Mode::Existing);
        let raws = if split { braces(&raw.text) } else { vec![raw.text.clone()] };
        for text in raws {
            let place = Some(self.place(raw.line));
            let mut out = Out {
                mode,
                fields: Vec::new(),
                current: String::new(),
                open: false,
                place,
                separators: separators.clone(),
                dropped: String::new(),
            };
            if !split && mode == Mode::Text {
                out.current.extend(place);
            }
            let chars: Vec<char> = text.chars().collect();
            self.deeper(|shell| shell.expand(&chars, raw.line, false, &mut out))?;
            if out.single() {
                out.open = true;
            }
            out.close();
            self.dropped.push_str(&out.dropped);
            all.append(&mut out.fields);
        }
        self.charge(all.iter().map(String::len).sum())?;
        Ok(all)
    }

    pub(super) fn single(&mut self, raw: &Raw, mode: Mode) -> Result<String, Stop> {
        Ok(self.fields(raw, mode)?.into_iter().next().unwrap_or_default())
    }

    /// Expands a text that stands in quotes: a here-document, or a part of an expansion.
    pub(super) fn quoted(&mut self, raw: &Raw) -> Result<String, Stop> {
        let mut out = Out {
            mode: Mode::Text,
            fields: Vec::new(),
            current: String::new(),
            open: true,
            place: None,
            separators: String::new(),
            dropped: String::new(),
        };
        let chars: Vec<char> = raw.text.chars().collect();
        self.deeper(|shell| shell.expand(&chars, raw.line, true, &mut out))?;
        self.charge(out.current.len())?;
        Ok(out.current)
    }

    fn expand(&mut self, chars: &[char], mut line: usize, quoted: bool, out: &mut Out) -> Result<(), Stop> {
        let mut at = 0;
        let mut double = quoted;
        while let Some(&c) = chars.get(at) {
            at += 1;
            match c {
                '\'' if !double => {
                    let end = find(chars, at, '\'');
                    let text: String = chars[at..end].iter().collect();
                    let text = self.placed(&text, line);
                    out.literal(&text, true);
                    line += newlines(&chars[at..end]);
                    at = end + 1;
                }
                '"' if !quoted => {
                    double = !double;
                    out.literal("", true);
                }
                '\\' => match chars.get(at) {
                    Some('\n') => {
                        at += 1;
                        line += usize::from(line < 0xF_0000);
                        let place = self.place(line);
                        out.push(place);
                    }
                    Some(&next) if !double || "$`\\".contains(next) || next == '"' && !quoted => {
                        out.literal(&next.to_string(), true);
                        at += 1;
                    }
                    _ => out.literal("\\", double),
                },
                '`' => {
                    let end =
                        (at..chars.len()).find(|&i| chars[i] == '`' && chars[i - 1] != '\\').unwrap_or(chars.len());
                    let text: String = chars[at..end].iter().collect();
                    let text = text.replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\");
                    let value = self.substitute(&text, line)?;
                    self.add(&value, double, out);
                    line += newlines(&chars[at..end]);
                    at = end + 1;
                }
                '$' => at = self.dollar(chars, at, line, double, quoted, out)?,
                '<' | '>' if !double && chars.get(at) == Some(&'(') => {
                    let end = matching(chars, at, '(', ')');
                    let text: String = chars[at + 1..end].iter().collect();
                    let output = self.substitute(&text, line)?;
                    let path = format!("/dev/fd/{}", self.written.len() + 60);
                    self.written.insert(path.clone(), output);
                    out.literal(&path, true);
                    at = end + 1;
                }
                '~' if !double && at == 1 && matches!(chars.get(1), None | Some('/')) => {
                    let home = self.parameter_value("HOME");
                    out.literal(&home, true);
                }
                '\n' => {
                    out.literal("\n", double);
                    line += usize::from(line < 0xF_0000);
                    let place = self.place(line);
                    out.push(place);
                }
                other => out.literal(&other.to_string(), double),
            }
        }
        Ok(())
    }

    /// Puts a place mark after each end of line.
    fn placed(&mut self, text: &str, line: usize) -> String {
        let mut placed = String::new();
        for (number, row) in text.split('\n').enumerate() {
            if number > 0 {
                placed.push('\n');
                placed.push(if line < 0xF_0000 { self.place(line + number) } else { self.place(line) });
            }
            placed.push_str(row);
        }
        placed
    }

    pub(super) fn add(&mut self, value: &str, double: bool, out: &mut Out) {
        if double { out.literal(value, true) } else { out.value(value) }
    }

    fn dollar(
        &mut self,
        chars: &[char],
        at: usize,
        line: usize,
        double: bool,
        document: bool,
        out: &mut Out,
    ) -> Result<usize, Stop> {
        match chars.get(at) {
            Some('(') if chars.get(at + 1) == Some(&'(') && closes_twice(chars, at) => {
                let end = matching(chars, at, '(', ')');
                let text: String = chars[at + 2..end - 1].iter().collect();
                let text = self.quoted(&Raw { text: text.replace('"', ""), line })?;
                let number = self.calculate(&text)?;
                let value = match number.value {
                    Some(value) => format!("{value}{}", number.names),
                    None if number.names.is_empty() => self.unknown(&format!("$(({}))", plain(&text).trim())),
                    None => number.names,
                };
                self.add(&value, double, out);
                Ok(end + 1)
            }
            Some('(') => {
                let end = matching(chars, at, '(', ')');
                let text: String = chars[at + 1..end].iter().collect();
                let value = self.substitute(&text, line)?;
                self.add(&value, double, out);
                Ok(end + 1)
            }
            Some('{') => {
                let end = matching(chars, at, '{', '}');
                self.parameter(&chars[at + 1..end], line, double, out)?;
                Ok(end + 1)
            }
            Some('\'') if !double => {
                let mut end = at + 1;
                while end < chars.len() && chars[end] != '\'' {
                    end += if chars[end] == '\\' { 2 } else { 1 };
                }
                let text: String = chars[at + 1..end.min(chars.len())].iter().collect();
                out.literal(&escapes(&text), true);
                Ok(end + 1)
            }
            Some('"') if !double && !document => Ok(at),
            Some(&c) if c.is_ascii_alphabetic() || c == '_' => {
                let end = (at..chars.len()).find(|&i| !(chars[i].is_ascii_alphanumeric() || chars[i] == '_'));
                let end = end.unwrap_or(chars.len());
                self.parameter(&chars[at..end], line, double, out)?;
                Ok(end)
            }
            Some(&c) if c.is_ascii_digit() || "@*#?$!-".contains(c) => {
                self.parameter(&chars[at..=at], line, double, out)?;
                Ok(at + 1)
            }
            _ => {
                out.literal("$", double);
                Ok(at)
            }
        }
    }

    /// Adds several values: each a word of its own in `"$@"`.
    pub(super) fn add_all(&mut self, values: &[String], double: bool, joined: bool, out: &mut Out) {
        if joined && double || out.single() {
            return self.add(&values.join(" "), double, out);
        }
        for (number, value) in values.iter().enumerate() {
            if number > 0 {
                out.close();
            }
            self.add(value, double, out);
        }
        if values.is_empty() && double && out.current.chars().all(is_place) {
            out.open = false;
        }
    }

    /// Assigns, and returns the text of a scalar.
    pub(super) fn assign(&mut self, assign: &Assign) -> Result<(), Stop> {
        let name = self.resolve(&assign.name);
        match &assign.value {
            Assigned::Scalar(raw) => {
                let mut text = self.single(raw, Mode::Text)?;
                let index = match &assign.index {
                    Some(index) => Some(self.index(&name, index, raw.line)?),
                    None if matches!(self.variables.get(&name).map(|v| &v.value), Some(Value::List(_))) => {
                        Some("0".to_string())
                    }
                    None => None,
                };
                if assign.append {
                    let old = match &index {
                        Some(index) => self.element(&name, index),
                        None => self.scalar(&name),
                    };
                    text = old.unwrap_or_default() + &text;
                }
                self.charge(text.len())?;
                match index {
                    Some(index) => self.set_element(&name, &index, text),
                    None => self.set_text(&name, text),
                }
            }
            Assigned::Array(raws) => {
                let map = matches!(self.variables.get(&name).map(|v| &v.value), Some(Value::Map(_)));
                let old = self.variables.get(&name).map(|variable| variable.value.clone());
                let empty = if map { Value::Map(BTreeMap::new()) } else { Value::List(BTreeMap::new()) };
                let start = match old {
                    Some(Value::Scalar(text)) if assign.append => Value::List(BTreeMap::from([(0, text)])),
                    Some(old) if assign.append => old,
                    _ => empty.clone(),
                };
                let mut values = Vec::new();
                for raw in raws {
                    if let Some((index, value)) = raw.text.strip_prefix('[').and_then(|text| text.split_once("]=")) {
                        let index = if map {
                            plain(&self.single(&Raw { text: index.to_string(), line: raw.line }, Mode::Text)?)
                        } else {
                            self.index(&name, index, raw.line)?
                        };
                        let text = self.single(&Raw { text: value.to_string(), line: raw.line }, Mode::Text)?;
                        values.push((Some(index), text));
                    } else {
                        values.extend(self.fields(raw, Mode::Words)?.into_iter().map(|text| (None, text)));
                    }
                }
                self.set(&name, start);
                for (index, text) in values {
                    let next = match self.variables.get(&name).map(|variable| &variable.value) {
                        Some(Value::List(list)) => list.keys().next_back().map_or(0, |last| last.saturating_add(1)),
                        _ => 0,
                    };
                    self.set_element(&name, &index.unwrap_or(next.to_string()), text);
                }
            }
        }
        Ok(())
    }
}

fn newlines(chars: &[char]) -> usize {
    chars.iter().filter(|&&c| c == '\n').count()
}

fn find(chars: &[char], from: usize, wanted: char) -> usize {
    (from..chars.len()).find(|&at| chars[at] == wanted).unwrap_or(chars.len())
}

fn closes_twice(chars: &[char], at: usize) -> bool {
    let end = matching(chars, at, '(', ')');
    end > at + 2 && end < chars.len() && chars[end - 1] == ')' && matching(chars, at + 1, '(', ')') == end - 1
}

/// Returns where the bracket at `at` is closed; quotes and escapes are passed.
pub(super) fn matching(chars: &[char], at: usize, open: char, close: char) -> usize {
    let (mut level, mut i, mut double) = (0_usize, at, false);
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 1,
            '\'' if !double => i = find(chars, i + 1, '\''),
            '"' => double = !double,
            '#' if open == '(' && !double && i > 0 && chars[i - 1].is_whitespace() && chars[at] == '(' => {
                i = find(chars, i, '\n').saturating_sub(1);
            }
            '$' if chars.get(i + 1) == Some(&'{') && open == '(' => {
                i = matching(chars, i + 1, '{', '}');
            }
            '$' if chars.get(i + 1) == Some(&'(') && (open == '{' || double) => {
                i = matching(chars, i + 1, '(', ')');
            }
            c if c == open && !double => level += 1,
            c if c == close && !double => {
                level -= 1;
                if level == 0 {
                    return i;
                }
            }
            _ => {}
        }
        i += 1;
    }
    chars.len()
}

/// Replaces the escapes of `$'...'`, `echo -e` and `printf`.
pub(super) fn escapes(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// Expands `{a,b}` and `{1..4}` of a word, once per pair of braces, to a bounded number of words.
fn braces(text: &str) -> Vec<String> {
    let mut words = vec![text.to_string()];
    for _ in 0..4 {
        let mut next = Vec::new();
        for word in &words {
            match brace(word) {
                Some(parts) if next.len() + parts.len() < 4096 => next.extend(parts),
                _ => next.push(word.clone()),
            }
        }
        if next.len() == words.len() {
            break;
        }
        words = next;
    }
    words
}

fn brace(word: &str) -> Option<Vec<String>> {
    if word.contains(['\'', '"', '`', '\\']) || word.contains("$(") {
        return None;
    }
    let (start, end) = word.match_indices('{').find_map(|(start, _)| {
        let end = start + word[start..].find('}')?;
        (!word[..start].ends_with('$') && !word[start + 1..end].contains(['{', '$'])).then_some((start, end))
    })?;
    let inner = &word[start + 1..end];
    let parts: Vec<String> = if let Some((from, to)) = inner.split_once("..") {
        let (from, to): (i64, i64) = (from.parse().ok()?, to.parse().ok()?);
        if from.abs_diff(to) > 1000 {
            return None;
        }
        if from <= to {
            (from..=to).map(|n| n.to_string()).collect()
        } else {
            (to..=from).rev().map(|n| n.to_string()).collect()
        }
    } else {
        Some(inner.split(',').map(str::to_string).collect()).filter(|parts: &Vec<String>| parts.len() > 1)?
    };
    Some(parts.iter().map(|part| format!("{}{part}{}", &word[..start], &word[end + 1..])).collect())
}
