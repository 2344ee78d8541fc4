//! Hardware and training software as tables of numbers, embedded or from files.
//!
//! A file is TOML: `base = "h100-sxm"` (a name, or another file next to it), and any of [`Hardware::FIELDS`]. The embedded files
//! are in the folder `hardware`, each number with its source; `gpu` holds the common numbers.

mod file;
mod machine;
mod stack;

#[cfg(feature = "training")]
pub use file::toml;
pub use file::{Error, hardware, hardware_file, hardware_with, stack, stack_with};
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
    ("mi300x", include_str!("../../hardware/mi300x.toml")),
    ("cpu", include_str!("../../hardware/cpu.toml")),
];

/// Embedded training software: a TOML table per stack.
pub(crate) const STACKS: &str = include_str!("../../hardware/stacks.toml");

/// Returns the names of the embedded hardware.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name).filter(|name| *name != "gpu")
}
