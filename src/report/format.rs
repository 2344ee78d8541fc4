//! The formats of files: a new one is a file beside this one that makes the bytes, and a row in [`FORMATS`].

use super::{Report, WriteError};
use std::path::Path;

/// What makes the bytes of a format.
type Bytes = fn(&Report) -> Result<Vec<u8>, WriteError>;

/// Endings of file names and what makes the bytes.
pub const FORMATS: &[(&str, Bytes)] = &[
    (".svg", |report| Ok(super::svg(report).into_bytes())),
    #[cfg(feature = "pictures")]
    (".png", super::png),
    (".html", |report| Ok(super::html(report).into_bytes())),
    (".json", |report| Ok(super::timelines(report).into_bytes())),
    (".csv", |report| Ok(super::csv(report).into_bytes())),
    (".trace.json", |report| Ok(super::trace(report).into_bytes())),
    #[cfg(feature = "pictures")]
    (".trace.json.gz", super::trace_gz),
];

/// What makes the bytes for a file of this name, by its longest ending that is known; `None` for a folder.
pub fn format_of(path: &Path) -> Option<Bytes> {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let fitting = FORMATS.iter().filter(|(ending, _)| name.ends_with(ending));
    fitting.max_by_key(|(ending, _)| ending.len()).map(|&(_, bytes)| bytes)
}
