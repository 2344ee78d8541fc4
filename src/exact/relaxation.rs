//! Relaxation: whether what is still to run could reach the target if every device could be interrupted at will.

use super::search::State;
use super::tables::{Tables, UNLIMITED, WHOLE};
use crate::op::Kind;
use std::collections::BinaryHeap;

/// An op as its device sees it.
#[derive(Clone, Copy)]
struct Job {
    head: i64,
    hold: i64,
    /// From when the device is free again to the goal.
    tail: i64,
}

/// Room for the bounds of one case's states.
pub(super) struct Relaxation {
    /// By row and micro-batch.
    heads: Vec<Vec<i64>>,
    jobs: Vec<Job>,
    forwards: Vec<Job>,
    /// When a release can be had, and how much memory it gives.
    releases: Vec<(i64, i64)>,
    heap: BinaryHeap<(i64, i64)>,
}

impl Relaxation {
    pub fn new(tables: &Tables) -> Relaxation {
        Relaxation {
            heads: tables.rows.iter().map(|row| vec![0; row.count]).collect(),
            jobs: Vec::new(),
            forwards: Vec::new(),
            releases: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// False only if no schedule that goes on from `state` ends by `target`.
    pub fn may_reach(&mut self, tables: &Tables, state: &State, target: i64) -> bool {
        self.find_heads(tables, state, target)
            && (0..tables.of_device.len()).all(|device| self.device_may_reach(tables, state, device, target))
    }

    /// Earliest starts, micro-batches in order.
    fn find_heads(&mut self, tables: &Tables, state: &State, target: i64) -> bool {
        let least = state.counts.iter().min().copied().unwrap_or(0) as usize;
        let most = tables.rows.iter().map(|row| row.count).max().unwrap_or(0);
        for k in least..most {
            for (number, row) in tables.rows.iter().enumerate() {
                let done = state.counts[number] as usize;
                if k < done || k >= row.count {
                    continue;
                }
                let mut head = state.free[row.device];
                if k > done {
                    head = head.max(self.heads[number][k - 1] + row.hold);
                }
                if let Some((from, lag)) = row.input {
                    let end = match state.ends[from].get(k) {
                        Some(&end) => end,
                        None => self.heads[from][k] + tables.rows[from].duration,
                    };
                    head = head.max(end + lag);
                }
                let device_before = [row.own.map(|own| (own, k)), row.frees.and_then(|(w, n)| Some((w, k.checked_sub(n)?)))];
                for (from, k) in device_before.into_iter().flatten() {
                    if k >= state.counts[from] as usize {
                        head = head.max(self.heads[from][k] + tables.rows[from].hold);
                    }
                }
                if head + row.duration + row.tails[k] > target {
                    return false;
                }
                self.heads[number][k] = head;
            }
        }
        true
    }

    fn device_may_reach(&mut self, tables: &Tables, state: &State, device: usize, target: i64) -> bool {
        self.jobs.clear();
        self.forwards.clear();
        self.releases.clear();
        for &number in &tables.of_device[device] {
            let row = &tables.rows[number];
            for k in state.counts[number] as usize..row.count {
                let (head, after) = (self.heads[number][k], row.hold - row.duration);
                let job = Job { head, hold: row.hold, tail: row.tails[k] - after };
                if row.op.kind() == Kind::F {
                    self.forwards.push(job);
                } else {
                    self.jobs.push(job);
                    if row.change < 0 {
                        self.releases.push((head + row.hold, -row.change));
                    }
                }
            }
        }
        let limited = tables.caps[device] < UNLIMITED && !self.forwards.is_empty();
        if limited && !self.delay_forwards(tables, state, device, target) {
            return false;
        }
        self.jobs.append(&mut self.forwards);
        self.interrupted_may_reach(target)
    }

    /// Forwards in the order in which they start, whichever they are: the j-th cannot start before enough is released. The
    /// longest tails go to those that start first, which is best. False: the target cannot be reached.
    fn delay_forwards(&mut self, tables: &Tables, state: &State, device: usize, target: i64) -> bool {
        self.releases.sort_unstable();
        let hold = self.forwards.iter().map(|job| job.hold).min().unwrap_or(0);
        let mut tails: Vec<i64> = self.forwards.iter().map(|job| job.tail + job.hold).collect();
        tails.sort_unstable_by(|a, b| b.cmp(a));
        self.forwards.sort_unstable_by_key(|job| job.head);
        let room = tables.caps[device] - state.live[device];
        let release = Release::new(tables, state, device);
        let (mut freed, mut taken, mut time) = (0, 0, 0);
        for (j, (job, tail)) in self.forwards.iter_mut().zip(tails).enumerate() {
            let needed = (j as i64 + 1) * WHOLE - room;
            if needed > 0 {
                while freed < needed {
                    // A cap that cannot be kept any more.
                    let Some(&(end, amount)) = self.releases.get(taken) else { return false };
                    (freed, taken, time) = (freed + amount, taken + 1, end);
                }
                let work = state.free[device] + j as i64 * hold + release.work(needed);
                job.head = job.head.max(time).max(work);
            }
            job.hold = hold;
            job.tail = tail - hold;
            if job.head + tail > target {
                return false;
            }
        }
        true
    }

    /// Jackson's preemptive schedule: of the ops that could run, the one with the longest tail does.
    fn interrupted_may_reach(&mut self, target: i64) -> bool {
        self.jobs.sort_unstable_by_key(|job| job.head);
        self.heap.clear();
        let (mut next, mut time) = (0, i64::MIN);
        loop {
            if self.heap.is_empty() {
                let Some(job) = self.jobs.get(next) else { return true };
                time = time.max(job.head);
            }
            while let Some(job) = self.jobs.get(next).filter(|job| job.head <= time) {
                self.heap.push((job.tail, job.hold));
                next += 1;
            }
            let Some((tail, left)) = self.heap.pop() else { return true };
            let until = self.jobs.get(next).map_or(i64::MAX, |job| job.head);
            if time + left <= until {
                time += left;
                if time + tail > target {
                    return false;
                }
            } else {
                self.heap.push((tail, left - (until - time)));
                time = until;
            }
        }
    }
}

/// The least a device must run for memory to be released.
struct Release {
    /// Activations whose W alone is left.
    pending: i64,
    weights: i64,
    /// For another one.
    whole: i64,
}

impl Release {
    fn new(tables: &Tables, state: &State, device: usize) -> Release {
        let rows = || tables.of_device[device].iter().map(|&number| (number, &tables.rows[number]));
        let least = |kind: Kind| rows().filter(|(_, row)| row.op.kind() == kind).map(|(_, row)| row.hold).min();
        let done = |kind: Kind| -> i64 {
            rows().filter(|(_, row)| row.op.kind() == kind).map(|(number, _)| i64::from(state.counts[number])).sum()
        };
        match (least(Kind::I), least(Kind::W)) {
            (Some(i), Some(w)) => {
                let whole = rows().all(|(_, row)| row.op.kind() != Kind::W || row.change == -WHOLE);
                // Where I and W return parts nothing is claimed.
                if whole {
                    Release { pending: done(Kind::I) - done(Kind::W), weights: w, whole: i + w }
                } else {
                    Release { pending: 0, weights: 0, whole: 0 }
                }
            }
            _ => Release { pending: 0, weights: 0, whole: least(Kind::B).unwrap_or(0) },
        }
    }

    fn work(&self, needed: i64) -> i64 {
        let number = (needed + WHOLE - 1) / WHOLE;
        number.min(self.pending) * self.weights + (number - self.pending).max(0) * self.whole
    }
}
