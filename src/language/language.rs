//! The language of schedule files: its dialect, its names, and its limit of nesting.

use super::draft;
use super::host::{self, KindValue, LayoutValue, PlacementRule};
use pipesim_schedule::op::Kind;
use starlark::environment::{Globals, GlobalsBuilder};
use starlark::syntax::Dialect;
use starlark_syntax::codemap::CodeMap;
use starlark_syntax::lexer::{Lexer, Token};

pub const LAYOUTS: [(&str, PlacementRule); 5] = [
    ("linear", PlacementRule::Linear),
    ("v_shape", PlacementRule::V),
    ("loop", PlacementRule::Loop),
    ("zigzag", PlacementRule::Zigzag),
    ("bidirectional", PlacementRule::Bidirectional),
];

/// Returns standard Starlark with top-level statements, so that a file can compute constants, and f-strings.
pub fn dialect() -> Dialect {
    Dialect { enable_top_level_stmt: true, enable_f_strings: true, ..Dialect::Standard }
}

/// Returns everything that a schedule file can name.
pub fn globals() -> Globals {
    let mut builder = GlobalsBuilder::standard().with(host::functions).with(draft::functions);
    for kind in Kind::ALL {
        let name = if kind.is_compute() { kind.name().to_string() } else { kind.letter().to_string() };
        builder.set(&name, KindValue { kind, chunk: 0 });
    }
    for (name, layout) in LAYOUTS {
        builder.set(name, LayoutValue { layout, chunks: None });
    }
    builder.build()
}

/// Maximum nesting of operators, brackets, blocks and branches: parser and evaluator recurse as deeply. A sum of n terms nests n
/// deep.
pub const MAX_NESTING: usize = 20_000;

/// Weight of a nested function or loop, which looks up names in all enclosing ones.
const SCOPE: usize = 20;

/// Returns the line on which a text nests deeper than [`MAX_NESTING`], if it does. The parser reports texts with syntax errors.
pub fn too_deep(file: &str, text: &str) -> Option<usize> {
    let codemap = CodeMap::new(file.to_string(), text.to_string());
    let mut lexer = Lexer::new(text, &dialect(), codemap);
    let mut nesting = Nesting { open: vec![0], ..Nesting::default() };
    while let Some(Ok((start, token, _))) = lexer.next() {
        nesting.take(&token);
        if nesting.depth() > MAX_NESTING {
            return Some(text.as_bytes()[..start.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1);
        }
    }
    None
}

/// An upper bound of the depth of the syntax tree at the current token.
#[derive(Default)]
struct Nesting {
    /// Operators since the last comma, by open bracket.
    open: Vec<usize>,
    /// Their sum.
    operators: usize,
    /// Functions and loops within the statement.
    scopes: usize,
    blocks: usize,
    /// Branches: each `elif` nests in the previous one.
    branches: usize,
}

impl Nesting {
    fn depth(&self) -> usize {
        self.open.len() + self.operators + self.scopes + self.blocks + self.branches
    }

    fn take(&mut self, token: &Token) {
        match token {
            Token::Newline | Token::Semicolon => {
                (self.open, self.operators, self.scopes) = (vec![0], 0, 0);
            }
            Token::Indent => self.blocks += 1,
            Token::Dedent => self.blocks = self.blocks.saturating_sub(1),
            Token::Elif => self.branches += 1,
            Token::Lambda | Token::For => self.scopes += SCOPE,
            Token::OpeningRound | Token::OpeningSquare | Token::OpeningCurly => self.open.push(0),
            Token::ClosingRound | Token::ClosingSquare | Token::ClosingCurly => {
                self.operators -= self.open.pop().unwrap_or(0);
                self.count();
            }
            Token::Comma => self.operators -= self.open.last_mut().map(std::mem::take).unwrap_or(0),
            Token::Identifier(_) | Token::String(_) | Token::Int(_) | Token::Float(_) | Token::Comment(_) => {}
            _ => self.count(),
        }
    }

    /// Counts an operator within the innermost bracket.
    fn count(&mut self) {
        match self.open.last_mut() {
            Some(count) => *count += 1,
            None => self.open.push(1), // unbalanced: the parser reports it
        }
        self.operators += 1;
    }
}
