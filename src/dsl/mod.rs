//! The schedule language: Starlark plus an algebra of words.
//!
//! A schedule file defines `device(r, p, m)`, which returns the word that device r runs, and may set `placement`. The
//! `language` is what a file can name, the `host` and `draft` its values, `word` holds what comes out, `expansion` counts the
//! micro-batches of one device's word, `programs` those of all, `compile` leads through it all.

mod compile;
mod draft;
mod host;
mod language;
mod library;
mod programs;
mod request;
mod word;

pub use compile::{Compiled, compile, takes};
pub use library::{Description, describe, named, names};
pub use programs::Written;
pub use request::{Budget, Error, MAX_CHUNKS, Request, ScheduleFile, Takes, chunks_asked};
