//! Stages, devices and nodes whose ops take longer than those of others.

use super::{Finding, MeasuredStep, Replay};
use pipesim_schedule::op::Kind;
use pipesim_schedule::statistics::median;
use serde::Serialize;
use std::collections::BTreeMap;

/// By which share work exceeds that of the others before it is named.
const SLOW: f64 = 0.05;
/// By which factor slow stages or devices may differ and still have one cause.
const ALIKE: f64 = 1.06;

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

/// A stage on a device. Bidirectional placements have each stage twice.
type Part = (u32, u32);

/// Work per micro-batch in ns of every stage on every device, from the median of its ops of each kind: single slow ops do not count.
struct Work {
    of: BTreeMap<Part, f64>,
    /// By device.
    parts: BTreeMap<u32, Vec<Part>>,
}

impl Work {
    fn new(step: &MeasuredStep) -> Work {
        let mut durations: BTreeMap<Part, BTreeMap<Kind, Vec<f64>>> = BTreeMap::new();
        for index in 0..step.graph.len() {
            let op = step.graph.op(index);
            let kinds = durations.entry((op.stage(), step.graph.device_of(index))).or_default();
            kinds.entry(op.kind()).or_default().push(step.times.duration(index) as f64);
        }
        let work = |kinds: BTreeMap<Kind, Vec<f64>>| {
            let most = kinds.values().map(Vec::len).max().unwrap_or(1) as f64;
            kinds.values().map(|all| median(all) * all.len() as f64 / most).sum::<f64>()
        };
        let of: BTreeMap<Part, f64> = durations.into_iter().map(|(part, kinds)| (part, work(kinds))).collect();
        let mut parts: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
        of.keys().for_each(|&(stage, device)| parts.entry(device).or_default().push((stage, device)));
        Work { of, parts }
    }

    /// Returns the work of a part that is not slow: the median of those below the widest gap among the upper half. 0 without parts.
    fn usual(&self) -> f64 {
        let mut sorted: Vec<f64> = self.of.values().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let gap = |at: &usize| sorted[*at] / sorted[at - 1].max(1.0);
        let from = sorted.len().div_ceil(2).max(1);
        let widest = (from..sorted.len()).max_by(|one, other| gap(one).total_cmp(&gap(other)));
        let below = widest.filter(|at| gap(at) > 1.0 + SLOW / 2.0).unwrap_or(sorted.len());
        let usual = median(&sorted[..below]);
        median(&sorted.into_iter().filter(|&work| work <= usual * (1.0 + SLOW)).collect::<Vec<_>>())
    }

    /// Returns by which factor each slow part is slower than usual.
    fn slow(&self) -> BTreeMap<Part, f64> {
        let usual = self.usual().max(1.0);
        self.of.iter().map(|(&part, work)| (part, work / usual)).filter(|(_, factor)| *factor > 1.0 + SLOW).collect()
    }
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Whether factors may have one cause.
fn alike(all: &[f64]) -> bool {
    let most = all.iter().copied().fold(0.0, f64::max);
    all.iter().all(|factor| most <= factor * ALIKE)
}

/// What is slow, and by which factor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slow {
    Devices(u32, u32),
    Stage(Part),
}

/// Splits slow parts by cause: neighbouring devices, devices, and what is left of stages.
fn causes(work: &Work) -> Vec<(Slow, f64)> {
    let mut slow = work.slow();
    let several = work.parts.values().any(|parts| parts.len() > 1);
    let mut devices: BTreeMap<u32, f64> = BTreeMap::new();
    for (&device, parts) in &work.parts {
        let factors: Vec<f64> = parts.iter().filter_map(|part| slow.get(part).copied()).collect();
        if factors.len() == parts.len() {
            let factor =
                if alike(&factors) { mean(&factors) } else { factors.iter().copied().fold(f64::MAX, f64::min) };
            devices.insert(device, factor);
        }
    }
    let mut found = Vec::new();
    while let Some((&first, _)) = devices.first_key_value() {
        let mut run = vec![devices.remove(&first).unwrap_or(1.0)];
        while let Some(&next) = devices.get(&(first + run.len() as u32)) {
            run.push(next);
            if !alike(&run) {
                run.pop();
                break;
            }
            devices.remove(&(first + run.len() as u32 - 1));
        }
        // Half of the devices may be slow; a single one with a single stage is a slow stage.
        if run.len() == 1 && !several {
            continue;
        }
        let (factor, last) = (mean(&run), first + run.len() as u32 - 1);
        for part in (first..=last).filter_map(|device| work.parts.get(&device)).flatten() {
            slow.entry(*part).and_modify(|of_part| *of_part /= factor);
        }
        found.push((Slow::Devices(first, last), factor));
    }
    slow.retain(|_, factor| *factor > 1.0 + SLOW);
    found.extend(slow.into_iter().map(|(part, factor)| (Slow::Stage(part), factor)));
    found
}

impl Slow {
    fn has(self, (stage, device): Part) -> bool {
        match self {
            Slow::Devices(first, last) => (first..=last).contains(&device),
            Slow::Stage(part) => part == (stage, device),
        }
    }

    fn finding(self, slower: f64, saves: f64) -> Finding {
        match self {
            Slow::Devices(device, last) if device == last => Finding::SlowDevice { device, slower, saves },
            Slow::Devices(first_device, last_device) => Finding::SlowNode { first_device, last_device, slower, saves },
            Slow::Stage((stage, device)) => Finding::SlowStage { stage, device, slower, saves },
        }
    }
}

/// Divides the durations of ops in a replay by the factor of their stage and device.
fn divide(step: &MeasuredStep, replay: &mut Replay<'_>, factor: impl Fn(Part) -> f64) {
    for (index, duration) in replay.durations.iter_mut().enumerate() {
        let part = (step.graph.op(index).stage(), step.graph.device_of(index));
        *duration = (*duration as f64 / factor(part)).round() as u64;
    }
}

/// Returns what is slow, each replayed as fast as the others, and the imbalance that is left without all of them.
pub(super) fn slow(step: &MeasuredStep) -> Vec<Finding> {
    let work = Work::new(step);
    let causes = causes(&work);
    let mut found: Vec<Finding> = Vec::new();
    let mut rest = Replay::new(step);
    for &(slow, factor) in &causes {
        let mut replay = Replay::new(step);
        let of_part = |part: Part| if slow.has(part) { factor } else { 1.0 };
        divide(step, &mut replay, of_part);
        divide(step, &mut rest, of_part);
        found.push(slow.finding(factor - 1.0, replay.saves()));
    }
    let left = |part: &Part| {
        let factor: f64 = causes.iter().filter(|(slow, _)| slow.has(*part)).map(|(_, factor)| factor).product();
        work.of.get(part).map_or(0.0, |work| work / factor)
    };
    let of_device = |parts: &Vec<Part>| parts.iter().map(left).sum::<f64>();
    let devices: Vec<f64> = work.parts.values().map(of_device).collect();
    let average = mean(&devices);
    if average > 0.0 {
        let busiest = devices.iter().copied().fold(0.0, f64::max) / average - 1.0;
        let factors: BTreeMap<u32, f64> =
            work.parts.iter().map(|(&device, parts)| (device, (of_device(parts) / average).max(1e-9))).collect();
        let before = rest.makespan();
        divide(step, &mut rest, |(_, device)| factors.get(&device).copied().unwrap_or(1.0));
        let saves = (before as f64 - rest.makespan() as f64) / (step.makespan() as f64).max(1.0);
        found.push(Finding::Imbalance { busiest, saves });
    }
    found
}
