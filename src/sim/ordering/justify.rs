//! Justification: every op, in order of time, moves to the earliest gap of its device that is long enough and has memory, so that
//! no op ends later than before (Valls, Ballestín and Quintanilla, "Justification and RCPSP: A technique that pays", 2005). It
//! compacts the fill and drain of repeated building blocks.

use super::pattern::timed_ops;
use super::problem::{OpRule, OrderingProblem};
use super::problem::{kind_of, slot_of};
use super::trial::{Gaps, Trial};
use super::words::Words;
use pipesim_schedule::graph::SOURCE;
use pipesim_schedule::op::{Kind, Op};
use std::collections::VecDeque;
use std::ops::Range;

/// One op of a device's order.
#[derive(Clone, Copy, Debug)]
struct SlotPlace {
    slot: u32,
    /// Number among the ops of its slot.
    count: u32,
    start: u64,
    /// What its device holds from its start on.
    live: i128,
}

impl SlotPlace {
    fn timed(&self) -> (u64, u32) {
        (self.start, self.slot)
    }
}

/// Orders with times.
struct Justify<'a> {
    problem: &'a OrderingProblem,
    rows: Vec<Vec<SlotPlace>>,
    /// By cell: when its content arrives.
    cells: Vec<u64>,
    /// By slot and number: its end.
    ends: Vec<Vec<u64>>,
    /// Whether W's are left out, but count for the caps as if they took the gaps.
    is_bare: bool,
}

/// Justifies `words`, which have no W's; returns them without W's, or `None` if they deadlock or exceed a cap.
pub(super) fn justified(problem: &OrderingProblem, split: bool, words: &Words) -> Option<Words> {
    let mut trial = Trial::new(problem, split);
    let mut rows = vec![Vec::new(); problem.devices()];
    trial.fill(words, Gaps::within(0), |device, slot| rows[device as usize].push(slot))?;
    let mut justify = Justify::new(problem, eager(problem, split, &Words::new(rows))?)?;
    justify.run(0..0);
    Some(justify.words().without_weights())
}

/// Repeats a block every `period` from `offsets` on, with W's in gaps, and justifies all except what runs between the end of the first
/// micro-batch and the beginning of the last; then justifies the end again without W's. With full backwards everything is
/// justified. Returns `None` if a cap is exceeded.
pub(super) fn repeated(problem: &OrderingProblem, backward: Kind, offsets: &[i64], period: i64) -> Option<Words> {
    let devices = 0..problem.devices();
    let block = |device: usize| timed_ops(problem, device, backward, offsets, period);
    if backward == Kind::B {
        let mut justify = Justify::new(problem, devices.map(block).collect())?;
        justify.run(0..0);
        return Some(justify.words());
    }
    let mut justify = Justify::new(problem, devices.map(|device| with_weights(problem, block(device))).collect())?;
    let steady = justify.steady(backward);
    justify.run(steady.clone());
    let mut end = Justify::timed(problem, bare(justify.starts()));
    end.run(0..steady.end);
    let row = |row| with_weights(problem, row);
    let end = Justify::new(problem, end.starts().into_iter().map(row).collect());
    Some(end.unwrap_or(justify).words())
}

/// As [`repeated`] with split backwards, but as the authors of the blocks do it: the order runs as soon as possible before its end is
/// justified, which must leave gaps for W's in time to keep the caps.
pub(super) fn published(problem: &OrderingProblem, offsets: &[i64], period: i64) -> Option<Words> {
    let block = |device: usize| with_weights(problem, timed_ops(problem, device, Kind::I, offsets, period));
    let mut justify = Justify::new(problem, (0..problem.devices()).map(block).collect())?;
    justify.run(justify.steady(Kind::I));
    let mut end = Justify::timed(problem, bare(eager(problem, true, &justify.words())?));
    end.is_bare = true;
    end.run(0..end.steady(Kind::I).end);
    let again = bare(eager(problem, true, &weighted(problem, end.starts()))?);
    Some(weighted(problem, again))
}

/// Returns the ops of complete `words` as (start, slot) by device, each as soon as possible.
fn eager(problem: &OrderingProblem, split: bool, words: &Words) -> Option<Vec<Vec<(u64, u32)>>> {
    let mut trial = Trial::new(problem, split);
    trial.run(words)?;
    let timed = |device: usize| words.range(device).map(|at| (trial.begins[at], words.slots[at])).collect();
    Some((0..problem.devices()).map(timed).collect())
}

/// Removes W's.
fn bare(mut rows: Vec<Vec<(u64, u32)>>) -> Vec<Vec<(u64, u32)>> {
    rows.iter_mut().for_each(|row| row.retain(|&(_, slot)| kind_of(slot) != Kind::W));
    rows
}

/// Returns the words of rows with W's in their gaps.
fn weighted(problem: &OrderingProblem, rows: Vec<Vec<(u64, u32)>>) -> Words {
    Words::new(rows.into_iter().map(|row| with_weights(problem, row).into_iter().map(|(_, slot)| slot).collect()))
}

/// Inserts W's into the gaps of a device, the oldest first.
fn with_weights(problem: &OrderingProblem, ops: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
    let mut all = Vec::with_capacity(ops.len() * 3 / 2);
    let mut pending: VecDeque<u32> = VecDeque::new();
    let mut free = 0;
    for next in ops.into_iter().map(Some).chain([None]) {
        let until = next.map_or(u64::MAX, |(start, _)| start);
        while let Some(&w) = pending.front().filter(|&&w| free + problem.rules[w as usize].hold <= until) {
            all.push((free, w));
            free += problem.rules[w as usize].hold;
            pending.pop_front();
        }
        let Some((start, slot)) = next else { break };
        all.push((start, slot));
        free = start + problem.rules[slot as usize].hold;
        if kind_of(slot) == Kind::I {
            pending.push_back(slot_of(slot, Kind::W));
        }
    }
    all
}

impl<'a> Justify<'a> {
    /// Creates orders from (start, slot) by device, in order; `None` if a cap is exceeded.
    fn new(problem: &'a OrderingProblem, timed: Vec<Vec<(u64, u32)>>) -> Option<Justify<'a>> {
        let justify = Justify::timed(problem, timed);
        let fits = |(row, &cap): (&Vec<SlotPlace>, &i128)| row.iter().all(|place| place.live <= cap);
        justify.rows.iter().zip(&problem.caps).all(fits).then_some(justify)
    }

    /// Creates orders from (start, slot) by device, in order.
    fn timed(problem: &'a OrderingProblem, timed: Vec<Vec<(u64, u32)>>) -> Justify<'a> {
        let mut counts = vec![0; problem.rules.len()];
        let mut rows: Vec<Vec<SlotPlace>> = Vec::new();
        for timed in timed {
            let mut live = 0;
            let place = |(start, slot): (u64, u32)| {
                counts[slot as usize] += 1;
                live += problem.change(slot);
                SlotPlace { slot, count: counts[slot as usize] - 1, start, live }
            };
            rows.push(timed.into_iter().map(place).collect());
        }
        let ends = counts.iter().map(|&count| vec![0; count as usize]).collect();
        let mut justify = Justify { problem, rows, cells: vec![0; problem.cells], ends, is_bare: false };
        for place in justify.rows.concat() {
            justify.note(place.slot, place.count, place.start);
        }
        justify
    }

    /// Returns the ops as (start, slot) by device.
    fn starts(&self) -> Vec<Vec<(u64, u32)>> {
        self.rows.iter().map(|row| row.iter().map(SlotPlace::timed).collect()).collect()
    }

    fn words(&self) -> Words {
        let row = |row: &Vec<SlotPlace>| row.iter().map(|place| place.slot).collect();
        Words::new(self.rows.iter().map(row))
    }

    /// Returns the time from the end of the first micro-batch to the beginning of the last.
    fn steady(&self, backward: Kind) -> Range<u64> {
        let place = |kind: Kind| {
            let op = Op::new(kind, 0, 0);
            let row = &self.rows[self.problem.placement.device_of(op) as usize];
            row.iter().filter(move |place| place.slot == op.slot() as u32).map(|place| place.start)
        };
        place(backward).next().unwrap_or(0)..place(Kind::F).next_back().unwrap_or(0)
    }

    fn rule(&self, slot: u32) -> OpRule {
        self.problem.rules[slot as usize]
    }

    /// Records the start of an op.
    fn note(&mut self, slot: u32, count: u32, start: u64) {
        let rule = self.rule(slot);
        self.ends[slot as usize][count as usize] = start + rule.hold;
        if kind_of(slot) != Kind::W {
            self.cells[(rule.output + count) as usize] = start + rule.duration + rule.lag;
        }
    }

    /// Returns when the input of an op arrives. The input of a W, and of the last stage's backward, is made on its device.
    fn arrival(&self, slot: u32, count: u32) -> u64 {
        let input = self.rule(slot).input;
        let own = |kind: Kind| self.ends[slot_of(slot, kind) as usize][count as usize];
        match kind_of(slot) {
            Kind::W => own(Kind::I),
            Kind::I | Kind::B if input as usize == SOURCE => own(Kind::F),
            Kind::F if input as usize == SOURCE => 0,
            _ => self.cells[(input + count) as usize],
        }
    }

    /// Moves all ops except those that start in `still`.
    fn run(&mut self, still: Range<u64>) {
        let ops = |(device, row): (usize, &Vec<SlotPlace>)| {
            row.iter().map(|place| (place.start, device, place.slot, place.count)).collect::<Vec<_>>()
        };
        let mut all: Vec<(u64, usize, u32, u32)> = self.rows.iter().enumerate().flat_map(ops).collect();
        all.sort_unstable();
        for (start, device, slot, count) in all {
            if !still.contains(&start) {
                let at = self.find(device, slot, count, start);
                let arrival = self.arrival(slot, count);
                let way = if self.is_bare { Justify::earliest_bare } else { Justify::earliest };
                let (to, start) = way(self, device, at, arrival);
                self.put(device, at, to, start);
                self.note(slot, count, start);
            }
        }
    }

    /// Returns the index of the op that started at `start`.
    fn find(&self, device: usize, slot: u32, count: u32, start: u64) -> usize {
        let row = &self.rows[device];
        let from = row.partition_point(|place| place.start < start);
        row[from..].iter().position(|place| (place.slot, place.count) == (slot, count)).map_or(from, |n| from + n)
    }

    /// Returns the first index for the op at `at` from `arrival` on, and its start there.
    fn earliest(&self, device: usize, at: usize, arrival: u64) -> (usize, u64) {
        let row = &self.rows[device];
        let (op, cap) = (row[at], self.problem.caps[device]);
        let (rule, change) = (self.rule(op.slot), self.problem.change(op.slot));
        let free = |k: usize| if k == 0 { 0 } else { row[k - 1].start + self.rule(row[k - 1].slot).hold };
        let mut best = (at, free(at).max(arrival));
        let mut k = at;
        while k > 0 && row[k - 1].start >= arrival + rule.hold && row[k - 1].slot != op.slot {
            k -= 1;
            let before = if k == 0 { 0 } else { row[k - 1].live };
            if change > 0 && row[k].live.max(before) + change > cap {
                break;
            }
            let start = free(k).max(arrival);
            if start + rule.hold <= row[k].start {
                best = (k, start);
            }
        }
        best
    }

    /// [`Justify::earliest`] without W's, if these keep the cap in the gaps that are left.
    fn earliest_bare(&self, device: usize, at: usize, arrival: u64) -> (usize, u64) {
        let row = &self.rows[device];
        let (op, hold) = (row[at], self.rule(row[at].slot).hold);
        let end = |k: usize| row[k].start + self.rule(row[k].slot).hold;
        let first = (0..at).rev().find(|&k| row[k].slot == op.slot || end(k) <= arrival).map_or(0, |k| k + 1);
        for (k, next) in row[..=at].iter().enumerate().skip(first) {
            let from = if k == 0 { arrival } else { end(k - 1).max(arrival) };
            let last = if k == at { op.start } else { next.start.saturating_sub(hold) };
            for start in (from..=last).step_by(hold.max(1) as usize).take_while(|&start| start < op.start) {
                if self.keeps(device, at, k, start) {
                    return (k, start);
                }
            }
        }
        (at, op.start)
    }

    /// Whether W's in gaps keep the cap if the op at `from` moves to `to`, which is not later, with start `start`.
    fn keeps(&self, device: usize, from: usize, to: usize, start: u64) -> bool {
        let mut row: Vec<(u64, u32)> = self.rows[device].iter().map(SlotPlace::timed).collect();
        row[from].0 = start;
        row[to..=from].rotate_right(1);
        let mut held = 0;
        with_weights(self.problem, row).into_iter().all(|(_, slot)| {
            held += self.problem.change(slot);
            held <= self.problem.caps[device]
        })
    }

    /// Moves the op at `from` to `to`, which is not later, with start `start`.
    fn put(&mut self, device: usize, from: usize, to: usize, start: u64) {
        let row = &mut self.rows[device];
        row[from].start = start;
        if to < from {
            let change = self.problem.change(row[from].slot);
            row[to..=from].rotate_right(1);
            row[to].live = change + if to == 0 { 0 } else { row[to - 1].live };
            row[to + 1..=from].iter_mut().for_each(|place| place.live += change);
        }
    }
}
