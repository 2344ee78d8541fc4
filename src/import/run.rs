//! An imported run: a timeline per step, and what was recovered.

use super::clock::Clock;
use super::error::ImportError;
use pipesim_schedule::metrics::makespan;
use pipesim_schedule::timeline::{StepFigures, Timeline};
use serde::Serialize;

/// How many of the expected items were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub found: usize,
    pub expected: usize,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", grouped(self.found as u64), grouped(self.expected as u64))
    }
}

/// Writes a number with a comma between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The clock of one rank against the first rank's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankClock {
    pub device: u32,
    pub rank: u32,
    /// By how much it is ahead at the first event of its file, in ns.
    pub offset_ns: i64,
    /// How much faster it runs, in millionths.
    pub drift_ppm: f64,
    /// Whether messages tie it to the first rank; if not, its times are the times in its file.
    pub is_tied: bool,
}

impl RankClock {
    pub(super) fn new(device: u32, rank: u32, clock: &Clock, first: i64) -> RankClock {
        let offset_ns = clock.offset_at(first);
        RankClock { device, rank, offset_ns, drift_ppm: clock.drift * 1e6, is_tied: clock.is_tied }
    }
}

/// A run that was recovered from traces.
#[derive(Clone, Debug)]
pub struct Run {
    /// `PyTorch profiler`, `CSV`, ...
    pub format: &'static str,
    /// One timeline per step, in order; all have the figures of all steps.
    pub timelines: Vec<Timeline>,
    /// Index of the step that represents the run: the median of the steps that are recorded completely.
    pub median: usize,
    /// Ops, over all steps and the devices that have a file.
    pub ops: Count,
    /// Messages, over all steps and the pairs of devices that have files.
    pub messages: Count,
    /// Clocks of the devices that have a file; empty if all times are on one clock.
    pub clocks: Vec<RankClock>,
    /// The built-in schedule whose order the run has.
    pub order: Option<String>,
    /// What was odd, missing or left out, one sentence each.
    pub warnings: Vec<String>,
}

impl Run {
    /// Returns the timeline of step `number` or, without one, of the median step.
    ///
    /// # Errors
    /// There is no such step.
    pub fn timeline(&self, number: Option<u64>) -> Result<&Timeline, ImportError> {
        let Some(number) = number else { return Ok(&self.timelines[self.median]) };
        self.timelines.iter().find(|timeline| timeline.step == Some(number)).ok_or_else(|| {
            let numbers: Vec<String> = self.steps().iter().take(12).map(|step| step.number.to_string()).collect();
            let more = if self.steps().len() > 12 { ", ..." } else { "" };
            ImportError::new(format!(
                "expected a step of the traces, {}{more}, found {number}; correct `step`",
                numbers.join(", ")
            ))
        })
    }

    /// Keeps the steps with the numbers `first` to `last`; their median represents the run.
    ///
    /// # Errors
    /// There are none.
    pub fn between(mut self, first: u64, last: u64) -> Result<Run, ImportError> {
        let is_kept = |number: u64| (first..=last).contains(&number);
        let all = self.steps().iter().map(|step| step.number);
        if let (false, Some(low), Some(high)) = (all.clone().any(is_kept), all.clone().min(), all.max()) {
            return Err(ImportError::new(format!(
                "expected steps of the traces, which are {low} to {high}, found {first} to {last}; correct `steps`"
            )));
        }
        self.timelines.retain(|timeline| timeline.step.is_none_or(is_kept));
        for timeline in &mut self.timelines {
            timeline.steps.retain(|step| is_kept(step.number));
        }
        self.median = median(&self.timelines);
        Ok(self)
    }

    /// Returns the shortest and the longest makespan of the complete steps, in ns; `None` of fewer than two.
    pub fn spread(&self) -> Option<(u64, u64)> {
        let complete = || self.steps().iter().filter(|step| step.incomplete_devices.is_empty());
        let makespans = || complete().map(|step| step.makespan_ns);
        makespans().min().zip(makespans().max()).filter(|_| complete().count() > 1)
    }

    /// Returns the figures of all steps.
    pub fn steps(&self) -> &[StepFigures] {
        self.timelines.first().map(|timeline| timeline.steps.as_slice()).unwrap_or_default()
    }
}

/// Returns the index of the median makespan among the steps that are most complete.
pub(super) fn median(timelines: &[Timeline]) -> usize {
    let lacking = |at: &usize| timelines[*at].incomplete_devices.len();
    let fewest = (0..timelines.len()).map(|at| lacking(&at)).min().unwrap_or_default();
    let mut steps: Vec<usize> = (0..timelines.len()).filter(|at| lacking(at) == fewest).collect();
    steps.sort_by_key(|&at| (makespan(&timelines[at].activities()), at));
    steps.get(steps.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

impl Run {
    /// Names the built-in schedule that the run follows: `built_in_of` knows it.
    pub(super) fn name_order(&mut self, built_in_of: &dyn Fn(&Timeline) -> Option<String>) {
        self.order = built_in_of(&self.timelines[self.median]);
        let (name, order) = match &self.order {
            Some(name) => (name.clone(), format!("equal to {name}")),
            None => ("imported".to_string(), "of no built-in schedule".to_string()),
        };
        for timeline in &mut self.timelines {
            timeline.schedule.clone_from(&name);
            timeline.provenance.insert("order".to_string(), order.clone());
        }
    }

    /// Takes timelines that this program wrote as they are.
    ///
    /// # Errors
    /// They are damaged.
    pub(super) fn of_timelines(file: &str, text: &str) -> Result<Run, ImportError> {
        let timelines = Timeline::list_from_json(text).map_err(|error| ImportError::new(format!("{file}: {error}")))?;
        let ops = timelines.iter().map(|timeline| timeline.ops().count()).sum();
        let order = timelines.first().map(|timeline| timeline.schedule.clone());
        Ok(Run {
            format: "pipesim's timelines",
            median: 0,
            ops: Count { found: ops, expected: ops },
            messages: Count::default(),
            clocks: Vec::new(),
            order,
            warnings: Vec::new(),
            timelines,
        })
    }
}
