//! That a layout does not fit into memory, and the smallest change that makes it fit: in words.

use crate::memory::DeviceMemory;
use serde::Serialize;
use std::fmt;

/// Most changes at a time that are tried.
pub(crate) const MOST_CHANGES: usize = 3;

/// That a layout does not fit, and what would.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Misfit {
    /// The schedule.
    pub schedule: String,
    /// The device that takes most.
    pub device: u32,
    /// What it takes, in bytes.
    pub bytes: u64,
    /// What it has.
    pub capacity_bytes: u64,
    /// The fewest changes that make all devices fit, on as many GPUs where that can be; of several the one whose step is shortest, a
    /// GPU's time counted.
    pub remedy: Option<Remedy>,
    #[serde(skip)]
    pub(crate) fullest: DeviceMemory,
    /// GPUs of the layout asked for.
    #[serde(skip)]
    pub(crate) gpus: u64,
}

/// A layout that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// The options to change: `--recompute full --zero 1`.
    pub change: String,
    /// What the fullest device takes then, in bytes.
    pub bytes: u64,
    /// How long an iteration lasts then.
    pub iteration_s: f64,
    /// GPUs in all.
    pub gpus: u64,
}

/// Bytes for people: `1.5 GiB`, `12 MiB`.
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
                    "the smallest change that makes it fit{more}: {change} ({}, {iteration_s:.3} s an iteration on {gpus} GPUs)",
                    in_words(*bytes)
                )
            }
            None => {
                write!(
                    f,
                    "no {MOST_CHANGES} changes of recompute, ZeRO, micro-batch, --tp and --stages were found that make it fit"
                )
            }
        }
    }
}
