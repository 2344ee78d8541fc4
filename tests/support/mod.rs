//! What the test programs share: golden files, schedules and costs from texts, processes and stand-ins for NVIDIA's libraries.
#![allow(dead_code, unused_imports)] // each program takes its part

mod chance;
mod golden;
mod processes;
mod schedules;

pub use chance::*;
pub use golden::*;
pub use processes::*;
pub use schedules::*;
