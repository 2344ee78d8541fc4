//! One op of a pipeline schedule: kind, stage, micro-batch and slice. The text form is PyTorch's, `0F3`, with slices `0F3.1`.

use std::fmt;
use std::str::FromStr;

/// What an op does. The letters are PyTorch's. The zero-bubble papers write "B" for `I` and "BW" for `B`; elsewhere `B` is the
/// plain backward. What is known about a kind is a row of `FACTS`; add a kind there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Forward.
    F,
    /// Backward for the input (dgrad), which the previous stage waits for.
    I,
    /// Backward for the weights (wgrad), which only the optimizer waits for.
    W,
    /// Full backward: `I` and `W` as one op.
    B,
    /// Recompute: the forward again, from the stage's input, before the backward.
    R,
    /// Offload: the copy of an activation to the host.
    O,
    /// Reload: the copy of an offloaded activation back to the device.
    L,
    /// A device's part of the vocabulary's head, if all devices share it: forward of its micro-batch, and the rest of the one before.
    S,
    /// A device's part of the embedding, if all devices share it.
    IF,
    /// The gradient of a device's part of the embedding.
    IB,
}

/// Where ops of a kind run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// On the device, one at a time.
    Compute,
    /// On the device's queue of copies to the host, next to compute.
    ToHost,
    /// On the device's queue of copies from the host, next to compute.
    FromHost,
}

/// What a kind belongs to: which schedules have it, and who can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindFamily {
    /// Forwards and backwards, which every schedule has.
    Pass,
    Recompute,
    Offload,
    /// Passes of a vocabulary that all devices share.
    Vocabulary,
}

/// How much of a chunk's activation an op takes (at its start) or returns (at its end): whole activations, activations reduced to
/// the share that W needs, and activations reduced to the stage's input.
pub type Change = (i64, i64, i64);

/// What is known about a kind.
struct KindFacts {
    kind: Kind,
    /// In schedule files and narrow pictures.
    letter: char,
    /// In the text of an op.
    name: &'static str,
    /// What it does, in a few words.
    title: &'static str,
    family: KindFamily,
    engine: Engine,
    /// Kinds of the same unit that must run first.
    needs: &'static [Kind],
    /// Kinds of the same unit that must not have run.
    excludes: &'static [Kind],
    change: Change,
}

/// All kinds, in the order in which they index tables.
const FACTS: [KindFacts; Kind::ALL.len()] = {
    use Engine::{Compute, FromHost, ToHost};
    use Kind::{B, F, I, IB, IF, L, O, R, S, W};
    use KindFamily::{Offload, Pass, Recompute, Vocabulary};
    const fn row(
        kind: Kind,
        letter: char,
        [name, title]: [&'static str; 2],
        family: KindFamily,
        engine: Engine,
        [needs, excludes]: [&'static [Kind]; 2],
        change: Change,
    ) -> KindFacts {
        KindFacts { kind, letter, name, title, family, engine, needs, excludes, change }
    }
    [
        row(F, 'F', ["F", "forward"], Pass, Compute, [&[], &[F]], (1, 0, 0)),
        row(I, 'I', ["I", "backward for the input"], Pass, Compute, [&[F], &[I, B]], (-1, 1, 0)),
        row(W, 'W', ["W", "backward for the weights"], Pass, Compute, [&[I], &[W]], (0, -1, 0)),
        row(B, 'B', ["B", "full backward"], Pass, Compute, [&[F], &[I, B]], (-1, 0, 0)),
        row(R, 'R', ["R", "recompute"], Recompute, Compute, [&[F], &[R, I, B, O]], (1, 0, -1)),
        row(O, 'O', ["OFFLOAD", "offload"], Offload, ToHost, [&[F], &[O, I, B, R]], (-1, 0, 0)),
        row(L, 'L', ["RELOAD", "reload"], Offload, FromHost, [&[O], &[L, I, B]], (1, 0, 0)),
        row(S, 'S', ["S", "vocabulary head"], Vocabulary, Compute, [&[], &[S]], (0, 0, 0)),
        row(IF, 'E', ["IF", "embedding (IF)"], Vocabulary, Compute, [&[], &[IF]], (0, 0, 0)),
        row(IB, 'G', ["IB", "embedding's gradient (IB)"], Vocabulary, Compute, [&[], &[IB]], (0, 0, 0)),
    ]
};

impl Kind {
    /// All kinds, in the order in which they index tables.
    pub const ALL: [Kind; 10] =
        [Kind::F, Kind::I, Kind::W, Kind::B, Kind::R, Kind::O, Kind::L, Kind::S, Kind::IF, Kind::IB];

    /// The kinds that every device runs for its share of the vocabulary.
    pub const VOCABULARY: [Kind; 3] = [Kind::S, Kind::IF, Kind::IB];

    /// The kinds that costs are given or measured for; the costs of others follow from them.
    pub const COSTED: [Kind; 4] = [Kind::F, Kind::I, Kind::W, Kind::B];

    const fn facts(self) -> &'static KindFacts {
        &FACTS[self as usize]
    }

    /// Returns the kind's letter.
    pub fn letter(self) -> char {
        self.facts().letter
    }

    /// Returns the kind's name in the text of an op: its letter, or what PyTorch would call a copy.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns what it does, as legends say it after its letter.
    pub fn title(self) -> &'static str {
        self.facts().title
    }

    /// Returns the kind of a letter, or `None` for any other character.
    pub fn from_letter(letter: char) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.letter() == letter)
    }

    /// Returns the kind of a name in the text of an op.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns where its ops run.
    pub fn engine(self) -> Engine {
        self.facts().engine
    }

    /// Whether its ops keep the device busy; the others are copies, which run next to them.
    #[inline]
    pub fn is_compute(self) -> bool {
        self.facts().engine == Engine::Compute
    }

    /// Whether it is about a device's share of the vocabulary.
    #[inline]
    pub fn is_vocabulary(self) -> bool {
        OF_VOCABULARY >> self as u32 & 1 == 1
    }

    /// Returns for how many of `microbatches` micro-batches a stage runs it: an S after the last does what is left of that.
    #[inline]
    pub fn count(self, microbatches: u32) -> u32 {
        microbatches.saturating_add(u32::from(self == Kind::S))
    }

    /// Whether devices can run it: all kinds but passes of a shared vocabulary.
    pub fn is_executed(self) -> bool {
        !matches!(self.facts().family, KindFamily::Vocabulary)
    }

    /// Whether costs are given or measured for it.
    pub fn is_costed(self) -> bool {
        self.facts().family == KindFamily::Pass
    }

    /// Whether the op computes the gradient that the previous stage waits for.
    pub fn is_backward(self) -> bool {
        matches!(self, Kind::I | Kind::B)
    }

    /// Returns the kind that must run first for the same stage, micro-batch and slice: a backward needs its F, a W its I.
    pub fn needs(self) -> Option<Kind> {
        self.facts().needs.first().copied()
    }

    /// Returns the kinds of the same stage, micro-batch and slice that must not run before it.
    pub fn excludes(self) -> &'static [Kind] {
        self.facts().excludes
    }

    /// Returns the kinds that each stage runs once per micro-batch, in order: F and B, or F, I and W if backwards are `split`.
    pub fn of_microbatch(split: bool) -> &'static [Kind] {
        if split { &[Kind::F, Kind::I, Kind::W] } else { &[Kind::F, Kind::B] }
    }

    /// Returns the number of cells of an op in a grid in which F, I and W take one each.
    pub fn width(self) -> u32 {
        if self == Kind::B { 2 } else { 1 }
    }

    /// Returns by how many chunk activations an op changes what its device holds. What it takes, it takes at its start; what it
    /// returns, it returns at its end. The F of a unit that is recomputed takes only the stage's input.
    pub fn change(self) -> Change {
        self.facts().change
    }

    /// Whether its ops take memory, at their start; the others return it, at their end.
    #[inline]
    pub fn takes(self) -> bool {
        self.facts().change.0 > 0
    }
}

/// A bit per kind: whether it is of the vocabulary.
const OF_VOCABULARY: u32 = {
    let (mut bits, mut kind) = (0, 0);
    while kind < FACTS.len() {
        bits |= (matches!(FACTS[kind].family, KindFamily::Vocabulary) as u32) << kind;
        kind += 1;
    }
    bits
};

const _: () = {
    let mut kind = 0;
    while kind < FACTS.len() {
        assert!(FACTS[kind].kind as usize == kind && Kind::ALL[kind] as usize == kind);
        kind += 1;
    }
};

/// Returns PyTorch's letter for what crosses a stage boundary: F for the output of a forward, B for a gradient.
pub fn boundary_letter(gradient: bool) -> char {
    if gradient { 'B' } else { 'F' }
}

/// One op. Eight bytes: a schedule of 50 million ops fits in 400 MB.
///
/// In a bidirectional placement two devices hold each stage, one for the micro-batches of each direction; an op stores its
/// direction, so that the op alone determines its device. An op may open an overlapped pair with the next op of its device's
/// program. If micro-batches are cut into slices of their sequences, an op runs for one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    microbatch: u32,
    /// From the top: 1 bit opens a pair, 6 bits slice (0: the whole micro-batch, otherwise 1 + slice), 2 bits plane of the kind, 20 bits
    /// stage, 1 bit direction, 2 bits kind within its plane. F, I, W and B are plane 0, so that tables by slot stay small.
    bits: u32,
}

/// Set in an op that opens an overlapped pair.
const PAIR: u32 = 1 << 31;
/// Lowest bit of the slice.
const SLICE: u32 = 1 << 25;
/// Lowest bit of the kind's plane.
const PLANE: u32 = 1 << 23;
/// Lowest bit of the stage.
const STAGE: u32 = 1 << 3;
/// Set in an op of direction 1.
const DIRECTION: u32 = 1 << 2;
/// The bits of the kind.
const KIND: u32 = (3 * PLANE) | 3;

/// Returns the bits of a kind.
const fn bits_of(kind: Kind) -> u32 {
    (kind as u32 / 4 * PLANE) | (kind as u32 % 4)
}

impl Op {
    /// Largest stage number.
    pub const MAX_STAGE: u32 = (PLANE / STAGE) - 1;

    /// Largest number of slices of a micro-batch.
    pub const MAX_SLICES: u32 = 63;

    /// Number of values of [`Op::slot`] per stage: two directions of four kinds.
    pub const SLOTS_PER_STAGE: usize = STAGE as usize;

    /// Creates the op of `kind` on `stage` for the whole of `microbatch`, in direction 0.
    ///
    /// # Panics
    /// If `stage` exceeds [`Op::MAX_STAGE`].
    pub fn new(kind: Kind, stage: u32, microbatch: u32) -> Op {
        assert!(stage <= Op::MAX_STAGE, "stage {stage} exceeds {}", Op::MAX_STAGE);
        Op { microbatch, bits: (stage * STAGE) | bits_of(kind) }
    }

    /// Creates the op for unit number `unit` of micro-batches of `slices` slices: the whole micro-batch `unit` if `slices` is 1, otherwise
    /// slice `unit % slices` of micro-batch `unit / slices`.
    #[inline]
    pub fn of_unit(kind: Kind, stage: u32, unit: u32, slices: u32) -> Op {
        match slices {
            1 => Op::new(kind, stage, unit),
            _ => Op::new(kind, stage, unit / slices).on_slice(unit % slices),
        }
    }

    /// Returns the op for one slice of its micro-batch.
    ///
    /// # Panics
    /// If `slice` is not below [`Op::MAX_SLICES`].
    pub fn on_slice(self, slice: u32) -> Op {
        assert!(slice < Op::MAX_SLICES, "slice {slice} is not below {}", Op::MAX_SLICES);
        Op { bits: (self.bits & !(63 * SLICE)) | ((slice + 1) * SLICE), ..self }
    }

    /// Returns the op in `direction` 0 or 1.
    pub fn in_direction(self, direction: u32) -> Op {
        let bits = if direction == 0 { self.bits & !DIRECTION } else { self.bits | DIRECTION };
        Op { bits, ..self }
    }

    /// Returns the op of `kind` of the same stage, direction, micro-batch and slice; it opens no pair.
    pub fn of_kind(self, kind: Kind) -> Op {
        Op { bits: self.bits & !PAIR & !KIND | bits_of(kind), ..self }
    }

    /// Returns the op on `stage`, which is at most [`Op::MAX_STAGE`]; it opens no pair.
    pub fn on_stage(self, stage: u32) -> Op {
        let bits = Op::new(self.kind(), stage, 0).bits;
        Op { bits: bits | (self.bits & (DIRECTION | (63 * SLICE))), ..self }
    }

    /// Returns the op as the first of an overlapped pair; the next op of the device's program is the second.
    pub fn opening_pair(self) -> Op {
        Op { bits: self.bits | PAIR, ..self }
    }

    /// Returns the op without opening a pair.
    pub fn alone(self) -> Op {
        Op { bits: self.bits & !PAIR, ..self }
    }

    /// Whether it opens an overlapped pair with the next op of its device's program.
    #[inline]
    pub fn opens_pair(self) -> bool {
        self.bits & PAIR != 0
    }

    /// Returns what it computes or copies.
    #[inline]
    pub fn kind(self) -> Kind {
        // Kinds without a row do not exist: every op is made of one.
        let number = ((self.bits / PLANE) & 3) * 4 + (self.bits & 3);
        Kind::ALL[(number as usize).min(Kind::ALL.len() - 1)]
    }

    /// Returns the stage, 0 to S - 1 in model order.
    pub fn stage(self) -> u32 {
        (self.bits & (PLANE - 1)) / STAGE
    }

    /// Returns the direction of its micro-batch: 0, or 1 for the opposite direction of a bidirectional placement.
    pub fn direction(self) -> u32 {
        u32::from(self.bits & DIRECTION != 0)
    }

    /// Returns the number of its (stage, direction, kind) if its kind is one of [`Kind::COSTED`], which indexes tables. Other kinds have
    /// the number of one of these; [`Schedule::class`](crate::schedule::Schedule::class) tells all apart.
    #[inline]
    pub fn slot(self) -> usize {
        (self.bits & (PLANE - 1)) as usize
    }

    /// Returns which four kinds its kind is among: 0 for [`Kind::COSTED`].
    #[inline]
    pub fn plane(self) -> usize {
        ((self.bits / PLANE) & 3) as usize
    }

    /// Returns the number of its micro-batch, from 0.
    pub fn microbatch(self) -> u32 {
        self.microbatch
    }

    /// Returns the slice of its micro-batch; `None` for the whole.
    pub fn slice(self) -> Option<u32> {
        ((self.bits & !PAIR) / SLICE).checked_sub(1)
    }

    /// Returns the slice of its micro-batch; 0 for the whole.
    #[inline]
    pub fn slice_number(self) -> usize {
        ((self.bits & !PAIR) / SLICE).saturating_sub(1) as usize
    }

    /// Returns its number among the units of micro-batches of `slices` slices.
    #[inline]
    pub fn unit(self, slices: u32) -> usize {
        self.microbatch as usize * slices as usize + self.slice_number()
    }

    /// Names what the op uses beyond forwards and backwards of whole micro-batches; empty if nothing.
    pub fn feature(self) -> &'static str {
        match self.kind().facts().family {
            KindFamily::Pass if self.slice().is_none() => "",
            KindFamily::Pass => "slices",
            KindFamily::Recompute => "recomputes",
            KindFamily::Offload => "offloads",
            KindFamily::Vocabulary => "passes of a shared vocabulary",
        }
    }

    /// Returns the stage whose output this op waits for, or `None` if everything it needs is made by its own stage. F waits for the
    /// F of the previous stage, I and B for the backward of the next stage; all for the same slice. This, [`Op::earlier_slice`] and
    /// [`Kind::needs`] are the only definition of the dependences of a pipeline. (An offloaded activation is needed back, too:
    /// `ProgramCheck`.)
    pub fn upstream(self, stages: u32) -> Option<u32> {
        match self.kind() {
            Kind::F => self.stage().checked_sub(1),
            kind if kind.is_backward() => Some(self.stage() + 1).filter(|&stage| stage < stages),
            _ => None,
        }
    }

    /// Returns the stage that waits for this op's output: the inverse of [`Op::upstream`]. `None` for the last stage's F, the first
    /// stage's backward and every other kind.
    pub fn downstream(self, stages: u32) -> Option<u32> {
        match self.kind() {
            Kind::F => Some(self.stage() + 1).filter(|&stage| stage < stages),
            kind if kind.is_backward() => self.stage().checked_sub(1),
            _ => None,
        }
    }

    /// Returns the op of the same stage that must run first for another of the `slices` slices: F attends to the keys and values of
    /// slice q - 1; the backward of slice q + 1 adds to the gradients of its keys and values.
    pub fn earlier_slice(self, slices: u32) -> Option<Op> {
        let slice = self.slice()?;
        match self.kind() {
            Kind::F => slice.checked_sub(1).map(|before| self.on_slice(before)),
            kind if kind.is_backward() => (slice + 1 < slices).then(|| self.on_slice(slice + 1)),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage(), self.kind().name(), self.microbatch)?;
        self.slice().map_or(Ok(()), |slice| write!(f, ".{slice}"))
    }
}

/// A text that is not an op.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected an op such as 0F3 (stage, one of F I W B R OFFLOAD RELOAD S IF IB, micro-batch; 0F3.1 with slices), found '{0}'"
)]
pub struct ParseOpError(String);

impl FromStr for Op {
    type Err = ParseOpError;

    fn from_str(text: &str) -> Result<Op, ParseOpError> {
        let read = || {
            let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
            let (stage, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
            let (kind, unit) = rest.split_at(rest.find(|c: char| c.is_ascii_digit())?);
            let (microbatch, slice) = unit.split_once('.').map_or((unit, None), |(i, q)| (i, Some(q)));
            let stage = number(stage).filter(|&stage: &u32| stage <= Op::MAX_STAGE)?;
            let op = Op::new(Kind::from_name(kind)?, stage, number(microbatch)?);
            let Some(slice) = slice else { return Some(op) };
            number(slice).filter(|&slice| slice < Op::MAX_SLICES).map(|slice| op.on_slice(slice))
        };
        read().ok_or_else(|| ParseOpError(text.chars().take(40).collect()))
    }
}
