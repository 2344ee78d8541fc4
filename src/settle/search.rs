//! The search: patterns and list schedules as starts, polished in a tournament, expanded to all micro-batches.
//!
//! Work is counted in ops run, never in time, so that the same input gives the same schedule.

use super::expand::{Cuts, cuts, expanded};
use super::polish::{Mode, Polish, Random, order};
use super::problem::Problem;
use super::trial::{Score, Trial, Words};
use crate::cost::CostTable;
use crate::op::Kind;
use crate::open::Goal;

/// Ops that a search runs in all, for 8 devices or fewer; it grows with the cube of the devices up to 20.
const BUDGET: u64 = 14_000_000;
/// Most often that all ops are run at one number of micro-batches: small problems need no more.
const TRIALS: u64 = 60_000;
/// How many starts enter a tournament, of those fenced and of those not.
const ENTRANTS: usize = 16;
/// Rounds of a tournament; after each the better half goes on.
const ROUNDS: u64 = 5;

/// Words, how they are run, what came of it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub words: Words,
    pub mode: Mode,
    pub score: Score,
    /// A period that stays as it is, so that it can be repeated.
    pub fence: Option<Cuts>,
}

/// The search with one number of micro-batches.
pub(super) struct Search<'a> {
    pub problem: &'a Problem,
    pub trial: Trial<'a>,
    pub goal: Goal,
    /// I or B.
    pub backward: Kind,
    /// Mean time of a chunk's F, backward, W.
    pub times: [i64; 3],
    pub found: Vec<Found>,
}

/// The best complete words found.
pub(super) fn search(
    problem: &Problem,
    costs: &CostTable,
    goal: Goal,
    split: bool,
    given: Option<Words>,
) -> Option<Words> {
    let levels = levels(problem);
    let scale = (problem.devices() as u64).clamp(8, 20).pow(3);
    let budget = BUDGET * scale / 512;
    let mut below: Option<(Problem, Vec<Found>)> = None;
    for &level in &levels {
        let here = problem.with_microbatches(level, costs);
        let budget = match (levels.len(), level == problem.microbatches) {
            (1, _) => budget,
            (2, _) => budget / 2,
            (_, true) => budget * 3 / 10,
            (_, false) if level == levels[0] => budget * 2 / 10,
            _ => budget / 2,
        };
        let ops = u64::from(level) * u64::from(problem.placement.stages()) * if split { 3 } else { 2 };
        let budget = budget.min(TRIALS * ops);
        let mut search = Search::new(&here, goal, split);
        if let Some((smaller, found)) = &below {
            search.expand(smaller, found, level < problem.microbatches);
        }
        if level == problem.microbatches
            && let Some(words) = &given
        {
            search.consider(words.clone());
        }
        if levels.len() < 3 || level < problem.microbatches || search.found.is_empty() {
            search.starts(budget / 5);
        }
        if level < problem.microbatches {
            search.fence();
        }
        let raw = [false, true].map(|fenced| search.entrants(fenced).into_iter().next());
        search.tournament(budget * 7 / 10);
        search.complete(raw, budget * 3 / 10);
        if level == problem.microbatches {
            return search.best();
        }
        let found = search.carried();
        below = Some((here, found));
    }
    None
}

/// The numbers of micro-batches to search with, growing: what is found for few is expanded to more.
fn levels(problem: &Problem) -> Vec<u32> {
    let (p, m) = (problem.devices() as u32, problem.microbatches);
    let mut levels = vec![p + p / 2 + 2, 2 * p + p / 2 + 4];
    levels.drain(..usize::from(problem.placement.chunks() == 1));
    levels.retain(|&level| level + 2 < m && problem.placement.directions() == 1);
    levels.iter_mut().for_each(|level| *level += (m - *level) % 2);
    levels.push(m);
    levels
}

fn mean(problem: &Problem, kind: Kind) -> i64 {
    let ops = problem.placement.op_kinds().filter(|op| op.kind() == kind);
    let (sum, n) = ops.fold((0, 0), |(sum, n), op| (sum + problem.rules[op.slot()].hold, n + 1));
    (sum / n) as i64
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, goal: Goal, split: bool) -> Search<'a> {
        let backward = if split { Kind::I } else { Kind::B };
        let w = if split { mean(problem, Kind::W) } else { 0 };
        let times = [mean(problem, Kind::F), mean(problem, backward), w];
        Search { problem, trial: Trial::new(problem, split), goal, backward, times, found: Vec::new() }
    }

    /// A third of what a chunk takes for a micro-batch.
    pub fn unit(&self) -> i64 {
        (self.times.iter().sum::<i64>() / 3).max(1)
    }

    /// Mean time from one micro-batch to the next where no device idles.
    pub fn period(&self) -> i64 {
        self.times.iter().sum::<i64>() * self.problem.placement.held_by(0).len() as i64
    }

    /// Runs what was found, which is for this problem.
    fn run(trial: &mut Trial<'_>, found: &Found) -> Option<Score> {
        match found.mode {
            Mode::Fill(slack) => trial.fill(&found.words, slack, |_, _| ()),
            Mode::Explicit => trial.run(&found.words),
        }
    }

    /// `words` with the slack that suits them best.
    pub fn rate(&mut self, words: Words) -> Option<Found> {
        let w = self.times[2] as u64;
        let slacks = if w == 0 { vec![0] } else { vec![0, w / 3, 2 * w / 3, w] };
        let mut best: Option<(Score, u64)> = None;
        for slack in slacks {
            if let Some(score) = self.trial.fill(&words, slack, |_, _| ())
                && best.is_none_or(|(other, _)| order(self.goal, score) < order(self.goal, other))
            {
                best = Some((score, slack));
            }
        }
        best.map(|(score, slack)| Found { words, mode: Mode::Fill(slack), score, fence: None })
    }

    /// Takes note of `words`; what they reach.
    pub fn consider(&mut self, words: Words) -> Option<(u64, u64, u64)> {
        let found = self.rate(words)?;
        let key = order(self.goal, found.score);
        self.found.push(found);
        Some(key)
    }

    /// Expands what was found for fewer micro-batches; `again`: it will be expanded once more.
    fn expand(&mut self, smaller: &Problem, found: &[Found], again: bool) {
        let mut trial = Trial::new(smaller, self.backward == Kind::I);
        let more = self.problem.microbatches - smaller.microbatches;
        for start in found {
            let mut all: Vec<(Cuts, u32)> = Vec::new();
            if let Some(fence) = &start.fence {
                all.push((fence.clone(), more));
            } else {
                Search::run(&mut trial, start);
                for q in (1..=3).filter(|&q| more.is_multiple_of(q)) {
                    all.extend(cuts(smaller, &trial, &start.words, q, 3).into_iter().map(|cuts| (cuts, more / q)));
                }
            }
            for (cuts, times) in all {
                let (words, moved) = expanded(&start.words, &cuts, times);
                let candidate = Found { words, fence: None, ..start.clone() };
                let Some(score) = Search::run(&mut self.trial, &candidate) else { continue };
                let free = Found { score, ..candidate };
                if again {
                    self.found.push(Found { fence: Some(moved), ..free.clone() });
                }
                self.found.push(free);
            }
        }
        self.sort();
    }

    /// Adds what was found once more, with a period fenced.
    fn fence(&mut self) {
        for start in self.found.iter().take(4 * ENTRANTS).cloned().collect::<Vec<Found>>() {
            if start.fence.is_none() {
                Search::run(&mut self.trial, &start);
                let fence = cuts(self.problem, &self.trial, &start.words, 1, 1).pop();
                self.found.extend(fence.map(|fence| Found { fence: Some(fence), ..start }));
            }
        }
        self.sort();
    }

    /// Sorts what was found, the best first, and takes out what is there twice.
    pub fn sort(&mut self) {
        let goal = self.goal;
        self.found.sort_by(|a, b| order(goal, a.score).cmp(&order(goal, b.score)).then(a.mode.cmp(&b.mode)));
        self.found.dedup_by(|a, b| a.words == b.words && a.mode == b.mode && a.fence == b.fence);
    }

    /// By how much a schedule exceeds the work of the busiest device.
    fn excess(&self, found: &Found) -> u64 {
        order(self.goal, found.score).0.saturating_sub(self.problem.span_bound(self.backward == Kind::I))
    }

    /// The best found, few of the same score.
    fn entrants(&self, fenced: bool) -> Vec<Found> {
        let mut chosen: Vec<Found> = Vec::new();
        let least = self.found.iter().map(|found| self.excess(found)).min().unwrap_or(0);
        let near = |found: &&Found| self.excess(found) <= least + least / 5 + 2 * self.unit() as u64;
        for found in self.found.iter().filter(near).filter(|found| found.fence.is_some() == fenced) {
            let alike = chosen.iter().filter(|other| other.score == found.score).count();
            if alike < ENTRANTS / 2 && chosen.len() < ENTRANTS && chosen.iter().all(|other| other.words != found.words)
            {
                chosen.push(found.clone());
            }
        }
        chosen
    }

    fn polish(&mut self, start: &Found, budget: u64, heat: i64, seed: u64) -> Option<Found> {
        let split = self.backward == Kind::I;
        let mut polish = Polish {
            problem: self.problem,
            trial: &mut self.trial,
            goal: self.goal,
            mode: start.mode,
            random: Random(seed),
            bounds: [self.problem.makespan_bound(split), self.problem.span_bound(split)],
            fence: start.fence.as_ref(),
            heat: heat as u64,
        };
        let (words, score) = polish.run(start.words.clone(), budget)?;
        Some(Found { words, score, ..start.clone() })
    }

    /// Polishes the best of what was found; after each round the better half goes on.
    fn tournament(&mut self, budget: u64) {
        for fenced in [false, true] {
            let mut field = self.entrants(fenced);
            if field.len() == 1 {
                field = vec![field[0].clone(); 3];
            }
            let both = self.found.iter().any(|found| found.fence.is_some() != fenced);
            let budget = if both { budget / 2 } else { budget };
            for round in 0..ROUNDS {
                let share = budget / ROUNDS / field.len().max(1) as u64;
                let heat = 2 * self.unit();
                for (n, start) in field.iter_mut().enumerate() {
                    if let Some(better) = self.polish(start, share, heat, 100 * round + n as u64) {
                        *start = better;
                    }
                }
                field.sort_by_key(|found| order(self.goal, found.score));
                self.found.extend(field.iter().cloned());
                field.truncate(field.len().div_ceil(2));
            }
        }
        self.sort();
    }

    /// What goes on to more micro-batches.
    fn carried(&self) -> Vec<Found> {
        [false, true].iter().flat_map(|&fenced| self.entrants(fenced)).collect()
    }

    /// Adds the best with their W's, after a polish in which these move freely; `raw` ones too, for a polish without W's
    /// may have led them where W's have no room.
    fn complete(&mut self, raw: [Option<Found>; 2], budget: u64) {
        let mut starts: Vec<Found> = Vec::new();
        for (fenced, raw) in [false, true].into_iter().zip(raw) {
            starts.extend(self.entrants(fenced).into_iter().take(2).chain(raw));
        }
        let number = starts.len().max(1) as u64;
        for start in starts {
            let mut words = start.words.clone();
            if let Mode::Fill(slack) = start.mode {
                let mut rows = vec![Vec::new(); self.problem.devices()];
                self.trial.fill(&start.words, slack, |device, slot| rows[device as usize].push(slot));
                words = Words::new(&rows);
            }
            let Some(score) = self.trial.run(&words) else { continue };
            let fence = start.fence.and_then(|_| cuts(self.problem, &self.trial, &words, 1, 1).pop());
            let complete = Found { words, mode: Mode::Explicit, score, fence };
            let better = self.polish(&complete, budget / number, 2 * self.unit(), 5);
            self.found.extend(better);
        }
        self.sort();
    }

    /// The best words with their W's.
    fn best(&mut self) -> Option<Words> {
        self.found.iter().find(|found| found.mode == Mode::Explicit).map(|found| found.words.clone())
    }
}
