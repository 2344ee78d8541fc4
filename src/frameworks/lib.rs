//! What training frameworks accept, and how they name it, by version.
//!
//! A file of the folder `frameworks` describes one version of one framework: which schedules it has, which layouts it refuses and in
//! which words, which options make it train a layout. Its expressions are Starlark over named [`Facts`] of a layout.
//!
//! In: facts of a layout, a model, a machine and a schedule. Out: [`Objection`]s, each with the framework's error and the source line
//! that raises it, and the text of options to paste ([`Framework::options`]).
//!
//! ```
//! use pipesim_frameworks::{Facts, Framework};
//!
//! let megatron = Framework::find("megatron-core", None)?;
//! let mut facts = Facts::default();
//! facts.set("p", 4).set("v", 2).set("m", 6).set("group", 4);
//! let objections = megatron.objections(&facts)?;
//! assert!(objections[0].source.contains("schedules.py"));
//! # Ok::<(), pipesim_frameworks::Error>(())
//! ```

mod error;
mod expression;
mod facts;
mod file;
mod framework;
mod printer;
mod schedule_check;

pub use error::Error;
pub use facts::{Facts, NAMES};
pub use framework::{Framework, Objection, ObjectionKind, frameworks, targets};
pub use schedule_check::{FrameworkCheck, RunVerdict, chosen, having, objections, sentences};
