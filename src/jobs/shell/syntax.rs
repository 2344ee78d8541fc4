//! What a shell script says, before anything is expanded: its parts, words and quotes.

use super::text::{PLACES, is_place};
use std::rc::Rc;

/// Deepest nesting of quotes, substitutions and commands.
const DEEPEST: usize = 40;

/// A word as it is written, quotes included.
#[derive(Clone, Debug, Default)]
pub(super) struct Raw {
    pub(super) text: String,
    /// Line, or a place mark if the text was put together elsewhere.
    pub(super) line: usize,
}

/// `NAME=value`, `NAME+=value`, `NAME[index]=value` or `NAME=(values)`.
#[derive(Clone, Debug)]
pub(super) struct Assign {
    pub(super) name: String,
    pub(super) index: Option<String>,
    pub(super) append: bool,
    pub(super) value: Assigned,
}

#[derive(Clone, Debug)]
pub(super) enum Assigned {
    Scalar(Raw),
    Array(Vec<Raw>),
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    Word(Raw),
    Assign(Assign),
}

/// What feeds a command, or takes what it prints.
#[derive(Clone, Debug)]
pub(super) enum Redirect {
    /// `< file`.
    From(Raw),
    /// `<<< word`.
    Text(Raw),
    /// `<< EOF`: whether it is expanded, and the text.
    Here(bool, Raw),
    /// `> file`, or `>> file` if it appends.
    To(bool, Raw),
    Other,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    Simple(Vec<Part>),
    Pipe(Vec<Node>),
    /// A command, and those that follow: after `&&` if true, else `||`.
    Chain(Box<Node>, Vec<(bool, Vec<Node>)>),
    Not(Box<Node>),
    Sequence(Vec<Node>),
    Subshell(Vec<Node>),
    /// Condition and commands of each arm; that of `else` is empty, and true.
    If(Vec<(Vec<Node>, Vec<Node>)>),
    /// Value; then patterns and commands of each arm.
    Case(Raw, Vec<(Vec<Raw>, Vec<Node>)>),
    For(String, Option<Vec<Raw>>, Vec<Node>),
    /// `for ((start; condition; step))`.
    Count([String; 3], Vec<Node>),
    /// `until` if true.
    While(bool, Vec<Node>, Vec<Node>),
    Function(String, Rc<Node>),
    Arithmetic(String),
    /// Words and operators of `[[ ]]`.
    Test(Vec<Raw>),
    Redirected(Box<Node>, Vec<Redirect>),
}

impl Node {
    /// The lists of commands that it runs, except for conditions.
    pub(super) fn inner(&self) -> Vec<&[Node]> {
        match self {
            Node::Pipe(nodes) | Node::Sequence(nodes) | Node::Subshell(nodes) => vec![nodes],
            Node::For(_, _, nodes) | Node::Count(_, nodes) | Node::While(_, _, nodes) => vec![nodes],
            Node::Chain(first, steps) => {
                let steps = steps.iter().map(|(_, nodes)| &nodes[..]);
                std::iter::once(std::slice::from_ref(&**first)).chain(steps).collect()
            }
            Node::If(arms) => arms.iter().map(|(_, nodes)| &nodes[..]).collect(),
            Node::Case(_, arms) => arms.iter().map(|(_, nodes)| &nodes[..]).collect(),
            Node::Redirected(node, _) | Node::Not(node) => vec![std::slice::from_ref(&**node)],
            _ => Vec::new(),
        }
    }
}

/// Reads a text, one complete command at a time.
pub(super) struct Parser {
    pub(super) chars: Vec<char>,
    pub(super) at: usize,
    pub(super) line: usize,
    /// Place of a text that was put together elsewhere, as its marks say.
    mark: Option<char>,
    pub(super) depth: usize,
    /// Lines of here-documents, which were taken out after this line.
    pub(super) taken: usize,
}

pub(super) type Parsed<T> = Result<T, String>;

impl Parser {
    pub(super) fn new(text: &str, line: usize) -> Parser {
        let chars: Vec<char> = text.trim_start_matches('\u{feff}').replace("\r\n", "\n").chars().collect();
        Parser { chars, at: 0, line, mark: mark_of(line), depth: 0, taken: 0 }
    }

    /// The line that is read, or its place mark.
    pub(super) fn line(&self) -> usize {
        self.mark.map_or(self.line, |mark| mark as usize)
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn starts(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek_at(i) == Some(c))
    }

    /// Skips blanks, joined lines and comments, but no end of line.
    pub(super) fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\r') => self.at += 1,
                Some('\\') if self.peek_at(1) == Some('\n') => {
                    self.at += 2;
                    self.line += 1;
                }
                Some(c) if is_place(c) => {
                    self.mark = Some(c);
                    self.at += 1;
                }
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    /// Skips ends of lines.
    pub(super) fn newlines(&mut self) {
        loop {
            self.blanks();
            if self.peek() != Some('\n') {
                return;
            }
            self.at += 1;
            self.line += 1 + std::mem::take(&mut self.taken);
        }
    }

    pub(super) fn deeper<T>(&mut self, inner: impl FnOnce(&mut Parser) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEEPEST {
            return Err(format!("expected at most {DEEPEST} levels of nesting, found more; split the script"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Takes a keyword if it stands here.
    pub(super) fn keyword(&mut self, word: &str) -> bool {
        let next = self.peek_at(word.chars().count());
        let ends = next.is_none_or(|c| c.is_whitespace() || ";&|()<>".contains(c) || is_place(c));
        let here = self.starts(word) && ends;
        if here {
            self.at += word.chars().count();
            self.blanks();
        }
        here
    }

    pub(super) fn expect(&mut self, word: &str) -> Parsed<()> {
        self.newlines();
        if self.keyword(word) {
            return Ok(());
        }
        let found: String = self.chars[self.at.min(self.chars.len())..].iter().take(20).collect();
        Err(format!("expected {word:?}, found {:?}", found.lines().next().unwrap_or("the end")))
    }

    /// Takes a word where there must be one.
    pub(super) fn some_word(&mut self) -> Parsed<Raw> {
        let at = self.at;
        let word = self.word()?;
        if self.at > at {
            return Ok(word);
        }
        Err(match self.peek() {
            Some(c) => format!("expected a word, found {c:?}"),
            None => "expected a word, found the end".to_string(),
        })
    }

    pub(super) fn word(&mut self) -> Parsed<Raw> {
        self.word_until(|c| c.is_whitespace() || ";&|<>()".contains(c))
    }

    pub(super) fn word_until(&mut self, ends: impl Fn(char) -> bool) -> Parsed<Raw> {
        let (start, line) = (self.at, self.line());
        while let Some(c) = self.peek() {
            let group = c == '(' && self.at > start && "?*+@!".contains(self.chars[self.at - 1]);
            let process = "<>".contains(c) && self.peek_at(1) == Some('(') && self.at == start;
            if group || process {
                self.at += usize::from(process);
                self.balanced('(', ')')?;
            } else if c == '(' && !ends(' ') {
                self.balanced('(', ')')?;
            } else if ends(c) {
                break;
            } else {
                self.skip(c)?;
            }
        }
        Ok(Raw { text: self.chars[start..self.at].iter().collect(), line })
    }

    /// Passes one character of a word, with what it opens.
    fn skip(&mut self, c: char) -> Parsed<()> {
        match c {
            '\\' => {
                self.at += 1;
                if let Some(next) = self.peek() {
                    self.line += usize::from(next == '\n');
                    self.at += 1;
                }
            }
            '\'' => {
                self.at += 1;
                self.skip_quote('\'', false)?;
            }
            '"' => {
                self.at += 1;
                self.deeper(|parser| parser.skip_double())?;
            }
            '`' => {
                self.at += 1;
                self.skip_quote('`', true)?;
            }
            '$' => match self.peek_at(1) {
                Some('(') => {
                    self.at += 1;
                    self.balanced('(', ')')?;
                }
                Some('{') => {
                    self.at += 1;
                    self.balanced('{', '}')?;
                }
                Some('\'') => {
                    self.at += 2;
                    self.skip_quote('\'', true)?;
                }
                _ => self.at += 1,
            },
            _ => {
                if is_place(c) {
                    self.mark = Some(c);
                }
                self.line += usize::from(c == '\n');
                self.at += 1;
            }
        }
        Ok(())
    }

    /// Passes what stands in quotes or brackets, and returns it without those; all of the rest if they stay open.
    pub(super) fn inside(&mut self, c: char, front: usize) -> String {
        let start = self.at + front;
        let closed = self.skip(c).is_ok();
        self.at = if closed { self.at.min(self.chars.len()) } else { self.chars.len() };
        let end = self.at - usize::from(closed && c != '\\');
        self.chars.get(start..end).unwrap_or_default().iter().collect()
    }

    /// Returns what one pair of brackets has within it, if that is the whole text.
    pub(super) fn enclosed(text: &str) -> Option<String> {
        let mut parser = Parser::new(text, 0);
        let inner = if parser.peek() == Some('(') { parser.balanced('(', ')').ok()? } else { return None };
        parser.peek().is_none().then_some(inner)
    }

    /// Takes a name; empty if there is none.
    pub(super) fn name(&mut self) -> String {
        let start = self.at;
        let first = self.peek().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        while first && self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.at += 1;
        }
        self.chars[start.min(self.at)..self.at.min(self.chars.len())].iter().collect()
    }

    /// Passes a text up to a quote; `\` may hide one.
    fn skip_quote(&mut self, end: char, escapes: bool) -> Parsed<()> {
        let line = self.line;
        while let Some(c) = self.peek() {
            self.at += 1;
            self.line += usize::from(c == '\n');
            if c == end {
                return Ok(());
            }
            if c == '\\' && escapes {
                self.line += usize::from(self.peek() == Some('\n'));
                self.at += 1;
            }
        }
        self.line = line;
        Err(format!("expected a second {end}, found the end"))
    }

    fn skip_double(&mut self) -> Parsed<()> {
        let line = self.line;
        while let Some(c) = self.peek() {
            match c {
                '"' => {
                    self.at += 1;
                    return Ok(());
                }
                '\'' => self.at += 1,
                '$' if self.peek_at(1) == Some('\'') => self.at += 1,
                _ => self.skip(c)?,
            }
        }
        self.line = line;
        Err("expected a second \", found the end".to_string())
    }

    /// Passes a pair of brackets with all between them, and returns that.
    pub(super) fn balanced(&mut self, open: char, close: char) -> Parsed<String> {
        self.deeper(|parser| {
            let (start, line) = (parser.at + 1, parser.line);
            parser.at += 1;
            let mut level = 0;
            while let Some(c) = parser.peek() {
                let comment = c == '#' && open == '(' && parser.at > 0 && parser.chars[parser.at - 1].is_whitespace();
                if comment {
                    parser.blanks();
                } else if c == close && level == 0 {
                    parser.at += 1;
                    return Ok(parser.chars[start..parser.at - 1].iter().collect());
                } else {
                    level += usize::from(c == open);
                    level -= usize::from(c == close);
                    parser.skip(c)?;
                }
            }
            parser.line = line;
            Err(format!("expected {close:?} of {open:?}, found the end"))
        })
    }
}

/// A line, or a place mark, as the mark.
pub(super) fn mark_of(line: usize) -> Option<char> {
    char::from_u32(u32::try_from(line).ok()?).filter(|c| *c >= PLACES)
}

pub(super) fn is_declaration(word: &str) -> bool {
    matches!(word, "export" | "declare" | "local" | "readonly" | "typeset")
}
