//! Why there is no framework.

use pipesim_schedule::sanitize::sanitize;

/// Why a framework cannot be found or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No framework has this name.
    #[error("expected the name of a framework, found '{}'; choose among {known}", sanitize(name))]
    Name { name: String, known: String },
    /// The framework has no such version.
    #[error("`framework-version`: expected a version of {title}, found '{}'; choose among {known}", sanitize(version))]
    Version { title: String, version: String, known: String },
    /// A version next to several frameworks, or to none.
    #[error(
        "expected one `framework` next to `framework-version` {}, found {}; name one",
        sanitize(version),
        sanitize(found)
    )]
    Versions { version: String, found: String },
    /// A file is not in the format.
    #[error("{}: expected a description of a framework, found otherwise: {why}; correct it", sanitize(file))]
    File { file: String, why: String },
    /// An expression cannot be compiled or evaluated.
    #[error("{}: expected an expression of facts, found '{}': {why}; correct it", sanitize(file), sanitize(text))]
    Expression { file: String, text: String, why: String },
}
