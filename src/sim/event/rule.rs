//! Rules: how ops of one stage, direction and kind run, and how their messages travel.

use super::{Config, Put};
use crate::cost::CostTable;
use crate::graph::TaskGraph;

/// How the ops of one stage, direction and kind run and what becomes of their output, in ticks of the result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub duration: u64,
    /// From an op's end until its device is free again; where its put holds the device up, from the put's end.
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

/// The rules by [`slot`](crate::op::Op::slot); `None` where a number overflows.
pub(super) fn rules(graph: &TaskGraph, costs: &CostTable, config: &Config) -> Option<Vec<Rule>> {
    let placement = &graph.schedule().placement;
    let ticks = |ticks: u64| ticks.checked_mul(u64::from(config.subticks));
    let mut rules = vec![Rule::default(); placement.slots()];
    for op in placement.op_kinds() {
        let (time, route) = (costs.of(op), graph.routes()[op.slot()]);
        let rule = &mut rules[op.slot()];
        rule.duration = ticks(time.duration)?;
        rule.after = ticks(time.after)?;
        (rule.input, rule.output, rule.consumer) = (route.input, route.output, route.consumer);
        if placement.leaves_device(op) {
            rule.transfer = ticks(config.network.transfer)?;
            rule.latency = ticks(time.arrival)?;
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
