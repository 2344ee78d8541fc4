//! The search: patterns and list schedules as starts, polished in a tournament, expanded to all micro-batches.

use super::justify::justified;
use super::pattern::BlockDelays;
use super::polish::{Mode, Polish, Random, order};
use super::problem::{Effort, OrderingProblem};
use super::trial::{Gaps, Score, Trial};
use super::words::{Cuts, Words, cuts, expanded, fits};
use crate::event::Each;
use pipesim_cost::CostTable;
use pipesim_schedule::op::Kind;
use pipesim_schedule::open::Goal;
use std::sync::OnceLock;

/// Total work of a search in ops run, for up to 8 devices; it grows with the cube of the devices up to 20.
const BUDGET: u64 = 14_000_000;
/// Maximum number of trials per number of micro-batches: small problems need no more.
const TRIALS: u64 = 60_000;
/// Number of fenced, and of unfenced, starts of a tournament.
const ENTRANTS: usize = 16;
/// Rounds of a tournament; after each round the better half continues.
const ROUNDS: u64 = 5;

/// Words, how they run, and their score.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub words: Words,
    pub mode: Mode,
    pub score: Score,
    /// A period that must not change, so that it can be repeated.
    pub fence: Option<Cuts>,
    /// Whether it started from a lattice block.
    pub from_lattice: bool,
}

pub(super) struct OrderSearch<'a> {
    pub problem: &'a OrderingProblem,
    pub trial: Trial<'a>,
    pub goal: Goal,
    /// I or B.
    pub backward: Kind,
    /// Mean time of F, backward and W of a chunk.
    pub times: [i64; 3],
    pub found: Vec<Found>,
    /// The best blocks for fewer micro-batches.
    pub blocks: Vec<BlockDelays>,
}

/// Returns the best complete words found.
pub(super) fn search(
    problem: &OrderingProblem,
    costs: &CostTable,
    goal: Goal,
    split: bool,
    given: Option<Words>,
    effort: Effort<'_>,
) -> Option<Words> {
    let levels = levels(problem);
    let scale = (problem.devices() as u64).clamp(8, 20).pow(3);
    let (whole, each) = (BUDGET * scale / 512 * u64::from(effort.times.max(1)), effort.each);
    let mut below: Option<(OrderingProblem, Vec<Found>)> = None;
    let mut blocks = Vec::new();
    for &level in &levels {
        let here = problem.with_microbatches(level, costs);
        let budget = match (levels.len(), level == problem.microbatches) {
            (1, _) => whole,
            (2, _) => whole / 2,
            (_, true) => whole * 3 / 10,
            (_, false) if level == levels[0] => whole * 2 / 10,
            _ => whole / 2,
        };
        let budget = budget.min(TRIALS * here.ops(split) * u64::from(effort.times.max(1)));
        let mut search = OrderSearch { blocks: std::mem::take(&mut blocks), ..OrderSearch::new(&here, goal, split) };
        if let Some((smaller, found)) = &below {
            search.expand(smaller, found, level < problem.microbatches);
        }
        if level == problem.microbatches
            && let Some(words) = &given
        {
            search.consider(words.clone());
        }
        if levels.len() < 3 || level < problem.microbatches || search.found.is_empty() {
            search.starts([budget / 5, whole / 4], each);
        } else if !search.blocks.is_empty() {
            search.lattice(budget, each);
        }
        if level < problem.microbatches {
            search.fence();
        }
        search.refine();
        let raw = [false, true].map(|fenced| search.entrants(fenced).into_iter().next());
        search.tournament(budget * 7 / 10, each);
        search.complete(raw, budget * 3 / 10, each);
        if level == problem.microbatches {
            search.published();
            return search.best();
        }
        let found = search.carried();
        blocks = std::mem::take(&mut search.blocks);
        below = Some((here, found));
    }
    None
}

/// Returns the results of `work(0)` to `work(count - 1)`, run in parallel if `each` can.
pub(super) fn side_by_side<T: Send + Sync>(count: usize, each: Each<'_>, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let given: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
    each(count, &|n| drop(given[n].set(work(n))));
    given.into_iter().enumerate().map(|(n, given)| given.into_inner().unwrap_or_else(|| work(n))).collect()
}

/// Returns the ascending numbers of micro-batches to search with; orders for few are expanded to more.
fn levels(problem: &OrderingProblem) -> Vec<u32> {
    let (p, m) = (problem.devices() as u32, problem.microbatches);
    let mut levels = vec![p + p / 2 + 2, 2 * p + p / 2 + 4];
    levels.drain(..usize::from(problem.placement.chunks() == 1));
    levels.retain(|&level| level + 2 < m && problem.placement.directions() == 1);
    levels.iter_mut().for_each(|level| *level += (m - *level) % 2);
    levels.push(m);
    levels
}

fn mean(problem: &OrderingProblem, kind: Kind) -> i64 {
    let ops = problem.placement.op_kinds().filter(|op| op.kind() == kind);
    let (sum, n) = ops.fold((0, 0), |(sum, n), op| (sum + problem.rules[op.slot()].hold, n + 1));
    (sum / n) as i64
}

impl<'a> OrderSearch<'a> {
    fn new(problem: &'a OrderingProblem, goal: Goal, split: bool) -> OrderSearch<'a> {
        let backward = if split { Kind::I } else { Kind::B };
        let w = if split { mean(problem, Kind::W) } else { 0 };
        let times = [mean(problem, Kind::F), mean(problem, backward), w];
        OrderSearch {
            problem,
            trial: Trial::new(problem, split),
            goal,
            backward,
            times,
            found: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Returns a third of the time of a chunk for a micro-batch.
    pub fn unit(&self) -> i64 {
        (self.times.iter().sum::<i64>() / 3).max(1)
    }

    /// Returns the mean time from one micro-batch to the next if no device idles.
    pub fn period(&self) -> i64 {
        self.times.iter().sum::<i64>() * self.problem.placement.held_by(0).len() as i64
    }

    fn run(trial: &mut Trial<'_>, found: &Found) -> Option<Score> {
        match found.mode {
            Mode::Fill(gaps) => trial.fill(&found.words, gaps, |_, _| ()),
            Mode::Explicit => trial.run(&found.words),
        }
    }

    /// Rates `words` with their best slack.
    pub fn rate(&mut self, words: Words) -> Option<Found> {
        let w = self.times[2] as u64;
        let slacks = if w == 0 { vec![0] } else { vec![0, w / 3, 2 * w / 3, w] };
        let mut best: Option<(Score, Gaps)> = None;
        for gaps in slacks.into_iter().map(Gaps::within) {
            self.try_gaps(&words, gaps, &mut best);
        }
        best.map(|(score, gaps)| Found { words, mode: Mode::Fill(gaps), score, fence: None, from_lattice: false })
    }

    /// Runs `words` with `gaps`; updates `best`.
    pub fn try_gaps(&mut self, words: &Words, gaps: Gaps, best: &mut Option<(Score, Gaps)>) {
        if let Some(score) = self.trial.fill(words, gaps, |_, _| ())
            && best.is_none_or(|(other, _)| order(self.goal, score) < order(self.goal, other))
        {
            *best = Some((score, gaps));
        }
    }

    /// Adds `words`; returns what they reach.
    pub fn consider(&mut self, words: Words) -> Option<(u64, u64, u64)> {
        let found = self.rate(words)?;
        let key = order(self.goal, found.score);
        self.found.push(found);
        Some(key)
    }

    /// Expands orders for fewer micro-batches; with `again` they will be expanded once more.
    fn expand(&mut self, smaller: &OrderingProblem, found: &[Found], again: bool) {
        let mut trial = Trial::new(smaller, self.backward == Kind::I);
        let more = self.problem.microbatches - smaller.microbatches;
        for start in found {
            let mut all: Vec<(Cuts, u32)> = Vec::new();
            if let Some(fence) = &start.fence {
                all.push((fence.clone(), more));
            } else {
                OrderSearch::run(&mut trial, start);
                for q in (1..=3).filter(|&q| more.is_multiple_of(q)) {
                    all.extend(
                        cuts(smaller, &trial.begins, &start.words, q, 3).into_iter().map(|cuts| (cuts, more / q)),
                    );
                }
            }
            for (cuts, times) in all {
                let (words, moved) = expanded(&start.words, &cuts, times);
                let candidate = Found { words, fence: None, ..start.clone() };
                let Some(score) = OrderSearch::run(&mut self.trial, &candidate) else { continue };
                let free = Found { score, ..candidate };
                if again {
                    self.found.push(Found { fence: Some(moved), ..free.clone() });
                }
                self.found.push(free);
            }
        }
        self.sort();
    }

    /// Adds the best orders again with a period fenced.
    fn fence(&mut self) {
        for start in self.found.iter().take(4 * ENTRANTS).cloned().collect::<Vec<Found>>() {
            if start.fence.is_none() {
                OrderSearch::run(&mut self.trial, &start);
                let fence = cuts(self.problem, &self.trial.begins, &start.words, 1, 1).pop();
                self.found.extend(fence.map(|fence| Found { fence: Some(fence), ..start }));
            }
        }
        self.sort();
    }

    /// Sorts the orders, the best first, and removes duplicates.
    pub fn sort(&mut self) {
        let goal = self.goal;
        self.found.sort_by(|a, b| order(goal, a.score).cmp(&order(goal, b.score)).then(a.mode.cmp(&b.mode)));
        self.found.dedup_by(|a, b| a.words == b.words && a.mode == b.mode && a.fence == b.fence);
    }

    /// Returns by how much an order exceeds the work of the busiest device.
    fn excess(&self, found: &Found) -> u64 {
        order(self.goal, found.score).0.saturating_sub(self.problem.span_bound(self.backward == Kind::I))
    }

    /// Returns the best orders, few of the same score, at most three quarters from the lattice: these are many, and would displace
    /// starts that lead further.
    fn entrants(&self, fenced: bool) -> Vec<Found> {
        let mut chosen: Vec<Found> = Vec::new();
        let least = [false, true].map(|kin| {
            let alike = self.found.iter().filter(|found| found.from_lattice == kin);
            alike.map(|found| self.excess(found)).min().unwrap_or(0)
        });
        let near = |found: &&Found| {
            let least = least[usize::from(found.from_lattice)];
            self.excess(found) <= least + least / 5 + 2 * self.unit() as u64
        };
        for found in self.found.iter().filter(near).filter(|found| found.fence.is_some() == fenced) {
            let alike = chosen.iter().filter(|other| other.score == found.score).count();
            let kin = chosen.iter().filter(|other| found.from_lattice && other.from_lattice).count();
            if alike < ENTRANTS / 2
                && kin < ENTRANTS * 3 / 4
                && chosen.len() < ENTRANTS
                && chosen.iter().all(|other| other.words != found.words)
            {
                chosen.push(found.clone());
            }
        }
        chosen
    }

    /// Polishes each of `field` with `budget` ops of work, in parallel; `None` if words deadlock.
    fn polished(&mut self, field: &[Found], budget: u64, seed: u64, each: Each<'_>) -> Vec<Option<Found>> {
        let (problem, goal, split) = (self.problem, self.goal, self.backward == Kind::I);
        let bounds = [problem.makespan_bound(split), problem.span_bound(split)];
        let heat = 2 * self.unit() as u64;
        let work = |n: usize| {
            let (start, mut trial) = (&field[n], Trial::new(problem, split));
            let (mode, fence, random) = (start.mode, start.fence.as_ref(), Random(seed + n as u64));
            let mut polish = Polish { problem, trial: &mut trial, goal, mode, random, bounds, fence, heat };
            let (words, score) = polish.run(start.words.clone(), budget)?;
            Some(Found { words, score, ..start.clone() })
        };
        self.trial.work += budget * field.len() as u64;
        side_by_side(field.len(), each, work)
    }

    /// Adds the entrants with idle time shared evenly, and justified.
    fn refine(&mut self) {
        let split = self.backward == Kind::I;
        for start in self.carried() {
            let Mode::Fill(gaps) = start.mode else { continue };
            if split {
                let mut best = Some((start.score, gaps));
                self.share_idle_time(&start, &mut best);
                let (score, gaps) = best.unwrap_or((start.score, gaps));
                if gaps.idle != u64::MAX {
                    self.found.push(Found { score, mode: Mode::Fill(gaps), ..start.clone() });
                }
            }
            if start.fence.is_none()
                && let Some(words) = justified(self.problem, split, &start.words)
                && let Some(found) = self.rate(words)
            {
                self.found.push(Found { from_lattice: start.from_lattice, ..found });
            }
        }
        self.sort();
    }

    /// Searches for the smallest limit of idle time for all devices.
    fn share_idle_time(&mut self, start: &Found, best: &mut Option<(Score, Gaps)>) {
        let mut sixteenths = 16;
        for _ in 0..24 {
            let score = best.map_or(start.score, |(score, _)| score);
            let excess = self.excess(&Found { score, ..start.clone() });
            let idle = (excess / 16 * sixteenths + excess % 16 * sixteenths / 16).saturating_sub(1);
            self.try_gaps(&start.words, Gaps { slack: 0, idle }, best);
            if best.is_some_and(|(better, _)| better == score) {
                sixteenths -= 2;
            }
            if sixteenths < 4 {
                break;
            }
        }
    }

    /// Polishes the best orders; after each round the better half continues.
    fn tournament(&mut self, budget: u64, each: Each<'_>) {
        for fenced in [false, true] {
            let mut field = self.entrants(fenced);
            if field.len() == 1 {
                field = vec![field[0].clone(); 3];
            }
            let both = self.found.iter().any(|found| found.fence.is_some() != fenced);
            let budget = if both { budget / 2 } else { budget };
            for round in 0..ROUNDS {
                let share = budget / ROUNDS / field.len().max(1) as u64;
                let better = self.polished(&field, share, 100 * round, each);
                for (start, better) in field.iter_mut().zip(better) {
                    *start = better.unwrap_or_else(|| start.clone());
                }
                field.sort_by_key(|found| order(self.goal, found.score));
                self.found.extend(field.iter().cloned());
                field.truncate(field.len().div_ceil(2));
            }
        }
        self.sort();
    }

    /// Returns the orders to expand to more micro-batches.
    fn carried(&self) -> Vec<Found> {
        [false, true].iter().flat_map(|&fenced| self.entrants(fenced)).collect()
    }

    /// Adds the best orders with their W's, after a polish that moves W's, too; also `raw` ones, since a polish without W's may leave
    /// no room for W's.
    fn complete(&mut self, raw: [Option<Found>; 2], budget: u64, each: Each<'_>) {
        let mut starts: Vec<Found> = Vec::new();
        for (fenced, raw) in [false, true].into_iter().zip(raw) {
            starts.extend(self.entrants(fenced).into_iter().take(2).chain(raw));
        }
        let mut complete = Vec::new();
        for start in starts {
            let mut words = start.words.clone();
            if let Mode::Fill(gaps) = start.mode {
                let mut rows = vec![Vec::new(); self.problem.devices()];
                self.trial.fill(&start.words, gaps, |device, slot| rows[device as usize].push(slot));
                words = Words::new(rows);
            }
            let Some(score) = self.trial.run(&words) else { continue };
            let fence = start.fence.and_then(|_| cuts(self.problem, &self.trial.begins, &words, 1, 1).pop());
            complete.push(Found { words, mode: Mode::Explicit, score, fence, from_lattice: start.from_lattice });
        }
        self.found.extend(complete.iter().cloned());
        let better = self.polished(&complete, budget / complete.len().max(1) as u64, 5, each);
        self.found.extend(better.into_iter().flatten());
        self.sort();
    }

    /// Returns the best words with their W's.
    fn best(&mut self) -> Option<Words> {
        let mut counts = vec![0; self.problem.rules.len()];
        let mut fit = |words: &Words| {
            (0..self.problem.devices()).all(|device| fits(self.problem, device, words.word(device), &mut counts))
        };
        let complete = self.found.iter().filter(|found| found.mode == Mode::Explicit).map(|found| &found.words);
        let best = complete.into_iter().find(|words| fit(words)).cloned();
        best.or_else(|| self.list_schedule())
    }
}
