//! Whether the losses of a run end above where they began.

use std::collections::VecDeque;

/// Maximum number of losses to average.
const MOST: usize = 10;

/// Share by which the last losses may exceed the first loss, or the loss of guessing: means of few batches differ by less.
const MARGIN: f64 = 0.1;

/// The first and the last losses of a run.
#[derive(Clone, Debug, Default)]
pub struct Trend {
    first: Option<f64>,
    last: VecDeque<f64>,
    count: usize,
}

impl Trend {
    /// Adds the loss of the next step.
    pub fn add(&mut self, loss: f64) {
        self.count += 1;
        self.first = self.first.or(Some(loss));
        self.last.push_back(loss);
        if self.last.len() > MOST {
            self.last.pop_front();
        }
    }

    /// Returns a warning if the run ended worse than it began, or than guessing among `vocabulary` tokens, whose loss is ln(V).
    pub fn warning(&self, vocabulary: usize) -> Option<String> {
        let few = MOST.min(self.count / 2);
        let begin = self.first.filter(|_| few > 0)?;
        let end = self.last.iter().rev().take(few).sum::<f64>() / few as f64;
        let guessing = (vocabulary as f64).ln();
        let advice = "lower `lr`, use `warmup-steps`, or bound the gradients with `clip` 1";
        if end > begin * (1.0 + MARGIN) {
            return Some(format!("the loss rose from {begin:.4} to {end:.4}: training diverged; {advice}"));
        }
        (end > guessing * (1.0 + MARGIN)).then(|| {
            format!("the loss is {end:.4}, above {guessing:.4}, that of guessing among {vocabulary} tokens; train longer, or {advice}")
        })
    }
}
