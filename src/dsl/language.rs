//! The language of schedule files: its dialect, and everything that a file can name.

use super::draft;
use super::host::{self, KindValue, Layout, LayoutValue};
use crate::op::Kind;
use starlark::environment::{Globals, GlobalsBuilder};
use starlark::syntax::Dialect;
use starlark_syntax::codemap::CodeMap;
use starlark_syntax::lexer::{Lexer, Token};

/// The placements by name.
pub const LAYOUTS: [(&str, Layout); 5] = [
    ("linear", Layout::Linear),
    ("v_shape", Layout::V),
    ("loop", Layout::Loop),
    ("zigzag", Layout::Zigzag),
    ("bidirectional", Layout::Bidirectional),
];

/// Standard Starlark with top-level statements, so that a file can compute its constants.
pub fn dialect() -> Dialect {
    Dialect { enable_top_level_stmt: true, enable_f_strings: true, ..Dialect::Standard }
}

/// Everything that a schedule file can name.
pub fn globals() -> Globals {
    let mut builder = GlobalsBuilder::standard().with(host::functions).with(draft::functions);
    for kind in Kind::ALL {
        builder.set(&kind.letter().to_string(), KindValue { kind, chunk: 0 });
    }
    for (name, layout) in LAYOUTS {
        builder.set(name, LayoutValue { layout, chunks: None });
    }
    builder.build()
}

/// Most operators, brackets, blocks and branches within one another. A sum of as many terms nests as deeply.
pub const MAX_NESTING: usize = 20_000;

/// What a function or loop within another weighs: each looks its names up in all around it.
const SCOPE: usize = 20;

/// The line on which a text nests more deeply than [`MAX_NESTING`], where it does. A text that is none of the language's is
/// left to its parser.
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

/// An upper bound of how deep the tree of what was read so far is, were it at its deepest here.
#[derive(Default)]
struct Nesting {
    /// Operators since the last comma, by open bracket.
    open: Vec<usize>,
    /// Their sum.
    operators: usize,
    /// Functions and loops within the statement, whose parameters commas part.
    scopes: usize,
    /// Blocks.
    blocks: usize,
    /// Branches: each `elif` stands within the one before.
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

    /// One more operator within the innermost bracket.
    fn count(&mut self) {
        match self.open.last_mut() {
            Some(count) => *count += 1,
            None => self.open.push(1), // closed once too often: for the parser to say
        }
        self.operators += 1;
    }
}
