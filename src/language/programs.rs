//! From the words of all devices to their programs: micro-batches numbered, every op checked.

use super::draft::Draft;
use super::request::{Asked, Error};
use super::word::{Atom, Offload, OpContext, Word};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{OpenSchedule, Program};
use pipesim_schedule::placement::{self, Placement};
use pipesim_schedule::schedule::{Fault, OpError, Phase, ProgramCheck, Programs, Schedule, check_pair, grid};
use pipesim_schedule::slices::Slices;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum capacity reserved for expected ops: address space, not memory.
const MAX_RESERVED_OPS: usize = 1 << 26;

/// The words of a schedule, to find the line on which an op is written.
#[derive(Debug)]
pub struct ScheduleSource {
    pub(super) placement: Placement,
    pub(super) microbatches: u32,
    pub(super) slices: Slices,
    pub(super) words: Vec<Word>,
    pub(super) file: String,
}

impl ScheduleSource {
    /// Returns `file:line` of op number `index` of `device`.
    pub fn location(&self, device: u32, index: usize) -> String {
        let Some(word) = self.words.get(device as usize) else { return self.file.clone() };
        let mut ops = Vec::new();
        let mut expansion = Expansion::new(&self.placement, &self.slices, device, self.microbatches, &mut ops);
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
    pub fn expand(&self, placement: &Placement, slices: &Slices, words: &[Word]) -> Result<Schedule, Error> {
        let m = self.request.microbatches;
        let mut programs = Programs::default();
        let mut fault: Option<(u32, usize, u32, String)> = None; // the first one's device, op number, line, what
        for (device, word) in words.iter().enumerate() {
            let mut expansion = Expansion::new(placement, slices, device as u32, m, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            let result = result.and_then(|()| expansion.add_copies()).and_then(|()| expansion.check_complete());
            if let (Err(OpError(what)), None) = (result, &fault) {
                fault = Some((device as u32, expansion.len(), expansion.line, what));
            }
            let phases = expansion.phases;
            programs.finish(phases);
            if programs.ops.len() as u64 > self.request.budget.ops {
                return Err(Error::Invalid(format!(
                    "{} exceeds the budget of {} ops; take fewer micro-batches or raise `max-ops`",
                    self.path.name, self.request.budget.ops
                )));
            }
            if device == 0 {
                // Most devices have as many ops as the first.
                programs.ops.reserve((programs.ops.len() * (words.len() - 1)).min(MAX_RESERVED_OPS));
            }
        }
        match fault {
            None => {
                let schedule = Schedule::new(&self.path.name, placement.clone(), m, programs);
                Ok(schedule.with_slices(slices.clone()))
            }
            Some((device, index, line, what)) => Err(self.fault(&programs, device, index, line, what)),
        }
    }

    /// Expands drafts to an open schedule. The goal comes from the first device with a search.
    pub fn open(&self, placement: &Placement, slices: &Slices, drafts: &[Draft]) -> Result<OpenSchedule, Error> {
        let program = |(device, draft)| self.program(placement, slices, device as u32, draft);
        let programs = drafts.iter().enumerate().map(program);
        Ok(OpenSchedule {
            name: self.path.name.clone(),
            placement: placement.clone(),
            microbatches: self.request.microbatches,
            slices: slices.clone(),
            programs: programs.collect::<Result<_, _>>()?,
            goal: drafts.iter().find_map(Draft::goal).unwrap_or_default(),
        })
    }

    fn program(&self, placement: &Placement, slices: &Slices, device: u32, draft: &Draft) -> Result<Program, Error> {
        let expand = |word: &Word, floating: Option<Kind>| -> Result<Vec<Op>, Error> {
            let mut programs = Programs::default();
            (0..device).for_each(|_| programs.finish(Vec::new()));
            let mut expansion = Expansion::new(placement, slices, device, self.request.microbatches, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            if floating == Some(Kind::W) {
                expansion.complete_weights();
            }
            match result.and_then(|()| expansion.add_copies()).and_then(|()| expansion.check_complete()) {
                Ok(()) => Ok(programs.ops),
                Err(OpError(what)) => {
                    let (index, line) = (expansion.len(), expansion.line);
                    programs.finish(Vec::new());
                    Err(self.fault(&programs, device, index, line, what))
                }
            }
        };
        Ok(match draft {
            Draft::Word(word) => Program::Fixed(expand(word, None)?),
            Draft::Fill { word, floating, cap } => {
                Program::Fill { ops: expand(word, Some(*floating))?, floating: *floating, cap: *cap }
            }
            Draft::Offload { word, chunks } => Program::Offload { ops: expand(word, None)?, chunks: *chunks },
            Draft::Greedy { priority, cap } => Program::Greedy { priority: priority.clone(), cap: *cap },
            Draft::Search { split, cap, start, .. } => {
                let start = start.as_ref().map(|start| self.program(placement, slices, device, start).map(Box::new));
                Program::Search { split: *split, cap: *cap, start: start.transpose()? }
            }
        })
    }

    /// Returns the error at op number `index` of `device`, written on `line`.
    fn fault(&self, programs: &Programs, device: u32, index: usize, line: u32, what: String) -> Error {
        let fault = Fault { device, index: Some(index), what, grid: grid(&programs.rows(), device, index) };
        let place = if line > 0 { format!("{}:{line}", self.path.file) } else { self.path.file.clone() };
        Error::Invalid(format!("{place}: not a schedule for {}: {fault}", self.numbers()))
    }
}

/// Counters of one stage of the device.
struct ChunkCounters {
    stage: u32,
    direction: u32,
    /// Number of the next F, of the next I or B, and of the next R.
    forward: u32,
    backward: u32,
    recompute: u32,
    /// Numbers of the next S, IF and IB.
    vocabulary: [u32; 3],
    /// Units whose I has run and whose W has not.
    pending: VecDeque<u32>,
    /// Unit of the F taken last.
    last: Option<u32>,
    /// Numbers of the backwards of units on the host.
    offloaded: BTreeSet<u32>,
}

/// Numbers the micro-batches and slices of one device's word.
struct Expansion<'a> {
    /// Ops of earlier devices, then of this one.
    ops: &'a mut Vec<Op>,
    start: usize,
    phases: Vec<Phase>,
    seen: ProgramCheck,
    /// Whether the op taken last opens a pair.
    opened: bool,
    chunks: Vec<ChunkCounters>,
    slices: &'a Slices,
    /// Line of the op taken last.
    line: u32,
    visited: u64,
    visit_limit: u64,
    /// Positions of forwards whose activation may go to the host, and which rule says so.
    offloads: Vec<(usize, Offload)>,
}

impl<'a> Expansion<'a> {
    /// Starts the program of `device`, whose ops are appended to `ops`.
    fn new(
        placement: &Placement,
        slices: &'a Slices,
        device: u32,
        microbatches: u32,
        ops: &'a mut Vec<Op>,
    ) -> Expansion<'a> {
        let n = slices.count();
        let held = placement.held_by(device);
        let (v, p, m) = (held.len() as u64, u64::from(placement.devices()), u64::from(microbatches) * u64::from(n));
        let chunk = |&placement::Chunk { stage, direction }: &placement::Chunk| {
            let first = placement.microbatches_of(direction, microbatches).start * n;
            let (pending, offloaded) = (VecDeque::new(), BTreeSet::new());
            let [forward, backward, recompute] = [first; 3];
            ChunkCounters {
                stage,
                direction,
                forward,
                backward,
                recompute,
                vocabulary: [0; 3],
                pending,
                last: None,
                offloaded,
            }
        };
        Expansion {
            start: ops.len(),
            ops,
            phases: Vec::new(),
            seen: ProgramCheck::new(placement, device, microbatches, n),
            slices,
            chunks: held.iter().map(chunk).collect(),
            opened: false,
            line: 0,
            visited: 0,
            // Ops that `first` drops are visited, too: allow patterns up to 64 times longer than the rest.
            visit_limit: 64 * 3 * v * (m + 4 * p),
            offloads: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.ops.len() - self.start
    }

    /// Takes the next ops of the word, all of one phase.
    fn take_all(&mut self, atoms: &[Atom], context: OpContext<'_>) -> Result<(), OpError> {
        let before = self.ops.len();
        let result = atoms.iter().try_for_each(|atom| {
            let kept = self.take(atom, context.limit)?;
            let covers = |rule: &&Offload| rule.chunks.as_ref().is_none_or(|chunks| chunks.contains(&atom.chunk));
            if let Some(rule) = context.offload.filter(covers).filter(|_| kept && atom.kind == Kind::F) {
                self.offloads.push((self.len() - 1, rule.clone()));
            }
            Ok(())
        });
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
            let remedy = match held {
                1 => format!("write {letter}, or a placement with several stages per device, such as v_shape"),
                _ => format!("write {letter}[0] to {letter}[{}]", held - 1),
            };
            let what = format!("{letter}[{chunk}] names chunk {chunk}, but a device holds {held} here; {remedy}");
            return Err(OpError(what));
        };
        let unit = chunk.count(atom, self.slices)?;
        let op = Op::of_unit(atom.kind, chunk.stage, unit, self.slices.count()).in_direction(chunk.direction);
        let kept = u64::from(op.microbatch()) < limit.saturating_add(u64::from(atom.kind.count(0)));
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

    /// Adds the copies that `offload` asks for, and checks the program again.
    fn add_copies(&mut self) -> Result<(), OpError> {
        if self.offloads.is_empty() {
            return Ok(());
        }
        let program = self.ops.split_off(self.start);
        let offloads = std::mem::take(&mut self.offloads);
        let (ops, moved) = with_copies(&program, &offloads);
        self.phases.iter_mut().for_each(|phase| phase.start = moved[phase.start.min(moved.len() - 1)]);
        self.seen = self.seen.restarted();
        for op in ops {
            let of = |chunk: &ChunkCounters| (chunk.stage, chunk.direction) == (op.stage(), op.direction());
            let chunk = self.chunks.iter().position(of).unwrap_or(0);
            self.seen.add(chunk, op)?;
            self.ops.push(op);
        }
        Ok(())
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
            for unit in std::mem::take(&mut chunk.pending) {
                let op = Op::of_unit(Kind::W, chunk.stage, unit, self.slices.count()).in_direction(chunk.direction);
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

/// Returns `program` with the copies of `offloads`, which are forwards by position, and where each of its ops is then: a RELOAD before the
/// compute op that its rule says, or before that op's pair, and an OFFLOAD after its forward, or after its pair.
fn with_copies(program: &[Op], offloads: &[(usize, Offload)]) -> (Vec<Op>, Vec<usize>) {
    let computes: Vec<usize> = (0..program.len()).filter(|&at| program[at].kind().is_compute()).collect();
    let backward = |op: Op| op.alone().of_kind(Kind::B);
    let backwards: BTreeMap<Op, usize> = (computes.iter().enumerate())
        .filter(|&(_, &at)| program[at].kind().is_backward())
        .map(|(number, &at)| (backward(program[at]), number))
        .collect();
    let opens = |at: usize| at > 0 && program[at - 1].opens_pair();
    let (mut reloads, mut stored) = (vec![Vec::new(); program.len()], vec![None; program.len()]);
    for (at, rule) in offloads {
        let number = computes.partition_point(|compute| compute < at);
        let Some(&back) = backwards.get(&backward(program[*at])) else { continue };
        let Some(reload) = back.checked_sub(rule.ahead as usize) else { continue };
        if reload < number + rule.least.max(1) as usize {
            continue;
        }
        let reload = computes[reload];
        reloads[if opens(reload) { reload - 1 } else { reload }].push((back, program[*at].of_kind(Kind::L)));
        stored[if program[*at].opens_pair() { at + 1 } else { *at }] = Some(program[*at].of_kind(Kind::O));
    }
    let (mut ops, mut moved) = (Vec::with_capacity(program.len() + 2 * offloads.len()), Vec::new());
    let mut offload: Option<Op> = None; // of the op before
    for (at, &op) in program.iter().enumerate() {
        // What comes back does not wait for what goes out.
        reloads[at].sort_unstable();
        let own = |reload: Op| offload.is_some_and(|offload| offload == reload.of_kind(Kind::O));
        let all = || reloads[at].iter().map(|&(_, reload)| reload);
        ops.extend(all().filter(|&reload| !own(reload)));
        ops.extend(offload);
        ops.extend(all().filter(|&reload| own(reload)));
        moved.push(ops.len());
        ops.push(op);
        offload = stored[at];
    }
    ops.extend(offload);
    moved.push(ops.len());
    (ops, moved)
}

impl ChunkCounters {
    /// Returns the unit of the next op. Forwards count upwards; backwards and recomputes count micro-batches upwards and slices
    /// downwards.
    fn count(&mut self, atom: &Atom, slices: &Slices) -> Result<u32, OpError> {
        let named = atom.named.map(|named| named.unit(atom.kind, slices.count())).transpose()?;
        let next = |counter: &mut u32| {
            *counter += 1;
            *counter - 1
        };
        let upwards = |counter: &mut u32| named.unwrap_or(next(counter));
        let downwards = |counter: &mut u32| named.unwrap_or(slices.backward(next(counter)));
        let refused = |what: &str| OpError(format!("{}[{}] {what}", atom.kind.letter(), atom.chunk));
        Ok(match atom.kind {
            Kind::F => *self.last.insert(upwards(&mut self.forward)),
            Kind::B => downwards(&mut self.backward),
            Kind::S | Kind::IF | Kind::IB => upwards(&mut self.vocabulary[atom.kind as usize - Kind::S as usize]),
            Kind::R => downwards(&mut self.recompute),
            Kind::I => {
                let unit = downwards(&mut self.backward);
                self.pending.push_back(unit);
                unit
            }
            Kind::W => match named {
                Some(named) => {
                    self.pending.retain(|&waiting| waiting != named);
                    named
                }
                None => {
                    let oldest = self.pending.pop_front();
                    oldest.ok_or_else(|| refused("has no I of its chunk before it without a W"))?
                }
            },
            Kind::O => {
                let unit = named.or(self.last).ok_or_else(|| refused("has no F of its chunk before it"))?;
                self.offloaded.insert(slices.backward(unit)); // the number of a backward is computed as its unit is
                unit
            }
            Kind::L => {
                let first = named.map(|unit| slices.backward(unit)).or(self.offloaded.first().copied());
                let first = first.ok_or_else(|| refused("has no O of its chunk before it without an L"))?;
                self.offloaded.remove(&first);
                slices.backward(first)
            }
        })
    }
}

impl super::word::Named {
    /// Returns the unit that it names among micro-batches of `slices` slices.
    fn unit(self, kind: Kind, slices: u32) -> Result<u32, OpError> {
        let (letter, i) = (kind.letter(), self.microbatch);
        let slice = match self.slice {
            Some(q) if q < slices => q,
            None if slices == 1 => 0,
            Some(q) => {
                return Err(OpError(format!(
                    "{letter}({i}, {q}) names slice {q}, but micro-batches have {slices} here"
                )));
            }
            None => {
                return Err(OpError(format!(
                    "{letter}({i}) names no slice; write {letter}({i}, q) for slice q of {slices}"
                )));
            }
        };
        let unit = i.checked_mul(slices).and_then(|first| first.checked_add(slice));
        unit.ok_or_else(|| OpError(format!("{letter}({i}) names a micro-batch that is too large")))
    }
}
