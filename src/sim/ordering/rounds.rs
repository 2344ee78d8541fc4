//! The zero-bubble authors' rule for ZB-V: forwards until the first micro-batch returns, as far as memory allows; then rounds of one
//! backward and one forward on every device, on the later chunk if its input exists. A W runs in a gap that is long enough, and in a
//! shorter one if the device would otherwise have idled longest.

use super::problem::{OpRule, OrderingProblem};
use super::words::Words;
use pipesim_schedule::op::{Kind, Op};
use std::collections::VecDeque;

/// Indices of a device's slots: forward on its first chunk, on its second; backward on the second, on the first; then W's.
const FIRST: usize = 0;
const SECOND: usize = 1;
const BACK: usize = 2;
const RETURN: usize = 3;

/// Orders under construction.
struct Rounds<'a> {
    problem: &'a OrderingProblem,
    m: usize,
    devices: Vec<RoundDevice>,
    /// Whether W's fill gaps that are too short: before a forward, and before a backward of the second chunk.
    fills: [bool; 2],
    /// By device: its idle time in the previous attempt.
    allowed: Option<Vec<u64>>,
}

struct RoundDevice {
    slots: [u32; 6],
    row: Vec<u32>,
    /// By letter: the ends of its ops.
    ends: [Vec<u64>; 4],
    free: u64,
    idle: u64,
    live: i128,
    pending: VecDeque<u32>,
}

/// Returns orders with W's on a V with split backwards: for four ways of filling gaps, attempts repeated while idle time shrinks.
pub(super) fn rounds(problem: &OrderingProblem) -> Vec<Words> {
    let mut all = Vec::new();
    for fills in [[true, true], [true, false], [false, true], [false, false]] {
        let mut allowed: Option<Vec<u64>> = None;
        for _ in 0..8 {
            let mut rounds = Rounds::new(problem, fills, allowed.clone());
            rounds.run();
            let idle: Vec<u64> = rounds.devices.iter().map(|device| device.idle).collect();
            if allowed.as_ref().is_some_and(|before| idle.iter().max() >= before.iter().max()) {
                break;
            }
            all.push(Words::new(rounds.devices.into_iter().map(|device| device.row)));
            allowed = Some(idle);
        }
    }
    all
}

impl<'a> Rounds<'a> {
    fn new(problem: &'a OrderingProblem, fills: [bool; 2], allowed: Option<Vec<u64>>) -> Rounds<'a> {
        let device = |d: usize| {
            let slot = |kind: Kind, chunk: usize| {
                Op::new(kind, problem.placement.held_by(d as u32)[chunk].stage, 0).slot() as u32
            };
            let [f, i, w] = [Kind::F, Kind::I, Kind::W].map(|kind| [slot(kind, 0), slot(kind, 1)]);
            RoundDevice {
                slots: [f[0], f[1], i[1], i[0], w[1], w[0]],
                row: Vec::new(),
                ends: Default::default(),
                free: 0,
                idle: 0,
                live: 0,
                pending: VecDeque::new(),
            }
        };
        let devices = (0..problem.devices()).map(device).collect();
        Rounds { problem, m: problem.microbatches as usize, devices, fills, allowed }
    }

    fn run(&mut self) {
        self.fill();
        self.level();
        for _ in 0..2 * self.m {
            self.backwards();
            self.forwards();
        }
        for device in 0..self.devices.len() {
            while self.weights(device) {}
        }
    }

    fn done(&self, device: usize, letter: usize) -> usize {
        self.devices[device].ends[letter].len()
    }

    fn rule(&self, device: usize, letter: usize) -> OpRule {
        self.problem.rules[self.devices[device].slots[letter] as usize]
    }

    fn change(&self, device: usize, letter: usize) -> i128 {
        self.problem.change(self.devices[device].slots[letter])
    }

    /// Returns when the input of the device's next op of that letter arrives.
    fn arrival(&self, device: usize, letter: usize) -> u64 {
        let count = self.done(device, letter);
        let down = letter == FIRST || letter == BACK;
        let (before, own) = if down { (device.checked_sub(1), letter == BACK) } else { (Some(device + 1), true) };
        match before.filter(|&before| before < self.devices.len()) {
            Some(before) => {
                self.devices[before].ends[letter].get(count).map_or(0, |end| end + self.rule(before, letter).lag)
            }
            None if own => self.devices[device].ends[letter - 1].get(count).copied().unwrap_or(0),
            None => 0,
        }
    }

    fn put(&mut self, device: usize, letter: usize) {
        if self.done(device, letter) == self.m {
            return;
        }
        let (rule, arrival) = (self.rule(device, letter), self.arrival(device, letter));
        let change = self.change(device, letter);
        while self.devices[device].live + change > self.problem.caps[device] && self.weights(device) {}
        let begun = self.done(device, FIRST) > 0;
        let this = &mut self.devices[device];
        let start = this.free.max(arrival);
        if begun {
            this.idle += start - this.free;
        }
        this.free = start + rule.hold;
        this.live += change;
        this.ends[letter].push(start + rule.duration);
        this.row.push(this.slots[letter]);
        if letter == BACK || letter == RETURN {
            this.pending.push_back(this.slots[letter + 2]);
        }
    }

    /// Runs the oldest pending W; returns whether there was one.
    fn weights(&mut self, device: usize) -> bool {
        let Some(slot) = self.devices[device].pending.pop_front() else { return false };
        let this = &mut self.devices[device];
        this.free += self.problem.rules[slot as usize].hold;
        this.live += self.problem.change(slot);
        this.row.push(slot);
        true
    }

    /// Fills the gap before the device's next op of that letter; with `over`, also by a W that is too long if the device has idled
    /// long enough.
    fn gap(&mut self, device: usize, letter: usize, over: bool) {
        let arrival = self.arrival(device, letter);
        let lasts = |this: &RoundDevice, problem: &OrderingProblem| {
            this.pending.front().map(|&slot| problem.rules[slot as usize].hold)
        };
        while lasts(&self.devices[device], self.problem).is_some_and(|w| self.devices[device].free + w <= arrival) {
            self.weights(device);
        }
        let most = self.devices.iter().map(|device| device.idle).max().unwrap_or(0);
        let spare = |allowed: &Vec<u64>| allowed.iter().max().unwrap_or(&0) - allowed[device];
        let most = most.max(self.allowed.as_ref().map_or(0, spare));
        let this = &self.devices[device];
        if over && arrival > this.free && arrival - this.free + this.idle > most {
            self.weights(device);
        }
    }

    /// Runs forwards of the first chunk until the first micro-batch returns on the second.
    fn fill(&mut self) {
        let p = self.devices.len();
        (0..p).for_each(|device| self.put(device, FIRST));
        for device in (0..p).rev() {
            let room = |rounds: &Self| {
                let held = rounds.done(device, FIRST) + rounds.done(device, SECOND) + 2 + 2 * device;
                let change = rounds.change(device, FIRST);
                held as i128 * change <= rounds.problem.caps[device] && rounds.done(device, FIRST) < rounds.m
            };
            let forward = self.rule(device, FIRST).hold;
            while device + 1 < p && room(self) && self.devices[device].free + forward <= self.arrival(device, SECOND) {
                (0..=device).for_each(|before| self.put(before, FIRST));
            }
            self.put(device, SECOND);
        }
    }

    /// Runs forwards until every device has run as many as the previous one.
    fn level(&mut self) {
        let p = self.devices.len();
        let mut chunk = FIRST;
        for device in 1..p {
            loop {
                let forwards = |d: usize| self.done(d, FIRST) + self.done(d, SECOND);
                let before = self.done(device - 1, SECOND);
                let behind = self.done(device, SECOND) <= before && before < self.m;
                if forwards(device) >= forwards(device - 1) && !behind {
                    break;
                }
                (device..p).rev().for_each(|d| self.put(d, chunk));
                chunk = SECOND - chunk;
            }
        }
    }

    /// Runs a backward on every device.
    fn backwards(&mut self) {
        let p = self.devices.len();
        let returns = |d: usize| {
            let (back, returned) = (self.done(d, BACK), self.done(d, RETURN));
            returned < back && (d + 1 == p || self.done(d + 1, RETURN) > returned || back == self.m)
        };
        let (returning, others): (Vec<usize>, Vec<usize>) = (0..p).partition(|&d| returns(d));
        for (device, letter) in
            returning.into_iter().rev().map(|d| (d, RETURN)).chain(others.into_iter().map(|d| (d, BACK)))
        {
            if self.done(device, letter) < self.m {
                self.gap(device, letter, letter == RETURN || self.fills[1]);
                self.put(device, letter);
            }
        }
    }

    /// Runs a forward on every device that has one.
    fn forwards(&mut self) {
        let p = self.devices.len();
        for d in 0..p {
            let (first, second) = (self.done(d, FIRST), self.done(d, SECOND));
            let letter = if second < first && (d + 1 == p || self.done(d + 1, SECOND) > second) {
                SECOND
            } else if second >= first || d == 0 || self.done(d - 1, FIRST) > first {
                FIRST
            } else {
                continue;
            };
            if second < self.m && self.done(d, letter) < self.m {
                while self.devices[d].live + self.change(d, letter) > self.problem.caps[d] && self.weights(d) {}
                self.gap(d, letter, self.fills[0]);
                self.put(d, letter);
            }
        }
    }
}
