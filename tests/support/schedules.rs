//! Schedules, graphs and costs from names, rows and texts.

use pipesim::costs::{OpTime, Slow, Summary, TickUnits};
use pipesim::schedules::{Order, order_ops};
use pipesim::{
    CostTable, Costs, GivenCosts, Kind, Metrics, Op, Overlap, Placement, PredictionFigures, ResolveError, Schedule,
    Selection, Setup, TaskGraph, simulation,
};
use std::collections::BTreeMap;

/// A schedule of these rows, one a device.
pub fn schedule(placement: &Placement, microbatches: u32, rows: &[Vec<Op>]) -> Schedule {
    Schedule::new("test", placement.clone(), microbatches, rows.iter().cloned().collect())
}

/// The same, which must be valid.
#[track_caller]
pub fn valid_schedule(placement: &Placement, microbatches: u32, rows: &[Vec<Op>]) -> Schedule {
    let schedule = schedule(placement, microbatches, rows);
    schedule.validate().unwrap_or_else(|fault| panic!("{fault}"));
    schedule
}

/// A row of ops as PyTorch writes them, pairs in parentheses, between commas or blanks. In two directions the later half of the
/// micro-batches goes the other way.
pub fn cells(row: &str, placement: &Placement, microbatches: u32) -> Vec<Op> {
    let one = |text: &str| {
        let op: Op = text.parse().unwrap();
        let second =
            placement.directions() == 2 && placement.microbatches_of(1, microbatches).contains(&op.microbatch());
        op.in_direction(u32::from(second))
    };
    let cell = |cell: &str| match cell.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((pair, _)) => {
            let (a, b) = pair.split_once(';').unwrap();
            vec![one(a).opening_pair(), one(b)]
        }
        None => vec![one(cell)],
    };
    row.split([',', ' ']).filter(|text| !text.is_empty()).flat_map(cell).collect()
}

/// The graph of such rows.
#[track_caller]
pub fn graph_of(placement: Placement, microbatches: u32, rows: &[&str], overlap: Overlap) -> TaskGraph {
    let rows: Vec<Vec<Op>> = rows.iter().map(|row| cells(row, &placement, microbatches)).collect();
    TaskGraph::with_overlap(valid_schedule(&placement, microbatches, &rows), overlap).unwrap()
}

/// One stage a device: so many forwards, then one forward and one backward each, then the rest of the backwards. With m it is
/// GPipe (Huang et al. 2018), with p - 1 - r 1F1B (Narayanan et al. 2021, PipeDream-flush).
pub fn one_stage_a_device(p: u32, m: u32, forwards_first: impl Fn(u32) -> u32) -> Vec<Vec<Op>> {
    let row = |r: u32| {
        let w = forwards_first(r).min(m);
        let (f, b) = (|i: u32| Op::new(Kind::F, r, i), |i: u32| Op::new(Kind::B, r, i));
        let pairs = (0..m - w).flat_map(|i| [f(w + i), b(i)]);
        (0..w).map(f).chain(pairs).chain((m - w..m).map(b)).collect()
    };
    (0..p).map(row).collect()
}

pub fn gpipe(p: u32, m: u32) -> Vec<Vec<Op>> {
    one_stage_a_device(p, m, |_| m)
}

pub fn one_f_one_b(p: u32, m: u32) -> Vec<Vec<Op>> {
    one_stage_a_device(p, m, |r| p - 1 - r)
}

/// ZB-H1 (k = 1) and ZB-H2 (k = 2), Qi et al., arXiv 2401.10241 section 2.
pub fn zero_bubble(p: u32, m: u32, k: u32) -> Vec<Vec<Op>> {
    let row = |r: u32| {
        let w = (k * (p - 1 - r)).min(m);
        let op = |kind: Kind, i: u32| Op::new(kind, r, i);
        let steady = (0..m).flat_map(|i| {
            let forward = (w + i < m).then(|| op(Kind::F, w + i));
            let weights = (w + i >= k * (p - 1)).then(|| op(Kind::W, w + i - k * (p - 1)));
            [forward, Some(op(Kind::I, i)), weights].into_iter().flatten()
        });
        let done = (0..m).filter(|i| w + i >= k * (p - 1)).count() as u32;
        (0..w).map(|i| op(Kind::F, i)).chain(steady).chain((done..m).map(|i| op(Kind::W, i))).collect()
    };
    (0..p).map(row).collect()
}

/// Every micro-batch by itself, its backward these kinds: some valid schedule, whose bounds are those of all.
pub fn in_turn(placement: &Placement, m: u32, backward: &[Kind]) -> TaskGraph {
    let mut rows = vec![Vec::new(); placement.devices() as usize];
    for i in 0..m {
        let direction = u32::from(!placement.microbatches_of(0, m).contains(&i));
        let forth = (0..placement.stages()).map(|stage| (Kind::F, stage));
        let back = (0..placement.stages()).rev().flat_map(|stage| backward.iter().map(move |&kind| (kind, stage)));
        for (kind, stage) in forth.chain(back) {
            let op = Op::new(kind, stage, i).in_direction(direction);
            rows[placement.device_of(op) as usize].push(op);
        }
    }
    TaskGraph::new(valid_schedule(placement, m, &rows)).unwrap()
}

pub fn request(devices: u32, microbatches: u32, chunks: Option<u32>) -> Selection {
    Selection { chunks, ..Selection::new(devices, microbatches) }
}

/// A schedule's name, and what is asked of it; its options may stand behind the name: `hanayo waves=2`.
fn asked(name: &str, p: u32, m: u32, v: Option<u32>) -> (&str, Selection) {
    let (name, options) = name.split_once(' ').unwrap_or((name, ""));
    let option = |word: &str| word.split_once('=').map(|(key, value)| (key.into(), value.into())).unwrap();
    let options = options.split_whitespace().map(option).collect();
    (name, Selection { options, ..request(p, m, v) })
}

/// What the file of this name says.
pub fn order(name: &str, p: u32, m: u32, v: Option<u32>) -> Result<Order, ResolveError> {
    let (name, selection) = asked(name, p, m, v);
    Ok(selection.order(name)?.order)
}

/// The graph of a schedule by its name, at unit costs where costs settle it; or why there is none.
pub fn graph(name: &str, p: u32, m: u32, v: Option<u32>) -> Result<TaskGraph, String> {
    graph_with(name, p, m, v, Overlap::Atomic)
}

pub fn graph_with(name: &str, p: u32, m: u32, v: Option<u32>, overlap: Overlap) -> Result<TaskGraph, String> {
    let (name, selection) = asked(name, p, m, v);
    let settled = Selection { overlap, ..selection }.graph(name, &Costs::default().of_orders(m));
    let graph = settled.map(|settled| settled.graph);
    graph.map_err(|error| match error {
        ResolveError::Ordering { .. } => format!("does not exist for p = {p}, m = {m}: {error}"),
        other => other.to_string(),
    })
}

/// Costs as `--costs` takes them: a device's.
#[track_caller]
pub fn costs(text: &str, placement: &Placement, microbatches: u32) -> CostTable {
    slowed(text, placement, microbatches, &Slow::new())
}

/// The same with `--slow`.
#[track_caller]
pub fn slowed(text: &str, placement: &Placement, microbatches: u32, slow: &Slow) -> CostTable {
    text.parse::<GivenCosts>().unwrap().table(placement, microbatches, slow).unwrap()
}

/// Of a graph's own devices.
#[track_caller]
pub fn costs_of(graph: &TaskGraph, text: &str) -> CostTable {
    let schedule = graph.schedule();
    let whole = costs(text, &schedule.placement, schedule.microbatches);
    whole.sliced(&schedule.placement, schedule.slices(), schedule.microbatches).unwrap()
}

/// What is predicted of it at these costs.
#[track_caller]
pub fn predict(graph: &TaskGraph, costs: &str) -> PredictionFigures {
    simulation::predict(graph, &costs_of(graph, costs), &Setup::default()).unwrap().prediction
}

/// Its figures, of a schedule by its name.
#[track_caller]
pub fn metrics(name: &str, p: u32, m: u32, v: Option<u32>, costs: &str) -> Metrics {
    predict(&graph(name, p, m, v).unwrap(), costs).metrics
}

/// Costs of every stage, direction and kind by themselves, in ticks.
pub fn table(placement: &Placement, keep: f64, mut cost: impl FnMut(Op) -> OpTime) -> CostTable {
    let summary = Summary { F: 1.0, I: 1.0, W: 1.0, B: 2.0, comm: 0.0, keep };
    let mut times = vec![OpTime::default(); placement.stages() as usize * Op::SLOTS_PER_STAGE];
    placement.op_kinds().filter(|op| op.kind().is_costed()).for_each(|op| times[op.slot()] = cost(op));
    CostTable::new(
        placement,
        TickUnits { ticks_per_unit: 1.0, time_unit: "unit", unit_ns: 1_000_000_000 },
        summary,
        |op| times[op.slot()],
    )
}
