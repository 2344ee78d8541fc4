//! `${...}`.

use super::expand::{Mode, Out, escapes};
use super::pattern::{compile, expression};
use super::state::{Kind, Shell, Stop, Variable, all_names};
use super::syntax::{Parser, Raw};
use super::text::{names, plain};

/// A parameter's values, before an operator is applied.
struct Found {
    values: Option<Vec<String>>,
    /// `@` or `*`: several values.
    many: Option<char>,
}

impl Shell<'_> {
    /// Adds the value of `${text}`.
    pub(super) fn parameter(&mut self, text: &str, line: usize, double: bool, out: &mut Out) -> Result<(), Stop> {
        if let Some(name) = text.strip_prefix('#').filter(|name| !name.is_empty() && !name.starts_with([':', '-', '%']))
        {
            let (name, index, rest) = split(name);
            if rest.is_empty() {
                let found = self.find(&name, index.as_deref(), line)?;
                let values = found.values.unwrap_or_default();
                let length = match found.many {
                    Some(_) => values.len(),
                    None => values.first().map_or(0, |value| plain(value).chars().count()),
                };
                let marks = if found.many.is_some() { String::new() } else { all_names(&values) };
                self.add(&format!("{length}{marks}"), double, out);
                return Ok(());
            }
        }
        let indirect = text.strip_prefix('!').filter(|rest| !rest.is_empty());
        let (mut name, mut index, rest) = split(indirect.unwrap_or(text));
        if indirect.is_some() {
            if matches!(index.as_deref(), Some("@" | "*")) {
                let keys = self.variable(&name).map(Variable::keys).unwrap_or_default();
                self.add_all(&keys, double, false, out);
                return Ok(());
            }
            let target = self.find(&name, index.as_deref(), line)?.values.unwrap_or_default();
            let (inner, inner_index, _) = split(&plain(&target.concat()));
            (name, index) = (inner, inner_index);
        }
        let found = self.find(&name, index.as_deref(), line)?;
        self.operate(&name, index.as_deref(), found, &rest, line, double, out)
    }

    /// Returns the value of a variable, or the mark of one that is set elsewhere.
    pub(super) fn parameter_value(&mut self, name: &str) -> String {
        match self.scalar(name) {
            Some(value) => value,
            None => self.unknown(name),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one expansion")]
    fn operate(
        &mut self,
        name: &str,
        index: Option<&str>,
        found: Found,
        rest: &str,
        line: usize,
        double: bool,
        out: &mut Out,
    ) -> Result<(), Stop> {
        let joined = found.many == Some('*');
        let (colon, operator) = match rest.strip_prefix(':') {
            Some(after) if after.starts_with(['-', '=', '?', '+']) => (true, after),
            _ => (false, rest),
        };
        let word = |from: usize| Raw { text: operator.chars().skip(from).collect(), line };
        if let Some(sign) = operator.chars().next().filter(|sign| "-=?+".contains(*sign)) {
            let values = found.values.clone().unwrap_or_default();
            let empty = values.iter().all(|value| plain(value).is_empty());
            // a value from elsewhere that is empty is taken as unset
            let unset = found.values.is_none() || found.many.is_some() && values.is_empty();
            let none = unset || empty && (colon || !all_names(&values).is_empty());
            return match sign {
                '+' if none => Ok(()),
                '+' | '-' | '=' if none || sign == '+' => self.default(name, index, &word(1), sign, double, out),
                '?' if none => {
                    let mark = self.unknown(name);
                    self.add(&mark, double, out);
                    Ok(())
                }
                _ => {
                    self.add_all(&values, double, joined || found.many.is_none(), out);
                    Ok(())
                }
            };
        }
        let Some(values) = found.values else {
            if found.many.is_none() && !self.assigned.contains(name) {
                let mark = self.unknown(name);
                self.add(&mark, double, out);
            }
            return Ok(());
        };
        let values = if rest.is_empty() { values } else { self.changed(values, found.many, rest, line)? };
        self.add_all(&values, double, joined || found.many.is_none(), out);
        Ok(())
    }

    fn default(
        &mut self,
        name: &str,
        index: Option<&str>,
        word: &Raw,
        sign: char,
        double: bool,
        out: &mut Out,
    ) -> Result<(), Stop> {
        if sign == '=' {
            let value = self.single(word, Mode::Text)?;
            match index {
                Some(_) => self.set_element(name, index, value.clone()),
                None => self.set_text(name, value.clone()),
            }
            self.add(&value, double, out);
        } else if double {
            let text = word.text.replace("\"", "");
            let value = self.quoted(&Raw { text, line: word.line })?;
            self.add(&value, true, out);
        } else if out.single() {
            let value = self.single(word, Mode::Text)?;
            self.add(&value, false, out);
        } else {
            let whole = word.text.contains(['"', '\'']);
            let values = self.fields(word, Mode::Words)?;
            self.add_all(&values, whole, false, out);
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
        let (from, to) = if sign.starts_with('/') { slash(tail) } else { (tail.to_string(), String::new()) };
        let pattern = self.single(&Raw { text: from, line }, Mode::Pattern)?;
        let to = self.single(&Raw { text: to, line }, Mode::Text)?;
        let shortest = matches!(sign, "#" | "%");
        let body = expression(&plain(&pattern), shortest);
        let regex = compile(&match sign {
            "#" | "##" | "/#" => format!("(?s)^(?:{body})"),
            "%" => format!("(?s)^(.*)(?:{body})$"),
            "%%" => format!("(?s)^(.*?)(?:{}){}$", body, ""),
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

    fn find(&mut self, name: &str, index: Option<&str>, line: usize) -> Result<Found, Stop> {
        let one = |value: String| Found { values: Some(vec![value]), many: None };
        Ok(match (name, index) {
            ("@" | "*", _) => Found { values: Some(self.arguments.clone()), many: name.chars().next() },
            ("#", _) => {
                let unknown = self.sources.arguments.is_empty() && self.arguments.is_empty();
                let mark = if unknown && self.hidden.is_empty() { self.unknown("#") } else { String::new() };
                one(format!("{}{mark}", self.arguments.len()))
            }
            ("0" | "BASH_SOURCE", _) => one(self.file.clone()),
            ("?", _) => one(format!("{}{}", u8::from(self.status.failed), self.status.names)),
            ("$" | "!" | "RANDOM" | "SECONDS" | "-", _) => one(self.unknown(&format!("${name}"))),
            (_, Some(sign @ ("@" | "*"))) => {
                Found { values: Some(self.values(name).unwrap_or_default()), many: sign.chars().next() }
            }
            (_, Some(index)) => {
                let index = self.index(name, index, line)?;
                Found { values: self.element(name, &index).map(|value| vec![value]), many: None }
            }
            _ if name.starts_with(|c: char| c.is_ascii_digit()) => {
                let number: usize = name.parse().unwrap_or(usize::MAX);
                Found {
                    values: self.arguments.get(number.wrapping_sub(1)).map(|value| vec![value.clone()]),
                    many: None,
                }
            }
            _ => Found { values: self.element(name, "0").map(|value| vec![value]), many: None },
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
        let format = escapes(format);
        let mut out = String::new();
        loop {
            let before = values.len();
            let mut chars = format.chars();
            while let Some(c) = chars.next() {
                if c != '%' {
                    out.push(c);
                    continue;
                }
                let mut spec = String::new();
                let kind = loop {
                    match chars.next() {
                        Some(c) if c.is_ascii_digit() || ".-+ ".contains(c) => spec.push(c),
                        other => break other,
                    }
                };
                if kind == Some('%') {
                    out.push('%');
                    continue;
                }
                let value = values.split_first().map_or(String::new(), |(first, rest)| {
                    values = rest;
                    first.clone()
                });
                let zeros = spec.strip_prefix('0').and_then(|width| width.parse::<usize>().ok()).filter(|n| *n < 64);
                match (kind, zeros, spec.as_str()) {
                    (Some('d' | 'i'), Some(width), _) => {
                        out.push_str(&format!("{:0>width$}{}", plain(&value), names(&value)));
                    }
                    (_, _, ".0") => {}
                    _ => out.push_str(&value),
                }
            }
            self.charge(out.len())?;
            self.step()?;
            if values.is_empty() || values.len() == before {
                return Ok(out);
            }
        }
    }
}

/// Splits `name[index]rest`.
fn split(text: &str) -> (String, Option<String>, String) {
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
    (name, index, parser.chars[parser.at..].iter().collect())
}

/// Splits `pattern/replacement` at the first slash that is not quoted.
fn slash(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 1,
            '/' if at > 0 => return (chars[..at].iter().collect(), chars[at + 1..].iter().collect()),
            _ => {}
        }
        at += 1;
    }
    (text.to_string(), String::new())
}
