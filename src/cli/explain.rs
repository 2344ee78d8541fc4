//! `pipesim explain`: where the time goes, what bounds it, and what would shorten it.

use super::Failure;
use super::condition::{Judged, Scope};
use super::options::{CostOptions, JudgeOptions, PrintOptions, RemarkOptions, WriteOptions};
use super::output::{table, versioned};
use super::selection::{Cap, SearchOptions, tell_balance};
use crate::cost::CostTable;
use crate::exact;
use crate::graph::TaskGraph;
use crate::metrics::Metrics;
use crate::report::{self, Entry, Panel, Report, Table, number, percent, quantity};
use crate::sim::{
    self, Bounds, CostShare, CriticalSpan, IdleReport, MemoryCurve, Predicted, Sensitivity, bounds_at_own_peaks,
};
use clap::Args;
use serde::Serialize;

/// Sensitivities that the table shows.
const SHOWN_PARTS: usize = 8;
/// Pieces of the critical path that the table shows at either end.
const SHOWN_PIECES: usize = 8;
/// Largest step whose every op is explained.
const MAX_OPS: usize = 2_000_000;

/// Arguments of `explain`.
#[derive(Args)]
#[command(
    after_help = "Causes of idle time, which add up to the bubble exactly: fill and drain: before a device's first op and after \
its last; order: an op that stands later would have fitted; exposed communication: what free links would save; imbalance: what equal \
stages would save; memory cap (or own peak, where no --memory-cap is given): a forward was ready but would have held too much; dependence: \
the rest."
)]
pub struct Explain {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    /// Prove the best makespan for each schedule's placement within its own peaks, looking at so many states; small cases only
    #[arg(long, value_name = "STATES", num_args = 0..=1, default_missing_value = "2000000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    exact: Option<u64>,
    #[command(flatten)]
    print: PrintOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
    #[command(flatten)]
    judge: JudgeOptions,
}

/// One schedule, times in the unit of its costs.
#[derive(Serialize)]
struct Explained {
    schedule: String,
    devices: u32,
    microbatches: u32,
    time_unit: String,
    #[serde(flatten)]
    metrics: Metrics,
    bounds: NamedBounds,
    /// The same, no device holding more than it does in this schedule.
    bounds_at_own_peaks: NamedBounds,
    idle: IdleReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<Exact>,
    /// Zero: the makespan hangs on the op.
    slack: Vec<Slack>,
    critical_path: Vec<CriticalSpan>,
    /// By what percentage the makespan shrinks when a part's times shrink by one percent.
    sensitivities: Vec<Sensitivity>,
    memory: Vec<MemoryCurve>,
}

/// [`Bounds`] in the costs' unit.
#[derive(Serialize)]
struct NamedBounds {
    work: f64,
    critical_path: f64,
    head_work_tail: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<f64>,
    best: f64,
    best_name: &'static str,
    /// The best where backwards may be split into I and W, whatever they are here.
    #[serde(skip_serializing_if = "Option::is_none")]
    if_split: Option<f64>,
}

/// What a search through all orders within this schedule's own peaks found.
#[derive(Serialize)]
struct Exact {
    /// The best makespan found.
    makespan: f64,
    /// None is below this.
    lower_bound: f64,
    /// Whether the two are one: it is proven.
    optimal: bool,
    states: u64,
    /// What the orders are of, where that is not this schedule's very ops.
    #[serde(skip)]
    of: &'static str,
}

/// How much longer an op may last.
#[derive(Serialize)]
struct Slack {
    op: String,
    device: u32,
    slack: f64,
}

impl Explain {
    /// Explains, prints, writes.
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        self.judge.refuse(Scope::Predictions(self.costs.time_unit()))?;
        let (mut explanations, mut entries) = (Vec::new(), Vec::new());
        for resolved in self.schedules.resolved(&self.costs.costs()?, self.costs.balance, self.remarks)? {
            tell_balance(&resolved, self.remarks);
            let graph = &resolved.graph;
            if graph.len() > MAX_OPS {
                return Err(Failure::Usage(format!(
                    "{} has {} ops; explain takes up to {MAX_OPS}: ask for fewer micro-batches",
                    graph.schedule().name,
                    graph.len()
                )));
            }
            let predicted = resolved.predict()?;
            if !self.write.output.is_empty() {
                let panel = Panel::predicted(&predicted);
                entries.push(Entry { name: graph.schedule().name.clone(), predicted: Some(panel), ..Entry::default() });
            }
            let _busy = self.remarks.busy(&format!("explaining {}", graph.schedule().name), None);
            explanations.push(self.explain(&predicted)?);
        }
        let report = Report { extra_tables: explanations.iter().flat_map(tables).collect(), ..Report::default() };
        let json = || versioned("explanations", &explanations);
        let printed = self.print.show(&report, json, || table(&report), || intervals(&explanations));
        let (p, m) = (self.schedules.stages.first(), self.schedules.micro.first());
        let title = format!("Explained: {p} devices, {m} micro-batches");
        self.write.write(&Report { title, entries, look: self.write.look.look(), ..report }, printed, self.remarks)?;
        let judged = explanations.iter().map(|e| Judged::predicted(&e.schedule, &e.time_unit, &e.metrics));
        self.judge.held(&judged.collect::<Vec<_>>())?.judge()
    }

    /// Explains the very times of the prediction.
    fn explain(&self, predicted: &Predicted) -> Result<Explained, Failure> {
        let Predicted { graph, costs, .. } = *predicted;
        let (times, cap) = (predicted.op_times(), self.schedules.memory_cap.and_then(Cap::units));
        let unit = |ticks: u64| ticks as f64 / costs.ticks_per_unit;
        let named = |bounds: Bounds| {
            let (best, best_name) = bounds.best();
            let Bounds { work, critical_path, head_work_tail, memory, if_split, .. } = bounds;
            NamedBounds {
                work: unit(work),
                critical_path: unit(critical_path),
                head_work_tail: unit(head_work_tail),
                memory: memory.map(unit),
                best: unit(best),
                best_name,
                if_split: if_split.map(unit),
            }
        };
        let path = sim::critical_path(graph, costs, &times);
        let lasting = predicted.durations();
        let mut sensitivities = sim::sensitivities(graph, costs, lasting.as_deref(), &CostShare::all(graph));
        sensitivities.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        let slack = |(index, slack): (usize, u64)| Slack {
            op: graph.op(index).to_string(),
            device: graph.device_of(index),
            slack: unit(slack),
        };
        Ok(Explained {
            exact: self.exact.map(|states| prove(graph, costs, states, self.remarks)).transpose()?,
            schedule: graph.schedule().name.clone(),
            devices: graph.schedule().devices(),
            microbatches: graph.schedule().microbatches,
            time_unit: costs.time_unit.to_string(),
            metrics: predicted.metrics().clone(),
            bounds: named(predicted.bounds),
            bounds_at_own_peaks: named(bounds_at_own_peaks(graph, costs)),
            idle: sim::explain(graph, costs, &times, cap).report(graph, costs),
            slack: sim::slacks(graph, costs, &times, lasting.as_deref()).into_iter().enumerate().map(slack).collect(),
            critical_path: sim::critical_spans(graph, costs, &path),
            sensitivities,
            memory: sim::memory(graph, costs, &times, cap),
        })
    }
}

/// Looks through the orders of this schedule's ops in which no device holds more than it does here.
fn prove(graph: &TaskGraph, costs: &CostTable, states: u64, remarks: RemarkOptions) -> Result<Exact, Failure> {
    let what = format!("looking through up to {states} states for the best order of {}", graph.schedule().name);
    let _busy = remarks.busy(&what, None);
    let proof = exact::prove_against(graph, costs, exact::Budget { states })
        .map_err(|e| Failure::Usage(format!("{}: --exact: {e}", graph.schedule().name)))?;
    let unit = |ticks: u64| ticks as f64 / costs.ticks_per_unit;
    let exact::Proof { objective, lower_bound, optimal, states, .. } = proof;
    let schedule = graph.schedule();
    let of = match (schedule.mixes_backwards(), schedule.has_pairs()) {
        (true, true) => " (pairs apart, backwards split)",
        (true, false) => " (backwards split)",
        (false, true) => " (pairs apart)",
        (false, false) => "",
    };
    Ok(Exact { makespan: unit(objective), lower_bound: unit(lower_bound), optimal, states, of })
}

/// The name of a time unit for many.
fn plural(unit: &str) -> &str {
    if unit == "unit" { "units" } else { unit }
}

fn texts<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_string).to_vec()
}

fn tables(e: &Explained) -> Vec<Table> {
    vec![idle_table(e), bound_table(e), sensitivity_table(e), path_table(e), memory_table(e)]
}

fn idle_table(e: &Explained) -> Table {
    let whole = f64::from(e.devices) * e.metrics.makespan;
    let cells =
        |t: &sim::IdleTime| [t.idle, t.fill, t.drain, t.dependence, t.communication, t.imbalance, t.memory, t.order];
    let row = |name: String, t| [name].into_iter().chain(cells(t).map(number)).collect::<Vec<_>>();
    let mut rows: Vec<Vec<String>> =
        e.idle.per_device.iter().enumerate().map(|(device, t)| row(format!("device {device}"), t)).collect();
    rows.push(row("all".to_string(), &e.idle.total));
    let share = |time: f64| percent(if whole > 0.0 { time / whole } else { 0.0 });
    rows.push(["share".to_string()].into_iter().chain(cells(&e.idle.total).map(share)).collect());
    let memory = if e.memory.iter().any(|m| m.cap.is_some()) { "memory cap" } else { "own peak" };
    Table {
        caption: format!(
            "{}: why devices idle ({}; makespan {}{}, bubble {})",
            e.schedule,
            plural(&e.time_unit),
            number(e.metrics.makespan),
            if e.metrics.typical_speed.is_some() { " under its speed as it was measured" } else { "" },
            percent(e.metrics.bubble)
        ),
        header: texts(["", "idle", "fill", "drain", "dependence", "exposed comm.", "imbalance", memory, "order"]),
        rows,
    }
}

fn bound_table(e: &Explained) -> Table {
    let typical = e.metrics.typical_speed;
    let makespan = typical.map_or(e.metrics.makespan, |typical| typical.makespan);
    let gap = |bound: f64| if bound > 0.0 { percent(makespan / bound - 1.0) } else { String::new() };
    let row = |name: &str, bound: f64| vec![name.to_string(), quantity(bound, &e.time_unit), gap(bound)];
    let b = &e.bounds;
    let mut rows = vec![
        row("work of the busiest device", b.work),
        row("critical path of one micro-batch", b.critical_path),
        row("head + work + tail", b.head_work_tail),
    ];
    rows.extend(b.memory.map(|memory| row("within the memory cap", memory)));
    rows.extend(e.bounds_at_own_peaks.memory.map(|memory| row("within this schedule's own peaks", memory)));
    rows.extend(e.exact.as_ref().map(|exact| {
        let name = if exact.optimal { "best order within them, proven" } else { "any order within them, proven" };
        row(&format!("{name}{}", exact.of), exact.lower_bound)
    }));
    rows.extend(
        b.if_split.filter(|&bound| bound != b.best).map(|bound| row("if backwards may be split into I and W", bound)),
    );
    Table {
        caption: format!(
            "{}: lower bounds for any order of these ops ({}makespan {})",
            e.schedule,
            if typical.is_some() { "all at typical speed, with " } else { "" },
            quantity(makespan, &e.time_unit)
        ),
        header: texts(["bound", "lower bound", "gap"]),
        rows,
    }
}

fn sensitivity_table(e: &Explained) -> Table {
    let row = |s: &Sensitivity| vec![s.part.clone(), format!("{:.3} %", s.percent)];
    Table {
        caption: format!("{}: what 1 % less of a part's time saves", e.schedule),
        header: texts(["part", "of the makespan"]),
        rows: e.sensitivities.iter().filter(|s| s.percent > 0.0).take(SHOWN_PARTS).map(row).collect(),
    }
}

fn path_table(e: &Explained) -> Table {
    let critical = e.slack.iter().filter(|slack| slack.slack == 0.0).count();
    let row = |p: &CriticalSpan| {
        let what = match (&p.to, p.what) {
            (Some(to), _) => format!("{} to {to}", p.op),
            (None, "overhead") => format!("overhead after {}", p.op),
            (None, _) => p.op.clone(),
        };
        vec![what, p.device.to_string(), number(p.start), number(p.end)]
    };
    let path = &e.critical_path;
    let rows = if path.len() <= 2 * SHOWN_PIECES {
        path.iter().map(row).collect()
    } else {
        let left = path.len() - 2 * SHOWN_PIECES;
        let first = path[..SHOWN_PIECES].iter().map(row);
        let last = path[path.len() - SHOWN_PIECES..].iter().map(row);
        first.chain([vec![format!("... {left} more")]]).chain(last).collect()
    };
    Table {
        caption: format!(
            "{}: a critical path of {} pieces ({}); {critical} of {} ops have no slack",
            e.schedule,
            path.len(),
            plural(&e.time_unit),
            e.slack.len()
        ),
        header: texts(["piece", "device", "start", "end"]),
        rows,
    }
}

fn memory_table(e: &Explained) -> Table {
    let row = |m: &MemoryCurve| {
        let cap = m
            .cap
            .map_or_else(String::new, |cap| format!("{} of {}", if m.within_cap { "yes" } else { "no" }, number(cap)));
        vec![
            m.device.to_string(),
            number(m.peak),
            m.peak_op.clone().unwrap_or_default(),
            quantity(m.peak_time, &e.time_unit),
            cap,
        ]
    };
    Table {
        caption: format!("{}: activations", e.schedule),
        header: texts(["device", "peak", "reached by", "at", "within the cap"]),
        rows: e.memory.iter().map(row).collect(),
    }
}

/// A row an idle interval.
fn intervals(explanations: &[Explained]) -> String {
    let mut text = String::from("schedule,device,start,end,cause,next,op,on\n");
    for e in explanations {
        for idle in &e.idle.idle {
            let cause = serde_json::to_value(idle.cause).ok().and_then(|cause| cause.as_str().map(str::to_string));
            let on = idle.on.map_or_else(String::new, |on| on.to_string());
            let [next, op] = [&idle.next, &idle.op].map(|op| op.clone().unwrap_or_default());
            text += &format!(
                "{},{},{},{},{},{next},{op},{on}\n",
                report::csv_cell(&e.schedule),
                idle.device,
                idle.start,
                idle.end,
                cause.unwrap_or_default()
            );
        }
    }
    text
}
