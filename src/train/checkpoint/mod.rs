//! Models in Hugging Face's files, and checkpoints of a training.
//!
//! `names` maps each tensor of a model's description to tensors of Hugging Face's GPT-2 and Llama, `weights` reads and writes
//! files of them, `config` describes the model beside them. A checkpoint (`folder`) is such a model with AdamW's moments in the same
//! form, the state of the run, and a manifest of lengths and checksums.

mod config;
mod folder;
mod names;
mod weights;

pub use config::config_json;
pub use folder::{CONFIG, Checkpoint, FIRST_MOMENTS, NotFound, SECOND_MOMENTS, STATE, Writer, all};
pub use names::{StoredTensor, stored_tensors};
pub use weights::{WEIGHTS, read, read_folder, read_some, write};
