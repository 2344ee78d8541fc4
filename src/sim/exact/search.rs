//! Depth-first search over active schedules, with a table of refuted states.

use super::relaxation::Relaxation;
use super::tables::{SearchState, Tables};
use pipesim_schedule::activation::WHOLE;
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofOutcome {
    /// All states were visited or refuted.
    Exhausted,
    /// The limit of states was reached.
    Limit,
}

/// An op that could run next.
#[derive(Clone, Copy)]
struct SearchChoice {
    row: usize,
    start: i64,
    end: i64,
    tail: i64,
}

/// The next steps from a state.
struct Branching {
    /// One of these runs next on their device.
    choices: Vec<SearchChoice>,
    /// Or a device waits until a time.
    wait: Option<(usize, i64)>,
}

/// A step from one state to the next, with the value that it overwrites.
enum SearchStep {
    /// To the first state.
    Root,
    /// The next op of a row runs; its device was free at `free`.
    Op { row: usize, free: i64 },
    /// A device waits; it was free at `free`.
    Wait { device: usize, free: i64 },
}

/// A state whose next steps are being tried.
struct Node {
    /// What its future depends on besides the counts.
    times: Vec<i64>,
    /// Ops yet to try.
    choices: std::vec::IntoIter<SearchChoice>,
    /// The wait yet to try.
    wait: Option<(usize, i64)>,
}

/// Result of visiting a state.
enum Opened {
    Limit,
    /// The end, or no way to the target.
    Nothing,
    /// Its next steps may lead to the target.
    Node(Node),
}

pub(super) struct ProofSearch<'a> {
    tables: &'a Tables,
    state: SearchState,
    relaxation: Relaxation,
    memo: Memo,
    /// Latest end of the schedules that are searched for.
    target: i64,
    limit: u64,
    /// Rows of the ops run, in the order of decision.
    trail: Vec<usize>,
    pub states: u64,
    /// The best schedule found: makespan and rows.
    pub best: Option<(u64, Vec<Vec<Op>>)>,
}

impl<'a> ProofSearch<'a> {
    /// Creates a search for schedules that end by `target`.
    pub fn new(tables: &'a Tables, target: u64, limit: u64) -> ProofSearch<'a> {
        let devices = tables.of_device.len();
        ProofSearch {
            tables,
            state: SearchState {
                counts: vec![0; tables.rows.len()],
                ends: tables.rows.iter().map(|row| Vec::with_capacity(row.count)).collect(),
                free: vec![0; devices],
                live: vec![0; devices],
            },
            relaxation: Relaxation::new(tables),
            memo: Memo::default(),
            target: target as i64,
            limit,
            trail: Vec::with_capacity(tables.ops()),
            states: 0,
            best: None,
        }
    }

    /// Searches for better and better schedules until there are none or the limit is reached. The path is a list, not the call
    /// stack: it is as long as devices wait, which may be often.
    pub fn run(&mut self) -> ProofOutcome {
        let (mut way, mut step) = (Vec::new(), SearchStep::Root);
        loop {
            match self.open() {
                Opened::Limit => return ProofOutcome::Limit,
                Opened::Node(node) => way.push((step, node)),
                Opened::Nothing => self.undo(step),
            }
            step = loop {
                let Some((_, node)) = way.last_mut() else { return ProofOutcome::Exhausted };
                if let Some(next) = self.next_step(node) {
                    break next;
                }
                if let Some((step, node)) = way.pop() {
                    self.memo.refute(&self.state.counts, &node.times);
                    self.undo(step);
                }
            };
        }
    }

    /// Visits the current state.
    fn open(&mut self) -> Opened {
        if self.trail.len() == self.tables.ops() {
            self.note_best();
            return Opened::Nothing;
        }
        if self.states == self.limit {
            return Opened::Limit;
        }
        self.states += 1;
        let times = self.times();
        if self.memo.covers(&self.state.counts, &times)
            || !self.relaxation.may_reach(self.tables, &self.state, self.target)
        {
            return Opened::Nothing;
        }
        let Some(Branching { choices, wait }) = self.branching() else { return Opened::Nothing };
        Opened::Node(Node { times, choices: choices.into_iter(), wait })
    }

    /// Takes the next step from a state that may lead to the target.
    fn next_step(&mut self, node: &mut Node) -> Option<SearchStep> {
        let target = self.target;
        if let Some(choice) = node.choices.find(|choice| choice.end + choice.tail <= target) {
            return Some(self.run_op(choice));
        }
        let (device, until) = node.wait.take()?;
        Some(SearchStep::Wait { device, free: std::mem::replace(&mut self.state.free[device], until) })
    }

    fn run_op(&mut self, choice: SearchChoice) -> SearchStep {
        let row = &self.tables.rows[choice.row];
        let free = std::mem::replace(&mut self.state.free[row.device], choice.start + row.hold);
        self.state.live[row.device] += self.tables.changes[row.op.kind() as usize];
        self.state.counts[choice.row] += 1;
        self.state.ends[choice.row].push(choice.end);
        self.trail.push(choice.row);
        SearchStep::Op { row: choice.row, free }
    }

    fn undo(&mut self, step: SearchStep) {
        match step {
            SearchStep::Root => {}
            SearchStep::Wait { device, free } => self.state.free[device] = free,
            SearchStep::Op { row: number, free } => {
                let row = &self.tables.rows[number];
                self.trail.pop();
                self.state.ends[number].pop();
                self.state.counts[number] -= 1;
                self.state.live[row.device] -= self.tables.changes[row.op.kind() as usize];
                self.state.free[row.device] = free;
            }
        }
    }

    /// Returns what the future depends on besides the counts: when devices are free and when pending inputs arrive.
    fn times(&self) -> Vec<i64> {
        let (tables, state) = (self.tables, &self.state);
        let left =
            |device: &usize| tables.of_device[*device].iter().any(|&row| state.done(row) < tables.rows[row].count);
        let mut times: Vec<i64> = (0..state.free.len()).filter(left).map(|device| state.free[device]).collect();
        for (number, row) in tables.rows.iter().enumerate() {
            if let Some((from, lag)) = row.input.filter(|&(from, _)| tables.rows[from].device != row.device) {
                let pending = &state.ends[from][state.done(number)..];
                times.extend(pending.iter().map(|end| (end + lag).max(state.free[row.device])));
            }
        }
        times
    }

    /// Returns when the next op of `row` could start; `None` if its inputs have not run or it exceeds the cap.
    fn start(&self, number: usize) -> Option<i64> {
        let (row, state) = (&self.tables.rows[number], &self.state);
        let k = state.done(number);
        let ready = k < row.count && row.own.is_none_or(|own| k < state.done(own));
        if !ready || (row.op.kind() == Kind::F && state.live[row.device] + WHOLE > self.tables.caps[row.device]) {
            return None;
        }
        let free = state.free[row.device];
        match row.input {
            Some((from, lag)) => state.ends[from].get(k).map(|end| free.max(end + lag)),
            None => Some(free),
        }
    }

    /// Returns ops of one device, such that one of them must run next; `None` if nothing can run.
    fn branching(&self) -> Option<Branching> {
        let choice = |row: usize| {
            let start = self.start(row)?;
            let end = start + self.tables.rows[row].duration;
            Some(SearchChoice { row, start, end, tail: self.tables.rows[row].tails[self.state.done(row)] })
        };
        let first = (0..self.tables.rows.len()).filter_map(choice).min_by_key(|choice| (choice.end, choice.start))?;
        // Ops that cannot run yet wait for an op that ends later than this one.
        let (row, until) = (&self.tables.rows[first.row], first.end);
        let of_device = self.tables.of_device[row.device].iter().filter_map(|&row| choice(row));
        let mut choices: Vec<SearchChoice> =
            of_device.filter(|choice| choice.start < until || choice.row == first.row).collect();
        choices.sort_by_key(|choice| (choice.start, -choice.tail));
        // Host overhead after an op leaves less room before an op that starts at that end.
        let may_wait = row.hold > row.duration || self.could_give_way(first.row);
        Some(Branching { choices, wait: may_wait.then_some((row.device, until)) })
    }

    /// Whether forward `number`, run now, could take the memory that another chunk's forward needs first.
    fn could_give_way(&self, number: usize) -> bool {
        let tables = self.tables;
        let row = &tables.rows[number];
        if row.op.kind() != Kind::F || !tables.shared {
            return false;
        }
        let left = |&number: &usize| tables.rows[number].count as i64 - i64::from(self.state.counts[number]);
        let others = tables.of_device[row.device].iter().filter(|&&other| tables.rows[other].op.kind() == Kind::F);
        let all: i64 = others.clone().map(left).sum();
        // The first forward of a device has no competitor.
        let leads = tables.directions == 1 && others.clone().all(|&other| self.state.counts[other] == 0);
        let alone = all == left(&number);
        !leads && !alone && self.state.live[row.device] + i128::from(all) * WHOLE > tables.caps[row.device]
    }

    fn note_best(&mut self) {
        let (tables, state) = (self.tables, &self.state);
        let objective = state.ends.iter().filter_map(|ends| ends.last().copied()).max().unwrap_or(0);
        let mut counts = vec![0; tables.rows.len()];
        let mut programs = vec![Vec::new(); tables.of_device.len()];
        for &row in &self.trail {
            programs[tables.rows[row].device].push(tables.op(row, counts[row]));
            counts[row] += 1;
        }
        self.target = objective - tables.step as i64;
        self.best = Some((objective.max(0) as u64, programs));
    }
}

/// Refuted states: by the number of ops of each row that have run, a flat list of times. No entry dominates another.
#[derive(Default)]
struct Memo {
    refuted: BTreeMap<Vec<u8>, Vec<i64>>,
}

/// Whether no time of `a` is later than its counterpart in `b`.
fn no_later(a: &[i64], b: &[i64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

impl Memo {
    /// Whether a state with these counts and no later times was refuted.
    fn covers(&self, counts: &[u8], times: &[i64]) -> bool {
        let fronts = self.refuted.get(counts);
        fronts.is_some_and(|fronts| fronts.chunks_exact(times.len()).any(|front| no_later(front, times)))
    }

    /// Adds a refuted state; removes those that it dominates.
    fn refute(&mut self, counts: &[u8], times: &[i64]) {
        let Some(fronts) = self.refuted.get_mut(counts) else {
            self.refuted.insert(counts.to_vec(), times.to_vec());
            return;
        };
        let mut kept = 0;
        for at in (0..fronts.len()).step_by(times.len()) {
            if !no_later(times, &fronts[at..at + times.len()]) {
                fronts.copy_within(at..at + times.len(), kept);
                kept += times.len();
            }
        }
        fronts.truncate(kept);
        fronts.extend_from_slice(times);
    }
}
