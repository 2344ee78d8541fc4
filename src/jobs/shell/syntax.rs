//! What a shell script says, before anything is expanded.

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
    Simple(Vec<Part>, Vec<Redirect>),
    Pipe(Vec<Node>),
    /// `&&` if true, else `||`.
    Both(Box<Node>, bool, Box<Node>),
    Not(Box<Node>),
    Sequence(Vec<Node>),
    Subshell(Vec<Node>),
    /// Condition and commands of each arm; without a condition: `else`.
    If(Vec<(Option<Vec<Node>>, Vec<Node>)>),
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

/// Reads a text, one complete command at a time.
pub(super) struct Parser {
    chars: Vec<char>,
    at: usize,
    line: usize,
    /// Place of a text that was put together elsewhere, as its marks say.
    mark: Option<char>,
    depth: usize,
    /// Lines of here-documents, which were taken out after this line.
    taken: usize,
}

type Parsed<T> = Result<T, String>;

impl Parser {
    pub(super) fn new(text: &str, line: usize) -> Parser {
        let chars: Vec<char> = text.trim_start_matches('\u{feff}').replace("\r\n", "\n").chars().collect();
        Parser { chars, at: 0, line, mark: None, depth: 0, taken: 0 }
    }

    /// The line that is read, or its place mark.
    pub(super) fn line(&self) -> usize {
        self.mark.map_or(self.line, |mark| mark as usize)
    }

    /// Returns the next complete command; `None` at the end.
    pub(super) fn next(&mut self) -> Parsed<Option<Node>> {
        self.depth = 0;
        self.newlines();
        if self.at >= self.chars.len() {
            return Ok(None);
        }
        let node = self.and_or()?;
        self.blanks();
        match self.peek() {
            Some(';' | '&') if self.peek_at(1) != Some(';') => self.at += 1,
            Some('\n') | None => {}
            Some(other) => return Err(format!("expected the end of a command, found {other:?}")),
        }
        self.newlines();
        Ok(Some(node))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn starts(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek_at(i) == Some(c))
    }

    /// Skips blanks, joined lines and comments, but no end of line.
    fn blanks(&mut self) {
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
    fn newlines(&mut self) {
        loop {
            self.blanks();
            if self.peek() != Some('\n') {
                return;
            }
            self.at += 1;
            self.line += 1 + std::mem::take(&mut self.taken);
        }
    }

    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Parser) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEEPEST {
            return Err(format!("expected at most {DEEPEST} levels of nesting, found more; split the script"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn and_or(&mut self) -> Parsed<Node> {
        let mut node = self.pipeline()?;
        loop {
            self.blanks();
            let and = self.starts("&&");
            if !and && !self.starts("||") {
                return Ok(node);
            }
            self.at += 2;
            self.newlines();
            let right = self.pipeline()?;
            // a long chain leans to the left, and is run (and dropped) as deep as it is long
            self.depth += 1;
            if self.depth > 20 * DEEPEST {
                return Err("expected a shorter chain of `&&` and `||`".to_string());
            }
            node = Node::Both(Box::new(node), and, Box::new(right));
        }
    }

    fn pipeline(&mut self) -> Parsed<Node> {
        self.blanks();
        let mut not = false;
        loop {
            if self.keyword("!") {
                not = !not;
            } else if self.keyword("time") {
                if self.starts("-p ") {
                    self.at += 2;
                }
            } else {
                break;
            }
            self.blanks();
        }
        let mut all = vec![self.command()?];
        loop {
            self.blanks();
            if self.peek() != Some('|') || self.peek_at(1) == Some('|') {
                break;
            }
            self.at += if self.peek_at(1) == Some('&') { 2 } else { 1 };
            self.newlines();
            all.push(self.command()?);
        }
        let node = if all.len() == 1 { all.remove(0) } else { Node::Pipe(all) };
        Ok(if not { Node::Not(Box::new(node)) } else { node })
    }

    /// Takes a keyword if it stands here.
    fn keyword(&mut self, word: &str) -> bool {
        let next = self.peek_at(word.chars().count());
        let ends = next.is_none_or(|c| c.is_whitespace() || ";&|()<>".contains(c) || is_place(c));
        let here = self.starts(word) && ends;
        if here {
            self.at += word.chars().count();
            self.blanks();
        }
        here
    }

    fn expect(&mut self, word: &str) -> Parsed<()> {
        self.newlines();
        if self.keyword(word) {
            return Ok(());
        }
        let found: String = self.chars[self.at.min(self.chars.len())..].iter().take(20).collect();
        Err(format!("expected {word:?}, found {:?}", found.lines().next().unwrap_or("the end")))
    }

    /// Commands until one of the words, which stays.
    fn list(&mut self, ends: &[&str]) -> Parsed<Vec<Node>> {
        let mut nodes = Vec::new();
        loop {
            self.newlines();
            let at = self.at;
            if ends.iter().any(|end| self.keyword(end)) || self.peek().is_none() {
                self.at = at;
                return Ok(nodes);
            }
            nodes.push(self.and_or()?);
            self.blanks();
            match self.peek() {
                Some(';') if self.peek_at(1) == Some(';') => {}
                Some(';' | '&') => self.at += 1,
                Some('\n' | ')') | None => {}
                Some(other) => return Err(format!("expected the end of a command, found {other:?}")),
            }
        }
    }

    fn command(&mut self) -> Parsed<Node> {
        self.deeper(|parser| {
            let Some(node) = parser.compound()? else { return parser.simple() };
            let mut redirects = Vec::new();
            loop {
                parser.blanks();
                match parser.redirect()? {
                    Some(redirect) => redirects.push(redirect),
                    None if redirects.is_empty() => return Ok(node),
                    None => return Ok(Node::Redirected(Box::new(node), redirects)),
                }
            }
        })
    }

    fn compound(&mut self) -> Parsed<Option<Node>> {
        Ok(Some(if self.starts("((") {
            match self.arithmetic() {
                Some(text) => Node::Arithmetic(text),
                None => self.subshell()?,
            }
        } else if self.peek() == Some('(') {
            self.subshell()?
        } else if self.keyword("{") {
            let list = self.list(&["}"])?;
            self.expect("}")?;
            Node::Sequence(list)
        } else if self.keyword("[[") {
            Node::Test(self.test()?)
        } else if self.keyword("if") {
            self.conditional()?
        } else if self.keyword("case") {
            self.case()?
        } else if self.keyword("for") || self.keyword("select") {
            self.each()?
        } else if self.keyword("while") {
            self.repeat(false)?
        } else if self.keyword("until") {
            self.repeat(true)?
        } else if self.keyword("function") {
            let name = self.word()?.text;
            self.blanks();
            if self.starts("()") {
                self.at += 2;
            }
            self.newlines();
            Node::Function(name, Rc::new(self.command()?))
        } else {
            return Ok(None);
        }))
    }

    fn subshell(&mut self) -> Parsed<Node> {
        self.at += 1;
        let list = self.list(&[")"])?;
        self.expect(")")?;
        Ok(Node::Subshell(list))
    }

    /// Takes `(( ))`; `None` if the text is two subshells.
    fn arithmetic(&mut self) -> Option<String> {
        let (start, line) = (self.at, self.line);
        self.at += 1;
        let inner = self.balanced('(', ')').ok()?;
        if self.peek() == Some(')') {
            self.at += 1;
            return Some(inner);
        }
        (self.at, self.line) = (start, line);
        None
    }

    fn conditional(&mut self) -> Parsed<Node> {
        let mut arms = Vec::new();
        loop {
            let condition = self.list(&["then"])?;
            self.expect("then")?;
            let body = self.list(&["elif", "else", "fi"])?;
            arms.push((Some(condition), body));
            if self.keyword("elif") {
                continue;
            }
            if self.keyword("else") {
                arms.push((None, self.list(&["fi"])?));
            }
            self.expect("fi")?;
            return Ok(Node::If(arms));
        }
    }

    fn case(&mut self) -> Parsed<Node> {
        let value = self.word()?;
        self.expect("in")?;
        let mut arms = Vec::new();
        loop {
            self.newlines();
            if self.keyword("esac") {
                return Ok(Node::Case(value, arms));
            }
            if self.peek() == Some('(') {
                self.at += 1;
            }
            let mut patterns = Vec::new();
            loop {
                self.blanks();
                patterns.push(self.word()?);
                self.blanks();
                match self.peek() {
                    Some('|') => self.at += 1,
                    Some(')') => break,
                    _ => return Err("expected ')' after the pattern of `case`".to_string()),
                }
            }
            self.at += 1;
            arms.push((patterns, self.list(&["esac", ";;", ";;&", ";&"])?));
            for end in [";;&", ";;", ";&"] {
                if self.starts(end) {
                    self.at += end.len();
                    break;
                }
            }
        }
    }

    fn each(&mut self) -> Parsed<Node> {
        if self.starts("((") {
            let text = self.arithmetic().ok_or("expected `for ((start; condition; step))`")?;
            let mut parts = text.splitn(3, ';').map(str::to_string);
            let parts: [String; 3] = std::array::from_fn(|_| parts.next().unwrap_or_default());
            self.blanks();
            if self.peek() == Some(';') {
                self.at += 1;
            }
            return Ok(Node::Count(parts, self.body()?));
        }
        let name = self.word()?.text;
        self.newlines();
        let mut words = None;
        if self.keyword("in") {
            let mut list = Vec::new();
            loop {
                self.blanks();
                match self.peek() {
                    None | Some('\n' | ';') => break,
                    Some('&' | '|' | ')' | '(') => return Err("expected words after `in`".to_string()),
                    _ => list.push(self.some_word()?),
                }
            }
            words = Some(list);
        }
        self.blanks();
        if self.peek() == Some(';') {
            self.at += 1;
        }
        Ok(Node::For(name, words, self.body()?))
    }

    fn body(&mut self) -> Parsed<Vec<Node>> {
        self.newlines();
        if self.keyword("{") {
            let list = self.list(&["}"])?;
            self.expect("}")?;
            return Ok(list);
        }
        self.expect("do")?;
        let list = self.list(&["done"])?;
        self.expect("done")?;
        Ok(list)
    }

    fn repeat(&mut self, until: bool) -> Parsed<Node> {
        let condition = self.list(&["do"])?;
        Ok(Node::While(until, condition, self.body()?))
    }

    fn test(&mut self) -> Parsed<Vec<Raw>> {
        let mut words: Vec<Raw> = Vec::new();
        loop {
            self.newlines();
            if self.keyword("]]") {
                return Ok(words);
            }
            let line = self.line();
            let operator = ["&&", "||", "(", ")", "<", ">"].into_iter().find(|operator| self.starts(operator));
            let regex = words.last().is_some_and(|word| word.text == "=~");
            match operator {
                Some(operator) if !(regex && operator == "(") => {
                    self.at += operator.len();
                    words.push(Raw { text: operator.to_string(), line });
                }
                _ if self.peek().is_none() => return Err("expected \"]]\", found the end".to_string()),
                _ => {
                    let word = if regex { self.word_until(|c| c.is_whitespace())? } else { self.some_word()? };
                    words.push(word);
                }
            }
        }
    }

    fn simple(&mut self) -> Parsed<Node> {
        let (mut parts, mut redirects) = (Vec::new(), Vec::new());
        let mut declares = true;
        loop {
            self.blanks();
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                continue;
            }
            match self.peek() {
                None | Some('\n' | ';' | '&' | '|' | ')') => break,
                Some('(') => {
                    return match parts.pop() {
                        Some(Part::Word(name)) if parts.is_empty() => self.function(name.text),
                        _ => Err("expected a word, found '('".to_string()),
                    };
                }
                _ => {}
            }
            if declares && let Some(assign) = self.assignment()? {
                parts.push(Part::Assign(assign));
                continue;
            }
            let word = self.some_word()?;
            declares = matches!(&*word.text, "export" | "declare" | "local" | "readonly" | "typeset")
                || declares && parts.iter().any(|part| matches!(part, Part::Word(_)));
            parts.push(Part::Word(word));
        }
        if parts.is_empty() && redirects.is_empty() {
            return Err(match self.peek() {
                Some(c) => format!("expected a command, found {c:?}"),
                None => "expected a command, found the end".to_string(),
            });
        }
        Ok(Node::Simple(parts, redirects))
    }

    fn function(&mut self, name: String) -> Parsed<Node> {
        self.at += 1;
        self.blanks();
        if self.peek() != Some(')') {
            return Err("expected `()` of a function".to_string());
        }
        self.at += 1;
        self.newlines();
        Ok(Node::Function(name, Rc::new(self.command()?)))
    }

    fn assignment(&mut self) -> Parsed<Option<Assign>> {
        let mut end = self.at;
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        while self.chars.get(end).is_some_and(is_name) {
            end += 1;
        }
        if end == self.at || self.chars[self.at].is_ascii_digit() {
            return Ok(None);
        }
        let (start, line) = (self.at, self.line);
        let name: String = self.chars[self.at..end].iter().collect();
        self.at = end;
        let index = if self.peek() == Some('[') { self.balanced('[', ']').ok() } else { None };
        let append = self.peek() == Some('+');
        if append {
            self.at += 1;
        }
        if self.peek() != Some('=') {
            (self.at, self.line) = (start, line);
            return Ok(None);
        }
        self.at += 1;
        let value = if self.peek() == Some('(') { self.array()? } else { Assigned::Scalar(self.word()?) };
        Ok(Some(Assign { name, index, append, value }))
    }

    fn array(&mut self) -> Parsed<Assigned> {
        self.at += 1;
        let mut words = Vec::new();
        loop {
            self.newlines();
            match self.peek() {
                Some(')') => {
                    self.at += 1;
                    return Ok(Assigned::Array(words));
                }
                None | Some('(' | ';' | '|') => return Err("expected ')' of an array".to_string()),
                Some('&' | '<' | '>') => self.at += 1,
                _ => words.push(self.some_word()?),
            }
        }
    }

    fn redirect(&mut self) -> Parsed<Option<Redirect>> {
        let digits = self.chars[self.at..].iter().take_while(|c| c.is_ascii_digit()).count().min(3);
        let named = if self.peek() == Some('{') {
            self.chars[self.at..].iter().take(32).position(|&c| c == '}').map_or(0, |n| n + 1)
        } else {
            0
        };
        let skip = digits.max(named);
        let operator = ["&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">"]
            .into_iter()
            .find(|operator| operator.chars().enumerate().all(|(i, c)| self.peek_at(skip + i) == Some(c)));
        let Some(operator) = operator else { return Ok(None) };
        if matches!(operator, "<" | ">") && self.peek_at(skip + 1) == Some('(') || operator.starts_with('&') && skip > 0
        {
            return Ok(None);
        }
        let errors = digits > 0 && self.peek() != Some('1') && self.peek() != Some('0');
        self.at += skip + operator.len();
        self.blanks();
        let word = self.some_word()?;
        Ok(Some(match operator {
            _ if errors => Redirect::Other,
            "<" => Redirect::From(word),
            "<<<" => Redirect::Text(word),
            ">" | ">|" | "&>" => Redirect::To(false, word),
            ">>" | "&>>" => Redirect::To(true, word),
            "<<" | "<<-" => return Ok(Some(self.here(operator == "<<-", &word))),
            _ => Redirect::Other,
        }))
    }

    /// A here-document: its text begins on the next line, and is taken out of there.
    fn here(&mut self, tabs: bool, word: &Raw) -> Redirect {
        let expands = !word.text.contains(['\'', '"', '\\']);
        let end: String = word.text.chars().filter(|&c| !"'\"\\".contains(c) && !is_place(c)).collect();
        let past =
            |from: usize| self.chars[from..].iter().position(|&c| c == '\n').map_or(self.chars.len(), |n| from + n + 1);
        let begin = past(self.at);
        let (mut at, mut text, mut rows) = (begin, String::new(), 0);
        while at < self.chars.len() {
            let row: String = self.chars[at..past(at)].iter().collect();
            at = past(at);
            rows += 1;
            let row = if tabs { row.trim_start_matches('\t') } else { &row };
            if row.trim_end_matches('\n').chars().filter(|&c| !is_place(c)).eq(end.chars()) {
                break;
            }
            text.push_str(row);
        }
        self.chars.drain(begin..at);
        let line = self.line + 1 + self.taken;
        self.taken += rows;
        Redirect::Here(expands, Raw { text, line })
    }

    /// Takes a word where there must be one.
    fn some_word(&mut self) -> Parsed<Raw> {
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

    fn word(&mut self) -> Parsed<Raw> {
        self.word_until(|c| c.is_whitespace() || ";&|<>()".contains(c))
    }

    fn word_until(&mut self, ends: impl Fn(char) -> bool) -> Parsed<Raw> {
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
            '\'' => self.skip_to('\'')?,
            '"' => {
                self.at += 1;
                self.deeper(|parser| parser.skip_double())?;
            }
            '`' => {
                self.at += 1;
                while self.peek().is_some_and(|c| c != '`') {
                    self.line += usize::from(self.peek() == Some('\n'));
                    self.at += if self.peek() == Some('\\') { 2 } else { 1 };
                }
                self.at = (self.at + 1).min(self.chars.len());
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
                    while self.peek().is_some_and(|c| c != '\'') {
                        self.at += if self.peek() == Some('\\') { 2 } else { 1 };
                    }
                    self.at = (self.at + 1).min(self.chars.len());
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

    fn skip_to(&mut self, end: char) -> Parsed<()> {
        let line = self.line;
        self.at += 1;
        while let Some(c) = self.peek() {
            self.at += 1;
            self.line += usize::from(c == '\n');
            if c == end {
                return Ok(());
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
    fn balanced(&mut self, open: char, close: char) -> Parsed<String> {
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
