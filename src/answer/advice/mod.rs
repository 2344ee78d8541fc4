//! What could be changed about a step, and the gain: every suggested change is predicted.
//!
//! Candidates are the embedded schedules, with 2 and 4 chunks per device if they leave that open; more micro-batches; the same
//! order with split backwards; free links and equal stages; layers split for the shortest step. Searched orders are skipped, as is
//! everything after a maximum number of ops: work is counted, not timed.

mod changed;

use crate::framework::FrameworkVerdict;
use crate::resolve::{Costs, Resolved, Selection, Variant};
pub use changed::Sensitivities;
use changed::{Changed, typical_ticks};
use pipesim_cost::{CostTable, OpTime};
use pipesim_frameworks::ObjectionKind;
use pipesim_language as dsl;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{OpenSchedule, Program};
use pipesim_schedule::schedule::Schedule;
use pipesim_sim::ordering::order_ops;
use pipesim_sim::{self as sim, Prediction};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Maximum number of ops of all candidates, and of all steps that are simulated to split their layers.
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

/// What is changed, and to which value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Another schedule, or other chunks: the name under which it can be requested.
    Schedule(String),
    /// The number of micro-batches.
    Micro(u32),
    /// Backwards split into I and W, with W in idle gaps and the same memory.
    Split,
    /// Messages and host overheads take no time.
    Links,
    /// Every stage takes the average time.
    Stages,
    /// The layers of each stage.
    Layers(Vec<usize>),
    /// Another split of the layers of stages whose times are given with them.
    Balance,
}

impl What {
    /// Returns the kind of change: `schedule`, `micro`, `split`, `links`, `stages`, `layers` or `balance`.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Schedule(_) => "schedule",
            What::Micro(_) => "micro",
            What::Split => "split",
            What::Links => "links",
            What::Stages => "stages",
            What::Layers(_) => "layers",
            What::Balance => "balance",
        }
    }
}

/// Writes the name of the schedule, the setting with its value (`` `micro` 16 ``), or the assumption in words.
impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Schedule(name) => write!(f, "{name}"),
            What::Micro(count) => write!(f, "`micro` {count}"),
            What::Split => write!(f, "backwards split into I and W"),
            What::Links => write!(f, "free links"),
            What::Stages => write!(f, "equal stages"),
            What::Layers(layers) => {
                let layers: Vec<String> = layers.iter().map(usize::to_string).collect();
                write!(f, "`layers` {}", layers.join(","))
            }
            What::Balance => write!(f, "`balance`"),
        }
    }
}

/// Writes the kind as `what` and the text as `change`.
impl Serialize for What {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut both = serializer.serialize_struct("What", 2)?;
        both.serialize_field("what", self.kind())?;
        both.serialize_field("change", &self.to_string())?;
        both.end()
    }
}

/// A change, and the resulting step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    #[serde(flatten)]
    pub what: What,
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
    /// Why the framework of the stack cannot follow it, and what it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Whether it fits into memory; `None` without hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
}

impl Change {
    /// Returns this change, with the step that it leads to from `own`.
    fn of(self, own: &Change) -> Change {
        let each = |change: &Change| change.makespan / f64::from(change.microbatches.max(1));
        let whole = each(own);
        let saves = if whole > 0.0 { (whole - each(&self)) / whole } else { 0.0 };
        Change { saves, ..self }
    }
}

/// The change and its gain on one line.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.saves;
        let (size, direction) = (percent.abs(), if percent < 0.0 { "more" } else { "less" });
        write!(f, "{}: {size:.1} % {direction} time per micro-batch", self.what)
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
    refused: Option<String>,
    fits: Option<bool>,
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

/// Returns why the framework of the costs' stack does not train `schedule`, if it does not.
fn refusal(costs: &Costs, schedule: &Schedule, base: &str) -> Option<String> {
    let verdict = FrameworkVerdict::of(costs.analytic()?, schedule, Some(base)).ok()??;
    let first = verdict.objections.into_iter().find(|one| one.kind != ObjectionKind::Needs)?;
    let error = first.error.trim_end_matches('.').to_string();
    Some(if first.remedy.is_empty() { error } else { format!("{error}; {}", first.remedy) })
}

/// Returns whether a model on hardware fits into memory under `schedule`; `None` without hardware, and where times of copies decide.
fn fits(costs: &Costs, schedule: &Schedule) -> Option<bool> {
    let analytic = costs.analytic().filter(|_| !schedule.has_copies())?;
    let stages = analytic.stages(schedule.placement.stages()).ok()?;
    Some(analytic.memory_of(&stages, schedule, None).ok()?.fits)
}

/// Returns the costs of a resolved schedule: with its own layers if they are balanced.
fn costs_of<'c>(costs: &'c Costs, resolved: &Resolved) -> Cow<'c, Costs> {
    let own = resolved.balance.as_ref().map(|found| costs.with_layers(found.layers.clone()));
    own.map_or(Cow::Borrowed(costs), Cow::Owned)
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
        let plain = Selection { lenient: false, ..selection.without_options() };
        // each takes many steps if its layers are balanced
        let (left, later) = if selection.balance { (3 * MOST_OPS, MOST_OPS) } else { (MOST_OPS, 0) };
        let mut advisor = Advisor { selection: selection.clone(), costs, tried: Vec::new(), untried: 0, left };
        for name in dsl::names_of_whole() {
            let Ok(variant) = Variant::parse(name) else { continue };
            let several = plain.takes(&variant).is_ok_and(|takes| takes.chunks);
            let names = if several { CHUNKS.map(|v| format!("{name}:v={v}")).to_vec() } else { vec![name.to_string()] };
            for name in names {
                let resolved = advisor.resolved(&plain, &name);
                advisor.tried.extend(resolved.map(|one| {
                    let (costs, schedule) = (costs_of(costs, &one), one.graph.schedule());
                    let (refused, fits) = (refusal(&costs, schedule, &variant.base), fits(&costs, schedule));
                    Tried { refused, fits, ..Tried::new(name, &variant.base, &one) }
                }));
            }
        }
        advisor.left = advisor.left.max(later);
        advisor
    }

    /// Resolves a schedule, if it exists and is cheap enough.
    fn resolved(&mut self, selection: &Selection, name: &str) -> Option<Resolved> {
        let mut selection = selection.clone();
        selection.budget.ops = selection.budget.ops.min(self.left);
        selection.budget.ticks = selection.budget.ticks.min(MOST_TICKS);
        if selection.order(name).is_ok_and(|found| found.order.is_searched()) {
            self.untried += 1;
            return None;
        }
        match selection.resolve(name, self.costs) {
            Ok(resolved) => {
                let steps = 1 + resolved.balance.as_ref().map_or(0, |found| found.simulated);
                self.left -= self.left.min((resolved.graph.len() as u64).saturating_mul(steps));
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
            what: What::Schedule(name.to_string()),
            microbatches: schedule.microbatches,
            makespan: before,
            peak_activations: peak,
            weight_copies: schedule.placement.directions(),
            saves: 0.0,
            order_held_fixed: false,
            refused: None,
            fits: fits(&costs_of(self.costs, resolved), schedule),
        };
        let limit = resolved.setup.memory_cap.unwrap_or(peak);
        let chosen = resolved.chosen.as_deref().unwrap_or(&schedule.name);
        let mut changes = self.others(&own, chosen, graph, costs);
        if graph.len() as u64 <= self.left {
            changes.extend(self.more(name, &own));
            let base = Variant::parse(name).map(|variant| variant.base).unwrap_or_default();
            let split = split(graph, costs, limit, &own).map(|(split, schedule)| {
                let costs = costs_of(self.costs, resolved);
                let refused = refusal(&costs, &graph.schedule().clone().with_split_backwards(), &base);
                let fits = fits(&costs, &schedule);
                Change { refused: refused.filter(|_| own.refused.is_none()), fits, ..split }
            });
            changes.extend(split);
            let changed = Changed::new(&self.selection, name, graph);
            changes.extend(supposed(&changed, graph, costs, &own));
            changes.extend(self.balanced(name, graph, &own));
        } else {
            self.untried += 1;
        }
        Advice { limit, changes, untried: self.untried }
    }

    /// Returns the other schedules that train the same model, the largest saving first.
    fn others(&self, own: &Change, name: &str, graph: &TaskGraph, costs: &CostTable) -> Vec<Change> {
        let schedule = graph.schedule();
        let base = Variant::parse(name).map(|variant| variant.base).unwrap_or_default();
        let (chunks, forward) = (schedule.placement.chunks(), forward_ns(graph, costs));
        let same_model = |tried: &&Tried| tried.forward_ns.abs_diff(forward) <= forward / 1000;
        let other = |tried: &&Tried| (&tried.base, tried.chunks) != (&base, chunks);
        let change = |tried: &Tried| {
            let what = What::Schedule(tried.name.clone());
            let (makespan, peak_activations, weight_copies) = (tried.makespan, tried.peak, tried.copies);
            let (refused, fits) = (tried.refused.clone(), tried.fits);
            Change { what, makespan, peak_activations, weight_copies, refused, fits, ..own.clone() }.of(own)
        };
        let mut found: Vec<Change> = self.tried.iter().filter(same_model).filter(other).map(change).collect();
        found.sort_by(|one, other| {
            let memory = one.peak_activations.total_cmp(&other.peak_activations);
            let name = || one.what.to_string().cmp(&other.what.to_string());
            other.saves.total_cmp(&one.saves).then(memory).then_with(name)
        });
        found
    }

    /// Tries more micro-batches.
    fn more(&mut self, name: &str, own: &Change) -> Vec<Change> {
        if Variant::parse(name).is_ok_and(|variant| variant.is_auto()) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for microbatches in TIMES.iter().filter_map(|times| own.microbatches.checked_mul(*times)) {
            let selection = Selection { microbatches, ..self.selection.clone() };
            let Some(resolved) = self.resolved(&selection, name) else { break };
            let Tried { makespan, peak, .. } = Tried::new(String::new(), "", &resolved);
            let what = What::Micro(microbatches);
            let base = Variant::parse(name).map(|variant| variant.base).unwrap_or_default();
            let (costs, schedule) = (costs_of(self.costs, &resolved), resolved.graph.schedule());
            let refused = refusal(&costs, schedule, &base).filter(|_| own.refused.is_none());
            let fits = fits(&costs, schedule);
            let change = Change { what, microbatches, makespan, peak_activations: peak, refused, fits, ..own.clone() };
            changes.push(change.of(own));
        }
        changes
    }

    /// Tries the optimal split of layers, if a model's parts are known.
    fn balanced(&mut self, name: &str, graph: &TaskGraph, own: &Change) -> Option<Change> {
        let searched = self.selection.order(name).is_ok_and(|found| found.order.is_searched());
        if self.selection.balance
            || searched
            || matches!(self.costs, Costs::Given { costs, .. } if !costs.is_per_stage())
            || graph.len() > MOST_BALANCED
        {
            return None;
        }
        let balanced = Selection { balance: true, ..self.selection.clone() }.resolve(name, self.costs).ok()?;
        let layers = balanced.balance.as_ref()?.layers.clone();
        let costs = self.costs.with_layers(layers.clone());
        // the layers of a command whose costs are given with them are those of these costs
        let are_own = matches!(self.costs, Costs::Given { costs, .. } if costs.layers_are_own());
        let resolved = if are_own {
            balanced
        } else {
            // asked for by themselves, they may give another order, and leave other room for it
            let room = self.selection.room.and_then(|_| costs.analytic()?.room());
            Selection { room, ..self.selection.clone() }.resolve(name, &costs).ok()?
        };
        let Tried { makespan, peak, .. } = Tried::new(String::new(), "", &resolved);
        let what = if are_own { What::Balance } else { What::Layers(layers) };
        let fits = fits(&costs, resolved.graph.schedule());
        Some(Change { what, makespan, peak_activations: peak, fits, ..own.clone() }.of(own))
    }
}

impl Tried {
    fn new(name: String, base: &str, Resolved { graph, costs, .. }: &Resolved) -> Tried {
        let schedule = graph.schedule();
        Tried {
            name,
            refused: None,
            fits: None,
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

/// Tries the same order with I in place of B and W in idle gaps, without exceeding `cap` activations; returns its schedule, too.
fn split(graph: &TaskGraph, costs: &CostTable, cap: f64, own: &Change) -> Option<(Change, Schedule)> {
    let schedule = graph.schedule();
    // The collectives of another order are not known here.
    if schedule.splits_backward() || schedule.has_pairs() || schedule.sharding.is_some() {
        return None;
    }
    let half = |op: &Op| if op.kind() == Kind::B { op.of_kind(Kind::I) } else { *op };
    let open = OpenSchedule::of(schedule, |device| {
        let ops = schedule.program(device).iter().map(half).collect();
        Program::Fill { ops, floating: Kind::W, cap: Some(cap) }
    });
    let settled = order_ops(&open, costs).ok()?;
    let peak_activations = settled.peak(costs.keep);
    let graph = TaskGraph::with_overlap(settled, graph.overlap()).ok()?;
    let makespan = typical_makespan(&graph, costs);
    let change = Change { what: What::Split, makespan, peak_activations, ..own.clone() }.of(own);
    Some((change, graph.schedule().clone()))
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
    let change = |what, then: CostTable| {
        let makespan = then.in_units(changed.makespan(&then)?);
        Some(Change { what, makespan, order_held_fixed: changed.holds_order(), ..own.clone() }.of(own))
    };
    let mut changes = Vec::new();
    if used().any(|op| costs.of(op).after + costs.of(op).arrival > 0) {
        let mut free = costs.with_times(placement, |_, time| OpTime { after: 0, arrival: 0, ..time });
        free.effects.puts = None;
        changes.extend(change(What::Links, free));
    }
    if used().any(|op| costs.of(op).duration.abs_diff(averages(op)) > 1) {
        let equal = |op: Op, time: OpTime| OpTime { duration: averages(op), ..time };
        changes.extend(change(What::Stages, costs.with_times(placement, equal)));
    }
    changes
}
