//! The way in: a name, a file or `auto`, with options, becomes a settled graph and its costs. One way for every command.
//!
//! [`Selection`] says what is asked of a schedule, [`Costs`] where costs come from; [`Selection::resolve`] leads through
//! `order` (what the name stands for), `settle` (where costs decide the order) and the graph. What the machine has to do for it
//! (files, threads, a look at memory) is a [`Host`] of the caller's.
//!
//! A new source of costs is a file in `cost/`, a variant of [`Costs`], and the option that fills it in.

mod asked;
mod auto;
mod balanced;
mod costs;
mod error;
mod files;
mod host;
mod layout;
mod machine;
mod order;
mod resolved;
mod selection;
mod variant;

pub use costs::{Costs, Measured, Pricing, unknown_costs};
pub use error::Error;
pub use files::Files;
pub use host::{Host, Watch};
pub use machine::MachineOptions;
pub use order::{Found, read_text, schedule_file};
pub use resolved::{Resolved, Settled};
pub use selection::{Selection, Warning};
pub use variant::{Variant, memory_cap};
