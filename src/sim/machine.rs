//! The machine that a prediction is made for: the options given, and for the rest the contention that was measured.

use super::event::{Config, Network, Processor, Put, Record, Scope, Sharing};
use super::waits::Delay;
use pipesim_cost::CostTable;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;

/// Returns the machine of a prediction: `asked_for`, with the measured contention of devices and links unless `asked_for` sets
/// these. `None` if only costs apply.
pub(super) fn machine(graph: &TaskGraph, costs: &CostTable, asked_for: Option<&Config>) -> Option<Config> {
    let devices = graph.schedule().devices();
    let asked = asked_for.cloned().unwrap_or_default();
    let measured = costs.effects.contention.as_ref().filter(|contention| contention.matters(devices));
    let processors = measured.filter(|_| asked.processors.is_empty()).map(|contention| {
        // Devices that share cores are part of the measured contention.
        vec![Processor { devices: (0..devices).collect(), cores: devices, contention: contention.of(devices) }]
    });
    let is_free = asked.delivery == Delivery::OneSided && asked.slots.is_none() && asked.network == Network::default();
    let network = measured_network(costs).filter(|_| is_free);
    if processors.is_none() && network.is_none() {
        return asked_for.cloned();
    }
    let processors = processors.unwrap_or(asked.processors);
    Some(Config { processors, network: network.unwrap_or(asked.network), ..asked })
}

/// Returns the network in which simultaneous puts slow each other down as measured; `None` if that was not measured.
pub(super) fn measured_network(costs: &CostTable) -> Option<Network> {
    costs.effects.puts.as_ref().map(|puts| Network {
        transfer: puts.duration,
        sharing: Sharing::FairShare,
        scope: Scope::Machine,
        contention: puts.per_mille.clone(),
        put: if puts.beside_compute { Put::Beside } else { Put::Holding },
    })
}

/// What others on the links that were measured did to the output of each op.
pub(super) fn late(graph: &TaskGraph, costs: &CostTable, record: &Record) -> Vec<Delay> {
    let holds = costs.effects.puts.as_ref().is_some_and(|puts| !puts.beside_compute);
    let mut late = vec![Delay::default(); graph.len()];
    for transfer in &record.transfers {
        let took = transfer.end - transfer.queued;
        let arrival = took.saturating_sub(costs.of(graph.op(transfer.op)).arrival);
        late[transfer.op] = Delay { after: if holds { arrival } else { 0 }, arrival };
    }
    late
}
