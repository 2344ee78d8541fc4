//! The verbs, one file each: their options and what they do.

#[cfg(feature = "training")]
pub mod accuracy;
pub mod check;
pub mod compare;
#[cfg(feature = "training")]
pub mod doctor;
pub mod explain;
pub mod explore;
pub mod export;
#[cfg(feature = "training")]
pub mod generate;
pub mod import;
pub mod plan;
pub mod predict;
#[cfg(feature = "training")]
pub mod profile;
#[cfg(feature = "training")]
pub mod run;
pub mod schedules;
pub mod shell;
pub mod tour;
#[cfg(feature = "training")]
pub mod train;
pub mod watch;
