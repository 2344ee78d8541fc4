//! What links need of the devices that they are to join.

use crate::ranks::Ranks;

/// Who is to be joined.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Whether devices are GPUs.
    pub gpus: bool,
    /// The processes.
    pub ranks: &'a Ranks,
    /// How many devices in all processes.
    pub devices: u32,
    /// Devices on each GPU, where GPUs are parted.
    pub slices: Option<u32>,
}

/// Why a link cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was expected, what was found, what to do.
    pub why: String,
    /// The machine lacks something; else what was asked for makes no sense.
    pub is_lack: bool,
}

impl Refusal {
    pub fn of(why: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), is_lack: false }
    }
}
