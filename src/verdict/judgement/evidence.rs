//! What a log says for or against a candidate.

use super::change::Asked;
use super::part::Part;
use super::seconds::time;
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_jobs::Measurement;
use serde::{Deserialize, Serialize};
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

/// An argument that Megatron prints at the start of its log, and what its values say about a candidate.
#[derive(Debug, Deserialize)]
pub struct Argument {
    name: String,
    /// Values for the candidate.
    confirms: Vec<String>,
    /// Values against it; `None`: all others.
    excludes: Option<Vec<String>>,
}

/// A candidate as it is compared with a log.
pub struct Suspect<'a> {
    /// Its name.
    pub name: &'a str,
    /// The argument that decides it.
    pub argument: Option<&'a Argument>,
    /// The predicted step without it.
    pub now: &'a StepEstimate,
    /// The predicted step with it.
    pub then: &'a StepEstimate,
}

/// Least relative difference of two predicted peaks that a log can tell apart.
const APART: f64 = 0.15;
/// Shares of the power limit above which a GPU is throttled, and below which it is not.
const THROTTLED: f64 = 0.93;
const UNTHROTTLED: f64 = 0.8;
impl Suspect<'_> {
    /// Returns what a log says about the candidate: its arguments first, then its timers, then its memory.
    pub fn evidence(&self, asked: &Asked<'_>, log: &Measurement) -> Option<Evidence> {
        let ms = |name: &str| log.timers.get(name).map(|timer| timer.max_ms).filter(|ms| *ms > 0.0);
        let extra_s = self.then.iteration_s - self.now.iteration_s;
        let found = match self.name {
            "power" => self.ranks(asked, log).or_else(|| power(asked, log)),
            "data-overlap" => ms("all-grads-sync").map(|ms| Evidence {
                confirms: 1e-3 * ms > extra_s / 2.0,
                why: format!("all-grads-sync takes {:.2} s", 1e-3 * ms),
            }),
            "recompute-full" | "recompute-none" => self.passes(ms("backward-compute"), ms("forward-compute")),
            _ => None,
        };
        self.argument(log).or(found).or_else(|| self.elsewhere(log)).or_else(|| self.memory(log))
    }

    fn argument(&self, log: &Measurement) -> Option<Evidence> {
        let Argument { name, confirms, excludes } = self.argument?;
        let value = log.arguments.get(name)?;
        let is_for = confirms.contains(value);
        let is_against = excludes.as_ref().is_none_or(|all| all.contains(value));
        (is_for || is_against).then(|| Evidence { confirms: is_for, why: format!("{name} is {value}") })
    }

    /// Without a pipeline all ranks compute the same, so the slowest one stands out.
    fn ranks(&self, asked: &Asked<'_>, log: &Measurement) -> Option<Evidence> {
        let timer = log.timers.get("forward-compute").filter(|timer| timer.min_ms > 0.0)?;
        if asked.analytic.layout.pp > 1 {
            return None;
        }
        let slower = timer.max_ms / timer.min_ms;
        let needed = self.then.iteration_s / self.now.iteration_s;
        let why = format!("the slowest rank's forward takes {slower:.2} times as long as the fastest one's");
        Some(Evidence { confirms: slower - 1.0 > (needed - 1.0) / 2.0, why })
    }

    /// A candidate costs time in a part of the step, where the log shows most of the difference, or less than that candidate needs.
    fn elsewhere(&self, log: &Measurement) -> Option<Evidence> {
        let [now, then] = [self.now, self.then].map(|estimate| Part::all(&estimate.time_s, log));
        let costs = |(now, then): &(&Part, &Part)| then.predicted_s - now.predicted_s;
        let most = now.iter().zip(&then).max_by(|a, b| costs(a).total_cmp(&costs(b)))?;
        let part = most.0;
        let why = format!("{}: {}, {} predicted", part.name, time(part.measured_s), time(part.predicted_s));
        let more = part.measured_s - part.predicted_s;
        let is_against = more < costs(&most) / 2.0;
        let is_for = more > (log.median_s - self.now.iteration_s) / 2.0;
        (is_against || is_for).then_some(Evidence { confirms: !is_against, why })
    }

    /// A backward takes about two forwards, three with full recomputation.
    fn passes(&self, backward_ms: Option<f64>, forward_ms: Option<f64>) -> Option<Evidence> {
        let ratio = backward_ms? / forward_ms?;
        let confirms = (ratio > 2.5) == (self.name == "recompute-full");
        Some(Evidence { confirms, why: format!("a backward takes {ratio:.1} forwards") })
    }

    /// Compares the allocated memory with both predicted peaks, if they differ enough and one of them is right.
    fn memory(&self, log: &Measurement) -> Option<Evidence> {
        let found = *log.allocated_bytes.values().max()? as f64;
        let [now, then] = [self.now, self.then].map(|estimate| estimate.memory.fullest().total as f64);
        let off = |predicted: f64| (found / predicted).ln().abs();
        if (now / then).ln().abs() < APART || off(now).min(off(then)) > APART {
            return None;
        }
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let why = format!(
            "{:.1} GiB allocated, {:.1} GiB predicted with it, {:.1} GiB without",
            gib(found),
            gib(then),
            gib(now)
        );
        Some(Evidence { confirms: off(then) < off(now), why })
    }
}

fn power(asked: &Asked<'_>, log: &Measurement) -> Option<Evidence> {
    let (power, limit) = (log.power_w?, asked.analytic.machine.hardware.power_watts);
    let share = power / limit;
    let tells = !(UNTHROTTLED..=THROTTLED).contains(&share);
    tells.then(|| Evidence { confirms: share > THROTTLED, why: format!("{power:.0} W of {limit:.0} W") })
}
