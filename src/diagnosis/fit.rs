//! How well costs of a measured step predict that step.

use super::{Error, MeasuredStep, Replay};
use pipesim_cost::{CostFile, CostTable};
use pipesim_models::model_spec::Stage;
use pipesim_schedule::delivery::{ChannelOptions, Delivery, PyTorch};
use pipesim_sim::event::Config;
use pipesim_sim::{self as sim, Setup};
use serde::Serialize;

/// Difference of start errors within which deliveries fit equally.
const ALIKE: f64 = 0.000_1;

/// The prediction of a measured step under one delivery.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeliveryFit {
    pub delivery: String,
    /// Predicted / measured makespan - 1.
    pub makespan_error: f64,
    /// Mean over ops of |predicted start - measured start|, as a share of the measured makespan.
    pub start_error: f64,
}

/// Predictions of a measured step from its own costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Predicted / measured makespan - 1, from the mean costs by stage and kind, one-sided.
    pub makespan_error: f64,
    /// Makespan of the ops' own durations, host delays and messages, replayed, / measured makespan - 1.
    pub replay_error: f64,
    /// All deliveries under which the order runs; the one that fits best first.
    pub deliveries: Vec<DeliveryFit>,
}

/// Deliveries that are tried.
fn candidates() -> [Delivery; 6] {
    [
        Delivery::OneSided,
        Delivery::PyTorch(PyTorch::Newest),
        Delivery::PyTorch(PyTorch::V2_11),
        Delivery::Megatron,
        Delivery::Batched,
        Delivery::Channel(ChannelOptions::default()),
    ]
}

impl Fit {
    /// Predicts `step` from `costs`.
    ///
    /// # Errors
    /// The costs do not match its stages.
    pub fn new(step: &MeasuredStep, costs: &CostFile) -> Result<Fit, Error> {
        let schedule = step.graph.schedule();
        let layers = costs.stage_layers().unwrap_or_else(|| vec![1; schedule.placement.stages() as usize]);
        let table = costs.table(&schedule.placement, &Stage::of_layers(&layers), costs.size())?;
        let mut deliveries: Vec<DeliveryFit> =
            candidates().into_iter().filter_map(|delivery| of_delivery(step, &table, delivery)).collect();
        let makespan_error = deliveries.first().map_or(0.0, |one_sided| one_sided.makespan_error);
        deliveries.sort_by(|one, other| one.start_error.total_cmp(&other.start_error));
        let replay_error = Replay::new(step).makespan() as f64 / (step.makespan() as f64).max(1.0) - 1.0;
        Ok(Fit { makespan_error, replay_error, deliveries })
    }

    /// Returns the deliveries that fit best: to 0.01 % of the step they cannot be told apart.
    pub fn best(&self) -> impl Iterator<Item = &DeliveryFit> {
        let least = self.deliveries.first().map_or(0.0, |first| first.start_error);
        self.deliveries.iter().take_while(move |fit| fit.start_error <= least + ALIKE)
    }

    /// Names the deliveries that fit best: `` `delivery` one-sided fits it best ``.
    pub fn best_in_words(&self) -> String {
        let names: Vec<&str> = self.best().map(|fit| fit.delivery.as_str()).collect();
        match names.as_slice() {
            [] => "it runs under no known delivery".to_string(),
            [one] => format!("`delivery` {one} fits it best"),
            [most @ .., last] => format!("`delivery` {} and {last} fit it best", most.join(", ")),
        }
    }
}

/// Predicts under `delivery`; `None` if the order deadlocks there.
fn of_delivery(step: &MeasuredStep, table: &CostTable, delivery: Delivery) -> Option<DeliveryFit> {
    let machine = (delivery != Delivery::OneSided).then(|| Config { delivery, ..Config::default() });
    let setup = Setup { machine, ..Setup::default() };
    let predicted = sim::predict(&step.graph, table, &setup).ok()?;
    let times = predicted.op_times();
    let (count, makespan) = (step.graph.len().max(1) as f64, (step.makespan() as f64).max(1.0));
    let off = |(one, other): (&u64, &u64)| one.abs_diff(*other) as f64;
    Some(DeliveryFit {
        delivery: delivery.to_string(),
        makespan_error: predicted.makespan() as f64 / makespan - 1.0,
        start_error: times.start.iter().zip(&step.times.start).map(off).sum::<f64>() / count / makespan,
    })
}
