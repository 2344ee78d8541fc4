//! What ops wait for besides the op before them on their device and the stage before theirs: copies, what waits for copies, and the passes of
//! a vocabulary that all devices share.

use crate::op::{Engine, Kind, Op};
use crate::schedule::Schedule;
use std::collections::BTreeMap;

/// A number that means no op.
const NONE: u32 = u32::MAX;

/// When a wait for an op is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When it has ended.
    Ended,
    /// When it has ended and its result has gone to all devices.
    Gathered,
    /// When it has begun.
    Begun,
}

/// A wait for op number `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Number of the op that is waited for.
    pub op: u32,
    /// How far that op has to be.
    pub until: Until,
}

/// Waits that are not in the order of compute ops. A copy starts after the compute op before it in its device's program and after
/// the copy before it on its queue; a RELOAD after its OFFLOAD; a backward after its RELOAD. All of these are on one device,
/// earlier in its program.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    /// By op: where its waits begin; then the end of the last.
    starts: Vec<u32>,
    waits: Vec<Wait>,
    /// By op: where its users begin; then the end of the last.
    user_starts: Vec<u32>,
    users: Vec<Wait>,
    /// By op: the compute op before it on its device.
    before: Vec<u32>,
    /// By op: the compute op after it on its device.
    after: Vec<u32>,
}

/// Returns lists by op as one array, and where each list begins.
fn flat(lists: &[Vec<Wait>]) -> (Vec<u32>, Vec<Wait>) {
    let mut starts = vec![0];
    lists.iter().for_each(|list| starts.push(starts[starts.len() - 1] + list.len() as u32));
    (starts, lists.concat())
}

impl Beside {
    /// Returns the waits of `schedule`; `None` if it has none.
    pub fn of(schedule: &Schedule) -> Option<Beside> {
        if !schedule.has_copies() && !schedule.shares_vocabulary() {
            return None;
        }
        let ops = schedule.ops();
        let ended = |op: u32| Wait { op, until: Until::Ended };
        let mut waits: Vec<Vec<Wait>> = vec![Vec::new(); ops.len()];
        let (mut before, mut after) = (vec![NONE; ops.len()], vec![NONE; ops.len()]);
        for device in 0..schedule.devices() {
            let mut computed = NONE;
            let mut queues: [u32; 2] = [NONE; 2];
            let mut copied: BTreeMap<Op, u32> = BTreeMap::new();
            for index in schedule.range(device) {
                let op = ops[index];
                let number = index as u32;
                before[index] = computed;
                let other = |kind: Kind| copied.get(&op.of_kind(kind)).copied().unwrap_or(NONE);
                let needs = match op.kind().engine() {
                    Engine::ToHost => [computed, std::mem::replace(&mut queues[0], number), NONE],
                    Engine::FromHost => [computed, std::mem::replace(&mut queues[1], number), other(Kind::O)],
                    Engine::Compute if op.kind().is_backward() => [NONE, NONE, other(Kind::L)],
                    Engine::Compute => [NONE; 3],
                };
                waits[index] = needs.into_iter().filter(|&need| need != NONE).map(ended).collect();
                if op.kind().is_compute() {
                    computed = number;
                } else {
                    copied.insert(op, number);
                }
            }
            let mut next = NONE;
            for index in schedule.range(device).rev() {
                after[index] = next;
                if ops[index].kind().is_compute() {
                    next = index as u32;
                }
            }
        }
        if schedule.shares_vocabulary() {
            add_vocabulary(schedule, &mut waits);
        }
        let mut users: Vec<Vec<Wait>> = vec![Vec::new(); ops.len()];
        for (index, needs) in waits.iter().enumerate() {
            needs.iter().for_each(|&Wait { op, until }| users[op as usize].push(Wait { op: index as u32, until }));
        }
        let ((starts, waits), (user_starts, users)) = (flat(&waits), flat(&users));
        Some(Beside { starts, waits, user_starts, users, before, after })
    }

    pub fn waits(&self, index: usize) -> &[Wait] {
        &self.waits[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    pub fn users(&self, index: usize) -> &[Wait] {
        &self.users[self.user_starts[index] as usize..self.user_starts[index + 1] as usize]
    }

    pub fn before(&self, index: usize) -> Option<usize> {
        Some(self.before[index]).filter(|&before| before != NONE).map(|before| before as usize)
    }

    pub fn after(&self, index: usize) -> Option<usize> {
        Some(self.after[index]).filter(|&after| after != NONE).map(|after| after as usize)
    }
}

/// Adds the waits of a vocabulary that all devices share, with k a micro-batch: the first F of k waits for all IF of k; S of k for the last F
/// of k, for all S of k - 1 and, with one barrier, on other devices for the begin of the last stage's backward of k - 1; that backward of k for
/// all S of k, with two barriers of k + 1; IB of k for the first stage's backward of k.
fn add_vocabulary(schedule: &Schedule, waits: &mut [Vec<Wait>]) {
    let (stages, ops) = (schedule.placement.stages(), schedule.ops());
    let two = schedule.has_two_barriers();
    let (of_last, of_first) = (Kind::B, Kind::I);
    let mut all: BTreeMap<(Kind, u32), Vec<u32>> = BTreeMap::new();
    for (index, op) in ops.iter().enumerate() {
        let kind = if op.kind().is_backward() { Kind::B } else { op.kind() };
        let is_end = match kind {
            Kind::F => op.stage() + 1 == stages,
            _ => kind.is_vocabulary(),
        };
        // The backwards that others wait for: the last stage's under one name, the first stage's under another.
        if kind == Kind::B && op.stage() + 1 == stages {
            all.entry((of_last, op.microbatch())).or_default().push(index as u32);
        }
        if kind == Kind::B && op.stage() == 0 {
            all.entry((of_first, op.microbatch())).or_default().push(index as u32);
        }
        if is_end {
            all.entry((kind, op.microbatch())).or_default().push(index as u32);
        }
    }
    let found = |kind: Kind, microbatch: Option<u32>, until: Until| {
        let ops = microbatch.and_then(|microbatch| all.get(&(kind, microbatch)));
        ops.into_iter().flatten().map(move |&op| Wait { op, until })
    };
    for (index, op) in ops.iter().enumerate() {
        let (k, on_last) = (Some(op.microbatch()), op.stage() + 1 == stages);
        let before = op.microbatch().checked_sub(1);
        let more: Vec<Wait> = match op.kind() {
            Kind::F if op.stage() == 0 => found(Kind::IF, k, Until::Gathered).collect(),
            kind if kind.is_backward() && on_last => {
                found(Kind::S, Some(op.microbatch() + u32::from(two)), Until::Gathered).collect()
            }
            Kind::S => {
                let begun = found(of_last, before, Until::Begun).filter(|_| !two && !on_last);
                found(Kind::F, k, Until::Gathered).chain(found(Kind::S, before, Until::Gathered)).chain(begun).collect()
            }
            Kind::IB => found(of_first, k, Until::Gathered).collect(),
            _ => Vec::new(),
        };
        waits[index].extend(more);
    }
}
