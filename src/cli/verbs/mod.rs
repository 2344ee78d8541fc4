//! The verbs, one file each: their options and what they do.

pub mod accuracy;
pub mod check;
pub mod compare;
#[cfg(feature = "cuda")]
pub mod doctor;
pub mod explain;
pub mod export;
pub mod import;
pub mod plan;
pub mod predict;
pub mod profile;
pub mod run;
pub mod schedules;
pub mod shell;
pub mod tour;
pub mod train;
