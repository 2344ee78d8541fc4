//! A graph prepared for simulation under one configuration.

use super::jitter::FactorTable;
use super::messages::{EventRule, Messages, rules};
use super::{Config, Put, Sharing};
use crate::rules::SweepRule;
use crate::{gates, sweep};
use pipesim_cost::{CostTable, EXTREME, Extras, OpTime};
use pipesim_schedule::deadlock::Deadlock;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;

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

/// A graph and its costs, prepared to be simulated under one configuration, once or many times.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(super) graph: &'a TaskGraph,
    pub(super) config: &'a Config,
    /// By [`class`](pipesim_schedule::schedule::Schedule::class).
    pub(super) rules: Vec<EventRule>,
    pub(super) factors: Option<FactorTable>,
    pub(super) method: Method,
    /// By device: when it is free to begin.
    pub(super) begin: Vec<u64>,
    /// What costs time besides the rules.
    pub(super) extras: Extras,
}

#[derive(Debug)]
pub(super) enum Method {
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
        let slowest = if costs.effects.speeds.is_empty() { 1 } else { EXTREME };
        let worst = config.processors.iter().flat_map(|processor| &processor.contention).max();
        let slowest = slowest * u64::from(*worst.unwrap_or(&1000)).div_ceil(1000);
        let collectives = gates::total(graph, costs);
        check_clock(
            graph,
            collectives,
            config,
            &rules,
            factors.as_ref().map_or(1, FactorTable::longest).saturating_mul(slowest),
        )?;
        let method = if is_uncontended(config) {
            Method::Sweep(sweep::rules(graph, |op| {
                let EventRule { duration, after, transfer, latency, .. } = rules[graph.schedule().class(op)];
                OpTime { duration, after, arrival: transfer + latency }
            }))
        } else {
            Method::Events(Messages::new(graph, config, &rules))
        };
        let begin = vec![0; graph.schedule().devices() as usize];
        Ok(Prepared { graph, config, rules, factors, method, begin, extras: costs.extras.clone() })
    }

    /// Makes later runs begin with devices that are free from these times on, each below 2^62 ticks.
    pub fn set_begin(&mut self, begin: &[u64]) {
        self.begin.copy_from_slice(begin);
    }
}

/// Whether no op and no message ever waits for a resource.
fn is_uncontended(config: &Config) -> bool {
    config.delivery == Delivery::OneSided
        && config.slots.is_none()
        && config.network.sharing == Sharing::Unlimited
        && config.network.put != Put::Holding
        && config.processors.is_empty()
        && config.overlap_per_mille == 1000
        && config.devices_per_host_link <= 1
}

fn check_config(graph: &TaskGraph, config: &Config) -> Result<(), EventError> {
    let refuse = |what: String| Err(EventError::Config(what));
    let devices = graph.schedule().devices();
    if config.overlap_per_mille < 1000 {
        let found = config.overlap_per_mille;
        return refuse(format!("a slow-down is 1000 per mille or more, found {found}; 1300 means 1.3 times as long"));
    }
    if config.devices_per_host_link == 0 {
        return refuse("a link to the host belongs to at least one device, found 0".to_string());
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
/// stretch of an op by jitter and by a slow machine; the graph has with it how long all its collectives take.
fn check_clock(
    graph: &TaskGraph,
    collectives: u128,
    config: &Config,
    rules: &[EventRule],
    longest: u64,
) -> Result<(), EventError> {
    let slowest_link = u128::from(*config.network.contention.iter().max().unwrap_or(&1000)).div_ceil(1000);
    let mut total = collectives;
    for (rule, count) in rules.iter().zip(graph.schedule().counts()) {
        let work =
            u128::from(rule.duration) * u128::from(config.overlap_per_mille).div_ceil(1000) * u128::from(longest);
        let transfer = u128::from(rule.transfer) * slowest_link;
        let rest = u128::from(rule.after) + transfer + u128::from(rule.latency);
        total = total.saturating_add(work.saturating_add(rest + 2).saturating_mul(u128::from(count)));
    }
    if total < LATEST { Ok(()) } else { Err(EventError::Overflow) }
}
