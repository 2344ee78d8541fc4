//! How much memory a layout takes, in bytes, by device and by name: before anything is allocated, from the model's anatomy, the
//! order of the schedule's ops, and what the training software is known to keep.
//!
//! Of each device the moment counts at which it holds most: weights, gradients and optimizer states stand all the time;
//! activations are what finished ops hold for those to come; buffers are what the op at hand needs besides, what is gathered,
//! received or reduced, and what lies outside of the framework's allocator.

mod device;
mod held;
mod ledger;
mod llm_c;
mod states;

pub use device::{DeviceMemory, Memory};
pub use held::{Left, Peak, peak};
pub use ledger::Ledger;

/// The memory that `model` takes on `hardware` under `layout`, its layers split into `stages`, in the order of `graph`.
///
/// # Errors
/// The layout's software is unknown.
#[cfg(feature = "internals")]
pub fn memory(
    model: &crate::anatomy::transformer::Config,
    hardware: &crate::hardware::Hardware,
    layout: &crate::layout::Layout,
    stages: &[crate::anatomy::Stage],
    graph: &crate::graph::TaskGraph,
) -> Result<Memory, crate::hardware::Error> {
    let ledger = Ledger::new(model, layout, &crate::hardware::stack(&layout.stack)?);
    Ok(ledger.memory(hardware.memory_bytes(), stages, graph.schedule()))
}
