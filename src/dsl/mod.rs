//! The schedule language: Starlark with words of ops.
//!
//! A schedule file defines `device(r, p, m)`, which returns the word that device r runs, and may set `placement`. `language` defines
//! what a file can name, `host` and `draft` its values, `word` the words; `programs` numbers the micro-batches, `compile` runs all
//! steps, and `library` has the embedded schedules.

mod compile;
mod draft;
mod host;
mod language;
mod library;
mod programs;
mod request;
mod word;

pub use compile::{Compiled, compile, takes};
pub use library::{Description, describe, named, names, names_of_whole};
pub use programs::ScheduleSource;
pub use request::{Budget, Error, MAX_CHUNKS, Request, ScheduleFile, Takes, chunks_asked};
