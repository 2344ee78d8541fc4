//! The language of schedule files: its dialect, and everything that a file can name.

use super::draft;
use super::host::{self, KindValue, Layout, LayoutValue};
use crate::op::Kind;
use starlark::environment::{Globals, GlobalsBuilder};
use starlark::syntax::Dialect;

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
    let layouts = [
        ("linear", Layout::Linear),
        ("loop", Layout::Loop),
        ("v_shape", Layout::V),
        ("zigzag", Layout::Zigzag),
        ("bidirectional", Layout::Bidirectional),
    ];
    for (name, layout) in layouts {
        builder.set(name, LayoutValue { layout, chunks: None });
    }
    builder.build()
}
