//! How long messages and hosts typically take, where the timeline has no sends: from the times between ops.

use super::MeasuredStep;
use pipesim_schedule::statistics::median;
use std::collections::BTreeMap;

/// Fewest samples whose median counts.
const FEWEST: usize = 3;

/// Samples in ns by device or link.
type Samples<Key> = BTreeMap<Key, Vec<f64>>;

/// Typical times of messages by link, in ns.
///
/// A start is late by its host and, if it waits for another device, by the message. What hosts take is seen where nothing else was
/// awaited; the rest is the message's.
pub(super) struct Links {
    directed: BTreeMap<(u32, u32), u64>,
    either_way: BTreeMap<(u32, u32), u64>,
    all: u64,
}

impl Links {
    pub(super) fn new(step: &MeasuredStep) -> Links {
        let lag = |index: usize, since: u64| step.times.start[index].saturating_sub(since) as f64;
        let all = 0..step.graph.len();
        let waits = |index: usize| {
            let needs = step.needs(index);
            (needs.is_message && needs.made > needs.free).then_some(needs)
        };
        let longest = 2.0 * median(&all.clone().filter_map(|i| Some(lag(i, waits(i)?.made))).collect::<Vec<_>>());
        let mut hosts: Samples<u32> = BTreeMap::new();
        for index in all.clone().filter(|&index| step.graph.before(index).is_some()) {
            let needs = step.needs(index);
            if !needs.is_message || needs.made + longest as u64 <= needs.free {
                hosts.entry(step.graph.device_of(index)).or_default().push(lag(index, needs.free));
            }
        }
        let usual = median(&hosts.values().flatten().copied().collect::<Vec<_>>());
        let host = |device: u32| {
            let own = hosts.get(&device).filter(|samples| samples.len() >= FEWEST);
            own.map_or(usual, |samples| median(samples))
        };
        let (mut directed, mut either_way): (Samples<_>, Samples<_>) = Default::default();
        for index in all {
            let Some((needs, maker)) = waits(index).and_then(|needs| Some((needs, needs.maker?))) else { continue };
            let (from, to) = step.link(maker, index);
            let message = (lag(index, needs.made) - host(to)).max(0.0);
            directed.entry((from, to)).or_default().push(message);
            either_way.entry((from.min(to), from.max(to))).or_default().push(message);
        }
        let whole = median(&either_way.values().flatten().copied().collect::<Vec<_>>()) as u64;
        let typical = |samples: Samples<(u32, u32)>| {
            let enough = samples.into_iter().filter(|(_, samples)| samples.len() >= FEWEST);
            enough.map(|(link, samples)| (link, median(&samples) as u64)).collect()
        };
        Links { directed: typical(directed), either_way: typical(either_way), all: whole }
    }

    /// Returns the typical time of a message on a link, in ns; that of all links if the link has too few messages that were waited for.
    pub(super) fn typical(&self, (from, to): (u32, u32)) -> u64 {
        let either_way = || self.either_way.get(&(from.min(to), from.max(to)));
        self.directed.get(&(from, to)).or_else(either_way).copied().unwrap_or(self.all)
    }
}
