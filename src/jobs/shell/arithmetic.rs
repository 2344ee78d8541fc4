//! Arithmetic of the shell: whole numbers of 64 bits.

use super::state::{Shell, Stop};
use super::syntax::Parser;
use super::text::{names, plain};

/// Deepest nesting of brackets, and of variables that hold expressions.
const DEEPEST: usize = 30;
/// Operators with their precedence; the longer of two first.
const BINARY: &[(&str, u8)] = &[
    ("**", 12),
    ("<<", 9),
    (">>", 9),
    ("<=", 8),
    (">=", 8),
    ("==", 7),
    ("!=", 7),
    ("&&", 3),
    ("||", 2),
    ("*", 11),
    ("/", 11),
    ("%", 11),
    ("+", 10),
    ("-", 10),
    ("<", 8),
    (">", 8),
    ("&", 6),
    ("^", 5),
    ("|", 4),
];

/// A value with the name marks that it depends on; `None`: no number.
pub(super) struct Number {
    pub(super) value: Option<i64>,
    pub(super) names: String,
}

struct Reader<'s, 'a> {
    shell: &'s mut Shell<'a>,
    parser: Parser,
    depth: usize,
    names: String,
}

impl Shell<'_> {
    /// Calculates an expression after its expansion.
    pub(super) fn calculate(&mut self, text: &str) -> Result<Number, Stop> {
        self.charge(text.len())?;
        let mut reader = Reader { shell: self, parser: Parser::new(&plain(text), 0), depth: 0, names: names(text) };
        let value = reader.comma();
        let value = value.filter(|_| reader.peek().is_none());
        let names = std::mem::take(&mut reader.names);
        Ok(Number { value, names })
    }
}

impl Reader<'_, '_> {
    fn peek(&mut self) -> Option<char> {
        while self.parser.peek().is_some_and(char::is_whitespace) {
            self.parser.at += 1;
        }
        self.parser.peek()
    }

    fn take(&mut self, text: &str) -> bool {
        self.peek();
        let here = self.parser.starts(text);
        self.parser.at += if here { text.len() } else { 0 };
        here
    }

    fn comma(&mut self) -> Option<i64> {
        if self.peek().is_none() {
            return Some(0);
        }
        let mut value = self.choice()?;
        while self.take(",") {
            value = self.choice()?;
        }
        Some(value)
    }

    fn choice(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let value = self.binary(2)?;
        let value = if self.take("?") {
            let yes = self.choice()?;
            if !self.take(":") {
                return None;
            }
            let no = self.choice()?;
            if value != 0 { yes } else { no }
        } else {
            value
        };
        self.depth -= 1;
        Some(value)
    }

    fn binary(&mut self, least: u8) -> Option<i64> {
        let mut left = self.unary()?;
        loop {
            self.peek();
            let found = BINARY.iter().find(|(sign, _)| self.parser.starts(sign));
            let Some(&(sign, level)) = found.filter(|(_, level)| *level >= least) else { return Some(left) };
            self.parser.at += sign.len();
            let right = self.binary(if sign == "**" { level } else { level + 1 })?;
            left = apply(sign, left, right)?;
        }
    }

    fn unary(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let value = if self.take("++") {
            self.step(1, true)?
        } else if self.take("--") {
            self.step(-1, true)?
        } else if self.take("-") {
            self.unary()?.wrapping_neg()
        } else if self.take("+") {
            self.unary()?
        } else if self.take("!") {
            i64::from(self.unary()? == 0)
        } else if self.take("~") {
            !self.unary()?
        } else if self.take("(") {
            let value = self.comma()?;
            if !self.take(")") {
                return None;
            }
            value
        } else if self.peek()?.is_ascii_digit() {
            self.number()?
        } else {
            self.variable()?
        };
        self.depth -= 1;
        Some(value)
    }

    fn number(&mut self) -> Option<i64> {
        let mut text = String::new();
        while let Some(c) = self.parser.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '#') {
            self.parser.at += 1;
            text.push(c);
        }
        if let Some((base, digits)) = text.split_once('#') {
            return i64::from_str_radix(digits, base.parse().ok().filter(|base| (2..=36).contains(base))?).ok();
        }
        match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None if text.starts_with('0') => i64::from_str_radix(&text, 8).ok(),
            None => text.parse().ok(),
        }
    }

    fn name(&mut self) -> Option<String> {
        self.peek();
        Some(self.parser.name()).filter(|name| !name.is_empty())
    }

    fn step(&mut self, by: i64, first: bool) -> Option<i64> {
        let name = self.name()?;
        let old = self.value(&name, None)?;
        let new = old.wrapping_add(by);
        self.shell.set_text(&name, new.to_string());
        Some(if first { new } else { old })
    }

    fn variable(&mut self) -> Option<i64> {
        let name = self.name()?;
        let index = if self.take("[") {
            let index = self.comma()?;
            if !self.take("]") {
                return None;
            }
            Some(index)
        } else {
            None
        };
        for (sign, by) in [("++", 1), ("--", -1)] {
            if self.take(sign) {
                let old = self.value(&name, None)?;
                self.shell.set_text(&name, old.wrapping_add(by).to_string());
                return Some(old);
            }
        }
        self.peek();
        let signs = ["<<=", ">>=", "*=", "/=", "%=", "+=", "-=", "&=", "^=", "|=", "="].into_iter();
        let sign = signs.filter(|_| !self.parser.starts("==")).find(|sign| self.parser.starts(sign));
        let Some(sign) = sign else { return self.value(&name, index) };
        self.parser.at += sign.len();
        let right = self.choice()?;
        let value = match sign.strip_suffix('=') {
            Some("") | None => right,
            Some(operator) => apply(operator, self.value(&name, index)?, right)?,
        };
        let text = format!("{value}{}", self.names);
        match index {
            None => self.shell.set_text(&name, text),
            Some(index) => self.shell.set_element(&name, Some(&index.to_string()), text),
        }
        Some(value)
    }

    fn value(&mut self, name: &str, index: Option<i64>) -> Option<i64> {
        let text = match index {
            None => self.shell.scalar(name),
            Some(index) => self.shell.element(name, &index.to_string()),
        };
        let Some(text) = text else {
            if !self.shell.assigned.contains(name) {
                self.names += &self.shell.unknown(name);
            }
            return Some(0);
        };
        self.names += &names(&text);
        let text = plain(&text);
        if let Ok(number) = text.trim().parse::<i64>()
            && !text.trim().trim_start_matches('-').starts_with('0')
        {
            return Some(number);
        }
        let outer = std::mem::replace(&mut self.parser, Parser::new(&text, 0));
        let value = self.choice().or(text.is_empty().then_some(0));
        self.parser = outer;
        value
    }
}

fn apply(sign: &str, left: i64, right: i64) -> Option<i64> {
    Some(match sign {
        "**" => left.wrapping_pow(u32::try_from(right).ok()?),
        "*" => left.wrapping_mul(right),
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        "<<" => left.wrapping_shl(u32::try_from(right).ok()?),
        ">>" => left.wrapping_shr(u32::try_from(right).ok()?),
        "<" => i64::from(left < right),
        ">" => i64::from(left > right),
        "<=" => i64::from(left <= right),
        ">=" => i64::from(left >= right),
        "==" => i64::from(left == right),
        "!=" => i64::from(left != right),
        "&" => left & right,
        "^" => left ^ right,
        "|" => left | right,
        "&&" => i64::from(left != 0 && right != 0),
        "||" => i64::from(left != 0 || right != 0),
        _ => return None,
    })
}
