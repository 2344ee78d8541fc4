//! What devices take: bytes by name.

use serde::Serialize;

/// The memory of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What a device has, or may use, in bytes.
    pub capacity_bytes: u64,
    /// Whether every device's total is at most that.
    pub fits: bool,
    /// By device of the pipeline; the ranks of its tensor-, context- and data-parallel groups are alike.
    pub per_device: Vec<DeviceMemory>,
}

/// Bytes of one device at the moment at which it holds most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// The device.
    pub device: u32,
    /// Weights as products read them.
    pub weights: u64,
    /// Their gradients.
    pub gradients: u64,
    /// The optimizer's states and its own copy of the weights.
    pub optimizer: u64,
    /// What finished forwards and backwards hold for those to come.
    pub activations: u64,
    /// What the op at hand needs, what is gathered, sent and received, the driver and libraries.
    pub buffers: u64,
    /// All of them.
    pub total: u64,
    /// Of the total: what the framework's allocator has handed out. The rest are its gaps, the driver, libraries and collectives.
    #[serde(skip)]
    pub allocated: u64,
}

impl DeviceMemory {
    /// `buffers` are handed out by the framework's allocator, what is `outside` is not.
    pub(super) fn new(device: u32, states: [u64; 3], activations: u64, buffers: u64, outside: u64) -> DeviceMemory {
        let [weights, gradients, optimizer] = states;
        let allocated = [weights, gradients, optimizer, activations, buffers].into_iter().fold(0, u64::saturating_add);
        let (buffers, total) = (buffers.saturating_add(outside), allocated.saturating_add(outside));
        DeviceMemory { device, weights, gradients, optimizer, activations, buffers, total, allocated }
    }
}

impl Memory {
    /// The device that takes most; the first of equals.
    pub fn fullest(&self) -> DeviceMemory {
        let devices = self.per_device.iter().rev().copied();
        devices.max_by_key(|device| device.total).unwrap_or_default()
    }

    /// The same where a device may use `bytes`.
    pub fn within(self, bytes: u64) -> Memory {
        Memory { capacity_bytes: bytes, fits: self.fullest().total <= bytes, ..self }
    }
}
