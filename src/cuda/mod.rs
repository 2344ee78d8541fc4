//! GPT-2 on NVIDIA's GPUs: driver, streams, memory, kernels, matrix products, and a [`Shard`] whose ops only enqueue.
//!
//! ```text
//! library ─▶ api ─▶ driver ─▶ gpu ─┬─▶ timing ─────────────────────────────┐
//!                kernel ─▶ compiler ─▶ operation (with blas) ─▶ block head ─▶ shard step
//! ```
//!
//! Nothing links a library of NVIDIA: [`Driver::open`] reports what is missing. `unsafe` code is in `api`, `library` and
//! `symmetric`, which call the libraries.
//!
//! A [`Gpu`] is a whole GPU or a slice of its multiprocessors, with three streams: compute, send, receive. A [`Shard`] enqueues on
//! the first; the executor moves hidden states between GPUs, by [`Stream`] and [`Event`].

mod api;
mod batch;
mod blas;
mod block;
mod compiler;
mod driver;
mod estimate;
mod gpu;
mod group;
mod head;
pub mod kernel;
pub mod library;
mod operation;
mod shard;
mod step;
pub mod symmetric;
mod timing;
mod warmup;

pub use api::nccl::{self, Communicator};
pub use api::{
    Address, Argument, Buffer, CompileError, Context, Event, Events, Fault, Imported, Pinned, ProcessHandle,
    ProductError, Range, Stream, Unloadable, Unsupported, driver_version,
};
pub use compiler::{Code, Kernels, Origin, file_name, kernels, try_compiler};
pub use driver::{ComputeMode, Driver, Facts, LOWEST_CAPABILITY, Unusable};
pub use estimate::{Bytes, Demand, HIDDEN_ALIGNMENT, bytes_needed, stage_gradient_bytes, storage, tied_gradient_bytes};
pub use gpu::{Gpu, enable_peers};
pub use kernel::Precision;
pub use library::{connections, prepare};
pub use shard::Shard;
pub use step::Run;
pub use timing::{Clock, EventTimer};
