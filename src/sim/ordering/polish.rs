//! Local search on orders, guided by the critical path.

use super::problem::OrderingProblem;
use super::problem::kind_of;
use super::trial::{Gaps, Score, Trial};
use super::words::{Cuts, Words, fits};
use pipesim_schedule::op::Kind;
use pipesim_schedule::open::Goal;

/// A small pseudo-random number generator (SplitMix64: Steele, Lea and Flood 2014).
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// Returns the key to minimize.
pub(super) fn order(goal: Goal, score: Score) -> (u64, u64, u64) {
    match goal {
        Goal::Makespan => (score.makespan, score.span, score.ends),
        Goal::Span => (score.span, score.makespan, score.ends),
    }
}

/// How words run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// Without W's, which fill gaps.
    Fill(Gaps),
    Explicit,
}

pub(super) struct Polish<'a, 'b> {
    pub problem: &'a OrderingProblem,
    pub trial: &'b mut Trial<'a>,
    pub goal: Goal,
    pub mode: Mode,
    pub random: Random,
    /// Lower bounds of makespan and span.
    pub bounds: [u64; 2],
    /// By device: a range of ops that must not change.
    pub fence: Option<&'b Cuts>,
    /// Largest increase of the cost that is accepted at the beginning.
    pub heat: u64,
}

impl Polish<'_, '_> {
    fn try_words(&mut self, words: &Words, limit: u64) -> Option<Score> {
        let limits = match self.goal {
            Goal::Makespan => [limit / 8, u64::MAX],
            Goal::Span => [u64::MAX, limit / 8],
        };
        match self.mode {
            Mode::Fill(gaps) => self.trial.fill_within(words, gaps, limits, |_, _| ()),
            Mode::Explicit => self.trial.run(words),
        }
    }

    fn cost(&self, score: Score) -> u64 {
        let (first, second, ends) = order(self.goal, score);
        first
            .saturating_mul(8)
            .saturating_add(second)
            .saturating_add(ends.saturating_mul(2) / self.problem.devices() as u64)
    }

    /// Improves `words` with `budget` ops of work; returns the best words and their score.
    pub fn run(&mut self, mut words: Words, budget: u64) -> Option<(Words, Score)> {
        let score = self.try_words(&words, u64::MAX)?;
        let mut best = (words.clone(), score);
        let mut current = self.cost(score);
        let mut path = Vec::new();
        self.critical(&words, &mut path);
        let mut counts = vec![0; self.problem.rules.len()];
        let (begun, until) = (self.trial.work, self.trial.work + budget);
        while self.trial.work < until && !self.is_best(best.1) {
            self.trial.work += 16; // a rejected move is work, too
            let Some((device, from, to)) = self.propose(&words, &path) else { continue };
            if self.fence.is_some_and(|fence| from.max(to) >= fence[device].0 && from.min(to) < fence[device].1) {
                continue;
            }
            rotate(&mut words.slots, from, to);
            let word = words.word(device);
            let fine = match self.mode {
                Mode::Explicit => fits(self.problem, device, word, &mut counts),
                Mode::Fill(_) => ordered(self.problem, device, word, &mut counts),
            };
            let left = u128::from(until.saturating_sub(self.trial.work));
            let heat = (u128::from(self.heat) * left / u128::from(until - begun)) as u64; // ticks may be many
            let limit = current + if heat > 0 { self.random.below(heat as usize + 1) as u64 } else { 0 };
            let score = if fine { self.try_words(&words, limit) } else { None };
            match score {
                Some(score) if self.cost(score) <= limit => {
                    current = self.cost(score);
                    if order(self.goal, score) < order(self.goal, best.1) {
                        best = (words.clone(), score);
                    }
                    self.critical(&words, &mut path);
                }
                _ => rotate(&mut words.slots, to, from),
            }
        }
        Some(best)
    }

    /// Whether the lower bounds are reached.
    fn is_best(&self, score: Score) -> bool {
        score.makespan <= self.bounds[0] && (self.goal == Goal::Makespan || score.span <= self.bounds[1])
    }

    /// Proposes a move: the device, the index of an op, and its new index.
    fn propose(&mut self, words: &Words, path: &[u32]) -> Option<(usize, usize, usize)> {
        if self.mode == Mode::Explicit && self.random.below(4) == 0 {
            return self.weight_into_gap(words, path);
        }
        let dice = self.random.below(16);
        if dice < 12 && !path.is_empty() {
            // Run an op on the critical path that waits for its device earlier, or its predecessor later.
            let at = path[self.random.below(path.len())] as usize;
            let device = words.starts.partition_point(|&start| start <= at) - 1;
            let range = words.range(device);
            let reach = 1 + self.random.below(if dice < 6 { 2 } else { 12 });
            return if dice.is_multiple_of(2) {
                let to = at.saturating_sub(reach).max(range.start);
                (words.slots[at] != words.slots[at - 1] || reach > 1).then_some((device, at, to))
            } else {
                Some((device, at - 1, (at - 1 + reach).min(range.end - 1)))
            };
        }
        let at = self.random.below(words.slots.len());
        let device = words.starts.partition_point(|&start| start <= at) - 1;
        let range = words.range(device);
        let reach = 1 + self.random.below(12);
        let to = if dice.is_multiple_of(2) {
            at.saturating_sub(reach).max(range.start)
        } else {
            (at + reach).min(range.end - 1)
        };
        (at != to).then_some((device, at, to))
    }

    /// Proposes to move a W on the critical path to any gap of its device.
    fn weight_into_gap(&mut self, words: &Words, path: &[u32]) -> Option<(usize, usize, usize)> {
        let at = *path.get(self.random.below(path.len().max(1)))? as usize;
        if kind_of(words.slots[at]) != Kind::W {
            return None;
        }
        let device = words.starts.partition_point(|&start| start <= at) - 1;
        let start = words.starts[device];
        let idles = |k: &usize| {
            let before = self.problem.rules[words.slots[k - 1] as usize].hold;
            self.trial.begins[*k] > self.trial.begins[k - 1] + before
        };
        let candidates: Vec<usize> = (start + 1..at).filter(idles).collect();
        let to = *candidates.get(self.random.below(candidates.len().max(1)))?;
        Some((device, at, to))
    }

    /// Finds the ops on a critical path that wait for their device, not for their input.
    fn critical(&mut self, words: &Words, path: &mut Vec<u32>) {
        path.clear();
        let devices = self.problem.devices();
        let length = |trial: &Trial<'_>, d: usize| match self.goal {
            Goal::Makespan => trial.last(d),
            Goal::Span => trial.last(d) - trial.first(d),
        };
        let longest = (0..devices).map(|d| length(self.trial, d)).max().unwrap_or(0);
        let last: Vec<usize> =
            (0..devices).filter(|&d| length(self.trial, d) == longest && !words.range(d).is_empty()).collect();
        if last.is_empty() {
            return;
        }
        let mut device = last[self.random.below(last.len())];
        let mut at = words.starts[device + 1] - 1;
        loop {
            let input = self.trial.reads[at];
            let begin = self.trial.begins[at];
            let sourced = input < self.problem.microbatches;
            let maker = self.trial.makers[input as usize] as usize;
            let arrival = if sourced {
                0
            } else {
                let made = &self.problem.rules[words.slots[maker] as usize];
                self.trial.begins[maker] + made.duration + made.lag
            };
            if begin > arrival || (sourced && begin > 0) {
                if at == words.starts[device] {
                    return;
                }
                path.push(at as u32);
                at -= 1;
            } else if sourced {
                return;
            } else {
                at = maker;
                device = words.starts.partition_point(|&start| start <= at) - 1;
            }
        }
    }
}

/// Moves element `from` to index `to`, those between by one.
pub(super) fn rotate(slots: &mut [u32], from: usize, to: usize) {
    if from < to {
        slots[from..=to].rotate_left(1);
    } else {
        slots[to..=from].rotate_right(1);
    }
}

/// Whether a word without W's runs every backward after its forward and keeps the cap if W's run at once.
fn ordered(problem: &OrderingProblem, device: usize, word: &[u32], counts: &mut [u32]) -> bool {
    counts.fill(0);
    let mut whole = 0;
    for &slot in word {
        let counter = problem.rules[slot as usize].counter as usize;
        counts[counter] += 1;
        if kind_of(slot) != Kind::F {
            if counts[counter] > counts[counter - 1] {
                return false;
            }
            whole -= 1;
        } else if problem.admits(device, whole + 1, 0) {
            whole += 1;
        } else {
            return false;
        }
    }
    true
}
