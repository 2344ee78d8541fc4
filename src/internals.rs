//! Every module of the crates, for the tests and benches of this repository that the public API does not reach. No stability is promised.

pub use pipesim_answer::*;
pub use pipesim_cost as cost;
pub use pipesim_exec::{self as exec, doctor, ranks};
pub use pipesim_frameworks as frameworks;
pub use pipesim_import as import;
pub use pipesim_jobs as jobs;
pub use pipesim_language as dsl;
pub use pipesim_measure::*;
pub use pipesim_models::*;
pub use pipesim_report as report;
pub use pipesim_schedule::*;
pub use pipesim_sim::{self as sim, balance, exact, ordering};
pub use pipesim_system as system;
pub use pipesim_train::*;
pub use pipesim_verdict as verdict;

pub mod cli {
    pub use crate::cli::*;
}
