//! Simulation of one step, by the sweep or by the event engine, at constant or measured speed.

use super::event::{Config, EventError, Prepared, Record};
use super::machine::machine;
use super::sweep::{sweep, sweep_lasting};
use pipesim_cost::{CostTable, Slowdown};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::{Activity, makespan};
use pipesim_schedule::statistics::nearest_median;
use std::convert::Infallible;

/// A predicted step without the times of its ops.
#[derive(Clone, Debug)]
pub struct Step {
    /// By device.
    pub devices: Vec<Activity>,
    /// Number of the measured speed at which it runs; `None` at constant speed.
    pub(super) speed_number: Option<usize>,
    /// Its makespan at the machine's median speed.
    pub typical_makespan: u64,
    /// Makespan at each measured speed, in ticks.
    pub at_speeds: Vec<u64>,
}

pub(super) fn typical_sweep(graph: &TaskGraph, costs: &CostTable) -> Step {
    let swept = |speed: Option<&Slowdown>| sweep_at_speed(graph, costs, speed, |_, _| (), |_, _, _| ());
    let Ok(step) = Step::typical::<Infallible>(costs, |speed| Ok(swept(speed)));
    step
}

/// [`typical_sweep`] by the event engine, which records in `record`.
pub(super) fn typical_run(prepared: &Prepared<'_>, costs: &CostTable, record: &mut Record) -> Result<Step, EventError> {
    let run = |speed: &Slowdown, observer: &mut Record| {
        prepared.run_on(|device, start, duration| speed.stretch(device, start, duration), observer)
    };
    let step = Step::typical(costs, |speed| {
        Ok(match speed {
            None => prepared.run(&mut ())?,
            Some(speed) => run(speed, record)?,
        })
    })?;
    step.speed(costs).map(|speed| run(speed, record)).transpose()?;
    Ok(step)
}

impl Step {
    /// Creates a step at constant speed.
    pub(super) fn steady(devices: Vec<Activity>) -> Step {
        Step { typical_makespan: makespan(&devices), devices, speed_number: None, at_speeds: Vec::new() }
    }

    /// Returns, of the steps that `run` simulates at each measured speed, the one nearest to the median; the step at constant speed if
    /// none was measured.
    fn typical<E>(
        costs: &CostTable,
        mut run: impl FnMut(Option<&Slowdown>) -> Result<Vec<Activity>, E>,
    ) -> Result<Step, E> {
        let steady = run(None)?;
        let mut all = costs.effects.speeds.iter().map(|speed| run(Some(speed))).collect::<Result<Vec<_>, E>>()?;
        if all.is_empty() {
            return Ok(Step::steady(steady));
        }
        let busy = |devices: &[Activity]| devices.iter().map(|device| device.busy as f64).sum();
        let figures: Vec<(f64, f64)> = all.iter().map(|devices| (makespan(devices) as f64, busy(devices))).collect();
        let number = nearest_median(&figures);
        let at_speeds = all.iter().map(|devices| makespan(devices)).collect();
        let typical_makespan = makespan(&steady);
        Ok(Step { devices: all.swap_remove(number), speed_number: Some(number), typical_makespan, at_speeds })
    }

    pub(super) fn speed<'a>(&self, costs: &'a CostTable) -> Option<&'a Slowdown> {
        self.speed_number.map(|number| &costs.effects.speeds[number])
    }

    /// Returns the end of the last op, in ticks.
    pub fn makespan(&self) -> u64 {
        makespan(&self.devices)
    }
}

/// Returns how long an op of median duration `duration` takes on `device` from `start` on.
pub(super) fn lasting(speed: Option<&Slowdown>, device: u32, start: u64, duration: u64) -> u64 {
    speed.map_or(duration, |speed| speed.stretch(device, start, duration))
}

/// Sweeps at a measured or constant speed. Calls `lasts` with the duration of each op, and `note` with its start and end.
pub(super) fn sweep_at_speed(
    graph: &TaskGraph,
    costs: &CostTable,
    speed: Option<&Slowdown>,
    lasts: impl Fn(usize, u64),
    note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let Some(_) = speed else { return sweep_lasting(graph, costs, |_, _, _, duration| duration, note) };
    let stretch = |index, device, start, duration| {
        let lasted = lasting(speed, device, start, duration);
        lasts(index, lasted);
        lasted
    };
    sweep_lasting(graph, costs, stretch, note)
}

/// Simulates the step of a prediction on the machine `asked_for`.
pub fn typical_step_on(graph: &TaskGraph, costs: &CostTable, asked_for: Option<&Config>) -> Result<Step, EventError> {
    match machine(graph, costs, asked_for) {
        None => Ok(typical_sweep(graph, costs)),
        Some(config) => typical_run(&Prepared::new(graph, costs, &config)?, costs, &mut Record::new(graph)),
    }
}

/// Returns the makespan on the machine `asked_for` at the machine's median speed, in ticks.
pub fn steady_makespan(graph: &TaskGraph, costs: &CostTable, asked_for: Option<&Config>) -> Result<u64, EventError> {
    Ok(match machine(graph, costs, asked_for) {
        None => makespan(&sweep(graph, costs)),
        Some(config) => makespan(&Prepared::new(graph, costs, &config)?.run(&mut ())?),
    })
}
