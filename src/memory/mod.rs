//! Memory of a layout in bytes, by device and category, computed from the model, the order of the ops, and what the training
//! software is known to allocate.
//!
//! The peak of each device counts: weights, gradients and optimizer states are always allocated; activations are what finished
//! ops save for later ones; buffers are the working memory of the running op, gathered, received or reduced data, and memory
//! outside of the framework's allocator.

mod device;
mod held;
mod ledger;
mod llm_c;
mod states;

pub use device::{DeviceMemory, Memory};
pub use held::{Left, Peak, peak};
pub use ledger::Ledger;

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
