//! The rules of one device's program: which ops of a stage, micro-batch and slice may run after which.

use crate::op::{Kind, Op};
use crate::placement::{Chunk, Placement};
use std::ops::Range;

/// Why an op cannot run at its place, or which op is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub String);

/// The ops that a device has run: the bookkeeping behind [`Schedule::validate`](crate::schedule::Schedule::validate).
pub struct ProgramCheck {
    /// By chunk: its stage and its micro-batches.
    chunks: Vec<(Chunk, Range<u32>)>,
    microbatches: u32,
    slices: u32,
    /// By (chunk, micro-batch, slice): the kinds that have run, as bits 1 << kind, and [`AWAY`].
    bits: Vec<u16>,
    /// By chunk: number of complete units.
    complete: Vec<u32>,
    /// Number of S, IF and IB that have run.
    vocabulary: [u32; Kind::VOCABULARY.len()],
}

/// Returns the bit of a kind in a set of kinds.
const fn bit(kind: Kind) -> u16 {
    1 << kind as u16
}

/// Set while a unit's activation is on the host.
const AWAY: u16 = 1 << Kind::ALL.len();

/// Kinds that complete a unit on a stage; one of them is enough.
const COMPLETE: u16 = bit(Kind::W) | bit(Kind::B);

/// What a kind needs and excludes, and which bits it sets and clears.
#[derive(Clone, Copy)]
struct KindRule {
    needed: u16,
    checked: u16,
    sets: u16,
    clears: u16,
}

impl KindRule {
    fn of(kind: Kind) -> KindRule {
        let needed = kind.needs().map_or(0, bit);
        let excluded = kind.excludes().iter().fold(0, |set, &kind| set | bit(kind));
        let away = if kind.is_backward() { AWAY } else { 0 };
        let (sets, clears) = match kind {
            Kind::O => (AWAY, 0),
            Kind::L => (0, AWAY),
            _ => (0, 0),
        };
        KindRule { needed, checked: needed | excluded | away, sets: sets | bit(kind), clears }
    }
}

impl ProgramCheck {
    /// Starts with no op run on `device`, for micro-batches of `slices` slices.
    pub fn new(placement: &Placement, device: u32, microbatches: u32, slices: u32) -> ProgramCheck {
        let chunk = |&chunk: &Chunk| (chunk, placement.microbatches_of(chunk.direction, microbatches));
        let chunks: Vec<_> = placement.held_by(device).iter().map(chunk).collect();
        let cells = chunks.len() * microbatches as usize * slices as usize;
        ProgramCheck {
            microbatches,
            slices,
            bits: vec![0; cells],
            complete: vec![0; chunks.len()],
            vocabulary: [0; 3],
            chunks,
        }
    }

    /// Returns the check of the same device before its first op.
    pub fn restarted(&self) -> ProgramCheck {
        let (bits, complete) = (vec![0; self.bits.len()], vec![0; self.complete.len()]);
        ProgramCheck { chunks: self.chunks.clone(), bits, complete, vocabulary: [0; 3], ..*self }
    }

    fn cell(&self, chunk: usize, op: Op) -> usize {
        chunk * self.microbatches as usize * self.slices as usize + op.unit(self.slices)
    }

    /// Records that `op` of the device's chunk number `chunk` runs.
    #[inline]
    pub fn add(&mut self, chunk: usize, op: Op) -> Result<(), OpError> {
        if op.kind().is_vocabulary() {
            return self.add_vocabulary(op);
        }
        if !self.chunks[chunk].1.contains(&op.microbatch()) || op.slice().is_some() != (self.slices > 1) {
            return Err(OpError(self.stranger(chunk, op)));
        }
        if self.slices > 1 {
            self.check_slices(chunk, op)?;
        }
        let (cell, rule) = (self.cell(chunk, op), KindRule::of(op.kind()));
        let bits = &mut self.bits[cell];
        if *bits & rule.checked != rule.needed {
            return Err(OpError(refusal(op, *bits)));
        }
        *bits = *bits & !rule.clears | rule.sets;
        self.complete[chunk] += u32::from(bit(op.kind()) & COMPLETE != 0);
        Ok(())
    }

    /// Records an op on the device's share of the vocabulary. Ops of the same kind run in the order of micro-batches. An S after the last
    /// micro-batch's does what is left of that.
    fn add_vocabulary(&mut self, op: Op) -> Result<(), OpError> {
        let number = op.kind() as usize - Kind::S as usize;
        let (next, most) = (self.vocabulary[number], op.kind().count(self.microbatches));
        if op.microbatch() != next || next >= most || op.slice().is_some() {
            let name = op.kind().name();
            return Err(OpError(match next {
                next if next >= most => format!("{op} is one too many: {name} runs {most} times"),
                next => format!("{op} runs where {name}{next} is next: every {name} runs once, in order"),
            }));
        }
        self.vocabulary[number] += 1;
        Ok(())
    }

    /// Checks that the slice that must come first has run.
    fn check_slices(&self, chunk: usize, op: Op) -> Result<(), OpError> {
        if op.slice_number() >= self.slices as usize {
            return Err(OpError(format!("{op} names slice {}, but there are {}", op.slice_number(), self.slices)));
        }
        let Some(before) = op.earlier_slice(self.slices) else { return Ok(()) };
        let (has, own) = (self.bits[self.cell(chunk, before)], self.bits[self.cell(chunk, op)]);
        if op.kind() == Kind::F && has & bit(Kind::F) == 0 {
            return Err(OpError(format!("{op} runs before {before}, whose keys and values it attends to")));
        }
        let (can, done) = (own & bit(Kind::F) != 0, has & (bit(Kind::I) | bit(Kind::B)) != 0);
        if op.kind().is_backward() && can && !done {
            let what = "which still adds to the gradient of its keys and values";
            return Err(OpError(format!("{op} runs before {before}, {what}")));
        }
        Ok(())
    }

    /// Returns why `op` is not for a micro-batch of the chunk.
    #[cold]
    fn stranger(&self, chunk: usize, op: Op) -> String {
        let ((_, own), m) = (&self.chunks[chunk], self.microbatches);
        if op.microbatch() >= m {
            return format!("{op} names micro-batch {}, but m = {m}", op.microbatch());
        }
        if !own.contains(&op.microbatch()) {
            let (first, last) = (own.start, own.end - 1);
            return format!(
                "{op} belongs to the other direction: this stage runs micro-batches {first} to {last} here"
            );
        }
        match op.slice() {
            Some(_) => format!("{op} names a slice, but micro-batches are whole here"),
            None => format!("{op} names no slice, but micro-batches have {} slices", self.slices),
        }
    }

    /// Checks that nothing is missing at the end of the program.
    pub fn check_complete(&self) -> Result<(), OpError> {
        let m = self.microbatches;
        let missing = self.vocabulary.iter().zip([m + 1, m, m]).position(|(&run, all)| run < all);
        if let Some(number) = missing.filter(|_| self.vocabulary != [0; 3]) {
            let (name, run) = (Kind::VOCABULARY[number].name(), self.vocabulary[number]);
            return Err(OpError(format!(
                "{name}{run} is missing: a device that shares the vocabulary runs all S, IF and IB"
            )));
        }
        let n = self.slices as usize;
        let short =
            self.chunks.iter().zip(&self.complete).position(|((_, own), &done)| (done as usize) < own.len() * n);
        let Some(chunk) = short else { return Ok(()) };
        let (Chunk { stage, direction }, own) = &self.chunks[chunk];
        let op = |unit: u32| Op::of_unit(Kind::F, *stage, unit, self.slices).in_direction(*direction);
        let mut units = own.start * self.slices..own.end * self.slices;
        let partial = units.find(|&unit| self.bits[self.cell(chunk, op(unit))] & COMPLETE == 0);
        let Some(f) = partial.map(op) else { return Ok(()) };
        let bits = self.bits[self.cell(chunk, f)];
        Err(OpError(if bits & bit(Kind::F) == 0 && n > 1 {
            format!("{f} is missing: every one of the {n} slices of a micro-batch needs its forward")
        } else if bits & bit(Kind::F) == 0 {
            format!("{f} is missing")
        } else if bits & bit(Kind::I) == 0 {
            format!("{f} has no backward: neither {} nor {}", f.of_kind(Kind::B), f.of_kind(Kind::I))
        } else {
            format!("{} is missing: {} has no backward for its weights", f.of_kind(Kind::W), f.of_kind(Kind::I))
        }))
    }
}

/// Returns why `op` cannot run after the kinds in `bits` of its stage, micro-batch and slice.
#[cold]
fn refusal(op: Op, bits: u16) -> String {
    let has = |kind: Kind| bits & bit(kind) != 0;
    let backward = || [Kind::I, Kind::B].into_iter().find(|&kind| has(kind)).map(|kind| op.of_kind(kind));
    let [offload, reload] = [Kind::O, Kind::L].map(|kind| op.of_kind(kind));
    match (op.kind(), backward()) {
        (kind, _) if has(kind) => format!("{op} runs twice"),
        (Kind::I | Kind::B | Kind::R | Kind::O, _) if !has(Kind::F) => {
            format!("{op} runs before {}", op.of_kind(Kind::F))
        }
        (Kind::I, Some(other)) => format!("{op} runs after {other}, which includes it"),
        (Kind::B, Some(other)) => format!("{op} runs after {other}, which is half of it"),
        (Kind::I | Kind::B, None) => {
            format!("{op} needs an activation that {offload} moved to the host; no {reload} runs before it")
        }
        (Kind::R, Some(backward)) => format!("{op} runs after {backward}, which needs it"),
        (Kind::O, Some(backward)) => format!("{op} runs after {backward}, which has used the activation"),
        (Kind::R | Kind::O, None) => {
            format!("{} and {offload}: an activation is either recomputed or offloaded", op.of_kind(Kind::R))
        }
        (Kind::L, _) => format!("{op} has no {offload} before it"),
        _ => format!("{op} has no {} before it", op.of_kind(Kind::I)),
    }
}
