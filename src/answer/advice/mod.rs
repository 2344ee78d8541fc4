//! What could be changed about a step, and the gain: every suggested change is predicted.
//!
//! Candidates are the embedded schedules, with 2 and 4 chunks per device if they leave that open; more micro-batches; the same
//! order with split backwards; free links and equal stages; layers split by `--balance`. Searched orders are skipped, as is
//! everything after a maximum number of ops: work is counted, not timed.

mod changed;

use crate::resolve::{Costs, Resolved, Selection, Variant};
pub use changed::Sensitivities;
use changed::{Changed, is_searched, typical_ticks};
use pipesim_cost::{CostTable, OpTime};
use pipesim_language as dsl;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{Goal, OpenSchedule, Program};
use pipesim_sim::ordering::order_ops;
use pipesim_sim::{self as sim, Prediction};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Maximum number of ops of all candidates.
const MOST_OPS: u64 = 8_000_000;
/// Maximum number of calls and loop iterations of one schedule file.
const MOST_TICKS: u64 = 5_000_000;
/// Maximum size of a step whose layers are split anew, which takes hundreds of sweeps.
const MOST_BALANCED: usize = 20_000;
/// Chunks per device to try.
const CHUNKS: [u32; 2] = [2, 4];
/// Multiples of the number of micro-batches to try.
const TIMES: [u32; 2] = [2, 4];
/// Largest relative saving that counts as none: rounding errors.
pub const LEAST: f64 = 1e-9;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Another schedule, or other chunks.
    Schedule,
    /// The number of micro-batches.
    Micro,
    /// Backwards split into I and W, with W in idle gaps and the same memory.
    Split,
    /// Messages and host overheads take no time.
    Links,
    /// Every stage takes the average time.
    Stages,
    /// The layers per stage.
    Layers,
}

/// A change, and the resulting step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    pub what: What,
    /// Name of the schedule, the option, or the assumption in words.
    pub change: String,
    /// Micro-batches of the step.
    pub microbatches: u32,
    /// Makespan, in time units.
    pub makespan: f64,
    /// Maximum activations of a device.
    pub peak_activations: f64,
    /// Copies of the weights: 2 for bidirectional schedules.
    pub weight_copies: u32,
    /// Relative saving of the time per micro-batch; negative if it grows.
    pub saves: f64,
    /// Whether costs decide the order, but the change is of the unchanged order.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub order_held_fixed: bool,
}

/// The change and its gain on one line.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.saves;
        let (size, direction) = (percent.abs(), if percent < 0.0 { "more" } else { "less" });
        write!(f, "{}: {size:.1} % {direction} time per micro-batch", self.change)
    }
}

/// Possible changes of one schedule's step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Maximum activations per device: the cap, or the peak of this schedule.
    pub limit: f64,
    /// Every change that was tried: schedules first, sorted by saving, then the others by kind.
    pub changes: Vec<Change>,
    /// Number of candidates that were skipped: searched orders and those that take too many ops.
    pub untried: usize,
}

struct Tried {
    name: String,
    base: String,
    chunks: u32,
    copies: u32,
    makespan: f64,
    peak: f64,
    forward_ns: u64,
}

/// Tries changes for schedules with the same p, m and costs.
pub struct Advisor<'a> {
    selection: Selection,
    costs: &'a Costs,
    tried: Vec<Tried>,
    untried: usize,
    /// Remaining number of ops.
    left: u64,
}

/// Returns the total time of all forwards, which is equal for schedules that train the same model.
fn forward_ns(graph: &TaskGraph, costs: &CostTable) -> u64 {
    let counts = graph.schedule().counts();
    let schedule = graph.schedule();
    let forwards = schedule.op_classes().filter(|op| op.kind() == Kind::F);
    let ticks = |op: Op| counts[schedule.class(op)].saturating_mul(costs.of(op).duration);
    costs.to_ns(forwards.map(ticks).fold(0, u64::saturating_add))
}

impl<'a> Advisor<'a> {
    /// Tries all other schedules under `selection`.
    pub fn new(selection: &Selection, costs: &'a Costs) -> Advisor<'a> {
        let plain = Selection { balance: false, lenient: false, ..selection.without_options() };
        let mut advisor =
            Advisor { selection: selection.clone(), costs, tried: Vec::new(), untried: 0, left: MOST_OPS };
        for name in dsl::names_of_whole() {
            let Ok(variant) = Variant::parse(name) else { continue };
            let several = plain.takes(&variant).is_ok_and(|takes| takes.chunks);
            let names = if several { CHUNKS.map(|v| format!("{name}:v={v}")).to_vec() } else { vec![name.to_string()] };
            for name in names {
                let resolved = advisor.resolved(&plain, &name);
                advisor.tried.extend(resolved.map(|resolved| Tried::new(name, &variant.base, &resolved)));
            }
        }
        advisor
    }

    /// Resolves a schedule, if it exists and is cheap enough.
    fn resolved(&mut self, selection: &Selection, name: &str) -> Option<Resolved> {
        let mut selection = selection.clone();
        selection.budget.ops = selection.budget.ops.min(self.left);
        selection.budget.ticks = selection.budget.ticks.min(MOST_TICKS);
        if selection.order(name).is_ok_and(|found| is_searched(&found.order)) {
            self.untried += 1;
            return None;
        }
        match selection.resolve(name, self.costs) {
            Ok(resolved) => {
                self.left -= self.left.min(resolved.graph.len() as u64);
                Some(resolved)
            }
            // some exist for other numbers only; the rest is too expensive
            Err(error) => {
                self.untried += usize::from(!error.is_of_numbers());
                None
            }
        }
    }

    /// Returns the saving from reducing each part's time by 1 %, for the schedule requested as `name`.
    pub fn sensitivities(&self, name: &str, predicted: &Prediction<'_>) -> Sensitivities {
        Changed::new(&self.selection, name, predicted.graph).sensitivities(predicted)
    }

    /// Returns the possible changes of the schedule requested as `name`.
    pub fn advise(&mut self, name: &str, resolved: &Resolved, predicted: &Prediction<'_>) -> Advice {
        let (graph, costs) = (predicted.graph, predicted.costs);
        let schedule = graph.schedule();
        let peak = schedule.peak(costs.keep);
        let before = predicted.metrics().makespan;
        let own = Change {
            what: What::Schedule,
            change: String::new(),
            microbatches: schedule.microbatches,
            makespan: before,
            peak_activations: peak,
            weight_copies: schedule.placement.directions(),
            saves: 0.0,
            order_held_fixed: false,
        };
        let limit = resolved.setup.memory_cap.unwrap_or(peak);
        let mut changes = self.others(&own, graph, costs);
        if graph.len() as u64 <= self.left {
            changes.extend(self.more(name, &own));
            changes.extend(split(graph, costs, limit, &own));
            let changed = Changed::new(&self.selection, name, graph);
            changes.extend(supposed(&changed, graph, costs, &own));
            changes.extend(self.balanced(name, graph, &own));
        } else {
            self.untried += 1;
        }
        for change in &mut changes {
            let each = |makespan: f64, microbatches: u32| makespan / f64::from(microbatches.max(1));
            let whole = each(before, own.microbatches);
            let saved = whole - each(change.makespan, change.microbatches);
            change.saves = if whole > 0.0 { saved / whole } else { 0.0 };
        }
        changes.sort_by(|one, other| {
            let memory = one.peak_activations.total_cmp(&other.peak_activations);
            let kind = one.what.cmp(&other.what);
            kind.then(one.microbatches.cmp(&other.microbatches))
                .then(other.saves.total_cmp(&one.saves))
                .then(memory)
                .then(one.change.cmp(&other.change))
        });
        Advice { limit, changes, untried: self.untried }
    }

    /// Returns the other schedules that train the same model.
    fn others(&self, own: &Change, graph: &TaskGraph, costs: &CostTable) -> Vec<Change> {
        let schedule = graph.schedule();
        let base = Variant::parse(&schedule.name).map(|variant| variant.base).unwrap_or_default();
        let (chunks, forward) = (schedule.placement.chunks(), forward_ns(graph, costs));
        let same_model = |tried: &&Tried| tried.forward_ns.abs_diff(forward) <= forward / 1000;
        let other = |tried: &&Tried| (&tried.base, tried.chunks) != (&base, chunks);
        let change = |tried: &Tried| Change {
            change: tried.name.clone(),
            makespan: tried.makespan,
            peak_activations: tried.peak,
            weight_copies: tried.copies,
            ..own.clone()
        };
        self.tried.iter().filter(same_model).filter(other).map(change).collect()
    }

    /// Tries more micro-batches.
    fn more(&mut self, name: &str, own: &Change) -> Vec<Change> {
        if Variant::parse(name).is_ok_and(|variant| variant.is_auto()) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for microbatches in TIMES.iter().filter_map(|times| own.microbatches.checked_mul(*times)) {
            let selection = Selection { microbatches, balance: false, ..self.selection.clone() };
            let Some(resolved) = self.resolved(&selection, name) else { break };
            let Tried { makespan, peak, .. } = Tried::new(String::new(), "", &resolved);
            let change = format!("--micro {microbatches}");
            changes.push(Change {
                what: What::Micro,
                change,
                microbatches,
                makespan,
                peak_activations: peak,
                ..own.clone()
            });
        }
        changes
    }

    /// Tries the optimal split of layers, if a model's parts are known.
    fn balanced(&mut self, name: &str, graph: &TaskGraph, own: &Change) -> Option<Change> {
        let searched = self.selection.order(name).is_ok_and(|found| is_searched(&found.order));
        if self.selection.balance
            || searched
            || matches!(self.costs, Costs::Given { costs, .. } if !costs.is_per_stage())
            || graph.len() > MOST_BALANCED
        {
            return None;
        }
        let selection = Selection { balance: true, ..self.selection.clone() };
        let resolved = selection.resolve(name, self.costs).ok()?;
        let layers: Vec<String> = resolved.balance.as_ref()?.layers.iter().map(ToString::to_string).collect();
        let Tried { makespan, peak, .. } = Tried::new(String::new(), "", &resolved);
        let change = format!("--layers {}", layers.join(","));
        Some(Change { what: What::Layers, change, makespan, peak_activations: peak, ..own.clone() })
    }
}

impl Tried {
    fn new(name: String, base: &str, Resolved { graph, costs, .. }: &Resolved) -> Tried {
        let schedule = graph.schedule();
        Tried {
            name,
            base: base.to_string(),
            chunks: schedule.placement.chunks(),
            copies: schedule.placement.directions(),
            makespan: typical_makespan(graph, costs),
            peak: schedule.peak(costs.keep),
            forward_ns: forward_ns(graph, costs),
        }
    }
}

/// Returns the makespan of a step, in time units; infinite if the machine cannot run it.
fn typical_makespan(graph: &TaskGraph, costs: &CostTable) -> f64 {
    typical_ticks(graph, costs).map_or(f64::INFINITY, |ticks| costs.in_units(ticks))
}

/// Tries the same order with I in place of B and W in idle gaps, without exceeding `cap` activations.
fn split(graph: &TaskGraph, costs: &CostTable, cap: f64, own: &Change) -> Option<Change> {
    let schedule = graph.schedule();
    // The collectives of another order are not known here.
    if schedule.splits_backward() || schedule.has_pairs() || schedule.sharding.is_some() {
        return None;
    }
    let half = |op: &Op| if op.kind() == Kind::B { op.of_kind(Kind::I) } else { *op };
    let program = |device| {
        let ops = schedule.program(device).iter().map(half).collect();
        Program::Fill { ops, floating: Kind::W, cap: Some(cap) }
    };
    let open = OpenSchedule {
        name: schedule.name.clone(),
        placement: schedule.placement.clone(),
        microbatches: schedule.microbatches,
        slices: schedule.slices().clone(),
        programs: (0..schedule.devices()).map(program).collect(),
        goal: Goal::Makespan,
    };
    let settled = order_ops(&open, costs).ok()?;
    let peak_activations = settled.peak(costs.keep);
    let graph = TaskGraph::with_overlap(settled, graph.overlap()).ok()?;
    let makespan = typical_makespan(&graph, costs);
    let change = "backwards split into I and W".to_string();
    Some(Change { what: What::Split, change, makespan, peak_activations, ..own.clone() })
}

/// Tries free links and equal stages.
fn supposed(changed: &Changed<'_>, graph: &TaskGraph, costs: &CostTable, own: &Change) -> Vec<Change> {
    let placement = &graph.schedule().placement;
    let (schedule, counts) = (graph.schedule(), graph.schedule().counts());
    let used = || schedule.op_classes().filter(|op| counts[schedule.class(*op)] > 0);
    // make the average of the stages a whole number of ticks
    let costs = &costs.finer(sim::finer_by(placement.stages() * placement.directions(), graph, costs, 0));
    let average = |class: (Kind, usize)| {
        let alike = || schedule.op_classes().filter(|op| (op.kind(), op.slice_number()) == class);
        let sum: u128 = alike().map(|op| u128::from(costs.of(op).duration)).sum();
        sum.checked_div(alike().count() as u128).unwrap_or(0) as u64
    };
    let classes = schedule.op_classes().map(|op| (op.kind(), op.slice_number()));
    let classes: BTreeSet<(Kind, usize)> = classes.collect();
    let averages: BTreeMap<_, u64> = classes.into_iter().map(|class| (class, average(class))).collect();
    let averages = |op: Op| averages.get(&(op.kind(), op.slice_number())).copied().unwrap_or(0);
    let change = |what, change: &str, then: CostTable| {
        let makespan = then.in_units(changed.makespan(&then)?);
        let order_held_fixed = changed.holds_order();
        Some(Change { what, change: change.to_string(), makespan, order_held_fixed, ..own.clone() })
    };
    let mut changes = Vec::new();
    if used().any(|op| costs.of(op).after + costs.of(op).arrival > 0) {
        let mut free = costs.with_times(placement, |_, time| OpTime { after: 0, arrival: 0, ..time });
        free.effects.puts = None;
        changes.extend(change(What::Links, "free links", free));
    }
    if used().any(|op| costs.of(op).duration.abs_diff(averages(op)) > 1) {
        let equal = |op: Op, time: OpTime| OpTime { duration: averages(op), ..time };
        changes.extend(change(What::Stages, "equal stages", costs.with_times(placement, equal)));
    }
    changes
}
