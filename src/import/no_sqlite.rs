//! Nsight Systems' SQLite export inside a page: SQLite is C, which is not compiled for it.

use super::error::ImportError;
use super::label::LabelRules;
use super::trace::Trace;
use std::path::Path;

/// Refuses the report.
///
/// # Errors
/// Always.
pub fn read(path: &Path, _: &LabelRules) -> Result<Trace, ImportError> {
    Err(ImportError::new(format!(
        "expected a trace that a page can read, found the SQLite database {}; run `pipesim import` in a terminal",
        path.display()
    )))
}
