//! GPT-2 on NVIDIA's GPUs: the driver, streams, memory, kernels, matrix products, and a [`Shard`] whose every op only
//! enqueues.
//!
//! ```text
//! library ─▶ api ─▶ driver ─▶ gpu ─┬─▶ stream event clock memory ──────────┐
//!                kernel ─▶ compiler ─▶ code ─▶ operation (with blas) ─▶ block head ─▶ shard step
//! ```
//!
//! Nothing here links a library of NVIDIA's: [`Driver::open`] says what is missing. `unsafe` stands where a library's
//! functions are called: in `api`, and in `library`, `nccl` and `symmetric`.
//!
//! A GPU's whole, or a slice of its multiprocessors, is a [`Gpu`] with three streams: compute, send, receive. A [`Shard`]
//! enqueues on the first; moving hidden states between GPUs is the executor's affair, by [`Stream`] and [`Event`].

mod api;
mod batch;
mod blas;
mod block;
mod check;
mod clock;
mod code;
mod compiler;
mod driver;
mod environment;
mod estimate;
mod gpu;
mod group;
mod head;
pub mod kernel;
#[cfg(feature = "internals")]
pub mod launcher;
pub mod library;
mod marks;
pub mod nccl;
mod nvtx;
mod once;
mod operation;
mod shard;
mod step;
pub mod symmetric;
mod warmup;

pub use api::compiler::CompileError;
pub use api::context::Context;
pub use api::driver::{Fault, Unloadable};
pub use api::event::{Event, Events, ProcessHandle};
pub use api::handle::Address;
pub use api::memory::{Buffer, Imported};
pub use api::pinned::Pinned;
pub use api::products::ProductError;
pub use api::stream::Stream;
pub use check::{HIDDEN_ALIGNMENT, Unfit};
pub use clock::Clock;
pub use code::Kernels;
pub use compiler::{Code, Origin, file_name, kernels};
pub use driver::{Driver, Facts, LOWEST_CAPABILITY, Unusable};
pub use environment::{connections, prepare};
pub use estimate::{Bytes, Demand, bytes_needed, stage_gradient_bytes, storage, tied_gradient_bytes};
pub use gpu::{Gpu, enable_peers};
pub use kernel::Precision;
pub use marks::Marks;
pub use nccl::Channel;
pub use nvtx::Range;
pub use shard::Shard;
pub use step::Run;
