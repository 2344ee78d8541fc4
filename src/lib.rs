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
//! let results = pipesim::Experiment::new(["1f1b", "zb-v"], 2, 4).run()?; // 2 CPU threads, calibrated on 1F1B
//! for outcome in &results.outcomes {
//!     println!("{}: {:.0} ms a step; makespan predicted {:+.1} % off", outcome.schedule, outcome.iteration_ms.median, 100.0 * outcome.error.makespan);
//! }
//! results.report.save("reports/mine/")?; // page, pictures, trace; predicted above measured
//! # Ok(())
//! # }
//! ```
//!
//! Features, all on by default: `pictures` (PNG, files and folders), `training`, `cli`. The core without them has the language,
//! graph, simulation, timelines and SVG. It reads files only through a [`Host`] and no clock, and uses one thread, with a deep stack, to
//! evaluate schedules (none on WebAssembly).
//!
//! The types at the root serve most programs; the modules have all types by subject.
//!
//! The book's page on the architecture (`docs/src/architecture.md`) says which crates it consists of, and what holds in all of them.

// Some items serve only the command line with all features.
#![cfg_attr(not(all(feature = "cli", feature = "training")), allow(dead_code))]
// With `internals`, types of private modules are reachable, too.
#![cfg_attr(not(feature = "internals"), warn(unnameable_types))]

mod api;
#[cfg(feature = "cli")]
mod cli;
mod error;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;

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
pub use api::{calibration, costs, graphs, measured, models, pictures, plans, questions, schedules, simulation};

pub use error::Error;
pub use pipesim_answer::model_prediction::ModelPrediction;
pub use pipesim_answer::question::Question;
pub use pipesim_answer::resolve::{Costs, Error as ResolveError, Host, Resolved, Selection};
pub use pipesim_answer::step_estimate::StepEstimate;
pub use pipesim_cost::{CostFile, CostTable, GivenCosts};
pub use pipesim_models::hardware::{Hardware, Stack};
pub use pipesim_models::layout::{ParallelConfig, Precision, Recompute, Zero};
pub use pipesim_models::model_spec::MicroBatch;
pub use pipesim_report::{Entry, Look, Panel, Report, Table, compare};
pub use pipesim_schedule::check::check;
pub use pipesim_schedule::deadlock::Deadlock;
pub use pipesim_schedule::delivery::{ChannelOptions, Delivery};
pub use pipesim_schedule::graph::TaskGraph;
pub use pipesim_schedule::metrics::Metrics;
pub use pipesim_schedule::op::{Kind, Op};
pub use pipesim_schedule::placement::Placement;
pub use pipesim_schedule::schedule::{Overlap, Schedule};
pub use pipesim_schedule::slices::Slices;
pub use pipesim_schedule::timeline::{Queue, Span, Timeline};
pub use pipesim_sim::{PredictionFigures, Setup};

#[cfg(feature = "cli")]
#[doc(hidden)]
pub use cli::{Allocator, main};
#[cfg(feature = "training")]
pub use pipesim_measure::experiment::Experiment;

/// Predicts the step of the schedule called `schedule` (see `pipesim schedules`) on `devices` devices with `microbatches` micro-batches:
/// F, I and W of a device's whole share of layers take one unit each, communication takes none.
///
/// # Errors
/// No such schedule, or none for these numbers.
pub fn predict(schedule: &str, devices: u32, microbatches: u32) -> Result<PredictionFigures, Error> {
    let schedule = vec![schedule.to_string()];
    let question = Question { schedule, stages: vec![devices], micro: vec![microbatches], ..Question::default() };
    let found = questions::answer(&question, &schedules::Files)?.predictions.pop();
    Ok(found.ok_or_else(|| ResolveError::Usage("expected a schedule, found none; name one".to_string()))?.figures)
}

/// Reads traces of one run, one file per rank: files, folders and patterns such as `traces/rank*.json.gz`.
///
/// `progress` is called with the number of bytes read and of all bytes.
///
/// # Errors
/// A file cannot be read, has no ops, or contradicts another. What is merely incomplete is in [`imports::Run::warnings`].
#[cfg(feature = "pictures")]
pub fn import(
    paths: &[std::path::PathBuf],
    options: &imports::ImportOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<imports::Run, imports::ImportError> {
    pipesim_import::import(paths, options, progress, &pipesim_answer::known::built_in_of)
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
    use pipesim_answer::resolve::Estimate as _;
    let costs = models::model_costs(model, hardware, layout)?;
    let selection = costs.selection();
    Ok(ModelPrediction::new(costs, schedule, &selection)?)
}
