//! Ops of ranks whose schedule names nothing, as PyTorch's 1F1B.
//!
//! Sends, receives and the change between forward and backward divide the host's ops into passes. A backward belongs to the forward
//! that contains its sequence numbers; a forward without a backward is no op of the pipeline.

use super::event::{Class, Event};
use super::exchange::{Exchange, Exchanges};
use super::rank::{RankOp, RankStep, Window};
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;

/// A forward or backward pass on the host.
#[derive(Clone, Debug)]
struct TracedPass {
    is_forward: bool,
    start: i64,
    end: i64,
    /// Start of whatever the host did next.
    next: i64,
    /// Least and largest sequence number.
    sequences: (i64, i64),
    step: usize,
    /// Number of host ops.
    count: usize,
    /// Sequence numbers and times of a forward's ops, to divide it if it turns out to be several.
    ops: Vec<(i64, i64, i64)>,
}

/// Host time between an op's last host op and the end of its call.
const EPILOGUE_NS: i64 = 150_000;
/// The first receive of a step ends at most this long before the first host op.
const FIRST_NS: i64 = 3_000_000;
/// Host time between the end of a wait and the call of the op.
const CALL_NS: i64 = 90_000;
/// Host time between the call of a backward and its first host op: autograd prepares.
const ENGINE_NS: i64 = 250_000;
/// Host time between the call of a forward and its first host op.
const MODULE_NS: i64 = 40_000;
/// Ops of one call are closer to each other.
const APART_NS: i64 = 60_000;

/// Recovers a rank's steps from the host's ops.
pub fn steps(events: &[Event], windows: &[Window], file: &str, warnings: &mut Vec<String>) -> Vec<RankStep> {
    let passes = passes(events, windows);
    let (forwards, backwards): (Vec<TracedPass>, Vec<TracedPass>) =
        passes.into_iter().partition(|pass| pass.is_forward);
    let count = backwards.len();
    if count == 0 {
        warnings.push(match forwards.len() {
            0 => format!("{file} has no op of autograd: CPU activities were not recorded, or nothing was trained"),
            _ => format!("{file} has forwards and no backward, as in inference, evaluation, or a compiled step"),
        });
    }
    let (pairs, lone) = matched(forwards, backwards);
    if lone > 0 {
        warnings.push(format!("{file}: {lone} of {count} backwards belong to no recorded forward"));
    }
    let mut by_step: BTreeMap<usize, Vec<(TracedPass, TracedPass)>> = BTreeMap::new();
    for pair in pairs {
        by_step.entry(pair.0.step).or_default().push(pair);
    }
    let odd = odd(by_step.values().flatten());
    if odd > 0 {
        warnings.push(format!(
            "{file}: {odd} ops have another number of host ops than most of their kind; events may be missing"
        ));
    }
    let exchanges = Exchanges::of(events);
    let mut steps = Vec::new();
    for (at, mut pairs) in by_step {
        pairs.sort_by_key(|(forward, _)| forward.start);
        let window = windows.get(at);
        let mut step = RankStep {
            number: window.map_or(at as u64, |window| window.number),
            marked: window.map(|window| (window.start, window.end)),
            ..RankStep::default()
        };
        for (microbatch, (forward, backward)) in pairs.iter().enumerate() {
            step.ops.push(op(Op::new(Kind::F, 0, microbatch as u32), forward));
            step.ops.push(op(Op::new(Kind::B, 0, microbatch as u32), backward));
        }
        step.ops.sort_by_key(|op| op.start);
        steps.push(step);
    }
    attach(&mut steps, &exchanges);
    steps
}

/// Returns the number of passes that have another number of host ops than most of their kind.
fn odd<'a>(pairs: impl Iterator<Item = &'a (TracedPass, TracedPass)>) -> usize {
    let (mut counts, mut all): ([BTreeMap<usize, usize>; 2], usize) = Default::default();
    for (forward, backward) in pairs {
        *counts[0].entry(forward.count).or_default() += 1;
        *counts[1].entry(backward.count).or_default() += 1;
        all += 2;
    }
    all - counts.iter().filter_map(|counts| counts.values().max()).sum::<usize>()
}

fn op(op: Op, pass: &TracedPass) -> RankOp {
    let gap = pass.next - pass.end;
    RankOp::new(op, pass.start, pass.end + gap.clamp(0, EPILOGUE_NS))
}

/// Divides the host's ops into passes.
fn passes(events: &[Event], windows: &[Window]) -> Vec<TracedPass> {
    let main = main_thread(events);
    let (mut passes, mut open): (Vec<TracedPass>, Option<TracedPass>) = (Vec::new(), None);
    let (mut step, mut until) = (0, i64::MIN);
    for event in events {
        let sequence = match event.class {
            Class::Forward(sequence) if event.thread == main => Some((true, sequence)),
            Class::Backward(sequence) => Some((false, sequence)),
            Class::Send | Class::Receive | Class::Step(_) | Class::Optimizer => None,
            // What precedes a collective, and has made no node of autograd, prepares the step or logs the one before.
            Class::Collective if event.thread == main && event.start >= until => {
                if open.as_ref().is_some_and(|pass| pass.is_forward && pass.sequences.0 >= pass.sequences.1) {
                    open = None;
                }
                continue;
            }
            Class::Detach | Class::Host if event.thread == main => {
                if let Some(pass) = open.as_mut().filter(|pass| event.start >= pass.end) {
                    pass.next = pass.next.min(event.start);
                }
                continue;
            }
            _ => continue,
        };
        if event.start < until && sequence.is_some() {
            continue; // called by another op
        }
        if let Some(pass) = open.as_mut() {
            if event.start >= pass.end {
                pass.next = pass.next.min(event.start);
            }
            if sequence.is_none_or(|(is_forward, _)| is_forward != pass.is_forward) {
                passes.extend(open.take());
            }
        }
        let Some((is_forward, sequence)) = sequence else {
            step += usize::from(windows.is_empty() && event.class == Class::Optimizer);
            continue;
        };
        let at = match windows.partition_point(|window| window.start <= event.start).checked_sub(1) {
            _ if windows.is_empty() => step,
            Some(at) if event.start < windows[at].end => at,
            _ => continue,
        };
        until = event.end;
        let pass = open.get_or_insert_with(|| TracedPass {
            is_forward,
            start: event.start,
            end: event.end,
            next: i64::MAX,
            sequences: (i64::MAX, -1),
            step: at,
            count: 0,
            ops: Vec::new(),
        });
        pass.count += 1;
        pass.end = pass.end.max(event.end);
        pass.next = i64::MAX;
        if sequence >= 0 {
            pass.sequences = (pass.sequences.0.min(sequence), pass.sequences.1.max(sequence));
        }
        if is_forward {
            pass.ops.push((sequence, event.start, event.end));
        }
    }
    passes.extend(open);
    for pass in &mut passes {
        pass.leave_out_preparation();
        pass.next = if pass.next == i64::MAX { pass.end } else { pass.next };
    }
    passes
}

impl TracedPass {
    /// Leaves out leading ops that autograd does not record, such as the division of the batch: they share their sequence number
    /// with the next op, and the host does something else in between.
    fn leave_out_preparation(&mut self) {
        let mut first = 0;
        while let [(sequence, _, end), (next, start, _), ..] = self.ops[first..] {
            if sequence != next || start - end < APART_NS {
                break;
            }
            first += 1;
        }
        if let Some(&(_, start, _)) = self.ops.get(first) {
            self.start = start;
            self.count -= first;
            self.ops.drain(..first);
        }
    }
}

/// Returns the thread that runs the schedule: the one that sends and receives or, without any, that runs most forward ops.
fn main_thread(events: &[Event]) -> u64 {
    let most = |is_counted: fn(Class) -> bool| {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for event in events.iter().filter(|event| is_counted(event.class)) {
            *counts.entry(event.thread).or_default() += 1;
        }
        counts.into_iter().max_by_key(|&(_, count)| count).map(|(thread, _)| thread)
    };
    let posts = most(|class| matches!(class, Class::Send | Class::Receive));
    posts.or_else(|| most(|class| matches!(class, Class::Forward(_)))).unwrap_or_default()
}

/// Pairs backwards with their forwards, and returns the number of backwards without one.
fn matched(forwards: Vec<TracedPass>, backwards: Vec<TracedPass>) -> (Vec<(TracedPass, TracedPass)>, usize) {
    let mut of: Vec<Vec<TracedPass>> = vec![Vec::new(); forwards.len()];
    // Sequence numbers grow with time.
    let mut order: Vec<usize> = (0..forwards.len()).collect();
    order.sort_by_key(|&at| forwards[at].sequences.0);
    let mut lone = 0;
    for backward in backwards {
        let (first, last) = backward.sequences;
        let place = order.partition_point(|&at| forwards[at].sequences.0 <= first);
        // The last forward's numbers end where the next one's begin: the loss has more than its outer op shows.
        let ends = order.get(place).map_or(i64::MAX, |&next| forwards[next].sequences.0);
        match place.checked_sub(1).map(|at| order[at]).filter(|_| last >= 0 && last < ends) {
            Some(at) => of[at].push(backward),
            None => lone += 1,
        }
    }
    let mut pairs = Vec::new();
    for (forward, mut backwards) in forwards.into_iter().zip(of) {
        backwards.sort_by_key(|backward| backward.sequences.0);
        let count = backwards.len();
        for (number, backward) in backwards.into_iter().enumerate() {
            pairs.push((
                if count == 1 { forward.clone() } else { part(&forward, &backward, number + 1 == count) },
                backward,
            ));
        }
    }
    (pairs, lone)
}

/// Returns the part of a forward, which is several without a message between them, that belongs to `backward`.
fn part(forward: &TracedPass, backward: &TracedPass, is_last: bool) -> TracedPass {
    let (least, most) = backward.sequences;
    let own = forward.ops.iter().filter(|(sequence, ..)| (least..=most).contains(sequence));
    let start = own.clone().map(|op| op.1).min().unwrap_or(forward.start);
    let end = own.clone().map(|op| op.2).max().unwrap_or(forward.end);
    let count = own.count();
    TracedPass {
        count,
        start,
        end,
        next: if is_last { forward.next } else { end },
        sequences: (least, most),
        ops: Vec::new(),
        ..*forward
    }
}

/// Attaches sends and receives in order: the schedule posts them in the order of the ops that they belong to.
fn attach(steps: &mut [RankStep], exchanges: &Exchanges) {
    for at in 0..steps.len() {
        let begin = |step: &RankStep| step.marked.map_or_else(|| first_post(step, exchanges), |(start, _)| start);
        let (start, end) = (begin(&steps[at]), steps.get(at + 1).map_or(i64::MAX, begin));
        let inside = |list: &[Exchange]| -> Vec<Exchange> {
            list.iter().filter(|exchange| (start..end).contains(&exchange.posted)).copied().collect()
        };
        let (sends, receives) = (inside(&exchanges.sends), inside(&exchanges.receives));
        let ops = &mut steps[at].ops;
        let mut free = start;
        let mut sends = sends.into_iter().peekable();
        let mut receives = receives.into_iter().peekable();
        for number in 0..ops.len() {
            let (begin, end) = (ops[number].start, ops[number].end);
            let next = ops.get(number + 1).map_or(i64::MAX, |next| next.start);
            ops[number].ready = free;
            let lead = if ops[number].op.kind() == Kind::F { MODULE_NS } else { ENGINE_NS };
            ops[number].start = begin.saturating_sub(lead).max(free).min(begin);
            // The last receive that was completed before the op is its input's.
            while let Some(receive) = receives.next_if(|receive| receive.posted < begin) {
                if let Some(done) = receive.done.filter(|&done| done <= begin) {
                    ops[number].receive = Some((receive.posted, done));
                    ops[number].ready = free.max(receive.posted).min(begin);
                    if done >= free {
                        ops[number].start = (done + CALL_NS).min(begin);
                    }
                }
            }
            while let Some(send) = sends.next_if(|send| send.posted < next) {
                if send.posted >= begin {
                    ops[number].send = Some((send.posted, send.done));
                }
            }
            free = end;
        }
    }
}

/// Returns when the receive before a step's first op was posted, or when that op starts.
fn first_post(step: &RankStep, exchanges: &Exchanges) -> i64 {
    let start = step.ops.first().map_or(i64::MAX, |op| op.start);
    let at = exchanges.receives.partition_point(|receive| receive.posted < start);
    let before = at.checked_sub(1).map(|at| exchanges.receives[at]);
    let is_near = |receive: &Exchange| receive.done.is_some_and(|done| done <= start && start - done < FIRST_NS);
    before.filter(is_near).map_or(start, |receive| receive.posted)
}
