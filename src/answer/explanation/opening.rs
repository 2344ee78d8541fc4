//! Explanations of several schedules in a few lines: which is the shortest, by how much, and what would shorten it most.

use super::StepExplanation;
use crate::advice::{Change, LEAST};
use pipesim_report::{changed, percent};

/// Sentences that are kept of a schedule that is not the shortest: how long it takes, and that it does not fit or why it idles.
const KEPT: usize = 2;

impl StepExplanation {
    /// Returns the time of a micro-batch: of the whole iteration in seconds if that is known, else of the makespan in the unit of the costs.
    fn each(&self) -> f64 {
        self.iteration_s.unwrap_or(self.metrics.makespan) / f64::from(self.microbatches.max(1))
    }

    /// Returns the change that saves most of those that its framework can follow without more activations, if one saves anything.
    fn best_change(&self) -> Option<&Change> {
        let advice = self.advice.as_ref()?;
        let possible = |change: &&Change| {
            let is_done = !matches!(change.what.kind(), "links" | "stages" | "micro");
            is_done && change.refused.is_none() && change.peak_activations <= advice.limit * (1.0 + LEAST)
        };
        let best = advice.changes.iter().filter(possible).max_by(|one, other| one.saves.total_cmp(&other.saves));
        best.filter(|change| change.saves > LEAST)
    }

    /// Returns the shortest of several steps per micro-batch.
    fn shortest(all: &[StepExplanation]) -> Option<&StepExplanation> {
        all.iter().min_by(|one, other| one.each().total_cmp(&other.each()))
    }

    /// Returns what several explanations say together; nothing about one.
    pub fn opening(all: &[StepExplanation]) -> Vec<String> {
        let Some(best) = StepExplanation::shortest(all).filter(|_| all.len() > 1) else { return Vec::new() };
        let others: Vec<String> = all
            .iter()
            .filter(|one| one.schedule != best.schedule)
            .map(|one| format!("{} {}", one.schedule, changed(one.each() / best.each() - 1.0)))
            .collect();
        let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        let first = format!("{} is the shortest{others}.", best.schedule);
        let change = best.best_change().map_or_else(
            || format!("No change tried shortens {} without more activations.", best.schedule),
            |change| {
                let what = change.what.to_string();
                let what = if what.contains(['`', ' ']) { what } else { format!("`{what}`") };
                format!(
                    "Of its changes without more activations, {what} saves most, {} of the pipeline.",
                    percent(change.saves)
                )
            },
        );
        vec![first, change]
    }

    /// Returns the sentences that are shown of one of several explanations: all of the shortest, few of the others.
    pub fn shown<'a>(&'a self, all: &[StepExplanation]) -> &'a [String] {
        let is_shortest = StepExplanation::shortest(all).is_some_and(|best| std::ptr::eq(best, self));
        if is_shortest || all.len() == 1 { &self.sentences } else { &self.sentences[..KEPT.min(self.sentences.len())] }
    }
}
