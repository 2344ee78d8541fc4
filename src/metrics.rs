//! The figures of a timeline, each with the name of its definition. Published tables mix them, so all are always given.
//!
//! All are of the pipeline part: from time 0 to the end of the last F, I, W or B. Waits and transfers are never busy.

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
    /// When it is free again after that: its put may hold it up.
    pub free: u64,
}

impl Activity {
    /// What an engine has counted, where a device that has not started has `u64::MAX` for its first start; `free` is when it is free
    /// again.
    pub(crate) fn counted(self, free: u64) -> Activity {
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
    /// Highest number of activations held at once; 1 is what the device's whole share of layers keeps for one micro-batch.
    pub peak_activations: f64,
}

/// The same order where every op takes what it typically takes: a bound of what ops typically take is held against this.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypicalSpeed {
    /// Its makespan.
    pub makespan: f64,
    /// That makespan / lower_bound - 1.
    pub gap_to_bound: Option<f64>,
}

/// What a makespan is held against, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Yardstick {
    /// No order of the same ops has a smaller makespan, by what they typically take.
    pub lower_bound: Option<u64>,
    /// The same of orders whose backwards are whole or split as they like.
    pub lower_bound_if_split: Option<u64>,
    /// The makespan of this order by what its ops typically take, where the machine's speed varied.
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
    /// No order of these ops, on this placement and under these costs, can have a smaller makespan. Measured costs are those at the machine's
    /// typical speed: hold the makespan at that speed against it, where there is one. `null` where none was computed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lower_bound: Option<f64>,
    /// makespan / lower_bound - 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gap_to_bound: Option<f64>,
    /// The lower bound of orders on this placement and under these costs whose backwards are whole or split into I and W as they
    /// like. `null` where none was computed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lower_bound_if_split: Option<f64>,
    /// Where the machine's speed varied, and the figures are those under its speed as it went: the makespan at typical speed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub typical_speed: Option<TypicalSpeed>,
    /// The same by device.
    pub per_device: Vec<DeviceMetrics>,
}

impl Metrics {
    /// The most that a device holds.
    pub fn peak_activations(&self) -> f64 {
        self.per_device.iter().map(|d| d.peak_activations).fold(0.0, f64::max)
    }

    /// How far this order is from the lower bound, both at one speed of the machine.
    pub fn gap(&self) -> Option<f64> {
        self.typical_speed.map_or(self.gap_to_bound, |typical| typical.gap_to_bound)
    }

    /// The figures of `devices` (with the peaks of their activations), `ticks_per_unit` ticks being one time unit.
    /// A pipeline that takes no time at all has no bubble.
    pub fn new(devices: &[Activity], peaks: &[f64], held_against: Yardstick, ticks_per_unit: f64) -> Metrics {
        let longest = |f: &dyn Fn(&Activity) -> u64| devices.iter().map(f).max().unwrap_or(0);
        let makespan = longest(&|d| d.last_end);
        let span = longest(&|d| d.last_end - d.first_start);
        let ideal = longest(&|d| d.busy);
        let busy: u128 = devices.iter().map(|d| u128::from(d.busy)).sum();
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let whole = devices.len() as f64 * makespan as f64;
        let bubble = ratio(whole - busy as f64, whole);
        let unit = |ticks: u64| ticks as f64 / ticks_per_unit;
        let Yardstick { lower_bound, lower_bound_if_split, typical_makespan } = held_against;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_devices_by_hand() {
        let devices = [(6, 0, 10), (8, 1, 9)].map(|(busy, first_start, last_end)| Activity {
            busy,
            first_start,
            last_end,
            free: last_end,
        });
        let bound = |ticks: u64| Yardstick { lower_bound: Some(ticks), ..Yardstick::default() };
        let m = Metrics::new(&devices, &[1.0, 2.0], bound(9), 2.0);
        assert_eq!((m.makespan, m.span, m.ideal, m.bubble), (5.0, 5.0, 4.0, 6.0 / 20.0));
        assert_eq!((m.span_bubble, m.bubble_over_ideal), (0.2, 0.25));
        assert_eq!((m.lower_bound, m.gap_to_bound), (Some(4.5), Some(1.0 / 9.0)));
        assert_eq!(m.per_device[1].idle, 1.0);
        assert_eq!((m.gap(), m.typical_speed), (m.gap_to_bound, None));
        let noisy = Yardstick { typical_makespan: Some(12), ..bound(8) };
        let noisy = Metrics::new(&devices, &[1.0, 2.0], noisy, 2.0);
        assert_eq!((noisy.gap_to_bound, noisy.gap()), (Some(0.25), Some(0.5)), "a gap is between times at one speed");
        let beaten = Metrics::new(&devices, &[1.0, 2.0], bound(20), 2.0);
        assert_eq!((beaten.lower_bound, beaten.gap_to_bound), (Some(10.0), Some(-0.5)), "a bound is not hidden");
    }
}
