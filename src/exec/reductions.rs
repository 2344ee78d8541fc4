//! What devices exchange around the pipeline, once a step: the start, the tied embedding's gradient, gradients of stages that
//! two devices hold, the gradient norm.

use super::arena::{Dealer, Region};
use super::heap::Heap;
use super::slot::Slot;
use super::watch::{Aborted, Watch};
use crate::placement::{Chunk, Placement};
use std::sync::atomic::Ordering;

/// How many float32 numbers devices exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// A message: the hidden state of a micro-batch, or its gradient.
    pub hidden: usize,
    /// The devices with the sides of a tied tensor, where two must exchange its gradient, and its length.
    pub tied: Option<([u32; 2], usize)>,
    /// By stage: the gradient of its parameters.
    pub stages: Vec<usize>,
    /// Parts of the gradient norm.
    pub norm_parts: usize,
}

/// The places of all exchanges.
#[derive(Debug)]
pub struct Reductions {
    /// By device: how many steps it was ready for.
    ready: Vec<Region>,
    /// Of the tied embedding, by sender: one side's device, the other's; the devices beside them.
    tied: Option<([Slot; 2], [u32; 2])>,
    /// By stage and direction of the sender, with the devices that hold them; none where there is one direction.
    replicas: Vec<([Slot; 2], [u32; 2])>,
    /// Partial squares of the norm, of even and odd steps: a device can be one step ahead while another reads.
    norms: [Vec<Region>; 2],
    /// By device: of how many steps it has contributed its squares.
    norms_in: Vec<Region>,
}

impl Reductions {
    /// Places for what devices with this placement exchange.
    pub fn new(dealer: &mut Dealer, placement: &Placement, sizes: &Sizes) -> Reductions {
        let devices = placement.devices();
        let two_ways = placement.directions() == 2;
        let tied = sizes.tied.map(|(devices, len)| ([Slot::new(dealer, len), Slot::new(dealer, len)], devices));
        let stages = if two_ways { placement.stages() } else { 0 };
        let replicas = (0..stages).map(|stage| {
            let len = sizes.stages.get(stage as usize).copied().unwrap_or(0);
            let holders = [placement.device_of_stage(stage, 0), placement.device_of_stage(stage, 1)];
            ([Slot::new(dealer, len), Slot::new(dealer, len)], holders)
        });
        let replicas = replicas.collect();
        Reductions {
            ready: (0..devices).map(|_| dealer.signal()).collect(),
            tied,
            replicas,
            norms: [(); 2].map(|()| (0..sizes.norm_parts).map(|_| dealer.word()).collect()),
            norms_in: (0..devices).map(|_| dealer.signal()).collect(),
        }
    }

    /// Whether stages stand on two devices.
    pub fn has_replicas(&self) -> bool {
        !self.replicas.is_empty()
    }

    /// The slots of the tied embedding and the devices at its ends, by sender: the embedding's, the head's.
    pub fn tied(&self) -> Option<&([Slot; 2], [u32; 2])> {
        self.tied.as_ref()
    }

    /// The side of the tied embedding that `device` exchanges, if it does.
    pub fn tied_side(&self, device: u32) -> Option<usize> {
        self.tied.as_ref()?.1.iter().position(|&end| end == device)
    }

    /// By stage: the slots of its two copies, and the devices that hold them, by direction of the sender.
    pub fn replicas(&self) -> &[([Slot; 2], [u32; 2])] {
        &self.replicas
    }

    /// All devices begin a step together.
    ///
    /// # Errors
    /// Called off.
    pub fn meet(&self, heap: &Heap, device: u32, step: u64, watch: &Watch) -> Result<(), Aborted> {
        heap.raise_everywhere(self.ready[device as usize], step + 1);
        self.ready.iter().try_for_each(|&ready| heap.signal(ready).spin(step + 1, watch))
    }

    /// Puts this side's part of the tied embedding's gradient (`side` 0: embedding, 1: head).
    ///
    /// # Errors
    /// Called off while the other side still reads the step before.
    pub fn put_tied(&self, heap: &Heap, side: usize, step: u64, data: &[f32], watch: &Watch) -> Result<(), Aborted> {
        let Some((slots, ends)) = &self.tied else { return Ok(()) };
        slots[side].put_once(heap, ends[1 - side], step, data, watch)
    }

    /// Waits for the other side's part and hands it to `add`.
    ///
    /// # Errors
    /// Called off.
    pub fn take_tied(
        &self,
        heap: &Heap,
        side: usize,
        step: u64,
        watch: &Watch,
        add: impl FnOnce(&[f32]),
    ) -> Result<(), Aborted> {
        let Some((slots, ends)) = &self.tied else { return Ok(()) };
        slots[1 - side].take_once(heap, ends[1 - side], step, watch, add)
    }

    /// Puts the gradient of a stage as this copy of it has it.
    ///
    /// # Errors
    /// Called off while the other copy still reads the step before.
    pub fn put_replica(
        &self,
        heap: &Heap,
        chunk: Chunk,
        step: u64,
        data: &[f32],
        watch: &Watch,
    ) -> Result<(), Aborted> {
        let (slots, holders) = &self.replicas[chunk.stage as usize];
        let direction = chunk.direction as usize;
        slots[direction].put_once(heap, holders[1 - direction], step, data, watch)
    }

    /// Waits for the gradient of the other copy and hands it to `add`.
    ///
    /// # Errors
    /// Called off.
    pub fn take_replica(
        &self,
        heap: &Heap,
        chunk: Chunk,
        step: u64,
        watch: &Watch,
        add: impl FnOnce(&[f32]),
    ) -> Result<(), Aborted> {
        let (slots, holders) = &self.replicas[chunk.stage as usize];
        let other = 1 - chunk.direction as usize;
        slots[other].take_once(heap, holders[other], step, watch, add)
    }

    /// Contributes `device`'s partial squares, by order number.
    pub fn put_norms(&self, heap: &Heap, device: u32, step: u64, parts: &[(usize, f64)]) {
        let (words, done) = (&self.norms[(step % 2) as usize], self.norms_in[device as usize]);
        for &(number, square) in parts {
            heap.store_everywhere(words[number], square.to_bits(), done);
        }
        heap.raise_everywhere(done, step + 1);
    }

    /// Waits for all devices' parts; their sum in order number, so that no partition changes a bit of it.
    ///
    /// # Errors
    /// Called off.
    pub fn sum_norms(&self, heap: &Heap, step: u64, watch: &Watch) -> Result<f64, Aborted> {
        self.norms_in.iter().try_for_each(|&done| heap.signal(done).wait(step + 1, watch))?;
        let parts = self.norms[(step % 2) as usize].iter();
        Ok(parts.map(|&word| f64::from_bits(heap.arena().word(word).load(Ordering::Relaxed))).sum())
    }
}
