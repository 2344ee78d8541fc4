//! Words: the orders of all devices as slots, and the repetition of their steady state for more micro-batches.

use super::problem::{OrderingProblem, kind_of};
use pipesim_schedule::op::{Kind, Op};

/// One order per device, flat: ops as slots, in order of micro-batch per slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub slots: Vec<u32>,
    /// Start of each device's order in `slots`, then the length of `slots`.
    pub starts: Vec<usize>,
}

impl Words {
    /// Creates the words of devices 0, 1, 2, .. from rows.
    pub fn new(rows: impl IntoIterator<Item = Vec<u32>>) -> Words {
        let mut words = Words { slots: Vec::new(), starts: vec![0] };
        for row in rows {
            words.slots.extend(row);
            words.starts.push(words.slots.len());
        }
        words
    }

    pub fn without_weights(&self) -> Words {
        let row = |device| self.word(device).iter().copied().filter(|&slot| kind_of(slot) != Kind::W).collect();
        Words::new((0..self.starts.len() - 1).map(row))
    }

    pub fn range(&self, device: usize) -> std::ops::Range<usize> {
        self.starts[device]..self.starts[device + 1]
    }

    pub fn word(&self, device: usize) -> &[u32] {
        &self.slots[self.range(device)]
    }
}

/// Returns the words of rows of ops, without W's.
pub(super) fn words_of(rows: &[Vec<Op>]) -> Words {
    let row = |ops: &Vec<Op>| ops.iter().filter(|op| op.kind() != Kind::W).map(|op| op.slot() as u32).collect();
    Words::new(rows.iter().map(row))
}

/// Whether a word keeps the cap and runs every backward after its forward and every W after its I.
pub(super) fn fits(problem: &OrderingProblem, device: usize, word: &[u32], counts: &mut [u32]) -> bool {
    counts.fill(0);
    let (mut whole, mut pending) = (0_i64, 0_usize);
    for &slot in word {
        let counter = problem.rules[slot as usize].counter as usize;
        counts[counter] += 1;
        if !counter.is_multiple_of(3) && counts[counter] > counts[counter - 1] {
            return false;
        }
        match kind_of(slot) {
            Kind::F if !problem.admits(device, whole + 1, pending) => return false,
            Kind::F => whole += 1,
            Kind::B => whole -= 1,
            Kind::I => (whole, pending) = (whole - 1, pending + 1),
            _ => pending -= 1,
        }
    }
    true
}

/// Returns the op of `slot` for micro-batch number `count` of its direction.
pub(super) fn op_of(problem: &OrderingProblem, slot: u32, count: u32) -> Op {
    let stage = slot / Op::SLOTS_PER_STAGE as u32;
    let direction = slot >> 2 & 1;
    let first = problem.placement.microbatches_of(direction, problem.microbatches).start;
    Op::new(kind_of(slot), stage, first + count).in_direction(direction)
}

/// Per device: start and end of its period, as indices into [`Words::slots`]. A period for q micro-batches starts at the cut, is q
/// times as long as the ops of one micro-batch, and contains each of its (chunk, kind) slots exactly q times.
pub(super) type Cuts = Vec<(usize, usize)>;

/// Returns up to `sample` ways to cut all devices at one moment for a period of `q` micro-batches, the middle of the step first.
/// `begins` are the starts of the ops of `words`.
pub(super) fn cuts(problem: &OrderingProblem, begins: &[u64], words: &Words, q: u32, sample: usize) -> Vec<Cuts> {
    let longest = (0..problem.devices()).max_by_key(|&d| words.range(d).len()).unwrap_or(0);
    let moments: Vec<u64> = words.range(longest).map(|at| begins[at]).collect();
    let at = |n: usize| (0..problem.devices()).map(|d| cut(problem, begins, words, moments[n], q, d)).collect();
    middle_out(moments.len()).filter_map(at).take(sample).collect()
}

/// Returns 0..n from the middle outwards.
fn middle_out(n: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |k| if k % 2 == 0 { n / 2 + k / 2 } else { n / 2 - k.div_ceil(2) }).filter(move |&k| k < n)
}

fn cut(
    problem: &OrderingProblem,
    begins: &[u64],
    words: &Words,
    moment: u64,
    q: u32,
    device: usize,
) -> Option<(usize, usize)> {
    let range = words.range(device);
    let begins = &begins[range.clone()];
    let start = range.start + begins.partition_point(|&begin| begin < moment);
    let per_microbatch = range.len() / problem.microbatches as usize; // with or without W's
    let end = start + per_microbatch * q as usize;
    let period = words.slots.get(start..end).filter(|_| end <= range.end)?;
    let even = period.iter().all(|slot| period.iter().filter(|other| *other == slot).count() == q as usize);
    even.then_some((start, end))
}

/// Repeats the period between `cuts` `times` more times; returns the words and where the period is in them.
pub(super) fn expanded(words: &Words, cuts: &Cuts, times: u32) -> (Words, Cuts) {
    let mut rows: Vec<Vec<u32>> = Vec::new();
    let mut moved: Cuts = Vec::new();
    let mut shift = 0;
    for (device, &(start, end)) in cuts.iter().enumerate() {
        let range = words.range(device);
        let mut row = words.slots[range.start..start].to_vec();
        (0..times).for_each(|_| row.extend(&words.slots[start..end]));
        row.extend(&words.slots[start..range.end]);
        rows.push(row);
        moved.push((start + shift, end + shift + (end - start) * times as usize));
        shift += (end - start) * times as usize;
    }
    (Words::new(rows), moved)
}
