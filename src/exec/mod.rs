//! Execution: the settled graph enqueued on real devices, and what they did measured.
//!
//! Data flows: `plan` turns a graph into buffers and ports; `shared` lays them out in an `arena` that threads or ranks share; a
//! `session` holds one thread a device, on which the device's `program` runs in order: on a `host`, which computes itself, or on
//! a `gpu`, for which it only enqueues. A [`link`] moves messages, by put with signal wherever it can, `reductions` what all
//! devices tell each other, and the `watch` ends everything when one of them hangs or dies. No barrier inside a step.

mod arena;
mod cpu;
mod device;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
mod gpu;
mod heap;
mod host;
pub mod link;
mod mailbox;
mod plan;
mod program;
mod queues;
mod record;
mod reductions;
mod session;
mod settings;
mod shared;
mod signal;
mod slot;
mod thread;
mod timed;
mod watch;

pub use cpu::Cpu;
pub use device::{Batch, Device, State, Update};
pub use gpu::{Gpus, LACK};
pub use host::Host;
pub use mailbox::Sizes;
pub use plan::{Plan, Port};
pub use program::Runners;
pub use record::{DeviceRecord, Following, OpRecord, StepRecord};
pub use session::{Error, Session};
pub use settings::Settings;
pub use shared::Shared;
pub use thread::Shortage;
pub use timed::Timed;
pub use watch::Fault;
