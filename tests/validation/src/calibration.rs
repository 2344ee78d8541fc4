//! How well measured layouts correct predictions of others: published groups, whose rows the fit had not seen, are split into layouts
//! that count as measured and layouts to predict. The prior of each group is chosen on the other groups.

use crate::errors::Errors;
use crate::errors::quantile;
use crate::left_out::{KINDS, Kind, read_ratios};
use crate::row::{Row, read};
use anyhow::{Context, Result};
use pipesim::calibration::{LeftOutError, MeasuredLayout, Prior, StepCalibration};
use pipesim::costs::StepTime;
use pipesim::models::IntervalClass;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Numbers of measured layouts.
pub const MEASURED: [usize; 4] = [1, 2, 4, 8];
/// Most choices of measured layouts per group.
const CHOICES: usize = 64;
/// Error beyond which a layout counts no more when the prior is chosen.
const FAR: f64 = 0.5;
/// Weight beyond which a group counts no more when the prior is chosen.
const HEAVY: f64 = 5.0;

const FADING: [f64; 7] = [2.0, 4.0, 6.0, 8.0, 11.0, 16.0, 32.0];
const NOISE: [f64; 5] = [0.001, 0.01, 0.03, 0.1, 0.3];
const NARROWING: [f64; 8] = [1.0, 0.75, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0];
/// Least share of the measured times in the narrowed intervals: about as many as in those that they start from.
const COVERED: f64 = 0.89;

const HEAD: &str = "\
# How predictions are corrected by measured steps, chosen on published steps that the fit had not seen, and the errors that are left.
# Errors of a group are by the prior that is chosen on the other groups. Written by
# `cargo run -p pipesim-validation -- calibration`.
";

/// A published layout, predicted without its group.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The predicted step.
    pub predicted: StepTime,
    /// Geometric mean of its measured times, in seconds.
    pub measured_s: f64,
    /// Sum of the weights of its rows.
    pub weight: f64,
    /// Logarithms of the ends of the interval of its class, relative to the prediction.
    interval: [f64; 2],
}

/// Layouts of the same publication, model, precision and GPU.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Whether the model is a mixture of experts.
    pub is_mixture: bool,
    /// Its layouts, at least two.
    pub layouts: Vec<Layout>,
}

impl Layout {
    /// Returns ln(measured / predicted).
    pub fn log(&self) -> f64 {
        (self.measured_s / self.predicted.iteration()).ln()
    }
}

fn step(value: &Value) -> Option<StepTime> {
    let part = |name: &str| value[name].as_f64();
    Some(StepTime {
        compute: part("compute")?,
        tensor_parallel_exposed: part("tensor_parallel_exposed")?,
        expert_parallel_exposed: part("expert_parallel_exposed")?,
        imbalance: part("imbalance").unwrap_or_default(),
        pipeline_bubble: part("pipeline_bubble")?,
        data_parallel_exposed: part("data_parallel_exposed")?,
        optimizer: part("optimizer")?,
        other: part("other")?,
    })
}

/// Returns a step that is `factor` times as long in every part.
fn scaled(time: &StepTime, factor: f64) -> StepTime {
    StepTime {
        compute: time.compute * factor,
        tensor_parallel_exposed: time.tensor_parallel_exposed * factor,
        expert_parallel_exposed: time.expert_parallel_exposed * factor,
        imbalance: time.imbalance * factor,
        pipeline_bubble: time.pipeline_bubble * factor,
        data_parallel_exposed: time.data_parallel_exposed * factor,
        optimizer: time.optimizer * factor,
        other: time.other * factor,
    }
}

/// Reads a kind's groups of at least two layouts. A layout's total is predicted without its group; the shares of its parts are those on
/// the page. Rows that are predicted alike in every part are one layout.
///
/// # Errors
/// A table, page or file of ratios that cannot be read.
pub fn groups(root: &Path, kind: Kind) -> Result<Vec<Group>> {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"));
    let page: Value = serde_json::from_str(&text(&format!("{}/published.json", kind.folder))?)?;
    let rows: BTreeMap<String, Row> =
        read(&text(kind.table)?)?.0.into_iter().map(|row| (row.id.clone(), row)).collect();
    let ratios: BTreeMap<String, f64> =
        read_ratios(&root.join(kind.folder))?.into_iter().map(|one| (one.id, one.group)).collect();
    let mut groups: Vec<(String, Vec<(StepTime, Layout)>)> = Vec::new();
    for entry in page["rows"].as_array().into_iter().flatten() {
        let id = entry["id"].as_str().unwrap_or_default();
        let (Some(row), Some(ratio), Some(time)) = (rows.get(id), ratios.get(id), step(&entry["time_s"])) else {
            continue;
        };
        let class = IntervalClass {
            is_narrow: row.is_narrow(),
            is_mixture: row.experts.is_some(),
            is_early: false,
            outside: row.costs()?.hull_point(1).outside(&[]).len(),
        };
        let layout = Layout {
            predicted: scaled(&time, ratio * row.iteration_s / time.iteration()),
            measured_s: row.iteration_s,
            weight: row.weight,
            interval: class.factors().map(f64::ln),
        };
        let place = groups.iter().position(|(name, _)| *name == row.group).unwrap_or(groups.len());
        if place == groups.len() {
            groups.push((row.group.clone(), Vec::new()));
        }
        match groups[place].1.iter_mut().find(|(known, _)| *known == time) {
            Some((_, known)) => {
                let weight = known.weight + layout.weight;
                let logs = known.weight * known.measured_s.ln() + layout.weight * layout.measured_s.ln();
                (known.measured_s, known.weight) = ((logs / weight).exp(), weight);
            }
            None => groups[place].1.push((time, layout)),
        }
    }
    let group = |(name, layouts): (String, Vec<(StepTime, Layout)>)| Group {
        name,
        is_mixture: kind.name == "mixture",
        layouts: layouts.into_iter().map(|(_, layout)| layout).collect(),
    };
    Ok(groups.into_iter().map(group).filter(|group| group.layouts.len() > 1).collect())
}

/// Returns choices of `count` of `all` numbers: all choices if there are few, otherwise some that depend on the name only.
fn choices(name: &str, all: usize, count: usize) -> Vec<Vec<usize>> {
    let possible = (0..count).fold(1.0, |product, one| product * (all - one) as f64 / (one + 1) as f64);
    let mut found = vec![Vec::new()];
    if possible <= CHOICES as f64 {
        for _ in 0..count {
            let longer = |chosen: Vec<usize>| {
                let from = chosen.last().map_or(0, |last| last + 1);
                (from..all).map(move |next| [chosen.clone(), vec![next]].concat())
            };
            found = found.into_iter().flat_map(longer).collect();
        }
        return found;
    }
    let mut state = name.bytes().fold(count as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below as u64) as usize
    };
    let mut one = || {
        let mut left: Vec<usize> = (0..all).collect();
        (0..count).map(|_| left.swap_remove(random(left.len()))).collect()
    };
    (0..CHOICES).map(|_| one()).collect()
}

/// A layout that is predicted after others were measured.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Number of measured layouts.
    measured: usize,
    /// ln(measured / predicted) without calibration.
    log: f64,
    /// ln of the correction.
    correction: f64,
    /// ln of one factor for all: the median of the measured layouts.
    median: f64,
    /// How much a narrowing of 1 narrows the interval.
    narrowed: f64,
    interval: [f64; 2],
    weight: f64,
}

fn error(log: f64) -> f64 {
    (log.exp() - 1.0).abs()
}

impl Sample {
    fn error(&self) -> f64 {
        error(self.correction - self.log)
    }

    fn is_covered(&self, narrowing: f64) -> bool {
        let [low, high] = self.interval.map(|end| end * self.narrowed.powf(narrowing));
        (low..=high).contains(&(self.log - self.correction))
    }
}

/// Returns the predictions of a group's layouts after others were measured; for each number of these they weigh as much as the group.
fn samples(group: &Group, prior: Prior) -> Vec<Sample> {
    let all = &group.layouts;
    let of_count = |measured: usize| {
        let mut found = Vec::new();
        for chosen in choices(&group.name, all.len(), measured) {
            let runs = chosen.iter().map(|&number| MeasuredLayout {
                predicted: all[number].predicted,
                measured_s: all[number].measured_s,
                point: None,
            });
            let calibration = StepCalibration::with_prior(Prior { narrowing: 1.0, ..prior }, &runs.collect::<Vec<_>>());
            let logs: Vec<(f64, f64)> = chosen.iter().map(|&number| (all[number].log(), 1.0)).collect();
            let median = (quantile(&logs, 0.5)
                - quantile(&logs.iter().map(|(log, _)| (-log, 1.0)).collect::<Vec<_>>(), 0.5))
                / 2.0;
            for layout in (0..all.len()).filter(|number| !chosen.contains(number)).map(|number| &all[number]) {
                let correction = calibration.correction(&layout.predicted);
                found.push(Sample {
                    measured,
                    log: layout.log(),
                    correction: correction.factor.ln(),
                    median,
                    narrowed: correction.narrowed,
                    interval: layout.interval,
                    weight: layout.weight,
                });
            }
        }
        let [own, sum] =
            [group.layouts.iter().map(|one| one.weight).sum::<f64>(), found.iter().map(|one| one.weight).sum()];
        found.iter_mut().for_each(|one| one.weight *= own / sum);
        found
    };
    MEASURED.into_iter().filter(|measured| *measured < all.len()).flat_map(of_count).collect()
}

/// Returns what a group adds to the loss of a prior.
fn loss(group: &Group, prior: Prior) -> f64 {
    let weight: f64 = group.layouts.iter().map(|layout| layout.weight).sum();
    let sum: f64 = samples(group, prior).iter().map(|one| one.weight * one.error().min(FAR)).sum();
    sum * (HEAVY / weight).min(1.0)
}

/// Groups with the losses of all priors.
struct Selection {
    groups: Vec<Group>,
    priors: Vec<Prior>,
    /// By prior and group.
    losses: Vec<Vec<f64>>,
}

impl Selection {
    fn new(groups: Vec<Group>) -> Selection {
        let of = |fading: f64| NOISE.map(|noise| Prior { fading, noise, narrowing: 1.0 });
        let priors: Vec<Prior> = FADING.into_iter().flat_map(of).collect();
        let losses = priors.iter().map(|&prior| groups.iter().map(|group| loss(group, prior)).collect()).collect();
        Selection { groups, priors, losses }
    }

    /// Returns the prior that is best on all groups but one, or on all.
    fn prior(
        &self,
        without: Option<usize>,
        coverages: &mut BTreeMap<usize, Vec<[[f64; 2]; NARROWING.len()]>>,
    ) -> Prior {
        let sum = |losses: &Vec<f64>| {
            losses.iter().enumerate().filter(|(at, _)| Some(*at) != without).map(|(_, loss)| loss).sum::<f64>()
        };
        let best = (0..self.priors.len()).min_by(|&a, &b| sum(&self.losses[a]).total_cmp(&sum(&self.losses[b])));
        let best = best.unwrap_or_default();
        let covered = coverages
            .entry(best)
            .or_insert_with(|| self.groups.iter().map(|group| coverage(&samples(group, self.priors[best]))).collect());
        let share = |number: usize| {
            let others = covered.iter().enumerate().filter(|(at, _)| Some(*at) != without);
            let [inside, all] =
                others.fold([0.0, 0.0], |[inside, all], (_, of)| [inside + of[number][0], all + of[number][1]]);
            inside / all
        };
        let narrowing = (0..NARROWING.len()).find(|&number| share(number) >= COVERED);
        Prior { narrowing: narrowing.map_or(0.0, |number| NARROWING[number]), ..self.priors[best] }
    }
}

/// Returns the weight in the interval and all weight, by narrowing.
fn coverage(samples: &[Sample]) -> [[f64; 2]; NARROWING.len()] {
    let all: f64 = samples.iter().map(|one| one.weight).sum();
    NARROWING.map(|narrowing| {
        let inside = samples.iter().filter(|one| one.is_covered(narrowing));
        [inside.map(|one| one.weight).sum(), all]
    })
}

/// Returns the errors with `measured` layouts, and those of one factor for all.
fn summary(of: &[(Prior, Vec<Sample>)], measured: usize) -> (LeftOutError, Errors) {
    let chosen =
        |samples: &[Sample]| samples.iter().filter(|one| one.measured == measured).copied().collect::<Vec<_>>();
    let groups: Vec<(Prior, Vec<Sample>)> = of
        .iter()
        .map(|(prior, samples)| (*prior, chosen(samples)))
        .filter(|(_, samples)| !samples.is_empty())
        .collect();
    let errors = |error: fn(&Sample) -> f64, samples: &[Sample]| {
        Errors::of(&samples.iter().map(|one| (error(one), one.weight)).collect::<Vec<_>>())
    };
    let growth = |(_, samples): &(Prior, Vec<Sample>)| {
        errors(Sample::error, samples).mean - errors(|one| error(-one.log), samples).mean
    };
    let all: Vec<Sample> = groups.iter().flat_map(|(_, samples)| samples.clone()).collect();
    let inside =
        groups.iter().flat_map(|(prior, samples)| samples.iter().filter(|one| one.is_covered(prior.narrowing)));
    let (before, after) = (errors(|one| error(-one.log), &all), errors(Sample::error, &all));
    let left = LeftOutError {
        measured,
        groups: groups.len(),
        mean_before: before.mean,
        mean: after.mean,
        median_before: before.median,
        median: after.median,
        coverage: inside.map(|one| one.weight).sum::<f64>() / before.weight,
        worse: groups.iter().filter(|group| growth(group) > 0.0).count() as f64 / groups.len() as f64,
        most_worse: groups.iter().map(growth).fold(0.0, f64::max),
    };
    (left, errors(|one| error(one.median - one.log), &all))
}

/// Returns the file of the prior and the errors, and a table in Markdown.
///
/// # Errors
/// As [`groups`].
pub fn calibration(root: &Path) -> Result<[String; 2]> {
    let groups: Vec<Group> =
        KINDS.into_iter().map(|kind| groups(root, kind)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let selection = Selection::new(groups);
    let mut coverages = BTreeMap::new();
    let Prior { fading, noise, narrowing } = selection.prior(None, &mut coverages);
    let mut file = format!("{HEAD}\n[prior]\nfading = {fading}\nnoise = {noise}\nnarrowing = {narrowing:?}\n");
    let mut table = "| models | measured layouts | groups | mean: none | one factor | calibrated | median: none | one factor | calibrated | in the interval | groups made worse | by at most |\n".to_string();
    table += &format!("| :--- {}|\n", "| ---: ".repeat(11));
    let mut chosen = BTreeSet::new();
    let nested: Vec<(bool, (Prior, Vec<Sample>))> = (0..selection.groups.len())
        .map(|number| {
            let prior = selection.prior(Some(number), &mut coverages);
            chosen.insert(format!("{prior:?}"));
            let group = &selection.groups[number];
            (group.is_mixture, (prior, samples(group, prior)))
        })
        .collect();
    for (name, is_mixture) in [("dense", false), ("mixture", true)] {
        let own: Vec<_> = nested.iter().filter(|(is, _)| *is == is_mixture).map(|(_, of)| of.clone()).collect();
        for measured in MEASURED {
            let (left, factor) = summary(&own, measured);
            let LeftOutError { groups, mean_before, mean, median_before, median, coverage, worse, most_worse, .. } =
                left;
            let _ = write!(file, "\n[[{name}]]\nmeasured = {measured}\ngroups = {groups}\n");
            let numbers = [
                ("mean_before", mean_before),
                ("mean", mean),
                ("median_before", median_before),
                ("median", median),
                ("coverage", coverage),
                ("worse", worse),
                ("most_worse", most_worse),
            ];
            numbers.iter().for_each(|(key, number)| file += &format!("{key} = {number:.4}\n"));
            let cells = [mean_before, factor.mean, mean, median_before, factor.median, median]
                .map(|share| format!("{:.1} %", 100.0 * share));
            let shares = [coverage, worse].map(|share| format!("{:.0} %", 100.0 * share));
            let cells = cells
                .into_iter()
                .chain(shares)
                .chain([format!("{:.1} %", 100.0 * most_worse)])
                .collect::<Vec<_>>()
                .join(" | ");
            let _ = writeln!(table, "| {name} | {measured} | {groups} | {cells} |");
        }
    }
    let _ = writeln!(table, "\nPriors chosen without a group: {}", chosen.into_iter().collect::<Vec<_>>().join("; "));
    Ok([file, table])
}

/// Writes the file below `root`, the repository, and prints the table.
///
/// # Errors
/// As [`calibration`], or a file that cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let [file, table] = calibration(root)?;
    let path = root.join("hardware/calibration.toml");
    std::fs::write(&path, file).with_context(|| format!("cannot write {}", path.display()))?;
    print!("{table}");
    Ok(())
}
