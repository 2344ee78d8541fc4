//! Figures of a timeline, each named after its definition. Published tables mix definitions, so all are always given.
//!
//! All figures refer to the pipeline: from time 0 to the end of the last F, I, W or B. Waits and transfers are never busy time.

use serde::{Deserialize, Serialize};

/// What one device did, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Time in F, I, W and B.
    pub busy: u64,
    /// Start of its first op.
    pub first_start: u64,
    /// End of its last op.
    pub last_end: u64,
    /// When it is free again after that; a put may hold it up, or a collective.
    pub free: u64,
    /// Time for which nothing but collectives kept it from computing.
    pub gated: u64,
}

impl Activity {
    /// Counts an op from `start` to `end`, which is the last so far.
    #[inline]
    pub fn ran(&mut self, start: u64, end: u64) {
        self.busy += end - start;
        self.first_start = self.first_start.min(start);
        self.last_end = end;
    }

    /// Completes the counts of an engine, which are `u64::MAX` for the first start of a device without ops; `free` is when the
    /// device is free again.
    pub fn counted(self, free: u64) -> Activity {
        let counted = if self.first_start == u64::MAX { Activity::default() } else { self };
        Activity { free, ..counted }
    }
}

/// Returns the end of the last op of `devices`.
pub fn makespan(devices: &[Activity]) -> u64 {
    devices.iter().map(|device| device.last_end).max().unwrap_or(0)
}

/// One device's part of [`Metrics`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceMetrics {
    /// The device, 0 to p - 1.
    pub device: u32,
    /// Time in F, I, W and B.
    pub busy: f64,
    /// makespan - busy.
    pub idle: f64,
    /// Largest number of activations held at once; 1 is the activation of all layers of the device for one micro-batch.
    pub peak_activations: f64,
}

/// The same order at the machine's median speed, to which the lower bound applies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypicalSpeed {
    /// In the timeline's unit.
    pub makespan: f64,
    /// That makespan / lower_bound - 1.
    pub gap_to_bound: Option<f64>,
}

/// What a makespan is compared with, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// Lower bound of the makespan of every order of the same ops, at the machine's median speed.
    pub lower_bound: Option<u64>,
    /// Lower bound of orders whose backwards may be whole or split.
    pub lower_bound_if_split: Option<u64>,
    /// Makespan of this order at the machine's median speed, if the speed varied.
    pub typical_makespan: Option<u64>,
}

/// The figures of a timeline, in its time unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Time 0 to the end of the last op.
    pub makespan: f64,
    /// Longest (last end - first start) over devices.
    pub span: f64,
    /// The busiest device's busy time.
    pub ideal: f64,
    /// 1 - sum of busy / (p * makespan).
    pub bubble: f64,
    /// (span - ideal) / span: the zero-bubble papers' "bubble rate".
    pub span_bubble: f64,
    /// (makespan - ideal) / ideal.
    pub bubble_over_ideal: f64,
    /// 1 - bubble.
    pub efficiency: f64,
    /// Lower bound of the makespan of every order of these ops with this placement and these costs. Measured costs apply to the
    /// machine's median speed: compare `typical_speed.makespan` if it is given. `null` if not computed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lower_bound: Option<f64>,
    /// makespan / lower_bound - 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gap_to_bound: Option<f64>,
    /// Lower bound of orders whose backwards may be whole or split into I and W. `null` if not computed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lower_bound_if_split: Option<f64>,
    /// The makespan at the machine's median speed, if the other figures are at its varying speed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub typical_speed: Option<TypicalSpeed>,
    /// By device.
    pub per_device: Vec<DeviceMetrics>,
}

impl Metrics {
    /// Returns the largest peak of activations of any device.
    pub fn peak_activations(&self) -> f64 {
        self.per_device.iter().map(|d| d.peak_activations).fold(0.0, f64::max)
    }

    /// Returns the gap between this order and the lower bound, both at the same speed of the machine.
    pub fn gap(&self) -> Option<f64> {
        self.typical_speed.map_or(self.gap_to_bound, |typical| typical.gap_to_bound)
    }

    /// Takes bubble and efficiency over the devices `recorded` alone; the others would count as idle.
    pub(crate) fn leave_out_others(&mut self, recorded: &[u32]) {
        let busy: f64 = recorded.iter().map(|&device| self.per_device[device as usize].busy).sum();
        let whole = recorded.len() as f64 * self.makespan;
        self.bubble = if whole > 0.0 { 1.0 - busy / whole } else { 0.0 };
        self.efficiency = 1.0 - self.bubble;
    }

    /// Computes the figures of `devices` and the `peaks` of their activations; one time unit is `ticks_per_unit` ticks. The bubble
    /// of a pipeline that takes no time is 0.
    pub fn new(devices: &[Activity], peaks: &[f64], reference: Reference, ticks_per_unit: f64) -> Metrics {
        let longest = |f: &dyn Fn(&Activity) -> u64| devices.iter().map(f).max().unwrap_or(0);
        let makespan = longest(&|d| d.last_end);
        let span = longest(&|d| d.last_end - d.first_start);
        let ideal = longest(&|d| d.busy);
        let busy: u128 = devices.iter().map(|d| u128::from(d.busy)).sum();
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let whole = devices.len() as f64 * makespan as f64;
        let bubble = ratio(whole - busy as f64, whole);
        let unit = |ticks: u64| ticks as f64 / ticks_per_unit;
        let Reference { lower_bound, lower_bound_if_split, typical_makespan } = reference;
        let gap = |makespan: u64| {
            lower_bound.map(|bound| ratio((i128::from(makespan) - i128::from(bound)) as f64, bound as f64))
        };
        let typical = |makespan: u64| TypicalSpeed { makespan: unit(makespan), gap_to_bound: gap(makespan) };
        let per_device = devices.iter().zip(peaks).enumerate().map(|(device, (d, &peak_activations))| DeviceMetrics {
            device: device as u32,
            busy: unit(d.busy),
            idle: unit(makespan - d.busy),
            peak_activations,
        });
        Metrics {
            makespan: unit(makespan),
            span: unit(span),
            ideal: unit(ideal),
            bubble,
            span_bubble: ratio((span - ideal) as f64, span as f64),
            bubble_over_ideal: ratio((makespan - ideal) as f64, ideal as f64),
            efficiency: 1.0 - bubble,
            lower_bound: lower_bound.map(unit),
            gap_to_bound: gap(makespan),
            typical_speed: typical_makespan.map(typical),
            lower_bound_if_split: lower_bound_if_split.map(unit),
            per_device: per_device.collect(),
        }
    }
}
