//! Ops of ranks whose schedule names its actions: `PP:0F3`, `Forward 3`, `F3`.
//!
//! The range of an action includes the wait for its input, which would hide the bubble: the op begins after it.

use super::event::{Class, Event};
use super::exchange::Exchanges;
use super::label::{Boundary, Label};
use super::rank::{RankOp, RankStep, Stages, Window};
use pipesim_schedule::op::{Kind, Op};
use std::collections::{BTreeMap, BTreeSet};

/// Host time between the beginning of a range, or the end of the wait in it, and the call of the op.
const CALL_NS: i64 = 90_000;

/// Recovers a rank's steps from labelled ranges.
pub fn steps(events: &[Event], windows: &[Window], file: &str, warnings: &mut Vec<String>) -> (Stages, Vec<RankStep>) {
    let rank = LabelledRank::new(events);
    let mut found: Vec<(Event, RankOp)> = rank.ops();
    found.sort_by_key(|(_, op)| op.start);
    let stages = if rank.labels.iter().any(|(_, label)| matches!(label, Label::Op(_) | Label::Pair(..))) {
        Stages::Global
    } else {
        Stages::OfRank
    };
    let (mut steps, outside) = by_step(found, windows);
    if outside > 0 {
        warnings.push(format!("{file}: {outside} ops outside of all steps left out"));
    }
    let mut repeated = 0;
    for step in &mut steps {
        let mut seen = BTreeSet::new();
        step.ops.retain(|op| {
            seen.insert(op.op) || {
                repeated += 1;
                false
            }
        });
        split_kinds(&mut step.ops);
    }
    if repeated > 0 {
        warnings.push(format!("{file}: {repeated} ops occur twice in a step; the first counts"));
    }
    rank.attach(&mut steps);
    (stages, steps)
}

/// A backward with a W of its own is an I: forks of Megatron-LM name both B.
fn split_kinds(ops: &mut [RankOp]) {
    let split: BTreeSet<(u32, u32)> =
        ops.iter().filter(|op| op.op.kind() == Kind::W).map(|op| (op.op.stage(), op.op.microbatch())).collect();
    let has_inputs = ops.iter().any(|op| op.op.kind() == Kind::I);
    for op in ops.iter_mut().filter(|op| op.op.kind() == Kind::B && !has_inputs) {
        if split.contains(&(op.op.stage(), op.op.microbatch())) {
            op.op = op.op.of_kind(Kind::I);
        }
    }
}

/// Distributes ops over the marked steps or, without marks, begins a step where an op occurs again. Returns the number of ops outside.
fn by_step(found: Vec<(Event, RankOp)>, windows: &[Window]) -> (Vec<RankStep>, usize) {
    let mut outside = 0;
    if windows.is_empty() {
        let (mut steps, mut seen) = (vec![RankStep::default()], BTreeSet::new());
        for (_, op) in found {
            if !seen.insert(op.op) {
                let number = steps.len() as u64;
                steps.push(RankStep { number, ..RankStep::default() });
                seen = BTreeSet::from([op.op]);
            }
            if let Some(step) = steps.last_mut() {
                step.ops.push(op);
            }
        }
        return (steps, outside);
    }
    let new = |window: &Window| RankStep {
        number: window.number,
        marked: Some((window.start, window.end)),
        ..RankStep::default()
    };
    let mut steps: Vec<RankStep> = windows.iter().map(new).collect();
    for (range, op) in found {
        match windows.partition_point(|window| window.start <= range.start).checked_sub(1) {
            Some(at) if range.start < windows[at].end => steps[at].ops.push(op),
            _ => outside += 1,
        }
    }
    (steps, outside)
}

/// The events of one rank, by what they are for.
struct LabelledRank<'a> {
    labels: Vec<(Event, Label)>,
    /// Ops of the host, by start.
    work: Vec<&'a Event>,
    exchanges: Exchanges,
    /// Ends of waits for receives, sorted.
    received: Vec<i64>,
    /// Whether messages are work on a GPU, which is launched in the range that posts them.
    has_gpu: bool,
}

impl<'a> LabelledRank<'a> {
    fn new(events: &'a [Event]) -> LabelledRank<'a> {
        let labels = events.iter().filter_map(|event| match event.class {
            Class::Label(label) => Some((*event, label)),
            _ => None,
        });
        let exchanges = Exchanges::of(events);
        let mut received: Vec<i64> = exchanges.receives.iter().filter_map(|receive| receive.done).collect();
        received.sort_unstable();
        let work = events.iter().filter(|event| event.class.is_host_op()).collect();
        let has_gpu = events.iter().any(|event| matches!(event.class, Class::Kernel(_) | Class::Transfer(_)));
        LabelledRank { labels: labels.collect(), work, exchanges, received, has_gpu }
    }

    /// Returns the ops of all labelled ranges, with their ranges.
    fn ops(&self) -> Vec<(Event, RankOp)> {
        let mut ops = Vec::new();
        let mut counted: BTreeMap<Kind, (u32, i64)> = BTreeMap::new();
        for (number, (range, label)) in self.labels.iter().enumerate() {
            match *label {
                Label::Op(op) => ops.push((*range, self.op(op, range.start, range.end))),
                Label::Plain { kind, chunk, microbatch } => {
                    ops.push((
                        *range,
                        self.op(Op::new(kind, chunk.min(Op::MAX_STAGE), microbatch), range.start, range.end),
                    ));
                }
                Label::Pair(first, second) => {
                    let middle = self.middle(range, first, second);
                    ops.push((*range, self.op(first, range.start, middle)));
                    ops.push((*range, self.op(second, middle, range.end)));
                }
                Label::Whole { kind, microbatch } => {
                    let next = self.labels.get(number + 1).map_or(i64::MAX, |(next, _)| next.start);
                    let op = self.op(Op::new(kind, 0, microbatch), range.start, self.whole_end(range, kind, next));
                    ops.push((*range, op));
                }
                Label::Counted(kind) => {
                    let (count, until) = counted.entry(kind).or_insert((0, i64::MIN));
                    // a range in a range of the same kind is the same call
                    if range.start >= *until {
                        ops.push((*range, self.op(Op::new(kind, 0, *count), range.start, range.end)));
                        (*count, *until) = (*count + 1, range.end);
                    }
                }
                Label::Send(_) | Label::Receive(_) | Label::Reduce | Label::Other => {}
            }
        }
        ops
    }

    /// Returns the op that a range has from `start` to `end`, without the wait at its beginning.
    fn op(&self, op: Op, start: i64, end: i64) -> RankOp {
        let first_wait = self.received.partition_point(|&time| time <= start);
        let wait = self.received.get(first_wait).copied().filter(|&time| time < end);
        let begin = wait.unwrap_or(start);
        let first = self.first_work(begin).map_or(end, |first| first.start);
        let end = self.without_interruption(begin, end);
        RankOp { ready: start, ..RankOp::new(op, first.min(begin + CALL_NS).min(end), end) }
    }

    /// Returns the end of a range, or of the epilogue after its last host op if the thread was interrupted briefly before the range ended.
    fn without_interruption(&self, begin: i64, end: i64) -> i64 {
        // What was called last may be part of an op that ends later.
        let last = self.work_between(begin, end).map(|event| event.end).max();
        let gap = last.map_or(0, |last| end - last);
        if (RETURN_NS..INTERRUPTION_NS).contains(&gap) { end - gap + RETURN_NS } else { end }
    }

    fn first_work(&self, from: i64) -> Option<&Event> {
        self.work.get(self.work.partition_point(|event| event.start < from)).copied()
    }

    fn work_between(&self, from: i64, to: i64) -> impl Iterator<Item = &Event> {
        let at = self.work.partition_point(|event| event.start < from);
        self.work[at..].iter().copied().take_while(move |event| event.start < to)
    }

    /// Returns when the first op of a pair ends. One of the two is a forward: autograd records its host ops, and autograd's engine calls
    /// the host ops of the backward.
    fn middle(&self, range: &Event, first: Op, second: Op) -> i64 {
        let is_of = |event: &Event, kind: Kind| match event.class {
            Class::Forward(_) => kind == Kind::F,
            Class::Backward(_) => kind != Kind::F,
            _ => false,
        };
        let work = || self.work_between(range.start, range.end);
        let begins = if first.kind() == second.kind() {
            None
        } else {
            work().find(|event| is_of(event, second.kind())).map(|event| event.start)
        };
        let Some(begins) = begins else {
            return range.start + (range.end - range.start) / 2;
        };
        let ended = work()
            .filter(|event| is_of(event, first.kind()) && event.start < begins)
            .map(|event| event.end.min(begins));
        let ended = ended.max().unwrap_or(begins);
        // The wait of the second op is between.
        let at = self.received.partition_point(|&time| time <= ended);
        match self.received.get(at) {
            Some(&received) if received < begins => ended + (received - ended).min(EPILOGUE_NS),
            _ => ended + (begins - ended).min(EPILOGUE_NS),
        }
    }

    /// Returns when the op of GPipe's range ends: its sends are not part of it, and the loss follows after the range.
    fn whole_end(&self, range: &Event, kind: Kind, next: i64) -> i64 {
        let sends = &self.exchanges.sends;
        let at = sends.partition_point(|send| send.posted < range.start);
        if let Some(send) = sends.get(at).filter(|send| send.posted < range.end) {
            let work = self.work_between(range.start, send.posted).filter(|event| event.class != Class::Detach);
            let worked = work.map(|event| event.end).filter(|&end| end <= send.posted).max();
            return worked.map_or(send.posted, |worked| (worked + EPILOGUE_NS).min(send.posted));
        }
        let is_last = kind == Kind::F && !self.sends_forward();
        if !is_last {
            return range.end;
        }
        let posted = self.exchanges.receives.iter().map(|receive| receive.posted).find(|&posted| posted >= range.end);
        let limit = next.min(posted.unwrap_or(i64::MAX));
        let loss = self.work_between(range.end, limit).take_while(|event| matches!(event.class, Class::Forward(_)));
        loss.map(|event| event.end).max().map_or(range.end, |end| end.max(range.end))
    }

    /// Whether the ranges of forwards contain sends: the last stage's do not.
    fn sends_forward(&self) -> bool {
        let forwards = self.labels.iter().filter(|(_, label)| matches!(label, Label::Whole { kind: Kind::F, .. }));
        forwards.into_iter().any(|(range, _)| {
            let at = self.exchanges.sends.partition_point(|send| send.posted < range.start);
            self.exchanges.sends.get(at).is_some_and(|send| send.posted < range.end)
        })
    }

    /// Attaches sends and receives to the ops of the actions that post them.
    fn attach(&self, steps: &mut [RankStep]) {
        let place = |at: i64| {
            let end = self.labels.partition_point(|(range, _)| range.start <= at);
            let inside = |(range, _): &&(Event, Label)| range.end >= at;
            // Ranges hardly nest; a few before the nearest are enough.
            self.labels[end.saturating_sub(4)..end].iter().rev().find(inside).map(|(range, label)| (range.end, *label))
        };
        let own = |place: Option<(i64, Label)>| match place?.1 {
            Label::Send(key) | Label::Receive(key) => Some(key),
            Label::Op(op) => Boundary::of(op),
            Label::Whole { kind, microbatch } => Boundary::of(Op::new(kind, 0, microbatch)),
            Label::Plain { kind, chunk, microbatch } => {
                Boundary::of(Op::new(kind, chunk.min(Op::MAX_STAGE), microbatch))
            }
            Label::Pair(..) | Label::Counted(_) | Label::Reduce | Label::Other => None,
        };
        for send in &self.exchanges.sends {
            let place = place(send.posted);
            let done = if self.has_gpu { place.map(|(end, _)| end) } else { send.done };
            let key = own(place);
            if let Some(op) = key.and_then(|key| find(steps, key, send.posted, MessageSide::Send)) {
                op.send = Some((send.posted, done));
            }
        }
        for receive in &self.exchanges.receives {
            let place = place(receive.posted);
            let done = if self.has_gpu { place.map(|(end, _)| end) } else { receive.done };
            let (Some(done), key) = (done, own(place)) else { continue };
            if let Some(op) = key.and_then(|key| find(steps, key, receive.posted, MessageSide::Receive)) {
                op.receive = Some((receive.posted, done));
            }
        }
    }
}

/// Most host time between a labelled op's last host op and its end.
const RETURN_NS: i64 = 400_000;
/// A longer gap is no interruption, but work that is not recorded.
const INTERRUPTION_NS: i64 = 2_000_000;
/// Host time between an op's last host op and the end of its call.
const EPILOGUE_NS: i64 = 150_000;

/// Which of two steps an exchange belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageSide {
    /// Its op began before.
    Send,
    /// Its op ends later.
    Receive,
}

/// Returns the op of a boundary in the step that is under way at `time` or, for a receive that is posted ahead, in the next one.
fn find(steps: &mut [RankStep], key: Boundary, time: i64, side: MessageSide) -> Option<&mut RankOp> {
    let begins = |step: &RankStep| match step.marked {
        Some((start, _)) => start,
        None => step.ops.iter().map(|op| op.ready).min().unwrap_or(i64::MAX),
    };
    let at = steps.partition_point(|step| begins(step) <= time);
    let count = steps.len();
    let candidates = [at.checked_sub(1), Some(at)].into_iter().flatten().filter(|&at| at < count);
    let chosen = candidates.into_iter().find(|&at| {
        let op = steps[at].find(key.gradient, key.stage, key.microbatch);
        op.is_some_and(|op| if side == MessageSide::Send { op.start <= time } else { op.end > time })
    })?;
    steps[chosen].find(key.gradient, key.stage, key.microbatch)
}
