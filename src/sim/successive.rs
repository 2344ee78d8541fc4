//! Steps that follow each other without a barrier: a device begins the next step as soon as it has ended its part of the last one.
//!
//! Steps depend on each other only through their devices: a forward needs the parameters that its own device updated and nothing else
//! of the previous step. So each step is simulated separately, with devices that become free at different times. Contention between
//! the end of one step and the start of the next is not simulated.

use super::event::EventError;
use pipesim_cost::StepCosts;

/// Maximum number of steps that are simulated until their ends are equally spaced.
pub(super) const MOST_STEPS: u32 = 16;

/// Ends of successive steps, in ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Successive {
    /// End of the last op of each step, step ops included.
    pub ends: Vec<u64>,
    /// Whether all later ends are as far apart as the last two.
    pub is_steady: bool,
}

impl Successive {
    /// Simulates `most` steps, or fewer once they are steady. `pipeline` maps the times at which devices are free before a step to
    /// those at which they are free after its pipeline ops.
    pub(super) fn new(
        steps: &StepCosts,
        devices: usize,
        most: u32,
        mut pipeline: impl FnMut(&[u64]) -> Result<Vec<u64>, EventError>,
    ) -> Result<Successive, EventError> {
        let mut found = Successive::default();
        let (mut free, mut begun) = (vec![0; devices], 0);
        while found.ends.len() < most as usize && !found.is_steady {
            // Times of a step count from the begin of its first device, so that the clock does not overflow.
            let before = free.clone();
            free = pipeline(&free)?;
            steps.epilogue.run(&mut free, |number| steps.lasts[number]);
            found.ends.push(begun + free.iter().copied().max().unwrap_or(0));
            let first = free.iter().copied().min().unwrap_or(0);
            free.iter_mut().for_each(|free| *free -= first);
            begun += first;
            found.is_steady = free == before && found.ends.len() > 1;
        }
        Ok(found)
    }

    /// Returns the period in the long run: from one step's end to the next one's. `None` for a single step.
    pub fn period(&self) -> Option<u64> {
        let &last = self.ends.last()?;
        let half = if self.is_steady { self.ends.len() - 2 } else { self.ends.len().checked_sub(2)? / 2 };
        let steps = self.ends.len() - 1 - half;
        Some((last - self.ends[half]) / steps as u64)
    }

    /// Returns the mean period over the first `count` steps; `None` for a single step.
    pub fn mean_period(&self, count: usize) -> Option<f64> {
        let (&first, &last, known) = (self.ends.first()?, self.ends.last()?, self.ends.len());
        let beyond = (count.saturating_sub(known) as u64) * self.period().unwrap_or(0);
        let end = if count < known { self.ends[count.checked_sub(1)?] } else { last + beyond };
        (count > 1).then(|| (end - first) as f64 / (count - 1) as f64)
    }
}
