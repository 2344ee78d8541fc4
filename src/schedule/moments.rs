//! The moments at which a device's memory may be at its peak.

use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::Schedule;
use std::collections::BTreeMap;

/// An op, with what its device holds when the op begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Stage of the op.
    pub stage: u32,
    /// Kind of the op.
    pub kind: Kind,
    /// By stage of the device: micro-batches between F and I or B, and between I and W.
    pub held: Vec<(u32, [u32; 2])>,
}

/// The moments of every device, without those that hold no more than another one of the same op.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Devices of the stages.
    pub placement: Placement,
    by_device: Vec<Vec<Moment>>,
    /// See [`Moments::most_held`].
    most_held: Vec<Vec<(u32, u32)>>,
}

impl Moments {
    /// Returns the moments of a device.
    pub fn of(&self, device: u32) -> &[Moment] {
        self.by_device.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the micro-batches that a device holds between F and I or B, by stage, at a moment when they are the most; that of a running
    /// F counts.
    pub fn most_held(&self, device: u32) -> &[(u32, u32)] {
        self.most_held.get(device as usize).map_or(&[], Vec::as_slice)
    }
}

impl Schedule {
    /// Returns the moments at which memory may be at its peak, whatever ops save. There are few of them, as most ops of a program repeat.
    /// Ops of whole micro-batches only.
    pub fn moments(&self) -> Moments {
        let of = |device| {
            let mut stages: Vec<u32> = self.placement.stages_of(device).collect();
            stages.sort_unstable();
            largest(&stages, self.program(device))
        };
        let by_device: Vec<Vec<Moment>> = (0..self.devices()).map(of).collect();
        let most_held = by_device.iter().map(|moments| most_held(moments)).collect();
        Moments { placement: self.placement.clone(), by_device, most_held }
    }
}

/// Returns what [`Moments::most_held`] of a device with these moments.
fn most_held(moments: &[Moment]) -> Vec<(u32, u32)> {
    let of = |moment: &Moment| {
        let mut counts: BTreeMap<u32, u32> =
            moment.held.iter().map(|(stage, [forward, _])| (*stage, *forward)).collect();
        if moment.kind == Kind::F {
            *counts.entry(moment.stage).or_default() += 1;
        }
        counts
    };
    let most = moments.iter().map(of).max_by_key(|counts| counts.values().sum::<u32>());
    most.into_iter().flatten().collect()
}

/// Returns the moments of a device's program that no other one of the same op exceeds.
fn largest(stages: &[u32], ops: &[Op]) -> Vec<Moment> {
    let mut held = vec![[0_u32; 2]; stages.len()];
    let mut found: Vec<Vec<Vec<[u32; 2]>>> = vec![Vec::new(); 4 * stages.len()];
    let exceeds = |one: &[[u32; 2]], other: &[[u32; 2]]| {
        one.iter().zip(other).all(|(one, other)| one[0] >= other[0] && one[1] >= other[1])
    };
    for op in ops {
        let Some(stage) = stages.iter().position(|stage| *stage == op.stage()) else { continue };
        let Some(kind) = KINDS.iter().position(|kind| *kind == op.kind()) else { continue };
        let own = &mut found[4 * stage + kind];
        if !own.iter().any(|known| exceeds(known, &held)) {
            own.retain(|known| !exceeds(&held, known));
            own.push(held.clone());
        }
        let [forward, input] = &mut held[stage];
        match op.kind() {
            Kind::F => *forward += 1,
            Kind::B => *forward = forward.saturating_sub(1),
            Kind::I => (*forward, *input) = (forward.saturating_sub(1), *input + 1),
            _ => *input = input.saturating_sub(1),
        }
    }
    let moment = |(number, held): (usize, Vec<[u32; 2]>)| Moment {
        stage: stages[number / 4],
        kind: KINDS[number % 4],
        held: stages.iter().copied().zip(held).filter(|(_, held)| *held != [0; 2]).collect(),
    };
    let all = found.into_iter().enumerate().flat_map(|(number, own)| own.into_iter().map(move |held| (number, held)));
    all.map(moment).collect()
}

/// Kinds of ops of whole micro-batches.
const KINDS: [Kind; 4] = [Kind::F, Kind::B, Kind::I, Kind::W];
