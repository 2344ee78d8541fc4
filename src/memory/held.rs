//! What a device's ops hold for those to come, op after op, and when that is most: in bytes, stage by stage.

use crate::op::{Kind, Op};

/// What the ops of one stage leave behind for a micro-batch, and what they need while they run, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// From F to I, or to B.
    pub forward: u64,
    /// From I to W.
    pub input: u64,
    /// While F runs, besides.
    pub in_forward: u64,
    /// While I or B runs, besides.
    pub in_backward: u64,
    /// At the end of B or W, when all that they were left is freed.
    pub at_end: u64,
}

/// The moment at which a device holds most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes that finished ops hold for others, with those that the op at hand leaves.
    pub held: u64,
    /// Bytes that the op at hand needs besides.
    pub running: u64,
}

impl Peak {
    /// Both.
    pub fn total(self) -> u64 {
        self.held.saturating_add(self.running)
    }
}

/// When a device that runs `ops` in this order holds most; `left` is by stage.
pub fn peak<'a>(ops: impl IntoIterator<Item = &'a Op>, left: &[Left]) -> Peak {
    let (mut now, mut peak) = (0_u64, Peak::default());
    for op in ops {
        let Some(&Left { forward, input, in_forward, in_backward, at_end }) = left.get(op.stage() as usize) else {
            continue;
        };
        let moments = match op.kind() {
            Kind::F => {
                now = now.saturating_add(forward);
                [(now, in_forward), (now, 0)]
            }
            Kind::I => {
                let before = now;
                now = now.saturating_add(input).saturating_sub(forward);
                [(before, in_backward), (now, 0)]
            }
            Kind::W => {
                now = now.saturating_sub(input);
                [(now, at_end), (now, 0)]
            }
            Kind::B => {
                let before = now;
                now = now.saturating_sub(forward);
                [(before, in_backward), (now, at_end)]
            }
        };
        for (held, running) in moments {
            let moment = Peak { held, running };
            if moment.total() > peak.total() {
                peak = moment;
            }
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_holds_most_when_its_last_forward_or_a_backward_runs() {
        let ops = |text: &str| -> Vec<Op> { text.split(' ').map(|op| op.parse().unwrap()).collect() };
        let left = [Left { forward: 10, input: 7, in_forward: 1, in_backward: 4, at_end: 30 }];
        assert_eq!(peak(&ops("0F0 0F1 0B0 0B1"), &left), Peak { held: 10, running: 30 });
        let left = [Left { at_end: 0, ..left[0] }];
        assert_eq!(peak(&ops("0F0 0F1 0B0 0B1"), &left), Peak { held: 20, running: 4 });
        // I's leave 7 each for the W's at the end
        assert_eq!(peak(&ops("0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2"), &left), Peak { held: 24, running: 4 });
        assert_eq!(peak(&ops("0F0 0B0 1F0 1B0"), &left), Peak { held: 10, running: 4 });
    }
}
