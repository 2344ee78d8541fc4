//! What is asked of a schedule.

use super::{Error, Files, Host, MachineOptions};
use crate::activation::Keep;
use crate::dsl::Budget;
use crate::graph::TaskGraph;
use crate::open::Order;
use crate::schedule::Overlap;
use std::collections::BTreeMap;
use std::fmt;

/// For how many devices and micro-batches a schedule is wanted, with which options.
#[derive(Clone, Debug)]
pub struct Selection {
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// Stages a device, where the schedule leaves it open.
    pub chunks: Option<u32>,
    /// Options of the schedule's own.
    pub options: BTreeMap<String, String>,
    /// Chunks and options are asked of several schedules: one that does not know them goes without.
    pub lenient: bool,
    /// Most activations that a device may hold, in units of its whole share of layers for one micro-batch: bounds what is
    /// searched.
    pub memory_cap: Option<f64>,
    /// How many times the usual work searches do.
    pub effort: u32,
    /// Most activations for which a device has room, in the same units, where memory is known in bytes: bounds what is searched.
    pub room: Option<f64>,
    /// Whether the layers are split among the stages so that the makespan is shortest.
    pub balance: bool,
    /// What overlapped pairs mean.
    pub overlap: Overlap,
    /// What the machine does beyond costs.
    pub machine: MachineOptions,
    /// What evaluating a schedule file may use up.
    pub budget: Budget,
    /// What the machine does for it.
    pub host: &'static dyn Host,
}

/// Something that is not as one may expect, and no error.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A file's text was understood otherwise than it stands there, or left out.
    Imported(String),
    /// A schedule that costs do not decide holds more than the cap.
    AboveCap {
        /// Its name.
        schedule: String,
        /// Activations that it holds.
        peak: f64,
        /// The cap.
        cap: f64,
    },
    /// `auto` found no schedule that fits into memory, and took the one that needs least.
    NoneFits {
        /// Its name.
        schedule: String,
        /// What its fullest device takes, in bytes.
        bytes: u64,
        /// What a device has, in bytes.
        capacity: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Imported(text) => write!(f, "{text}"),
            Warning::AboveCap { schedule, peak, cap } => {
                write!(f, "{schedule} holds {peak} activations, above --memory-cap {cap}; its order is fixed")
            }
            Warning::NoneFits { schedule, bytes, capacity } => {
                let [bytes, capacity] = [bytes, capacity].map(|bytes| *bytes as f64 / f64::from(1 << 30));
                write!(
                    f,
                    "no schedule fits into {capacity:.1} GiB; auto takes the one that needs least: {schedule}, {bytes:.1} GiB"
                )
            }
        }
    }
}

impl Selection {
    /// `devices` and `microbatches`, everything else as the schedule has it; files are read, nothing is watched.
    pub fn new(devices: u32, microbatches: u32) -> Selection {
        Selection {
            devices,
            microbatches,
            chunks: None,
            options: BTreeMap::new(),
            lenient: false,
            memory_cap: None,
            effort: 1,
            room: None,
            balance: false,
            overlap: Overlap::default(),
            machine: MachineOptions::default(),
            budget: Budget::default(),
            host: &Files,
        }
    }

    /// The same without chunks and options of a schedule's own: for another schedule than the one asked for.
    pub fn without_options(&self) -> Selection {
        Selection { chunks: None, options: BTreeMap::new(), ..self.clone() }
    }

    /// What bounds a search.
    pub(super) fn cap(&self) -> Option<f64> {
        self.memory_cap.or(self.room)
    }

    /// The same order; what is searched or scheduled in it keeps the cap.
    pub fn capped(&self, order: Order) -> Order {
        match (order, self.cap()) {
            (Order::Open(open), Some(cap)) => Order::Open(open.capped(cap)),
            (order, _) => order,
        }
    }

    /// Refuses options of a schedule's own where there is none to have them.
    pub(super) fn no_options(&self, why: &str) -> Result<(), Error> {
        match self.options.keys().next() {
            Some(key) => Err(Error::Usage(format!(
                "no option '{key}' here: {why}; leave --set, or what stands after its name, out"
            ))),
            None => Ok(()),
        }
    }

    /// Says so where a schedule whose order costs do not decide exceeds the cap.
    pub fn above_cap(&self, graph: &TaskGraph, keep: Keep) -> Option<Warning> {
        let (cap, schedule) = (self.memory_cap?, graph.schedule());
        let above = || Warning::AboveCap { schedule: schedule.name.clone(), peak: schedule.peak(keep), cap };
        (!schedule.keeps_cap(cap, keep)).then(above)
    }
}
