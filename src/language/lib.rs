//! The schedule language: Starlark with words of ops.
//!
//! A schedule file defines `device(r, p, m)`, which returns the word that device r runs, and may set `placement`. `language` defines
//! what a file can name, `host` and `draft` its values, `word` the words; `programs` numbers the micro-batches, `compile` runs all
//! steps, and `library` has the embedded schedules. `hints` says what to write
//! in place of Python that the language does not have.
//!
//! In: the text of a file, and devices, micro-batches and options. Out: a schedule in fixed order, or rules that derive one from costs.
//! Evaluation is limited in steps, memory and ops, so that files of others can be evaluated.
//!
//! ```
//! use pipesim_language::{Budget, Request, compile, named};
//!
//! let (options, budget) = (Default::default(), Budget::default());
//! let request = Request { devices: 4, microbatches: 8, chunks: None, options, budget };
//! let order = compile(&named("1f1b")?, &request)?.order;
//! let pipesim_schedule::open::Order::Fixed(schedule) = order else { panic!("1F1B is the same under all costs") };
//! assert_eq!(schedule.program(0).len(), 2 * 8); // F and B of every micro-batch
//! # Ok::<(), pipesim_language::Error>(())
//! ```

mod compile;
mod draft;
mod hints;
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
