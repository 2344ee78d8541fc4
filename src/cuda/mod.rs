//! GPT-2 on NVIDIA's GPUs: a [`Shard`] whose ops only enqueue kernels and products on the compute stream. The executor moves
//! hidden states between GPUs. The crate `pipesim-cuda` drives them.
//!
//! ```text
//! timing ────────────────────────────────┐
//! operation ─▶ batch group ─▶ block head ─▶ shard step
//! ```

mod batch;
mod block;
mod estimate;
mod group;
mod head;
mod operation;
mod shard;
mod step;
mod timing;
mod warmup;

pub use estimate::{Bytes, Demand, HIDDEN_ALIGNMENT, bytes_needed, stage_gradient_bytes, storage, tied_gradient_bytes};
pub use shard::Shard;
pub use step::Run;
pub use timing::EventTimer;
