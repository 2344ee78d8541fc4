//! Expansion of words: quotes, variables, substitutions and splitting.

use super::state::{Kind, Shell, Stop, Variable};
use super::syntax::{Assign, Assigned, Parser, Raw, mark_of};
use super::text::{is_name, is_place, names, plain};

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
    fn new(mode: Mode, separators: String) -> Out {
        let (fields, current, dropped) = (Vec::new(), String::new(), String::new());
        Out { mode, fields, current, open: false, place: None, separators, dropped }
    }

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

    /// Notes where the next text is written; what is in quotes may be a script, and keeps all places.
    fn mark(&mut self, place: char, quoted: bool) {
        if quoted { self.current.push(place) } else { self.push(place) }
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
            if is_place(c) { self.mark(c, quotes) } else { self.push(c) }
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
        let mut out = Out::new(mode, separators);
        let texts = if out.single() { vec![raw.text.clone()] } else { braces(&raw.text) };
        for text in texts {
            out.place = Some(self.place(raw.line));
            if mode == Mode::Text {
                out.current.extend(out.place);
            }
            self.deeper(|shell| shell.expand(&Raw { text, line: raw.line }, false, &mut out))?;
            out.open |= out.single();
            out.close();
        }
        self.dropped += &out.dropped;
        self.charge(out.fields.iter().map(String::len).sum())?;
        Ok(out.fields)
    }

    pub(super) fn single(&mut self, raw: &Raw, mode: Mode) -> Result<String, Stop> {
        Ok(self.fields(raw, mode)?.into_iter().next().unwrap_or_default())
    }

    /// Expands a text that stands in quotes: a here-document, or a part of an expansion.
    pub(super) fn quoted(&mut self, raw: &Raw) -> Result<String, Stop> {
        let mut out = Out::new(Mode::Text, String::new());
        self.deeper(|shell| shell.expand(raw, true, &mut out))?;
        self.charge(out.current.len())?;
        Ok(out.current)
    }

    fn expand(&mut self, raw: &Raw, quoted: bool, out: &mut Out) -> Result<(), Stop> {
        let mut parser = Parser::new(&raw.text, raw.line);
        let mut double = quoted;
        while let Some(c) = parser.peek() {
            let line = parser.line();
            let next = parser.peek_at(1);
            match c {
                '\'' if !double => {
                    let text = self.placed(&parser.inside(c, 1), line);
                    out.literal(&text, true);
                }
                '`' => {
                    let text = parser.inside(c, 1).replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\");
                    let value = self.substitute(&text, line)?;
                    self.add(&value, double, out);
                }
                '$' => self.dollar(&mut parser, double, quoted, out)?,
                '<' | '>' if !double && next == Some('(') => {
                    let output = self.substitute(&parser.inside('$', 2), line)?;
                    let path = format!("/dev/fd/{}", self.written.len() + 60);
                    self.written.insert(path.clone(), output + "\n");
                    out.literal(&path, true);
                }
                '\\' if next.is_some_and(|c| c == '\n' || !double || "$`\\".contains(c) || c == '"' && !quoted) => {
                    let text = parser.inside(c, 1);
                    if text == "\n" {
                        out.mark(self.place(parser.line()), double);
                    } else {
                        out.literal(&text, true);
                    }
                }
                _ => {
                    parser.at += 1;
                    match c {
                        '"' if !quoted => {
                            double = !double;
                            out.literal("", true);
                        }
                        '~' if !double && parser.at == 1 && matches!(next, None | Some('/')) => {
                            let home = self.parameter_value("HOME");
                            out.literal(&home, true);
                        }
                        _ => out.literal(c.encode_utf8(&mut [0; 4]), double),
                    }
                    if c == '\n' {
                        parser.line += 1;
                        out.mark(self.place(parser.line()), double);
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a place mark after each end of line.
    pub(super) fn placed(&mut self, text: &str, line: usize) -> String {
        let mut rows = text.split('\n');
        let mut placed = rows.next().unwrap_or_default().to_string();
        for (number, row) in (1..).zip(rows) {
            let place = self.place(mark_of(line).map_or(line + number, |_| line));
            placed.extend(['\n', place]);
            placed += row;
        }
        placed
    }

    pub(super) fn add(&mut self, value: &str, double: bool, out: &mut Out) {
        if double { out.literal(value, true) } else { out.value(value) }
    }

    fn dollar(&mut self, parser: &mut Parser, double: bool, document: bool, out: &mut Out) -> Result<(), Stop> {
        let line = parser.line();
        match parser.peek_at(1) {
            Some('(') => {
                let text = parser.inside('$', 2);
                let value = match Parser::enclosed(&text) {
                    Some(text) => {
                        let text = self.quoted(&Raw { text: text.replace('"', ""), line })?;
                        let number = self.calculate(&text)?;
                        match number.value {
                            Some(value) => format!("{value}{}", number.names),
                            None if number.names.is_empty() => self.unknown(&format!("$(({}))", plain(&text).trim())),
                            None => number.names,
                        }
                    }
                    None => self.substitute(&text, line)?,
                };
                self.add(&value, double, out);
            }
            Some('{') => self.parameter(&parser.inside('$', 2), line, double, out)?,
            Some('\'') if !double => out.literal(&escapes(&parser.inside('$', 2)), true),
            Some('"') if !double && !document => parser.at += 1,
            next => {
                parser.at += 1;
                let mut name = parser.name();
                if name.is_empty() {
                    name = next
                        .filter(|c| c.is_ascii_digit() || "@*#?$!-".contains(*c))
                        .map(String::from)
                        .unwrap_or_default();
                    parser.at += name.len();
                }
                match &*name {
                    "" => out.literal("$", double),
                    name => self.parameter(name, line, double, out)?,
                }
            }
        }
        Ok(())
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
                    None => (self.kind(&name) == Some(Kind::List)).then(|| "0".to_string()),
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
                    Some(index) => self.set_element(&name, Some(&index), text),
                    None => self.set_text(&name, text),
                }
            }
            Assigned::Array(raws) => {
                let map = self.kind(&name) == Some(Kind::Map);
                let mut values = Vec::new();
                for raw in raws {
                    if let Some((index, value)) = raw.text.strip_prefix('[').and_then(|text| text.split_once("]=")) {
                        let index = self.index(&name, index, raw.line)?;
                        let text = self.single(&Raw { text: value.to_string(), line: raw.line }, Mode::Text)?;
                        values.push((Some(index), text));
                    } else {
                        values.extend(self.fields(raw, Mode::Words)?.into_iter().map(|text| (None, text)));
                    }
                }
                if !assign.append {
                    self.set(&name, Variable::new(if map { Kind::Map } else { Kind::List }, []));
                }
                for (index, text) in values {
                    self.set_element(&name, index.as_deref(), text);
                }
            }
        }
        Ok(())
    }
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
        words = words.into_iter().flat_map(|word| brace(&word).unwrap_or(vec![word])).take(4096).collect();
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
        let width = if from.starts_with('0') { from.len().max(to.len()) } else { 0 };
        let (from, to): (i64, i64) = (from.parse().ok()?, to.parse().ok()?);
        if from.abs_diff(to) > 1000 {
            return None;
        }
        let mut numbers: Vec<String> = (from.min(to)..=from.max(to)).map(|n| format!("{n:0width$}")).collect();
        if from > to {
            numbers.reverse();
        }
        numbers
    } else {
        Some(inner.split(',').map(str::to_string).collect()).filter(|parts: &Vec<String>| parts.len() > 1)?
    };
    Some(parts.iter().map(|part| format!("{}{part}{}", &word[..start], &word[end + 1..])).collect())
}
