//! What was unusual in a measured step, with what the step would have gained without it: a replay tells.

use super::{MeasuredStep, Replay};
use pipesim_schedule::op::Kind;
use pipesim_schedule::statistics::median;
use serde::Serialize;
use std::collections::BTreeMap;

/// By which share a stage's work exceeds the others' median before it is named.
const SLOW: f64 = 0.05;
/// By which factor an op, or a host delay, exceeds the median of its kind before it is named.
const FAR: f64 = 1.5;
/// Least share of the step that a single op or delay takes too long before it is named.
const LEAST: f64 = 0.01;

/// Time of one stage's ops for one micro-batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTime {
    pub stage: u32,
    pub device: u32,
    /// Means by kind, in the timeline's unit; 0 for kinds that the stage does not have.
    #[serde(rename = "F")]
    pub forward: f64,
    #[serde(rename = "I")]
    pub input: f64,
    #[serde(rename = "W")]
    pub weights: f64,
    #[serde(rename = "B")]
    pub backward: f64,
    /// All ops of the stage / micro-batches.
    pub work: f64,
    /// Work / median work of the other stages - 1.
    pub slower: f64,
}

/// Something that made the step longer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Finding {
    /// A stage has more work than the others.
    SlowStage {
        stage: u32,
        device: u32,
        /// Its work / median work of the others - 1.
        slower: f64,
        /// By which share the step would be shorter if it were as fast as the median of the others.
        saves: f64,
    },
    /// A device's host was late once, by far.
    Pause {
        device: u32,
        /// The op after which it was late.
        after: String,
        /// Whether it held up the output of that op, too.
        before_send: bool,
        /// By how long, in the timeline's unit.
        delay: f64,
        /// The median delay of the others.
        typical: f64,
        saves: f64,
    },
    /// Ops that took far longer than the median of their stage and kind.
    Stragglers {
        /// The one that exceeds it most.
        op: String,
        device: u32,
        duration: f64,
        typical: f64,
        /// Number of such ops.
        count: usize,
        saves: f64,
    },
    /// All host delays together.
    HostDelays {
        /// Mean of one op's, in the timeline's unit.
        mean: f64,
        saves: f64,
    },
    /// Messages.
    Messages {
        /// Median of those that somebody waited for, in the timeline's unit.
        typical: f64,
        saves: f64,
    },
}

impl Finding {
    /// Returns by which share the step would have been shorter without it.
    pub fn saves(&self) -> f64 {
        match self {
            Finding::SlowStage { saves, .. }
            | Finding::Pause { saves, .. }
            | Finding::Stragglers { saves, .. }
            | Finding::HostDelays { saves, .. }
            | Finding::Messages { saves, .. } => *saves,
        }
    }
}

/// Returns the times of all stages, in model order.
pub fn stage_times(step: &MeasuredStep) -> Vec<StageTime> {
    let schedule = step.graph.schedule();
    let unit = step.unit_ns.max(1) as f64;
    let mut sums: BTreeMap<u32, [(f64, f64); Kind::ALL.len()]> = BTreeMap::new();
    for index in 0..step.graph.len() {
        let op = step.graph.op(index);
        let (sum, count) = &mut sums.entry(op.stage()).or_default()[op.kind() as usize];
        (*sum, *count) = (*sum + step.times.duration(index) as f64 / unit, *count + 1.0);
    }
    let microbatches = f64::from(schedule.microbatches.max(1));
    let work: Vec<f64> =
        sums.values().map(|kinds| kinds.iter().map(|(sum, _)| sum).sum::<f64>() / microbatches).collect();
    let time = |number: usize, stage: u32, kinds: &[(f64, f64); Kind::ALL.len()]| {
        let mean = |kind: Kind| {
            let (sum, count) = kinds[kind as usize];
            if count > 0.0 { sum / count } else { 0.0 }
        };
        let others: Vec<f64> = (0..work.len()).filter(|&other| other != number).map(|other| work[other]).collect();
        let usual = median(&others);
        StageTime {
            stage,
            device: schedule.placement.device_of_stage(stage, 0),
            forward: mean(Kind::F),
            input: mean(Kind::I),
            weights: mean(Kind::W),
            backward: mean(Kind::B),
            work: work[number],
            slower: if others.is_empty() || usual <= 0.0 { 0.0 } else { work[number] / usual - 1.0 },
        }
    };
    sums.iter().enumerate().map(|(number, (&stage, kinds))| time(number, stage, kinds)).collect()
}

/// Returns what made the step longer, the largest saving first; each is replayed alone.
pub fn findings(step: &MeasuredStep) -> Vec<Finding> {
    let mut found: Vec<Finding> = [slow_stage(step), pause(step), stragglers(step), host_delays(step), messages(step)]
        .into_iter()
        .flatten()
        .filter(|finding| finding.saves() > 0.0)
        .collect();
    found.sort_by(|one, other| other.saves().total_cmp(&one.saves()));
    found
}

fn slow_stage(step: &MeasuredStep) -> Option<Finding> {
    let times = stage_times(step);
    let slowest =
        times.iter().max_by(|one, other| one.slower.total_cmp(&other.slower)).filter(|time| time.slower > SLOW)?;
    let mut replay = Replay::new(step);
    for (index, duration) in replay.durations.iter_mut().enumerate() {
        if step.graph.op(index).stage() == slowest.stage {
            *duration = (*duration as f64 / (1.0 + slowest.slower)).round() as u64;
        }
    }
    let StageTime { stage, device, slower, .. } = *slowest;
    Some(Finding::SlowStage { stage, device, slower, saves: replay.saves() })
}

/// Returns the host delays in ns, except the delay of each device's first op.
fn delays(step: &MeasuredStep) -> Vec<u64> {
    (0..step.graph.len())
        .filter(|&index| step.graph.before(index).is_some())
        .map(|index| step.times.held(index).ticks)
        .collect()
}

fn median_of(all: &[u64]) -> f64 {
    median(&all.iter().map(|&ns| ns as f64).collect::<Vec<_>>())
}

/// The longest host delay. All starts that were late because of it are replayed with the median delay.
fn pause(step: &MeasuredStep) -> Option<Finding> {
    let typical = median_of(&delays(step));
    let held = |index: usize| step.times.held(index);
    let longest =
        (0..step.graph.len()).filter(|&index| held(index).after.is_some()).max_by_key(|&index| held(index).ticks)?;
    let (delay, after) = (held(longest).ticks, held(longest).after?);
    if (delay as f64) < (FAR * typical).max(LEAST * step.makespan() as f64) {
        return None;
    }
    let mut replay = Replay::new(step);
    let mut before_send = false;
    for (index, ticks) in replay.held.iter_mut().enumerate() {
        if held(index).after == Some(after) {
            *ticks = (*ticks).min(typical as u64);
            before_send |= step.graph.device_of(index) != step.graph.device_of(after);
        }
    }
    let unit = step.unit_ns.max(1) as f64;
    Some(Finding::Pause {
        device: step.graph.device_of(after),
        after: step.graph.op(after).to_string(),
        before_send,
        delay: delay as f64 / unit,
        typical: typical / unit,
        saves: replay.saves(),
    })
}

fn stragglers(step: &MeasuredStep) -> Option<Finding> {
    let mut kinds: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for index in 0..step.graph.len() {
        kinds.entry(step.graph.op(index).slot()).or_default().push(step.times.duration(index));
    }
    let typical: BTreeMap<usize, f64> = kinds.iter().map(|(&slot, all)| (slot, median_of(all))).collect();
    let over = |index: usize| {
        let (duration, usual) = (step.times.duration(index) as f64, typical[&step.graph.op(index).slot()]);
        (duration > FAR * usual && duration - usual > LEAST * step.makespan() as f64).then_some(duration - usual)
    };
    let mut replay = Replay::new(step);
    let mut count = 0;
    let mut most: Option<(f64, usize)> = None;
    for index in 0..step.graph.len() {
        let Some(over) = over(index) else { continue };
        replay.durations[index] -= over as u64;
        count += 1;
        most = most.filter(|(most, _)| *most >= over).or(Some((over, index)));
    }
    let (_, op) = most?;
    let unit = step.unit_ns.max(1) as f64;
    Some(Finding::Stragglers {
        op: step.graph.op(op).to_string(),
        device: step.graph.device_of(op),
        duration: step.times.duration(op) as f64 / unit,
        typical: typical[&step.graph.op(op).slot()] / unit,
        count,
        saves: replay.saves(),
    })
}

fn host_delays(step: &MeasuredStep) -> Option<Finding> {
    let all = delays(step);
    let mut replay = Replay::new(step);
    for (index, ticks) in replay.held.iter_mut().enumerate() {
        if step.graph.before(index).is_some() {
            *ticks = 0;
        }
    }
    let mean = all.iter().sum::<u64>() as f64 / all.len().max(1) as f64;
    Some(Finding::HostDelays { mean: mean / step.unit_ns.max(1) as f64, saves: replay.saves() })
}

fn messages(step: &MeasuredStep) -> Option<Finding> {
    let waited = |&index: &usize| {
        let needs = step.needs(index);
        (needs.is_message && needs.made > needs.free).then_some(needs.maker?)
    };
    let makers: Vec<u64> =
        (0..step.graph.len()).filter_map(|index| waited(&index)).map(|maker| step.times.delay(maker).arrival).collect();
    let mut replay = Replay::new(step);
    replay.messages.fill(0);
    replay.receives.fill(0);
    let typical = median_of(&makers) / step.unit_ns.max(1) as f64;
    (!makers.is_empty()).then(|| Finding::Messages { typical, saves: replay.saves() })
}
