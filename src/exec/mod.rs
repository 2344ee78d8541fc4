//! Execution: the settled graph enqueued on real devices, and what they did measured.
//!
//! Data flows: `plan` turns a graph into buffers and ports, a `session` holds one thread a device, each `worker`
//! runs its device's program in order, a `link` moves data between them by put with signal, and the `watch` ends
//! everything when one of them hangs or dies. No barrier inside a step.

mod cpu;
mod device;
mod link;
mod plan;
mod queues;
mod record;
mod replicas;
mod session;
mod signal;
mod timed;
mod watch;
mod worker;

pub use cpu::Cpu;
pub use device::{Batch, Device, Update};
pub use link::Local;
pub use plan::{Plan, Port};
pub use queues::Queues;
pub use record::{DeviceRecord, OpRecord, StepRecord};
pub use session::{Error, Session, Settings};
pub use timed::Timed;
pub use watch::Fault;
