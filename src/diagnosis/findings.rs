//! What was unusual in a measured step: each cause is taken away alone, and a replay tells what that saves.

use super::{Finding, MeasuredStep, Replay, slow};
use pipesim_schedule::statistics::median;
use std::collections::{BTreeMap, BTreeSet};

/// By which factor an op, a host delay or a link exceeds the median before it is named.
const FAR: f64 = 1.5;
/// By which factor an op exceeds the median of its kind if all others are within a few percent of it.
const FAR_OP: f64 = 1.25;
/// How many standard deviations an op is from the median of its kind before it is named.
const DEVIATIONS: f64 = 5.0;
/// Least share of the step that a single op or delay takes too long before it is named.
const LEAST: f64 = 0.01;
/// Least share of the step that a link or host saves before it is named.
const LEAST_SAVING: f64 = 0.005;
/// Most pauses that are replayed.
const MOST_PAUSES: usize = 8;

/// Returns what made the step longer, the largest saving first; each is replayed alone.
pub fn findings(step: &MeasuredStep) -> Vec<Finding> {
    let hosts = Hosts::new(step);
    let slow_hosts = hosts.slow(step);
    let pauses = hosts.pauses(step, &slow_hosts);
    let links = LinkTimes::new(step);
    let slow_links = links.slow(step);
    let mut found = slow::slow(step);
    found.push(hosts.delays(step, &pauses, &slow_hosts));
    found.extend(links.messages(step, &slow_links));
    found.extend(stragglers(step));
    found.extend(pauses.into_iter().map(|(_, finding)| finding));
    found.extend(slow_hosts.into_values());
    found.extend(slow_links.into_values());
    found.retain(|finding| finding.saves() > 0.0);
    found.sort_by(|one, other| other.saves().total_cmp(&one.saves()));
    found
}

fn median_of(all: &[u64]) -> f64 {
    median(&all.iter().map(|&ns| ns as f64).collect::<Vec<_>>())
}

fn unit(step: &MeasuredStep) -> f64 {
    step.unit_ns.max(1) as f64
}

/// Host delays in ns.
struct Hosts {
    /// Median of the delays of all ops but each device's first.
    usual: f64,
    /// By device: median of its own.
    typical: BTreeMap<u32, f64>,
    mean: f64,
}

impl Hosts {
    fn new(step: &MeasuredStep) -> Hosts {
        let mut all: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for index in (0..step.graph.len()).filter(|&index| step.graph.before(index).is_some()) {
            all.entry(step.graph.device_of(index)).or_default().push(step.times.held(index).ticks);
        }
        let flat: Vec<u64> = all.values().flatten().copied().collect();
        let mean = flat.iter().sum::<u64>() as f64 / flat.len().max(1) as f64;
        let typical = all.iter().map(|(&device, delays)| (device, median_of(delays))).collect();
        Hosts { usual: median_of(&flat), typical, mean }
    }

    /// Returns the devices whose hosts are slower than the others', each with what that costs.
    fn slow(&self, step: &MeasuredStep) -> BTreeMap<u32, Finding> {
        let mut found = BTreeMap::new();
        for (&device, &typical) in &self.typical {
            let others: Vec<f64> =
                self.typical.iter().filter(|(other, _)| **other != device).map(|(_, &typical)| typical).collect();
            let others = median(&others);
            if self.typical.len() < 3 || typical <= FAR * others {
                continue;
            }
            let mut replay = Replay::new(step);
            for (index, ticks) in replay.held.iter_mut().enumerate() {
                if step.graph.device_of(index) == device && (*ticks as f64) <= FAR * typical {
                    *ticks = (*ticks).min(others as u64);
                }
            }
            let saves = replay.saves();
            if saves >= LEAST_SAVING {
                let (typical, others) = (typical / unit(step), others / unit(step));
                found.insert(device, Finding::SlowHost { device, typical, others, saves });
            }
        }
        found
    }

    /// What a host delay of op number `index` would be without a pause.
    fn without_pause(&self, step: &MeasuredStep, index: usize, slow: &BTreeMap<u32, Finding>) -> f64 {
        let device = step.graph.device_of(index);
        if slow.contains_key(&device) { self.typical.get(&device).copied().unwrap_or(self.usual) } else { self.usual }
    }

    /// Returns the longest host delays, each with the ops that started late because of it. All of these are replayed with the median delay.
    fn pauses(&self, step: &MeasuredStep, slow: &BTreeMap<u32, Finding>) -> Vec<(Vec<usize>, Finding)> {
        let least = LEAST * step.makespan() as f64;
        let held = |index: usize| step.times.held(index);
        let over = |index: usize| held(index).ticks as f64 - self.without_pause(step, index, slow);
        let is_long = |&index: &usize| over(index) >= least.max((FAR - 1.0) * self.without_pause(step, index, slow));
        let mut long: Vec<usize> = (0..step.graph.len()).filter(is_long).collect();
        long.sort_by_key(|&index| (std::cmp::Reverse(held(index).ticks), index));
        let mut found: Vec<(Vec<usize>, Finding)> = Vec::new();
        let mut named: BTreeSet<usize> = BTreeSet::new();
        for longest in long {
            if found.len() >= MOST_PAUSES || named.contains(&longest) {
                continue;
            }
            let after = held(longest).after;
            let late: Vec<usize> = match after {
                Some(_) => (0..step.graph.len()).filter(|&index| held(index).after == after).collect(),
                None => vec![longest],
            };
            let mut replay = Replay::new(step);
            for &index in &late {
                replay.held[index] = replay.held[index].min(self.without_pause(step, index, slow) as u64);
            }
            let device = step.graph.device_of(after.unwrap_or(longest));
            let before = step.graph.op(after.and_then(|op| step.graph.after(op)).unwrap_or(longest)).to_string();
            let finding = Finding::Pause {
                device,
                before,
                after: after.map(|op| step.graph.op(op).to_string()),
                before_send: late.iter().any(|&index| step.graph.device_of(index) != device),
                delay: held(longest).ticks as f64 / unit(step),
                typical: self.without_pause(step, longest, slow) / unit(step),
                saves: replay.saves(),
            };
            named.extend(&late);
            found.push((late, finding));
        }
        found
    }

    /// All host delays, without what pauses and slow hosts add to them.
    fn delays(&self, step: &MeasuredStep, pauses: &[(Vec<usize>, Finding)], slow: &BTreeMap<u32, Finding>) -> Finding {
        let paused: BTreeSet<usize> = pauses.iter().flat_map(|(late, _)| late.iter().copied()).collect();
        let mut replay = Replay::new(step);
        for (index, ticks) in replay.held.iter_mut().enumerate() {
            let stays = paused.contains(&index) || slow.contains_key(&step.graph.device_of(index));
            *ticks = if stays { ticks.saturating_sub(self.usual as u64) } else { 0 };
        }
        Finding::HostDelays { mean: self.mean / unit(step), saves: replay.saves() }
    }
}

/// Messages in ns by link, either way.
struct LinkTimes {
    typical: BTreeMap<[u32; 2], f64>,
    /// Median of all that were waited for.
    usual: f64,
}

/// Returns the link on which the output of op number `maker` leaves its device.
fn link_of(step: &MeasuredStep, user: usize) -> Option<(usize, [u32; 2])> {
    let needs = step.needs(user);
    let maker = needs.maker.filter(|_| needs.is_message)?;
    let (from, to) = step.link(maker, user);
    Some((maker, [from.min(to), from.max(to)]))
}

impl LinkTimes {
    fn new(step: &MeasuredStep) -> LinkTimes {
        let mut all: BTreeMap<[u32; 2], Vec<u64>> = BTreeMap::new();
        for index in 0..step.graph.len() {
            let (needs, Some((maker, link))) = (step.needs(index), link_of(step, index)) else { continue };
            if needs.made > needs.free {
                all.entry(link).or_default().push(step.times.delay(maker).arrival);
            }
        }
        let typical = all.iter().map(|(&link, messages)| (link, median_of(messages))).collect();
        LinkTimes { typical, usual: median_of(&all.values().flatten().copied().collect::<Vec<_>>()) }
    }

    /// Returns the links that are slower than the others, each with what that costs.
    fn slow(&self, step: &MeasuredStep) -> BTreeMap<[u32; 2], Finding> {
        let mut found = BTreeMap::new();
        for (&devices, &typical) in &self.typical {
            let others: Vec<f64> =
                self.typical.iter().filter(|(other, _)| **other != devices).map(|(_, &typical)| typical).collect();
            let others = median(&others);
            if self.typical.len() < 2 || typical <= FAR * others {
                continue;
            }
            let mut replay = Replay::new(step);
            for index in 0..step.graph.len() {
                if let Some((maker, _)) = link_of(step, index).filter(|(_, link)| *link == devices) {
                    replay.messages[maker] = replay.messages[maker].min(others as u64);
                }
            }
            let saves = replay.saves();
            if saves >= LEAST_SAVING {
                let (typical, others) = (typical / unit(step), others / unit(step));
                found.insert(devices, Finding::SlowLink { devices, typical, others, saves });
            }
        }
        found
    }

    /// All messages, without what slow links add to them; `None` if none was waited for.
    fn messages(&self, step: &MeasuredStep, slow: &BTreeMap<[u32; 2], Finding>) -> Option<Finding> {
        let mut replay = Replay::new(step);
        for index in 0..step.graph.len() {
            let Some((maker, link)) = link_of(step, index) else { continue };
            let stays = slow.get(&link).map_or(0.0, |finding| match finding {
                Finding::SlowLink { typical, others, .. } => (typical - others) * unit(step),
                _ => 0.0,
            });
            replay.messages[maker] = replay.messages[maker].min(stays as u64);
        }
        replay.receives.fill(0);
        (!self.typical.is_empty())
            .then(|| Finding::Messages { typical: self.usual / unit(step), saves: replay.saves() })
    }
}

fn stragglers(step: &MeasuredStep) -> Option<Finding> {
    let key = |index: usize| (step.graph.op(index).slot(), step.graph.device_of(index));
    let mut kinds: BTreeMap<(usize, u32), Vec<f64>> = BTreeMap::new();
    for index in 0..step.graph.len() {
        kinds.entry(key(index)).or_default().push(step.times.duration(index) as f64);
    }
    let typical: BTreeMap<_, (f64, f64)> = kinds
        .into_iter()
        .map(|(key, all)| {
            // of two, the shorter one
            let usual = if all.len() == 2 { all[0].min(all[1]) } else { median(&all) };
            let deviation = 1.4826 * median(&all.iter().map(|ns| (ns - usual).abs()).collect::<Vec<_>>());
            (key, (usual, (FAR_OP * usual).max(usual + DEVIATIONS * deviation).min(FAR * usual)))
        })
        .collect();
    let over = |index: usize| {
        let (duration, (usual, most)) = (step.times.duration(index) as f64, typical[&key(index)]);
        (duration > most && duration - usual > LEAST * step.makespan() as f64).then_some(duration - usual)
    };
    let mut replay = Replay::new(step);
    let mut count = 0;
    let mut most: Option<(f64, usize)> = None;
    for index in 0..step.graph.len() {
        let Some(over) = over(index) else { continue };
        replay.durations[index] -= over as u64;
        count += 1;
        most = most.filter(|(most, _)| *most >= over).or(Some((over, index)));
    }
    let (_, op) = most?;
    Some(Finding::Stragglers {
        op: step.graph.op(op).to_string(),
        device: step.graph.device_of(op),
        duration: step.times.duration(op) as f64 / unit(step),
        typical: typical[&key(op)].0 / unit(step),
        count,
        saves: replay.saves(),
    })
}
