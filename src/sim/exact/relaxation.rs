//! Relaxation: whether the remaining ops could end by the target if ops could be interrupted.
//!
//! Under a cap that several chunks share it is unknown for whose forward a release makes room. But ops of one kind can be counted
//! in the order in which they run, whichever they are (`in_turn`): the j-th forward cannot start before enough is released, so the
//! r-th release has a latest end. As such ops are anonymous, those that start first get the longest tails, which is the most
//! favourable assignment.

use super::tables::{SearchState, Tables};
use pipesim_schedule::activation::WHOLE;
use pipesim_schedule::op::Kind;
use std::collections::BinaryHeap;

#[derive(Clone, Copy)]
struct RelaxedJob {
    head: i64,
    hold: i64,
    /// Least time from when the device is free again to the end of the step.
    tail: i64,
}

/// How often heads are raised by releases.
const PASSES: usize = 3;

/// Buffers for the bounds of states of one case.
pub(super) struct Relaxation {
    /// By row and micro-batch.
    heads: Vec<Vec<i64>>,
    /// By device: earliest starts of its remaining forwards, in order, whichever they are.
    starts: Vec<Vec<i64>>,
    /// By kind.
    jobs: [Vec<RelaxedJob>; 4],
    all: Vec<RelaxedJob>,
    /// Earliest time of each release, and how much it releases.
    releases: Vec<(i64, i128)>,
    heap: BinaryHeap<(i64, i64)>,
}

impl Relaxation {
    pub fn new(tables: &Tables) -> Relaxation {
        Relaxation {
            heads: tables.rows.iter().map(|row| vec![0; row.count]).collect(),
            starts: vec![Vec::new(); tables.of_device.len()],
            jobs: [const { Vec::new() }; 4],
            all: Vec::new(),
            releases: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// Returns false only if no continuation of `state` ends by `target`.
    pub fn may_reach(&mut self, tables: &Tables, state: &SearchState, target: i64) -> bool {
        self.starts.iter_mut().for_each(Vec::clear);
        for _ in 0..PASSES {
            if !self.find_heads(tables, state, target) {
                return false;
            }
            let mut raised = false;
            for device in (0..tables.of_device.len()).filter(|&device| tables.in_turn[device]) {
                match self.find_starts(tables, state, device) {
                    Some(later) => raised |= later,
                    None => return false,
                }
            }
            if !raised {
                break;
            }
        }
        (0..tables.of_device.len()).all(|device| self.device_may_reach(tables, state, device, target))
    }

    /// Computes the earliest starts, with micro-batches in order.
    fn find_heads(&mut self, tables: &Tables, state: &SearchState, target: i64) -> bool {
        let least = state.counts.iter().min().copied().unwrap_or(0) as usize;
        let most = tables.rows.iter().map(|row| row.count).max().unwrap_or(0);
        for k in least..most {
            for (number, row) in tables.rows.iter().enumerate() {
                let done = state.done(number);
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
                let freed = row.frees.and_then(|(from, held)| Some((from, k.checked_sub(held)?)));
                for (from, k) in row.own.map(|own| (own, k)).into_iter().chain(freed) {
                    if k >= state.done(from) {
                        head = head.max(self.heads[from][k] + tables.rows[from].hold);
                    }
                }
                if row.op.kind() == Kind::F && !self.starts[row.device].is_empty() {
                    // For each micro-batch, the device's forwards of earlier stages come first.
                    let before = row.before.iter().map(|&other| (k + 1).saturating_sub(state.done(other)));
                    head = head.max(self.starts[row.device][k - done + before.sum::<usize>()]);
                }
                if head + row.duration + row.tails[k] > target {
                    return false;
                }
                self.heads[number][k] = head;
            }
        }
        true
    }

    fn collect_jobs(&mut self, tables: &Tables, state: &SearchState, device: usize) {
        self.jobs.iter_mut().for_each(Vec::clear);
        for &number in &tables.of_device[device] {
            let row = &tables.rows[number];
            let after = row.hold - row.duration;
            let job = |k: usize| RelaxedJob { head: self.heads[number][k], hold: row.hold, tail: row.tails[k] - after };
            self.jobs[row.op.kind() as usize].extend((state.done(number)..row.count).map(job));
        }
    }

    /// Computes the earliest starts of the device's forwards, whichever they are. Returns whether any is later than its head, or
    /// `None` if the cap cannot be kept.
    fn find_starts(&mut self, tables: &Tables, state: &SearchState, device: usize) -> Option<bool> {
        self.collect_jobs(tables, state, device);
        self.releases.clear();
        for (kind, jobs) in Kind::COSTED.iter().zip(&self.jobs) {
            let amount = -tables.changes[*kind as usize];
            if amount > 0 {
                self.releases.extend(jobs.iter().map(|job| (job.head + job.hold, amount)));
            }
        }
        self.releases.sort_unstable();
        let forwards = &mut self.jobs[Kind::F as usize];
        forwards.sort_unstable_by_key(|job| job.head);
        let hold = forwards.iter().map(|job| job.hold).min().unwrap_or(0);
        let room = tables.caps[device] - state.live[device];
        let release = Release::new(tables, state, device);
        let (mut freed, mut taken, mut time, mut before) = (0, 0, 0, i64::MIN);
        let mut raised = false;
        for (j, job) in (0..).zip(forwards.iter()) {
            let mut start = job.head.max(before);
            let needed = (j as i128 + 1) * WHOLE - room;
            if needed > 0 {
                while freed < needed {
                    let &(end, amount) = self.releases.get(taken)?;
                    (freed, taken, time) = (freed + amount, taken + 1, end);
                }
                start = start.max(time).max(state.free[device] + j as i64 * hold + release.work(needed));
            }
            match self.starts[device].get_mut(j) {
                Some(known) => {
                    raised |= start > *known;
                    *known = start;
                }
                None => {
                    raised |= start > job.head;
                    self.starts[device].push(start);
                }
            }
            before = start + hold;
        }
        Some(raised)
    }

    fn device_may_reach(&mut self, tables: &Tables, state: &SearchState, device: usize, target: i64) -> bool {
        self.collect_jobs(tables, state, device);
        self.all.clear();
        self.jobs.iter().for_each(|jobs| self.all.extend(jobs));
        if !self.interrupted_may_reach(target) {
            return false;
        }
        if !tables.in_turn[device] || self.starts[device].is_empty() {
            return true;
        }
        self.take_in_turn(tables, state, device);
        self.all.clear();
        self.jobs.iter().for_each(|jobs| self.all.extend(jobs));
        self.interrupted_may_reach(target)
    }

    /// Makes the device's jobs of each kind anonymous, with heads and tails that follow from the cap.
    fn take_in_turn(&mut self, tables: &Tables, state: &SearchState, device: usize) {
        self.jobs.iter_mut().for_each(|jobs| forget_names(jobs));
        let [forwards, inputs, weights, fulls] = &mut self.jobs;
        let mut later = i64::MIN;
        for (job, &start) in forwards.iter_mut().zip(&self.starts[device]).rev() {
            job.head = start;
            job.tail = job.tail.max(later);
            later = job.hold + job.tail;
        }
        if tables.changes[Kind::I as usize] < 0 {
            return; // I and W release parts: none of them is the r-th release
        }
        let room = usize::try_from((tables.caps[device] - state.live[device]) / WHOLE).unwrap_or(0);
        let waiting = forwards.iter().skip(room);
        let releases = if weights.is_empty() { fulls } else { &mut *weights };
        for (release, forward) in releases.iter_mut().zip(waiting) {
            release.tail = release.tail.max(forward.hold + forward.tail);
        }
        let pending = weights.len().saturating_sub(inputs.len());
        for (input, weight) in inputs.iter_mut().zip(weights.iter().skip(pending)) {
            input.tail = input.tail.max(weight.hold + weight.tail);
        }
    }

    /// Jackson's preemptive schedule: of the ops that can run, the one with the longest tail does.
    fn interrupted_may_reach(&mut self, target: i64) -> bool {
        self.all.sort_unstable_by_key(|job| job.head);
        self.heap.clear();
        let (mut next, mut time) = (0, i64::MIN);
        loop {
            if self.heap.is_empty() {
                let Some(job) = self.all.get(next) else { return true };
                time = time.max(job.head);
            }
            while let Some(job) = self.all.get(next).filter(|job| job.head <= time) {
                self.heap.push((job.tail, job.hold));
                next += 1;
            }
            let Some((tail, left)) = self.heap.pop() else { return true };
            let until = self.all.get(next).map_or(i64::MAX, |job| job.head);
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

/// Makes jobs of one kind anonymous: ascending heads, descending tails, the shortest duration for all.
fn forget_names(jobs: &mut [RelaxedJob]) {
    let hold = jobs.iter().map(|job| job.hold).min().unwrap_or(0);
    let mut tails: Vec<i64> = jobs.iter().map(|job| job.tail).collect();
    tails.sort_unstable_by(|a, b| b.cmp(a));
    jobs.sort_unstable_by_key(|job| job.head);
    for (job, tail) in jobs.iter_mut().zip(tails) {
        *job = RelaxedJob { head: job.head, hold, tail };
    }
}

/// Least work of a device to release memory.
struct Release {
    /// Number of activations that only a W still needs.
    pending: i64,
    weights: i64,
    /// Work for any other activation.
    whole: i64,
}

impl Release {
    fn new(tables: &Tables, state: &SearchState, device: usize) -> Release {
        let rows = |kind: Kind| {
            let of_device = tables.of_device[device].iter().copied();
            of_device.filter(move |&number| tables.rows[number].op.kind() == kind)
        };
        let least = |kind: Kind| rows(kind).map(|number| tables.rows[number].hold).min();
        let done = |kind: Kind| rows(kind).map(|number| i64::from(state.counts[number])).sum::<i64>();
        match (least(Kind::I), least(Kind::W)) {
            // If I and W release parts there is no bound.
            (Some(_), Some(_)) if tables.changes[Kind::I as usize] < 0 => Release { pending: 0, weights: 0, whole: 0 },
            (Some(i), Some(w)) => Release { pending: done(Kind::I) - done(Kind::W), weights: w, whole: i + w },
            _ => Release { pending: 0, weights: 0, whole: least(Kind::B).unwrap_or(0) },
        }
    }

    fn work(&self, needed: i128) -> i64 {
        let number = ((needed + WHOLE - 1) / WHOLE) as i64;
        number.min(self.pending) * self.weights + (number - self.pending).max(0) * self.whole
    }
}
