//! Reads a script command by command, as bash runs it, without running anything.

use super::arithmetic::Number;
use super::builtin::is_one_of;
use super::command::Command;
use super::expand::Mode;
use super::pattern::fits;
use super::state::{Shell, Status, Stop, exits};
use super::syntax::{Node, Parser, Part, Raw, Redirect, is_declaration};
use super::text::{is_place, names, plain};
use crate::error::JobError;

/// Most repetitions of a loop; more are not read.
const MOST_TURNS: usize = 128;

impl Shell<'_> {
    /// Runs a text in this shell.
    pub(super) fn run_text(&mut self, text: &str, line: usize) -> Result<(), Stop> {
        self.note_assigned(&plain(text));
        self.charge(text.len())?;
        self.deeper(|shell| {
            let mut parser = Parser::new(text, line);
            loop {
                match parser.next() {
                    Ok(Some(node)) => drop(shell.run(&node)?),
                    Ok(None) => return Ok(()),
                    Err(why) => {
                        let line = parser.line();
                        let place = shell.place(line).to_string();
                        let place = shell.marks.place_of(&place).unwrap_or("script").to_string();
                        let why = format!("{why}; bash stops here, too: correct the line");
                        shell.problem.get_or_insert(JobError::File { place, why });
                        return Ok(());
                    }
                }
            }
        })
    }

    /// Runs a file in this shell, with its own name in places.
    pub(super) fn run_file(&mut self, name: &str, text: &str) -> Result<(), Stop> {
        let file = std::mem::replace(&mut self.file, name.to_string());
        let result = self.run_text(text, 1);
        self.file = file;
        match result {
            Err(Stop::Return(_)) => Ok(()),
            other => other,
        }
    }

    /// Runs something in a shell of its own, which sees exported variables only if it is a new program.
    pub(super) fn child(
        &mut self,
        program: bool,
        inner: impl FnOnce(&mut Self) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        self.charge(self.variables.len() * 16)?;
        let (variables, arguments) = (self.variables.clone(), self.arguments.clone());
        let functions = self.functions.clone();
        if program {
            self.variables.retain(|_, variable| variable.exported);
            self.functions.clear();
        }
        let result = inner(self);
        (self.variables, self.arguments, self.functions) = (variables, arguments, functions);
        match result {
            Err(Stop::Exit | Stop::Return(_)) => Ok(()),
            other => other,
        }
    }

    /// Returns what commands print, or the mark of the substitution.
    pub(super) fn substitute(&mut self, text: &str, line: usize) -> Result<String, Stop> {
        let file = text.trim().strip_prefix('<').filter(|path| !path.starts_with(['<', '(']));
        if let Some(path) = file {
            let path = self.single(&Raw { text: path.trim().to_string(), line }, Mode::Text)?;
            return Ok(match self.read_file(&path) {
                Some(text) => text.trim_end_matches('\n').to_string(),
                None => self.unknown(&format!("$(< {})", plain(&path))),
            });
        }
        let (output, unknown) = self.captured(|shell| shell.child(false, |shell| shell.run_text(text, line)))?;
        if unknown {
            let short: String = plain(text).split_whitespace().collect::<Vec<_>>().join(" ");
            let short: String = short.chars().take(100).collect();
            return Ok(self.unknown(&format!("$({short})")));
        }
        Ok(output.trim_end_matches(|c| c == '\n' || is_place(c)).to_string())
    }

    /// Returns what something prints, and whether it prints what is not known.
    fn captured(&mut self, inner: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(String, bool), Stop> {
        let output = std::mem::take(&mut self.output);
        let unknown = std::mem::take(&mut self.output_unknown);
        let result = inner(self);
        let printed = std::mem::replace(&mut self.output, output);
        let printed_unknown = std::mem::replace(&mut self.output_unknown, unknown);
        result?;
        Ok((printed, printed_unknown))
    }

    fn run_list(&mut self, nodes: &[Node]) -> Result<Status, Stop> {
        let mut status = Status::default();
        for node in nodes {
            status = self.run(node)?;
        }
        Ok(status)
    }

    /// Runs a command.
    pub(super) fn run(&mut self, node: &Node) -> Result<Status, Stop> {
        self.step()?;
        let status = self.deeper(|shell| shell.run_node(node))?;
        self.status = status.clone();
        Ok(status)
    }

    fn run_node(&mut self, node: &Node) -> Result<Status, Stop> {
        match node {
            Node::Simple(parts) => self.simple(parts),
            Node::Sequence(nodes) => self.run_list(nodes),
            Node::Subshell(nodes) => {
                self.child(false, |shell| shell.run_list(nodes).map(drop))?;
                Ok(self.status.clone())
            }
            Node::Not(node) => {
                let status = self.run(node)?;
                Ok(Status { failed: !status.failed, ..status })
            }
            Node::Chain(first, steps) => self.chain(first, steps),
            Node::Pipe(nodes) => self.pipe(nodes),
            Node::If(arms) => self.choose(arms),
            Node::Case(value, arms) => self.case(value, arms),
            Node::For(name, words, body) => self.each(name, words.as_deref(), body),
            Node::Count(parts, body) => {
                self.compute(&parts[0])?;
                for _ in 0..MOST_TURNS {
                    if !parts[1].trim().is_empty() && self.compute(&parts[1])?.failed || self.turn(body)? {
                        break;
                    }
                    self.compute(&parts[2])?;
                }
                Ok(Status::default())
            }
            Node::While(until, condition, body) => {
                for _ in 0..MOST_TURNS {
                    let status = self.run_list(condition)?;
                    if status.failed != *until || self.turn(body)? || status.unknown {
                        break;
                    }
                }
                Ok(Status::default())
            }
            Node::Function(name, body) => {
                self.functions.insert(name.clone(), body.clone());
                Ok(Status::default())
            }
            Node::Arithmetic(text) => self.compute(text),
            Node::Test(words) => self.double_test(words),
            Node::Redirected(node, redirects) => self.redirected(redirects, |shell| shell.run_node(node)),
        }
    }

    fn chain(&mut self, first: &Node, steps: &[(bool, Vec<Node>)]) -> Result<Status, Stop> {
        let mut status = self.run(first)?;
        for (and, right) in steps {
            let (unknown, names) = (status.unknown, status.names.clone());
            if unknown && exits(right) {
                continue;
            }
            if status.failed != *and {
                status = self.run_list(right)?;
            }
            if unknown {
                self.taint([&right[..]], &names);
            }
        }
        Ok(status)
    }

    fn pipe(&mut self, nodes: &[Node]) -> Result<Status, Stop> {
        let outer = self.input.take();
        let mut input = outer.clone();
        let mut unknown = false;
        let mut status = Status::default();
        for (number, node) in nodes.iter().enumerate() {
            self.input = input.take();
            if number + 1 == nodes.len() {
                status = self.run(node)?;
                self.output_unknown |= unknown && self.output.is_empty();
                break;
            }
            let mut inner = Status::default();
            let (output, not_known) = self.captured(|shell| {
                shell.child(false, |shell| {
                    inner = shell.run(node)?;
                    Ok(())
                })
            })?;
            unknown |= not_known;
            input = (!unknown).then_some(output);
        }
        self.input = outer;
        Ok(status)
    }

    fn choose(&mut self, arms: &[(Vec<Node>, Vec<Node>)]) -> Result<Status, Stop> {
        let mut names = String::new();
        let mut chosen = None;
        let mut passed = None;
        for (condition, body) in arms {
            let status = self.run_list(condition)?;
            names += &status.names;
            if !status.failed && status.unknown && exits(body) {
                continue;
            }
            if status.failed && status.unknown && status.names.is_empty() && passed.is_none() {
                passed = Some(body);
            }
            if !status.failed {
                chosen = Some(body);
                break;
            }
        }
        // a file that is not known is there if its absence ends the script
        if let (Some(body), Some(other)) = (chosen, passed)
            && exits(body)
        {
            chosen = Some(other);
        }
        let status = self.run_list(chosen.map_or(&[][..], |body| body))?;
        self.taint(arms.iter().map(|(_, body)| &body[..]), &names);
        Ok(status)
    }

    fn case(&mut self, value: &Raw, arms: &[(Vec<Raw>, Vec<Node>)]) -> Result<Status, Stop> {
        let value = self.single(value, Mode::Text)?;
        let names = names(&value);
        let mut status = Status::default();
        'arms: for (patterns, body) in arms {
            for pattern in patterns {
                let pattern = self.single(pattern, Mode::Pattern)?;
                if fits(&plain(&pattern), &plain(&value)) {
                    if names.is_empty() || !exits(body) {
                        status = self.run_list(body)?;
                    }
                    break 'arms;
                }
            }
        }
        self.taint(arms.iter().map(|(_, body)| &body[..]), &names);
        Ok(status)
    }

    fn each(&mut self, name: &str, words: Option<&[Raw]>, body: &[Node]) -> Result<Status, Stop> {
        let mut values = Vec::new();
        match words {
            None => values.clone_from(&self.arguments),
            Some(words) => {
                for word in words {
                    values.extend(self.fields(word, Mode::Existing)?);
                }
            }
        }
        for value in values.into_iter().take(MOST_TURNS) {
            self.set_text(name, value);
            if self.turn(body)? {
                break;
            }
        }
        Ok(Status::default())
    }

    /// Runs the body of a loop; returns whether the loop ends.
    fn turn(&mut self, body: &[Node]) -> Result<bool, Stop> {
        self.step()?;
        match self.run_list(body) {
            Ok(_) | Err(Stop::Continue(0..=1)) => Ok(false),
            Err(Stop::Break(0..=1)) => Ok(true),
            Err(Stop::Break(levels)) => Err(Stop::Break(levels - 1)),
            Err(Stop::Continue(levels)) => Err(Stop::Continue(levels - 1)),
            Err(stop) => Err(stop),
        }
    }

    /// Calculates an expression as it is written.
    pub(super) fn arithmetic(&mut self, text: &str, line: usize) -> Result<Number, Stop> {
        let text = self.quoted(&Raw { text: text.replace('"', ""), line })?;
        self.calculate(&text)
    }

    /// `(( ))`: fails if the number is 0.
    pub(super) fn compute(&mut self, text: &str) -> Result<Status, Stop> {
        let number = self.arithmetic(text, 0)?;
        Ok(Status::of(number.value.unwrap_or(0) != 0, number.names))
    }

    fn redirected(
        &mut self,
        redirects: &[Redirect],
        inner: impl FnOnce(&mut Self) -> Result<Status, Stop>,
    ) -> Result<Status, Stop> {
        let mut target = None;
        let outer = self.input.clone();
        for redirect in redirects {
            match redirect {
                Redirect::From(word) => {
                    let path = self.single(word, Mode::Text)?;
                    let known = |text: &String| !word.text.starts_with("<(") || names(text).is_empty();
                    self.input = self.read_file(&path).filter(known);
                }
                Redirect::Text(word) => self.input = Some(self.single(word, Mode::Text)? + "\n"),
                Redirect::Here(expands, raw) => {
                    let first = self.place(raw.line);
                    let text = if *expands { self.quoted(raw)? } else { self.placed(&raw.text, raw.line) };
                    self.input = Some(format!("{first}{text}"));
                }
                Redirect::To(append, word) => target = Some((*append, plain(&self.single(word, Mode::Text)?))),
                Redirect::Other => {}
            }
        }
        let result = match target {
            None => inner(self),
            Some((append, path)) => {
                let mut status = Status::default();
                let (text, unknown) = self.captured(|shell| {
                    status = inner(shell)?;
                    Ok(())
                })?;
                if !unknown && path != "/dev/null" && self.written.len() < 1000 {
                    let file = self.written.entry(path.trim_start_matches("./").to_string()).or_default();
                    if !append {
                        file.clear();
                    }
                    file.push_str(&text);
                    let size = file.len();
                    self.charge(size)?;
                }
                Ok(status)
            }
        };
        self.input = outer;
        result
    }

    fn simple(&mut self, parts: &[Part]) -> Result<Status, Stop> {
        let first_word = parts.iter().find_map(|part| if let Part::Word(word) = part { Some(word) } else { None });
        if first_word.is_none() {
            self.status = Status::default();
        }
        let mode =
            if first_word.is_some_and(|word| is_one_of("[ test", &word.text)) { Mode::Existing } else { Mode::Words };
        self.dropped.clear();
        let (mut words, mut before, mut declared) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Word(raw) => words.extend(self.fields(raw, mode)?),
                Part::Assign(assign) if first_word.is_none() => self.assign(assign)?,
                Part::Assign(assign) if words.is_empty() => {
                    let saved = self.variables.get(&assign.name).cloned();
                    self.assign(assign)?;
                    before.push((assign.name.clone(), self.scalar(&assign.name).unwrap_or_default()));
                    self.restore(&assign.name, saved);
                }
                Part::Assign(assign) => declared.push(assign),
            }
        }
        while words.first().is_some_and(|word| plain(word).is_empty() && word.chars().any(super::text::is_name)) {
            words.remove(0);
        }
        match words.first().map(|word| plain(word)) {
            None => Ok(Status::default()),
            Some(name) if !declared.is_empty() || is_declaration(&name) => self.declare(&words, &declared),
            Some(_) => self.command(&words, &before),
        }
    }

    /// Notes a program that would be run.
    pub(super) fn external(&mut self, words: &[String], before: &[(String, String)]) {
        let words: Vec<_> = words.iter().map(|word| self.finished(word)).collect();
        let environment = self.environment(before);
        let place = words.first().map_or(String::new(), |word| word.place.clone());
        self.commands.push(Command { words, environment, place, within: self.within.clone() });
        self.output_unknown = true;
    }
}
