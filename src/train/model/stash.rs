//! What the ops of one stage and micro-batch leave behind for those still to come.

use super::walk::Left;
use crate::compute::Memory;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is left by repetition of a part, then by layer, in the model's order.
pub type LeftByPart<B> = Vec<Vec<Left<B>>>;

/// What an op leaves, and its output.
pub type Walked<B> = (LeftByPart<B>, Option<B>);

/// Where something is that goes to the host and comes back.
pub enum Whereabouts<B> {
    /// It is being copied, or will be.
    OnItsWay,
    Host(LeftByPart<B>),
    /// It is back.
    Device(LeftByPart<B>),
}

/// What another thread copies to the host and back.
pub struct Parcel<B>(Arc<Mutex<Whereabouts<B>>>);

impl<B> Clone for Parcel<B> {
    fn clone(&self) -> Parcel<B> {
        Parcel(self.0.clone())
    }
}

impl<B> Parcel<B> {
    /// One that is still to be copied to the host.
    pub fn leaving() -> Parcel<B> {
        Parcel(Arc::new(Mutex::new(Whereabouts::OnItsWay)))
    }

    fn lock(&self) -> MutexGuard<'_, Whereabouts<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it where it has arrived.
    pub fn put(&self, at: Whereabouts<B>) {
        *self.lock() = at;
    }

    /// Takes it from where it is.
    pub fn take(&self) -> Whereabouts<B> {
        std::mem::replace(&mut *self.lock(), Whereabouts::OnItsWay)
    }
}

/// What the ops of one micro-batch, or of its slice, left behind.
pub enum Stash<B> {
    Empty,
    /// Of a forward that is to be recomputed.
    Stub(LeftByPart<B>),
    Forward(LeftByPart<B>),
    /// Of a forward whose buffers go to the host: what stays, and the rest.
    Away(LeftByPart<B>, Parcel<B>),
    Weight(LeftByPart<B>),
}

const NO_EARLIER: &str = "expected the forwards of the slices before it, found none: run them first";

impl<B: Memory> Stash<B> {
    /// What a forward left, whether or not it is to be recomputed; an error where it left nothing.
    pub fn forward(&self) -> Result<&LeftByPart<B>, &'static str> {
        match self {
            Stash::Forward(left) | Stash::Stub(left) | Stash::Away(left, _) => Ok(left),
            _ => Err(NO_EARLIER),
        }
    }

    /// See [`Stash::forward`].
    pub fn forward_mut(&mut self) -> Result<&mut LeftByPart<B>, &'static str> {
        match self {
            Stash::Forward(left) | Stash::Stub(left) | Stash::Away(left, _) => Ok(left),
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

    /// Takes out what a forward left that went to the host and is back: what stayed, and the rest. `None` if it did not go there.
    pub fn take_back(&mut self) -> Result<Option<[LeftByPart<B>; 2]>, &'static str> {
        let Stash::Away(_, parcel) = self else { return Ok(None) };
        match parcel.take() {
            Whereabouts::Device(back) => match std::mem::replace(self, Stash::Empty) {
                Stash::Away(stayed, _) => Ok(Some([stayed, back])),
                _ => Ok(None),
            },
            other => {
                parcel.put(other);
                Err("expected its activation on the device, found it on the host: run RELOAD first")
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

    /// Bytes of all buffers that are on the device to stay.
    pub fn bytes(&self) -> usize {
        match self {
            Stash::Empty => 0,
            Stash::Stub(left) | Stash::Forward(left) | Stash::Away(left, _) | Stash::Weight(left) => {
                left.iter().flatten().flat_map(Left::each).map(Memory::bytes).sum()
            }
        }
    }

    /// Takes all buffers out, to be given back.
    pub fn clear(&mut self) -> impl Iterator<Item = B> + use<B> {
        let left = match std::mem::replace(self, Stash::Empty) {
            Stash::Empty => Vec::new(),
            Stash::Stub(left) | Stash::Forward(left) | Stash::Away(left, _) | Stash::Weight(left) => left,
        };
        left.into_iter().flatten().flat_map(Left::buffers)
    }
}
