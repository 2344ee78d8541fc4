//! pipesim: which pipeline schedule, and what will it really cost?
//!
//! A schedule is written once, in a small language. It compiles to one task graph. The same graph is **simulated**
//! (predicted timeline, bubble, memory) and **executed** (a real GPT-2 trained on real devices), and both give the same
//! kind of timeline, so that prediction and measurement lie on one axis and their difference is a number.
//!
//! ```text
//! schedules/*.star ─ dsl ─▶ Schedule ─▶ TaskGraph ─┬─ sim ──┬─▶ Timeline ─▶ metrics ─▶ report
//!                             costs ───────────────┘        │
//!                               ▲              └─ exec ─────┘
//!                               └── calibrate ◀──┘
//! ```
//!
//! A module uses those of its own storey and of lower ones, and no file uses another in a circle.
//! `tests/language/architecture.rs` reads the `use` lines:
//!
//! ```text
//! 1 language and graph: op activation placement schedule open delivery deadlock graph lowering check export statistics metrics timeline dsl csv
//! 2 costs and time: anatomy cost settle sim exact
//! 3 the way in: resolve report
//! 4 machines: model cuda ranks exec doctor
//! 5 measurement: experiment
//! 6 command line: cli
//! ```
//!
//! Invariants:
//! - A schedule never mentions communication, time or hardware: what is sent follows from placement and order.
//! - `sim` and `exec` never see each other: they are joined by data. `sim` reads no clock and no file.
//! - Time is whole ticks or nanoseconds; whatever is iterated is ordered. Same input, same bytes.
//! - What a pipeline's ops wait for is stated once, in [`op::Op::upstream`].
//! - A panic is a bug of ours; what a user can cause is an error that says what was expected, what was found and one thing to do.

pub mod activation;
pub mod anatomy;
pub mod check;
#[cfg(feature = "cli")]
pub mod cli;
pub mod cost;
pub mod csv;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod deadlock;
pub mod delivery;
#[cfg(feature = "cuda")]
pub mod doctor;
pub mod dsl;
pub mod exact;
#[cfg(feature = "training")]
pub mod exec;
#[cfg(feature = "training")]
pub mod experiment;
pub mod export;
pub mod graph;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
pub mod lowering;
pub mod metrics;
#[cfg(feature = "training")]
pub mod model;
pub mod op;
pub mod open;
pub mod placement;
#[cfg(feature = "training")]
pub mod ranks;
pub mod report;
pub mod resolve;
pub mod schedule;
pub mod settle;

pub mod sim;
pub mod statistics;
pub mod timeline;
