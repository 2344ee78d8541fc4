//! `${...}`.

use super::expand::{Mode, Out, escapes};
use super::pattern::{compile, expression};
use super::state::{Kind, Shell, Stop, Variable, all_names};
use super::syntax::{Parser, Raw};
use super::text::{names, plain};
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// `name[index]`, and the operator that follows.
struct Parameter {
    name: String,
    index: Option<String>,
    operator: String,
    line: usize,
}

/// A parameter's values, before an operator is applied.
struct Found {
    values: Option<Vec<String>>,
    /// `@` or `*`: several values.
    many: Option<char>,
}

impl Parameter {
    fn new(text: &str, line: usize) -> Parameter {
        let mut parser = Parser::new(text, 0);
        let mut name = parser.name();
        if name.is_empty() {
            let digits = text.chars().take_while(char::is_ascii_digit).count().max(1);
            name = text.chars().take(digits).collect();
            parser.at = digits.min(parser.chars.len());
        }
        let start = parser.at;
        let index = (parser.peek() == Some('[')).then(|| parser.balanced('[', ']').ok()).flatten();
        parser.at = if index.is_some() { parser.at } else { start };
        Parameter { name, index, operator: parser.chars[parser.at..].iter().collect(), line }
    }
}

impl Shell<'_> {
    /// Adds the value of `${text}`.
    pub(super) fn parameter(&mut self, text: &str, line: usize, double: bool, out: &mut Out) -> Result<(), Stop> {
        if let Some(name) = text.strip_prefix('#').filter(|name| !name.is_empty() && !name.starts_with([':', '-', '%']))
        {
            let parameter = Parameter::new(name, line);
            if parameter.operator.is_empty() {
                let Found { values, many } = self.find(&parameter)?;
                let values = values.unwrap_or_default();
                let length = match many {
                    Some(_) => values.len().to_string(),
                    None => format!("{}{}", plain(&values.concat()).chars().count(), all_names(&values)),
                };
                self.add(&length, double, out);
                return Ok(());
            }
        }
        let indirect = text.strip_prefix('!').filter(|rest| !rest.is_empty());
        let mut parameter = Parameter::new(indirect.unwrap_or(text), line);
        if indirect.is_some() {
            if matches!(parameter.index.as_deref(), Some("@" | "*")) {
                let keys = self.variable(&parameter.name).map(Variable::keys).unwrap_or_default();
                self.add_all(&keys, double, false, out);
                return Ok(());
            }
            let target = self.find(&parameter)?.values.unwrap_or_default();
            parameter = Parameter { operator: parameter.operator, ..Parameter::new(&plain(&target.concat()), line) };
        }
        self.operate(&parameter, double, out)
    }

    /// Returns the value of a variable, or the mark of one that is set elsewhere.
    pub(super) fn parameter_value(&mut self, name: &str) -> String {
        self.scalar(name).unwrap_or_else(|| self.unknown(name))
    }

    fn operate(&mut self, parameter: &Parameter, double: bool, out: &mut Out) -> Result<(), Stop> {
        let Found { values, many } = self.find(parameter)?;
        let (name, rest) = (&*parameter.name, &*parameter.operator);
        let set = values.is_some();
        let mut values = values.unwrap_or_default();
        let (colon, operator) = match rest.strip_prefix(':') {
            Some(after) if after.starts_with(['-', '=', '?', '+']) => (true, after),
            _ => (false, rest),
        };
        if let Some(sign) = operator.chars().next().filter(|sign| "-=?+".contains(*sign)) {
            let empty = values.iter().all(|value| plain(value).is_empty());
            // a value from elsewhere that is empty is taken as unset
            let unset = !set || many.is_some() && values.is_empty();
            let none = unset || empty && (colon || !all_names(&values).is_empty());
            match sign {
                '+' if none => return Ok(()),
                '?' if none => values = vec![self.unknown(name)],
                '?' => {}
                _ if none || sign == '+' => {
                    let word = Raw { text: operator[1..].to_string(), line: parameter.line };
                    return self.default(parameter, &word, sign == '=', double, out);
                }
                _ => {}
            }
        } else if !set && many.is_none() {
            if self.assigned.contains(name) {
                return Ok(());
            }
            values = vec![self.unknown(name)];
        } else if !rest.is_empty() {
            if rest.starts_with(':') && matches!(name, "@" | "*") {
                values.insert(0, self.file.clone()); // `$0`
            }
            values = self.changed(values, many, rest, parameter.line)?;
        }
        self.add_all(&values, double, many == Some('*'), out);
        Ok(())
    }

    fn default(&mut self, of: &Parameter, word: &Raw, sets: bool, double: bool, out: &mut Out) -> Result<(), Stop> {
        if sets {
            let value = self.single(word, Mode::Text)?;
            match &of.index {
                Some(index) => self.set_element(&of.name, Some(index), value.clone()),
                None => self.set_text(&of.name, value.clone()),
            }
            self.add(&value, double, out);
        } else if double {
            let text = word.text.replace('"', "");
            let value = self.quoted(&Raw { text, line: word.line })?;
            self.add(&value, true, out);
        } else {
            let mode = if out.single() { Mode::Text } else { Mode::Words };
            let values = self.fields(word, mode)?;
            self.add_all(&values, !out.single() && word.text.contains(['"', '\'']), false, out);
        }
        Ok(())
    }

    /// Applies an operator to each value.
    fn changed(
        &mut self,
        values: Vec<String>,
        many: Option<char>,
        rest: &str,
        line: usize,
    ) -> Result<Vec<String>, Stop> {
        if let Some(range) = rest.strip_prefix(':') {
            return self.part(values, many, range, line);
        }
        let sign = ["##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ",", "@"]
            .into_iter()
            .find(|sign| rest.starts_with(sign))
            .unwrap_or("@");
        let tail = rest.strip_prefix(sign).unwrap_or_default();
        let (from, to) = if sign.starts_with('/') { slash(tail) } else { (tail, "") };
        let pattern = self.single(&Raw { text: from.to_string(), line }, Mode::Pattern)?;
        let to = self.single(&Raw { text: to.to_string(), line }, Mode::Text)?;
        let shortest = matches!(sign, "#" | "%");
        let body = expression(&plain(&pattern), shortest);
        let regex = compile(&match sign {
            "#" | "##" | "/#" => format!("(?s)^(?:{body})"),
            "%" => format!("(?s)^(.*)(?:{body})$"),
            "%%" => format!("(?s)^(.*?)(?:{body})$"),
            "/%" => format!("(?s)(?:{body})$"),
            _ => format!("(?s)(?:{body})"),
        });
        let mut changed = Vec::new();
        for value in values {
            let marks = names(&value) + &names(&pattern);
            let text = plain(&value);
            let new = match (&regex, sign) {
                (_, "^^") => text.to_uppercase(),
                (_, ",,") => text.to_lowercase(),
                (_, "^" | ",") => {
                    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
                    (if sign == "^" { first.to_uppercase() } else { first.to_lowercase() }) + rest
                }
                (_, "@") | (None, _) => text,
                (Some(regex), "#" | "##") => regex.replace(&text, "").into_owned(),
                (Some(regex), "%" | "%%") => regex.replace(&text, "$1").into_owned(),
                (Some(_), _) if pattern.is_empty() => text,
                (Some(regex), "//") => regex.replace_all(&text, regex::NoExpand(&plain(&to))).into_owned(),
                (Some(regex), _) => regex.replace(&text, regex::NoExpand(&plain(&to))).into_owned(),
            };
            self.charge(new.len())?;
            changed.push(new + &marks + &names(&to));
        }
        Ok(changed)
    }

    fn part(&mut self, values: Vec<String>, many: Option<char>, range: &str, line: usize) -> Result<Vec<String>, Stop> {
        let (start, length) = range.split_once(':').map_or((range, None), |(start, length)| (start, Some(length)));
        let start = self.arithmetic(start, line)?;
        let length = length.map(|text| self.arithmetic(text, line)).transpose()?;
        let marks = start.names + length.as_ref().map_or("", |length| &length.names);
        let length = length.map(|length| length.value.unwrap_or(0));
        let cut = |count: usize| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let from = start.value.unwrap_or(0);
            let from = if from < 0 { count.saturating_add(from).max(0) } else { from.min(count) };
            let to = match length {
                None => count,
                Some(length) if length < 0 => count.saturating_add(length).max(from),
                Some(length) => from.saturating_add(length).min(count),
            };
            usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0)
        };
        if many.is_some() {
            let range = cut(values.len());
            return Ok(values.get(range).unwrap_or_default().to_vec());
        }
        let part = |value: &String| {
            let chars: Vec<char> = plain(value).chars().collect();
            chars.get(cut(chars.len())).unwrap_or_default().iter().collect::<String>() + &names(value) + &marks
        };
        Ok(values.iter().map(part).collect())
    }

    fn find(&mut self, parameter: &Parameter) -> Result<Found, Stop> {
        let name = &*parameter.name;
        let one = |value: Option<String>| Found { values: value.map(|value| vec![value]), many: None };
        Ok(match (name, parameter.index.as_deref()) {
            ("@" | "*", _) => Found { values: Some(self.arguments.clone()), many: name.chars().next() },
            ("#", _) => {
                let unknown = self.sources.arguments.is_empty() && self.arguments.is_empty();
                let mark = if unknown && self.hidden.is_empty() { self.unknown("#") } else { String::new() };
                one(Some(format!("{}{mark}", self.arguments.len())))
            }
            ("0" | "BASH_SOURCE", _) => one(Some(self.file.clone())),
            ("?", _) => one(Some(format!("{}{}", u8::from(self.status.failed), self.status.names))),
            ("$" | "!" | "RANDOM" | "SECONDS" | "-", _) => one(Some(self.unknown(&format!("${name}")))),
            (_, Some(sign @ ("@" | "*"))) => {
                Found { values: Some(self.values(name).unwrap_or_default()), many: sign.chars().next() }
            }
            (_, Some(index)) => {
                let index = self.index(name, index, parameter.line)?;
                one(self.element(name, &index))
            }
            _ if name.starts_with(|c: char| c.is_ascii_digit()) => {
                let number: usize = name.parse().unwrap_or(usize::MAX);
                one(self.arguments.get(number.wrapping_sub(1)).cloned())
            }
            _ => one(self.element(name, "0")),
        })
    }

    /// Returns an index: a number, or the key of a map.
    pub(super) fn index(&mut self, name: &str, index: &str, line: usize) -> Result<String, Stop> {
        let raw = Raw { text: index.to_string(), line };
        let text = self.single(&raw, Mode::Text)?;
        if self.kind(name) == Some(Kind::Map) {
            return Ok(plain(&text));
        }
        let mut number = self.calculate(&text)?.value.unwrap_or(0);
        if number < 0 {
            let length = self.values(name).map_or(0, |values| values.len());
            number = number.saturating_add(i64::try_from(length).unwrap_or(0)).max(0);
        }
        Ok(number.to_string())
    }

    /// Prints a format with its arguments, as `printf` does.
    pub(super) fn format(&mut self, arguments: &[String]) -> Result<String, Stop> {
        let Some((format, mut values)) = arguments.split_first() else { return Ok(String::new()) };
        static FIELD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("(?s)%([-+ .0-9]*)(.)").ok());
        let Some(field) = &*FIELD else { return Ok(String::new()) };
        let format = escapes(format);
        let mut out = String::new();
        loop {
            let before = values.len();
            out += &field.replace_all(&format, |groups: &Captures<'_>| {
                if &groups[2] == "%" {
                    return "%".to_string();
                }
                let (value, rest) =
                    values.split_first().map_or((String::new(), values), |(first, rest)| (first.clone(), rest));
                values = rest;
                let width =
                    groups[1].strip_prefix('0').and_then(|width| width.parse::<usize>().ok()).filter(|n| *n < 64);
                match (&groups[1], width) {
                    (".0", _) => String::new(),
                    (_, Some(width)) if matches!(&groups[2], "d" | "i") => {
                        format!("{:0>width$}{}", plain(&value), names(&value))
                    }
                    _ => value,
                }
            });
            self.charge(out.len())?;
            self.step()?;
            if values.is_empty() || values.len() == before {
                return Ok(out);
            }
        }
    }
}

/// Splits `pattern/replacement` at the first slash that is not quoted.
fn slash(text: &str) -> (&str, &str) {
    let mut hidden = false;
    let found = text.char_indices().find(|&(at, c)| {
        let here = c == '/' && at > 0 && !hidden;
        hidden = c == '\\' && !hidden;
        here
    });
    found.map_or((text, ""), |(at, _)| (&text[..at], &text[at + 1..]))
}
