//! One device's word walked out: micro-batches counted, ops checked one by one.

use super::word::{Atom, Context};
use crate::op::{Kind, Op};
use crate::placement::{self, Placement};
use crate::schedule::{Misplaced, Phase, Seen, check_pair};
use std::collections::VecDeque;

/// One stage of the device: what of it was counted.
struct Chunk {
    stage: u32,
    direction: u32,
    /// Next F.
    forward: u32,
    /// Next I or B.
    backward: u32,
    /// Micro-batches whose I is done and whose W is not.
    pending: VecDeque<u32>,
}

/// Counts micro-batches along one device's word.
pub struct Expansion<'a> {
    /// Those of the devices before, then this one's.
    ops: &'a mut Vec<Op>,
    start: usize,
    /// Where the program's phases begin.
    pub phases: Vec<Phase>,
    /// What has run.
    seen: Seen,
    /// Whether the op taken last opens a pair.
    opened: bool,
    chunks: Vec<Chunk>,
    /// Line of the op taken last.
    pub line: u32,
    visited: u64,
    visit_limit: u64,
}

impl<'a> Expansion<'a> {
    /// Nothing taken yet of the program of `device`, whose ops go to `ops`.
    pub fn new(placement: &Placement, device: u32, microbatches: u32, ops: &'a mut Vec<Op>) -> Expansion<'a> {
        let held = placement.held_by(device);
        let (v, p, m) = (held.len() as u64, u64::from(placement.devices()), u64::from(microbatches));
        let chunk = |&placement::Chunk { stage, direction }: &placement::Chunk| {
            let first = placement.microbatches_of(direction, microbatches).start;
            Chunk { stage, direction, forward: first, backward: first, pending: VecDeque::new() }
        };
        Expansion {
            start: ops.len(),
            ops,
            phases: Vec::new(),
            seen: Seen::new(placement, device, microbatches),
            chunks: held.iter().map(chunk).collect(),
            opened: false,
            line: 0,
            visited: 0,
            // What `first` cuts off is visited too: allow patterns up to 64 times longer than what is left of them.
            visit_limit: 64 * 3 * v * (m + 4 * p),
        }
    }

    /// Number of ops in the program.
    pub fn len(&self) -> usize {
        self.ops.len() - self.start
    }

    /// Takes the next ops of the word, which are all of one phase.
    pub fn take_all(&mut self, atoms: &[Atom], context: Context<'_>) -> Result<(), Misplaced> {
        let before = self.ops.len();
        let result = atoms.iter().try_for_each(|atom| self.take(atom, context.limit).map(drop));
        if self.ops.len() > before && self.phases.last().map_or("", |phase| phase.name.as_str()) != context.phase {
            self.phases.push(Phase { start: before - self.start, name: context.phase.to_string() });
        }
        result
    }

    /// Takes the next op of the word; tells whether it stays in the program.
    pub fn take(&mut self, atom: &Atom, limit: u64) -> Result<bool, Misplaced> {
        self.line = atom.line;
        self.visited += 1;
        if self.visited > self.visit_limit {
            let what = format!("the word goes on after {} ops, far more than it can need", self.visit_limit);
            return Err(Misplaced(what));
        }
        let Some(chunk) = self.chunks.get_mut(atom.chunk as usize) else {
            let (letter, chunk, held) = (atom.kind.letter(), atom.chunk, self.chunks.len());
            let what = format!("{letter}[{chunk}] names chunk {chunk}, but a device holds {held} here");
            return Err(Misplaced(what));
        };
        let microbatch = chunk.count(atom)?;
        let kept = u64::from(microbatch) < limit;
        let op = Op::new(atom.kind, chunk.stage, microbatch).in_direction(chunk.direction);
        if self.opened {
            self.close_pair(op, kept)?;
        }
        if !kept {
            return Ok(false);
        }
        self.opened = atom.opens_pair;
        self.seen.add(atom.chunk as usize, op)?;
        self.ops.push(if atom.opens_pair { op.opening_pair() } else { op });
        Ok(true)
    }

    /// The op taken last opened a pair and `op` follows it, unless `first` cuts that off.
    #[cold]
    fn close_pair(&mut self, op: Op, kept: bool) -> Result<(), Misplaced> {
        self.opened = false;
        let Some(opener) = self.ops.last_mut() else { return Ok(()) };
        if kept {
            return check_pair(*opener, Some(op));
        }
        *opener = opener.alone();
        Ok(())
    }

    /// Counts the W of every I that has none as run, without a place in the program: they float.
    pub fn complete_weights(&mut self) {
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            for microbatch in std::mem::take(&mut chunk.pending) {
                let op = Op::new(Kind::W, chunk.stage, microbatch).in_direction(chunk.direction);
                let _ = self.seen.add(number, op); // its I has run and it has not
            }
        }
    }

    /// Checks that nothing is missing at the end of the program.
    pub fn check_complete(&self) -> Result<(), Misplaced> {
        match self.ops.last() {
            Some(&op) if self.opened => check_pair(op, None),
            _ => self.seen.check_complete(),
        }
    }
}

impl Chunk {
    /// The micro-batch of the next op.
    fn count(&mut self, atom: &Atom) -> Result<u32, Misplaced> {
        let next = |counter: &mut u32| {
            let number = atom.microbatch.unwrap_or(*counter);
            *counter += 1;
            number
        };
        Ok(match atom.kind {
            Kind::F => next(&mut self.forward),
            Kind::B => next(&mut self.backward),
            Kind::I => {
                let microbatch = next(&mut self.backward);
                self.pending.push_back(microbatch);
                microbatch
            }
            Kind::W => match atom.microbatch {
                Some(named) => {
                    self.pending.retain(|&waiting| waiting != named);
                    named
                }
                None => self.pending.pop_front().ok_or_else(|| {
                    let (letter, chunk) = (atom.kind.letter(), atom.chunk);
                    Misplaced(format!("{letter}[{chunk}] has no I of its chunk before it whose weights are left"))
                })?,
            },
        })
    }
}
