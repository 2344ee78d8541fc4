//! Saved activations of a device over its ops, and their peak, in bytes.

use pipesim_schedule::moments::Moment;
use pipesim_schedule::op::{Kind, Op};

/// What the ops of one stage save per micro-batch, and their working memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedActivations {
    /// Saved from F until I or B.
    pub forward: u64,
    /// Saved from I until W.
    pub input: u64,
    /// Working memory of F.
    pub in_forward: u64,
    /// Working memory of I or B.
    pub in_backward: u64,
    /// Working memory of W.
    pub in_weights: u64,
    /// Working memory at the end of B or W, when the saved activations are freed.
    pub at_end: u64,
}

/// Peak memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes saved by finished ops and the running one.
    pub held: u64,
    /// Bytes of these that belong to other micro-batches or stages than the running op's.
    pub others: u64,
    /// Working memory of the running op.
    pub running: u64,
}

impl Peak {
    /// Returns the sum of what is held and what the running op needs.
    pub fn total(self) -> u64 {
        self.held.saturating_add(self.running)
    }
}

/// Returns the peak of a device that runs `ops` in this order; `left` is indexed by stage.
pub fn peak<'a>(ops: impl IntoIterator<Item = &'a Op>, left: &[SavedActivations]) -> Peak {
    peak_by(ops, left, Peak::total)
}

/// Returns the moment of a device when `bytes` is largest.
pub fn peak_by<'a>(
    ops: impl IntoIterator<Item = &'a Op>,
    left: &[SavedActivations],
    bytes: impl Fn(Peak) -> u64,
) -> Peak {
    let mut now = 0_u64;
    let during = ops.into_iter().filter_map(|op| {
        let (during, after) = left.get(op.stage() as usize)?.during(op.kind(), now);
        now = after;
        Some(during)
    });
    largest(during, bytes)
}

/// Returns [`peak_by`] of a program with these moments.
pub fn peak_at(moments: &[Moment], left: &[SavedActivations], bytes: impl Fn(Peak) -> u64) -> Peak {
    let held = |&(stage, counts): &(u32, [u32; 2])| {
        let SavedActivations { forward, input, .. } = left.get(stage as usize).copied().unwrap_or_default();
        let [forward, input] =
            [(forward, counts[0]), (input, counts[1])].map(|(one, count)| one.saturating_mul(count.into()));
        forward.saturating_add(input)
    };
    let during = moments.iter().filter_map(|moment| {
        let now = moment.held.iter().map(held).fold(0, u64::saturating_add);
        Some(left.get(moment.stage as usize)?.during(moment.kind, now).0)
    });
    largest(during, bytes)
}

fn largest(during: impl Iterator<Item = [Peak; 2]>, bytes: impl Fn(Peak) -> u64) -> Peak {
    let (mut most, mut peak) = (bytes(Peak::default()), Peak::default());
    for moment in during.flatten() {
        let taken = bytes(moment);
        if taken > most {
            (most, peak) = (taken, moment);
        }
    }
    peak
}

impl SavedActivations {
    /// Returns what a device with `now` bytes of activations takes during an op of this stage and at its end, and the bytes after it.
    fn during(&self, kind: Kind, now: u64) -> ([Peak; 2], u64) {
        let SavedActivations { forward, input, in_forward, in_backward, in_weights, at_end } = *self;
        let moment = |held, others, running| Peak { held, others, running };
        match kind {
            Kind::F => {
                let after = now.saturating_add(forward);
                ([moment(after, now, in_forward), moment(after, now, 0)], after)
            }
            Kind::I => {
                let others = now.saturating_sub(forward);
                let after = now.saturating_add(input).saturating_sub(forward);
                ([moment(now, others, in_backward), moment(after, others, 0)], after)
            }
            Kind::W => {
                let after = now.saturating_sub(input);
                ([moment(now, after, in_weights), moment(after, after, at_end)], after)
            }
            Kind::B => {
                let after = now.saturating_sub(forward);
                ([moment(now, after, in_backward), moment(after, after, at_end)], after)
            }
            Kind::R => ([moment(now, now.saturating_sub(forward), in_forward), moment(now, now, 0)], now),
            _ => ([moment(now, now, 0); 2], now), // not executed
        }
    }
}
