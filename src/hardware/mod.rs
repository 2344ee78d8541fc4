//! Hardware and training software as tables of numbers, embedded or from files.
//!
//! A file is TOML: `base = "h100-sxm"` (a name, or another file next to it), and any of [`Hardware::FIELDS`]; for software,
//! `base = "megatron-core"` and any of [`Stack::FIELDS`]. The embedded files are in the folder `hardware`, each number with its
//! source; `gpu` and `stacks/common` hold the common ones.

mod file;
mod interval;
mod machine;
mod products;
mod stack;

#[cfg(feature = "training")]
pub use file::toml;
pub use file::{Error, Files, hardware, hardware_file, hardware_with, stack, stack_file, stack_with};
pub use interval::IntervalClass;
pub use machine::{Field, Hardware};
pub use stack::Stack;

/// Embedded hardware: name and text of the file.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("gpu", include_str!("../../hardware/gpu.toml")),
    ("a100-sxm-80gb", include_str!("../../hardware/a100-sxm-80gb.toml")),
    ("a100-sxm-40gb", include_str!("../../hardware/a100-sxm-40gb.toml")),
    ("h100-sxm", include_str!("../../hardware/h100-sxm.toml")),
    ("h100-sxm-96gb-500w", include_str!("../../hardware/h100-sxm-96gb-500w.toml")),
    ("h200-sxm", include_str!("../../hardware/h200-sxm.toml")),
    ("b200", include_str!("../../hardware/b200.toml")),
    ("gb200", include_str!("../../hardware/gb200.toml")),
    ("gb300", include_str!("../../hardware/gb300.toml")),
    ("h100-pcie", include_str!("../../hardware/h100-pcie.toml")),
    ("h100-nvl", include_str!("../../hardware/h100-nvl.toml")),
    ("h800-sxm", include_str!("../../hardware/h800-sxm.toml")),
    ("h20", include_str!("../../hardware/h20.toml")),
    ("a800-sxm-80gb", include_str!("../../hardware/a800-sxm-80gb.toml")),
    ("l40s", include_str!("../../hardware/l40s.toml")),
    ("rtx-4090", include_str!("../../hardware/rtx-4090.toml")),
    ("b300", include_str!("../../hardware/b300.toml")),
    ("mi300x", include_str!("../../hardware/mi300x.toml")),
    ("mi325x", include_str!("../../hardware/mi325x.toml")),
    ("mi355x", include_str!("../../hardware/mi355x.toml")),
    ("cpu", include_str!("../../hardware/cpu.toml")),
];

/// Embedded training software: name and text of the file. The first holds what most of it shares.
pub(crate) const STACK_FILES: &[(&str, &str)] = &[
    ("common", include_str!("../../hardware/stacks/common.toml")),
    ("megatron-core", include_str!("../../hardware/stacks/megatron-core.toml")),
    ("megatron-bridge", include_str!("../../hardware/stacks/megatron-bridge.toml")),
    ("megatron-lm", include_str!("../../hardware/stacks/megatron-lm.toml")),
    ("megatron-zb", include_str!("../../hardware/stacks/megatron-zb.toml")),
    ("megatron-deepspeed", include_str!("../../hardware/stacks/megatron-deepspeed.toml")),
    ("megatron-deepspeed-blocking", include_str!("../../hardware/stacks/megatron-deepspeed-blocking.toml")),
    ("fsdp", include_str!("../../hardware/stacks/fsdp.toml")),
    ("torchtitan", include_str!("../../hardware/stacks/torchtitan.toml")),
    ("automodel", include_str!("../../hardware/stacks/automodel.toml")),
    ("nanotron", include_str!("../../hardware/stacks/nanotron.toml")),
    ("jax", include_str!("../../hardware/stacks/jax.toml")),
    ("llm.c", include_str!("../../hardware/stacks/llm.c.toml")),
    ("pipesim", include_str!("../../hardware/stacks/pipesim.toml")),
    ("scaling", include_str!("../../hardware/stacks/scaling.toml")),
    ("scaling-flash-2", include_str!("../../hardware/stacks/scaling-flash-2.toml")),
    ("scaling-flash-1", include_str!("../../hardware/stacks/scaling-flash-1.toml")),
    ("scaling-fused", include_str!("../../hardware/stacks/scaling-fused.toml")),
    ("scaling-torch", include_str!("../../hardware/stacks/scaling-torch.toml")),
];

/// Returns the names of the embedded hardware.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name).filter(|name| *name != "gpu")
}
