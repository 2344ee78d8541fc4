//! Executes a task graph on real devices, and measures it.
//!
//! `plan` assigns buffers to the messages of a graph; `shared` places them in an `arena` that threads or ranks share. A `session`
//! has one thread per device, which runs the device's `program` in order on a backend: a `host`, which computes (and copies activations on `host_queues`), or a `gpu`,
//! on which it only enqueues. A [`link`] moves messages, by put with signal wherever possible. The `watch` stops everything when
//! a device hangs or dies. There is no barrier inside a step.
//!
//! In: a graph, and for each device something that runs its ops. Out: measured steps ([`StepRecord`]), from which timelines are made.
//! [`ranks`] has the processes of one run, and [`doctor`] says which devices and libraries work.
//!
//! ```
//! let names: Vec<&str> = pipesim_exec::link::LINKS.iter().map(|link| link.name).collect();
//! assert!(names.contains(&"local")); // shared memory between threads or ranks of a machine
//! ```

mod arena;
mod atomic;
mod collective;
mod cpu;
mod device;
pub mod doctor;
mod gpu;
mod groups;
mod heap;
mod host;
mod host_queues;
pub mod link;
mod message;
mod piece;
mod plan;
mod program;
mod queues;
pub mod ranks;
mod record;
mod reductions;
mod session;
mod shared;
mod signal;
mod spanning;
mod values;
mod watch;

pub use collective::TensorGroup;
pub use device::{Batch, Device, State, Timed, Update};
pub use gpu::{GRAPHS, Gpus, PRODUCTS, places as gpu_places};
pub use groups::optimizer_share;
pub use host::Host;
pub use host_queues::COPY_THREADS;
pub use message::Sizes;
pub use plan::{BufferUse, Plan};
pub use program::Runners;
pub use record::{Copies, DeviceRecord, Following, OpRecord, StepRecord};
pub use session::{Error, Session, start_session};
pub use shared::{Settings, Shared};
pub use watch::{Fault, NoFault, Shortage};
