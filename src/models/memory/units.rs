//! Peak of a device whose schedule goes beyond whole micro-batches: slices, recomputes, and copies to and from the host.

use super::peak::{Peak, SavedActivations};
use pipesim_schedule::op::Kind;
use pipesim_schedule::schedule::Schedule;

/// What ops save for one slice of a micro-batch on one stage, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedUnit {
    pub saved: SavedActivations,
    /// Saved from F until R, if the unit is recomputed.
    pub stub: u64,
    /// Keys and values, part of what F saves; their gradients take as much.
    pub keys: u64,
}

/// Starts and ends of ops, by their index in the schedule.
pub(crate) type Times<'a> = (&'a [u64], &'a [u64]);

/// By how much an op changes what is held at its start and at its end, what it uses itself, and its working memory at both.
#[derive(Clone, Copy, Default)]
struct HeldChange {
    start: i128,
    end: i128,
    own: u64,
    running: u64,
    at_end: u64,
}

/// The units of all slices and stages.
pub(super) struct Units {
    /// By slice, then by stage.
    pub by_slice: Vec<Vec<SavedUnit>>,
}

impl Units {
    fn change(&self, schedule: &Schedule, index: usize) -> HeldChange {
        let op = schedule.ops()[index];
        let (slice, stage) = (op.slice_number(), op.stage() as usize);
        let unit = self.by_slice.get(slice).and_then(|stages| stages.get(stage)).copied().unwrap_or_default();
        let SavedUnit { saved, stub, keys } = unit;
        let SavedActivations { forward, input, in_forward, in_backward, in_weights, at_end } = saved;
        let bytes = i128::from;
        // The last slice's backward begins the gradients of the keys and values of all earlier ones.
        let is_last = slice + 1 == self.by_slice.len();
        let earlier = self.by_slice[..slice].iter().filter_map(|stages| stages.get(stage)).map(|unit| unit.keys);
        let begun: u64 = if is_last { earlier.sum() } else { 0 };
        let ended = if is_last { 0 } else { keys };
        let backward = |end: i128, at_end: u64| HeldChange {
            start: bytes(begun),
            end,
            own: forward.saturating_add(begun),
            running: in_backward,
            at_end,
        };
        match op.kind() {
            Kind::F => {
                let own = if schedule.is_recomputed(index) { stub } else { forward };
                HeldChange { start: bytes(own), own, running: in_forward, ..HeldChange::default() }
            }
            Kind::R => {
                let start = bytes(forward) - bytes(stub);
                HeldChange { start, own: forward, running: in_forward, ..HeldChange::default() }
            }
            Kind::I => backward(bytes(input) - bytes(forward) - bytes(ended), 0),
            Kind::B => backward(-bytes(forward) - bytes(ended), at_end),
            Kind::W => {
                HeldChange { end: -bytes(input), own: input, running: in_weights, at_end, ..HeldChange::default() }
            }
            Kind::O => HeldChange { end: -bytes(forward), ..HeldChange::default() },
            Kind::L => HeldChange { start: bytes(forward), ..HeldChange::default() },
            Kind::S | Kind::IF | Kind::IB => HeldChange::default(),
        }
    }

    /// Returns the moment of `device` when `bytes` is largest. Copies begin and end at `times`; without them, at their place in the program.
    pub fn peak(
        &self,
        schedule: &Schedule,
        device: u32,
        times: Option<Times<'_>>,
        bytes: impl Fn(Peak) -> u64,
    ) -> Peak {
        let (mut held, mut peak) = (0_i128, Peak::default());
        let (mut own, mut running) = (0_u64, 0_u64);
        for (index, is_end) in moments(schedule, device, times) {
            let change = self.change(schedule, index);
            let is_compute = schedule.ops()[index].kind().is_compute();
            held += if is_end { change.end } else { change.start };
            if is_compute {
                (own, running) = if is_end { (0, change.at_end) } else { (change.own, change.running) };
            }
            let now = u64::try_from(held.max(0)).unwrap_or(u64::MAX);
            let moment = Peak { held: now, others: now.saturating_sub(own), running };
            if bytes(moment) > bytes(peak) {
                peak = moment;
            }
            if is_compute && is_end {
                running = 0;
            }
        }
        peak
    }
}

/// Returns the starts and ends of the ops of a device in order, each as its index and whether it is the end. An op that ends makes room for
/// one that starts at the same time.
fn moments(schedule: &Schedule, device: u32, times: Option<Times<'_>>) -> Vec<(usize, bool)> {
    let in_order = schedule.range(device).flat_map(|index| [(index, false), (index, true)]);
    let Some((starts, ends)) = times else { return in_order.collect() };
    let at = |index: usize| (starts.get(index).copied().unwrap_or(0), ends.get(index).copied().unwrap_or(0));
    let mut all: Vec<(u64, u8, usize, bool)> = in_order
        .map(|(index, is_end)| match (at(index), is_end) {
            ((start, _), false) => (start, 1, index, false),
            ((start, end), true) => (end, if start == end { 2 } else { 0 }, index, true),
        })
        .collect();
    all.sort_unstable();
    all.into_iter().map(|(.., index, is_end)| (index, is_end)).collect()
}
