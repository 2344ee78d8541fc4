//! How a session treats its threads.

use super::watch::Fault;
use crate::delivery::Delivery;
use std::time::Duration;

/// How a session treats its threads.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Pin device r to core r: for measuring, where there are cores enough.
    pub pin: bool,
    /// How long a waiting thread spins before it parks.
    pub spin: Duration,
    /// Longest wait of a device for its data.
    pub timeout: Duration,
    /// A fault to inject.
    pub fault: Option<Fault>,
    /// How the link delivers.
    pub delivery: Delivery,
}
