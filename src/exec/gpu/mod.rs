//! GPUs as devices: their assignment, the backend that enqueues programs, and the links between them.

mod accelerator;
mod communicators;
mod copies;
mod copy;
mod endpoint;
mod gpus;
mod nccl;
mod nvshmem;
mod staged;
mod sums;

pub use copy::Copy;
pub use endpoint::MakeEnds;
pub use gpus::{GRAPHS, Gpus, PRODUCTS, places};
pub use nccl::Nccl;
pub use nvshmem::Nvshmem;
pub use staged::Staged;
