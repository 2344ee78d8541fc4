//! Why there is no framework.

use pipesim_schedule::sanitize::sanitize;

/// Why a framework cannot be found or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No framework has this name.
    #[error("no framework is called '{}'; known: {known}", sanitize(name))]
    Name { name: String, known: String },
    /// The framework has no such version.
    #[error("`framework-version`: {title} has no version '{}' here; known: {known}", sanitize(version))]
    Version { title: String, version: String, known: String },
    /// A file is not in the format.
    #[error("{}: expected a description of a framework, found otherwise: {why}; correct it", sanitize(file))]
    File { file: String, why: String },
    /// An expression cannot be compiled or evaluated.
    #[error("{}: expected an expression of facts, found '{}': {why}; correct it", sanitize(file), sanitize(text))]
    Expression { file: String, text: String, why: String },
}
