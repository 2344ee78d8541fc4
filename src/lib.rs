//! Which pipeline-parallel schedule is fastest for a training job, and how long does a step take?
//!
//! A schedule (1F1B, ZB-V, DualPipe, or your own) is written in a small language and compiled to a task graph. The graph is **simulated**
//! (timeline, bubble, memory) and **executed** (GPT-2 and Llama trained on CPU threads, ranks or GPUs). Both give the same kind of timeline, so
//! prediction and measurement can be compared op by op.
//!
//! # In one line
//!
//! ```
//! let prediction = pipesim::predict("zb-v", 4, 8)?; // 4 devices, 8 micro-batches, F = I = W = 1
//! assert_eq!(prediction.metrics.makespan, 25.5);
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! # A model on hardware
//!
//! [`predict_model`] estimates the training step of a model: time, MFU, and whether it fits into memory. No GPU is needed.
//!
//! ```
//! use pipesim::{ParallelConfig, predict_model};
//!
//! let layout = ParallelConfig { tp: 8, pp: 4, dp: 2, micro: 32, sequence: 8192, ..ParallelConfig::default() };
//! let prediction = predict_model("llama-3-70b", "h100-sxm", layout, "1f1b")?;
//! assert_eq!(prediction.estimate.gpus, 64);
//! println!("{:.2} s per step, MFU {:.2}, fits: {}", prediction.estimate.iteration_s, prediction.estimate.mfu, prediction.fits());
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! # Your own costs, explained
//!
//! A [`Selection`] describes the question, [`Costs`] the cost of each op. The result of [`Selection::resolve`] can be simulated, checked
//! and drawn; [`Selection::explain`] says why devices idle and what would shorten the step.
//!
//! ```
//! use pipesim::{Costs, GivenCosts, Report, Selection};
//!
//! let costs = Costs::given("F=18.5,I=18.1,W=9.3,comm=0.6".parse::<GivenCosts>()?);
//! let explanation = Selection::new(4, 8).explain("1f1b", &costs)?;
//! assert!(!explanation.suggestions().is_empty());
//! println!("{explanation}");
//!
//! let resolved = Selection::new(4, 8).resolve("1f1b", &costs)?; // a name, `interleaved-1f1b:v=4`, a .star or .csv file, or `auto`
//! let svg = Report::predicted(&[resolved.predict()?]).svg(); // or .save("1f1b.png"): the file extension selects the format
//! # assert!(svg.starts_with("<svg"));
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! # Your own schedule
//!
//! ```
//! use pipesim::{Costs, Delivery, Selection, check};
//!
//! let text = "def device(r, p, m):\n    return m * F + m * B\n"; // the ops of device r of p, for m micro-batches
//! let resolved = Selection::new(4, 8).resolve_text("mine", text, &Costs::default())?;
//! check(&resolved.graph, Delivery::OneSided)?; // does it run to its end on links with this delivery?
//! assert_eq!(resolved.predict()?.metrics().per_device[0].peak_activations, 8.0);
//! # Ok::<(), pipesim::Error>(())
//! ```
//!
//! The book's page on the language (`docs/src/language.md`) describes the language with examples.
//!
//! # Training, and comparing with the prediction
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
//! Features, all on by default: `pictures` (PNG, files and folders), `training`, `cuda`, `cli`. The core without them has the language,
//! graph, simulation, timelines and SVG. It reads files and clocks only through your own [`Host`], and uses one thread, with a deep stack,
//! to evaluate schedules (none on WebAssembly).
//!
//! The types at the root serve most programs; the modules have all types by subject.
//!
//! # Layers
//!
//! ```text
//! schedules/*.star ─ dsl ─▶ Schedule ─▶ TaskGraph ─┬─ sim ──┬─▶ Timeline ─▶ metrics ─▶ report
//!                             costs ───────────────┘        │
//!                               ▲                  └─ exec ─┘
//!                               └── experiment ◀────────────┘
//! ```
//!
//! A module uses modules of its own layer and of lower layers, and no files use each other in a circle.
//! `tests/language/architecture.rs` checks the `use` lines against this table:
//!
//! ```text
//! 1 language and graph: op slices activation placement fault sharding program_check schedule fsdp open communicators delivery deadlock graph epilogue mesh sanitize nearest lowering check export statistics metrics timeline dsl csv
//! 2 costs and time: model_spec layout hardware memory balance cost ordering sim exact
//! 3 the way in: resolve import step_estimate advice suggestion diagnosis explanation model_prediction plan report
//! 4 machines: system compute model checkpoint ranks exec doctor
//! 5 measurement: experiment training_loop
//! 6 command line, and the errors of the crate: cli error
//! ```
//!
//! Invariants:
//! - A schedule never mentions communication, time or hardware: what is sent follows from placement and order.
//! - `sim` and `exec` share data, not code. `sim` reads no clock and no file.
//! - Time is in whole ticks or nanoseconds; collections that are iterated are ordered. The same input gives the same bytes.
//! - The dependencies of a pipeline's ops are defined once, in [`Op::upstream`], [`Op::earlier_slice`] and [`Kind::needs`].
//! - A panic is a bug. Mistakes of a user give an error that says what was expected, what was found and one thing to do.

// Modules export some items for tests alone, and contain some that only the program uses.
#![cfg_attr(not(feature = "internals"), allow(unused_imports))]
#![cfg_attr(not(all(feature = "cli", feature = "cuda")), allow(dead_code))]
// With `internals`, types of private modules are reachable, too.
#![cfg_attr(not(feature = "internals"), warn(unnameable_types))]

mod activation;
mod advice;
mod api;
mod balance;
mod check;
#[cfg(feature = "training")]
mod checkpoint;
#[cfg(feature = "cli")]
mod cli;
mod communicators;
#[cfg(feature = "training")]
mod compute;
mod cost;
mod csv;
mod deadlock;
mod delivery;
mod diagnosis;
#[cfg(feature = "cuda")]
mod doctor;
mod dsl;
mod epilogue;
mod error;
mod exact;
#[cfg(feature = "training")]
mod exec;
#[cfg(feature = "training")]
mod experiment;
mod explanation;
mod export;
mod fault;
mod fsdp;
mod graph;
mod hardware;
#[cfg(feature = "pictures")]
mod import;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod layout;
mod lowering;
mod memory;
mod mesh;
mod metrics;
#[cfg(feature = "training")]
mod model;
mod model_prediction;
mod model_spec;
mod nearest;
mod op;
mod open;
mod ordering;
mod placement;
mod plan;
mod program_check;
#[cfg(feature = "training")]
mod ranks;
mod report;
mod resolve;
mod sanitize;
mod schedule;
mod sharding;
mod sim;
mod slices;
mod statistics;
mod step_estimate;
mod suggestion;
#[cfg(any(feature = "cli", feature = "training"))]
mod system;
mod timeline;
#[cfg(all(feature = "training", feature = "pictures"))]
mod training_loop;

/// Runs the programs of `examples` as documentation tests.
#[cfg(doctest)]
mod examples {
    macro_rules! examples {
        ($($name:ident: $fence:literal),*) => {
            $(#[doc = concat!($fence, "\n", include_str!(concat!("../examples/", stringify!($name), ".rs")), "```")] mod $name {})*
        };
    }

    examples! {
        llama_on_h100s: "```", own_costs: "```", own_schedule: "```", predict: "```", stage_times: "```",
        compare: "```no_run", plot: "```no_run", train: "```no_run"
    }
}

#[cfg(feature = "pictures")]
pub use api::imports;
#[cfg(feature = "training")]
pub use api::training;
pub use api::{costs, graphs, measured, models, pictures, plans, schedules, simulation};

pub use check::check;
pub use cost::{CostFile, CostTable, GivenCosts, SliceCosts, VocabularyCosts};
pub use deadlock::{Deadlock, Wait};
pub use delivery::{ChannelOptions, Delivery};
pub use error::Error;
pub use explanation::StepExplanation;
pub use graph::{Dependency, TaskGraph};
pub use hardware::{Hardware, Stack};
#[cfg(feature = "pictures")]
pub use import::{ImportError, ImportOptions, import};
pub use layout::{Attention, CudaGraph, Dispatcher, ParallelConfig, Precision, Recompute, Routing, Zero};
pub use metrics::{DeviceMetrics, Metrics};
pub use model_prediction::ModelPrediction;
pub use model_spec::{MicroBatch, ModelSpec, model_spec};
pub use op::{Engine, Kind, Op};
pub use placement::Placement;
pub use report::{Comparison, Entry, Look, Palette, Panel, Report, Table, compare};
pub use resolve::{Costs, Error as ResolveError, Host, Resolved, Selection, Warning};
pub use schedule::{Overlap, Schedule};
pub use sim::{Cause, IdleSpan, Prediction, PredictionFigures, Setup};
pub use slices::Slices;
pub use step_estimate::StepEstimate;
pub use timeline::{Queue, Span, StepFigures, Timeline, WorkerSpans, Workers};

#[cfg(feature = "cli")]
#[doc(hidden)]
pub use cli::{Allocator, main};
#[cfg(feature = "training")]
pub use experiment::{
    Error as ExperimentError, Errors, Experiment, Iteration, Measurement, Outcome, Results, TrainingConfig, Work,
};

/// Predicts the step of the schedule called `schedule` (see `pipesim schedules`) on `devices` devices with `microbatches` micro-batches:
/// F, I and W of a device's whole share of layers take one unit each, communication takes none.
///
/// # Errors
/// No such schedule, or none for these numbers.
pub fn predict(schedule: &str, devices: u32, microbatches: u32) -> Result<PredictionFigures, Error> {
    let resolved = Selection::new(devices, microbatches).resolve(schedule, &Costs::default())?;
    Ok(resolved.predict()?.prediction)
}

/// Predicts the training step of the model called `model` on the GPUs called `hardware` (see `pipesim hardware`): time, MFU and memory.
///
/// # Errors
/// No such model, hardware or schedule, or a layout that does not suit them. A step that does not fit into memory is no error:
/// [`ModelPrediction::fits`].
pub fn predict_model(
    model: &str,
    hardware: &str,
    layout: ParallelConfig,
    schedule: &str,
) -> Result<ModelPrediction, Error> {
    let costs = models::model_costs(model, hardware, layout)?;
    let selection = costs.selection();
    Ok(ModelPrediction::new(costs, schedule, &selection)?)
}
