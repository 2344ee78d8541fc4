//! Shares of a resource: exact fractions of a tick's work, and links that messages share.
//!
//! Work is counted in grains. A tick at full speed does a number of grains ([`Grain`]) that every possible share divides, so that
//! no share is rounded. Only if more than 40 ops or 16 messages share one resource (or fewer, with odd slow-down factors) is a
//! share rounded down, by a few parts in a million at most.

use super::{Config, Sharing};
use pipesim_cost::gcd;
use std::collections::VecDeque;

/// Number of grains that a tick at full speed does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain(u64);

/// Largest number of grains in a tick: with 2^63 ticks of work they fit in 128 bits.
const MAX_GRAINS: u64 = 1 << 60;

impl Grain {
    /// Returns the grain of everything that is shared on the machine of `config`.
    pub fn of(config: &Config) -> Grain {
        let Config { processors, network, overlap_per_mille, .. } = config;
        let largest = processors.iter().map(|processor| processor.devices.len()).max().unwrap_or(1);
        let of_processors = processors.iter().flat_map(|processor| &processor.contention);
        let factors: Vec<u32> = of_processors.chain(&network.contention).copied().collect();
        let flows = if network.sharing == Sharing::FairShare { 16 } else { 1 };
        Grain::new(largest.max(flows) as u64, *overlap_per_mille, &factors)
    }

    /// Returns the grain for up to `most` sharers, each possibly slowed down by `per_mille` and by one of `factors` (per mille).
    fn new(most: u64, per_mille: u32, factors: &[u32]) -> Grain {
        let reduced = |per_mille: u32| u64::from(per_mille) / gcd(1000, u64::from(per_mille)).max(1);
        let slow = reduced(per_mille);
        let (mut multiple, mut odd) = (1_u64, false); // of all numbers of sharers and of all factors
        for n in factors.iter().map(|&factor| reduced(factor).max(1)) {
            match multiple.checked_mul(n / gcd(multiple, n)) {
                Some(more) if u128::from(more) * u128::from(slow) <= u128::from(MAX_GRAINS >> 10) => multiple = more,
                _ => odd = true,
            }
        }
        for n in 2..=most.min(40) {
            match multiple.checked_mul(n / gcd(multiple, n)) {
                Some(more) if u128::from(more) * u128::from(slow) <= u128::from(MAX_GRAINS) => multiple = more,
                _ => break,
            }
        }
        let mut grains = multiple * slow;
        // If a share is inexact after all, more grains keep its error small.
        while grains < 1 << 40 && (odd || most > 40) {
            grains *= 2;
        }
        Grain(grains)
    }

    /// Returns the grains that a tick does at `share` / `of` of full speed; at least 1.
    pub fn speed(self, share: u64, of: u64) -> u64 {
        ((u128::from(self.0) * u128::from(share) / u128::from(of)) as u64).max(1)
    }

    /// Returns the grains of `ticks` at full speed.
    pub fn work(self, ticks: u64) -> u128 {
        u128::from(self.0) * u128::from(ticks)
    }
}

/// Speed of messages that share a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace<'a> {
    pub grain: Grain,
    /// See [`Network::contention`](super::Network::contention).
    pub contention: &'a [u32],
}

impl Pace<'_> {
    /// Returns the grains that a tick does for each of `messages` messages.
    fn of(self, messages: usize) -> u64 {
        match self.contention.get(messages - 1).or(self.contention.last()) {
            Some(&per_mille) => self.grain.speed(1000, u64::from(per_mille)),
            None => self.grain.speed(1, messages as u64),
        }
    }
}

/// One link, which serves the first message of its line, or all of them at equal shares.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkState {
    /// Messages in order. Served alone: with how long each occupies the link; shared: with the progress at which each is done.
    line: VecDeque<(u32, u128)>,
    /// Shared: grains of work done for a message that was there all the time.
    progress: u128,
    since: u64,
    /// How often the link's next event was set: an event with an older number is void.
    pub turn: u32,
}

impl LinkState {
    /// Adds a message to the line of a link that serves one at a time. Returns whether it is served now.
    pub fn join(&mut self, message: u32, ticks: u64) -> bool {
        self.line.push_back((message, u128::from(ticks)));
        self.line.len() == 1
    }

    /// Returns the message that is served, and for how long.
    pub fn served(&self) -> Option<(u32, u64)> {
        self.line.front().map(|&(message, ticks)| (message, ticks as u64))
    }

    /// Removes the message that is served.
    pub fn leave(&mut self) -> Option<u32> {
        self.line.pop_front().map(|(message, _)| message)
    }

    /// Adds a message that shares the link.
    pub fn share(&mut self, now: u64, message: u32, ticks: u64, pace: Pace<'_>) {
        self.advance(now, pace);
        let due = self.progress + pace.grain.work(ticks);
        let at = self.line.partition_point(|&(_, other)| other <= due);
        self.line.insert(at, (message, due));
    }

    /// Removes and returns the next message that is through at `now`.
    pub fn through(&mut self, now: u64, pace: Pace<'_>) -> Option<u32> {
        self.advance(now, pace);
        let &(_, due) = self.line.front()?;
        if due > self.progress { None } else { self.leave() }
    }

    /// Returns when the next message will be through if none joins.
    pub fn next(&self, pace: Pace<'_>) -> Option<u64> {
        let &(_, due) = self.line.front()?;
        let speed = u128::from(pace.of(self.line.len()));
        // A message that was done within the last tick may still be in the line.
        Some(self.since + due.saturating_sub(self.progress).div_ceil(speed) as u64)
    }

    fn advance(&mut self, now: u64, pace: Pace<'_>) {
        if !self.line.is_empty() {
            let speed = pace.of(self.line.len());
            self.progress += u128::from(now - self.since) * u128::from(speed);
        }
        self.since = now;
    }
}
