//! A decoder, split by pipeline stage, with a real split backward: the trainer, on any machine of [`crate::compute`].
//!
//! A [`StageModule`] is what one device owns: the parameters, gradients and optimizer state of its stages, and what its forward
//! passes leave behind. [`StageModule::run`] runs the schedule's ops on it. They walk the operations of the model's
//! description, [`pipesim_models::model_spec`], in order: a new model needs data, and at most a call that machines do not have yet.

mod catalog;
mod executable;
mod gpu;
mod held;
mod layers;
mod lend;
mod logits;
mod module;
mod offload;
mod ops;
mod parameters;
mod rates;
mod shares;
mod stages;
mod stash;
mod text;
mod tokens;
mod update;
mod walk;

pub use crate::compute::cpu::{Cpu, Group, GroupState, STORAGE, storage};
pub use crate::compute::{AdamW, Part, PartTiming, Quantity, Stopwatch};
pub use executable::{check_executable, check_executable_keys, dropouts};
pub use gpu::SliceOps;
pub use logits::WholeModel;
pub use module::{StageModule, WorkerShare, workload};
pub use offload::CopyWork;
pub use parameters::{Parameters, TensorPart};
pub use pipesim_models::model_spec::transformer::Config;
pub use rates::{Product, Rates, TOKENS as PRODUCT_TOKENS, WIDTH as PRODUCT_WIDTH, fit as fit_product, rates};
pub use stages::{check_held, check_sizes};
pub use tokens::{Tokenizer, Tokens};
