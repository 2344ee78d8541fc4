//! What a log says for or against a candidate.

use pipesim_answer::step_estimate::StepEstimate;
use pipesim_jobs::Measurement;
use serde::Serialize;
use std::fmt;

/// What a log says about a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Whether it is for the candidate.
    pub confirms: bool,
    /// The numbers.
    pub why: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.confirms { "for it" } else { "against it" }, self.why)
    }
}

/// Least relative difference of two predicted peaks that a log can tell apart.
const APART: f64 = 0.15;

impl Evidence {
    /// Returns what a log says about the candidate called `name`, whose step is `then` instead of `now`, on GPUs with this power limit.
    pub fn of(name: &str, now: &StepEstimate, then: &StepEstimate, log: &Measurement, watts: f64) -> Option<Evidence> {
        match name {
            "power" => log
                .power_w
                .map(|power| Evidence { confirms: power > 0.93 * watts, why: format!("{power:.0} W of {watts:.0} W") }),
            "data-overlap" => log.timers.get("all-grads-sync").map(|timer| {
                let (found, extra) = (1e-3 * timer.max_ms, then.iteration_s - now.iteration_s);
                Evidence { confirms: found > extra / 2.0, why: format!("all-grads-sync takes {found:.2} s") }
            }),
            "recompute-full" | "recompute-none" => passes(name, log).or_else(|| memory(now, then, log)),
            _ => memory(now, then, log),
        }
    }
}

/// A backward takes about two forwards, three with full recomputation.
fn passes(name: &str, log: &Measurement) -> Option<Evidence> {
    let timer = |name: &str| log.timers.get(name).map(|timer| timer.max_ms).filter(|ms| *ms > 0.0);
    let ratio = timer("backward-compute")? / timer("forward-compute")?;
    let confirms = (ratio > 2.5) == (name == "recompute-full");
    Some(Evidence { confirms, why: format!("a backward takes {ratio:.1} forwards") })
}

/// Compares the allocated memory with both predicted peaks, if they differ enough.
fn memory(now: &StepEstimate, then: &StepEstimate, log: &Measurement) -> Option<Evidence> {
    let found = *log.allocated_bytes.values().max()? as f64;
    let [now, then] = [now, then].map(|estimate| estimate.memory.fullest().total as f64);
    if (now / then).ln().abs() < APART {
        return None;
    }
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let why =
        format!("{:.1} GiB allocated, {:.1} GiB predicted with it, {:.1} GiB without", gib(found), gib(then), gib(now));
    Some(Evidence { confirms: (found / then).ln().abs() < (found / now).ln().abs(), why })
}
