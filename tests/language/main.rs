//! The schedule language and what schedules are: files, PyTorch's files, the library, deadlocks; and the rules of the source.

mod architecture;
mod batches;
mod check;
mod csv;
mod dsl;
mod frameworks;
mod hints;
mod imports;
mod names;
mod schedules;
mod seeds;

#[path = "../support/mod.rs"]
mod support;
