//! Training on the CPU and on GPUs, or on stand-ins for NVIDIA's libraries: numbers against PyTorch's, bits against bits.

mod cached;
mod check;
mod checkpoints;
mod cuda;
mod cudnn;
mod doctor;
mod elf;
mod emulator_driver;
mod experiment;
mod headers;
mod kernels;
mod libraries;
mod llama;
mod machine_code;
mod measurements;
mod mesh;
mod model;
mod modules;
mod nvrtc;
mod pipeline;
mod ranks;
mod reference;
mod run;
mod samples;
mod slices;
mod tensor;
mod threads;
mod training_loop;
mod validation;
mod work;

#[path = "../support/mod.rs"]
mod support;
