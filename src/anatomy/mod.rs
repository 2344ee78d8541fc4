//! A model is data: its parts, their tensors, what they compute, keep and send. No formula of a model stands elsewhere.
//!
//! [`gpt2`] and [`llama`] describe their models once, as an [`Anatomy`]. Numbers of parameters, FLOPs of F, I and W, bytes kept
//! and sent, the split into stages and what devices must exchange follow from it, without a weight being allocated.

pub mod gpt2;
pub mod llama;
mod operation;
mod part;
mod sizes;
mod stage;
mod tensor;
mod whole;

pub use operation::{MicroBatch, Operation, Storage};
pub use part::{BLOCK, EMBEDDING, HEAD, Part};
pub use sizes::InvalidSizes;
pub(crate) use stage::layer_counts;
pub use stage::{Outline, Stage, TiedSides, Unsplittable};
pub use tensor::{Initial, Tensor};
pub use whole::Anatomy;

/// The published model of this name: `gpt2` to `gpt2-xl`, `llama-2-7b` to `llama-3-405b`, and the small ones that come with the
/// program.
pub fn anatomy(name: &str) -> Option<Anatomy> {
    let name = &name.to_lowercase();
    let gpt2 = gpt2::Config::preset(name).map(|config| config.anatomy());
    gpt2.or_else(|| llama::Config::preset(name).map(|config| config.anatomy()))
}
