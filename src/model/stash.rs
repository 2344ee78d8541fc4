//! What the ops of one stage and micro-batch leave behind for those still to come.

use super::walk::Left;
use crate::compute::Memory;

/// What is left by repetition of a part, then by layer, in the model's order.
pub type LeftByPart<B> = Vec<Vec<Left<B>>>;

/// What an op leaves, and its output.
pub type Walked<B> = (LeftByPart<B>, Option<B>);

/// What the ops of one micro-batch, or of its slice, left behind.
pub enum Stash<B> {
    Empty,
    /// Of a forward that is to be recomputed.
    Stub(LeftByPart<B>),
    Forward(LeftByPart<B>),
    Weight(LeftByPart<B>),
}

const NO_EARLIER: &str = "expected the forwards of the slices before it, found none: run them first";

impl<B: Memory> Stash<B> {
    /// What a forward left, whether or not it is to be recomputed; an error where it left nothing.
    pub fn forward(&self) -> Result<&LeftByPart<B>, &'static str> {
        match self {
            Stash::Forward(left) | Stash::Stub(left) => Ok(left),
            _ => Err(NO_EARLIER),
        }
    }

    /// See [`Stash::forward`].
    pub fn forward_mut(&mut self) -> Result<&mut LeftByPart<B>, &'static str> {
        match self {
            Stash::Forward(left) | Stash::Stub(left) => Ok(left),
            _ => Err(NO_EARLIER),
        }
    }

    /// Takes out what a forward left that is to be recomputed.
    pub fn take_stub(&mut self) -> Result<LeftByPart<B>, &'static str> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Stub(left) => Ok(left),
            other => {
                *self = other;
                Err("expected a forward that kept only its input, found none: run that first")
            }
        }
    }

    /// Takes out what the forward left, for the backward for the input; an error where it left nothing.
    pub fn take_forward(&mut self) -> Result<LeftByPart<B>, &'static str> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Forward(left) => Ok(left),
            other => {
                let is_stub = matches!(other, Stash::Stub(_));
                *self = other;
                Err(if is_stub {
                    "expected its forward to be recomputed before it: run R first"
                } else {
                    "expected its forward before it, found none: run that first"
                })
            }
        }
    }

    /// Takes out what the backward for the input left, for that for the weights; an error where it left nothing.
    pub fn take_weight(&mut self) -> Result<LeftByPart<B>, &'static str> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Weight(left) => Ok(left),
            other => {
                *self = other;
                Err("expected its backward for the input before it, found none: run that first")
            }
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        match self {
            Stash::Empty => 0,
            Stash::Stub(left) | Stash::Forward(left) | Stash::Weight(left) => {
                left.iter().flatten().flat_map(Left::each).map(Memory::bytes).sum()
            }
        }
    }

    /// Takes all buffers out, to be given back.
    pub fn clear(&mut self) -> impl Iterator<Item = B> + use<B> {
        let left = match std::mem::replace(self, Stash::Empty) {
            Stash::Empty => Vec::new(),
            Stash::Stub(left) | Stash::Forward(left) | Stash::Weight(left) => left,
        };
        left.into_iter().flatten().flat_map(Left::buffers)
    }
}
