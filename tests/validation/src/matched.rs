//! Matched pairs: rows that differ in one setting of the experts and in nothing else.

use crate::mixture::Recomputed;
use crate::prediction::RowPrediction;
use serde::Serialize;

/// Measured difference of the times of two rows below which it is noise.
const NOISE: f64 = 0.005;

/// Two rows that differ in one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatchedPair {
    /// Identifiers of both rows.
    pub ids: [String; 2],
    /// The setting and its values.
    pub change: String,
    /// Measured time of the second row as a multiple of the first's.
    pub measured: f64,
    /// The same as predicted.
    pub predicted: f64,
}

impl MatchedPair {
    /// Whether the prediction says which row is faster; true if the measured difference is noise.
    pub fn has_right_sign(&self) -> bool {
        self.measured.ln().abs() < NOISE || self.measured.ln() * self.predicted.ln() > 0.0
    }

    /// Whether the predicted difference is within a third of the measured one.
    pub fn has_right_size(&self) -> bool {
        let share = self.predicted.ln() / self.measured.ln();
        self.measured.ln().abs() < NOISE || (2.0 / 3.0..=4.0 / 3.0).contains(&share)
    }
}

/// The settings that pairs may differ in, each as text.
fn settings(row: &RowPrediction) -> [(&'static str, String); 6] {
    let fields = &row.row.mixture;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let flag = |value: Option<bool>| value.unwrap_or(false).to_string();
    [
        ("overlap", flag(fields.ep_overlap)),
        ("delayed weights", flag(fields.delay_wgrad)),
        ("dispatcher", text(&fields.dispatcher)),
        ("graphs", text(&fields.cuda_graph)),
        ("routing", text(&fields.routing)),
        ("recompute", row.row.recompute.as_ref().map_or_else(String::new, Recomputed::name)),
    ]
}

/// Whether the rows have the same model, machine, layout and software.
fn are_alike(a: &RowPrediction, b: &RowPrediction) -> bool {
    let key = |prediction: &RowPrediction| {
        let row = &prediction.row;
        let names = [&row.group, &row.model.name, &row.precision, &row.stack, &row.schedule].map(String::clone);
        let degrees = [row.tp, row.pp, row.cp, row.dp, row.mixture.ep, row.mixture.etp, row.mixture.rounds];
        let sizes = [row.chunks, row.micro_batch_size, row.batch, row.seq];
        (names, degrees, sizes, row.mixture.layout.clone(), row.mixture.framework.clone())
    };
    key(a) == key(b)
}

/// Returns all matched pairs of mixtures.
pub fn matched(rows: &[RowPrediction]) -> Vec<MatchedPair> {
    let mut pairs = Vec::new();
    for (number, b) in rows.iter().enumerate().filter(|(_, row)| row.row.experts.is_some()) {
        for a in rows[..number].iter().filter(|a| are_alike(a, b)) {
            let changed: Vec<String> = settings(a)
                .into_iter()
                .zip(settings(b))
                .filter(|((_, one), (_, other))| one != other)
                .map(|((name, one), (_, other))| format!("{name}: {one} to {other}"))
                .collect();
            let (Some(before), Some(after), [change]) = (a.error(), b.error(), &changed[..]) else { continue };
            let measured = b.row.iteration_s / a.row.iteration_s;
            pairs.push(MatchedPair {
                ids: [a, b].map(|row| row.row.id.clone()),
                change: change.clone(),
                measured,
                predicted: measured * (1.0 + after) / (1.0 + before),
            });
        }
    }
    pairs
}
