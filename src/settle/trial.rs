//! A trial: when the ops of words run, without allocating anything.
//!
//! A word is a device's order as slots ([`Op::slot`]): the k-th F of a stage is micro-batch k of its direction, so is its
//! k-th backward. In a word with floating weights the W's are left out: one runs, the one whose I is oldest, where its
//! device would idle long enough (or nearly: `slack`), where the next F would not fit into memory, and at the end.

use super::problem::{Problem, Rule};
use super::words::{Words, slot_of};
use crate::graph::SOURCE;
use crate::op::Kind;

const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

/// When a W runs before an op that its device would wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gaps {
    /// By how much it may hold that op up.
    pub slack: u64,
    /// How long a device may have idled since it began; a W runs where it would be longer, whatever it holds up (as the
    /// zero-bubble authors' schedulers do: no device need idle less than the one that idles most).
    pub idle: u64,
}

impl Gaps {
    /// W's that hold up the next op by `slack` at most.
    pub fn within(slack: u64) -> Gaps {
        Gaps { slack, idle: u64::MAX }
    }
}

/// What came out of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    pub makespan: u64,
    pub span: u64,
    /// Sum over devices of when they end: what still differs where the others are equal.
    pub ends: u64,
}

/// How far a device is.
#[derive(Clone, Copy, Default)]
struct Device {
    next: usize,
    free: u64,
    first: u64,
    last: u64,
    /// Forwards whose backward has not run.
    whole: i64,
    idle: u64,
    /// The cell it waits for.
    awaited: u32,
    /// I's run, and W's run, in the queue of I's.
    queued: usize,
    taken: usize,
}

impl Device {
    /// Runs the W that has waited longest.
    #[inline]
    fn take(&mut self, rule: &Rule) {
        self.last = self.free + rule.duration;
        self.free += rule.hold;
        self.taken += 1;
    }
}

/// Room for trials of one problem.
pub(super) struct Trial<'a> {
    problem: &'a Problem,
    ready: Vec<u64>,
    counts: Vec<u32>,
    devices: Vec<Device>,
    runnable: Vec<u32>,
    queue: Vec<u32>,
    /// By device: sum of its ops' times.
    works: Vec<u64>,
    /// By op of the words: when it starts.
    pub begins: Vec<u64>,
    /// By cell: the op of the words that filled it.
    pub makers: Vec<u32>,
    /// By op of the words: the cell that it read.
    pub reads: Vec<u32>,
    /// Ops run in all trials: what searching is counted in.
    pub work: u64,
}

impl<'a> Trial<'a> {
    /// Room for trials of `problem`, backwards split or not.
    pub fn new(problem: &'a Problem, split: bool) -> Trial<'a> {
        let devices = problem.devices();
        let lanes = problem.placement.stages() as usize * problem.placement.directions() as usize;
        Trial {
            problem,
            ready: vec![0; problem.cells],
            counts: vec![0; 3 * lanes],
            devices: vec![Device::default(); devices],
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
            *device =
                Device { next: start, first: NEVER, awaited: NONE, queued: start, taken: start, ..Device::default() };
        }
        self.runnable.extend((0..self.devices.len() as u32).rev());
    }

    /// Runs complete words. `None`: they wait for one another in a circle.
    pub fn run(&mut self, words: &Words) -> Option<Score> {
        self.reset(words);
        let mut left = words.slots.len();
        while let Some(number) = self.runnable.pop() {
            left -= self.advance(words, number);
        }
        self.work += (words.slots.len() - left) as u64;
        (left == 0).then(|| self.score())
    }

    /// Runs device `number` until it must wait: how many ops.
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

    /// Op number `at`, of device `number`, fills cell `output` at `arrival`; wakes `consumer` if it waits for that.
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

    /// Runs words without W's, putting these where they fit. `None`: a circle, or a cap exceeded.
    /// `emit` is told every op of each device in the order in which it runs.
    pub fn fill(&mut self, words: &Words, gaps: Gaps, emit: impl FnMut(u32, u32)) -> Option<Score> {
        self.fill_within(words, gaps, [u64::MAX; 2], emit)
    }

    /// [`Trial::fill`] that gives up as soon as the makespan or the span is sure to exceed its limit.
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

    /// Runs device `number` until it must wait; false: its cap or a limit is exceeded.
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
            let room = |device: &Device| {
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

    /// When `device` ended.
    pub fn last(&self, device: usize) -> u64 {
        self.devices[device].last
    }

    /// When `device` began.
    pub fn first(&self, device: usize) -> u64 {
        self.devices[device].first
    }
}
