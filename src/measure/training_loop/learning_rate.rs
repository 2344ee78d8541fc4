//! The learning rate of each step: warm-up, then constant or falling.

use crate::experiment::Error;
use serde::{Deserialize, Serialize};

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// It does not.
    #[default]
    Constant,
    /// On a straight line.
    Linear,
    /// On half a period of a cosine (Loshchilov and Hutter, arXiv 1608.03983).
    Cosine,
}

/// The learning rates of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRate {
    /// Largest rate, reached at the end of the warm-up.
    pub peak: f32,
    /// Rate at the end of the run.
    pub minimum: f32,
    /// What happens between.
    pub decay: Decay,
    /// Steps of the warm-up, on a straight line: step k of n has k/n of the peak, k from 1.
    pub warmup_steps: u32,
}

impl LearningRate {
    /// Checks that a run of `steps` steps can have these rates.
    ///
    /// # Errors
    /// The warm-up is too long, or the minimum above the peak.
    pub fn check(&self, steps: u32) -> Result<(), Error> {
        if self.warmup_steps > steps {
            return Err(Error::Usage(format!(
                "expected `warmup-steps` of at most `steps` {steps}, found {}; shorten the warm-up",
                self.warmup_steps
            )));
        }
        if self.minimum > self.peak {
            return Err(Error::Usage(format!(
                "expected `min-lr` of at most `lr` {}, found {}; lower it",
                self.peak, self.minimum
            )));
        }
        Ok(())
    }

    /// Returns the rate of step `step`, from 0, of a run of `steps` steps. As in llm.c, the falling part begins after the warm-up with
    /// the peak, and would reach the minimum in the step after the last.
    pub fn at(&self, step: u32, steps: u32) -> f32 {
        if step < self.warmup_steps {
            return (f64::from(self.peak) * f64::from(step + 1) / f64::from(self.warmup_steps)) as f32;
        }
        let left = f64::from(steps.saturating_sub(self.warmup_steps)).max(1.0);
        let done = (f64::from(step - self.warmup_steps) / left).min(1.0);
        let share = match self.decay {
            Decay::Constant => return self.peak,
            Decay::Linear => 1.0 - done,
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        };
        let (peak, minimum) = (f64::from(self.peak), f64::from(self.minimum));
        (minimum + share * (peak - minimum)) as f32
    }
}
