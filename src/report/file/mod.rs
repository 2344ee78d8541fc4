//! File formats and report folders. `format` maps the ending of a name to a format; `folder` writes files whole or not at all.

pub mod csv;
pub mod figures;
#[cfg(feature = "pictures")]
pub mod folder;
pub mod format;
pub mod json;
#[cfg(feature = "pictures")]
pub mod stream;
pub mod trace;
