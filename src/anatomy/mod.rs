//! A model is data: its parts, their tensors, what they compute, keep and send. No formula of a model stands elsewhere.
//!
//! [`gpt2`] and [`llama`] describe their models once, as an [`Anatomy`]. Numbers of parameters, FLOPs of F, I and W, bytes kept
//! and sent, the split into stages and what devices must exchange follow from it, without a weight being allocated.

pub mod gpt;
pub mod gpt2;
pub mod huggingface;
mod keys;
pub mod llama;
mod operation;
mod part;
mod sizes;
mod stage;
mod tensor;
pub mod transformer;
mod unknown;
mod whole;

pub use operation::{MicroBatch, Operation, Storage};
pub use part::{BLOCK, EMBEDDING, HEAD, Part};
pub use sizes::InvalidSizes;
pub(crate) use stage::layer_counts;
pub use stage::{Outline, Stage, TiedSides, Unsplittable};
pub use tensor::{Initial, Tensor};
pub use unknown::{of_hub, unknown};
pub use whole::Anatomy;

use crate::nearest::plain;

/// The published model of this name, where hyphens may be left out: `gpt2` to `gpt2-xl`, `gpt-3-175b` and its like,
/// `llama-2-7b` to `llama-3.1-405b`, and the small ones that come with the program.
pub fn anatomy(name: &str) -> Option<Anatomy> {
    Some(transformer_named(name)?.anatomy())
}

/// The sizes of the model that [`anatomy`] describes under this name.
pub fn transformer_named(name: &str) -> Option<transformer::Config> {
    let name = names().find(|known| plain(known) == plain(name))?;
    let gpt2 = gpt2::Config::preset(&name).map(|config| config.transformer());
    gpt2.or_else(|| gpt::preset(&name)).or_else(|| llama::preset(&name))
}

/// The names that [`anatomy`] knows.
pub fn names() -> impl Iterator<Item = String> {
    let names = gpt2::Config::PRESETS.iter().map(|(name, _)| *name).chain(gpt::PRESETS.iter().map(|(name, _)| *name));
    let llama = llama::PRESETS.iter().map(|(name, _)| *name);
    let again = ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.3-70b"];
    names.chain(llama).chain(again).map(str::to_string)
}
