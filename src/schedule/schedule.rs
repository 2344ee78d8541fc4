//! A schedule: one fixed order of ops per device.

use crate::activation::{self, Holding, Keep};
pub use crate::fault::{Fault, grid};
use crate::op::{Kind, Op};
use crate::placement::Placement;
pub use crate::program_check::{OpError, ProgramCheck};
use crate::sharding::Sharding;
use crate::slices::Slices;
use fixedbitset::FixedBitSet;
use std::ops::Range;
use std::sync::Arc;

/// How the ops of an overlapped pair run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// As one op: the pair starts when both inputs have arrived, takes as long as both ops, and both outputs leave at its end.
    #[default]
    Atomic,
    /// One after the other, as if they were not a pair.
    Serial,
    /// One after the other, but both outputs leave at the end of the second.
    Runtime,
    /// As `Atomic`, but the pair takes only as long as the longer op.
    Max,
    /// As `Atomic`, but the pair takes as long as the sub-ops of both on a compute and a communication stream
    /// (`pair`).
    Streams,
}

impl Overlap {
    /// All variants.
    pub const ALL: [Overlap; 5] = [Overlap::Atomic, Overlap::Serial, Overlap::Runtime, Overlap::Max, Overlap::Streams];

    /// Whether both ops start only once the inputs of both have arrived.
    pub fn starts_together(self) -> bool {
        matches!(self, Overlap::Atomic | Overlap::Max | Overlap::Streams)
    }

    /// Whether a pair may take less time than its ops one after the other.
    pub fn is_shorter(self) -> bool {
        matches!(self, Overlap::Max | Overlap::Streams)
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Overlap::Atomic => "atomic",
            Overlap::Serial => "serial",
            Overlap::Runtime => "runtime",
            Overlap::Max => "max",
            Overlap::Streams => "streams",
        }
    }
}

/// A named part of a device's program: warm-up, steady, drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Index of its first op in the device's program.
    pub start: usize,
    /// Its name in the schedule; empty after the end of a named part.
    pub name: String,
}

/// The programs of devices 0, 1, 2, .., written one after the other.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The finished programs, then the one being written.
    pub ops: Vec<Op>,
    starts: Vec<usize>,
    phases: Vec<Vec<Phase>>,
}

impl Default for Programs {
    fn default() -> Programs {
        Programs { ops: Vec::new(), starts: vec![0], phases: Vec::new() }
    }
}

impl FromIterator<Vec<Op>> for Programs {
    fn from_iter<T: IntoIterator<Item = Vec<Op>>>(rows: T) -> Programs {
        let mut programs = Programs::default();
        for row in rows {
            programs.ops.extend(row);
            programs.finish(Vec::new());
        }
        programs
    }
}

impl Programs {
    /// Finishes the program being written.
    pub fn finish(&mut self, phases: Vec<Phase>) {
        self.starts.push(self.ops.len());
        self.phases.push(phases);
    }

    /// Returns the finished programs.
    pub fn rows(&self) -> Vec<&[Op]> {
        self.starts.windows(2).map(|pair| &self.ops[pair[0]..pair[1]]).collect()
    }
}

/// One fixed order of ops for each device. Flat: a device's ops are contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The file's stem.
    pub name: String,
    /// Stage to device.
    pub placement: Placement,
    /// m.
    pub microbatches: u32,
    /// Where devices gather parameters and reduce gradients, if they do.
    pub sharding: Option<Arc<Sharding>>,
    ops: Vec<Op>,
    starts: Vec<usize>,
    phases: Vec<Vec<Phase>>,
    pairs: bool,
    /// How micro-batches are cut.
    slices: Slices,
    /// By op: forwards whose unit is recomputed; empty if none is.
    recomputed: FixedBitSet,
    /// Whether any op is a copy.
    copies: bool,
    /// Whether devices share the vocabulary.
    vocabulary: bool,
    /// Number of values of [`Op::plane`].
    planes: usize,
}

impl Schedule {
    /// Creates a schedule from the programs of all devices, unchecked (see [`Schedule::validate`]).
    pub fn new(name: &str, placement: Placement, microbatches: u32, programs: Programs) -> Schedule {
        let Programs { ops, starts, phases } = programs;
        let pairs = ops.iter().any(|op| op.opens_pair());
        let last_slice = ops.iter().filter_map(|op| op.slice()).max();
        let slices = Slices::equal(last_slice.map_or(1, |last| last + 1));
        let copies = ops.iter().any(|op| !op.kind().is_compute());
        let vocabulary = ops.iter().any(|op| op.kind().is_vocabulary());
        let planes = ops.iter().map(|op| op.plane()).max().unwrap_or(0) + 1;
        let name = name.to_string();
        let recomputed = FixedBitSet::new();
        let sharding = None;
        let new = Schedule {
            name,
            placement,
            microbatches,
            sharding,
            ops,
            starts,
            phases,
            pairs,
            slices,
            recomputed,
            copies,
            planes,
            vocabulary,
        };
        new.with_recomputed()
    }

    /// Marks the forwards of units that are recomputed.
    fn with_recomputed(mut self) -> Schedule {
        if self.ops.iter().all(|op| op.kind() != Kind::R) {
            return self;
        }
        let key = |op: &Op| op.of_kind(Kind::R);
        let mut units: Vec<Op> = self.ops.iter().filter(|op| op.kind() == Kind::R).map(key).collect();
        units.sort_unstable();
        let is_recomputed = |op: &Op| op.kind() == Kind::F && units.binary_search(&key(op)).is_ok();
        self.recomputed =
            self.ops.iter().map(is_recomputed).enumerate().filter_map(|(at, is)| is.then_some(at)).collect();
        self
    }

    /// Returns the schedule with micro-batches cut as `slices` says; its ops name as many slices.
    pub fn with_slices(self, slices: Slices) -> Schedule {
        Schedule { slices, ..self }
    }

    /// Returns how micro-batches are cut into slices.
    pub fn slices(&self) -> &Slices {
        &self.slices
    }

    /// Returns the number of units, which are slices of micro-batches: m n.
    pub fn units(&self) -> u32 {
        self.microbatches * self.slices.count()
    }

    /// Whether any op is a copy to or from the host.
    pub fn has_copies(&self) -> bool {
        self.copies
    }

    /// Whether devices share the vocabulary: there are S, IF and IB.
    pub fn shares_vocabulary(&self) -> bool {
        self.vocabulary
    }

    /// Whether the sums over devices in an S need another one (two barriers), so that the last stage's backward waits for the S after its own:
    /// the last stage's device then runs S1 before its first backward.
    pub fn has_two_barriers(&self) -> bool {
        let last = self.placement.device_of_stage(self.placement.stages() - 1, 0);
        let before = self.program(last).iter().take_while(|op| !op.kind().is_backward());
        before.filter(|op| op.kind() == Kind::S).count() > 1
    }

    /// Whether any unit is recomputed.
    pub fn recomputes(&self) -> bool {
        self.recomputed.count_ones(..) > 0
    }

    /// Whether there are slices, or kinds besides F, I, W and B.
    pub fn is_beyond_microbatches(&self) -> bool {
        self.slices.is_cut() || self.planes > 1
    }

    /// Whether it has slices, recomputes or copies: ops that PyTorch's files cannot express. Returns the first such op.
    pub fn beyond_microbatches(&self) -> Option<Op> {
        let found = self.is_beyond_microbatches().then(|| self.ops.iter().copied());
        found?.find(|op| op.slice().is_some() || !op.kind().is_costed())
    }

    /// Returns the schedule with these collectives between its ops.
    pub fn with_sharding(mut self, sharding: Option<Sharding>) -> Schedule {
        self.sharding = sharding.map(Arc::new);
        self
    }

    /// Returns p.
    pub fn devices(&self) -> u32 {
        self.placement.devices()
    }

    /// Returns all ops, device by device.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the range of the ops of `device` in [`Schedule::ops`].
    pub fn range(&self, device: u32) -> Range<usize> {
        self.starts[device as usize]..self.starts[device as usize + 1]
    }

    /// Returns the program of `device`.
    pub fn program(&self, device: u32) -> &[Op] {
        &self.ops[self.range(device)]
    }

    /// Returns the phases of `device`, by start.
    pub fn phases(&self, device: u32) -> &[Phase] {
        &self.phases[device as usize]
    }

    /// Returns the phase of op number `index` of `device`'s program.
    pub fn phase(&self, device: u32, index: usize) -> Option<&str> {
        let phases = self.phases(device);
        let at = phases.partition_point(|phase| phase.start <= index).checked_sub(1)?;
        Some(phases[at].name.as_str()).filter(|name| !name.is_empty())
    }

    /// Returns the number of an op's (stage, direction, kind, slice), which indexes tables: [`Op::slot`] if micro-batches are whole.
    #[inline]
    pub fn class(&self, op: Op) -> usize {
        op.slot() + (op.slice_number() * self.planes + op.plane()) * self.placement.slots()
    }

    /// Returns one op, of micro-batch 0, for every stage, direction, kind and slice.
    pub fn op_classes(&self) -> impl Iterator<Item = Op> {
        let (n, others) = (self.slices.count(), if self.planes > 1 { &Kind::ALL[Kind::COSTED.len()..] } else { &[] });
        let of = move |op: Op| (0..n).map(move |slice| if n > 1 { op.on_slice(slice) } else { op });
        let first = |op: &Op| op.kind() == Kind::F;
        let others = self
            .placement
            .op_kinds()
            .filter(first)
            .flat_map(move |op| others.iter().map(move |&kind| op.of_kind(kind)))
            .filter(|op| op.plane() < self.planes);
        self.placement.op_kinds().chain(others).flat_map(of)
    }

    /// Returns the length of tables that are indexed by [`Schedule::class`].
    pub fn classes(&self) -> usize {
        self.placement.slots() * self.slices.count() as usize * self.planes
    }

    /// Returns the entry of `counts`, which [`Schedule::counts`] returned, for ops like `op`; 0 for kinds that do not occur.
    pub fn count_of(&self, counts: &[u64], op: Op) -> u64 {
        if op.plane() < self.planes { counts[self.class(op)] } else { 0 }
    }

    /// Returns the number of ops of each (stage, direction, kind, slice), by [`Schedule::class`].
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.classes()];
        self.ops.iter().for_each(|op| counts[self.class(*op)] += 1);
        counts
    }

    /// Whether any backward is split into I and W.
    pub fn splits_backward(&self) -> bool {
        self.ops.iter().any(|op| op.kind() == Kind::I)
    }

    /// Whether some backwards are split into I and W and others are not.
    pub fn mixes_backwards(&self) -> bool {
        self.splits_backward() && self.ops.iter().any(|op| op.kind() == Kind::B)
    }

    /// Splits every B into an I and a W.
    pub fn with_split_backwards(self) -> Schedule {
        let halves = |op: &Op| match op.kind() {
            Kind::B => vec![op.of_kind(Kind::I), op.of_kind(Kind::W)],
            _ => vec![*op],
        };
        let row = |device: u32| self.program(device).iter().flat_map(halves).collect();
        let rows: Vec<Vec<Op>> = (0..self.devices()).map(row).collect();
        Schedule::new(&self.name, self.placement.clone(), self.microbatches, rows.into_iter().collect())
            .with_slices(self.slices.clone())
    }

    /// Whether there are overlapped pairs.
    pub fn has_pairs(&self) -> bool {
        self.pairs
    }

    /// Separates overlapped pairs: their ops run one after the other.
    pub fn without_pairs(mut self) -> Schedule {
        if self.pairs {
            self.ops.iter_mut().for_each(|op| *op = op.alone());
            self.pairs = false;
        }
        self
    }

    /// Returns the most that `device` holds at once, as [`crate::activation`] counts; it depends on the order alone.
    pub fn most_held(&self, device: u32, keep: Keep) -> i128 {
        if !self.slices.is_cut() && self.recomputed.is_empty() {
            return activation::peak(self.program(device).iter().map(|op| op.kind()), keep);
        }
        let holding = Holding::new(keep, &self.slices);
        let (mut held, mut peak) = (0, 0);
        for index in self.range(device) {
            let (start, end) = self.change(&holding, index);
            peak = peak.max(held + start);
            held += start + end;
        }
        peak
    }

    /// Whether op number `index` of [`Schedule::ops`] is a forward whose unit is recomputed.
    pub fn is_recomputed(&self, index: usize) -> bool {
        self.recomputed.contains(index)
    }

    /// Returns by how much op number `index` of [`Schedule::ops`] changes what its device holds at its start, and at its end.
    pub fn change(&self, holding: &Holding, index: usize) -> (i128, i128) {
        holding.of(self.ops[index], self.recomputed.contains(index))
    }

    /// Returns what counts are divided by to become activation units: the chunks per device times the length of a sequence.
    pub fn whole(&self) -> u32 {
        self.placement.chunks() * self.slices.total()
    }

    /// Returns the largest number of activations that `device` holds at once, under the cost `keep`.
    pub fn peak_activations(&self, device: u32, keep: Keep) -> f64 {
        activation::units(self.most_held(device, keep), self.whole())
    }

    /// Returns the largest peak of all devices.
    pub fn peak(&self, keep: Keep) -> f64 {
        (0..self.devices()).map(|device| self.peak_activations(device, keep)).fold(0.0, f64::max)
    }

    /// Whether no device ever holds more than `cap` activations.
    pub fn keeps_cap(&self, cap: f64, keep: Keep) -> bool {
        let cap = activation::cap(cap, self.whole());
        (0..self.devices()).all(|device| self.most_held(device, keep) <= cap)
    }

    /// Checks that each device runs every micro-batch of its stages once forward and once backward (B, or I and later W), and each
    /// F before its backward. The task graph checks dependences between devices.
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn validate(&self) -> Result<(), Fault> {
        for device in 0..self.devices() {
            let mut seen = ProgramCheck::new(&self.placement, device, self.microbatches, self.slices.count());
            for (index, &op) in self.program(device).iter().enumerate() {
                let chunk = self.placement.chunk_of(device, op).ok_or_else(|| {
                    let stages: Vec<u32> = self.placement.stages_of(device).collect();
                    OpError(format!("{op} is on a device that holds stages {stages:?}"))
                });
                let added = chunk.and_then(|chunk| seen.add(chunk, op)).and_then(|()| self.check_pair(device, index));
                added.map_err(|OpError(what)| self.fault(device, Some(index), what))?;
            }
            seen.check_complete().map_err(|OpError(what)| self.fault(device, None, what))?;
        }
        Ok(())
    }

    /// Checks that an overlapped pair is one forward and one backward that do not need each other.
    fn check_pair(&self, device: u32, index: usize) -> Result<(), OpError> {
        let program = self.program(device);
        let op = program[index];
        if !op.opens_pair() {
            return Ok(());
        }
        check_pair(op, program.get(index + 1).copied())
    }

    /// Returns a fault of this schedule at op number `index` of `device`.
    pub fn fault(&self, device: u32, index: Option<usize>, what: String) -> Fault {
        Fault { device, index, what, grid: self.around(device, index) }
    }

    /// Draws the ops around op number `index` of `device`, or around the end of its program.
    pub fn around(&self, device: u32, index: Option<usize>) -> String {
        let programs: Vec<&[Op]> = (0..self.devices()).map(|d| self.program(d)).collect();
        grid(&programs, device, index.unwrap_or(self.program(device).len()))
    }
}

/// Checks that `first`, which opens an overlapped pair, and the op after it can be a pair.
pub fn check_pair(first: Op, second: Option<Op>) -> Result<(), OpError> {
    let refuse = |what: String| Err(OpError(what));
    let Some(second) = second else {
        return refuse(format!("{first} opens an overlapped pair, but no op comes after it"));
    };
    let forwards = [first, second].iter().filter(|op| op.kind() == Kind::F).count();
    if forwards != 1 || ![first, second].iter().any(|op| op.kind().is_backward()) {
        return refuse(format!("({first};{second}) is not an overlapped pair, which is a forward and an I or B"));
    }
    if second.opens_pair() {
        return refuse(format!("{second} ends one overlapped pair and opens another"));
    }
    if first.alone().of_kind(Kind::F) == second.of_kind(Kind::F) {
        return refuse(format!(
            "({first};{second}): the backward needs the forward of its own pair; lengthen the warm-up by one"
        ));
    }
    Ok(())
}

/// Returns the ops of a program, with both ops of an overlapped pair together.
pub fn units(program: &[Op]) -> impl Iterator<Item = &[Op]> {
    let mut rest = program;
    std::iter::from_fn(move || {
        let unit = next_unit(rest)?;
        rest = &rest[unit.len()..];
        Some(unit)
    })
}

/// Returns the first op or overlapped pair.
pub fn next_unit(program: &[Op]) -> Option<&[Op]> {
    let length = if program.first()?.opens_pair() { 2 } else { 1 };
    program.get(..length).or(Some(program))
}

/// Returns PyTorch's text for an op or an overlapped pair.
pub fn unit_name(unit: &[Op]) -> String {
    match unit {
        [first, second] => format!("({first};{second})OVERLAP_F_B"),
        _ => unit.iter().map(Op::to_string).collect(),
    }
}
