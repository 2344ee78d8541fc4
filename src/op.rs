//! One op of a pipeline schedule: kind, stage, micro-batch. Printed and parsed as PyTorch does: `0F3`.

use std::fmt;
use std::str::FromStr;

/// What an op computes. The papers' letters differ: PyTorch's and our `I` is the zero-bubble papers' "B", our `B` is their
/// "BW" and everybody else's plain "backward".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Forward.
    F,
    /// Backward for the input: what the previous stage waits for.
    I,
    /// Backward for the weights: nobody waits for it but the optimizer.
    W,
    /// Full backward: `I` then `W` as one op; what waits for it waits for its end.
    B,
}

impl Kind {
    /// Every kind, in the order in which they index tables.
    pub const ALL: [Kind; 4] = [Kind::F, Kind::I, Kind::W, Kind::B];

    /// The kind's letter.
    pub fn letter(self) -> char {
        match self {
            Kind::F => 'F',
            Kind::I => 'I',
            Kind::W => 'W',
            Kind::B => 'B',
        }
    }

    /// The kind of a letter, `None` for any other character.
    pub fn from_letter(letter: char) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.letter() == letter)
    }

    /// Whether the op yields the gradient that the stage before waits for.
    pub fn is_backward(self) -> bool {
        matches!(self, Kind::I | Kind::B)
    }

    /// The kind whose op of the same stage and micro-batch comes before: a backward needs its F, a W its I.
    pub fn needs(self) -> Option<Kind> {
        match self {
            Kind::F => None,
            Kind::I | Kind::B => Some(Kind::F),
            Kind::W => Some(Kind::I),
        }
    }

    /// What each stage runs once for each micro-batch, in order: F and B, or F, I and W where backwards are `split`.
    pub fn of_microbatch(split: bool) -> &'static [Kind] {
        if split { &[Kind::F, Kind::I, Kind::W] } else { &[Kind::F, Kind::B] }
    }

    /// How many cells an op takes in a grid of which F, I and W take one each.
    pub fn width(self) -> u32 {
        if self == Kind::B { 2 } else { 1 }
    }

    /// What an op changes in what its device holds: how many whole activations of a chunk, and of how many only the share
    /// that I leaves for W. F takes one at its start; the others give back at their end.
    pub fn change(self) -> (i64, i64) {
        match self {
            Kind::F => (1, 0),
            Kind::I => (-1, 1),
            Kind::W => (0, -1),
            Kind::B => (-1, 0),
        }
    }
}

/// PyTorch's letter for what crosses a stage boundary: the output of a forward, or a gradient.
pub fn boundary_letter(gradient: bool) -> char {
    if gradient { 'B' } else { 'F' }
}

/// One op. Eight bytes: a schedule of 50 million ops fits in 400 MB.
///
/// In a bidirectional placement two devices hold each stage, one for the micro-batches of either direction; an op knows
/// its direction, so that its device follows from it alone. An op may open an overlapped pair with the next op of its
/// device's program.
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
    /// Largest stage number that an op can hold.
    pub const MAX_STAGE: u32 = (1 << 28) - 1;

    /// How many values of [`Op::slot`] a stage takes: two directions of four kinds.
    pub const SLOTS_PER_STAGE: usize = 8;

    /// The op of `kind` on `stage` for `microbatch`, direction 0. `stage` is at most [`Op::MAX_STAGE`].
    pub fn new(kind: Kind, stage: u32, microbatch: u32) -> Op {
        assert!(stage <= Op::MAX_STAGE, "stage {stage} is beyond {}", Op::MAX_STAGE);
        Op { microbatch, bits: stage << 3 | kind as u32 }
    }

    /// The same op in `direction` 0 or 1.
    pub fn in_direction(self, direction: u32) -> Op {
        let bits = if direction == 0 { self.bits & !DIRECTION } else { self.bits | DIRECTION };
        Op { bits, ..self }
    }

    /// The op of `kind` of the same stage, direction and micro-batch; it opens no pair.
    pub fn of_kind(self, kind: Kind) -> Op {
        Op { bits: self.bits & !PAIR & !3 | kind as u32, ..self }
    }

    /// The same op on `stage`, which is at most [`Op::MAX_STAGE`].
    pub fn on_stage(self, stage: u32) -> Op {
        Op::new(self.kind(), stage, self.microbatch).in_direction(self.direction())
    }

    /// The same op as the first of an overlapped pair; the next op of the device's program is the second.
    pub fn opening_pair(self) -> Op {
        Op { bits: self.bits | PAIR, ..self }
    }

    /// The same op without the note that it opens a pair.
    pub fn alone(self) -> Op {
        Op { bits: self.bits & !PAIR, ..self }
    }

    /// Whether it opens an overlapped pair with the next op of its device's program.
    #[inline]
    pub fn opens_pair(self) -> bool {
        self.bits & PAIR != 0
    }

    /// What it computes.
    pub fn kind(self) -> Kind {
        Kind::ALL[(self.bits & 3) as usize]
    }

    /// The stage it belongs to, 0 to S - 1 in model order.
    pub fn stage(self) -> u32 {
        (self.bits & !PAIR) >> 3
    }

    /// The direction of its micro-batch: 0, or 1 where a bidirectional placement runs it the other way.
    pub fn direction(self) -> u32 {
        (self.bits & DIRECTION) >> 2
    }

    /// Number of its (stage, direction, kind) among all. Tables by these are indexed with it.
    #[inline]
    pub fn slot(self) -> usize {
        (self.bits & !PAIR) as usize
    }

    /// The micro-batch it works on.
    pub fn microbatch(self) -> u32 {
        self.microbatch
    }

    /// The stage whose output this op waits for, or `None` where everything it needs is made on its own device.
    /// This and [`Kind::needs`] are the only statement of what a pipeline's ops wait for: F waits for the F before, I and B
    /// for the backward of the stage after, W for its own I.
    pub fn upstream(self, stages: u32) -> Option<u32> {
        match self.kind() {
            Kind::F => self.stage().checked_sub(1),
            Kind::I | Kind::B => Some(self.stage() + 1).filter(|&stage| stage < stages),
            Kind::W => None,
        }
    }

    /// The stage that waits for this op's output: the inverse of [`Op::upstream`]. `None` for the last stage's F, the first
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

/// Why a text is no op.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_as_pytorch_does() {
        for text in ["0F0", "7B12", "3I1", "268435455W4294967295"] {
            assert_eq!(text.parse::<Op>().unwrap().to_string(), text);
        }
        let op = Op::new(Kind::I, 5, 7).in_direction(1).opening_pair();
        assert_eq!((op.kind(), op.stage(), op.microbatch(), op.direction()), (Kind::I, 5, 7, 1));
        assert_eq!(
            (op.slot(), op.opens_pair(), op.alone().opens_pair()),
            (5 * Op::SLOTS_PER_STAGE + 4 + 1, true, false)
        );
        for text in ["", "F0", "0", "0F", "0X1", "0F-1", "0F1 ", "-1F0", "268435456F0", "0F4294967296", "0é1"] {
            assert!(text.parse::<Op>().is_err(), "{text} must be refused");
        }
    }
}
