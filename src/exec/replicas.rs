//! Copies of a stage on two devices: each puts its gradient, both add up the two.

use super::signal::Signal;
use super::watch::{Aborted, Watch};
use crate::placement::Placement;
use std::sync::{Mutex, PoisonError};

/// Where the gradients of all stages that stand on two devices pass each other.
#[derive(Debug)]
pub struct Replicas {
    /// By stage and direction of the sender; none where there is one direction.
    slots: Vec<[Slot; 2]>,
}

#[derive(Debug, Default)]
struct Slot {
    data: Mutex<Vec<f32>>,
    arrived: Signal,
    read: Signal,
}

impl Replicas {
    /// Room for the gradients of every stage that `placement` puts on two devices.
    pub fn new(placement: &Placement) -> Replicas {
        let stages = if placement.directions() == 2 { placement.stages() } else { 0 };
        Replicas { slots: (0..stages).map(|_| Default::default()).collect() }
    }

    /// Whether there is nothing to exchange.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Puts the gradient of `stage` as its copy of `direction` has it; `fill` writes it.
    ///
    /// # Errors
    /// Called off while the other copy still reads the step before.
    pub fn put(
        &self,
        (stage, direction): (u32, u32),
        step: u64,
        watch: &Watch,
        fill: impl FnOnce(&mut Vec<f32>),
    ) -> Result<(), Aborted> {
        let slot = &self.slots[stage as usize][direction as usize];
        slot.read.wait(step, watch)?;
        fill(&mut slot.data.lock().unwrap_or_else(PoisonError::into_inner));
        slot.arrived.raise(step + 1);
        Ok(())
    }

    /// Waits for the gradient of `stage` of the other direction's copy and hands it to `add`.
    ///
    /// # Errors
    /// Called off.
    pub fn take(
        &self,
        (stage, direction): (u32, u32),
        step: u64,
        watch: &Watch,
        add: impl FnOnce(&[f32]),
    ) -> Result<(), Aborted> {
        let slot = &self.slots[stage as usize][1 - direction as usize];
        slot.arrived.wait(step + 1, watch)?;
        add(&slot.data.lock().unwrap_or_else(PoisonError::into_inner));
        slot.read.raise(step + 1);
        Ok(())
    }
}
