//! Where the user's own layout stands among the plans.

use super::PlanVerb;
use crate::cli::Failure;
use crate::cli::sandbox::Sandbox;
use pipesim_answer::plan::{Names, PlanReport, Plans, Reason, Search};
use pipesim_answer::question::Question;
use pipesim_verdict::calibration::StepCalibration;
use pipesim_verdict::standing::{Standing, standing};

impl PlanVerb {
    /// Returns where the user's own layout stands, and keeps as many plans as are shown.
    pub(super) fn standing(
        &self,
        asked: &Question,
        search: &Search<'_>,
        plans: &mut Plans,
        calibration: Option<&StepCalibration>,
    ) -> Result<Option<Standing>, Failure> {
        let Some(own) = self.mine.own(asked)? else { return Ok(None) };
        let report = PlanReport { search, plans, names: Names::from(asked), why: None, mine: None, first: None };
        let found = standing(&own, &report, calibration, &Sandbox)?;
        let shown = (self.top as usize).min(plans.plans.len());
        let slower = plans.plans.split_off(shown).len() as u64;
        if slower > 0 {
            *plans.ruled_out.entry(Reason::Predicted).or_default() += slower;
        }
        Ok(Some(found))
    }
}
