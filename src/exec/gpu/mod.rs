//! GPUs as devices: an engine only enqueues its program on streams; a carrier moves messages between GPUs.
//!
//! The order of enqueuing follows the graph: where an op waits for another device's, its thread waits until that one has
//! *enqueued* what makes the message (host signals of the session's heap), and its stream waits until it has *happened* (events,
//! or words that the sender's stream writes). So every event is recorded before anything waits for it, hosts run as far ahead as
//! the graph lets them, and no host waits for a GPU inside a step.

mod carrier;
mod choice;
mod copy;
mod engine;
mod mailbox;
mod nccl;
mod nvshmem;
mod staged;
mod timer;

pub use carrier::{Carriers, Kind};
pub use choice::open;
pub use engine::Enqueuer;
pub use mailbox::MessageBytes;
