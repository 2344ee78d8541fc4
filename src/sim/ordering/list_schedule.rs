//! List scheduling: as time advances, devices run ops from their lists or by their policies, until all have run.
//!
//! **No deadlock under a cap.** Let j be the oldest micro-batch of a direction whose forwards are incomplete. Older micro-batches
//! always complete, since backwards need no memory. A device runs a forward of a younger micro-batch only while the forwards that
//! it holds of micro-batches younger than j leave room for one micro-batch on all its chunks: then j can always complete, and after
//! it the next, so a cap of one micro-batch on all chunks suffices.

use super::problem::OrderingProblem;
use pipesim_schedule::activation::{UNLIMITED, WHOLE};
use pipesim_schedule::op::{Kind, Op};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const NEVER: u64 = u64::MAX;

/// Which of the ready ops a device prefers: the one with the smallest key.
#[derive(Clone, Debug)]
pub(super) enum Rank {
    /// By the kind's place in the list, then older micro-batch, then later chunk.
    Kinds(Vec<Kind>),
    /// By the time in a pattern: the offset of the slot, plus the period times the micro-batch.
    Times { offsets: Vec<i64>, period: i64 },
}

/// How a device chooses.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub rank: Rank,
    pub split: bool,
    /// Whether W's are ranked like other ops; otherwise they fill idle time.
    pub compete: bool,
    /// How long a filling W may delay the next op.
    pub slack: u64,
    /// How long the device may wait for an op that it prefers to a ready one.
    pub patience: u64,
}

/// How a device chooses its ops.
#[derive(Clone, Debug)]
pub(super) enum Course<'a> {
    Fixed(&'a [Op]),
    /// These ops in this order; W's that are not listed run when they fit. The second list has the listed W's, sorted.
    Fill(&'a [Op], &'a [Op]),
    Choose(&'a Policy),
}

struct ListDevice {
    free: u64,
    live: i128,
    next: usize,
    /// Pending W's, oldest first.
    pending: VecDeque<Op>,
    /// Number of ops left.
    left: u64,
    out: Vec<Op>,
}

/// The next action of a device.
enum Step {
    Run(Op, u64),
    /// Run a W, for memory or because it ranks highest.
    Weights,
    /// Wait until this time, or until an input arrives.
    Sleep(Option<u64>),
    Done,
}

/// A device that waits forever.
#[derive(Debug)]
pub(super) struct Stuck {
    pub device: usize,
    pub op: Option<Op>,
}

pub(super) struct ListScheduler<'a> {
    problem: &'a OrderingProblem,
    courses: &'a [Course<'a>],
    devices: Vec<ListDevice>,
    /// By slot: number of ops run; B's count as I's.
    counts: Vec<u32>,
    ready: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u32)>>,
}

/// Runs `courses`, one per device; returns the ops of each in order.
pub(super) fn list_schedule(problem: &OrderingProblem, courses: &[Course<'_>]) -> Result<Vec<Vec<Op>>, Stuck> {
    let mut ready = vec![NEVER; problem.cells];
    ready[..problem.microbatches as usize].fill(0);
    let device = |number: usize| {
        let chunks = problem.placement.held_by(number as u32).iter();
        ListDevice {
            free: 0,
            live: 0,
            next: 0,
            pending: VecDeque::new(),
            left: chunks.map(|chunk| 2 * u64::from(problem.share(chunk.direction))).sum(),
            out: Vec::new(),
        }
    };
    let mut run = ListScheduler {
        problem,
        courses,
        devices: (0..problem.devices()).map(device).collect(),
        counts: vec![0; problem.rules.len()],
        ready,
        events: (0..problem.devices() as u32).map(|device| Reverse((0, device))).collect(),
    };
    while let Some(Reverse((now, device))) = run.events.pop() {
        run.act(device as usize, now);
    }
    match (0..problem.devices()).find(|&device| !run.is_done(device)) {
        Some(device) => Err(Stuck { device, op: run.listed(device) }),
        None => Ok(run.devices.into_iter().map(|device| device.out).collect()),
    }
}

impl ListScheduler<'_> {
    fn is_done(&self, device: usize) -> bool {
        match self.courses[device] {
            Course::Fixed(ops) | Course::Fill(ops, _) => self.devices[device].next == ops.len(),
            Course::Choose(_) => self.devices[device].left == 0,
        }
    }

    /// Returns the next op of a device with a list.
    fn listed(&self, device: usize) -> Option<Op> {
        match self.courses[device] {
            Course::Fixed(ops) | Course::Fill(ops, _) => ops.get(self.devices[device].next).copied(),
            Course::Choose(_) => None,
        }
    }

    /// Runs the next action of `device` at `now`.
    fn act(&mut self, device: usize, now: u64) {
        if now < self.devices[device].free {
            return; // it comes back when it is free
        }
        let step = match self.courses[device] {
            Course::Fixed(ops) => self.follow(device, ops, false),
            Course::Fill(ops, _) => self.follow(device, ops, true),
            Course::Choose(policy) => self.choose(device, policy, now),
        };
        match step {
            Step::Run(_, arrival) if arrival > now => self.events.push(Reverse((arrival, device as u32))),
            Step::Run(op, arrival) => {
                self.fill(device, op, arrival.max(now));
                self.start(device, op, now);
            }
            Step::Weights => {
                self.fill_gap(device, now, 0);
                let start = now.max(self.devices[device].free);
                self.run_weights(device, start);
                self.events.push(Reverse((self.devices[device].free, device as u32)));
            }
            Step::Sleep(Some(until)) => self.events.push(Reverse((until, device as u32))),
            Step::Sleep(None) => {}
            Step::Done => {
                while !self.devices[device].pending.is_empty() && !matches!(self.courses[device], Course::Fixed(_)) {
                    let start = self.devices[device].free;
                    self.run_weights(device, start);
                }
            }
        }
    }

    /// Returns the action of a device with a list.
    fn follow(&self, device: usize, ops: &[Op], fills: bool) -> Step {
        let state = &self.devices[device];
        let Some(&op) = ops.get(state.next) else { return Step::Done };
        let rule = &self.problem.rules[op.slot()];
        let arrival = if op.kind() == Kind::W { 0 } else { self.ready[(rule.input + self.local(op)) as usize] };
        let relief = if fills { state.pending.len() as i128 * self.problem.kept } else { 0 };
        if arrival == NEVER
            || (fills && state.live - relief + self.problem.change(op.slot() as u32) > self.problem.caps[device])
        {
            return Step::Sleep(None);
        }
        Step::Run(op, arrival)
    }

    /// Returns the number of an op's micro-batch within its direction.
    fn local(&self, op: Op) -> u32 {
        let share = self.problem.placement.microbatches_of(op.direction(), self.problem.microbatches);
        op.microbatch().saturating_sub(share.start)
    }

    /// Returns the action of a device with a policy.
    fn choose(&self, device: usize, policy: &Policy, now: u64) -> Step {
        let state = &self.devices[device];
        if state.left == 0 {
            return Step::Done;
        }
        let mut best: Option<((i64, i64, i64), Step)> = None;
        let mut wake = NEVER;
        let mut consider = |key, step| {
            if best.as_ref().is_none_or(|(least, _)| key < *least) {
                best = Some((key, step));
            }
        };
        for (number, chunk) in self.problem.placement.held_by(device as u32).iter().enumerate() {
            for kind in [Kind::F, if policy.split { Kind::I } else { Kind::B }] {
                let first = Op::new(kind, chunk.stage, 0).in_direction(chunk.direction);
                let count = self.count(first);
                if count == self.problem.share(chunk.direction) {
                    continue;
                }
                if kind != Kind::F && count == self.count(first.of_kind(Kind::F)) {
                    continue;
                }
                let arrival = self.ready[(self.problem.rules[first.slot()].input + count) as usize];
                if arrival == NEVER || (kind == Kind::F && !self.admits(device, first, count)) {
                    continue;
                }
                if arrival > now.saturating_add(policy.patience) {
                    wake = wake.min(arrival - policy.patience);
                    continue;
                }
                let base = self.problem.placement.microbatches_of(chunk.direction, self.problem.microbatches).start;
                let op = Op::new(kind, chunk.stage, base + count).in_direction(chunk.direction);
                let full = state.live + self.problem.change(op.slot() as u32) > self.problem.caps[device];
                let step = if full { Step::Weights } else { Step::Run(op, arrival) };
                consider(policy.rank.key(first, count, number), step);
            }
        }
        if policy.compete
            && let Some(&weights) = state.pending.front()
        {
            consider(policy.rank.key(weights, self.local(weights), 0), Step::Weights);
        }
        best.map_or(Step::Sleep(Some(wake).filter(|&wake| wake != NEVER)), |(_, step)| step)
    }

    /// Returns how many ops of that slot have run; B's count as I's.
    fn count(&self, op: Op) -> u32 {
        let kind = if op.kind() == Kind::B { Kind::I } else { op.kind() };
        self.counts[op.of_kind(kind).slot()]
    }

    /// Whether `device` may run forward number `count` of a chunk without blocking older micro-batches.
    fn admits(&self, device: usize, forward: Op, count: u32) -> bool {
        let state = &self.devices[device];
        let stages = self.problem.placement.stages();
        let oldest = |direction: u32| self.count(Op::new(Kind::F, stages - 1, 0).in_direction(direction));
        let cap = self.problem.caps[device];
        let relief = state.pending.len() as i128 * self.problem.kept;
        if state.live - relief + WHOLE > cap {
            return false;
        }
        if count == oldest(forward.direction()) {
            return true;
        }
        if cap >= UNLIMITED {
            return true;
        }
        let chunks = self.problem.placement.held_by(device as u32);
        let younger = chunks.iter().map(|chunk| {
            let f = Op::new(Kind::F, chunk.stage, 0).in_direction(chunk.direction);
            let taken = self.count(f) + u32::from(f.slot() == forward.slot());
            i64::from(taken.saturating_sub(oldest(chunk.direction) + 1))
        });
        i128::from(younger.sum::<i64>() + chunks.len() as i64) * WHOLE <= cap
    }

    /// Runs the W's that fit before `op`, whose input arrives at `arrival`, or that must run for its memory.
    fn fill(&mut self, device: usize, op: Op, arrival: u64) {
        let (change, cap) = (self.problem.change(op.slot() as u32), self.problem.caps[device]);
        match self.courses[device] {
            Course::Fixed(_) => return,
            Course::Fill(..) => self.fill_gap(device, arrival, 0),
            Course::Choose(policy) if !policy.compete => self.fill_gap(device, arrival, policy.slack),
            Course::Choose(_) => {}
        }
        while self.devices[device].live + change > cap && !self.devices[device].pending.is_empty() {
            let start = self.devices[device].free;
            self.run_weights(device, start);
        }
    }

    /// Runs W's while they end by `until` + `slack`.
    fn fill_gap(&mut self, device: usize, until: u64, slack: u64) {
        if self.devices[device].out.last().is_some_and(|op| op.opens_pair()) {
            return;
        }
        while let Some(&weights) = self.devices[device].pending.front() {
            let start = self.devices[device].free;
            if start + self.problem.rules[weights.slot()].hold > until.saturating_add(slack) {
                break;
            }
            self.run_weights(device, start);
        }
    }

    fn run_weights(&mut self, device: usize, start: u64) {
        let state = &mut self.devices[device];
        if let Some(weights) = state.pending.pop_front() {
            let rule = &self.problem.rules[weights.slot()];
            state.free = start + rule.hold;
            state.live += self.problem.change(weights.slot() as u32);
            state.out.push(weights);
        }
    }

    /// Starts `op` at `now`, or when its device is free.
    fn start(&mut self, device: usize, op: Op, now: u64) {
        let rule = self.problem.rules[op.slot()];
        let local = self.local(op);
        let state = &mut self.devices[device];
        let start = now.max(state.free);
        state.free = start + rule.hold;
        state.live += self.problem.change(op.slot() as u32);
        state.next += 1;
        state.out.push(op);
        match (op.kind(), &self.courses[device]) {
            (Kind::I, Course::Choose(_)) => state.pending.push_back(op.of_kind(Kind::W)),
            (Kind::I, Course::Fill(_, listed)) if listed.binary_search(&op.of_kind(Kind::W)).is_err() => {
                state.pending.push_back(op.of_kind(Kind::W));
            }
            _ => {}
        }
        self.events.push(Reverse((state.free, device as u32)));
        if op.kind() == Kind::W {
            return;
        }
        state.left = state.left.saturating_sub(1);
        let counted = if op.kind() == Kind::B { Kind::I } else { op.kind() };
        self.counts[op.of_kind(counted).slot()] += 1;
        let arrival = start + rule.duration + rule.lag;
        self.ready[(rule.output + local) as usize] = arrival;
        self.wake(rule.consumer as usize, now, arrival);
        if op.kind() == Kind::F && op.downstream(self.problem.placement.stages()).is_none() {
            // Forwards that would have blocked older micro-batches may run now.
            for device in 0..self.devices.len() {
                if self.problem.caps[device] < UNLIMITED {
                    self.events.push(Reverse((now.max(self.devices[device].free), device as u32)));
                }
            }
        }
    }

    /// Wakes `device` for an input that arrives at `arrival`.
    fn wake(&mut self, device: usize, now: u64, arrival: u64) {
        let time = match self.courses[device] {
            Course::Choose(policy) if policy.patience > 0 => arrival.saturating_sub(policy.patience).max(now),
            _ => arrival,
        };
        self.events.push(Reverse((time.max(self.devices[device].free), device as u32)));
    }
}

impl Rank {
    /// Returns the key; smaller runs earlier.
    fn key(&self, op: Op, count: u32, chunk: usize) -> (i64, i64, i64) {
        match self {
            Rank::Kinds(kinds) => {
                let place = kinds.iter().position(|&kind| kind == op.kind()).unwrap_or(kinds.len());
                (place as i64, i64::from(count), -(chunk as i64))
            }
            Rank::Times { offsets, period } => {
                (offsets[op.slot()] + period * i64::from(count), i64::from(count), -(chunk as i64))
            }
        }
    }
}
