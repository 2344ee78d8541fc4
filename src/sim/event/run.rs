//! Runs of what is prepared: one, or many that chance tells apart.

use super::engine::Simulation;
use super::prepared::{EventError, Prepared};
use super::{Config, Observer, Outcome, straight};
use crate::check::{check, check_slots};
use crate::cost::CostTable;
use crate::graph::TaskGraph;

impl Prepared<'_> {
    /// One simulation.
    pub fn run(&self, observer: &mut impl Observer) -> Result<Outcome, EventError> {
        match &self.chance {
            None => self.run_lasting(|_, _, _, duration| duration, observer),
            Some(table) => self.run_lasting(|index, _, _, duration| table.stretch(index, duration), observer),
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

/// Simulates samples 0 to `samples` - 1 of `config`'s jitter with `seed`.
pub fn monte_carlo(
    graph: &TaskGraph,
    costs: &CostTable,
    config: &Config,
    samples: u32,
    seed: u64,
) -> Result<Makespans, EventError> {
    if samples == 0 {
        return Err(EventError::Config("a distribution needs at least one sample, found 0".to_string()));
    }
    let prepared = Prepared::new(graph, costs, config)?;
    let mut table = prepared.chance.clone();
    let mut makespans = Vec::with_capacity(samples as usize);
    for sample in 0..samples {
        let outcome = match &mut table {
            None => prepared.run_lasting(|_, _, _, duration| duration, &mut ())?,
            Some(table) => {
                table.choose(seed, u64::from(sample));
                prepared.run_lasting(|index, _, _, duration| table.stretch(index, duration), &mut ())?
            }
        };
        makespans.push(outcome.makespan());
    }
    makespans.sort_unstable();
    let rank = |percent: usize| makespans[(makespans.len() * percent).div_ceil(100).max(1) - 1];
    let sum: u128 = makespans.iter().map(|&makespan| u128::from(makespan)).sum();
    let mean = ((sum + u128::from(samples) / 2) / u128::from(samples)) as u64;
    Ok(Makespans { samples, mean, p5: rank(5), p50: rank(50), p95: rank(95), p99: rank(99) })
}
