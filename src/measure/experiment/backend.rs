//! What trainings run on: devices, and the link between them.

use pipesim_exec::Gpus;
use pipesim_exec::link::{LINKS, LinkKind};
use pipesim_schedule::delivery::Delivery;

/// The devices, and what moves messages between them; by default CPU threads and shared memory.
#[derive(Default)]
pub struct Backend {
    /// The devices.
    pub devices: Devices,
    /// What moves messages between them.
    pub transport: Transport,
}

/// The devices of this rank.
#[derive(Default)]
pub enum Devices {
    /// CPU threads.
    #[default]
    Cpu,
    /// GPUs.
    Cuda(Gpus),
}

/// A link with its guarantees.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// The link.
    pub link: &'static LinkKind,
    /// Its guarantees; between CPU threads they are emulated.
    pub delivery: Delivery,
}

impl Default for Transport {
    fn default() -> Transport {
        Transport { link: &LINKS[0], delivery: Delivery::OneSided }
    }
}
