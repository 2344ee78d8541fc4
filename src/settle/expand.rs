//! The expansion of words to more micro-batches: what a device does in one period of the steady state is repeated.
//!
//! Devices are cut at one moment. From its cut on, a device's next ops, as many as it has (chunk, kind)s, times q, must be
//! q of each: that is its period, for q micro-batches.

use super::problem::Problem;
use super::trial::{Trial, Words};

/// Where each device is cut: from where to where its period reaches.
pub(super) type Cuts = Vec<(usize, usize)>;

/// The moments at which all devices can be cut for a period of `q` micro-batches, `sample` at most, the middle first.
/// `trial` has just run `words`.
pub(super) fn cuts(problem: &Problem, trial: &Trial<'_>, words: &Words, q: u32, sample: usize) -> Vec<Cuts> {
    let longest = (0..problem.devices()).max_by_key(|&d| words.range(d).len()).unwrap_or(0);
    let moments: Vec<u64> = words.range(longest).map(|at| trial.begins[at]).collect();
    let at = |n: usize| (0..problem.devices()).map(|d| cut(problem, trial, words, moments[n], q, d)).collect();
    middle_out(moments.len()).filter_map(at).take(sample).collect()
}

/// 0..n, from the middle outwards.
fn middle_out(n: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |k| if k % 2 == 0 { n / 2 + k / 2 } else { n / 2 - k.div_ceil(2) }).filter(move |&k| k < n)
}

fn cut(
    problem: &Problem,
    trial: &Trial<'_>,
    words: &Words,
    moment: u64,
    q: u32,
    device: usize,
) -> Option<(usize, usize)> {
    let range = words.range(device);
    let begins = &trial.begins[range.clone()];
    let start = range.start + begins.partition_point(|&begin| begin < moment);
    let letters = range.len() / problem.microbatches as usize; // of one micro-batch: with or without W's
    let end = start + letters * q as usize;
    let period = words.slots.get(start..end).filter(|_| end <= range.end)?;
    let even = period.iter().all(|slot| period.iter().filter(|other| *other == slot).count() == q as usize);
    even.then_some((start, end))
}

/// The words with the period between `cuts` run `times` times more, and where the period is in them.
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
    (Words::new(&rows), moved)
}
