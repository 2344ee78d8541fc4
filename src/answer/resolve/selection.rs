//! A request for a schedule.

use super::{Error, Files, Host, PlatformOptions, usage};
use pipesim_language::Budget;
use pipesim_schedule::activation::Keep;
use pipesim_schedule::fsdp::{Fsdp, FsdpError};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::Order;
use pipesim_schedule::schedule::{Overlap, Schedule};
use pipesim_schedule::slices::Slices;
use std::collections::BTreeMap;
use std::fmt;

/// Numbers of devices and micro-batches, and options of a schedule.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Number of devices, p.
    pub devices: u32,
    /// Number of micro-batches, m.
    pub microbatches: u32,
    /// Stages per device, if the schedule leaves them open.
    pub chunks: Option<u32>,
    /// The schedule's own options.
    pub options: BTreeMap<String, String>,
    /// How sequences are cut into slices, if not into equal ones.
    pub slices: Option<Slices>,
    /// Whether schedules ignore chunks and options that they do not have.
    pub lenient: bool,
    /// Maximum activations per device, in units of its whole share of layers for one micro-batch: limits searches.
    pub memory_cap: Option<f64>,
    /// Search effort multiplier.
    pub effort: u32,
    /// Maximum activations that fit into a device's memory, in the same units: limits searches.
    pub room: Option<f64>,
    /// Whether to optimize the layers per stage for the iteration, or the makespan without hardware.
    pub balance: bool,
    /// Meaning of overlapped pairs.
    pub overlap: Overlap,
    /// How FSDP gathers parameters between ops, if it does; replaces what a file says.
    pub fsdp: Option<Fsdp>,
    pub machine: PlatformOptions,
    /// Limits for the evaluation of a schedule file.
    pub budget: Budget,
    /// Services of the machine.
    pub host: &'static dyn Host,
}

/// A deviation from the request that is not an error.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A file's text was interpreted differently, or partly ignored.
    Imported(String),
    /// A schedule with a fixed order exceeds the cap.
    AboveCap { schedule: String, peak: f64, cap: f64 },
    /// `auto` found no schedule that fits into memory, and chose the one that needs the least.
    NoneFits {
        schedule: String,
        /// Memory of its fullest device, in bytes.
        bytes: u64,
        /// Capacity of a device, in bytes.
        capacity: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Imported(text) => write!(f, "{text}"),
            Warning::AboveCap { schedule, peak, cap } => {
                write!(f, "{schedule} holds {peak} activations, above `memory-cap` {cap}; its order is fixed")
            }
            Warning::NoneFits { schedule, bytes, capacity } => {
                let [bytes, capacity] = [bytes, capacity].map(|bytes| *bytes as f64 / f64::from(1 << 30));
                write!(
                    f,
                    "no schedule fits into {capacity:.1} GiB; auto chose the one that needs the least: {schedule}, {bytes:.1} GiB"
                )
            }
        }
    }
}

impl Selection {
    /// A request with defaults for everything else; files are read, evaluations are not watched.
    pub fn new(devices: u32, microbatches: u32) -> Selection {
        Selection {
            devices,
            microbatches,
            chunks: None,
            options: BTreeMap::new(),
            slices: None,
            lenient: false,
            memory_cap: None,
            effort: 1,
            room: None,
            balance: false,
            overlap: Overlap::default(),
            fsdp: None,
            machine: PlatformOptions::default(),
            budget: Budget::default(),
            host: &Files,
        }
    }

    /// Returns the selection without chunks and the schedule's own options, for another schedule.
    pub fn without_options(&self) -> Selection {
        Selection { chunks: None, options: BTreeMap::new(), slices: None, ..self.clone() }
    }

    /// Returns the limit for searches.
    pub(super) fn cap(&self) -> Option<f64> {
        self.memory_cap.or(self.room)
    }

    /// Returns the order with the cap applied to searches and rules.
    pub fn capped(&self, order: Order) -> Order {
        match (order, self.cap()) {
            (Order::Open(open), Some(cap)) => Order::Open(open.capped(cap)),
            (order, _) => order,
        }
    }

    /// Returns the schedule with the collectives that were asked for.
    ///
    /// # Errors
    /// As [`Fsdp::sharding`].
    pub(super) fn sharded(&self, schedule: Schedule) -> Result<Schedule, FsdpError> {
        let Some(fsdp) = &self.fsdp else { return Ok(schedule) };
        let sharding = fsdp.sharding(&schedule)?;
        Ok(schedule.with_sharding(Some(sharding)))
    }

    /// Rejects a schedule's own options if there is no schedule to use them.
    pub(super) fn no_options(&self, why: &str) -> Result<(), Error> {
        match self.options.keys().next() {
            Some(key) => {
                Err(usage(format!("no option '{key}' here: {why}; leave out `set`, or the options after the name")))
            }
            None => Ok(()),
        }
    }

    /// Returns a warning if a schedule with a fixed order exceeds the cap.
    pub fn above_cap(&self, graph: &TaskGraph, keep: Keep) -> Option<Warning> {
        let (cap, schedule) = (self.memory_cap?, graph.schedule());
        let above = || Warning::AboveCap { schedule: schedule.name.clone(), peak: schedule.peak(keep), cap };
        (!schedule.keeps_cap(cap, keep)).then(above)
    }
}
