//! What a shell knows while a script is read: variables, arguments, functions and files.

use super::command::{Command, Word};
use super::syntax::{Assign, Node, Part, Raw, is_declaration, mark_of};
use super::text::{Marks, is_name, names, plain};
use crate::error::JobError;
use crate::source::Sources;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Most commands and repetitions that are read.
const MOST_STEPS: usize = 20_000;
/// Most characters that all expansions have together.
const MOST_TEXT: usize = 4 << 20;
/// Deepest nesting of commands, functions and shells.
const DEEPEST: usize = 48;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Scalar,
    List,
    Map,
}

/// A variable; a scalar has one element, whose index is 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Variable {
    pub(super) kind: Kind,
    /// Elements by number, or by text in a map.
    elements: BTreeMap<(i64, String), String>,
    pub(super) exported: bool,
}

impl Variable {
    pub(super) fn new(kind: Kind, values: impl IntoIterator<Item = String>) -> Variable {
        let elements = (0..).map(|number| (number, String::new())).zip(values).collect();
        Variable { kind, elements, exported: false }
    }

    pub(super) fn exported(text: String) -> Variable {
        Variable { exported: true, ..Variable::new(Kind::Scalar, [text]) }
    }

    fn key(&self, index: &str) -> (i64, String) {
        match self.kind {
            Kind::Map => (0, index.to_string()),
            _ => (index.parse().unwrap_or(-1), String::new()),
        }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        let shown =
            |(number, text): &(i64, String)| if self.kind == Kind::Map { text.clone() } else { number.to_string() };
        self.elements.keys().map(shown).collect()
    }
}

/// Why the commands that follow are not run.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    Limit(String),
    Exit,
    Return(bool),
    Break(usize),
    Continue(usize),
}

/// How a command ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    pub(super) failed: bool,
    /// Whether it depends on something outside of the job.
    pub(super) unknown: bool,
    /// Name marks of what it depends on.
    pub(super) names: String,
}

impl Status {
    pub(super) fn of(yes: bool, names: String) -> Status {
        Status { failed: !yes, unknown: !names.is_empty(), names }
    }
}

/// A shell and everything that it has read.
pub(super) struct Shell<'a> {
    pub(super) sources: &'a Sources,
    pub(super) variables: BTreeMap<String, Variable>,
    pub(super) arguments: Vec<String>,
    pub(super) functions: BTreeMap<String, Rc<Node>>,
    /// Variables that `local` hid, by function.
    pub(super) hidden: Vec<Vec<(String, Option<Variable>)>>,
    /// Names that the script assigns somewhere: where they are unset they are empty.
    pub(super) assigned: BTreeSet<String>,
    /// Files that the script wrote.
    pub(super) written: BTreeMap<String, String>,
    pub(super) marks: Marks,
    /// Name of the file that is read.
    pub(super) file: String,
    /// What was printed, and whether something was printed that is not known.
    pub(super) output: String,
    pub(super) output_unknown: bool,
    pub(super) input: Option<String>,
    /// Launchers in front of the shell that runs.
    pub(super) within: Vec<Word>,
    pub(super) commands: Vec<Command>,
    /// Files that are not there.
    pub(super) absent: Vec<String>,
    /// The first place that is no shell.
    pub(super) problem: Option<JobError>,
    pub(super) status: Status,
    /// Name marks of words that vanished.
    pub(super) dropped: String,
    steps: usize,
    text: usize,
    depth: usize,
}

impl<'a> Shell<'a> {
    pub(super) fn new(sources: &'a Sources) -> Shell<'a> {
        let exported = |(name, value): (&String, &String)| (name.clone(), Variable::exported(clean(value)));
        Shell {
            sources,
            variables: sources.environment.iter().map(exported).collect(),
            arguments: sources.arguments.iter().map(|text| clean(text)).collect(),
            functions: BTreeMap::new(),
            hidden: Vec::new(),
            assigned: BTreeSet::new(),
            written: BTreeMap::new(),
            marks: Marks::default(),
            file: String::new(),
            output: String::new(),
            output_unknown: false,
            input: None,
            within: Vec::new(),
            commands: Vec::new(),
            absent: Vec::new(),
            problem: None,
            status: Status::default(),
            dropped: String::new(),
            steps: 0,
            text: 0,
            depth: 0,
        }
    }

    /// Counts a command or a repetition.
    pub(super) fn step(&mut self) -> Result<(), Stop> {
        self.steps += 1;
        within(self.steps, MOST_STEPS, "commands", "shorten")
    }

    /// Counts the characters of an expansion.
    pub(super) fn charge(&mut self, characters: usize) -> Result<(), Stop> {
        self.text = self.text.saturating_add(characters);
        within(self.text, MOST_TEXT, "characters of expansions", "shorten")
    }

    /// Runs something one level deeper.
    pub(super) fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Stop>) -> Result<T, Stop> {
        within(self.depth + 1, DEEPEST, "levels of nesting", "split")?;
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Returns the mark of the place of a word.
    pub(super) fn place(&mut self, line: usize) -> char {
        match mark_of(line) {
            Some(mark) => mark,
            None => self.marks.place(&format!("{}:{line}", self.file)),
        }
    }

    /// Returns the mark that stands for a value from elsewhere.
    pub(super) fn unknown(&mut self, name: &str) -> String {
        self.marks.name(name).to_string()
    }

    pub(super) fn scalar(&self, name: &str) -> Option<String> {
        self.values(name).and_then(|values| values.into_iter().next())
    }

    /// Returns all values of a variable; `None` if it is unset.
    pub(super) fn values(&self, name: &str) -> Option<Vec<String>> {
        Some(self.variable(name)?.elements.values().cloned().collect())
    }

    pub(super) fn variable(&self, name: &str) -> Option<&Variable> {
        self.variables.get(&self.resolve(name))
    }

    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        self.variable(name).map(|variable| variable.kind)
    }

    pub(super) fn element(&self, name: &str, index: &str) -> Option<String> {
        let variable = self.variable(name)?;
        variable.elements.get(&variable.key(index)).cloned()
    }

    /// Sets an element of an array or of a map; `None`: the one after the last.
    pub(super) fn set_element(&mut self, name: &str, index: Option<&str>, text: String) {
        let variable = self.variables.entry(self.resolve(name)).or_default();
        if variable.kind == Kind::Scalar {
            variable.kind = Kind::List;
        }
        let last = variable.elements.keys().next_back().map_or(-1, |(number, _)| *number);
        let key = index.map_or((last.saturating_add(1), String::new()), |index| variable.key(index));
        variable.elements.insert(key, text);
    }

    /// Returns the variable that a name stands for: of `declare -n` another one.
    pub(super) fn resolve(&self, name: &str) -> String {
        let mut name = name.to_string();
        for _ in 0..8 {
            match self.variables.get(&format!("&{name}")) {
                Some(link) => name = plain(&link.elements.values().cloned().collect::<String>()),
                None => break,
            }
        }
        name
    }

    pub(super) fn set(&mut self, name: &str, mut variable: Variable) {
        let name = self.resolve(name);
        variable.exported |= self.variables.get(&name).is_some_and(|variable| variable.exported);
        self.variables.insert(name, variable);
    }

    pub(super) fn set_text(&mut self, name: &str, text: String) {
        self.set(name, Variable::new(Kind::Scalar, [text]));
    }

    pub(super) fn export(&mut self, name: &str) {
        let name = self.resolve(name);
        self.variables.entry(name).or_insert(Variable::exported(String::new())).exported = true;
    }

    /// Restores a variable that was set for a command or a function alone.
    pub(super) fn restore(&mut self, name: &str, variable: Option<Variable>) {
        match variable {
            Some(variable) => drop(self.variables.insert(name.to_string(), variable)),
            None => drop(self.variables.remove(name)),
        }
    }

    /// Returns exported variables and those before a command.
    pub(super) fn environment(&self, before: &[(String, String)]) -> BTreeMap<String, String> {
        let exported = self.variables.iter().filter(|(_, variable)| variable.exported && variable.kind == Kind::Scalar);
        let texts = exported.flat_map(|(name, variable)| variable.elements.values().map(move |text| (name, text)));
        texts
            .chain(before.iter().map(|(name, text)| (name, text)))
            .map(|(name, text)| (name.clone(), plain(text)))
            .collect()
    }

    /// Returns a word without its marks.
    pub(super) fn finished(&self, text: &str) -> Word {
        let place = self.marks.place_of(text).unwrap_or(&self.file).to_string();
        Word { text: plain(text), unresolved: self.marks.names_of(text), place }
    }

    /// Returns a file that the script wrote, or that the job has.
    pub(super) fn read_file(&self, path: &str) -> Option<String> {
        let path = plain(path);
        if let Some(text) = self.written.get(path.trim_start_matches("./")) {
            return Some(text.clone());
        }
        let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_string();
        let found = self.sources.find(&path).filter(|_| !last(&path).is_empty())?;
        Some(clean(&found.text))
    }

    /// Adds name marks to every variable that some commands assign.
    pub(super) fn taint<'n>(&mut self, bodies: impl IntoIterator<Item = &'n [Node]>, names: &str) {
        let mut variables = BTreeSet::new();
        bodies.into_iter().for_each(|body| assigns(body, &mut variables));
        for name in variables.iter().filter(|_| !names.is_empty()) {
            let variable = self.variables.get(name);
            let text = variable.map_or(String::new(), |variable| variable.elements.values().cloned().collect());
            // of several options only some depend on it: which, is not known
            let options = plain(&text).trim().contains(char::is_whitespace);
            if !options && variable.is_none_or(|variable| variable.kind == Kind::Scalar) {
                self.set_text(name, text + names);
            }
        }
    }

    /// Notes the names that a text assigns.
    pub(super) fn note_assigned(&mut self, text: &str) {
        for (at, _) in text.match_indices('=') {
            let before = text[..at].strip_suffix('+').unwrap_or(&text[..at]);
            let front = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let starts = front.chars().next_back().is_none_or(|c| c.is_whitespace() || ";({&|`".contains(c));
            if starts && front.len() < before.len() {
                self.assigned.insert(before[front.len()..].to_string());
            }
        }
    }
}

/// Checks a limit that keeps hostile scripts from running on.
fn within(found: usize, most: usize, what: &str, remedy: &str) -> Result<(), Stop> {
    if found > most {
        return Err(Stop::Limit(format!("expected at most {most} {what}, found more; {remedy} the script")));
    }
    Ok(())
}

/// A text from outside, without characters that would be marks.
pub(super) fn clean(text: &str) -> String {
    text.replace(|c| is_name(c) || super::text::is_place(c), "\u{fffd}")
}

/// Adds the names that commands assign, at any depth.
fn assigns(nodes: &[Node], all: &mut BTreeSet<String>) {
    for node in nodes {
        if let Node::Simple(parts) = node {
            let only = parts.iter().all(|part| matches!(part, Part::Assign(_)));
            let declares = matches!(parts.first(), Some(Part::Word(word)) if is_declaration(&word.text));
            for part in parts.iter().filter(|_| only || declares) {
                if let Part::Assign(Assign { name, .. }) = part {
                    all.insert(name.clone());
                }
            }
        }
        let inner = if matches!(node, Node::Subshell(_)) { Vec::new() } else { node.inner() };
        inner.into_iter().for_each(|nodes| assigns(nodes, all));
    }
}

/// Whether commands end the script.
pub(super) fn exits(nodes: &[Node]) -> bool {
    nodes.iter().any(|node| match node {
        Node::Simple(parts) => {
            matches!(parts.first(), Some(Part::Word(Raw { text, .. })) if text == "exit" || text == "return")
        }
        Node::Sequence(_) | Node::Chain(..) | Node::Redirected(..) => node.inner().into_iter().any(exits),
        _ => false,
    })
}

/// Name marks of several texts.
pub(super) fn all_names(texts: &[String]) -> String {
    names(&texts.concat())
}
