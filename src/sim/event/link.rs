//! Links: what messages occupy one after the other or share.

use super::share::Grain;
use std::collections::VecDeque;

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
    pub fn share(&mut self, now: u64, message: u32, ticks: u64, grain: Grain) {
        self.advance(now, grain);
        let due = self.progress + grain.work(ticks);
        let at = self.line.partition_point(|&(_, other)| other <= due);
        self.line.insert(at, (message, due));
    }

    /// The next message that is through by now, if any.
    pub fn through(&mut self, now: u64, grain: Grain) -> Option<u32> {
        self.advance(now, grain);
        let &(_, due) = self.line.front()?;
        if due > self.progress { None } else { self.leave() }
    }

    /// When the next message will be through, if none joins.
    pub fn next(&self, grain: Grain) -> Option<u64> {
        let &(_, due) = self.line.front()?;
        let speed = u128::from(grain.speed(1, self.line.len() as u64));
        Some(self.since + (due - self.progress).div_ceil(speed) as u64)
    }

    fn advance(&mut self, now: u64, grain: Grain) {
        if !self.line.is_empty() {
            let speed = grain.speed(1, self.line.len() as u64);
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
        let grain = Grain::new(2, 1000, &[]);
        let mut link = LinkState::default();
        link.share(0, 0, 10, grain);
        assert_eq!(link.next(grain), Some(10));
        link.share(2, 1, 4, grain);
        assert_eq!(link.next(grain), Some(10));
        assert_eq!((link.through(10, grain), link.through(10, grain)), (Some(1), None));
        assert_eq!(link.next(grain), Some(14));
        assert_eq!((link.through(14, grain), link.next(grain)), (Some(0), None));
    }
}
