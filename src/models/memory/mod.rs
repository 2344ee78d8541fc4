//! Memory of a layout in bytes, by device and category, computed from the model, the order of the ops, and what the training
//! software is known to allocate.
//!
//! The peak of each device counts: weights, gradients and optimizer states are always allocated; activations are what finished
//! ops save for later ones; buffers are the working memory of the running op, gathered, received or reduced data, and memory
//! outside of the framework's allocator.

mod experts;
mod held;
mod least;
mod llm_c;
mod model;
mod peak;
mod recomputed;
mod slices;
mod states;
mod units;

pub use experts::MixtureMemory;
pub use least::LeastMemory;
pub use model::MemoryModel;
pub use peak::{Peak, SavedActivations, peak, peak_at, peak_by};

use serde::Serialize;

/// Memory of a training step, per device of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Capacity or limit per device, in bytes.
    pub capacity_bytes: u64,
    /// Whether no device's total exceeds it.
    pub fits: bool,
    /// Per device of the pipeline; the ranks of its tensor-, context- and data-parallel groups are alike.
    pub per_device: Vec<DeviceMemory>,
}

/// Bytes of one device at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// Pipeline device, from 0.
    pub device: u32,
    /// Weights as products read them.
    pub weights: u64,
    /// Gradients, in the precision in which they accumulate.
    pub gradients: u64,
    /// Optimizer states and master weights.
    pub optimizer: u64,
    /// Activations that forwards keep for backwards.
    pub activations: u64,
    /// Working memory of the running op, gathered weights, messages, driver and libraries.
    pub buffers: u64,
    /// Part of `buffers`: weights of stages that FSDP has gathered, and gradients that it has not reduced.
    #[serde(skip_serializing_if = "is_zero")]
    pub unsharded: u64,
    /// Sum of all.
    pub total: u64,
    /// Its own capacity, if devices differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Breakdown of the numbers above, for mixtures of experts.
    #[serde(skip_serializing_if = "MixtureMemory::is_none")]
    pub of_which: MixtureMemory,
    /// Part of `total` that the framework's allocator hands out. The rest is fragmentation, driver, libraries and collectives.
    #[serde(skip)]
    pub allocated: u64,
}

impl DeviceMemory {
    /// Makes a device's memory; `buffers` come from the framework's allocator, `unmanaged` does not.
    pub(super) fn new(device: u32, states: [u64; 3], activations: u64, buffers: u64, unmanaged: u64) -> DeviceMemory {
        let [weights, gradients, optimizer] = states;
        let allocated = [weights, gradients, optimizer, activations, buffers].into_iter().fold(0, u64::saturating_add);
        let (buffers, total) = (buffers.saturating_add(unmanaged), allocated.saturating_add(unmanaged));
        let of_which = MixtureMemory::default();
        let unsharded = 0;
        DeviceMemory {
            device,
            weights,
            gradients,
            optimizer,
            activations,
            buffers,
            unsharded,
            total,
            capacity_bytes: None,
            of_which,
            allocated,
        }
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Memory {
    /// Returns the device with the highest total, or the one with the least room if capacities differ; the first among equals.
    pub fn fullest(&self) -> DeviceMemory {
        let devices = self.per_device.iter().rev().copied();
        let taken = |device: &DeviceMemory| i128::from(device.total) - i128::from(device.capacity_bytes.unwrap_or(0));
        devices.max_by_key(taken).unwrap_or_default()
    }

    /// Returns the same memory with the capacity of each device.
    pub fn within_each(mut self, bytes: impl Fn(u32) -> u64) -> Memory {
        self.per_device.iter_mut().for_each(|device| device.capacity_bytes = Some(bytes(device.device)));
        let fullest = self.fullest();
        let capacity_bytes = fullest.capacity_bytes.unwrap_or(self.capacity_bytes);
        Memory { capacity_bytes, fits: fullest.total <= capacity_bytes, ..self }
    }

    /// Returns the capacity of all devices together.
    pub fn capacity(&self) -> u128 {
        let own = |device: &DeviceMemory| u128::from(device.capacity_bytes.unwrap_or(self.capacity_bytes));
        self.per_device.iter().map(own).sum()
    }

    /// Returns the same memory with a limit of `bytes`.
    pub fn within(self, bytes: u64) -> Memory {
        Memory { capacity_bytes: bytes, fits: self.fullest().total <= bytes, ..self }
    }
}
