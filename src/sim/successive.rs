//! Steps that follow each other without a barrier: a device begins the next as soon as it has ended its part of the one before.
//!
//! Steps meet nowhere but on their devices: a forward needs the parameters that its own device updated, nothing else of the step
//! before. So each step is simulated by itself, with devices that are free from different times on. What is still left of the step
//! before on other devices does not slow the first ops of the next one down here.

use super::event::EventError;
use crate::cost::StepCosts;

/// Most steps that are simulated until their ends come at equal distances.
pub(super) const MOST_STEPS: u32 = 16;

/// When steps that follow each other end, in ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Successive {
    /// End of each step's last op of any kind.
    pub ends: Vec<u64>,
    /// Whether, from the last of them on, ends come at the distance of the last two for ever.
    pub is_steady: bool,
}

impl Successive {
    /// `most` steps, fewer where they have become steady. `pipeline` says when devices, free at such times, are free again after
    /// their pipeline ops.
    pub(super) fn new(
        steps: &StepCosts,
        devices: usize,
        most: u32,
        mut pipeline: impl FnMut(&[u64]) -> Result<Vec<u64>, EventError>,
    ) -> Result<Successive, EventError> {
        let mut found = Successive::default();
        let (mut free, mut begun) = (vec![0; devices], 0);
        while found.ends.len() < most as usize && !found.is_steady {
            // Times of a step are from when its first device begins: then the clock lasts for any number of steps.
            let before = free.clone();
            free = pipeline(&free)?;
            steps.ending.run(&mut free, |number| steps.lasts[number]);
            found.ends.push(begun + free.iter().copied().max().unwrap_or(0));
            let first = free.iter().copied().min().unwrap_or(0);
            free.iter_mut().for_each(|free| *free -= first);
            begun += first;
            found.is_steady = free == before && found.ends.len() > 1;
        }
        Ok(found)
    }

    /// The period of steps: from one's end to the next one's, in the long run; of one step alone there is none.
    pub fn period(&self) -> Option<u64> {
        let &last = self.ends.last()?;
        let half = if self.is_steady { self.ends.len() - 2 } else { self.ends.len().checked_sub(2)? / 2 };
        let steps = self.ends.len() - 1 - half;
        Some((last - self.ends[half]) / steps as u64)
    }

    /// The mean distance of ends over the first `count` steps; of one step alone there is none.
    pub fn mean_period(&self, count: usize) -> Option<f64> {
        let (&first, &last, known) = (self.ends.first()?, self.ends.last()?, self.ends.len());
        let beyond = (count.saturating_sub(known) as u64) * self.period().unwrap_or(0);
        let end = if count < known { self.ends[count.checked_sub(1)?] } else { last + beyond };
        (count > 1).then(|| (end - first) as f64 / (count - 1) as f64)
    }
}
