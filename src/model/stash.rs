//! What the ops of one stage and micro-batch leave behind for those still to come.

use super::walk::Left;
use crate::compute::Memory;

/// What is left by repetition of a part, then by layer, in the model's order.
pub type LeftByPart<B> = Vec<Vec<Left<B>>>;

/// What the ops of one micro-batch left behind.
pub enum Stash<B> {
    Empty,
    Forward(LeftByPart<B>),
    Weight(LeftByPart<B>),
}

impl<B: Memory> Stash<B> {
    /// Takes out what the forward left, for the backward for the input; an error where it left nothing.
    pub fn take_forward(&mut self) -> Result<LeftByPart<B>, &'static str> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Forward(left) => Ok(left),
            other => {
                *self = other;
                Err("expected its forward before it, found none: run that first")
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
            Stash::Forward(left) | Stash::Weight(left) => {
                left.iter().flatten().flat_map(Left::each).map(Memory::bytes).sum()
            }
        }
    }

    /// Takes all buffers out, to be given back.
    pub fn clear(&mut self) -> impl Iterator<Item = B> + use<B> {
        let left = match std::mem::replace(self, Stash::Empty) {
            Stash::Empty => Vec::new(),
            Stash::Forward(left) | Stash::Weight(left) => left,
        };
        left.into_iter().flatten().flat_map(Left::buffers)
    }
}
