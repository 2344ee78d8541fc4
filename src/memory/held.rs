use crate::op::{Kind, Op};

/// What the ops of one stage save per micro-batch, and their working memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Saved from F until I or B.
    pub forward: u64,
    /// Saved from I until W.
    pub input: u64,
    /// Working memory of F.
    pub in_forward: u64,
    /// Working memory of I or B.
    pub in_backward: u64,
    /// Working memory at the end of B or W, when the saved activations are freed.
    pub at_end: u64,
}

/// Peak memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes saved by finished ops and the running one.
    pub held: u64,
    /// Working memory of the running op.
    pub running: u64,
}

impl Peak {
    /// Returns the sum of both.
    pub fn total(self) -> u64 {
        self.held.saturating_add(self.running)
    }
}

/// Returns the peak of a device that runs `ops` in this order; `left` is indexed by stage.
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
        // each I leaves 7 for a W at the end
        assert_eq!(peak(&ops("0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2"), &left), Peak { held: 24, running: 4 });
        assert_eq!(peak(&ops("0F0 0B0 1F0 1B0"), &left), Peak { held: 10, running: 4 });
    }
}
