//! Numbers and schedules by chance, the same for the same seed.

use pipesim::{Kind, Op, Placement};
use std::collections::BTreeSet;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Whether they are a forward and the I or B of another stage or micro-batch.
fn may_overlap(a: Op, b: Op) -> bool {
    let is_one_of_each = [a, b].iter().filter(|op| op.kind() == Kind::F).count() == 1;
    is_one_of_each
        && [a, b].iter().all(|op| op.kind() != Kind::W)
        && (a.stage(), a.microbatch()) != (b.stage(), b.microbatch())
}

/// A valid schedule by list scheduling: whatever is ready may come next, with `pairs` half of the time overlapped with what is
/// ready beside it, within `cap` chunks a device; `below(n)` draws. Backwards of a stage and micro-batch are `split` or not.
/// `None`: nothing runs within the cap.
pub fn random_rows(
    placement: &Placement,
    m: u32,
    (cap, pairs): (u32, bool),
    split: impl Fn(u32, u32) -> bool,
    below: &mut impl FnMut(usize) -> usize,
) -> Option<Vec<Vec<Op>>> {
    let direction = |i: u32| u32::from(!placement.microbatches_of(0, m).contains(&i));
    let stages = placement.stages();
    let op = |kind, stage, i| Op::new(kind, stage, i).in_direction(direction(i));
    let of = |i: u32| {
        let ops =
            [Kind::F, Kind::I, Kind::W, Kind::B].into_iter().flat_map(move |k| (0..stages).map(move |s| (k, s, i)));
        ops.filter(|&(kind, stage, i)| kind == Kind::F || split(stage, i) == (kind != Kind::B))
    };
    let all: Vec<Op> = (0..m).flat_map(of).map(|(kind, stage, i)| op(kind, stage, i)).collect();
    let mut done: BTreeSet<Op> = BTreeSet::new();
    let mut rows = vec![Vec::new(); placement.devices() as usize];
    let mut held = vec![0_u32; placement.devices() as usize];
    let is_ready = |done: &BTreeSet<Op>, o: Op| {
        let (stage, i) = (o.stage(), o.microbatch());
        let ran = |kind, stage| done.contains(&op(kind, stage, i));
        let ran_back = |stage| ran(Kind::I, stage) || ran(Kind::B, stage);
        !done.contains(&o)
            && match o.kind() {
                Kind::F => stage == 0 || ran(Kind::F, stage - 1),
                Kind::W => ran(Kind::I, stage),
                _ => ran(Kind::F, stage) && (stage + 1 == stages || ran_back(stage + 1)),
            }
    };
    while done.len() < all.len() {
        let fits = |held: &[u32], o: &Op| o.kind() != Kind::F || held[placement.device_of(*o) as usize] < cap;
        let ready: Vec<Op> = all.iter().copied().filter(|&o| is_ready(&done, o) && fits(&held, &o)).collect();
        if ready.is_empty() {
            return None;
        }
        let first = ready[below(ready.len())];
        let device = placement.device_of(first);
        let fits_beside = |o: &Op| placement.device_of(*o) == device && may_overlap(first, *o);
        let partner = ready.iter().copied().find(fits_beside);
        let taken = match partner.filter(|_| pairs && below(2) == 0) {
            Some(second) => vec![first.opening_pair(), second],
            None => vec![first],
        };
        for o in taken {
            match o.kind() {
                Kind::F => held[device as usize] += 1,
                Kind::W | Kind::B => held[device as usize] -= 1,
                _ => {}
            }
            done.insert(o.alone());
            rows[device as usize].push(o);
        }
    }
    Some(rows)
}
