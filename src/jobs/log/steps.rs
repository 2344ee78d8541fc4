//! The steps of a run, and which of them count.

use super::facts::Facts;
use super::step::{Form, Speed, StepLine};
use crate::measurement::{Dropped, Measurement};
use std::collections::VecDeque;

/// Most lines that are kept, the last ones.
const MOST: usize = 1 << 19;
/// Most steps that a line is the mean of.
const MOST_WEIGHT: u64 = 100_000;
/// Fewest lines that a median is taken of without those that are usually dropped.
const FEW: usize = 3;
/// A first line is dropped while it is slower than the median by this factor.
const SLOW: f32 = 1.1;

/// A line.
#[derive(Clone, Copy)]
struct Step {
    iteration: u64,
    speed: f32,
    tflops: f32,
    tokens_per_s: f32,
    power_w: f32,
    batch: u32,
    weight: u32,
    pause: bool,
    profiled: bool,
}

/// Why a line is no step of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was taken, or repeats another, or is of a form that does not count.
    Here,
    /// It begins another run.
    AnotherRun,
}

/// The steps of a run.
#[derive(Default)]
pub(super) struct Steps {
    list: VecDeque<Step>,
    form: Option<Form>,
    speed: Option<Speed>,
    lines: u64,
    interval: u64,
    batch: Option<u32>,
    pause: bool,
    profiled: bool,
    pending_tflops: f32,
}

impl Steps {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn form(&self) -> Option<Form> {
        self.form
    }

    /// The next step comes after a checkpoint or an evaluation.
    pub(super) fn pause(&mut self) {
        self.pause = true;
    }

    /// The last and the next step have a profiler.
    pub(super) fn profiled(&mut self) {
        self.profiled = true;
        if let Some(last) = self.list.back_mut() {
            last.profiled = true;
        }
    }

    pub(super) fn read(&mut self, line: &StepLine) -> Taken {
        if line.form == Form::Bridge && self.form.is_some_and(|form| form < Form::Bridge) {
            self.pending_tflops = line.tflops.unwrap_or(0.0) as f32;
        }
        if self.form.is_some_and(|form| form < line.form) {
            return Taken::Here;
        }
        if self.form != Some(line.form) {
            *self = Steps { form: Some(line.form), speed: Some(line.speed), ..Steps::default() };
        }
        self.lines += 1;
        let iteration = if line.form == Form::Bridge { self.lines } else { line.iteration };
        let mut weight = 1;
        if let Some(last) = self.list.back() {
            if iteration <= last.iteration {
                let back = last.iteration - iteration;
                return if back > 8 * self.interval.max(1) { Taken::AnotherRun } else { Taken::Here };
            }
            weight = (iteration - last.iteration).min(MOST_WEIGHT);
            self.interval = weight;
        }
        if self.list.len() == MOST {
            self.list.pop_front();
        }
        let (Speed::Seconds(speed) | Speed::Tokens(speed) | Speed::Samples(speed)) = line.speed;
        self.batch = line.batch.or(self.batch);
        let pending = std::mem::take(&mut self.pending_tflops);
        self.list.push_back(Step {
            iteration,
            speed: speed as f32,
            tflops: line.tflops.map_or(pending, |tflops| tflops as f32),
            tokens_per_s: line.tokens_per_s.unwrap_or(0.0) as f32,
            power_w: line.power_w.unwrap_or(0.0) as f32,
            // A line that is cut off may lack it.
            batch: line.batch.or(self.batch).unwrap_or(0),
            weight: weight as u32,
            pause: std::mem::take(&mut self.pause),
            profiled: std::mem::take(&mut self.profiled),
        });
        Taken::Here
    }

    /// Returns what counts. Dropped are, in this order: steps before the last change of the batch size; the first line, and up to
    /// 20 more, at most a tenth of all, while they are 10 % slower than the median; steps after a checkpoint or an evaluation; steps
    /// under a profiler. If fewer than 3 lines are left, those after pauses and under profilers count, and then the first, too.
    pub(super) fn measure(&mut self, facts: &Facts) -> Measurement {
        let profiler = profiler(facts);
        let mut all: Vec<Step> = std::mem::take(&mut self.list).into();
        if self.form == Some(Form::Swift) {
            // Each line is a mean since the start: the last one says all.
            all.drain(..all.len().saturating_sub(1));
        }
        let this = &*self;
        let seconds = |step: &Step| this.seconds(step, facts);
        let batch = all.last().map_or(0, |step| step.batch);
        let from = all.iter().rposition(|step| step.batch != batch).map_or(0, |at| at + 1);
        let mut dropped = Dropped { other_batch: from, ..Dropped::default() };
        all.drain(..from);
        // Seconds if they are known, otherwise the inverse of the speed.
        let slowness = |step: &Step| seconds(step).unwrap_or(1.0 / step.speed);
        let first = self.first(&all, from > 0, slowness);
        let is_profiled = |step: &Step| {
            step.profiled || profiler.is_some_and(|[start, end]| step.iteration > start && step.iteration <= end)
        };
        let good = |step: &&Step| !step.pause && !is_profiled(step);
        let mut counted: Vec<Step> = all[first..].iter().filter(good).copied().collect();
        let few = counted.len() < FEW;
        if !few {
            dropped.first = first;
            dropped.after_pause = all[first..].iter().filter(|step| step.pause && !is_profiled(step)).count();
            dropped.profiled = all[first..].iter().filter(|step| is_profiled(step)).count();
        } else if all.len() - first > 0 {
            dropped.first = first;
            counted = all[first..].to_vec();
        } else {
            counted = all;
        }
        let of = |value: &dyn Fn(&Step) -> f32| {
            let weighted = counted.iter().map(|step| Weighted { value: value(step), weight: step.weight });
            let mut values: Vec<Weighted> = weighted.filter(|one| one.value > 0.0).collect();
            [0.05, 0.5, 0.95].map(|part| quantile(&mut values, part))
        };
        let some = |value: f64| Some(value).filter(|value| *value > 0.0);
        let times = of(&|step| seconds(step).unwrap_or(0.0));
        Measurement {
            step_s: counted.iter().filter_map(seconds).collect(),
            steps: counted.len(),
            median_s: times[1],
            range_s: [times[0], times[2]],
            few,
            dropped,
            power_w: some(of(&|step| step.power_w)[1]),
            printed_tflops: some(of(&|step| step.tflops)[1]),
            printed_tokens_per_s: some(of(&|step| step.tokens_per_s)[1]),
            global_batch: Some(batch).filter(|batch| *batch > 0).or(facts.batch),
            ..Measurement::default()
        }
    }

    /// Number of first lines that do not count; after a change of the batch size none must be dropped.
    fn first(&self, all: &[Step], changed: bool, slowness: impl Fn(&Step) -> f32) -> usize {
        if all.len() < 2 || self.form == Some(Form::Swift) || changed {
            return 0;
        }
        let mut rest: Vec<Weighted> =
            all[1..].iter().map(|step| Weighted { value: slowness(step), weight: 1 }).collect();
        let median = quantile(&mut rest, 0.5) as f32;
        let most = (all.len() / 10).min(20);
        1 + all[1..].iter().take(most).take_while(|step| slowness(step) > SLOW * median).count()
    }

    fn seconds(&self, step: &Step, facts: &Facts) -> Option<f32> {
        match self.speed? {
            Speed::Seconds(_) => Some(step.speed),
            Speed::Tokens(_) => Some(facts.tokens()? as f32 / (step.speed * facts.world? as f32)),
            Speed::Samples(_) => Some(facts.batch? as f32 / step.speed),
        }
    }
}

/// Steps that Megatron's arguments put under a profiler, from after the first number to the second.
fn profiler(facts: &Facts) -> Option<[u64; 2]> {
    let number = |name: &str| facts.settings.value(name)?.parse::<u64>().ok();
    let on = facts.settings.value("profile") == Some("True");
    on.then_some([number("profile_step_start")?, number("profile_step_end")?])
}

/// A value with its weight.
pub(super) struct Weighted {
    pub(super) value: f32,
    pub(super) weight: u32,
}

/// Returns a quantile; 0 of no values. Where it falls between two values, it is their mean.
pub(super) fn quantile(values: &mut [Weighted], part: f64) -> f64 {
    values.sort_by(|one, other| one.value.total_cmp(&other.value));
    let total: f64 = values.iter().map(|one| f64::from(one.weight)).sum();
    let target = total * part;
    let mut below = 0.0;
    for (at, Weighted { value, weight }) in values.iter().enumerate() {
        below += f64::from(*weight);
        if below > target || at + 1 == values.len() {
            return as_printed(*value);
        }
        if below == target {
            return (as_printed(*value) + as_printed(values[at + 1].value)) / 2.0;
        }
    }
    0.0
}

/// Returns the number with the fewest digits that rounds to this one, as a log has it: 0.1 rather than 0.10000000149.
fn as_printed(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}
