//! What ops wait for besides the op before them on their device and the stage before theirs: copies, and what waits for copies.

use crate::op::{Engine, Kind, Op};
use crate::schedule::Schedule;
use std::collections::BTreeMap;

/// A number that stands for no op.
const NONE: u32 = u32::MAX;

/// Waits that are not in the order of compute ops. A copy starts after the compute op before it in its device's program and after
/// the copy before it on its queue; a RELOAD after its OFFLOAD; a backward after its RELOAD. All of these are on one device,
/// earlier in its program.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    /// By op: where its waits begin; then the end of the last.
    starts: Vec<u32>,
    waits: Vec<u32>,
    /// By op: where its users begin; then the end of the last.
    user_starts: Vec<u32>,
    users: Vec<u32>,
    /// By op: the compute op before it on its device.
    before: Vec<u32>,
    /// By op: the compute op after it on its device.
    after: Vec<u32>,
}

/// Returns lists by op as one array, and where each list begins.
fn flat(lists: &[Vec<u32>]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0];
    lists.iter().for_each(|list| starts.push(starts[starts.len() - 1] + list.len() as u32));
    (starts, lists.concat())
}

impl Beside {
    /// Returns the waits of `schedule`; `None` if it has no copies.
    pub fn of(schedule: &Schedule) -> Option<Beside> {
        if !schedule.has_copies() {
            return None;
        }
        let ops = schedule.ops();
        let mut waits: Vec<Vec<u32>> = vec![Vec::new(); ops.len()];
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
                waits[index] = needs.into_iter().filter(|&need| need != NONE).collect();
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
        let mut users: Vec<Vec<u32>> = vec![Vec::new(); ops.len()];
        for (index, needs) in waits.iter().enumerate() {
            needs.iter().for_each(|&need| users[need as usize].push(index as u32));
        }
        let ((starts, waits), (user_starts, users)) = (flat(&waits), flat(&users));
        Some(Beside { starts, waits, user_starts, users, before, after })
    }

    pub fn waits(&self, index: usize) -> &[u32] {
        &self.waits[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    pub fn users(&self, index: usize) -> &[u32] {
        &self.users[self.user_starts[index] as usize..self.user_starts[index + 1] as usize]
    }

    pub fn before(&self, index: usize) -> Option<usize> {
        Some(self.before[index]).filter(|&before| before != NONE).map(|before| before as usize)
    }

    pub fn after(&self, index: usize) -> Option<usize> {
        Some(self.after[index]).filter(|&after| after != NONE).map(|after| after as usize)
    }
}
