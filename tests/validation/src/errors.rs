//! Errors of the predictions: by kind of row, and compared with a rule of thumb.

use crate::prediction::RowPrediction;
use std::collections::{BTreeMap, BTreeSet};

/// Relative errors of a set of rows, weighted.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Errors {
    /// Number of rows.
    pub rows: usize,
    /// Sum of their weights.
    pub weight: f64,
    /// Mean absolute error.
    pub mean: f64,
    /// Median absolute error.
    pub median: f64,
    /// Mean signed error: positive if predicted steps are too long.
    pub bias: f64,
}

impl Errors {
    /// Summarizes pairs of error and weight.
    pub fn of(errors: &[(f64, f64)]) -> Errors {
        let weight: f64 = errors.iter().map(|(_, weight)| weight).sum();
        if weight <= 0.0 {
            return Errors::default();
        }
        let mean =
            |size: fn(f64) -> f64| errors.iter().map(|(error, weight)| size(*error) * weight).sum::<f64>() / weight;
        let mut sizes: Vec<(f64, f64)> = errors.iter().map(|(error, weight)| (error.abs(), *weight)).collect();
        sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut below, weight_of_all) = (0.0, weight);
        let median = sizes.iter().find(|(_, weight)| {
            below += weight;
            below >= 0.5 * weight_of_all
        });
        Errors {
            rows: errors.len(),
            weight,
            mean: mean(f64::abs),
            median: median.map_or(0.0, |(size, _)| *size),
            bias: mean(|error| error),
        }
    }
}

/// Returns the value below which this share of the weight is, from pairs of value and weight; 1 of none.
pub fn quantile(values: &[(f64, f64)], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (all, mut below) = (sorted.iter().map(|(_, weight)| weight).sum::<f64>(), 0.0);
    let found = sorted.iter().find(|(_, weight)| {
        below += weight;
        below >= share * all
    });
    found.or(sorted.last()).map_or(1.0, |(value, _)| *value)
}

/// A name and a function that groups rows.
pub type Grouping = (&'static str, fn(&RowPrediction) -> String);

/// Groupings that the page has a table for.
pub const GROUPINGS: [Grouping; 5] = [
    ("family", |prediction| prediction.row.family.clone()),
    ("pipeline", |prediction| match prediction.row.pp {
        1 => "no pipeline".to_string(),
        2..=4 => "2 to 4 devices".to_string(),
        5..=8 => "5 to 8 devices".to_string(),
        9..=16 => "9 to 16 devices".to_string(),
        _ => "more than 16 devices".to_string(),
    }),
    ("precision", |prediction| prediction.row.precision.clone()),
    ("GPU", |prediction| prediction.row.gpu.clone()),
    ("software", |prediction| prediction.row.stack.clone()),
];

/// Whether linear layers have fewer than 16 bits.
pub fn is_narrow(prediction: &RowPrediction) -> bool {
    prediction.row.is_narrow()
}

/// Returns the errors of the rows that `includes` accepts.
pub fn errors(rows: &[RowPrediction], includes: impl Fn(&RowPrediction) -> bool) -> Errors {
    let found: Vec<(f64, f64)> = rows
        .iter()
        .filter(|prediction| includes(prediction))
        .filter_map(|prediction| Some((prediction.error()?, prediction.row.weight)))
        .collect();
    Errors::of(&found)
}

/// Returns the names of the groups of rows, the largest mean error first.
pub fn kinds(rows: &[RowPrediction], of: fn(&RowPrediction) -> String) -> Vec<String> {
    let names: BTreeSet<String> = rows.iter().map(of).collect();
    let mut all: Vec<(String, f64)> =
        names.into_iter().map(|name| (name.clone(), errors(rows, |prediction| of(prediction) == name).mean)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.into_iter().map(|(name, _)| name).collect()
}

/// Returns the errors of a rule of thumb on the rows that `includes` accepts: the median MFU of a GPU and precision.
pub fn rule_of_thumb(rows: &[RowPrediction], includes: impl Fn(&RowPrediction) -> bool) -> Errors {
    let mut kinds: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for prediction in rows {
        kinds.entry((&prediction.row.gpu, &prediction.row.precision)).or_default().push(prediction.mfu);
    }
    for all in kinds.values_mut() {
        all.sort_by(f64::total_cmp);
    }
    let error = |prediction: &RowPrediction| {
        let all = &kinds[&(prediction.row.gpu.as_str(), prediction.row.precision.as_str())];
        let median = all[all.len() / 2];
        (median > 0.0).then(|| (prediction.mfu / median - 1.0, prediction.row.weight))
    };
    Errors::of(&rows.iter().filter(|prediction| includes(prediction)).filter_map(error).collect::<Vec<_>>())
}

/// Counts pairs of layouts whose measured times differ by more than 8 %: those that the predictions rank correctly, and all. Both
/// layouts of a pair have the same model, GPUs, batch, sequence length, precision and software. The same layout measured with another
/// release of the software is no pair.
pub fn pairs(rows: &[RowPrediction]) -> (usize, usize) {
    let (mut right, mut all) = (0, 0);
    for (number, a) in rows.iter().enumerate() {
        for b in &rows[..number] {
            let kind = |prediction: &RowPrediction| {
                let row = &prediction.row;
                let names = [&row.group, &row.precision, &row.stack].map(String::clone);
                (names, row.gpus, row.batch, row.seq)
            };
            let of =
                |prediction: &RowPrediction| -> (f64, Option<f64>) { (prediction.row.iteration_s, prediction.error()) };
            let layout = |prediction: &RowPrediction| (prediction.row.model.name.clone(), prediction.row.layout().ok());
            if kind(a) != kind(b) || layout(a) == layout(b) {
                continue;
            }
            let ((slow, Some(slow_error)), (fast, Some(fast_error))) = (of(a), of(b)) else { continue };
            if (slow / fast).max(fast / slow) <= 1.08 {
                continue;
            }
            all += 1;
            let predicted = slow * (1.0 + slow_error) > fast * (1.0 + fast_error);
            right += usize::from(predicted == (slow > fast));
        }
    }
    (right, all)
}
