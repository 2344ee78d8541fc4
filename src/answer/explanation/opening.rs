//! Explanations of several schedules in a few lines: which is the shortest, by how much, and what would shorten it most.

use super::StepExplanation;
use crate::advice::{Change, LEAST};
use pipesim_report::{changed, percent};

/// Sentences that are kept of a schedule that is not the shortest: how long it takes, and that it does not fit or why it idles.
const KEPT: usize = 2;
/// Least part of the time by which a step is longer for which a cause is named.
const LEAST_PART: f64 = 0.2;

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
            let is_possible = is_done && change.refused.is_none() && change.fits != Some(false);
            is_possible && change.peak_activations <= advice.limit * (1.0 + LEAST)
        };
        let best = advice.changes.iter().filter(possible).max_by(|one, other| one.saves.total_cmp(&other.saves));
        best.filter(|change| change.saves > LEAST)
    }

    /// Returns the shortest of several steps per micro-batch that fit into memory, or of all if none fits.
    fn shortest(all: &[StepExplanation]) -> Option<&StepExplanation> {
        let is_too_large = |one: &StepExplanation| one.fits == Some(false);
        let order = |one: &&StepExplanation, other: &&StepExplanation| {
            is_too_large(one).cmp(&is_too_large(other)).then(one.each().total_cmp(&other.each()))
        };
        all.iter().min_by(order)
    }

    /// Names what a step has more of than a shorter one of as many ops: ` (more dependence and drain)`; empty if that says little.
    fn longer_by(&self, best: &StepExplanation) -> String {
        if (self.devices, self.microbatches) != (best.devices, best.microbatches) {
            return String::new();
        }
        let parts = |one: &StepExplanation| {
            let (idle, devices) = (&one.idle.total, f64::from(one.devices.max(1)));
            let causes = [
                ("fill", idle.fill),
                ("drain", idle.drain),
                ("dependence", idle.dependence),
                ("exposed communication", idle.communication),
                ("imbalance", idle.imbalance),
                ("waiting for memory", idle.memory),
                ("waiting by its order", idle.order),
                ("computation", devices * one.metrics.makespan - idle.idle),
            ];
            causes.map(|(name, time)| (name, time / devices))
        };
        let longer = self.metrics.makespan - best.metrics.makespan;
        if longer <= 0.0 {
            return String::new();
        }
        let more = parts(self).into_iter().zip(parts(best)).map(|((name, time), (_, least))| (name, time - least));
        let mut more: Vec<(&str, f64)> = more.filter(|(_, time)| *time > LEAST_PART * longer).collect();
        more.sort_by(|one, other| other.1.total_cmp(&one.1));
        let names: Vec<&str> = more.iter().take(2).map(|(name, _)| *name).collect();
        if names.is_empty() { String::new() } else { format!(" (more {})", names.join(" and ")) }
    }

    /// Returns what several explanations say together; nothing about one.
    pub fn opening(all: &[StepExplanation]) -> Vec<String> {
        let Some(best) = StepExplanation::shortest(all).filter(|_| all.len() > 1) else { return Vec::new() };
        let others: Vec<String> = all
            .iter()
            .filter(|one| one.schedule != best.schedule)
            .map(|one| {
                let fits = if one.fits == Some(false) { ", does not fit" } else { "" };
                format!("{} {}{fits}{}", one.schedule, changed(one.each() / best.each() - 1.0), one.longer_by(best))
            })
            .collect();
        let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        if best.fits == Some(false) {
            return vec![format!("None of them fits into memory; {} is the shortest{others}.", best.schedule)];
        }
        let that_fits = if all.iter().any(|one| one.fits == Some(false)) { " that fits" } else { "" };
        let first = format!("{} is the shortest{that_fits}{others}.", best.schedule);
        let change = best.best_change().map_or_else(
            || format!("No change tried shortens {} without more activations.", best.schedule),
            |change| {
                let what = change.what.to_string();
                let what = if what.contains(['`', ' ']) { what } else { format!("`{what}`") };
                format!(
                    "Without more activations, {what} would shorten it most, by {} of the pipeline.",
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
