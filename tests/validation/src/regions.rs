//! Regions of published steps that are left out in turn, the hull of the others, and the errors on what is outside of it.

use crate::fit::CrossValidation;
use crate::row::Row;
use anyhow::{Context, Result};
use pipesim::models::{HULL_GROUPS, Hull, HullPoint, STACKS};
use pipesim::questions::{Question, VERSION, answer};
use pipesim::schedules::Files;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Most of a region's share of the rows: what is left must be able to determine a fit.
const MOST: f64 = 0.75;

/// Regions of sizes: an axis of the hull, and the least and most of the region.
pub type Cut = (&'static str, f64, f64);

const ALL: f64 = f64::MAX;

/// Software, each with all that is based on it.
pub type Bases = BTreeMap<String, Vec<String>>;

/// Regions of dense models; each name of the hull is one, too.
pub const DENSE: [Cut; 13] = [
    ("gigaparameters", 0.0, 1.0),
    ("gigaparameters", 200.0, ALL),
    ("hidden", 0.0, 1024.0),
    ("hidden", 16384.0, ALL),
    ("vocabulary-percent", 15.0, ALL),
    ("gpus", 1024.0, ALL),
    ("tp", 9.0, ALL),
    ("pp", 16.0, ALL),
    ("cp", 2.0, ALL),
    ("chunks", 6.0, ALL),
    ("micro-batch-size", 16.0, ALL),
    ("micro-tokens", 32768.0, ALL),
    ("sequence", 16384.0, ALL),
];

/// Regions of mixtures of experts.
pub const MIXTURES: [Cut; 11] = [
    ("gigaparameters", 0.0, 25.0),
    ("gigaparameters", 400.0, ALL),
    ("hidden", 0.0, 2048.0),
    ("experts", 0.0, 64.0),
    ("gpus", 512.0, ALL),
    ("tp", 4.0, ALL),
    ("pp", 8.0, ALL),
    ("ep", 64.0, ALL),
    ("chunks", 8.0, ALL),
    ("micro-batch-size", 4.0, ALL),
    ("sequence", 8192.0, ALL),
];

/// A measured step of a publication outside of the tables.
#[derive(Clone, Debug, Deserialize)]
pub struct ReportedStep {
    /// Identifier.
    pub id: String,
    /// Publication.
    pub source: String,
    /// Seconds per iteration.
    pub measured_s: f64,
    /// Lines of the question about it, with paths from the repository's root.
    pub question: Vec<String>,
}

/// Their table, from the repository's root.
pub const REPORTED: &str = "tests/golden/reports/steps.json";

/// Predicts the steps of publications outside of the tables, of one kind of model, and keeps those outside of its hull.
///
/// # Errors
/// A table that cannot be read, or a question without an answer.
pub fn reported(root: &Path, is_mixture: bool, hull: &Hull) -> Result<Vec<OutsideRatio>> {
    let path = root.join(REPORTED);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let steps: Vec<ReportedStep> = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let mut found = Vec::new();
    for step in steps {
        let lines = step.question.join("\n").replace("tests/golden", &root.join("tests/golden").display().to_string());
        let question = Question::from_toml(&format!("version = {VERSION}\n{lines}\n"))?;
        let answered = answer(&question, &Files).with_context(|| step.id.clone())?;
        let estimate = answered.predictions.first().and_then(|one| one.estimate.as_ref()).context("no estimate")?;
        let outside = hull.outside(&estimate.point, &[]).len();
        if estimate.point.is_mixture == is_mixture && outside > 0 {
            let ratio = estimate.iteration_s / step.measured_s;
            found.push(OutsideRatio { region: format!("report {}", step.source), id: step.id, ratio, outside });
        }
    }
    Ok(found)
}

/// A row outside of the hull of the rows that a fit has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutsideRatio {
    /// The region that was left out: axis and name, or axis and limits.
    pub region: String,
    /// Identifier of the row.
    pub id: String,
    /// Predicted over measured time.
    pub ratio: f64,
    /// Number of axes on which it is outside.
    pub outside: usize,
}

/// Returns the hull of rows, each with its group.
pub fn hull<'a>(rows: impl Iterator<Item = (&'a str, &'a HullPoint)>, bases: &Bases) -> Hull {
    let mut names: BTreeMap<String, BTreeMap<String, BTreeSet<&str>>> = BTreeMap::new();
    let mut sizes: BTreeMap<String, BTreeMap<&str, [f64; 2]>> = BTreeMap::new();
    for (group, point) in rows {
        for (axis, name) in point.names() {
            let based = bases.get(name).filter(|_| matches!(axis, "software" | "beyond-node"));
            let own = [name.to_string()];
            for name in based.map_or(&own[..], |based| based) {
                names.entry(axis.to_string()).or_default().entry(name.clone()).or_default().insert(group);
            }
        }
        for (axis, size) in point.sizes() {
            let of = sizes.entry(axis.to_string()).or_default().entry(group).or_insert([size, size]);
            *of = [of[0].min(size), of[1].max(size)];
        }
    }
    let counted = |(name, groups): (String, BTreeSet<&str>)| (name, groups.len());
    let ends = |(axis, groups): (String, BTreeMap<&str, [f64; 2]>)| {
        let [mut least, mut most]: [Vec<f64>; 2] = [0, 1].map(|end| groups.values().map(|ends| ends[end]).collect());
        least.sort_by(f64::total_cmp);
        most.sort_by(|a, b| b.total_cmp(a));
        // context parallelism is rare: one group counts
        let groups = if axis == "cp" { 1 } else { HULL_GROUPS };
        let at = |ends: &[f64], empty: f64| ends.get(groups - 1).copied().unwrap_or(empty);
        (axis, [at(&least, f64::MAX), at(&most, f64::MIN), least[0], most[0]])
    };
    Hull {
        names: names.into_iter().map(|(axis, names)| (axis, names.into_iter().map(counted).collect())).collect(),
        sizes: sizes.into_iter().map(ends).collect(),
    }
}

/// Returns each software with all that is based on it: their runs count for it.
///
/// # Errors
/// A file of software that cannot be read.
pub fn based(root: &Path) -> Result<Bases> {
    let mut found = Bases::new();
    for name in STACKS {
        let mut next = name.to_string();
        while next != "common" {
            found.entry(next.clone()).or_default().push(name.to_string());
            let path = root.join(format!("hardware/stacks/{next}.toml"));
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let base = text.lines().find_map(|line| line.strip_prefix("base = \""));
            next = base.and_then(|rest| rest.split('"').next()).unwrap_or("common").to_string();
        }
    }
    Ok(found)
}

/// Returns a hull as a part of its file.
pub fn written(kind: &str, hull: &Hull) -> String {
    let mut text = String::new();
    for (axis, names) in &hull.names {
        let names: Vec<String> = names.iter().map(|(name, groups)| format!("{name:?} = {groups}")).collect();
        let _ = writeln!(text, "\n[{kind}.names.{axis}]\n{}", names.join("\n"));
    }
    let _ = writeln!(text, "\n[{kind}.sizes]");
    for (axis, [least, most, least_of_all, most_of_all]) in &hull.sizes {
        let _ = writeln!(text, "{axis} = [{least:?}, {most:?}, {least_of_all:?}, {most_of_all:?}]");
    }
    text
}

/// Returns the regions with the places of their rows.
fn regions(points: &[HullPoint], cuts: &[Cut]) -> BTreeMap<String, BTreeSet<usize>> {
    let mut regions: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (place, point) in points.iter().enumerate() {
        for (axis, name) in point.names() {
            regions.entry(format!("{axis} {name}")).or_default().insert(place);
        }
        for (axis, size) in point.sizes() {
            for (_, least, most) in
                cuts.iter().filter(|(cut, least, most)| *cut == axis && (*least..=*most).contains(&size))
            {
                let limits = if *most == ALL { format!(">= {least}") } else { format!("<= {most}") };
                regions.entry(format!("{axis} {limits}")).or_default().insert(place);
            }
        }
    }
    regions.retain(|_, places| (places.len() as f64) < MOST * points.len() as f64);
    regions
}

/// Predicts each region by a fit without it, and keeps the rows that are outside of the hull of the others.
///
/// # Errors
/// Rows without costs, or constants out of range.
pub fn outside(fit: &CrossValidation, cuts: &[Cut], bases: &Bases) -> Result<Vec<OutsideRatio>> {
    let (rows, points): (Vec<&Row>, Vec<HullPoint>) =
        fit.rows()?.into_iter().map(|(row, costs)| (row, costs.hull_point(1))).unzip();
    let mut found = Vec::new();
    for (region, places) in regions(&points, cuts) {
        let others = (0..rows.len()).filter(|place| !places.contains(place));
        let hull = hull(others.map(|place| (rows[place].group.as_str(), &points[place])), bases);
        for (&place, ratio) in places.iter().zip(fit.without(&places)?) {
            let (id, outside) = (rows[place].id.clone(), hull.outside(&points[place], &[]).len());
            found.extend((outside > 0).then(|| OutsideRatio { region: region.clone(), id, ratio, outside }));
        }
    }
    Ok(found)
}
