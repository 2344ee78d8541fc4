//! ExpertTraffic of experts: the rows that a GPU sends in dispatch or combine of a micro-batch, and the time that this takes.
//!
//! With all-to-all a token is sent once per expert. DeepEP and HybridEP send it once per node over the network, and from there once
//! per GPU over links (deepseek-ai/DeepEP, README).

use super::machine::Platform;
use pipesim_models::layout::{Dispatcher, ParallelConfig};
use pipesim_models::model_spec::Experts;

/// Rows of the hidden state that one GPU sends per dispatch or combine, with balanced routing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertTraffic {
    /// Rows to other nodes.
    pub network: f64,
    /// Rows to other GPUs over links.
    pub link: f64,
    /// Whether experts are on several nodes.
    pub crosses: bool,
}

/// Returns the expected number of `bins` equal bins that `draws` independent draws hit.
fn hit(bins: f64, draws: f64) -> f64 {
    bins * (1.0 - libm::pow(1.0 - 1.0 / bins.max(1.0), draws))
}

/// Returns the expected number of `nodes` nodes that hold the experts of a token. A router that chooses groups of experts first
/// limits it.
fn visited(experts: &Experts, nodes: f64) -> f64 {
    let free = hit(nodes, experts.top_k as f64);
    let (groups, chosen) = (experts.router_groups as f64, experts.group_top_k as f64);
    if experts.router_groups <= 1 {
        return free;
    }
    let bounded = if nodes > groups {
        hit(nodes * chosen / groups, experts.top_k as f64)
    } else {
        let per_node = groups / nodes;
        let missed = |drawn: usize| ((groups - per_node - drawn as f64) / (groups - drawn as f64)).max(0.0);
        nodes * (1.0 - (0..experts.group_top_k).map(missed).product::<f64>())
    };
    free.min(bounded)
}

impl ExpertTraffic {
    /// Returns the traffic of this layout on nodes of `node` GPUs.
    pub fn new(layout: &ParallelConfig, experts: &Experts, node: f64) -> ExpertTraffic {
        let [ep, etp] = [layout.ep, layout.etp].map(f64::from);
        if layout.ep <= 1 {
            return ExpertTraffic::default();
        }
        let ranks = ep * etp;
        let in_node = ranks.min(node);
        let nodes = (ranks / in_node).max(1.0);
        let (rows, top_k) = (layout.routed_tokens() as f64, experts.top_k as f64);
        let [network, link] = match layout.dispatcher {
            Dispatcher::AllToAll => {
                let near = in_node / ranks;
                [top_k * (1.0 - near), top_k * near * (1.0 - etp / in_node).max(0.0)]
            }
            Dispatcher::DeepEp | Dispatcher::HybridEp => {
                [visited(experts, nodes) * (1.0 - 1.0 / nodes), hit(ep, top_k) * (1.0 - 1.0 / ep)]
            }
        };
        ExpertTraffic { network: rows * network, link: rows * link, crosses: nodes > 1.0 }
    }

    /// Returns the seconds that sending it takes, with `row_bytes` bytes per row. All-to-all uses links after the network; DeepEP
    /// and HybridEP forward while they receive.
    pub fn time(&self, machine: &Platform, dispatcher: Dispatcher, row_bytes: f64) -> f64 {
        let h = &machine.hardware;
        if self.network + self.link == 0.0 {
            return 0.0;
        }
        let network = |efficiency: f64| self.network * row_bytes / (h.network_gbps_per_gpu * 1e9 / 8.0 * efficiency);
        let link = self.link * row_bytes / (h.link_gbytes_per_s * 1e9 * h.dispatch_link_efficiency);
        let hops = if self.crosses { 2.0 } else { 1.0 };
        match dispatcher {
            Dispatcher::AllToAll => h.link_latency_us * 1e-6 * hops + network(h.alltoall_network_efficiency) + link,
            Dispatcher::DeepEp | Dispatcher::HybridEp => {
                let latency = if self.crosses { h.dispatch_network_us } else { h.link_latency_us };
                latency * 1e-6 + network(h.dispatch_network_efficiency).max(link)
            }
        }
    }
}
