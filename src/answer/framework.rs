//! What the framework of a stack says of a layout.

use crate::resolve::{Error, usage};
use pipesim_cost::analytic::Analytic;
use pipesim_frameworks::{Facts, Framework, Objection, ObjectionKind, objections};
use pipesim_models::hardware::Stack;
use pipesim_models::model_spec::StageLayout;
use pipesim_schedule::schedule::Schedule;
use serde::Serialize;

/// The verdict of a framework on a layout under a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameworkVerdict {
    /// Name of the framework.
    pub name: String,
    /// What texts call it.
    pub title: String,
    pub version: String,
    /// Whether it trains the layout as predicted, options that users must add aside.
    pub accepts: bool,
    pub objections: Vec<Objection>,
}

/// Returns the framework that `stack` runs, in the version that it names or the newest; `None` if none is known.
///
/// # Errors
/// No such framework or version.
pub fn framework(stack: &Stack) -> Result<Option<&'static Framework>, Error> {
    let version = stack.framework_version.as_deref();
    match &stack.framework {
        Some(name) => Framework::find(name, version).map(Some).map_err(usage),
        None if version.is_some() => Err(usage(format!(
            "`framework-version`: expected a stack with rules of its framework, found {}; leave it out",
            stack.name
        ))),
        None => Ok(None),
    }
}

/// Returns what is known of a layout. `schedule` is the name of a built-in schedule without its options; `None`: of a file.
pub fn facts(analytic: &Analytic, schedule: Option<&str>) -> Facts {
    let mut facts = Facts::default();
    facts.add_layout(&analytic.layout, schedule).add_model(&analytic.model).add_hardware(&analytic.machine.hardware);
    facts.set("attention", analytic.attention().name());
    if let Ok(stages) = analytic.stages(analytic.layout.stages()) {
        facts.add_stages(&StageLayout::of(&stages), analytic.layout.layout.is_some());
    }
    facts
}

impl FrameworkVerdict {
    /// Returns the verdict of the framework of the layout's stack, if it has one. `built_in` is the name of the schedule among the built-in
    /// ones, if it is one of them.
    ///
    /// # Errors
    /// No such version, or a rule that cannot be evaluated.
    pub fn of(
        analytic: &Analytic,
        schedule: &Schedule,
        built_in: Option<&str>,
    ) -> Result<Option<FrameworkVerdict>, Error> {
        let Some(framework) = framework(&analytic.machine.stack)? else { return Ok(None) };
        let mut facts = facts(analytic, built_in);
        if let Ok(stages) = analytic.stages(schedule.placement.stages()) {
            facts.add_stages(&StageLayout::of(&stages), analytic.layout.layout.is_some());
        }
        let objections = objections(framework, &facts, schedule, built_in).map_err(usage)?;
        Ok(Some(FrameworkVerdict {
            name: framework.name().to_string(),
            title: framework.title().to_string(),
            version: framework.version().to_string(),
            accepts: objections.iter().all(|one| one.kind == ObjectionKind::Needs),
            objections,
        }))
    }
}

/// Returns the objections of the framework of `changed` that it does not have to `own`, options that users must add aside: a change
/// that it cannot follow is no advice. `built_in` is the schedule's name, as in [`facts`].
///
/// # Errors
/// A rule that cannot be evaluated.
pub fn new_objections(own: &Analytic, changed: &Analytic, built_in: Option<&str>) -> Result<Vec<Objection>, Error> {
    let Some(framework) = framework(&changed.machine.stack)? else { return Ok(Vec::new()) };
    let of = |analytic: &Analytic| framework.objections(&facts(analytic, built_in)).map_err(usage);
    let (known, mut found) = (of(own)?, of(changed)?);
    found.retain(|one| one.kind != ObjectionKind::Needs && !known.iter().any(|known| known.rule == one.rule));
    Ok(found)
}
