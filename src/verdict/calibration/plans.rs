//! Plans ranked by corrected times.

use super::process::{Corrected, StepCalibration};
use pipesim_answer::plan::{Objective, Plan, Plans, RESOLUTION, Reason, mark_ties};

/// How many times as many plans are searched as are shown: the correction may change their order.
pub const SEARCHED: usize = 5;

/// Corrects plans and ranks them again, as the search does: first the simplest layout that predictions cannot tell from the best, then
/// the others by the objective; of those, layouts within `safe_bytes` come first. Keeps the first `keep` and returns the correction of each.
pub fn corrected_plans(
    calibration: &StepCalibration,
    objective: Objective,
    plans: &mut Plans,
    keep: usize,
    safe_bytes: u64,
) -> Vec<Corrected> {
    let mut all: Vec<(Corrected, Plan)> = std::mem::take(&mut plans.plans)
        .into_iter()
        .map(|mut plan| (calibration.correct(&mut plan.estimate), plan))
        .collect();
    let cost = |(_, plan): &(Corrected, Plan)| match objective {
        Objective::Time => plan.estimate.iteration_s,
        Objective::TokensPerGpu | Objective::Cost => 1.0 / plan.estimate.tokens_per_second_per_gpu,
    };
    all.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    // as the search: what was measured before what was not, unless its interval ends later
    let ways = |(_, plan): &(Corrected, Plan)| plan.estimate.outside.len();
    let end = |one: &(Corrected, Plan)| cost(one) * one.0.iteration_interval_s[1] / one.0.iteration_s;
    let latest = all.first().map_or(0.0, end);
    let best = all.iter().filter(|one| end(one) <= latest).min_by_key(|one| ways(one)).or(all.first());
    let (limit, most) = best.map_or((0.0, 0), |best| (cost(best) * (1.0 + RESOLUTION), ways(best)));
    let near = (0..all.len()).filter(|&number| cost(&all[number]) <= limit && ways(&all[number]) <= most);
    if let Some(simplest) =
        near.min_by_key(|&number| (all[number].1.memory_bytes() > safe_bytes, all[number].1.preference))
    {
        all[..=simplest].rotate_right(1);
    }
    let slower = all.len().saturating_sub(keep) as u64;
    if slower > 0 {
        *plans.ruled_out.entry(Reason::Predicted).or_default() += slower;
    }
    all.truncate(keep);
    let (corrected, mut ranked): (Vec<Corrected>, Vec<Plan>) = all.into_iter().unzip();
    mark_ties(&mut ranked);
    plans.plans = ranked;
    corrected
}

impl StepCalibration {
    /// Returns the line of [`StepCalibration::described`] for plans, with what the correction cannot see.
    pub fn described_plans(&self, corrected: &[Corrected]) -> String {
        let searched = format!("ranked among {SEARCHED} times as many layouts, the fastest before calibration");
        format!("{}; {searched}", self.described(corrected))
    }
}
