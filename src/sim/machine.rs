//! The machine that a prediction is made for: what is asked for, and what its devices cost each other as that was measured.

use super::event::{Config, Network, Processor, Put, Record, Scope, Sharing};
use super::waits::Delay;
use crate::cost::CostTable;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;

/// The machine that is asked for; what its devices cost each other is as it was measured where nothing else is said of that.
pub(super) fn machine(graph: &TaskGraph, costs: &CostTable, asked_for: Option<&Config>) -> Option<Config> {
    let devices = graph.schedule().devices();
    let asked = asked_for.cloned().unwrap_or_default();
    let measured = costs.contention.as_ref().filter(|contention| contention.matters(devices));
    let processors = measured.filter(|_| asked.processors.is_empty()).map(|contention| {
        // Devices that share cores are in what was measured.
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

/// The links, where puts that are under way at the same time were seen to slow each other down.
pub(super) fn measured_network(costs: &CostTable) -> Option<Network> {
    costs.puts.as_ref().map(|puts| Network {
        transfer: puts.duration,
        sharing: Sharing::FairShare,
        scope: Scope::Machine,
        contention: puts.per_mille.clone(),
        put: if puts.beside_compute { Put::Beside } else { Put::Holding },
    })
}

/// What others on the links that were measured did to the output of each op.
pub(super) fn late(graph: &TaskGraph, costs: &CostTable, record: &Record) -> Vec<Delay> {
    let holds = costs.puts.as_ref().is_some_and(|puts| !puts.beside_compute);
    let mut late = vec![Delay::default(); graph.len()];
    for transfer in &record.transfers {
        let took = transfer.end - transfer.queued;
        let arrival = took.saturating_sub(costs.of(graph.op(transfer.op)).arrival);
        late[transfer.op] = Delay { after: if holds { arrival } else { 0 }, arrival };
    }
    late
}
