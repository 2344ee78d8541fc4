//! A threshold that a command's figures are held against.

use crate::metrics::Metrics;
use std::str::FromStr;

/// A threshold on a figure: `bubble>0.15`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    figure: String,
    operator: String,
    value: f64,
}

/// Why a text is no threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoCondition(String);

impl FromStr for Condition {
    type Err = NoCondition;

    fn from_str(text: &str) -> Result<Condition, NoCondition> {
        let operator = [">=", "<=", ">", "<"].into_iter().find(|operator| text.contains(operator));
        let operator = operator
            .ok_or_else(|| NoCondition(format!("expected FIGURE>NUMBER, as in 'bubble>0.15', found '{text}'")))?;
        let (figure, value) = text.split_once(operator).unwrap_or((text, ""));
        let number = value.trim().parse();
        let value: f64 =
            number.map_err(|_| NoCondition(format!("expected a number after {operator}, found '{value}'")))?;
        let figure = figure.trim().to_string();
        let sample = Metrics::new(&[], &[], Some(0), 1.0);
        if value.is_nan() || figure_of(&sample, &figure).is_none() {
            let figures = FIGURES.join(", ");
            return Err(NoCondition(format!("expected one of {figures}, compared with a number; found '{text}'")));
        }
        Ok(Condition { text: text.to_string(), figure, operator: operator.to_string(), value })
    }
}

const FIGURES: [&str; 8] = [
    "makespan",
    "span",
    "bubble",
    "span_bubble",
    "bubble_over_ideal",
    "efficiency",
    "gap_to_bound",
    "peak_activations",
];

fn figure_of(metrics: &Metrics, figure: &str) -> Option<f64> {
    Some(match figure {
        "makespan" => metrics.makespan,
        "span" => metrics.span,
        "bubble" => metrics.bubble,
        "span_bubble" => metrics.span_bubble,
        "bubble_over_ideal" => metrics.bubble_over_ideal,
        "efficiency" => metrics.efficiency,
        "gap_to_bound" => metrics.gap_to_bound?,
        "peak_activations" => metrics.per_device.iter().map(|d| d.peak_activations).fold(0.0, f64::max),
        _ => return None,
    })
}

impl Condition {
    /// What is found where it holds for `metrics`.
    pub fn found_in(&self, metrics: &Metrics) -> Option<String> {
        let found = figure_of(metrics, &self.figure)?;
        let holds = match self.operator.as_str() {
            ">=" => found >= self.value,
            "<=" => found <= self.value,
            ">" => found > self.value,
            _ => found < self.value,
        };
        holds.then(|| format!("{} holds, found {} = {found}", self.text, self.figure))
    }
}
