use crate::memory::DeviceMemory;
use serde::Serialize;
use std::fmt;

/// Maximum number of combined changes.
pub(crate) const MOST_CHANGES: usize = 3;

/// A layout that does not fit into memory, with a suggestion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Misfit {
    /// Name of the schedule.
    pub schedule: String,
    /// Device with the highest total.
    pub device: u32,
    /// Its total, in bytes.
    pub bytes: u64,
    /// Capacity per device, in bytes.
    pub capacity_bytes: u64,
    /// The fewest changes that make all devices fit, without more GPUs if possible; among several, the fastest step per GPU.
    pub remedy: Option<Remedy>,
    #[serde(skip)]
    pub(crate) fullest: DeviceMemory,
    /// GPUs of the requested layout.
    #[serde(skip)]
    pub(crate) gpus: u64,
}

/// Changes that make a layout fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// Options to change, such as `--recompute full --zero 1`.
    pub change: String,
    /// Highest total of a device, in bytes.
    pub bytes: u64,
    /// Time of an iteration, in seconds.
    pub iteration_s: f64,
    /// Total number of GPUs.
    pub gpus: u64,
}

/// Formats bytes: `1.5 GiB`, `12 MiB`.
fn in_words(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib < 1.0 { format!("{:.0} MiB", gib * 1024.0) } else { format!("{gib:.1} GiB") }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceMemory { weights, gradients, optimizer, activations, buffers, .. } = self.fullest;
        let named = [
            ("weights", weights),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("activations", activations),
            ("buffers", buffers),
        ];
        let names = named.map(|(name, bytes)| format!("{name} {}", in_words(bytes))).join(", ");
        write!(
            f,
            "{} does not fit: device {} takes {} of {} ({names}); ",
            self.schedule,
            self.device,
            in_words(self.bytes),
            in_words(self.capacity_bytes)
        )?;
        match &self.remedy {
            Some(Remedy { change, bytes, iteration_s, gpus }) => {
                let more = if *gpus > self.gpus { " needs more GPUs" } else { "" };
                write!(
                    f,
                    "the smallest change that makes it fit{more}: {change} ({}, {iteration_s:.3} s per iteration on {gpus} GPUs)",
                    in_words(*bytes)
                )
            }
            None => {
                write!(
                    f,
                    "no combination of {MOST_CHANGES} changes of recompute, ZeRO, micro-batch, --tp and --stages makes it fit"
                )
            }
        }
    }
}
