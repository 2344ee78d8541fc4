//! Saved activations of a device over its ops, and their peak, in bytes.

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
    let (mut now, mut peak) = (0_u64, Peak::default());
    for op in ops {
        let Some(saved) = left.get(op.stage() as usize) else { continue };
        let SavedActivations { forward, input, in_forward, in_backward, in_weights, at_end } = *saved;
        let moments = match op.kind() {
            Kind::F => {
                let others = now;
                now = now.saturating_add(forward);
                [(now, others, in_forward), (now, others, 0)]
            }
            Kind::I => {
                let (before, others) = (now, now.saturating_sub(forward));
                now = now.saturating_add(input).saturating_sub(forward);
                [(before, others, in_backward), (now, others, 0)]
            }
            Kind::W => {
                let before = now;
                now = now.saturating_sub(input);
                [(before, now, in_weights), (now, now, at_end)]
            }
            Kind::B => {
                let before = now;
                now = now.saturating_sub(forward);
                [(before, now, in_backward), (now, now, at_end)]
            }
            Kind::R => [(now, now.saturating_sub(forward), in_forward), (now, now, 0)],
            _ => [(now, now, 0); 2], // not executed
        };
        for (held, others, running) in moments {
            let moment = Peak { held, others, running };
            if bytes(moment) > bytes(peak) {
                peak = moment;
            }
        }
    }
    peak
}
