//! Pipeline-parallel training schedules, and the task graphs that they become.
//!
//! In: the ops of each device in order ([`schedule::Schedule`]), the stages' [`placement`], and PyTorch's files ([`csv`]). Out: the
//! [`graph`] of one step with its messages, whether it [`deadlock`]s with a [`delivery`], the [`epilogue`] that follows the last
//! backward, and the [`timeline`] that a prediction or a measurement fills. A schedule knows no time and no hardware.
//!
//! ```
//! use pipesim_schedule::graph::TaskGraph;
//! use pipesim_schedule::op::{Kind, Op};
//! use pipesim_schedule::placement::Placement;
//! use pipesim_schedule::schedule::{Programs, Schedule};
//! use pipesim_schedule::{check::check, delivery::Delivery};
//!
//! // GPipe on two devices: all forwards, then all backwards
//! let device = |stage| [Kind::F, Kind::B].into_iter().flat_map(move |kind| (0..4).map(move |m| Op::new(kind, stage, m)));
//! let programs = Programs::from_iter((0..2).map(|stage| device(stage).collect()));
//! let schedule = Schedule::new("gpipe", Placement::linear(2), 4, programs);
//! schedule.validate()?;
//! let graph = TaskGraph::new(schedule)?;
//! check(&graph, Delivery::OneSided)?; // it runs to its end
//! assert_eq!(graph.len(), 2 * 2 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod activation;
pub mod check;
pub mod communicators;
pub mod csv;
pub mod deadlock;
pub mod delivery;
pub mod epilogue;
pub mod export;
pub mod fault;
pub mod fsdp;
pub mod graph;
pub mod lowering;
pub mod mesh;
pub mod metrics;
pub mod moments;
pub mod nearest;
pub mod op;
pub mod open;
pub mod placement;
pub mod program_check;
pub mod sanitize;
pub mod schedule;
pub mod sharding;
pub mod slices;
pub mod statistics;
pub mod timeline;
pub mod trend;
