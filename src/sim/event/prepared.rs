//! A prepared: what stays the same from one simulation of a graph to the next.

use super::chance::Table;
use super::engine::Engine;
use super::queue::Messages;
use super::stuck::Deadlock;
use super::{Config, Network, Observer, Outcome, Sharing, Transfer, straight};
use crate::cost::CostTable;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};

/// Latest time of any event: sums of two never overflow.
const LATEST: u128 = 1 << 62;

/// How the ops of one stage, direction and kind run and what becomes of their output, in ticks of the result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub duration: u64,
    /// From an op's end until its device is free again.
    pub after: u64,
    /// How long its message occupies its link; 0 where nothing leaves the device.
    pub transfer: u64,
    /// How long its message travels.
    pub latency: u64,
    /// Cell of micro-batch 0's input.
    pub input: usize,
    /// Cell of micro-batch 0's output.
    pub output: usize,
    /// The device where the output is used; its own where it is used nowhere.
    pub consumer: u32,
}

/// Why a simulation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The configuration does not fit the graph.
    #[error("{0}")]
    Config(String),
    /// The clock could overflow.
    #[error(
        "these costs, one after the other, take 2^62 ticks or more; give smaller or rounder numbers, or fewer subticks"
    )]
    Overflow,
    /// Nothing can happen any more, but ops are left.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}

/// A graph and its costs, made ready to be simulated under one configuration, once or many times.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(super) graph: &'a TaskGraph,
    pub(super) config: &'a Config,
    /// By [`Op::slot`].
    pub(super) rules: Vec<Rule>,
    pub(super) chance: Option<Table>,
    /// What the general engine needs; `None` where nothing is shared and nothing queues.
    messages: Option<Messages>,
}

impl<'a> Prepared<'a> {
    /// The prepared for `graph` under `costs` on the machine of `config`.
    ///
    /// # Errors
    /// A configuration that fits no such graph, or costs that overflow the clock.
    pub fn new(graph: &'a TaskGraph, costs: &CostTable, config: &'a Config) -> Result<Prepared<'a>, EventError> {
        check(graph, config).map_err(EventError::Config)?;
        let rules = rules(graph, costs, config).ok_or(EventError::Overflow)?;
        let chance = config.jitter.map(|jitter| jitter.table());
        check_clock(graph, config, &rules, chance.as_ref().map_or(1, Table::longest))?;
        let messages = (!is_straight(config)).then(|| Messages::new(graph, config, &rules));
        Ok(Prepared { graph, config, rules, chance, messages })
    }

    /// One simulation.
    ///
    /// # Errors
    /// A deadlock.
    pub fn run(&self, observer: &mut impl Observer) -> Result<Outcome, EventError> {
        match &self.chance {
            None => self.run_lasting(|_, _, _, duration| duration, observer),
            Some(table) => self.run_lasting(|index, _, _, duration| table.stretch(index, duration), observer),
        }
    }

    /// One simulation where `lasts(index, device, start, duration)` is how long an op takes on a device that does nothing
    /// else. [`Config::jitter`] does not apply.
    ///
    /// # Errors
    /// A deadlock.
    pub fn run_lasting(
        &self,
        lasts: impl Fn(usize, u32, u64, u64) -> u64,
        observer: &mut impl Observer,
    ) -> Result<Outcome, EventError> {
        match &self.messages {
            None => Ok(straight::run(self, lasts, observer)),
            Some(messages) => Ok(Engine::new(self, messages, lasts, observer).run()?),
        }
    }
}

/// Whether no op and no message ever waits for a resource.
fn is_straight(config: &Config) -> bool {
    config.delivery == Delivery::OneSided
        && config.slots.is_none()
        && config.network.sharing == Sharing::Unlimited
        && config.processors.is_empty()
        && config.overlap_per_mille == 1000
}

fn check(graph: &TaskGraph, config: &Config) -> Result<(), String> {
    let (devices, stages) = (graph.schedule().devices(), graph.schedule().placement.stages());
    if config.subticks == 0 {
        return Err("a tick has at least one subtick, found 0".to_string());
    }
    if config.overlap_per_mille < 1000 {
        let found = config.overlap_per_mille;
        return Err(format!("a slow-down is 1000 per mille or more, found {found}; 1300 means 1.3 times as long"));
    }
    if config.slots == Some(0) || config.delivery == Delivery::Buffered(0) {
        return Err("a channel needs at least one slot, found 0".to_string());
    }
    if config.slots.is_some() && config.delivery != Delivery::OneSided {
        let delivery = config.delivery;
        return Err(format!("slots belong to one-sided delivery, found {delivery}; write buffered(k) instead"));
    }
    if let Transfer::Boundaries(ticks) = &config.network.transfer
        && ticks.len() + 1 != stages as usize
    {
        let found = ticks.len();
        return Err(format!("{stages} stages have {} boundaries, found transfer times for {found}", stages - 1));
    }
    let mut owned = vec![false; devices as usize];
    for processor in &config.processors {
        if processor.cores == 0 {
            return Err("a processor has at least one core, found 0".to_string());
        }
        for &device in &processor.devices {
            match owned.get_mut(device as usize) {
                None => {
                    return Err(format!("a processor has device {device}, but there are devices 0 to {}", devices - 1));
                }
                Some(true) => return Err(format!("device {device} is on two processors; name it once")),
                Some(free) => *free = true,
            }
        }
    }
    Ok(())
}

/// How long the message of `op` occupies its link, in ticks of the cost table.
fn transfer(network: &Network, op: Op) -> Option<u64> {
    match &network.transfer {
        Transfer::Instant => Some(0),
        Transfer::Ticks(ticks) => Some(*ticks),
        Transfer::Bytes { bytes_per_message, ticks_per_mebibyte } => {
            let product = u128::from(*bytes_per_message) * u128::from(*ticks_per_mebibyte);
            u64::try_from(product.div_ceil(1 << 20)).ok()
        }
        Transfer::Boundaries(ticks) => Some(match op.kind() {
            Kind::F => ticks[op.stage() as usize][0],
            _ => ticks[op.stage() as usize - 1][1],
        }),
    }
}

/// The rules by [`Op::slot`]; `None` where a number overflows.
fn rules(graph: &TaskGraph, costs: &CostTable, config: &Config) -> Option<Vec<Rule>> {
    let placement = &graph.schedule().placement;
    let ticks = |ticks: u64| ticks.checked_mul(u64::from(config.subticks));
    let mut rules = vec![Rule::default(); placement.stages() as usize * Op::SLOTS_PER_STAGE];
    for op in placement.op_kinds() {
        let (time, route) = (costs.of(op), graph.routes()[op.slot()]);
        let rule = &mut rules[op.slot()];
        rule.duration = ticks(time.duration)?;
        rule.after = ticks(time.after)?;
        (rule.input, rule.output, rule.consumer) = (route.input, route.output, placement.device_of(op));
        if placement.leaves_device(op) {
            rule.transfer = ticks(transfer(&config.network, op)?)?;
            rule.latency = ticks(config.network.latency.unwrap_or(time.arrival))?;
        }
    }
    for op in placement.op_kinds() {
        if let Some(stage) = op.upstream(placement.stages()) {
            let maker = Op::new(op.kind(), stage, 0).in_direction(op.direction()).slot();
            rules[maker].consumer = placement.device_of(op);
        }
    }
    Some(rules)
}

/// At any time either an op runs, at no less than 1000 per mille over the slow-down of its work, or a message is on its
/// way: all of it one after the other is the longest that a step can take. `longest` is the longest stretch by chance.
fn check_clock(graph: &TaskGraph, config: &Config, rules: &[Rule], longest: u64) -> Result<(), EventError> {
    let mut total = 0_u128;
    for (rule, count) in rules.iter().zip(graph.schedule().counts()) {
        let work =
            u128::from(rule.duration) * u128::from(config.overlap_per_mille).div_ceil(1000) * u128::from(longest);
        let rest = u128::from(rule.after) + u128::from(rule.transfer) + u128::from(rule.latency);
        total = total.saturating_add(work.saturating_add(rest + 2).saturating_mul(u128::from(count)));
    }
    if total < LATEST { Ok(()) } else { Err(EventError::Overflow) }
}
