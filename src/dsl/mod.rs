//! The schedule language: Starlark plus an algebra of words.
//!
//! A schedule file defines `device(r, p, m)`, which returns the word that device r runs, and may set `placement`. The
//! `host` evaluates it, `word` holds what comes out, `expansion` counts the
//! micro-batches, `compile` leads through it all.

mod compile;
mod draft;
mod expansion;
mod host;
mod library;
mod word;

pub use compile::{Budget, Compiled, Error, Request, Source, compile};
pub use library::{Description, SchedulePath, describe, names, resolve};
