//! Links, which move messages between devices: the trait of all links, and a table of the available ones with their
//! requirements.

mod local;
mod table;

pub use local::{Local, one_machine};
pub use table::{LINKS, LinkKind, Transport};

use super::message::Message;
use crate::ranks::Ranks;
use anyhow::Result;
use std::collections::BTreeMap;

/// A device's end of a link. Between GPUs calls only enqueue unless stated otherwise, and "now" is the current end of the compute
/// stream.
pub trait Link: Send {
    /// Location of a message.
    type Location;
    /// A point in time on the device, readable after the step.
    type Timestamp;

    /// Begins a step on the device's thread, when nothing is enqueued; with `forwards_only` one without backwards and their messages. May
    /// wait for other devices.
    fn begin(&mut self, _forwards_only: bool) -> Result<()> {
        Ok(())
    }

    /// Returns where to write the message.
    fn send_buffer(&mut self, message: Message) -> Result<Self::Location>;

    /// Sends the current content of the send buffer as soon as the delivery allows it.
    fn put(&mut self, message: Message) -> Result<()>;

    /// Waits for the message, and returns its location. In an exchange both sides put first.
    fn wait(&mut self, message: Message) -> Result<Self::Location>;

    /// Releases a message that is no longer needed.
    fn release(&mut self, message: Message) -> Result<()>;

    /// Takes the start and end of each op's put, by op. Empty if puts complete within the call.
    fn sent(&mut self) -> BTreeMap<usize, [Self::Timestamp; 2]> {
        BTreeMap::new()
    }

    /// Aborts all transfers without waiting, after a device failed here or elsewhere.
    fn abort(&mut self) {}

    /// Whether everything on the link's own streams is done. Fails if it cannot complete any more.
    fn is_done(&mut self) -> Result<bool> {
        Ok(true)
    }
}

/// The devices that a link would connect.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Whether the devices are GPUs.
    pub gpus: bool,
    pub ranks: &'a Ranks,
    /// Number of devices in all processes.
    pub devices: u32,
    /// Devices per GPU, if GPUs are split.
    pub slices: Option<u32>,
}

/// Why a link cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was expected, what was found, and what to do.
    pub why: String,
    /// Whether the machine lacks something; otherwise the request is inconsistent.
    pub is_unavailable: bool,
}

impl Refusal {
    pub fn of(why: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), is_unavailable: false }
    }
}
