//! From the words of all devices to their programs: micro-batches numbered, every op checked.

use super::draft::Draft;
use super::request::{Asked, Error};
use super::word::{Atom, Context, Word};
use crate::op::{Kind, Op};
use crate::open::{OpenSchedule, Program};
use crate::placement::{self, Placement};
use crate::schedule::{Fault, OpError, Phase, ProgramCheck, Programs, Schedule, check_pair, grid};
use std::collections::VecDeque;

/// Maximum capacity reserved for expected ops: address space, not memory.
const MAX_RESERVED_OPS: usize = 1 << 26;

#[derive(Debug)]
pub struct ScheduleSource {
    pub(super) placement: Placement,
    pub(super) microbatches: u32,
    pub(super) words: Vec<Word>,
    pub(super) file: String,
}

impl ScheduleSource {
    /// Returns `file:line` of op number `index` of `device`.
    pub fn location(&self, device: u32, index: usize) -> String {
        let Some(word) = self.words.get(device as usize) else { return self.file.clone() };
        let mut ops = Vec::new();
        let mut expansion = Expansion::new(&self.placement, device, self.microbatches, &mut ops);
        let _ = word.visit(&mut |atoms, context| {
            atoms.iter().try_for_each(|atom| {
                let kept = expansion.take(atom, context.limit).map_err(drop)?;
                if kept && expansion.len() > index { Err(()) } else { Ok(()) }
            })
        });
        format!("{}:{}", self.file, expansion.line)
    }
}

impl Asked<'_> {
    /// Expands fixed words, one per device, to a schedule.
    pub fn expand(&self, placement: &Placement, words: &[Word]) -> Result<Schedule, Error> {
        let m = self.request.microbatches;
        let mut programs = Programs::default();
        let mut fault: Option<(u32, usize, u32, String)> = None; // the first one's device, op number, line, what
        for (device, word) in words.iter().enumerate() {
            let mut expansion = Expansion::new(placement, device as u32, m, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            let result = result.and_then(|()| expansion.check_complete());
            if let (Err(OpError(what)), None) = (result, &fault) {
                fault = Some((device as u32, expansion.len(), expansion.line, what));
            }
            let phases = expansion.phases;
            programs.finish(phases);
            if programs.ops.len() as u64 > self.request.budget.ops {
                return Err(Error::Invalid(format!(
                    "{} exceeds the budget of {} ops; take fewer micro-batches or raise --max-ops",
                    self.path.name, self.request.budget.ops
                )));
            }
            if device == 0 {
                // Most devices have as many ops as the first.
                programs.ops.reserve((programs.ops.len() * (words.len() - 1)).min(MAX_RESERVED_OPS));
            }
        }
        match fault {
            None => Ok(Schedule::new(&self.path.name, placement.clone(), m, programs)),
            Some(fault) => Err(self.fault(&programs, fault)),
        }
    }

    /// Expands drafts to an open schedule. The goal is that of the first device with a search.
    pub fn open(&self, placement: &Placement, drafts: &[Draft]) -> Result<OpenSchedule, Error> {
        let programs = drafts.iter().enumerate().map(|(device, draft)| self.program(placement, device as u32, draft));
        Ok(OpenSchedule {
            name: self.path.name.clone(),
            placement: placement.clone(),
            microbatches: self.request.microbatches,
            programs: programs.collect::<Result<_, _>>()?,
            goal: drafts.iter().find_map(Draft::goal).unwrap_or_default(),
        })
    }

    fn program(&self, placement: &Placement, device: u32, draft: &Draft) -> Result<Program, Error> {
        let expand = |word: &Word, floating: bool| -> Result<Vec<Op>, Error> {
            let mut programs = Programs::default();
            (0..device).for_each(|_| programs.finish(Vec::new()));
            let mut expansion = Expansion::new(placement, device, self.request.microbatches, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            if floating {
                expansion.complete_weights();
            }
            match result.and_then(|()| expansion.check_complete()) {
                Ok(()) => Ok(programs.ops),
                Err(OpError(what)) => {
                    let (index, line) = (expansion.len(), expansion.line);
                    programs.finish(Vec::new());
                    Err(self.fault(&programs, (device, index, line, what)))
                }
            }
        };
        Ok(match draft {
            Draft::Word(word) => Program::Fixed(expand(word, false)?),
            Draft::Fill { word, cap } => Program::Fill { ops: expand(word, true)?, cap: *cap },
            Draft::Greedy { priority, cap } => Program::Greedy { priority: priority.clone(), cap: *cap },
            Draft::Search { split, cap, start, .. } => {
                let start = start.as_ref().map(|start| self.program(placement, device, start).map(Box::new));
                Program::Search { split: *split, cap: *cap, start: start.transpose()? }
            }
        })
    }

    /// Returns the error at op number `index` of `device`, written on `line`.
    fn fault(&self, programs: &Programs, (device, index, line, what): (u32, usize, u32, String)) -> Error {
        let fault = Fault { device, index: Some(index), what, grid: grid(&programs.rows(), device, index) };
        let place = if line > 0 { format!("{}:{line}", self.path.file) } else { self.path.file.clone() };
        Error::Invalid(format!("{place}: not a schedule for {}: {fault}", self.numbers()))
    }
}

/// Counters of one stage of the device.
struct Chunk {
    stage: u32,
    direction: u32,
    /// Next F.
    forward: u32,
    /// Next I or B.
    backward: u32,
    /// Micro-batches whose I has run and whose W has not.
    pending: VecDeque<u32>,
}

/// Numbers the micro-batches of one device's word.
struct Expansion<'a> {
    /// Ops of earlier devices, then of this one.
    ops: &'a mut Vec<Op>,
    start: usize,
    phases: Vec<Phase>,
    seen: ProgramCheck,
    /// Whether the op taken last opens a pair.
    opened: bool,
    chunks: Vec<Chunk>,
    /// Line of the op taken last.
    line: u32,
    visited: u64,
    visit_limit: u64,
}

impl<'a> Expansion<'a> {
    /// Starts the program of `device`, whose ops are appended to `ops`.
    fn new(placement: &Placement, device: u32, microbatches: u32, ops: &'a mut Vec<Op>) -> Expansion<'a> {
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
            seen: ProgramCheck::new(placement, device, microbatches),
            chunks: held.iter().map(chunk).collect(),
            opened: false,
            line: 0,
            visited: 0,
            // Ops that `first` drops are visited, too: allow patterns up to 64 times longer than the rest.
            visit_limit: 64 * 3 * v * (m + 4 * p),
        }
    }

    fn len(&self) -> usize {
        self.ops.len() - self.start
    }

    /// Takes the next ops of the word, all of one phase.
    fn take_all(&mut self, atoms: &[Atom], context: Context<'_>) -> Result<(), OpError> {
        let before = self.ops.len();
        let result = atoms.iter().try_for_each(|atom| self.take(atom, context.limit).map(drop));
        if self.ops.len() > before && self.phases.last().map_or("", |phase| phase.name.as_str()) != context.phase {
            self.phases.push(Phase { start: before - self.start, name: context.phase.to_string() });
        }
        result
    }

    /// Takes the next op of the word; returns whether `first` keeps it.
    fn take(&mut self, atom: &Atom, limit: u64) -> Result<bool, OpError> {
        self.line = atom.line;
        self.visited += 1;
        if self.visited > self.visit_limit {
            let what = format!("the word continues after {} ops, far more than it can need", self.visit_limit);
            return Err(OpError(what));
        }
        let Some(chunk) = self.chunks.get_mut(atom.chunk as usize) else {
            let (letter, chunk, held) = (atom.kind.letter(), atom.chunk, self.chunks.len());
            let what = format!("{letter}[{chunk}] names chunk {chunk}, but a device holds {held} here");
            return Err(OpError(what));
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

    /// Closes the pair that the last op opened with `op`, unless `first` drops it.
    #[cold]
    fn close_pair(&mut self, op: Op, kept: bool) -> Result<(), OpError> {
        self.opened = false;
        let Some(opener) = self.ops.last_mut() else { return Ok(()) };
        if kept {
            return check_pair(*opener, Some(op));
        }
        *opener = opener.alone();
        Ok(())
    }

    /// Counts the floating W of every I without W as run.
    fn complete_weights(&mut self) {
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            for microbatch in std::mem::take(&mut chunk.pending) {
                let op = Op::new(Kind::W, chunk.stage, microbatch).in_direction(chunk.direction);
                let _ = self.seen.add(number, op); // its I has run and it has not
            }
        }
    }

    /// Checks that nothing is missing at the end of the program.
    fn check_complete(&self) -> Result<(), OpError> {
        match self.ops.last() {
            Some(&op) if self.opened => check_pair(op, None),
            _ => self.seen.check_complete(),
        }
    }
}

impl Chunk {
    /// Returns the micro-batch of the next op.
    fn count(&mut self, atom: &Atom) -> Result<u32, OpError> {
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
                    OpError(format!("{letter}[{chunk}] has no I of its chunk before it without a W"))
                })?,
            },
        })
    }
}
