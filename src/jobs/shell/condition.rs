//! Conditions: `[ ]`, `test` and `[[ ]]`.

use super::expand::Mode;
use super::pattern::{compile, fits};
use super::state::{Kind, Shell, Status, Stop, Variable};
use super::syntax::Raw;
use super::text::{names, plain};

/// Deepest nesting of brackets.
const DEEPEST: usize = 30;

/// Operators between two words.
const BINARY: &str = "= == != =~ < > -eq -ne -lt -le -gt -ge -nt -ot -ef";
/// Tests of whether something is set.
const EMPTINESS: [&str; 3] = ["-z", "-n", "-v"];

/// Words of a condition.
#[derive(Default)]
struct Terms {
    texts: Vec<String>,
    /// Patterns (`[[ ]]` alone), and whether a word is an operator that was not quoted.
    patterns: Option<Vec<String>>,
    raw: Vec<bool>,
    at: usize,
    depth: usize,
    names: String,
    unknown: bool,
}

impl Terms {
    fn is(&self, ahead: usize, word: &str) -> bool {
        let at = self.at + ahead;
        self.texts.get(at).is_some_and(|text| plain(text) == word) && self.raw.get(at) == Some(&true)
    }

    fn take(&mut self, word: &str) -> bool {
        let here = self.is(0, word);
        self.at += usize::from(here);
        here
    }

    fn text(&mut self, at: usize) -> String {
        let text = self.texts.get(at).cloned().unwrap_or_default();
        self.names += &names(&text);
        plain(&text)
    }
}

impl Shell<'_> {
    /// Evaluates `[ words ]`.
    pub(super) fn test(&mut self, words: &[String]) -> Result<Status, Stop> {
        // of [ -z $NAME ], only -z is left if the variable is not set
        let dropped = std::mem::take(&mut self.dropped);
        let names = if is_emptiness(words) { String::new() } else { dropped };
        self.decide(Terms { texts: words.to_vec(), raw: vec![true; words.len()], names, ..Terms::default() })
    }

    /// Evaluates `[[ words ]]`.
    pub(super) fn double_test(&mut self, words: &[Raw]) -> Result<Status, Stop> {
        let (mut texts, mut patterns, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        for (number, word) in words.iter().enumerate() {
            texts.push(self.single(word, Mode::Text)?);
            let regex = number > 0 && words[number - 1].text == "=~";
            patterns.push(plain(&self.single(word, if regex { Mode::Regex } else { Mode::Pattern })?));
            raw.push(!word.text.contains(['"', '\'', '$', '\\']));
        }
        self.decide(Terms { texts, patterns: Some(patterns), raw, ..Terms::default() })
    }

    fn decide(&mut self, mut terms: Terms) -> Result<Status, Stop> {
        let yes = if terms.texts.is_empty() { Some(false) } else { self.joined(&mut terms, 0)? };
        let yes = yes.filter(|_| terms.at >= terms.texts.len()).unwrap_or(false);
        let mut status = Status::of(yes, names(&terms.names));
        status.unknown |= terms.unknown;
        Ok(status)
    }

    /// Conditions joined by "or" (level 0), by "and" (level 1), and a single one.
    fn joined(&mut self, terms: &mut Terms, level: usize) -> Result<Option<bool>, Stop> {
        let operators = if terms.patterns.is_some() { ["||", "&&"] } else { ["-o", "-a"] };
        let Some(operator) = operators.get(level) else { return self.one(terms) };
        terms.depth += usize::from(level == 0);
        if terms.depth > DEEPEST {
            return Ok(None);
        }
        let mut yes = self.joined(terms, level + 1)?;
        while yes.is_some() && terms.take(operator) {
            let right = self.joined(terms, level + 1)?;
            yes = yes.zip(right).map(|(left, right)| if level == 0 { left || right } else { left && right });
        }
        terms.depth -= usize::from(level == 0);
        Ok(yes)
    }

    fn one(&mut self, terms: &mut Terms) -> Result<Option<bool>, Stop> {
        let operator = terms.texts.get(terms.at + 1).map(|text| plain(text)).filter(|_| terms.raw[terms.at + 1]);
        let binary = operator.filter(|operator| BINARY.split(' ').any(|one| one == operator));
        if let Some(operator) = binary
            && terms.at + 2 < terms.texts.len()
        {
            let at = terms.at;
            terms.at += 3;
            let (left, right) = (terms.text(at), terms.text(at + 2));
            let pattern = terms.patterns.as_ref().map(|patterns| patterns[at + 2].clone());
            return self.compare(terms, &left, &operator, &right, pattern);
        }
        if terms.is(0, "!") && terms.at + 1 < terms.texts.len() {
            let mut turns = false;
            while terms.take("!") {
                turns = !turns;
            }
            return Ok(self.one(terms)?.map(|yes| yes != turns));
        }
        if terms.is(0, "(") && terms.at + 2 < terms.texts.len() {
            terms.at += 1;
            let yes = self.joined(terms, 0)?;
            return Ok(yes.filter(|_| terms.take(")")));
        }
        let first = terms.texts.get(terms.at).map(|text| plain(text)).unwrap_or_default();
        let unary = first.len() == 2 && first.starts_with('-') && terms.raw.get(terms.at) == Some(&true);
        if unary && terms.at + 1 < terms.texts.len() {
            terms.at += 2;
            let asked = terms.names.len();
            let value = terms.text(terms.at - 1);
            if EMPTINESS.contains(&&*first) {
                terms.names.truncate(asked); // a script that asks whether a variable is set does without it
            }
            return Ok(Some(self.unary(terms, &first, &value)));
        }
        let value = terms.text(terms.at);
        terms.at += 1;
        Ok(Some(!value.is_empty()))
    }

    fn unary(&mut self, terms: &mut Terms, sign: &str, value: &str) -> bool {
        match sign {
            "-z" => value.is_empty(),
            "-n" => !value.is_empty(),
            "-v" => match value.split_once('[') {
                Some((name, index)) => self.element(name, index.trim_end_matches(']')).is_some(),
                None => self.variables.contains_key(&self.resolve(value)),
            },
            "-t" | "-o" => false,
            _ => {
                let there = !value.is_empty() && self.read_file(value).is_some();
                terms.unknown |= !there;
                there
            }
        }
    }

    fn compare(
        &mut self,
        terms: &mut Terms,
        left: &str,
        sign: &str,
        right: &str,
        pattern: Option<String>,
    ) -> Result<Option<bool>, Stop> {
        if sign.starts_with('-') {
            let (left, right) = if pattern.is_some() {
                let (left, right) = (self.calculate(left)?, self.calculate(right)?);
                terms.names += &(left.names + &right.names);
                (left.value, right.value)
            } else {
                (left.trim().parse::<i64>().ok(), right.trim().parse::<i64>().ok())
            };
            let Some((left, right)) = left.zip(right) else { return Ok(Some(false)) };
            return Ok(match sign {
                "-eq" => Some(left == right),
                "-ne" => Some(left != right),
                "-lt" => Some(left < right),
                "-le" => Some(left <= right),
                "-gt" => Some(left > right),
                "-ge" => Some(left >= right),
                _ => {
                    terms.unknown = true;
                    Some(false)
                }
            });
        }
        let same = |right: &str| pattern.as_ref().map_or(left == right, |pattern| fits(pattern, left));
        Ok(Some(match sign {
            "=" | "==" => same(right),
            "!=" => !same(right),
            "<" => left < right,
            ">" => left > right,
            _ => {
                let expression = pattern.unwrap_or_default();
                let regex = compile(&expression);
                let groups = regex.as_ref().and_then(|regex| regex.captures(left));
                if let Some(groups) = &groups {
                    let texts =
                        groups.iter().map(|group| group.map_or(String::new(), |group| group.as_str().to_string()));
                    self.set("BASH_REMATCH", Variable::new(Kind::List, texts));
                }
                groups.is_some()
            }
        }))
    }
}

/// Tells whether a condition is a test of whether something is set, whose variable is not.
fn is_emptiness(texts: &[String]) -> bool {
    let words: Vec<String> = texts.iter().map(|text| plain(text)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).skip_while(|word| *word == "!").collect();
    matches!(words[..], [one] if EMPTINESS.contains(&one))
}
