//! Whether training frameworks run a schedule: whether they have it, what they refuse, and whether their sends and receives end.

use super::error::Error;
use super::facts::Facts;
use super::framework::{Framework, Objection, ObjectionKind, frameworks};
use pipesim_schedule::check;
use pipesim_schedule::csv;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::schedule::Schedule;
use serde::Serialize;

/// What a framework does with a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunVerdict {
    Runs,
    /// It raises an error before or in the first step.
    Refused,
    /// Its devices wait for one another.
    Deadlock,
    /// It lacks the schedule or a kind of op.
    Missing,
    /// It runs something else.
    Silent,
}

/// The verdict of a version of a framework on a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameworkCheck {
    /// Name of the framework.
    pub name: &'static str,
    /// What texts call it.
    pub title: &'static str,
    pub version: &'static str,
    pub verdict: RunVerdict,
    pub objections: Vec<Objection>,
    /// Which device waits for which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadlock: Option<String>,
    /// Repository and commit of the sources that objections name.
    pub source: &'static str,
    #[serde(skip)]
    delivery: Option<&'static str>,
}

/// Returns the frameworks called `names`, in this version or the newest; without names the newest version of each whose sends and receives
/// are known.
///
/// # Errors
/// No such framework or version, or a version for several.
pub fn chosen(names: &[String], version: Option<&str>) -> Result<Vec<&'static Framework>, Error> {
    if let Some(version) = version.filter(|_| names.len() != 1) {
        let found = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        return Err(Error::Versions { version: version.to_string(), found });
    }
    if !names.is_empty() {
        return names.iter().map(|name| Framework::find(name, version)).collect();
    }
    let mut newest = newest()?;
    newest.retain(|one| one.delivery().is_some());
    // Those that a delivery is named after, then those that build on them.
    newest.sort_by_key(|one| ![Some(one.name()), one.target()].contains(&one.delivery()));
    Ok(newest)
}

/// Returns the frameworks that have a built-in schedule, each with its own name of it.
///
/// # Errors
/// A file that cannot be read.
pub fn having(schedule: &str) -> Result<Vec<(&'static Framework, &'static str)>, Error> {
    let own = |framework: &'static Framework| Some((framework, own_name(framework, schedule)?));
    Ok(newest()?.into_iter().filter_map(own).collect())
}

fn newest() -> Result<Vec<&'static Framework>, Error> {
    let mut newest = frameworks()?;
    newest.dedup_by_key(|one| one.name());
    Ok(newest)
}

fn own_name(framework: &'static Framework, schedule: &str) -> Option<&'static str> {
    framework.schedules().find(|(name, _)| *name == schedule).map(|(_, own)| own)
}

/// Says the verdicts on one schedule. `brief`: without frameworks that have delivery and verdict in common with an earlier one.
pub fn sentences(checks: &[FrameworkCheck], brief: bool) -> String {
    let key = |one: &FrameworkCheck| (one.delivery, one.verdict);
    let is_new = |number: &usize| !checks[..*number].iter().any(|before| key(before) == key(&checks[*number]));
    let shown = (0..checks.len()).filter(|number| !brief || is_new(number));
    shown.map(|number| checks[number].sentence(brief)).collect::<Vec<_>>().join(" ")
}

/// Returns what a framework objects to in a schedule of a layout with these facts, none of them about the schedule. A schedule that it lacks may
/// be loaded from a file. `built_in` is the name of the schedule among the built-in ones, if it is one of them.
///
/// # Errors
/// A rule that cannot be evaluated.
pub fn objections(
    framework: &Framework,
    facts: &Facts,
    schedule: &Schedule,
    built_in: Option<&str>,
) -> Result<Vec<Objection>, Error> {
    let (mut facts, mut of_file) = (facts.clone(), facts.clone());
    facts.add_schedule(schedule, built_in);
    let asked = facts.text("schedule").to_string();
    let is_own = asked.is_empty() || framework.schedules().any(|(name, _)| name == asked);
    if framework.csv().is_none() || is_own {
        return framework.objections(&facts);
    }
    of_file.add_schedule(schedule, None).forget("schedule").set("csv", "compute_only");
    let mut found = framework.objections(&of_file)?;
    let rule = "schedule-file".to_string();
    let is_missing = found.iter().any(|one| one.kind == ObjectionKind::Missing);
    if let (Err(csv::Error::Schedule { reason: error, remedy, .. }), false) = (csv::check(schedule), is_missing) {
        found.push(Objection { rule, kind: ObjectionKind::Missing, error, remedy, source: String::new() });
    } else if built_in.is_some() && !is_missing {
        let error = format!("{} has no {asked}", framework.title());
        let remedy = "load its file from `pipesim export --to pytorch-csv`".to_string();
        found.push(Objection { rule, kind: ObjectionKind::Needs, error, remedy, source: String::new() });
    }
    Ok(found)
}

impl FrameworkCheck {
    /// Returns the verdict of a framework. `built_in` is the name of the schedule among the built-in ones, if it is one of them.
    ///
    /// # Errors
    /// A rule that cannot be evaluated.
    pub fn of(
        framework: &'static Framework,
        graph: &TaskGraph,
        built_in: Option<&str>,
    ) -> Result<FrameworkCheck, Error> {
        let objections = objections(framework, &Facts::default(), graph.schedule(), built_in)?;
        let has = |kind: ObjectionKind| objections.iter().any(|one| one.kind == kind);
        // pairs of a forward and a backward communicate within the pair, which no delivery describes
        let has_pairs = graph.schedule().has_pairs();
        let delivery = framework.delivery().and_then(|name| name.parse::<Delivery>().ok()).filter(|_| !has_pairs);
        let mut deadlock = None;
        let verdict = if has(ObjectionKind::Missing) {
            RunVerdict::Missing
        } else if has(ObjectionKind::Refused) {
            RunVerdict::Refused
        } else if has(ObjectionKind::Silent) {
            RunVerdict::Silent
        } else if let Some(Err(circle)) = delivery.map(|delivery| check::check(graph, delivery)) {
            deadlock = Some(circle.to_string());
            RunVerdict::Deadlock
        } else {
            RunVerdict::Runs
        };
        let (name, title, version) = (framework.name(), framework.title(), framework.version());
        let (source, delivery) = (framework.source(), framework.delivery());
        Ok(FrameworkCheck { name, title, version, verdict, objections, deadlock, source, delivery })
    }

    /// Says the verdict in a sentence. `brief`: without the list of the schedules that it has.
    pub fn sentence(&self, brief: bool) -> String {
        let FrameworkCheck { title, version, .. } = self;
        let kind = match self.verdict {
            RunVerdict::Deadlock => return format!("{title} {version}: deadlocks."),
            RunVerdict::Runs => ObjectionKind::Needs,
            RunVerdict::Refused => ObjectionKind::Refused,
            RunVerdict::Missing => ObjectionKind::Missing,
            RunVerdict::Silent => ObjectionKind::Silent,
        };
        let Some(objection) = self.objections.iter().find(|one| one.kind == kind) else {
            return format!("{title} {version}: runs.");
        };
        let (error, remedy) = (objection.error.trim_end_matches('.'), &objection.remedy);
        let mut text = match self.verdict {
            RunVerdict::Refused => format!("refuses: {error}"),
            RunVerdict::Silent => format!("runs something else: {error}"),
            RunVerdict::Missing => match error.strip_prefix(title).and_then(|rest| rest.strip_prefix(" has no ")) {
                Some(schedule) => format!("has no {schedule}"),
                None => format!("cannot express it: {error}"),
            },
            RunVerdict::Runs | RunVerdict::Deadlock => return format!("{title} {version}: runs if you {remedy}."),
        };
        if !objection.source.is_empty() {
            text += &format!(" ({})", objection.source);
        }
        let is_list = remedy.starts_with("choose among");
        if !(remedy.is_empty() || brief && is_list) {
            text += &format!("; {remedy}");
        }
        format!("{title} {version}: {text}.")
    }
}
