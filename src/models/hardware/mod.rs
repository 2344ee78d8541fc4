//! Hardware and training software as tables of numbers, embedded or from files.
//!
//! A file is TOML: `base = "h100-sxm"` (a name, or another file next to it), and any of [`Hardware::FIELDS`]; for software,
//! `base = "megatron-core"` and any of [`Stack::FIELDS`]. The embedded files are in the folder `hardware`, each number with its
//! source; `gpu` and `stacks/common` hold the common ones.

mod devices;
mod file;
mod interval;
mod machine;
mod products;
mod slow_link;
mod stack;

pub use devices::kinds;
pub use file::toml;
pub use file::{Error, Files, hardware, hardware_file, hardware_with, stack, stack_file, stack_with};
pub use interval::IntervalClass;
pub use machine::{Field, Hardware};
pub use slow_link::SlowLink;
pub use stack::Stack;

/// Name and text of the embedded files in a folder.
macro_rules! embedded {
    ($folder:literal: $($name:literal)+) => {
        [$(($name, include_str!(concat!("../../../hardware/", $folder, $name, ".toml")))),+]
    };
}

/// Embedded hardware; the first holds common numbers.
pub(crate) const FILES: &[(&str, &str)] = &embedded!(
    "": "gpu" "a100-sxm-80gb" "a100-sxm-40gb" "h100-sxm" "h100-sxm-96gb-500w" "h200-sxm" "b200" "gb200" "gb300" "h100-pcie" "h100-nvl"
    "h800-sxm" "h20" "a800-sxm-80gb" "l40s" "rtx-4090" "b300" "mi300x" "mi325x" "mi355x" "gh200" "gh200-144gb" "cpu"
);

/// Embedded training software; the first holds what most of it shares.
pub(crate) const STACK_FILES: &[(&str, &str)] = &embedded!(
    "stacks/": "common" "megatron-core" "megatron-bridge" "megatron-lm" "megatron-zb" "megatron-deepspeed" "megatron-deepspeed-blocking"
    "fsdp" "torchtitan" "automodel" "nanotron" "jax" "llm.c" "pipesim" "scaling" "scaling-flash-2" "scaling-flash-1" "scaling-fused"
    "scaling-torch" "megatron-core-bf16-gradients"
);

/// Names of the embedded training software; the first is the default.
pub const STACKS: [&str; STACK_FILES.len() - 1] = {
    let mut names = [""; STACK_FILES.len() - 1];
    let mut number = 0;
    while number < names.len() {
        names[number] = STACK_FILES[number + 1].0;
        number += 1;
    }
    names
};

/// Returns the names of the embedded hardware.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().skip(1).map(|(name, _)| *name)
}
