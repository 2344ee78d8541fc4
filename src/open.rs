//! A schedule before costs are known: some ops float, or rules alone say what runs when.

use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::Schedule;

/// One device's program before costs are known. A cap is the most activations held at once, in units of a device's whole share
/// of layers.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// A fixed order.
    Fixed(Vec<Op>),
    /// A fixed order of forwards and backwards; the W's of its I's run where the device would idle, before an op that
    /// would exceed the cap, and at the end.
    Fill { ops: Vec<Op>, cap: Option<f64> },
    /// Whatever is ready: the first kind of `priority` that is, of it the oldest micro-batch. With `I` in it backwards are split.
    Greedy { priority: Vec<Kind>, cap: Option<f64> },
    /// The best order that can be found, backwards `split` into I and W or not, perhaps with an order to begin with.
    Search { split: bool, cap: Option<f64>, start: Option<Box<Program>> },
}

/// What a search makes small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Time 0 to the end of the last op.
    #[default]
    Makespan,
    /// Longest time from first start to last end over devices.
    Span,
}

/// A schedule that costs are yet to settle.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenSchedule {
    /// The file's stem.
    pub name: String,
    /// Stage to device.
    pub placement: Placement,
    /// m.
    pub microbatches: u32,
    /// By device.
    pub programs: Vec<Program>,
    /// What a search makes small.
    pub goal: Goal,
}

/// A schedule as its file states it.
#[derive(Clone, Debug)]
pub enum Order {
    /// One order whatever the costs.
    Fixed(Schedule),
    /// Costs decide.
    Open(OpenSchedule),
}

impl Order {
    /// The schedule, where costs do not decide.
    pub fn fixed(self) -> Option<Schedule> {
        match self {
            Order::Fixed(schedule) => Some(schedule),
            Order::Open(_) => None,
        }
    }

    /// Stage to device.
    pub fn placement(&self) -> &Placement {
        match self {
            Order::Fixed(schedule) => &schedule.placement,
            Order::Open(open) => &open.placement,
        }
    }
}

impl OpenSchedule {
    /// The same with no device's cap above `limit` activations.
    pub fn capped(mut self, limit: f64) -> OpenSchedule {
        fn lower(program: &mut Program, limit: f64) {
            match program {
                Program::Fixed(_) => {}
                Program::Fill { cap, .. } | Program::Greedy { cap, .. } => *cap = Some(cap.unwrap_or(limit).min(limit)),
                Program::Search { cap, start, .. } => {
                    *cap = Some(cap.unwrap_or(limit).min(limit));
                    start.iter_mut().for_each(|start| lower(start, limit));
                }
            }
        }
        self.programs.iter_mut().for_each(|program| lower(program, limit));
        self
    }
}
