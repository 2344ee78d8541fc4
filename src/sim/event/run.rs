//! Runs of a prepared graph: one, or many samples of a distribution.

use super::engine::Simulation;
use super::prepared::{EventError, Method, Prepared};
use super::{Config, Jitter, Observer, TransferTime};
use crate::rules::Machine;
use crate::sweep::sweep_rules;
use pipesim_cost::CostTable;
use pipesim_schedule::check::{check, check_slots};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::{Activity, makespan};
use std::sync::atomic::{AtomicU64, Ordering};

impl Prepared<'_> {
    /// Simulates once; returns what each device did.
    pub fn run(&self, observer: &mut impl Observer) -> Result<Vec<Activity>, EventError> {
        self.run_on(|_, _, duration| duration, observer)
    }

    /// [`run`](Self::run) on a machine whose speed varies: `lasts(device, start, duration)` returns how long an op takes that
    /// would take `duration` at constant speed.
    pub fn run_on(
        &self,
        lasts: impl Fn(u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Vec<Activity>, EventError> {
        let Jitter { seed, sample, .. } = self.config.jitter.unwrap_or_default();
        self.run_sample(seed, sample, lasts, observer)
    }

    fn run_sample(
        &self,
        seed: u64,
        sample: u64,
        lasts: impl Fn(u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Vec<Activity>, EventError> {
        let factors = self.factors.as_ref().map(|table| table.sample(seed, sample));
        let lasts = |index, device, start, duration| {
            let duration = factors.map_or(duration, |factors| factors.stretch(index, duration));
            lasts(device, start, duration)
        };
        self.run_lasting(lasts, observer)
    }

    /// [`run`](Self::run) with durations of the caller's, without [`Config::jitter`]: `lasts(index, device, start, duration)`
    /// returns how long an op takes on a device that does nothing else.
    pub fn run_lasting(
        &self,
        lasts: impl Fn(usize, u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Vec<Activity>, EventError> {
        match &self.method {
            Method::Sweep(rules) => {
                let note = |index, start, end, leaves| {
                    observer.op(index, start, end);
                    let rule = &self.rules[self.graph.schedule().class(self.graph.op(index))];
                    if rule.leaves {
                        let end = leaves + rule.transfer + rule.latency;
                        observer.transfer(TransferTime { op: index, queued: leaves, start: leaves, end });
                    }
                };
                let machine = Machine { rules, extras: &self.extras, begin: &self.begin };
                Ok(sweep_rules(self.graph, machine, lasts, note))
            }
            Method::Events(messages) => {
                Simulation::new(self, messages, lasts, observer).run().ok_or_else(|| self.deadlock())
            }
        }
    }

    /// Returns the deadlock, which is the same whatever ops last.
    fn deadlock(&self) -> EventError {
        let proof = match self.config.slots {
            Some(slots) => check_slots(self.graph, slots),
            None => check(self.graph, self.config.delivery),
        };
        EventError::Deadlock(Box::new(proof.expect_err("the checker finds every deadlock that a run finds")))
    }
}

/// Simulates `graph` under `costs` on the machine of `config`; returns what each device did.
///
/// # Errors
/// A configuration that does not fit the graph, times that could overflow, or a deadlock.
pub fn simulate(
    graph: &TaskGraph,
    costs: &CostTable,
    config: &Config,
    observer: &mut impl Observer,
) -> Result<Vec<Activity>, EventError> {
    Prepared::new(graph, costs, config)?.run(observer)
}

/// The makespans of many samples, in ticks. Percentiles are by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Makespans {
    /// Number of simulated steps.
    pub samples: u32,
    /// Mean, rounded.
    pub mean: u64,
    /// 5th percentile.
    pub p5: u64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
}

/// Calls a function with 0 to n - 1, in parallel if the caller has threads; this module has none.
pub type Each<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Simulates samples 0 to `samples` - 1 of the jitter of `prepared`; `lasts` is as in [`Prepared::run_on`]. Each sample depends
/// on its number alone, so `each` may run them in any order.
///
/// # Errors
/// No samples, or a deadlock.
pub fn monte_carlo(
    prepared: &Prepared<'_>,
    lasts: impl Fn(u32, u64, u64) -> u64 + Sync,
    samples: u32,
    each: Each<'_>,
) -> Result<Makespans, EventError> {
    let Some(last) = samples.checked_sub(1) else {
        return Err(EventError::Config("a distribution needs at least one sample, found 0".to_string()));
    };
    let seed = prepared.config.jitter.unwrap_or_default().seed;
    let run = |number: u32| prepared.run_sample(seed, u64::from(number), &lasts, &mut ()).map(|run| makespan(&run));
    // A deadlock does not depend on durations: if one sample ends, all do.
    let last_one = run(last)?;
    let found: Vec<AtomicU64> = (0..last).map(|_| AtomicU64::new(0)).collect();
    each(found.len(), &|number| {
        if let Ok(ticks) = run(number as u32) {
            found[number].store(ticks, Ordering::Relaxed);
        }
    });
    let mut makespans: Vec<u64> = found.into_iter().map(AtomicU64::into_inner).chain([last_one]).collect();
    makespans.sort_unstable();
    let rank = |percent: usize| makespans[(makespans.len() * percent).div_ceil(100).max(1) - 1];
    let sum: u128 = makespans.iter().map(|&makespan| u128::from(makespan)).sum();
    let mean = ((sum + u128::from(samples) / 2) / u128::from(samples)) as u64;
    Ok(Makespans { samples, mean, p5: rank(5), p50: rank(50), p95: rank(95), p99: rank(99) })
}
