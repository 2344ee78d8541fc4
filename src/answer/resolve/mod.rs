//! Resolution of a name, a file or `auto`, with options, to a graph with a fixed order and its costs, for all commands.
//!
//! [`Selection`] is the request and [`Costs`] the source of costs. [`Selection::resolve`] finds the order of the name, makes it
//! fixed if it depends on costs, and builds the graph. Files, threads and memory checks come from a [`Host`].
//!
//! A new source of costs is a file in `cost/`, a variant of [`Costs`], and its option.

mod auto;
mod balanced;
mod costs;
mod error;
mod host;
mod layout;
mod machine;
mod order;
mod resolved;
mod selection;
mod variant;

pub use costs::{Costs, Measured, Pricing, unknown_costs};
pub use error::{Error, usage};
pub use host::{Files, Host, Watch, results};
pub use layout::Estimate;
pub use machine::PlatformOptions;
pub use order::{Found, OrderedGraph, read_text, schedule_file};
pub use resolved::Resolved;
pub use selection::{Selection, Warning};
pub use variant::{Variant, memory_cap};
