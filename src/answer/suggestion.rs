//! The smallest change of a layout that makes it fit into memory, found by predicting the same schedule under other layouts: the
//! command with that change gives the promised result.

use crate::framework::new_objections;
use crate::resolve::{Selection, Variant};
use crate::step_estimate::{MOST_CHANGES, OutOfMemory, StepEstimate, Suggestion};
use pipesim_cost::analytic::Analytic;
use pipesim_language as dsl;
use pipesim_models::layout::{ParallelConfig, Recompute, Zero};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::Order;
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::Schedule;

/// Maximum number of ops of all attempts.
const MOST_OPS: u64 = 5_000_000;
/// Maximum number of attempts: for fixed orders; for searched orders; for `auto` or `--balance`.
const MOST_TRIES: [u64; 3] = [100, 6, 2];
/// Maximum number of devices for which orders are searched, unless more were requested: the work grows with them.
const MOST_SEARCHED: u32 = 8;

/// A request: a schedule, a model on hardware under a layout, and all options that the answer depends on.
pub struct FitRequest<'a> {
    /// Requested schedule.
    pub name: &'a str,
    /// Options, caps and machine.
    pub selection: &'a Selection,
    /// Cost model, with the requested layers.
    pub analytic: &'a Analytic,
    /// Whether `--micro` was given and has to be part of a suggestion that changes it.
    pub micro_given: bool,
}

/// A kind of change, in the order of combination: sequence parallelism needs tensor parallelism.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum LayoutChange {
    Tensor,
    Stages,
    MicroBatchSize,
    Recompute,
    SequenceParallel,
    Zero,
}

/// A layout and the last kind of change.
#[derive(Clone)]
struct ChangedLayout {
    layout: ParallelConfig,
    changed: Option<LayoutChange>,
}

/// Which changes are allowed.
#[derive(Clone, Copy)]
struct Reach {
    /// More GPUs than requested.
    more_gpus: bool,
    /// Maximum tensor-parallel degree.
    tensor: u32,
    /// Whether the model has experts.
    has_experts: bool,
}

/// Returns the layouts one change away, within `reach`.
fn neighbours(ChangedLayout { layout, changed }: &ChangedLayout, reach: Reach) -> Vec<ChangedLayout> {
    let mut found = Vec::new();
    // Each kind of change applies once, and combinations are tried in one order only.
    let mut add = |change: LayoutChange, layout: ParallelConfig| {
        if changed.is_none_or(|last| last < change) {
            found.push(ChangedLayout { layout, changed: Some(change) });
        }
    };
    for recompute in [Recompute::Selective, Recompute::Full] {
        if recompute > layout.recompute {
            add(LayoutChange::Recompute, ParallelConfig { recompute, ..layout.clone() });
        }
    }
    for zero in [Zero::Optimizer, Zero::Gradients, Zero::Weights] {
        if zero > layout.zero && layout.has_replicas(reach.has_experts) {
            add(LayoutChange::Zero, ParallelConfig { zero, ..layout.clone() });
        }
    }
    if layout.tp > 1 && !layout.sequence_parallel {
        add(LayoutChange::SequenceParallel, ParallelConfig { sequence_parallel: true, ..layout.clone() });
    }
    let mut size = layout.micro_batch_size;
    while size.is_multiple_of(2) {
        size /= 2;
        let Some(micro) = layout.micro.checked_mul(layout.micro_batch_size / size) else { break };
        add(LayoutChange::MicroBatchSize, ParallelConfig { micro_batch_size: size, micro, ..layout.clone() });
    }
    for times in [2, 4, 8] {
        // Removed pipelines leave their micro-batches to the others.
        let (data, micro) = match layout.dp.is_multiple_of(times) {
            true => (layout.dp / times, layout.micro.checked_mul(times)),
            false if reach.more_gpus => (layout.dp, Some(layout.micro)),
            false => continue,
        };
        let Some(micro) = micro else { continue };
        if let Some(tensor) = layout.tp.checked_mul(times).filter(|&tensor| tensor <= reach.tensor) {
            add(LayoutChange::Tensor, ParallelConfig { tp: tensor, dp: data, micro, ..layout.clone() });
        }
        if let (Some(devices), None, None) = (layout.pp.checked_mul(times), &layout.layers, &layout.layout) {
            add(LayoutChange::Stages, ParallelConfig { pp: devices, dp: data, micro, ..layout.clone() });
        }
    }
    found
}

/// Work that is left for attempts.
struct AttemptBudget {
    devices: u32,
    ops: u64,
    tries: u64,
}

impl FitRequest<'_> {
    /// Returns `estimate` of the step of `graph`. If it does not fit, it says why, with a suggestion.
    pub fn checked(&self, graph: &TaskGraph, mut estimate: StepEstimate) -> StepEstimate {
        if !estimate.memory.fits {
            let fullest = estimate.memory.fullest();
            estimate.misfit = Some(OutOfMemory {
                schedule: graph.schedule().name.clone(),
                device: fullest.device,
                bytes: fullest.total,
                capacity_bytes: estimate.memory.capacity_bytes,
                remedy: self.remedy(graph.schedule()),
                fullest,
                gpus: self.analytic.layout.gpus(),
            });
        }
        estimate
    }

    /// Returns the fewest changes that fit, preferably without more GPUs and with tensor parallelism within a node; among
    /// several, the one with the least GPU time per step.
    fn remedy(&self, schedule: &Schedule) -> Option<Suggestion> {
        let effort = self.effort();
        let devices = if effort == 0 { u32::MAX } else { self.analytic.layout.pp.max(MOST_SEARCHED) };
        let mut budget = AttemptBudget { devices, ops: MOST_OPS, tries: MOST_TRIES[effort] };
        let node = (self.analytic.machine.hardware.gpus_per_node as u32).max(self.analytic.layout.tp);
        let has_experts = self.analytic.model.experts.is_some();
        let reach = |more_gpus: bool, tensor: u32| Reach { more_gpus, tensor, has_experts };
        [reach(false, node), reach(false, u32::MAX), reach(true, node), reach(true, u32::MAX)].into_iter().find_map(
            |reach| {
                let mut level = vec![ChangedLayout { layout: self.analytic.layout.clone(), changed: None }];
                (0..MOST_CHANGES).find_map(|_| {
                    level = level.iter().flat_map(|candidate| neighbours(candidate, reach)).collect();
                    self.best(&level, schedule, &mut budget)
                })
            },
        )
    }

    /// Returns the effort of one attempt: 0 for a fixed order, 1 for a search, 2 for several.
    fn effort(&self) -> usize {
        let Ok(variant) = Variant::parse(self.name) else { return 0 };
        if variant.is_auto() || self.selection.balance {
            return 2;
        }
        let found = self.selection.under(self.analytic).order(self.name);
        usize::from(found.is_ok_and(|found| matches!(found.order, Order::Open(_))))
    }

    /// Returns the best layout that fits. Layouts with the least work are tried first; the rest only while they may be faster.
    fn best(&self, level: &[ChangedLayout], schedule: &Schedule, budget: &mut AttemptBudget) -> Option<Suggestion> {
        let mut promising: Vec<(f64, &ChangedLayout, Analytic)> = level
            .iter()
            .filter_map(|candidate| {
                let layout = Some(candidate.layout.clone()).filter(|layout| layout.pp <= budget.devices)?;
                let analytic = Analytic::new(self.analytic.model, self.analytic.machine.clone(), layout).ok()?;
                Some((least_cost(&analytic, !schedule.is_beyond_microbatches())?, candidate, analytic))
            })
            .collect();
        promising.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut best: Option<(f64, Suggestion)> = None;
        for (least, candidate, analytic) in promising {
            if best.as_ref().is_some_and(|(cost, _)| *cost <= least) {
                break;
            }
            if self.is_refused(&analytic) {
                continue;
            }
            let ParallelConfig { pp: devices, micro, .. } = analytic.layout;
            let ops = 2 * u64::from(devices) * u64::from(micro) * u64::from(self.selection.chunks.unwrap_or(1));
            let ops = ops.saturating_mul(u64::from(schedule.slices().count()));
            if budget.tries == 0 || budget.ops < ops {
                break;
            }
            *budget = AttemptBudget { ops: budget.ops - ops, tries: budget.tries - 1, ..*budget };
            let Ok(forecast) = self.selection.estimate(self.name, &analytic) else { continue };
            let (iteration_s, gpus) = (forecast.iteration_s, forecast.gpus);
            let cost = iteration_s * gpus as f64;
            if forecast.memory.fits && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                let (change, bytes) = (self.change(&candidate.layout), forecast.memory.fullest().total);
                best = Some((cost, Suggestion { change, bytes, iteration_s, gpus }));
            }
        }
        best.map(|(_, remedy)| remedy)
    }

    /// Whether the framework refuses the changed layout for a reason that the requested one does not give.
    fn is_refused(&self, changed: &Analytic) -> bool {
        let base = Variant::parse(self.name).map(|variant| variant.base).unwrap_or_default();
        let built_in = Some(base.as_str()).filter(|base| dsl::names().contains(base));
        new_objections(self.analytic, changed, built_in).is_ok_and(|found| !found.is_empty())
    }

    /// Returns the settings that lead to the layout `to`.
    fn change(&self, to: &ParallelConfig) -> Vec<(&'static str, String)> {
        let from = &self.analytic.layout;
        // whose default depends on `tp`
        let default_etp = self.analytic.machine.stack.default_etp(to.tp);
        let moves_experts = to.tp != from.tp && self.analytic.model.experts.is_some() && to.etp != default_etp;
        let settings = [
            (to.recompute != from.recompute, "recompute", to.recompute.to_string()),
            (to.zero != from.zero, "zero", to.zero.to_string()),
            (to.sequence_parallel != from.sequence_parallel, "sequence-parallel", String::new()),
            (to.micro_batch_size != from.micro_batch_size, "micro-batch-size", to.micro_batch_size.to_string()),
            (to.tp != from.tp, "tp", to.tp.to_string()),
            (moves_experts, "etp", to.etp.to_string()),
            (to.pp != from.pp, "stages", to.pp.to_string()),
            (to.dp != from.dp, "dp", to.dp.to_string()),
            (to.micro != from.micro && self.micro_given, "micro", to.micro.to_string()),
        ];
        let changed = settings.into_iter().filter(|(is_changed, ..)| *is_changed);
        changed.map(|(_, setting, value)| (setting, value)).collect()
    }
}

/// Returns a lower bound of the GPU time of a step, in seconds; `None` if it cannot fit: the average memory of devices that run
/// one micro-batch at a time is a lower bound of the peak, unless activations are recomputed or on the host.
fn least_cost(analytic: &Analytic, is_whole: bool) -> Option<f64> {
    let devices = analytic.layout.pp;
    let memory = analytic.least_memory(&Placement::linear(devices))?;
    let total: u128 = memory.per_device.iter().map(|device| u128::from(device.total)).sum();
    if is_whole && total > memory.capacity() {
        return None;
    }
    let stages = analytic.stages(devices).ok()?;
    let passes = (0..).zip(&stages).map(|(device, stage)| analytic.on(device).passes(stage));
    let work: f64 = passes.map(|passes| passes.forward.total() + passes.input.total() + passes.weights.total()).sum();
    Some(work / f64::from(devices) * f64::from(analytic.layout.micro) * analytic.layout.gpus() as f64)
}
