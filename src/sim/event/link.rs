//! Links: what messages occupy one after the other or share.

use super::share::Grain;
use std::collections::VecDeque;

/// How fast messages go that share a link.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Pace<'a> {
    pub grain: Grain,
    /// See [`Network::contention`](super::Network::contention).
    pub contention: &'a [u32],
}

impl Pace<'_> {
    /// Grains that a tick does for each of so many messages.
    pub fn of(self, messages: usize) -> u64 {
        match self.contention.get(messages - 1).or(self.contention.last()) {
            Some(&per_mille) => self.grain.speed(1000, u64::from(per_mille)),
            None => self.grain.speed(1, messages as u64),
        }
    }
}

/// One link. At any time it serves the first of those in line, or all of them at equal shares.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkState {
    /// Messages that want the link, in order; served alone: with how long each occupies it; shared: with the progress at
    /// which each is done.
    line: VecDeque<(u32, u128)>,
    /// Shared: grains of work done for a message that was there all the time.
    progress: u128,
    since: u64,
    /// How often the link's next event was set: an event with an older number is void.
    pub turn: u32,
}

impl LinkState {
    /// A message joins the line of a link that serves them one by one. Whether its turn is now.
    pub fn join(&mut self, message: u32, ticks: u64) -> bool {
        self.line.push_back((message, u128::from(ticks)));
        self.line.len() == 1
    }

    /// Whose turn it is, and for how long.
    pub fn served(&self) -> Option<(u32, u64)> {
        self.line.front().map(|&(message, ticks)| (message, ticks as u64))
    }

    /// The message that is served is through.
    pub fn leave(&mut self) -> Option<u32> {
        self.line.pop_front().map(|(message, _)| message)
    }

    /// A message begins to share the link.
    pub fn share(&mut self, now: u64, message: u32, ticks: u64, pace: Pace<'_>) {
        self.advance(now, pace);
        let due = self.progress + pace.grain.work(ticks);
        let at = self.line.partition_point(|&(_, other)| other <= due);
        self.line.insert(at, (message, due));
    }

    /// The next message that is through by now, if any.
    pub fn through(&mut self, now: u64, pace: Pace<'_>) -> Option<u32> {
        self.advance(now, pace);
        let &(_, due) = self.line.front()?;
        if due > self.progress { None } else { self.leave() }
    }

    /// When the next message will be through, if none joins.
    pub fn next(&self, pace: Pace<'_>) -> Option<u64> {
        let &(_, due) = self.line.front()?;
        let speed = u128::from(pace.of(self.line.len()));
        // One that was done within the last tick may not have been taken out yet.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_by_hand() {
        // 10 ticks of work from 0, 4 from 2: at 2 the first has 8 left, so the second is through at 2 + 8, the first
        // at 10 + (8 - 4).
        let pace = Pace { grain: Grain::new(2, 1000, &[]), contention: &[] };
        let mut link = LinkState::default();
        link.share(0, 0, 10, pace);
        assert_eq!(link.next(pace), Some(10));
        link.share(2, 1, 4, pace);
        assert_eq!(link.next(pace), Some(10));
        assert_eq!((link.through(10, pace), link.through(10, pace)), (Some(1), None));
        assert_eq!(link.next(pace), Some(14));
        assert_eq!((link.through(14, pace), link.next(pace)), (Some(0), None));
    }
}
