//! Runs of what is prepared: one, or many that chance tells apart.

use super::engine::Simulation;
use super::prepared::{EventError, Prepared};
use super::{Config, Jitter, Observer, Outcome, straight};
use crate::check::{check, check_slots};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use std::sync::atomic::{AtomicU64, Ordering};

impl Prepared<'_> {
    /// One simulation.
    pub fn run(&self, observer: &mut impl Observer) -> Result<Outcome, EventError> {
        self.run_on(|_, _, duration| duration, observer)
    }

    /// One simulation where `lasts(device, start, duration)` is how long the machine takes for an op that, by its costs and by
    /// chance, has such a duration.
    pub fn run_on(
        &self,
        lasts: impl Fn(u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Outcome, EventError> {
        let Jitter { seed, sample, .. } = self.config.jitter.unwrap_or_default();
        self.run_sample(seed, sample, lasts, observer)
    }

    fn run_sample(
        &self,
        seed: u64,
        sample: u64,
        lasts: impl Fn(u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Outcome, EventError> {
        match self.chance.as_ref().map(|table| table.sample(seed, sample)) {
            None => self.run_lasting(|_, device, start, duration| lasts(device, start, duration), observer),
            Some(sample) => {
                let by_chance = |index, duration| sample.stretch(index, duration);
                self.run_lasting(
                    |index, device, start, duration| lasts(device, start, by_chance(index, duration)),
                    observer,
                )
            }
        }
    }

    /// One simulation where `lasts(index, device, start, duration)` is how long an op takes on a device that does nothing
    /// else. [`Config::jitter`] does not apply.
    pub fn run_lasting(
        &self,
        lasts: impl Fn(usize, u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Outcome, EventError> {
        match &self.messages {
            None => Ok(straight::run(self, lasts, observer)),
            Some(messages) => Simulation::new(self, messages, lasts, observer).run().ok_or_else(|| self.deadlock()),
        }
    }

    /// Who waits for whom: what a run in which nothing can happen any more comes to is the same whatever ops last.
    fn deadlock(&self) -> EventError {
        let proof = match self.config.slots {
            Some(slots) => check_slots(self.graph, slots),
            None => check(self.graph, self.config.delivery),
        };
        EventError::Deadlock(Box::new(proof.expect_err("the checker finds every deadlock that a run finds")))
    }
}

/// Simulates `graph` under `costs` on the machine of `config`.
pub fn simulate(
    graph: &TaskGraph,
    costs: &CostTable,
    config: &Config,
    observer: &mut impl Observer,
) -> Result<Outcome, EventError> {
    Prepared::new(graph, costs, config)?.run(observer)
}

/// The makespans of many samples, in ticks of the result. Percentiles are by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Makespans {
    /// How many.
    pub samples: u32,
    /// Their mean, rounded.
    pub mean: u64,
    /// 5 % are not longer.
    pub p5: u64,
    /// Half are not longer.
    pub p50: u64,
    /// 95 % are not longer.
    pub p95: u64,
    /// 99 % are not longer.
    pub p99: u64,
}

/// Does pieces of work 0 to n - 1, side by side where the caller can; what is called has no threads of its own.
pub type Each<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Simulates samples 0 to `samples` - 1 of the jitter of what is `prepared`; `lasts(device, start, duration)` is how long the
/// machine takes for an op of such a duration. Each sample depends on its number alone, so the result is the same however `each`
/// shares them out.
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
    let makespan = |number: u32| {
        let outcome = prepared.run_sample(seed, u64::from(number), &lasts, &mut ());
        outcome.map(|outcome| outcome.makespan())
    };
    // One that cannot end says so for all: what a run comes to in which nothing can happen any more does not depend on chance.
    let last_one = makespan(last)?;
    let found: Vec<AtomicU64> = (0..last).map(|_| AtomicU64::new(0)).collect();
    each(found.len(), &|number| {
        if let Ok(ticks) = makespan(number as u32) {
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
