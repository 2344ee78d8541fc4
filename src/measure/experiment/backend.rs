//! What trainings run on: devices, and the link between them.

use pipesim_exec::Gpus;
use pipesim_exec::link::Transport;

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
