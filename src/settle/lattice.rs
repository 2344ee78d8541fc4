//! Building blocks for a V on a lattice: all that keep to the caps are tried, justified, for few micro-batches, the best for more.

use super::block::Block;
use super::justify;
use super::pattern::in_order;
use super::polish::order;
use super::problem::Problem;
use super::search::{Search, side_by_side};
use super::trial::{Gaps, Trial, Words};
use crate::activation::WHOLE;
use crate::op::Kind;
use crate::sim::event::Each;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How many blocks are considered as starts.
const BLOCKS: usize = 32;
/// What trying a block costs, in ops run for each op that it has.
const RUNS: u64 = 12;

/// What became of a block: what it reaches, itself, its words.
type Rated = (u64, Block, Words);

/// Blocks as in arXiv 2405.15362 (appendix A) on a lattice of `unit`s for `p` devices, but kept apart instead of chosen so that
/// they are: lingering alike down forward and up backward, in two sections of devices, with any turns. In halves of a unit.
fn blocks(p: u32, unit: i64) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (a, b) in (0..5).flat_map(|a| (0..=a).map(move |b| (a, b))) {
        let last = if a == b { 1 } else { p - 1 };
        for cut in (1..=last).step_by(p.div_ceil(16) as usize) {
            for turns in (0..216).map(|n| [n % 6, n / 6 % 6, n / 36]) {
                let hops = |linger: i64| [2 * linger, 0, 0, 2 * linger];
                let beyond = (a != b).then(|| (cut, hops(b)));
                let turns = turns.map(|turn| 2 * turn);
                blocks.push(Block { hops: hops(a), beyond, turns, even: Some(unit), apart: true });
            }
        }
    }
    blocks
}

impl Search<'_> {
    /// Considers the blocks that reach most once justified. At first as many are tried as `budget` allows, the best of them again
    /// with more micro-batches.
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

    /// `block` repeated as it is, justified but for its steady state, and what it reaches.
    fn kept(&self, block: Block, even: &Problem, trial: &mut Trial<'_>) -> Option<Rated> {
        let words = justify::repeated(even, self.backward, &self.offsets(block), self.period_of(block))?;
        Some((order(self.goal, trial.run(&words)?).0, block, words))
    }

    /// The order of `block` as soon as can be, justified, without W's.
    fn squeezed(&self, block: Block, even: &Problem, trial: &mut Trial<'_>) -> Option<Rated> {
        let words = in_order(self.problem, self.backward, &self.offsets(block), self.period_of(block));
        let words = justify::justified(even, self.backward == Kind::I, &words)?;
        let slacks = [0, self.times[2] as u64].into_iter();
        let scores = slacks.filter_map(|slack| trial.fill(&words, Gaps::within(slack), |_, _| ()));
        Some((scores.map(|score| order(self.goal, score).0).min()?, block, words))
    }

    /// The blocks that keep to the caps on average, each once, those that hold most first.
    fn fitting(&self) -> Vec<Block> {
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
