//! NVIDIA GPUs for `pipesim`: driver, streams, memory, kernels, matrix products, and communication.
//!
//! ```text
//! library ─▶ api ─▶ driver, room ─▶ gpu ─▶ clock, sampler
//!      kernel ─▶ compiler ─▶ algorithms, blas, attention ─▶ trial   symmetric
//! ```
//!
//! Nothing links a library of NVIDIA: [`Driver::open`] reports what is missing. `unsafe` code is in `api`, `library` and
//! `symmetric`, which call the libraries. The crate knows streams, addresses and sizes; models and schedules are `pipesim`'s.
//!
//! A [`Gpu`] is a whole GPU or a slice of its multiprocessors, with four streams: compute, send, receive, and an idle one for its clock.

pub mod algorithms;
pub mod api;
pub mod attention;
pub mod blas;
mod clock;
mod compiler;
mod driver;
mod gpu;
pub mod kernel;
pub mod library;
mod room;
mod sampler;
pub mod symmetric;
mod trial;

pub use api::nccl::{self, Communicator};
pub use api::{
    Address, Argument, Buffer, CompileError, Context, Event, Events, Fault, GraphCounts, GraphUse, Graphs, Imported,
    Pinned, ProcessHandle, ProductError, Range, Stream, Unloadable, Unsupported, driver_version,
};
pub use clock::Clock;
pub use compiler::{Code, Kernels, Origin, digest, file_name, kernels, read_cached, try_compiler, write_cached};
pub use driver::{ComputeMode, Driver, Facts, LOWEST_CAPABILITY, Unusable};
pub use gpu::{Gpu, enable_peers};
pub use kernel::Precision;
pub use library::{blocks, connections, prepare};
pub use sampler::{Sampler, Samples};
pub use trial::{try_kernel, try_product};
