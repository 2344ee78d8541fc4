//! Specifications of models: their parts, tensors and operations as data. No other module contains formulas of a model.
//!
//! `presets`, [`gpt2`] and [`huggingface`] describe models as an [`ModelSpec`]. Numbers of parameters, FLOPs of F, I and W, saved and
//! sent bytes, the split into stages and the exchanges between devices follow from it, without allocating weights.

mod attention;
mod configuration;
mod decoder;
mod families;
pub mod gpt2;
pub mod huggingface;
mod json;
mod keys;
mod known_keys;
mod layer_kind;
mod layer_lists;
mod layer_piece;
mod lora;
mod mixers;
mod mixture;
mod operation;
mod part;
mod pattern;
mod presets;
mod reader;
pub mod shape;
mod similar;
mod sizes;
mod spec;
mod split;
mod stage;
mod stage_layout;
mod stage_split;
pub mod transformer;

pub use known_keys::other_values;
pub use layer_kind::{Gate, LayerKind, LayerPattern, Mlp, SelfAttention, Sparse};
pub use lora::Lora;
pub use mixers::{DeltaNet, Mamba1, Mamba2, Scan, ShortConvolution};
pub use mixture::{Experts, Latent};
pub use operation::{MicroBatch, Operation, ScanWork, Storage, Window};
pub use part::{
    BLOCK, Degrees, EMBEDDING, HEAD, Initial, MIXTURE, PREDICTION, Part, Tensor, WINDOW_BLOCK, WINDOW_MIXTURE, is_layer,
};
pub use presets::{model_spec, names, of_hub, transformer_named, unknown, unknown_among};
pub use sizes::InvalidSizes;
pub use spec::{ModelSpec, SplitItems};
pub use split::{Block, Split};
pub use stage::layer_counts;
pub use stage::{Outline, SplitError, Stage, TiedSides};
pub use stage_layout::{LayoutError, StageLayout, StagePieces};
pub use stage_split::StageSplit;
