//! What one rank did: its ops and messages by step, on its own clock.

use super::trace::Group;
use pipesim_schedule::op::{Kind, Op};

/// An exchange of times with another rank: (rank, sent, received there, sent there, received), in ns.
pub type Ping = (u32, i64, i64, i64, i64);

/// One op of a rank, in ns of the rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOp {
    /// The stage is the number of the stage among the rank's until [`RankStep::op`] is known to be global.
    pub op: Op,
    /// When it ran, without the wait for its input.
    pub start: i64,
    pub end: i64,
    /// When the rank began to wait for its input, or got ready to run it.
    pub ready: i64,
    /// Receive of its input: when it was posted, and when the rank that waited for it went on.
    pub receive: Option<(i64, i64)>,
    /// Send of its output: when it was posted and, if known, when it was complete.
    pub send: Option<(i64, Option<i64>)>,
}

impl RankOp {
    pub fn new(op: Op, start: i64, end: i64) -> RankOp {
        RankOp { op, start, end, ready: start, receive: None, send: None }
    }
}

/// One step of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankStep {
    /// Number of the step, as in the trace if that marks steps.
    pub number: u64,
    /// Start and end of the range that marks the step.
    pub marked: Option<(i64, i64)>,
    /// Ops in the order in which they ran.
    pub ops: Vec<RankOp>,
    /// Other work after the ops: name, start, end.
    pub others: Vec<(&'static str, i64, i64)>,
    /// Times that were exchanged with other ranks to compare the clocks.
    pub pings: Vec<Ping>,
}

/// How ops of a rank were recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// Labels name stages.
    Global,
    /// The rank's own stages are counted.
    OfRank,
}

/// What one file says.
#[derive(Clone, Debug)]
pub struct RankRun {
    pub file: String,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub groups: Vec<Group>,
    pub version: Option<String>,
    /// Whether the optimizer and collectives would be recorded: by PyTorch's profiler, not in tables and ranges.
    pub has_step_ops: bool,
    pub stages: Stages,
    /// Whether its ranges have no numbers: ops are numbered as they came, in one step or the marked ones.
    pub is_counted: bool,
    /// Whether no range names its ops, and it neither sends nor receives: its steps are not those of a pipeline.
    pub is_alone: bool,
    pub steps: Vec<RankStep>,
    /// Earliest event.
    pub first: i64,
    /// What was odd, one sentence each.
    pub warnings: Vec<String>,
}

/// The stretch of a rank's trace that belongs to one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub number: u64,
    pub start: i64,
    pub end: i64,
}

impl RankStep {
    /// Returns the start of the step's first op, or the largest time if it has none.
    pub fn begin(&self) -> i64 {
        self.ops.first().map_or(i64::MAX, |op| op.start)
    }

    /// Returns the receiving or sending op of a boundary.
    pub fn find(&mut self, gradient: bool, stage: u32, microbatch: u32) -> Option<&mut RankOp> {
        self.ops.iter_mut().find(|found| {
            let kind = found.op.kind();
            let fits = if gradient { kind.is_backward() } else { kind == Kind::F };
            fits && found.op.stage() == stage && found.op.microbatch() == microbatch
        })
    }

    /// Tidies ops that were not checked elsewhere; returns what was odd.
    pub fn check(&mut self, file: &str, rank: u32) -> Option<String> {
        let before = self.ops.len();
        let mut seen = std::collections::BTreeSet::new();
        self.ops.retain(|op| seen.insert(op.op));
        let repeated = before - self.ops.len();
        self.ops.sort_by_key(|op| (op.start, op.end));
        let overlapping = self.ops.windows(2).filter(|pair| pair[1].start < pair[0].end).count();
        self.tidy();
        let (step, mut odd) = (self.number, Vec::new());
        if repeated > 0 {
            odd.push(format!("{repeated} ops occur twice, the first counts"));
        }
        if overlapping > 0 {
            odd.push(format!("{overlapping} ops begin before the one before has ended, and are shortened"));
        }
        (!odd.is_empty()).then(|| format!("{file}: rank {rank}, step {step}: {}", odd.join("; ")))
    }

    /// Sorts the ops and makes them follow each other: two readings of a clock may differ by microseconds.
    pub fn tidy(&mut self) {
        self.ops.sort_by_key(|op| (op.start, op.end));
        let mut free = i64::MIN;
        for op in &mut self.ops {
            op.start = op.start.max(free);
            op.end = op.end.max(op.start);
            op.ready = op.ready.clamp(free.min(op.start), op.start);
            free = op.end;
        }
        for other in &mut self.others {
            other.1 = other.1.max(free);
            other.2 = other.2.max(other.1);
            free = other.2;
        }
    }
}
