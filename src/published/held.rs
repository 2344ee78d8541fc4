//! Predictions of rows, side by side with what was measured.

use super::row::Row;
use crate::cost::CostTable;
use crate::cost::analytic::{Analytic, StepTime};
use crate::graph::TaskGraph;
use crate::metrics::Activity;
use crate::open::Order;
use crate::placement::Placement;
use crate::resolve::{Error, Host, Selection};
use crate::sim::sweep;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A row, and what is predicted of it.
#[derive(Clone, Debug)]
pub struct Held {
    /// What was measured.
    pub row: Row,
    /// What is predicted, or why nothing is.
    pub time: Result<StepTime, String>,
    /// FLOP/s of a GPU over its peak, by what was measured.
    pub mfu: f64,
}

impl Held {
    /// Predicted over measured, less 1.
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

/// The orders of a row's schedule: one of as many micro-batches as it has, or, where orders are searched and there are many, two of
/// fewer from which the step follows in a straight line.
pub type Orders = Vec<Ordered>;

/// From so many micro-batches a device on a searched order's step is taken to grow in a straight line.
const LINEAR_FROM: u32 = 5;

/// Which orders are the same: schedule, devices, chunks, micro-batches.
type Key = (String, u32, u32, u32);

fn key(row: &Row, costs: &Analytic) -> Key {
    (row.schedule().to_string(), row.pp, row.chunks, costs.layout.micro)
}

/// The orders of the row's schedule.
///
/// # Errors
/// As [`Selection::resolve`].
pub fn orders(row: &Row, costs: &Analytic, host: &'static dyn Host) -> Result<Orders, Error> {
    let (p, m) = (costs.layout.devices, costs.layout.micro);
    let selection = |microbatches| {
        let chunks = (row.schedule() == "interleaved-1f1b").then_some(costs.layout.chunks);
        Selection { chunks, host, ..Selection::new(p, microbatches) }
    };
    let searched = matches!(selection(p).order(row.schedule())?.order, Order::Open(_));
    let counts = match searched && m > LINEAR_FROM * p {
        true => vec![(LINEAR_FROM - 2) * p + m % p, (LINEAR_FROM - 1) * p + m % p],
        false => vec![m],
    };
    let pricing = |_: &str, placement: &Placement| -> Result<CostTable, Error> {
        Ok(costs.table(placement, &costs.stages(placement.stages())?)?)
    };
    let one = |microbatches: u32| {
        let graph = selection(microbatches).graph::<Error>(row.schedule(), &pricing)?.graph;
        Ok(Ordered { microbatches, graph })
    };
    counts.into_iter().map(one).collect()
}

/// The step of `costs` under these orders.
///
/// # Errors
/// A model that does not split into the stages.
pub fn step(costs: &Analytic, orders: &[Ordered]) -> Result<StepTime, Error> {
    let Some(Ordered { microbatches: fewer, graph }) = orders.first() else {
        return Err(Error::Usage("expected an order, found none".to_string()));
    };
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

/// Predicts all rows.
pub fn hold(rows: Vec<Row>, host: &'static dyn Host, told: &(dyn Fn(&Row) + Sync)) -> Vec<Held> {
    let all: Vec<(Row, Result<Analytic, String>)> =
        rows.into_iter().map(|row| (row.clone(), row.costs().map_err(|error| error.to_string()))).collect();
    let mut kinds: BTreeMap<Key, usize> = BTreeMap::new();
    for (number, (row, costs)) in all.iter().enumerate() {
        if let Ok(costs) = costs {
            kinds.entry(key(row, costs)).or_insert(number);
        }
    }
    let firsts: Vec<usize> = kinds.values().copied().collect();
    let found: Mutex<BTreeMap<Key, Result<Orders, String>>> = Mutex::default();
    host.each(firsts.len(), &|which| {
        let (row, costs) = &all[firsts[which]];
        if let Ok(costs) = costs {
            told(row);
            let orders = orders(row, costs, host).map_err(|error| error.to_string());
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(key(row, costs), orders);
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let one = |(row, costs): (Row, Result<Analytic, String>)| {
        let mfu = costs.as_ref().map_or(0.0, |costs| {
            let peak = costs.machine.hardware.bf16_tflops * 1e12 * costs.layout.gpus() as f64;
            costs.model_flops() / row.iteration_s / peak
        });
        let time = costs.and_then(|costs| match found.get(&key(&row, &costs)) {
            Some(Ok(orders)) => step(&costs, orders).map_err(|error| error.to_string()),
            Some(Err(error)) => Err(error.clone()),
            None => Err("no order was found".to_string()),
        });
        Held { row, time, mfu }
    };
    all.into_iter().map(one).collect()
}
