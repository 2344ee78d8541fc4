//! GPT-2 on the CPU in float32, split by pipeline stage, with a real split backward.
//!
//! A [`Shard`] is what one device owns: the parameters, gradients and optimizer state of its stages, and what its forward
//! passes leave behind. Its ops are the schedule's ops: [`Shard::forward`], [`Shard::backward_input`] and
//! [`Shard::backward_weight`]; a full backward is the second followed by the third. The backward for the input leaves
//! behind exactly the operands that the backward for the weights needs, and every parameter gradient accumulates there,
//! in the order of those calls: so no partition and no interleaving of stages changes a bit of a result.
//!
//! The arithmetic is llm.c's (<https://github.com/karpathy/llm.c>, `train_gpt2.c`), and so are the files.

mod block;
mod head;
mod lap;
mod logits;
mod parameters;
mod pool;
mod rates;
mod shard;
mod stages;
pub(crate) mod stash;
mod step;
mod text;
mod tokens;

pub use crate::model_spec::transformer::Config;
pub use block::STORAGE;
pub use cpu_kernels::Shape;
pub use cpu_kernels::optimizer::AdamW;
pub use lap::{Part, PartTiming};
pub use logits::WholeModel;
pub use parameters::{Parameters, Quantity};
pub use rates::{Rates, rates};
pub use shard::{Shard, Signal};
pub use stages::{check_held, check_sizes};
pub use step::Snapshot;
pub use tokens::{Tokenizer, Tokens};
