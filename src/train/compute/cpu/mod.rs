//! One CPU core in float32, over `cpu_kernels`. The arithmetic of a GPT-2 is llm.c's (<https://github.com/karpathy/llm.c>,
//! `train_gpt2.c`).

mod calls;
mod group;
mod machine;
mod pool;
mod slices;
mod tensor;

pub use group::{Group, GroupState};
pub use machine::{Cpu, STORAGE, storage};
pub use pool::Memories;
