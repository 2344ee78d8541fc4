//! Execution: the settled graph enqueued on real devices, and what they did measured.
//!
//! Data flows: `plan` turns a graph into buffers and ports; `shared` lays them out in an `arena` that threads or ranks share; a
//! `session` holds one thread a device, on which an engine runs the device's program in order: a `worker` computes there
//! itself. A `link` moves data by put with signal, `reductions` what is exchanged around the pipeline, and the `watch` ends
//! everything when one of them hangs or dies. No barrier inside a step.

mod arena;
mod cpu;
mod device;
pub mod gpu;
mod heap;
mod link;
mod plan;
mod queues;
mod record;
mod reductions;
mod session;
mod shared;
mod signal;
mod slot;
mod timed;
mod watch;
mod worker;

pub use cpu::Cpu;
pub use device::{Batch, Device, Engine, State, Update};
pub use plan::{Plan, Port};
pub use queues::CommunicationQueues;
pub use record::{DeviceRecord, OpRecord, StepOp, StepRecord};
pub use reductions::Sizes;
pub use session::{Error, Session, Settings};
pub use shared::Shared;
pub use timed::Timed;
pub use watch::Fault;
pub use worker::Worker;
