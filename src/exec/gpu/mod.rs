//! GPUs as devices: which one each gets, how a program runs on it, and the links between them. A program that was built without
//! the feature `cuda` has `no_gpu.rs` in this place.

mod accelerator;
mod communicators;
mod copy;
mod gpus;
mod nccl;
mod nvshmem;
mod post;
mod staged;

pub use copy::Copy;
pub use gpus::Gpus;
pub use nccl::Nccl;
pub use nvshmem::Nvshmem;
pub use post::MakeEnds;
pub use staged::Staged;

/// Why no machine has any.
pub const LACK: Option<&str> = None;
