//! The starts of a search: closed forms, building blocks in strict order and from a lattice, and list schedules with the blocks'
//! priorities.

use super::justify;
use super::list_schedule::{Course, Policy, Rank, list_schedule};
use super::pattern::{BlockDelays, alternating, in_order, timed, zero_bubble_v};
use super::polish::{Mode, Random, order};
use super::problem::OrderingProblem;
use super::problem::kind_of;
use super::rounds::rounds;
use super::search::{Found, OrderSearch, side_by_side};
use super::trial::{Gaps, Trial};
use super::words::{Words, fits, words_of};
use crate::event::Each;
use pipesim_schedule::activation::WHOLE;
use pipesim_schedule::op::{Kind, Op};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Number of lattice blocks that become starts.
const BLOCKS: usize = 32;
/// Cost of trying a block, in ops run per op.
const RUNS: u64 = 12;

/// What a block reaches, the block, and its words.
type Rated = (u64, BlockDelays, Words);

/// Returns blocks as in arXiv 2405.15362 (appendix A) on a lattice of `unit`s for `p` devices, but with collisions shifted instead of
/// excluded: the same delays down forward and up backward, in two sections of devices, with any turns. In halves of a unit.
fn blocks(p: u32, unit: i64) -> Vec<BlockDelays> {
    let mut blocks = Vec::new();
    for (a, b) in (0..5).flat_map(|a| (0..=a).map(move |b| (a, b))) {
        let last = if a == b { 1 } else { p - 1 };
        for cut in (1..=last).step_by(p.div_ceil(16) as usize) {
            for turns in (0..216).map(|n| [n % 6, n / 6 % 6, n / 36]) {
                let hops = |delay: i64| [2 * delay, 0, 0, 2 * delay];
                let beyond = (a != b).then(|| (cut, hops(b)));
                let turns = turns.map(|turn| 2 * turn);
                blocks.push(BlockDelays { hops: hops(a), beyond, turns, even: Some(unit), apart: true });
            }
        }
    }
    blocks
}
/// Number of blocks that are improved by local search, and of steps for each.
const CLIMBS: (usize, usize) = (3, 120);

/// V-Min, V-Half and V-ZB (arXiv 2405.15362 section 3 and its appendix: the turn depends on p), in halves of a unit.
const PUBLISHED: [BlockDelays; 5] = [
    BlockDelays { hops: [0, 0, 0, 0], turns: [0; 3], ..BlockDelays::NONE },
    BlockDelays { hops: [0, 0, 0, 0], turns: [4, 0, 0], ..BlockDelays::NONE },
    BlockDelays { hops: [2, 0, 2, 0], turns: [0; 3], ..BlockDelays::NONE },
    BlockDelays { hops: [2, 0, 2, 0], turns: [6, 0, 0], ..BlockDelays::NONE },
    BlockDelays { hops: [6, 2, 6, 2], turns: [0; 3], ..BlockDelays::NONE },
];

/// V-Min and V-Half as published, with both turns: p decides which of them repeats without collisions. In halves of a unit.
const REPEATED: [BlockDelays; 4] = [
    BlockDelays { hops: [0, 0, 0, 0], turns: [0, 0, 0], apart: true, ..BlockDelays::NONE },
    BlockDelays { hops: [0, 0, 0, 0], turns: [4, 0, 0], apart: true, ..BlockDelays::NONE },
    BlockDelays { hops: [2, 0, 0, 2], turns: [0, 0, 2], apart: true, ..BlockDelays::NONE },
    BlockDelays { hops: [2, 0, 0, 2], turns: [6, 0, 2], apart: true, ..BlockDelays::NONE },
];

impl OrderSearch<'_> {
    /// Gathers starts, with `budget` ops of work, and `lattice` ops for blocks on a lattice.
    pub fn starts(&mut self, [budget, lattice]: [u64; 2], each: Each<'_>) {
        // Never fails: list scheduling cannot deadlock.
        self.listed(Rank::Kinds(vec![self.backward, Kind::F]), 0, 0);
        let placement = &self.problem.placement;
        if placement.directions() == 1 && placement.chunks() == 1 {
            for twelfths in 0..=36 {
                self.consider(alternating(self.problem, self.backward, twelfths));
            }
            for wait in [false, true] {
                self.consider(timed(self.problem, self.backward, wait));
            }
        }
        let (unit, w) = (self.unit(), self.times[2]);
        let mut rated = Vec::new();
        if self.is_vee() {
            self.consider(zero_bubble_v(self.problem, self.backward));
            if self.backward == Kind::I {
                for words in rounds(self.problem) {
                    self.start(words);
                }
            }
            self.lattice(lattice, each);
            for block in PUBLISHED.into_iter().flat_map(|block| [block, BlockDelays { even: Some(unit), ..block }]) {
                self.block(block);
            }
        }
        let until = self.trial.work + budget;
        for block in self.blocks() {
            if self.trial.work > until {
                break;
            }
            for block in [block, BlockDelays { even: Some(unit), ..block }] {
                rated.extend(self.block(block).map(|key| (key, block)));
            }
            for (patience, slack) in [(0, 0), (0, w), (unit / 2, 0)] {
                let rank = Rank::Times { offsets: self.offsets(block), period: self.period() };
                self.listed(rank, patience, slack);
            }
        }
        rated.sort();
        rated.truncate(CLIMBS.0);
        rated.into_iter().for_each(|(key, block)| self.climb(key, block, until));
        self.sort();
    }

    /// Adds V-Min and V-Half as their authors make them, so that no result is longer than theirs. Last, and never polished: any start
    /// more would change what the other passes find.
    pub fn published(&mut self) {
        if !self.is_vee() || self.backward != Kind::I {
            return;
        }
        let unit = self.unit();
        let even = self.problem.even(unit as u64);
        for block in REPEATED.map(|block| BlockDelays { even: Some(unit), ..block }) {
            let words = justify::published(&even, &self.offsets(block), self.period_of(block));
            words.into_iter().for_each(|words| self.start(words));
        }
        self.sort();
    }

    /// Whether device r holds stages r and 2p - 1 - r.
    fn is_vee(&self) -> bool {
        let p = self.problem.placement.devices();
        let placement = &self.problem.placement;
        placement.directions() == 1
            && placement.chunks() == 2
            && (0..p).all(|r| placement.stages_of(r).eq([r, 2 * p - 1 - r]))
    }

    /// A grid of blocks: the distances of arXiv 2405.15362 section 3 and their neighbours, in halves of a unit.
    fn blocks(&self) -> Vec<BlockDelays> {
        let mut blocks = Vec::new();
        if self.problem.placement.chunks() == 1 {
            for hop in 0..8 {
                blocks.extend([0, 2].map(|turn| BlockDelays {
                    hops: [0, 0, 2 * hop, 2 * hop],
                    turns: [turn, 0, 0],
                    ..BlockDelays::NONE
                }));
            }
            return blocks;
        }
        for (first, other) in (0..4).flat_map(|first| (0..3).map(move |other| (2 * first, 2 * other))) {
            for (back, back_other) in [(first, other), (first, first), (other, first), (0, 0)] {
                let hops = [first, other, back, back_other];
                blocks.extend([0, 2, 4, 6].map(|turn| BlockDelays { hops, turns: [turn, 0, 0], ..BlockDelays::NONE }));
            }
        }
        blocks.sort();
        blocks.dedup();
        // Symmetric blocks first, in case the budget ends.
        blocks.sort_by_key(|block| block.hops[0] != block.hops[2] || block.hops[1] != block.hops[3]);
        blocks
    }

    /// Returns the time from one micro-batch to the next in `block`.
    pub fn period_of(&self, block: BlockDelays) -> i64 {
        let chunks = self.problem.placement.held_by(0).len() as i64;
        block.even.map_or(self.period(), |unit| 3 * unit * chunks).max(1)
    }

    pub fn offsets(&self, block: BlockDelays) -> Vec<i64> {
        let scale = |n: i64| n * self.unit() / 2;
        let hops = |hops: [i64; 4]| hops.map(scale);
        let beyond = block.beyond.map(|(first, beyond)| (first, hops(beyond)));
        let scaled = BlockDelays { hops: hops(block.hops), beyond, turns: block.turns.map(scale), ..block };
        scaled.offsets(self.problem, self.backward, self.period_of(block))
    }

    /// Adds `block` in strict order.
    fn block(&mut self, block: BlockDelays) -> Option<(u64, u64, u64)> {
        let words = in_order(self.problem, self.backward, &self.offsets(block), self.period_of(block));
        self.consider(words)
    }

    /// Adds `words`, and if they have W's, also without these; complete words must keep the caps.
    pub fn start(&mut self, words: Words) {
        let mut counts = vec![0; self.problem.rules.len()];
        let complete = words.slots.iter().any(|&slot| kind_of(slot) == Kind::W);
        let mut fit =
            || (0..self.problem.devices()).all(|device| fits(self.problem, device, words.word(device), &mut counts));
        if complete
            && fit()
            && let Some(score) = self.trial.run(&words)
        {
            self.found.push(Found {
                words: words.clone(),
                mode: Mode::Explicit,
                score,
                fence: None,
                from_lattice: false,
            });
        }
        self.consider(if complete { words.without_weights() } else { words });
    }

    /// Returns a list schedule with its W's, which always exists.
    pub fn list_schedule(&self) -> Option<Words> {
        let (rank, split) = (Rank::Kinds(vec![self.backward, Kind::F]), self.backward == Kind::I);
        let policy = Policy { rank, split, compete: false, slack: 0, patience: 0 };
        let courses: Vec<Course> = (0..self.problem.devices()).map(|_| Course::Choose(&policy)).collect();
        let rows = list_schedule(self.problem, &courses).ok()?;
        let row = |ops: &Vec<Op>| ops.iter().map(|op| op.slot() as u32).collect();
        Some(Words::new(rows.iter().map(row)))
    }

    fn listed(&mut self, rank: Rank, patience: i64, slack: i64) {
        let split = self.backward == Kind::I;
        let policy = Policy { rank, split, compete: false, slack: slack as u64, patience: patience as u64 };
        let courses: Vec<Course> = (0..self.problem.devices()).map(|_| Course::Choose(&policy)).collect();
        if let Ok(rows) = list_schedule(self.problem, &courses) {
            self.trial.work += rows.iter().map(|row| 4 * row.len() as u64).sum::<u64>();
            self.consider(words_of(&rows));
        }
    }

    /// Improves `block`, which reaches `key`, by random changes until the work exceeds `until`.
    fn climb(&mut self, mut key: (u64, u64, u64), mut block: BlockDelays, until: u64) {
        let mut random = Random(1);
        for _ in 0..CLIMBS.1 {
            if self.trial.work > until {
                return;
            }
            let mut next = block;
            for _ in 0..2 {
                let (n, by) = (random.below(5), random.below(5) as i64 - 2);
                let value = if n == 4 { &mut next.turns[0] } else { &mut next.hops[n] };
                *value = (*value + by).max(0);
            }
            if let Some(reached) = self.block(next)
                && reached <= key
            {
                (key, block) = (reached, next);
            }
        }
    }

    /// Adds the best blocks once justified. First as many are tried as `budget` allows; with more micro-batches the best of them.
    pub fn lattice(&mut self, budget: u64, each: Each<'_>) {
        let mut tried = std::mem::take(&mut self.blocks);
        if tried.is_empty() {
            tried = self.fitting();
        }
        let work = RUNS * self.problem.ops(self.backward == Kind::I);
        let affordable = (budget / work.max(1)).max(1) as usize;
        tried = tried.iter().step_by(tried.len().div_ceil(affordable).max(1)).copied().collect();
        self.trial.work += work * tried.len() as u64;
        let even = self.problem.even(self.unit() as u64);
        let rate = |n: usize| {
            let mut trial = Trial::new(self.problem, self.backward == Kind::I);
            (self.kept(tried[n], &even, &mut trial), self.squeezed(tried[n], &even, &mut trial))
        };
        let (kept, squeezed): (Vec<_>, Vec<_>) = side_by_side(tried.len(), each, rate).into_iter().unzip();
        let ways = [kept, squeezed].map(|way| way.into_iter().flatten().collect::<Vec<Rated>>());
        let (mut best, others) = (BTreeSet::new(), self.found.len());
        for mut rated in ways {
            rated.sort_by_key(|&(reached, block, _): &Rated| (reached, block));
            rated.dedup_by(|a, b| a.2 == b.2);
            rated.truncate(4 * BLOCKS);
            best.extend(rated.iter().map(|&(_, block, _)| block));
            rated.truncate(BLOCKS);
            rated.into_iter().for_each(|(.., words)| self.start(words));
        }
        self.found[others..].iter_mut().for_each(|found| found.from_lattice = true);
        self.blocks = best.into_iter().collect();
    }

    /// Returns `block` repeated as it is, justified except for its steady state, and what it reaches.
    fn kept(&self, block: BlockDelays, even: &OrderingProblem, trial: &mut Trial<'_>) -> Option<Rated> {
        let words = justify::repeated(even, self.backward, &self.offsets(block), self.period_of(block))?;
        Some((order(self.goal, trial.run(&words)?).0, block, words))
    }

    /// Returns the order of `block` as soon as possible, justified, without W's.
    fn squeezed(&self, block: BlockDelays, even: &OrderingProblem, trial: &mut Trial<'_>) -> Option<Rated> {
        let words = in_order(self.problem, self.backward, &self.offsets(block), self.period_of(block));
        let words = justify::justified(even, self.backward == Kind::I, &words)?;
        let slacks = [0, self.times[2] as u64].into_iter();
        let scores = slacks.filter_map(|slack| trial.fill(&words, Gaps::within(slack), |_, _| ()));
        Some((scores.map(|score| order(self.goal, score).0).min()?, block, words))
    }

    /// Returns the blocks that keep the caps on average, without duplicates, those that hold most first.
    fn fitting(&self) -> Vec<BlockDelays> {
        let room = |device: usize| self.problem.caps[device] / (WHOLE / 1000);
        let mut seen = BTreeSet::new();
        let mut fitting = Vec::new();
        for block in blocks(self.problem.placement.devices(), self.unit()) {
            let (offsets, period) = (self.offsets(block), i128::from(self.period_of(block)));
            let held = block.held(self.problem, self.backward, &offsets);
            let fits = held.iter().enumerate().all(|(device, &held)| i128::from(held) * 1000 / period <= room(device));
            if fits && seen.insert(offsets) {
                fitting.push((Reverse(held.into_iter().max()), block));
            }
        }
        fitting.sort();
        fitting.into_iter().map(|(_, block)| block).collect()
    }
}
