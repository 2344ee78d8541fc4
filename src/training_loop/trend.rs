//! Whether the losses of a run end above where they began.

use std::collections::VecDeque;

/// Most losses of which a mean is taken.
const MOST: usize = 10;

/// Share by which the last losses may exceed the first, or those of guessing: means of few batches differ by less.
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
        let advice = "lower --lr, use --warmup-steps, or bound the gradients with --clip 1";
        if end > begin * (1.0 + MARGIN) {
            return Some(format!("the loss rose from {begin:.4} to {end:.4}: training diverged; {advice}"));
        }
        (end > guessing * (1.0 + MARGIN)).then(|| {
            format!("the loss is {end:.4}, above {guessing:.4}, that of guessing among {vocabulary} tokens; train longer, or {advice}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(losses: &[f64]) -> Option<String> {
        let mut trend = Trend::default();
        losses.iter().for_each(|&loss| trend.add(loss));
        trend.warning(256) // ln 256 = 5.5452
    }

    #[test]
    fn a_loss_that_ends_above_its_start_or_above_guessing_is_told() {
        assert_eq!(warning(&[5.5, 4.0, 3.0, 2.5]), None);
        assert_eq!(warning(&[2.0, 2.1, 2.0, 2.2]), None, "batches differ");
        assert_eq!(warning(&[9.0]), None, "one step tells nothing");
        assert!(warning(&[2.0, 2.0, 3.0, 3.0]).unwrap().starts_with("the loss rose from 2.0000 to 3.0000"));
        assert!(warning(&[9.0, 9.0, 8.0, 8.0]).unwrap().contains("above 5.5452"));
        // of long runs the means of ten
        let falling: Vec<f64> = (0..100).map(|step| 5.0 - f64::from(step) * 0.03).collect();
        assert_eq!(warning(&falling), None);
        let rising: Vec<f64> = falling.iter().rev().copied().collect();
        assert!(warning(&rising).unwrap().starts_with("the loss rose from 2.0300 to 4.8650"));
    }
}
