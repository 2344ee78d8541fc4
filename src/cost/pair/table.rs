//! Durations of the pairs of one placement.

use super::{Chunks, StreamTimes, SubOps};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Duration of a pair, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTime {
    /// On a compute and a communication stream.
    pub whole: u64,
    /// Sum of the costs of both ops alone. If the ops of a pair take longer or shorter, so does the pair, in proportion.
    pub alone: u64,
}

impl PairTime {
    /// Returns how long the pair takes if its ops alone take `first` and `second` ticks.
    pub fn lasting(self, first: u64, second: u64) -> u64 {
        let sum = first + second;
        if sum == self.alone || self.alone == 0 {
            return self.whole;
        }
        (u128::from(self.whole) * u128::from(sum) / u128::from(self.alone)) as u64
    }
}

/// Stages with equal sub-ops and costs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StageClass {
    sub_ops: SubOps,
    /// Costs of its ops alone, by kind, in ns.
    alone: [u64; 4],
}

/// Forward stage's class, backward stage's class, kind of the backward.
type Key = (u32, u32, Kind);

#[derive(Debug)]
struct PairTables {
    classes: Vec<StageClass>,
    /// By stage.
    class_of: Vec<u32>,
    /// In ns.
    whole: BTreeMap<Key, u64>,
}

/// Sub-ops of every stage of a placement, and durations of the pairs of stages that a device holds.
#[derive(Clone, Debug)]
pub struct PairCosts {
    tables: Arc<PairTables>,
    ticks_per_ns: u64,
}

impl PairCosts {
    /// Returns the durations from the sub-ops of each stage and `alone`, what an op alone costs, in ns.
    ///
    /// # Panics
    /// `sub_ops` has fewer entries than there are stages.
    pub fn new(placement: &Placement, sub_ops: &[SubOps], alone: impl Fn(Op) -> u64) -> PairCosts {
        let mut numbers: BTreeMap<StageClass, u32> = BTreeMap::new();
        let mut class_of = Vec::with_capacity(placement.stages() as usize);
        for stage in 0..placement.stages() {
            let alone = Kind::COSTED.map(|kind| alone(Op::new(kind, stage, 0)));
            let class = StageClass { sub_ops: sub_ops[stage as usize].clone(), alone };
            let next = numbers.len() as u32;
            class_of.push(*numbers.entry(class).or_insert(next));
        }
        let mut classes: Vec<(u32, StageClass)> = numbers.into_iter().map(|(class, number)| (number, class)).collect();
        classes.sort_unstable_by_key(|(number, _)| *number);
        let classes: Vec<StageClass> = classes.into_iter().map(|(_, class)| class).collect();
        let mut whole = BTreeMap::new();
        for device in 0..placement.devices() {
            let held = || placement.stages_of(device).map(|stage| class_of[stage as usize]);
            for (forward, backward) in held().flat_map(|forward| held().map(move |backward| (forward, backward))) {
                for kind in [Kind::I, Kind::B] {
                    whole.entry((forward, backward, kind)).or_insert_with(|| {
                        let [forward, backward] = [forward, backward].map(|class| &classes[class as usize]);
                        // Sub-ops and ops may come from different measurements: a pair is never shorter than one of its ops.
                        let longer = forward.alone[Kind::F as usize].max(backward.alone[kind as usize]);
                        let backward = Some((&backward.sub_ops, kind));
                        StreamTimes::of(Chunks { forward: Some(&forward.sub_ops), backward }).end.max(longer)
                    });
                }
            }
        }
        PairCosts { tables: Arc::new(PairTables { classes, class_of, whole }), ticks_per_ns: 1 }
    }

    /// Returns the costs with ticks divided by `n`.
    pub fn finer(&self, n: u32) -> PairCosts {
        PairCosts { ticks_per_ns: self.ticks_per_ns.saturating_mul(u64::from(n)), ..self.clone() }
    }

    fn class(&self, op: Op) -> u32 {
        self.tables.class_of[op.stage() as usize]
    }

    fn key(&self, one: Op, other: Op) -> Key {
        let (forward, backward) = halves(one, other);
        (self.class(forward), self.class(backward), backward.kind())
    }

    /// Returns the duration of the pair of two ops of one device, a forward and an I or B in either order.
    pub fn of(&self, one: Op, other: Op) -> Option<PairTime> {
        let whole = *self.tables.whole.get(&self.key(one, other))?;
        let alone = |op: Op| self.tables.classes[self.class(op) as usize].alone[op.kind() as usize];
        let ticks = |ns: u64| ns.saturating_mul(self.ticks_per_ns);
        Some(PairTime { whole: ticks(whole), alone: ticks(alone(one) + alone(other)) })
    }

    /// Returns the sub-ops of a stage.
    pub fn sub_ops(&self, stage: u32) -> &SubOps {
        &self.tables.classes[self.tables.class_of[stage as usize] as usize].sub_ops
    }

    /// Returns the run of a pair on its streams, in ns.
    pub fn streams(&self, one: Op, other: Op) -> StreamTimes {
        let (forward, backward) = halves(one, other);
        let backward = (self.sub_ops(backward.stage()), backward.kind());
        StreamTimes::of(Chunks { forward: Some(self.sub_ops(forward.stage())), backward: Some(backward) })
    }

    /// Returns the figures of the pair of two ops.
    pub fn figures(&self, one: Op, other: Op) -> PairFigures {
        let (forward, backward) = halves(one, other);
        let times = self.streams(one, other);
        let [compute, communication, _] = times.busy;
        PairFigures {
            forward_stage: forward.stage(),
            backward_stage: backward.stage(),
            kind: backward.kind().letter(),
            count: 0,
            duration_ns: times.end,
            forward_alone_ns: self.sub_ops(forward.stage()).alone(forward.kind()),
            backward_alone_ns: self.sub_ops(backward.stage()).alone(backward.kind()),
            in_a_row_ns: compute + communication,
            compute_ns: compute,
            communication_ns: communication,
            exposed_ns: times.exposed(),
        }
    }

    /// Returns the figures of each distinct pair in `pairs`, with its count.
    pub fn all(&self, pairs: impl Iterator<Item = (Op, Op)>) -> Vec<PairFigures> {
        let mut found: BTreeMap<Key, PairFigures> = BTreeMap::new();
        for (one, other) in pairs {
            found.entry(self.key(one, other)).or_insert_with(|| self.figures(one, other)).count += 1;
        }
        found.into_values().collect()
    }
}

/// Returns the forward and the backward of a pair.
fn halves(one: Op, other: Op) -> (Op, Op) {
    if one.kind() == Kind::F { (one, other) } else { (other, one) }
}

/// A forward and a backward next to each other: times in ns.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PairFigures {
    /// Stage of the forward.
    pub forward_stage: u32,
    /// Stage of the backward.
    pub backward_stage: u32,
    /// `B` or `I`.
    pub kind: char,
    /// Number of such pairs in a step.
    pub count: u64,
    /// Both next to each other.
    pub duration_ns: u64,
    /// The forward alone.
    pub forward_alone_ns: u64,
    /// The backward alone.
    pub backward_alone_ns: u64,
    /// Sum of all sub-ops on the compute and communication streams, as if they were one stream.
    pub in_a_row_ns: u64,
    /// Sum of the sub-ops on the compute stream.
    pub compute_ns: u64,
    /// Sum of the sub-ops on the communication stream.
    pub communication_ns: u64,
    /// Time that the compute stream waits.
    pub exposed_ns: u64,
}
