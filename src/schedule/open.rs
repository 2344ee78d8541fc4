//! Open schedules: orders of ops that depend on costs.

use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::Schedule;
use crate::slices::Slices;

/// One device's program before costs are known. A cap is the maximum number of activations held at once; 1 is the activation of all
/// layers of a device.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants say what their fields are
pub enum Program {
    /// A fixed order.
    Fixed(Vec<Op>),
    /// A fixed order of forwards and backwards. W's of its I's that are not listed run when the device would idle, before an op that would
    /// exceed the cap, and at the end. R's that are listed run when the device would idle, at the latest where they are listed.
    Fill {
        ops: Vec<Op>,
        /// W or R.
        floating: Kind,
        cap: Option<f64>,
    },
    /// A fixed order of forwards, I's and W's of whole micro-batches, to which PipeOffload's planner adds copies of the activations of the
    /// first `chunks` chunks to the host and back (`plan_offload`).
    Offload { ops: Vec<Op>, chunks: u32 },
    /// List scheduling: of the ops that are ready, one of the first kind in `priority`, of the oldest micro-batch. Backwards are
    /// split if `priority` has `I`.
    Greedy { priority: Vec<Kind>, cap: Option<f64> },
    /// The best order that a search finds, with backwards `split` into I and W or not, optionally starting from an order.
    Search { split: bool, cap: Option<f64>, start: Option<Box<Program>> },
}

impl Program {
    /// Returns the ops that it lists.
    pub fn listed(&self) -> &[Op] {
        match self {
            Program::Fixed(ops) | Program::Fill { ops, .. } | Program::Offload { ops, .. } => ops,
            Program::Greedy { .. } | Program::Search { .. } => &[],
        }
    }
}

/// What a search minimizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Time 0 to the end of the last op.
    #[default]
    Makespan,
    /// Longest time from first start to last end of any device.
    Span,
}

/// A schedule whose order depends on costs.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenSchedule {
    /// The file's stem.
    pub name: String,
    /// Stage to device.
    pub placement: Placement,
    /// m.
    pub microbatches: u32,
    /// How micro-batches are cut.
    pub slices: Slices,
    /// By device.
    pub programs: Vec<Program>,
    /// What a search minimizes.
    pub goal: Goal,
}

/// A schedule as its file defines it.
#[derive(Clone, Debug)]
pub enum Order {
    /// The same order under all costs.
    Fixed(Schedule),
    /// Costs determine the order.
    Open(OpenSchedule),
}

impl Order {
    /// Returns the schedule if its order is fixed.
    pub fn fixed(self) -> Option<Schedule> {
        match self {
            Order::Fixed(schedule) => Some(schedule),
            Order::Open(_) => None,
        }
    }

    /// Returns the order with micro-batches cut into as many slices of other lengths.
    pub fn with_slices(self, slices: Slices) -> Order {
        match self {
            Order::Fixed(schedule) => Order::Fixed(schedule.with_slices(slices)),
            Order::Open(open) => Order::Open(OpenSchedule { slices, ..open }),
        }
    }

    /// Whether a search finds the order of a device.
    pub fn is_searched(&self) -> bool {
        matches!(self, Order::Open(open) if open.is_searched())
    }

    /// Whether forwards run next to backwards.
    pub fn has_pairs(&self) -> bool {
        match self {
            Order::Fixed(schedule) => schedule.has_pairs(),
            Order::Open(open) => open.programs.iter().flat_map(Program::listed).any(|op| op.opens_pair()),
        }
    }

    /// Whether backwards are split into I and W.
    pub fn splits_backward(&self) -> bool {
        let splits = |program: &Program| match program {
            Program::Greedy { priority, .. } => priority.iter().any(|kind| *kind != Kind::F && *kind != Kind::B),
            Program::Search { split, .. } => *split,
            _ => program.listed().iter().any(|op| matches!(op.kind(), Kind::I | Kind::W)),
        };
        match self {
            Order::Fixed(schedule) => schedule.splits_backward(),
            Order::Open(open) => open.programs.iter().any(splits),
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
    /// Returns `schedule` with another program for each device, to find the shortest makespan.
    pub fn of(schedule: &Schedule, program: impl Fn(u32) -> Program) -> OpenSchedule {
        OpenSchedule {
            name: schedule.name.clone(),
            placement: schedule.placement.clone(),
            microbatches: schedule.microbatches,
            slices: schedule.slices().clone(),
            programs: (0..schedule.devices()).map(program).collect(),
            goal: Goal::Makespan,
        }
    }

    /// Whether a search finds the order of a device.
    pub fn is_searched(&self) -> bool {
        self.programs.iter().any(|program| matches!(program, Program::Search { .. }))
    }

    /// Lowers all caps to at most `limit` activations.
    pub fn capped(mut self, limit: f64) -> OpenSchedule {
        fn lower(program: &mut Program, limit: f64) {
            match program {
                Program::Fixed(_) | Program::Offload { .. } => {}
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
