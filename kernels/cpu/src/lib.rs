//! The float32 kernels of a GPT-2 or a Llama on one CPU core: what `pipesim` computes with when it trains on CPU threads.
//!
//! This crate has its own optimisation level, so that the rest of `pipesim` compiles faster. The arithmetic and the shapes
//! are the same as in llm.c (<https://github.com/karpathy/llm.c>, `train_gpt2.c`). All matrices are row-major; n is the number of tokens
//! (rows), B of sequences, T of tokens per sequence, C of channels, NH of heads, V of words. Slices of other lengths than
//! documented may panic.

pub mod attention;
pub mod embedding;
pub mod gelu;
pub mod instructions;
pub mod layernorm;
pub mod linear;
pub mod loss;
pub mod matrix;
pub mod optimizer;
mod pack;
mod prefetch;
pub mod product;
pub mod rmsnorm;
pub mod rotary;
pub mod swiglu;
mod tile;
pub mod vector;
