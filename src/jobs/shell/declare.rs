//! Commands that set variables and arguments: `export`, `declare`, `local`, `read` and `set`.

use super::state::{Kind, Shell, Status, Stop, Variable};
use super::syntax::{Assign, is_declaration};
use super::text::{is_place, plain};

impl Shell<'_> {
    pub(super) fn set_arguments(&mut self, words: &[String]) {
        let mut rest = words;
        while let Some((first, after)) = rest.split_first() {
            let first = plain(first);
            if first == "--" {
                self.arguments = after.to_vec();
                return;
            }
            if !first.starts_with(['-', '+']) {
                self.arguments = rest.to_vec();
                return;
            }
            rest = if first.ends_with('o') { after.get(1..).unwrap_or_default() } else { after };
        }
    }

    /// `export`, `declare`, `local`, `readonly` and `typeset`.
    pub(super) fn declare(&mut self, words: &[String], assigns: &[&Assign]) -> Result<Status, Stop> {
        let verb = plain(&words[0]);
        let options: String = words[1..].iter().map(|word| plain(word)).filter(|word| word.starts_with('-')).collect();
        let local =
            !self.hidden.is_empty() && matches!(&*verb, "local" | "declare" | "typeset") && !options.contains('g');
        let exports = verb == "export" && !options.contains('n') || options.contains('x');
        for word in words[1..].iter().filter(|word| !plain(word).starts_with('-')) {
            // `export "NAME=value"`, as one word that is expanded
            let (name, value) = word.split_once('=').map_or((&**word, None), |(name, value)| (name, Some(value)));
            let name = plain(name);
            self.prepare(&name, local, &options);
            if let Some(value) = value {
                self.set_text(&name, value.to_string());
            }
            if exports && self.variables.contains_key(&self.resolve(&name)) {
                self.export(&name);
            }
        }
        for assign in assigns {
            if options.contains('n') && verb != "export" {
                let link = Assign { name: format!("&{}", assign.name), ..(*assign).clone() };
                self.hide(&link.name);
                self.assign(&link)?;
                continue;
            }
            // the value is that of before the name is hidden
            let outer = if local { self.variables.get(&assign.name).cloned() } else { None };
            self.prepare(&assign.name, local, &options);
            if let Some(outer) = outer
                && !assign.append
                && !options.contains(['a', 'A'])
                && outer.kind == Kind::Scalar
            {
                self.variables.insert(assign.name.clone(), outer);
            }
            self.assign(assign)?;
            if options.contains('i')
                && let Some(text) = self.scalar(&assign.name)
                && let Some(value) = self.calculate(&text)?.value
            {
                self.set_text(&assign.name, value.to_string());
            }
            if exports {
                self.export(&assign.name);
            }
        }
        debug_assert!(is_declaration(&verb) || !assigns.is_empty());
        Ok(Status::default())
    }

    fn hide(&mut self, name: &str) {
        let outer = self.variables.remove(name);
        if let Some(frame) = self.hidden.last_mut() {
            frame.push((name.to_string(), outer));
        }
    }

    fn prepare(&mut self, name: &str, local: bool, options: &str) {
        self.assigned.insert(name.to_string());
        if local {
            self.hide(name);
        }
        if options.contains(['a', 'A']) && !self.variables.contains_key(name) {
            self.set(name, Variable::new(if options.contains('A') { Kind::Map } else { Kind::List }, []));
        }
    }

    pub(super) fn read(&mut self, verb: &str, words: &[String], before: &[(String, String)]) -> Result<Status, Stop> {
        let separators =
            before.iter().find(|(name, _)| name == "IFS").map_or(" \t\n".to_string(), |(_, text)| plain(text));
        let (mut options, mut targets, mut skip) = (String::new(), Vec::new(), false);
        for word in words.iter().map(|word| plain(word)) {
            if std::mem::take(&mut skip) {
                continue;
            }
            match word.strip_prefix('-') {
                Some(option) => {
                    skip = option.ends_with(['d', 'p', 't', 'n', 'u', 'i', 'N']);
                    options.push_str(option);
                }
                None => targets.push(word),
            }
        }
        let Some(text) = self.input.clone().filter(|text| !text.chars().all(is_place)) else {
            for target in &targets {
                let mark = self.unknown(target);
                self.set_text(target, mark);
            }
            return Ok(Status { failed: true, unknown: true, names: String::new() });
        };
        let target = targets.first().cloned().unwrap_or("REPLY".to_string());
        if verb != "read" {
            self.set(&target, Variable::new(Kind::List, text.lines().map(str::to_string)));
            return Ok(Status::default());
        }
        let (row, rest) =
            if options.contains('d') { (&text[..], "") } else { text.split_once('\n').unwrap_or((&text, "")) };
        let is_separator = |c: char| separators.contains(c);
        let blank = |c: char| is_separator(c) && c.is_whitespace();
        let mut row = row.trim_matches(blank).to_string();
        self.input = Some(rest.to_string());
        if options.contains('a') {
            let parts = row.split(is_separator).filter(|part| !part.is_empty() || !separators.contains(' '));
            self.set(&target, Variable::new(Kind::List, parts.map(str::to_string)));
            return Ok(Status::default());
        }
        let count = targets.len();
        for (number, target) in targets.iter().enumerate() {
            let parts = if number + 1 == count { None } else { row.split_once(is_separator) };
            let (part, rest) = parts.map_or((row.clone(), String::new()), |(part, rest)| {
                (part.to_string(), rest.trim_start_matches(blank).to_string())
            });
            self.set_text(target, part);
            row = rest;
        }
        Ok(Status::default())
    }
}
