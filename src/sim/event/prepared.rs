//! A graph prepared for simulation under one configuration, and its runs: one, or many samples of a distribution.

use super::engine::Simulation;
use super::jitter::FactorTable;
use super::messages::Messages;
use super::{Config, Jitter, Observer, Put, Sharing, TransferTime};
use crate::check::{check, check_slots};
use crate::cost::{CostTable, EXTREME};
use crate::deadlock::Deadlock;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::metrics::{Activity, makespan};
use crate::sim::sweep::{SweepRule, sweep_rules};
use std::sync::atomic::{AtomicU64, Ordering};

/// Latest time of any event: sums of two never overflow.
const LATEST: u128 = 1 << 62;

/// Why a simulation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The configuration does not fit the graph.
    #[error("{0}")]
    Config(String),
    /// The clock could overflow.
    #[error("these costs, one after the other, take 2^62 ticks or more; give smaller or rounder numbers")]
    Overflow,
    /// No event is left, but ops are.
    #[error("{0}another order of ops, more queues or slots, or one-sided delivery avoids it")]
    Deadlock(Box<Deadlock>),
}

/// How the ops of one (stage, direction, kind) run and how their output travels, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub duration: u64,
    /// From an op's end until its device is free again; where its put holds the device up, from the put's end.
    pub after: u64,
    /// How long its message occupies its link; 0 if nothing leaves the device.
    pub transfer: u64,
    /// How long its message travels after that.
    pub latency: u64,
    /// Whether its output leaves the device.
    pub leaves: bool,
    /// The device that uses the output; its own if none does.
    pub consumer: u32,
}

/// A graph and its costs, prepared to be simulated under one configuration, once or many times.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(super) graph: &'a TaskGraph,
    pub(super) config: &'a Config,
    /// By [`slot`](crate::op::Op::slot).
    pub(super) rules: Vec<Rule>,
    factors: Option<FactorTable>,
    method: Method,
    /// By device: when it is free to begin.
    pub(super) begin: Vec<u64>,
}

/// How to simulate.
#[derive(Debug)]
enum Method {
    /// By a sweep: nothing is shared and nothing queues.
    Sweep(Vec<SweepRule>),
    /// By events.
    Events(Messages),
}

impl<'a> Prepared<'a> {
    /// Prepares `graph` under `costs` on the machine of `config`.
    ///
    /// # Errors
    /// A configuration that does not fit the graph, or times that could overflow.
    pub fn new(graph: &'a TaskGraph, costs: &CostTable, config: &'a Config) -> Result<Prepared<'a>, EventError> {
        check_config(graph, config)?;
        let rules = rules(graph, costs, config).ok_or(EventError::Overflow)?;
        let factors = config.jitter.map(|jitter| jitter.table());
        let slowest = if costs.speeds.is_empty() { 1 } else { EXTREME };
        let worst = config.processors.iter().flat_map(|processor| &processor.contention).max();
        let slowest = slowest * u64::from(*worst.unwrap_or(&1000)).div_ceil(1000);
        check_clock(graph, config, &rules, factors.as_ref().map_or(1, FactorTable::longest).saturating_mul(slowest))?;
        let method = if is_uncontended(config) {
            let rule = |(rule, route): (&Rule, &crate::graph::Route)| {
                let &Rule { duration, after, transfer, latency, .. } = rule;
                let arrival = transfer + latency;
                SweepRule { duration, after, arrival, input: route.input, output: route.output }
            };
            Method::Sweep(rules.iter().zip(graph.routes()).map(rule).collect())
        } else {
            Method::Events(Messages::new(graph, config, &rules))
        };
        let begin = vec![0; graph.schedule().devices() as usize];
        Ok(Prepared { graph, config, rules, factors, method, begin })
    }

    /// Makes later runs begin with devices that are free from these times on, each below 2^62 ticks.
    pub fn set_begin(&mut self, begin: &[u64]) {
        self.begin.copy_from_slice(begin);
    }

    /// Simulates once; returns what each device did.
    ///
    /// # Errors
    /// A deadlock.
    pub fn run(&self, observer: &mut impl Observer) -> Result<Vec<Activity>, EventError> {
        self.run_on(|_, _, duration| duration, observer)
    }

    /// [`run`](Self::run) on a machine whose speed varies: `lasts(device, start, duration)` returns how long an op takes that
    /// would take `duration` at constant speed.
    ///
    /// # Errors
    /// As [`run`](Self::run).
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
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_lasting(
        &self,
        lasts: impl Fn(usize, u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Vec<Activity>, EventError> {
        match &self.method {
            Method::Sweep(rules) => {
                let note = |index, start, end, leaves| {
                    observer.op(index, start, end);
                    let rule = &self.rules[self.graph.op(index).slot()];
                    if rule.leaves {
                        let end = leaves + rule.transfer + rule.latency;
                        observer.transfer(TransferTime { op: index, queued: leaves, start: leaves, end });
                    }
                };
                Ok(sweep_rules(self.graph, rules, &self.begin, lasts, note))
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
    /// Number of samples.
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

/// Returns the rules by [`slot`](crate::op::Op::slot); `None` if a transfer takes longer than the costs allow for it.
fn rules(graph: &TaskGraph, costs: &CostTable, config: &Config) -> Option<Vec<Rule>> {
    let placement = &graph.schedule().placement;
    let mut rules = vec![Rule::default(); placement.slots()];
    for op in placement.op_kinds() {
        let (time, rule) = (costs.of(op), &mut rules[op.slot()]);
        (rule.duration, rule.after) = (time.duration, time.after);
        rule.consumer = graph.routes()[op.slot()].consumer;
        rule.leaves = placement.leaves_device(op);
        if rule.leaves {
            (rule.transfer, rule.latency) = (config.network.transfer, time.arrival);
            if config.network.put != Put::Apart {
                rule.latency = rule.latency.checked_sub(rule.transfer)?;
            }
            if config.network.put == Put::Holding {
                rule.after = rule.after.checked_sub(rule.transfer)?;
            }
        }
    }
    Some(rules)
}

/// Whether no op and no message ever waits for a resource.
fn is_uncontended(config: &Config) -> bool {
    config.delivery == Delivery::OneSided
        && config.slots.is_none()
        && config.network.sharing == Sharing::Unlimited
        && config.network.put != Put::Holding
        && config.processors.is_empty()
        && config.overlap_per_mille == 1000
}

fn check_config(graph: &TaskGraph, config: &Config) -> Result<(), EventError> {
    let refuse = |what: String| Err(EventError::Config(what));
    let devices = graph.schedule().devices();
    if config.overlap_per_mille < 1000 {
        let found = config.overlap_per_mille;
        return refuse(format!("a slow-down is 1000 per mille or more, found {found}; 1300 means 1.3 times as long"));
    }
    if config.slots == Some(0) || config.delivery == Delivery::Buffered(0) {
        return refuse("a channel needs at least one slot, found 0".to_string());
    }
    if config.slots.is_some() && config.delivery != Delivery::OneSided {
        let delivery = config.delivery;
        return refuse(format!("slots belong to one-sided delivery, found {delivery}; write buffered(k) instead"));
    }
    if config.network.put == Put::Holding && (config.delivery != Delivery::OneSided || config.slots.is_some()) {
        return refuse("puts that hold their senders up belong to one-sided delivery without slots".to_string());
    }
    let helps = |per_mille: &[u32]| per_mille.iter().any(|&factor| factor < 1000);
    if helps(&config.network.contention) {
        return refuse("with other messages a message takes at least as long as alone; give 1 or more".to_string());
    }
    let mut owned = vec![false; devices as usize];
    for processor in &config.processors {
        if processor.cores == 0 {
            return refuse("a processor has at least one core, found 0".to_string());
        }
        if helps(&processor.contention) {
            return refuse("with neighbours an op takes at least as long as alone; give 1 or more".to_string());
        }
        for &device in &processor.devices {
            match owned.get_mut(device as usize) {
                None => {
                    let last = devices - 1;
                    return refuse(format!("a processor has device {device}, but there are devices 0 to {last}"));
                }
                Some(true) => return refuse(format!("device {device} is on two processors; name it once")),
                Some(free) => *free = true,
            }
        }
    }
    Ok(())
}

/// Checks that no step can take 2^62 ticks. At any time an op runs, at no less than 1000 per mille over the slow-down of its work,
/// or a message travels, slowed down by others; so all of it one after the other is the longest step. `longest` is the longest
/// stretch of an op by jitter and by a slow machine.
fn check_clock(graph: &TaskGraph, config: &Config, rules: &[Rule], longest: u64) -> Result<(), EventError> {
    let slowest_link = u128::from(*config.network.contention.iter().max().unwrap_or(&1000)).div_ceil(1000);
    let mut total = 0_u128;
    for (rule, count) in rules.iter().zip(graph.schedule().counts()) {
        let work =
            u128::from(rule.duration) * u128::from(config.overlap_per_mille).div_ceil(1000) * u128::from(longest);
        let transfer = u128::from(rule.transfer) * slowest_link;
        let rest = u128::from(rule.after) + transfer + u128::from(rule.latency);
        total = total.saturating_add(work.saturating_add(rest + 2).saturating_mul(u128::from(count)));
    }
    if total < LATEST { Ok(()) } else { Err(EventError::Overflow) }
}
