//! Training on the CPU and on GPUs, or on stand-ins for NVIDIA's libraries: numbers against PyTorch's, bits against bits.

mod check;
mod checkpoints;
mod cuda;
mod elf;
mod emulator_driver;
mod experiment;
mod headers;
mod kernels;
mod libraries;
mod llama;
mod mesh;
mod model;
mod nvrtc;
mod pipeline;
mod reference;
mod run;
mod slices;
mod tensor;

#[path = "../support/mod.rs"]
mod support;
