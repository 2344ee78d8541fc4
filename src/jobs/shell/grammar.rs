//! Commands of a shell script: pipelines, conditions, loops and functions.

use super::syntax::{Assign, Assigned, Node, Parsed, Parser, Part, Raw, Redirect, is_declaration};
use super::text::is_place;
use std::rc::Rc;

impl Parser {
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

    fn and_or(&mut self) -> Parsed<Node> {
        let first = self.pipeline()?;
        let mut steps = Vec::new();
        loop {
            self.blanks();
            let and = self.starts("&&");
            if !and && !self.starts("||") {
                return Ok(if steps.is_empty() { first } else { Node::Chain(Box::new(first), steps) });
            }
            self.at += 2;
            self.newlines();
            steps.push((and, vec![self.pipeline()?]));
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
            let mut redirects = Vec::new();
            let node = match parser.compound()? {
                Some(node) => node,
                None => parser.simple(&mut redirects)?,
            };
            parser.blanks();
            while let Some(redirect) = parser.redirect()? {
                redirects.push(redirect);
                parser.blanks();
            }
            Ok(if redirects.is_empty() { node } else { Node::Redirected(Box::new(node), redirects) })
        })
    }

    /// Commands and the word that ends them.
    fn block(&mut self, end: &str) -> Parsed<Vec<Node>> {
        let nodes = self.list(&[end])?;
        self.expect(end)?;
        Ok(nodes)
    }

    fn compound(&mut self) -> Parsed<Option<Node>> {
        let number = if self.starts("((") { self.arithmetic() } else { None };
        Ok(Some(if let Some(text) = number {
            Node::Arithmetic(text)
        } else if self.peek() == Some('(') {
            self.at += 1;
            Node::Subshell(self.block(")")?)
        } else if self.keyword("{") {
            Node::Sequence(self.block("}")?)
        } else if self.keyword("[[") {
            Node::Test(self.test()?)
        } else if self.keyword("if") {
            self.conditional()?
        } else if self.keyword("case") {
            self.case()?
        } else if self.keyword("for") || self.keyword("select") {
            self.each()?
        } else if self.keyword("while") {
            Node::While(false, self.list(&["do"])?, self.body()?)
        } else if self.keyword("until") {
            Node::While(true, self.list(&["do"])?, self.body()?)
        } else if self.keyword("function") {
            let name = self.word()?.text;
            self.function(name)?
        } else {
            return Ok(None);
        }))
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
            arms.push((self.block("then")?, self.list(&["elif", "else", "fi"])?));
            if self.keyword("elif") {
                continue;
            }
            if self.keyword("else") {
                arms.push((Vec::new(), self.list(&["fi"])?));
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
            return Ok(Node::Count(parts, self.body()?));
        }
        let name = self.word()?.text;
        self.newlines();
        let mut words = self.keyword("in").then(Vec::new);
        if let Some(words) = &mut words {
            while !matches!(self.peek(), None | Some('\n' | ';')) {
                words.push(self.some_word()?);
                self.blanks();
            }
        }
        Ok(Node::For(name, words, self.body()?))
    }

    fn body(&mut self) -> Parsed<Vec<Node>> {
        self.blanks();
        self.at += usize::from(self.peek() == Some(';'));
        self.newlines();
        if self.keyword("{") {
            return self.block("}");
        }
        self.expect("do")?;
        self.block("done")
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

    fn redirect(&mut self) -> Parsed<Option<Redirect>> {
        let start = self.at;
        let ahead = || self.chars[start..].iter();
        let digits = ahead().take_while(|c| c.is_ascii_digit()).count().min(3);
        let named = if self.peek() == Some('{') { ahead().take(32).position(|&c| c == '}') } else { None };
        self.at += named.map_or(digits, |end| end + 1);
        let mut operators = ["&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">"].into_iter();
        let operator = operators.find(|operator| self.starts(operator)).filter(|operator| {
            let process = matches!(*operator, "<" | ">") && self.peek_at(1) == Some('(');
            !(process || operator.starts_with('&') && self.at > start)
        });
        let Some(operator) = operator else {
            self.at = start;
            return Ok(None);
        };
        let errors = digits > 0 && !matches!(self.chars[start], '0' | '1');
        self.at += operator.len();
        self.blanks();
        let word = self.some_word()?;
        Ok(Some(match operator {
            _ if errors => Redirect::Other,
            "<" => Redirect::From(word),
            "<<<" => Redirect::Text(word),
            ">" | ">|" | "&>" => Redirect::To(false, word),
            ">>" | "&>>" => Redirect::To(true, word),
            "<<" | "<<-" => self.here(operator == "<<-", &word),
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

    fn simple(&mut self, redirects: &mut Vec<Redirect>) -> Parsed<Node> {
        let mut parts = Vec::new();
        let mut declares = true;
        loop {
            self.blanks();
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                continue;
            }
            match self.peek() {
                None | Some('\n' | ';' | '&' | '|' | ')') if !(parts.is_empty() && redirects.is_empty()) => {
                    return Ok(Node::Simple(parts));
                }
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
            declares = is_declaration(&word.text) || declares && parts.iter().any(|part| matches!(part, Part::Word(_)));
            parts.push(Part::Word(word));
        }
    }

    /// A function after its name: `()`, which `function` may lack, and its body.
    fn function(&mut self, name: String) -> Parsed<Node> {
        self.blanks();
        if self.peek() == Some('(') {
            self.at += 1;
            self.blanks();
            self.expect(")")?;
        }
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
}
