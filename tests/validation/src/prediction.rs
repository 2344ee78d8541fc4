//! Predictions of published rows.

use crate::row::Row;
use anyhow::{Result, bail};
use pipesim::costs::{Analytic, StepTime};
use pipesim::schedules::{Files, Order};
use pipesim::simulation::{Activity, sweep};
use pipesim::{CostTable, Host, Placement, ResolveError, Selection, TaskGraph};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A row and its prediction.
#[derive(Clone, Debug)]
pub struct RowPrediction {
    /// What was measured.
    pub row: Row,
    /// Predicted time, or why the row cannot be predicted.
    pub time: Result<StepTime, String>,
    /// Measured FLOP/s per GPU over its peak.
    pub mfu: f64,
}

impl RowPrediction {
    /// Returns predicted over measured time, minus 1.
    pub fn error(&self) -> Option<f64> {
        Some(self.time.as_ref().ok()?.iteration() / self.row.iteration_s - 1.0)
    }
}

/// One order, for a number of micro-batches.
#[derive(Clone, Debug)]
pub struct Ordered {
    microbatches: u32,
    graph: TaskGraph,
}

/// Orders of a row's schedule: one with all its micro-batches; or, for searched orders with many micro-batches, two with fewer, from
/// which the step is extrapolated linearly.
pub type Orders = Vec<Ordered>;

/// Micro-batches per device from which a searched order is assumed to grow linearly.
const LINEAR_FROM: u32 = 5;

/// What determines an order: schedule, devices, chunks, micro-batches.
pub type Key = (String, u32, u32, u32);

pub fn key(row: &Row, costs: &Analytic) -> Key {
    (row.schedule().to_string(), row.pp, costs.layout.chunks, costs.layout.micro)
}

/// Returns whether the order of the row's schedule is searched, which takes seconds to minutes.
pub fn is_searched(row: &Row) -> bool {
    let selection = Selection::new(row.pp.max(1), row.pp.max(1));
    selection.order(row.schedule()).is_ok_and(|found| matches!(found.order, Order::Open(_)))
}

/// Returns the orders of the row's schedule.
///
/// # Errors
/// As [`Selection::resolve`].
pub fn orders(row: &Row, costs: &Analytic) -> Result<Orders> {
    let (p, m) = (costs.layout.pp, costs.layout.micro);
    let selection = |microbatches| {
        let chunks = (row.schedule() == "interleaved-1f1b").then_some(costs.layout.chunks);
        Selection { chunks, ..Selection::new(p, microbatches) }
    };
    let searched = matches!(selection(p).order(row.schedule())?.order, Order::Open(_));
    let counts = match searched && m > LINEAR_FROM * p {
        true => vec![(LINEAR_FROM - 2) * p + m % p, (LINEAR_FROM - 1) * p + m % p],
        false => vec![m],
    };
    let pricing = |_: &str, placement: &Placement| -> Result<CostTable, ResolveError> {
        Ok(costs.table(placement, &costs.stages(placement.stages())?)?)
    };
    let one = |microbatches: u32| {
        let graph = selection(microbatches).graph::<ResolveError>(row.schedule(), &pricing)?.graph;
        Ok(Ordered { microbatches, graph })
    };
    counts.into_iter().map(one).collect()
}

/// Returns the step of `costs` under these orders.
///
/// # Errors
/// A model that cannot be split into the stages, or no order.
pub fn step(costs: &Analytic, orders: &[Ordered]) -> Result<StepTime> {
    let Some(Ordered { microbatches: fewer, graph }) = orders.first() else { bail!("expected an order, found none") };
    let placement = &graph.schedule().placement;
    let stages = costs.stages(placement.stages())?;
    let table = costs.table(placement, &stages)?;
    let mut devices = sweep(graph, &table);
    if let Some(Ordered { microbatches: more, graph }) = orders.get(1) {
        let times = u64::from((costs.layout.micro - more) / (more - fewer).max(1));
        for (device, later) in devices.iter_mut().zip(sweep(graph, &table)) {
            let grown = later.last_end.saturating_sub(device.last_end) * times;
            let busy = later.busy + later.busy.saturating_sub(device.busy) * times;
            *device = Activity { busy, last_end: later.last_end + grown, free: later.free + grown, ..later };
        }
    }
    Ok(costs.step(placement, &stages, &devices, graph.schedule().splits_backward())?)
}

/// Predicts all rows. Rows with the same schedule and sizes share their orders.
pub fn predict(rows: Vec<Row>) -> Vec<RowPrediction> {
    let all: Vec<(Row, Result<Analytic>)> = rows.into_iter().map(|row| (row.clone(), row.costs())).collect();
    let mut firsts: BTreeMap<Key, (&Row, &Analytic)> = BTreeMap::new();
    for (row, costs) in &all {
        if let Ok(costs) = costs {
            firsts.entry(key(row, costs)).or_insert((row, costs));
        }
    }
    let firsts: Vec<(Key, (&Row, &Analytic))> = firsts.into_iter().collect();
    let found: Mutex<BTreeMap<&Key, Result<Orders>>> = Mutex::default();
    Files.each(firsts.len(), &|which| {
        let (key, (row, costs)) = &firsts[which];
        let orders = orders(row, costs);
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(key, orders);
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let one = |(row, costs): &(Row, Result<Analytic>)| {
        let (time, mfu) = match costs {
            Err(error) => (Err(error.to_string()), 0.0),
            Ok(costs) => {
                let peak = costs.machine.hardware.bf16_tflops * 1e12 * costs.layout.gpus() as f64;
                let time = match &found[&key(row, costs)] {
                    Ok(orders) => step(costs, orders).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                (time, costs.model_flops() / row.iteration_s / peak)
            }
        };
        RowPrediction { row: row.clone(), time, mfu }
    };
    all.iter().map(one).collect()
}
