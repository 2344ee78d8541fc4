//! One op of a pipeline schedule: kind, stage and micro-batch. The text form is PyTorch's: `0F3`.

use std::fmt;
use std::str::FromStr;

/// What an op computes. The letters are PyTorch's. The zero-bubble papers write "B" for `I` and "BW" for `B`; elsewhere `B` is the
/// plain backward.
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
}

impl Kind {
    /// All kinds, in the order in which they index tables.
    pub const ALL: [Kind; 4] = [Kind::F, Kind::I, Kind::W, Kind::B];

    /// Returns the kind's letter.
    pub fn letter(self) -> char {
        match self {
            Kind::F => 'F',
            Kind::I => 'I',
            Kind::W => 'W',
            Kind::B => 'B',
        }
    }

    /// Returns the kind of a letter, or `None` for any other character.
    pub fn from_letter(letter: char) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.letter() == letter)
    }

    /// Whether the op computes the gradient that the previous stage waits for.
    pub fn is_backward(self) -> bool {
        matches!(self, Kind::I | Kind::B)
    }

    /// Returns the kind that must run first for the same stage and micro-batch: a backward needs its F, a W its I.
    pub fn needs(self) -> Option<Kind> {
        match self {
            Kind::F => None,
            Kind::I | Kind::B => Some(Kind::F),
            Kind::W => Some(Kind::I),
        }
    }

    /// Returns the kinds that each stage runs once per micro-batch, in order: F and B, or F, I and W if backwards are `split`.
    pub fn of_microbatch(split: bool) -> &'static [Kind] {
        if split { &[Kind::F, Kind::I, Kind::W] } else { &[Kind::F, Kind::B] }
    }

    /// Returns the number of cells of an op in a grid in which F, I and W take one each.
    pub fn width(self) -> u32 {
        if self == Kind::B { 2 } else { 1 }
    }

    /// Returns by how many chunk activations an op changes what its device holds: whole ones, and those of which only the share
    /// that W needs is left. F takes one at its start; the other kinds release at their end.
    pub fn change(self) -> (i64, i64) {
        match self {
            Kind::F => (1, 0),
            Kind::I => (-1, 1),
            Kind::W => (0, -1),
            Kind::B => (-1, 0),
        }
    }
}

/// Returns PyTorch's letter for what crosses a stage boundary: F for the output of a forward, B for a gradient.
pub fn boundary_letter(gradient: bool) -> char {
    if gradient { 'B' } else { 'F' }
}

/// One op. Eight bytes: a schedule of 50 million ops fits in 400 MB.
///
/// In a bidirectional placement two devices hold each stage, one for the micro-batches of each direction; an op stores its
/// direction, so that the op alone determines its device. An op may open an overlapped pair with the next op of its device's
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    microbatch: u32,
    /// From the top: 1 bit opens a pair, 28 bits stage, 1 bit direction, 2 bits kind.
    bits: u32,
}

/// Set in an op that opens an overlapped pair.
const PAIR: u32 = 1 << 31;
/// Set in an op of direction 1.
const DIRECTION: u32 = 1 << 2;

impl Op {
    /// Largest stage number.
    pub const MAX_STAGE: u32 = (1 << 28) - 1;

    /// Number of values of [`Op::slot`] per stage: two directions of four kinds.
    pub const SLOTS_PER_STAGE: usize = 8;

    /// Creates the op of `kind` on `stage` for `microbatch`, in direction 0.
    ///
    /// # Panics
    /// If `stage` exceeds [`Op::MAX_STAGE`].
    pub fn new(kind: Kind, stage: u32, microbatch: u32) -> Op {
        assert!(stage <= Op::MAX_STAGE, "stage {stage} exceeds {}", Op::MAX_STAGE);
        Op { microbatch, bits: stage << 3 | kind as u32 }
    }

    /// Returns the op in `direction` 0 or 1.
    pub fn in_direction(self, direction: u32) -> Op {
        let bits = if direction == 0 { self.bits & !DIRECTION } else { self.bits | DIRECTION };
        Op { bits, ..self }
    }

    /// Returns the op of `kind` of the same stage, direction and micro-batch; it opens no pair.
    pub fn of_kind(self, kind: Kind) -> Op {
        Op { bits: self.bits & !PAIR & !3 | kind as u32, ..self }
    }

    /// Returns the op on `stage`, which is at most [`Op::MAX_STAGE`].
    pub fn on_stage(self, stage: u32) -> Op {
        Op::new(self.kind(), stage, self.microbatch).in_direction(self.direction())
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

    pub fn kind(self) -> Kind {
        Kind::ALL[(self.bits & 3) as usize]
    }

    /// Returns the stage, 0 to S - 1 in model order.
    pub fn stage(self) -> u32 {
        (self.bits & !PAIR) >> 3
    }

    /// Returns the direction of its micro-batch: 0, or 1 for the opposite direction of a bidirectional placement.
    pub fn direction(self) -> u32 {
        (self.bits & DIRECTION) >> 2
    }

    /// Returns the number of its (stage, direction, kind), which indexes tables.
    #[inline]
    pub fn slot(self) -> usize {
        (self.bits & !PAIR) as usize
    }

    pub fn microbatch(self) -> u32 {
        self.microbatch
    }

    /// Returns the stage whose output this op waits for, or `None` if everything it needs is made by its own stage. F waits for the
    /// F of the previous stage, I and B for the backward of the next stage, W for its own I. This and [`Kind::needs`] are the only
    /// definition of the dependences of a pipeline.
    pub fn upstream(self, stages: u32) -> Option<u32> {
        match self.kind() {
            Kind::F => self.stage().checked_sub(1),
            Kind::I | Kind::B => Some(self.stage() + 1).filter(|&stage| stage < stages),
            Kind::W => None,
        }
    }

    /// Returns the stage that waits for this op's output: the inverse of [`Op::upstream`]. `None` for the last stage's F, the first
    /// stage's backward and every W.
    pub fn downstream(self, stages: u32) -> Option<u32> {
        match self.kind() {
            Kind::F => Some(self.stage() + 1).filter(|&stage| stage < stages),
            Kind::I | Kind::B => self.stage().checked_sub(1),
            Kind::W => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage(), self.kind().letter(), self.microbatch)
    }
}

/// A text that is not an op.
#[derive(Debug, thiserror::Error)]
#[error("expected an op such as 0F3 (stage, one of F I W B, micro-batch), found '{0}'")]
pub struct ParseOpError(String);

impl FromStr for Op {
    type Err = ParseOpError;

    fn from_str(text: &str) -> Result<Op, ParseOpError> {
        let error = || ParseOpError(text.chars().take(40).collect());
        let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
        let (stage, rest) = text.split_at(at);
        let kind = rest.chars().next().and_then(Kind::from_letter).ok_or_else(error)?;
        let microbatch = &rest[1..];
        if !microbatch.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let stage: u32 = stage.parse().map_err(|_| error())?;
        if stage > Op::MAX_STAGE {
            return Err(error());
        }
        Ok(Op::new(kind, stage, microbatch.parse().map_err(|_| error())?))
    }
}
