//! The language of schedule files: its dialect, and everything that a file can name.

use super::draft;
use super::host::{self, KindValue, Layout, LayoutValue};
use crate::op::Kind;
use starlark::environment::{Globals, GlobalsBuilder};
use starlark::syntax::Dialect;

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
