//! Trials: when the ops of words run, without allocation.
//!
//! A word is a device's order as slots ([`slot`](pipesim_schedule::op::Op::slot)): the k-th F of a stage is micro-batch k of its direction, and
//! so is its k-th backward. Words may omit W's: then the W whose I is oldest runs when its device would idle long enough (or nearly:
//! `slack`), when the next F would exceed the cap, and at the end.

use super::problem::slot_of;
use super::problem::{OpRule, OrderingProblem};
use super::words::Words;
use pipesim_schedule::graph::SOURCE;
use pipesim_schedule::op::Kind;

const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

/// When a W runs before an op that its device waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gaps {
    /// By how much it may delay that op.
    pub slack: u64,
    /// How long a device may idle after its first op; beyond that a W runs whatever it delays (as the zero-bubble authors'
    /// schedulers do: no device needs to idle less than the one that idles most).
    pub idle: u64,
}

impl Gaps {
    /// W's that delay the next op by at most `slack`.
    pub fn within(slack: u64) -> Gaps {
        Gaps { slack, idle: u64::MAX }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    pub makespan: u64,
    pub span: u64,
    /// Sum of the ends of all devices: a tie-breaker.
    pub ends: u64,
}

#[derive(Clone, Copy, Default)]
struct TrialDevice {
    next: usize,
    free: u64,
    first: u64,
    last: u64,
    /// Number of forwards whose backward has not run.
    whole: i64,
    idle: u64,
    awaited: u32,
    /// Ends of the I's and of the W's that have run, in the queue of W's.
    queued: usize,
    taken: usize,
}

impl TrialDevice {
    /// Runs the oldest pending W.
    #[inline]
    fn take(&mut self, rule: &OpRule) {
        self.last = self.free + rule.duration;
        self.free += rule.hold;
        self.taken += 1;
    }
}

pub(super) struct Trial<'a> {
    problem: &'a OrderingProblem,
    ready: Vec<u64>,
    counts: Vec<u32>,
    devices: Vec<TrialDevice>,
    runnable: Vec<u32>,
    queue: Vec<u32>,
    /// By device: sum of the durations of its ops.
    works: Vec<u64>,
    /// By op of the words: its start.
    pub begins: Vec<u64>,
    /// By cell: the op of the words that wrote it.
    pub makers: Vec<u32>,
    /// By op of the words: the cell that it reads.
    pub reads: Vec<u32>,
    /// Number of ops run in all trials: the unit of search work.
    pub work: u64,
}

impl<'a> Trial<'a> {
    /// Creates buffers for trials of `problem`, with backwards split or not.
    pub fn new(problem: &'a OrderingProblem, split: bool) -> Trial<'a> {
        let devices = problem.devices();
        let lanes = problem.placement.stages() as usize * problem.placement.directions() as usize;
        Trial {
            problem,
            ready: vec![0; problem.cells],
            counts: vec![0; 3 * lanes],
            devices: vec![TrialDevice::default(); devices],
            runnable: Vec::with_capacity(devices),
            queue: Vec::new(),
            works: (0..devices).map(|device| problem.work(device, split)).collect(),
            begins: Vec::new(),
            makers: vec![NONE; problem.cells],
            reads: Vec::new(),
            work: 0,
        }
    }

    fn reset(&mut self, words: &Words) {
        let sources = self.problem.microbatches as usize;
        self.ready[..sources].fill(0);
        self.ready[sources..].fill(NEVER);
        self.counts.fill(0);
        self.begins.resize(words.slots.len(), 0);
        self.reads.resize(words.slots.len(), 0);
        self.queue.resize(words.slots.len(), 0);
        self.runnable.clear();
        for (number, device) in self.devices.iter_mut().enumerate() {
            let start = words.starts[number];
            *device = TrialDevice {
                next: start,
                first: NEVER,
                awaited: NONE,
                queued: start,
                taken: start,
                ..TrialDevice::default()
            };
        }
        self.runnable.extend((0..self.devices.len() as u32).rev());
    }

    /// Runs complete words. Returns `None` for a deadlock.
    pub fn run(&mut self, words: &Words) -> Option<Score> {
        self.reset(words);
        let mut left = words.slots.len();
        while let Some(number) = self.runnable.pop() {
            left -= self.advance(words, number);
        }
        self.work += (words.slots.len() - left) as u64;
        (left == 0).then(|| self.score())
    }

    /// Runs device `number` until it must wait; returns the number of ops run.
    fn advance(&mut self, words: &Words, number: u32) -> usize {
        let mut device = self.devices[number as usize];
        let (from, end) = (device.next, words.starts[number as usize + 1]);
        while device.next < end {
            let at = device.next;
            let rule = self.problem.rules[words.slots[at] as usize];
            let count = self.counts[rule.counter as usize];
            let mut start = device.free;
            self.reads[at] = SOURCE as u32;
            if rule.counter % 3 != 2 {
                let input = rule.input + count;
                let arrival = self.ready[input as usize];
                if arrival == NEVER {
                    device.awaited = input;
                    break;
                }
                start = start.max(arrival);
                self.reads[at] = input;
                self.leave(at, number, rule.output + count, start + rule.duration + rule.lag, rule.consumer);
            }
            self.counts[rule.counter as usize] += 1;
            self.begins[at] = start;
            device.first = device.first.min(start);
            device.last = start + rule.duration;
            device.free = start + rule.hold;
            device.next += 1;
        }
        self.devices[number as usize] = device;
        device.next - from
    }

    /// Writes cell `output` for op number `at` of device `number`, at `arrival`; wakes `consumer` if it waits for it.
    #[inline]
    fn leave(&mut self, at: usize, number: u32, output: u32, arrival: u64, consumer: u32) {
        self.ready[output as usize] = arrival;
        self.makers[output as usize] = at as u32;
        let waiting = &mut self.devices[consumer as usize];
        if waiting.awaited == output {
            waiting.awaited = NONE;
            if consumer != number {
                self.runnable.push(consumer);
            }
        }
    }

    /// Runs words without W's and inserts these. Calls `emit` for every op of each device in order. Returns `None` for a deadlock or an
    /// exceeded cap.
    pub fn fill(&mut self, words: &Words, gaps: Gaps, emit: impl FnMut(u32, u32)) -> Option<Score> {
        self.fill_within(words, gaps, [u64::MAX; 2], emit)
    }

    /// [`Trial::fill`] that stops as soon as makespan or span certainly exceed their `limits`.
    pub fn fill_within(
        &mut self,
        words: &Words,
        gaps: Gaps,
        limits: [u64; 2],
        mut emit: impl FnMut(u32, u32),
    ) -> Option<Score> {
        self.reset(words);
        let mut left = words.slots.len();
        let mut good = true;
        while let Some(number) = self.runnable.pop() {
            let from = self.devices[number as usize].next;
            good = self.advance_filling(words, number, gaps, limits, &mut emit);
            left -= self.devices[number as usize].next - from;
            if !good {
                break;
            }
        }
        self.work += (words.slots.len() - left) as u64;
        (good && left == 0).then(|| self.score())
    }

    /// Runs device `number` until it must wait; returns false if its cap or a limit is exceeded.
    #[inline]
    fn advance_filling(
        &mut self,
        words: &Words,
        number: u32,
        gaps: Gaps,
        limits: [u64; 2],
        emit: &mut impl FnMut(u32, u32),
    ) -> bool {
        let end = words.starts[number as usize + 1];
        let work = self.works[number as usize];
        let mut device = self.devices[number as usize];
        let mut good = true;
        while device.next < end {
            let at = device.next;
            let slot = words.slots[at];
            let rule = self.problem.rules[slot as usize];
            let count = self.counts[rule.counter as usize];
            let input = rule.input + count;
            let arrival = self.ready[input as usize];
            if arrival == NEVER {
                device.awaited = input;
                break;
            }
            let forward = slot & 3 == Kind::F as u32;
            let room = |device: &TrialDevice| {
                !forward || self.problem.admits(number as usize, device.whole + 1, device.queued - device.taken)
            };
            while device.taken < device.queued {
                let w = &self.problem.rules[self.queue[device.taken] as usize];
                let wait = arrival.saturating_sub(device.free);
                let tired = wait > 0 && device.idle + wait > gaps.idle.saturating_add(device.first);
                if device.free + w.hold > arrival + gaps.slack && !tired && room(&device) {
                    break;
                }
                emit(number, self.queue[device.taken]);
                device.take(w);
            }
            let start = device.free.max(arrival);
            device.first = device.first.min(start);
            device.idle += start - device.free;
            let sure = device.idle + work;
            if !room(&device) || sure > limits[0] || sure - device.first.min(sure) > limits[1] {
                good = false;
                break;
            }
            self.reads[at] = input;
            self.leave(at, number, rule.output + count, start + rule.duration + rule.lag, rule.consumer);
            self.counts[rule.counter as usize] += 1;
            if slot & 3 == Kind::I as u32 {
                self.queue[device.queued] = slot_of(slot, Kind::W);
                device.queued += 1;
            }
            emit(number, slot);
            self.begins[at] = start;
            device.last = start + rule.duration;
            device.free = start + rule.hold;
            device.whole = if forward { device.whole + 1 } else { device.whole - 1 };
            device.next += 1;
        }
        while device.next == end && device.taken < device.queued {
            emit(number, self.queue[device.taken]);
            device.take(&self.problem.rules[self.queue[device.taken] as usize]);
        }
        self.devices[number as usize] = device;
        good
    }

    fn score(&self) -> Score {
        let mut score = Score { makespan: 0, span: 0, ends: 0 };
        for device in &self.devices {
            let first = if device.first == NEVER { 0 } else { device.first };
            score.makespan = score.makespan.max(device.last);
            score.span = score.span.max(device.last.saturating_sub(first));
            score.ends += device.last;
        }
        score
    }

    pub fn last(&self, device: usize) -> u64 {
        self.devices[device].last
    }

    pub fn first(&self, device: usize) -> u64 {
        self.devices[device].first
    }
}
