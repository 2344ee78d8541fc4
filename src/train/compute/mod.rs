//! What a trainer asks of a machine: the calls of a model's layers, and of its parameters. [`cpu::Cpu`] computes them on the
//! calling thread.
//!
//! Calls are operations of a model, never of tensor algebra, so a machine may fuse what it likes. All matrices are row-major; n is
//! the number of tokens (rows) of a micro-batch, B of its sequences, T of tokens per sequence. What a forward call keeps for the
//! backward is a buffer that the trainer only passes on: its content differs between machines.

mod calls;
mod collective;
pub mod cpu;
pub mod cuda;
mod operands;
mod store;
mod timing;

pub use calls::{Compute, Memory};
pub use collective::{Alone, Collective};
pub use cpu_kernels::optimizer::AdamW;
pub use operands::{
    Activated, Attended, Attention, Classified, Classifier, Copies, Earlier, Embedded, Embedding, Function, Linear,
    Multiplied, Norm, NormKind, Normalized, Reduction, Rotation, Rows, TensorShare, Workload,
};
pub use store::{Merge, OptimizerShare, Quantity, Side, Squared, Store};
pub use timing::{Part, PartTimer, PartTiming, Stopwatch};
