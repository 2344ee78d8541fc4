//! Which pipeline-parallel schedule, and what will it really cost?
//!
//! A schedule (1F1B, ZB-V, DualPipe, ..., or one of your own) is a text in a small language. It compiles to one task graph. The
//! same graph is **simulated** (timeline, bubble, memory) and **executed** (GPT-2 trained on CPU threads, ranks or GPUs); both
//! give the same kind of timeline, so that prediction and measurement lie on one axis and their difference is a number.
//!
//! # In one line
//!
//! ```
//! let prediction = pipesim::predict("zb-v", 4, 8)?; // 4 devices, 8 micro-batches, F = I = W = 1
//! assert_eq!(prediction.metrics.makespan, 25.5);
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! # Costs of one's own, and a picture
//!
//! [`Selection`] says what is asked of a schedule, [`Costs`] what its ops cost; what [`Selection::resolve`] gives can be
//! predicted, checked and drawn.
//!
//! ```
//! use pipesim::{Costs, GivenCosts, Report, Selection};
//!
//! let costs = Costs::given("F=18.5,I=18.1,W=9.3,comm=0.6".parse::<GivenCosts>()?);
//! let resolved = Selection::new(4, 8).resolve("1f1b", &costs)?; // a name, `interleaved-1f1b:v=4`, a .star or .csv file, or `auto`
//! let svg = Report::predicted(&[resolved.predict()?]).svg(); // or .save("1f1b.png"): the ending says what
//! # assert!(svg.starts_with("<svg"));
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! # A schedule of one's own
//!
//! ```
//! use pipesim::{Costs, Delivery, Selection, check};
//!
//! let text = "def device(r, p, m):\n    return m * F + m * B\n"; // the word of device r of p, for m micro-batches
//! let resolved = Selection::new(4, 8).resolve_text("mine", text, &Costs::default())?;
//! check(&resolved.graph, Delivery::OneSided)?; // does it run to its end on links that deliver so?
//! assert_eq!(resolved.predict()?.metrics().per_device[0].peak_activations, 8.0);
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! The book's page on the language (`docs/src/language.md`) has everything that can stand in such a text, with an example each.
//!
//! # Training for real, and comparing
//!
//! ```no_run
//! # #[cfg(feature = "training")]
//! # fn train() -> Result<(), pipesim::Error> {
//! let finding = pipesim::Experiment::new(["1f1b", "zb-v"], 2, 4).run()?; // 2 CPU threads, calibrated on 1F1B
//! for outcome in &finding.outcomes {
//!     println!("{}: {:.0} ms a step; makespan predicted {:+.1} % off", outcome.schedule, outcome.iteration_ms.median, 100.0 * outcome.error.makespan);
//! }
//! finding.report.save("reports/mine/")?; // page, pictures, trace; predicted above measured
//! # Ok(())
//! # }
//! ```
//!
//! Features, all on by default: `pictures` (PNG, files and folders), `training`, `cuda`, `cli`. Without them there is the core:
//! language, graph, simulation, timelines and SVG, without files or clocks but those of a [`Host`] of one's own, and without
//! threads but the one with a deep stack on which a schedule is evaluated (none on WebAssembly).
//!
//! # The house
//!
//! ```text
//! schedules/*.star ─ dsl ─▶ Schedule ─▶ TaskGraph ─┬─ sim ──┬─▶ Timeline ─▶ metrics ─▶ report
//!                             costs ───────────────┘        │
//!                               ▲                  └─ exec ─┘
//!                               └── experiment ◀────────────┘
//! ```
//!
//! A module uses those of its own storey and of lower ones, and no file uses another in a circle.
//! `tests/language/architecture.rs` reads the `use` lines:
//!
//! ```text
//! 1 language and graph: op activation placement schedule open delivery deadlock graph ending legible nearest lowering check export statistics metrics timeline dsl csv
//! 2 costs and time: anatomy layout hardware memory balance cost settle sim exact
//! 3 the way in: resolve forecast advice remedy report
//! 4 machines: model cuda ranks exec doctor
//! 5 measurement: experiment
//! 6 command line, and the errors of the crate: cli error
//! ```
//!
//! Invariants:
//! - A schedule never mentions communication, time or hardware: what is sent follows from placement and order.
//! - `sim` and `exec` never see each other: they are joined by data. `sim` reads no clock and no file.
//! - Time is whole ticks or nanoseconds; whatever is iterated is ordered. Same input, same bytes.
//! - What a pipeline's ops wait for is stated once, in [`Op::upstream`].
//! - A panic is a bug of ours; what a user can cause is an error that says what was expected, what was found and one thing to do.

// What only the tests name of a module is exported for them; what only the program uses is there without it, too.
#![cfg_attr(not(feature = "internals"), allow(unused_imports))]
#![cfg_attr(not(all(feature = "cli", feature = "cuda")), allow(dead_code))]

mod activation;
mod advice;
mod anatomy;
mod balance;
mod check;
#[cfg(feature = "cli")]
mod cli;
mod cost;
mod csv;
#[cfg(feature = "cuda")]
mod cuda;
mod deadlock;
mod delivery;
#[cfg(feature = "cuda")]
mod doctor;
mod dsl;
mod ending;
mod error;
mod exact;
#[cfg(feature = "training")]
mod exec;
#[cfg(feature = "training")]
mod experiment;
mod export;
mod forecast;
mod graph;
mod hardware;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod layout;
mod legible;
mod lowering;
mod memory;
mod metrics;
#[cfg(feature = "training")]
mod model;
mod nearest;
mod op;
mod open;
mod placement;
#[cfg(feature = "training")]
mod ranks;
mod remedy;
mod report;
mod resolve;
mod schedule;
mod settle;
mod sim;
mod statistics;
mod timeline;

pub use anatomy::{Anatomy, MicroBatch, anatomy};
pub use check::check;
pub use cost::{CostFile, CostTable, GivenCosts};
pub use deadlock::{Deadlock, Wait};
pub use delivery::{ChannelOptions, Delivery};
pub use error::Error;
pub use forecast::Forecast;
pub use graph::TaskGraph;
pub use hardware::{Hardware, Stack};
pub use layout::{Attention, Layout, Precision, Recompute, Zero};
pub use metrics::{DeviceMetrics, Metrics};
pub use op::{Kind, Op};
pub use placement::Placement;
pub use report::{Comparison, Entry, Look, Palette, Panel, Report, Table};
pub use resolve::{Costs, Error as ResolveError, Host, Resolved, Selection, Warning};
pub use schedule::{Overlap, Schedule};
pub use sim::{Cause, IdleSpan, Predicted, Prediction, Setup};
pub use timeline::{Queue, Span, Timeline};

#[cfg(feature = "cli")]
#[doc(hidden)]
pub use cli::main;
#[cfg(feature = "training")]
pub use experiment::{
    Error as ExperimentError, Errors, Experiment, Finding, Iteration, Measurement, Outcome, Recipe, compare,
};

/// The figures of the schedule called `schedule` (see `pipesim schedules`) on `devices` devices with `microbatches`
/// micro-batches: F, I and W of a device's whole share of layers take one unit each, communication none.
///
/// # Errors
/// No such schedule, or none for these numbers.
pub fn predict(schedule: &str, devices: u32, microbatches: u32) -> Result<Prediction, Error> {
    let resolved = Selection::new(devices, microbatches).resolve(schedule, &Costs::default())?;
    Ok(resolved.predict()?.prediction)
}
