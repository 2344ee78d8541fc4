//! The starts of a search: closed forms, building blocks in strict order, and list schedules with the blocks' priorities.

use super::block::Block;
use super::dispatch::{Course, Policy, Rank, dispatch};
use super::pattern::{alternating, in_order, timed, zero_bubble_v};
use super::polish::{Mode, Random};
use super::rounds::rounds;
use super::search::{Found, Search};
use super::trial::{Words, fits, kind_of};
use crate::op::{Kind, Op};
use crate::sim::event::Each;

/// How many of the best blocks are climbed from, and how many steps each.
const CLIMBS: (usize, usize) = (3, 120);

/// V-Min, V-Half and V-ZB (arXiv 2405.15362 section 3 and its appendix: the turn depends on p), in halves of a unit.
const PUBLISHED: [Block; 5] = [
    Block { hops: [0, 0, 0, 0], turns: [0; 3], ..Block::NONE },
    Block { hops: [0, 0, 0, 0], turns: [4, 0, 0], ..Block::NONE },
    Block { hops: [2, 0, 2, 0], turns: [0; 3], ..Block::NONE },
    Block { hops: [2, 0, 2, 0], turns: [6, 0, 0], ..Block::NONE },
    Block { hops: [6, 2, 6, 2], turns: [0; 3], ..Block::NONE },
];

impl Search<'_> {
    /// Gathers starts by work on about so many ops, and as many again for blocks on a lattice.
    pub fn starts(&mut self, [budget, lattice]: [u64; 2], each: Each<'_>) {
        // This one never fails: the dispatcher cannot get stuck.
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
            for block in PUBLISHED.into_iter().flat_map(|block| [block, Block { even: Some(unit), ..block }]) {
                self.block(block);
            }
        }
        let until = self.trial.work + budget;
        for block in self.blocks() {
            if self.trial.work > until {
                break;
            }
            for block in [block, Block { even: Some(unit), ..block }] {
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

    /// Whether device r holds stages r and 2p - 1 - r.
    fn is_vee(&self) -> bool {
        let p = self.problem.placement.devices();
        let placement = &self.problem.placement;
        placement.directions() == 1
            && placement.chunks() == 2
            && (0..p).all(|r| placement.stages_of(r).eq([r, 2 * p - 1 - r]))
    }

    /// A grid of blocks: the distances of arXiv 2405.15362 section 3 and their neighbours, in halves of a unit.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        if self.problem.placement.chunks() == 1 {
            for hop in 0..8 {
                blocks.extend([0, 2].map(|turn| Block {
                    hops: [0, 0, 2 * hop, 2 * hop],
                    turns: [turn, 0, 0],
                    ..Block::NONE
                }));
            }
            return blocks;
        }
        for (first, other) in (0..4).flat_map(|first| (0..3).map(move |other| (2 * first, 2 * other))) {
            for (back, back_other) in [(first, other), (first, first), (other, first), (0, 0)] {
                let hops = [first, other, back, back_other];
                blocks.extend([0, 2, 4, 6].map(|turn| Block { hops, turns: [turn, 0, 0], ..Block::NONE }));
            }
        }
        blocks.sort();
        blocks.dedup();
        // Those that move alike down and up the devices first, in case the budget ends.
        blocks.sort_by_key(|block| block.hops[0] != block.hops[2] || block.hops[1] != block.hops[3]);
        blocks
    }

    /// The time from one micro-batch to the next in `block`.
    pub fn period_of(&self, block: Block) -> i64 {
        let chunks = self.problem.placement.held_by(0).len() as i64;
        block.even.map_or(self.period(), |unit| 3 * unit * chunks).max(1)
    }

    pub fn offsets(&self, block: Block) -> Vec<i64> {
        let scale = |n: i64| n * self.unit() / 2;
        let hops = |hops: [i64; 4]| hops.map(scale);
        let beyond = block.beyond.map(|(first, beyond)| (first, hops(beyond)));
        let scaled = Block { hops: hops(block.hops), beyond, turns: block.turns.map(scale), ..block };
        scaled.offsets(self.problem, self.backward, self.period_of(block))
    }

    /// Considers `block` in strict order.
    fn block(&mut self, block: Block) -> Option<(u64, u64, u64)> {
        let words = in_order(self.problem, self.backward, &self.offsets(block), self.period_of(block));
        self.consider(words)
    }

    /// Considers `words`, and if they have W's also without these, if they keep to the caps.
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

    /// A list schedule with its W's, which always runs.
    pub fn list_schedule(&self) -> Option<Words> {
        let (rank, split) = (Rank::Kinds(vec![self.backward, Kind::F]), self.backward == Kind::I);
        let policy = Policy { rank, split, compete: false, slack: 0, patience: 0 };
        let courses: Vec<Course> = (0..self.problem.devices()).map(|_| Course::Choose(&policy)).collect();
        let rows = dispatch(self.problem, &courses).ok()?;
        let row = |ops: &Vec<Op>| ops.iter().map(|op| op.slot() as u32).collect();
        Some(Words::new(&rows.iter().map(row).collect::<Vec<Vec<u32>>>()))
    }

    /// Considers a list schedule.
    fn listed(&mut self, rank: Rank, patience: i64, slack: i64) {
        let split = self.backward == Kind::I;
        let policy = Policy { rank, split, compete: false, slack: slack as u64, patience: patience as u64 };
        let courses: Vec<Course> = (0..self.problem.devices()).map(|_| Course::Choose(&policy)).collect();
        if let Ok(rows) = dispatch(self.problem, &courses) {
            self.trial.work += rows.iter().map(|row| 4 * row.len() as u64).sum::<u64>();
            self.consider(words_of(&rows));
        }
    }

    /// Changes `block`, which reaches `key`, as long as that does no harm and the work does not exceed `until`.
    fn climb(&mut self, mut key: (u64, u64, u64), mut block: Block, until: u64) {
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
}

/// The words, without W's, of rows of ops.
pub(super) fn words_of(rows: &[Vec<Op>]) -> Words {
    let row = |ops: &Vec<Op>| ops.iter().filter(|op| op.kind() != Kind::W).map(|op| op.slot() as u32).collect();
    Words::new(&rows.iter().map(row).collect::<Vec<Vec<u32>>>())
}
