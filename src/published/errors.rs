//! How far predictions are from what was measured: by kind of row, and beside a rule of thumb.

use super::held::Held;
use std::collections::BTreeMap;

/// Errors of some rows, as shares; each row counts by its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Errors {
    /// How many rows.
    pub rows: usize,
    /// Their weights' sum.
    pub weight: f64,
    /// Mean of sizes.
    pub mean: f64,
    /// Median of sizes.
    pub median: f64,
    /// Mean with signs: above 0 where too long a step is predicted.
    pub bias: f64,
}

impl Errors {
    /// Of errors with their weights.
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

/// What rows are told apart by.
pub type Trait = (&'static str, fn(&Held) -> String);

/// The kinds of rows that the page has a table of.
pub const TRAITS: [Trait; 5] = [
    ("family", |held| held.row.family.clone()),
    ("pipeline", |held| match held.row.pp {
        1 => "no pipeline".to_string(),
        2..=4 => "2 to 4 devices".to_string(),
        5..=8 => "5 to 8 devices".to_string(),
        9..=16 => "9 to 16 devices".to_string(),
        _ => "more than 16 devices".to_string(),
    }),
    ("precision", |held| held.row.precision.clone()),
    ("GPU", |held| held.row.gpu.clone()),
    ("software", |held| held.row.stack.clone()),
];

/// Whether linear layers have fewer than 16 bits.
pub fn is_narrow(held: &Held) -> bool {
    matches!(held.row.precision.as_str(), "fp8" | "mxfp8" | "nvfp4")
}

/// The errors of those rows that `wanted` takes.
pub fn errors(rows: &[Held], wanted: impl Fn(&Held) -> bool) -> Errors {
    let found: Vec<(f64, f64)> =
        rows.iter().filter(|held| wanted(held)).filter_map(|held| Some((held.error()?, held.row.weight))).collect();
    Errors::of(&found)
}

/// The errors by a trait, the largest first.
pub fn by(rows: &[Held], of: fn(&Held) -> String) -> Vec<(String, Errors)> {
    let mut kinds: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for held in rows {
        if let Some(error) = held.error() {
            kinds.entry(of(held)).or_default().push((error, held.row.weight));
        }
    }
    let mut all: Vec<(String, Errors)> = kinds.into_iter().map(|(kind, found)| (kind, Errors::of(&found))).collect();
    all.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
    all
}

/// What the median MFU of a GPU and precision predicts: its error for each row, of those that `wanted` takes.
pub fn rule_of_thumb(rows: &[Held], wanted: impl Fn(&Held) -> bool) -> Errors {
    let mut kinds: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for held in rows {
        kinds.entry((&held.row.gpu, &held.row.precision)).or_default().push(held.mfu);
    }
    for all in kinds.values_mut() {
        all.sort_by(f64::total_cmp);
    }
    let error = |held: &Held| {
        let all = &kinds[&(held.row.gpu.as_str(), held.row.precision.as_str())];
        let median = all[all.len() / 2];
        (median > 0.0).then(|| (held.mfu / median - 1.0, held.row.weight))
    };
    Errors::of(&rows.iter().filter(|held| wanted(held)).filter_map(error).collect::<Vec<_>>())
}

/// Of pairs of layouts of one model that differ by more than 8 %, how many are ordered as they were measured, and how many there
/// are. Both have the same GPUs, batch, length, precision and software.
pub fn pairs(rows: &[Held]) -> (usize, usize) {
    let (mut right, mut all) = (0, 0);
    for (number, a) in rows.iter().enumerate() {
        for b in &rows[..number] {
            let kind = |held: &Held| {
                let row = &held.row;
                let names = [&row.group, &row.precision, &row.stack].map(String::clone);
                (names, row.gpus, row.batch, row.seq)
            };
            let of = |held: &Held| -> (f64, Option<f64>) { (held.row.iteration_s, held.error()) };
            if kind(a) != kind(b) {
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

#[cfg(test)]
mod tests {
    use super::Errors;

    #[test]
    fn rows_count_by_their_weight() {
        let errors = Errors::of(&[(0.1, 1.0), (-0.3, 1.0), (0.2, 2.0)]);
        assert_eq!((errors.rows, errors.weight, errors.median), (3, 4.0, 0.2));
        assert!((errors.mean - 0.2).abs() < 1e-12 && (errors.bias - 0.05).abs() < 1e-12);
        assert_eq!(Errors::of(&[]), Errors::default());
    }
}
