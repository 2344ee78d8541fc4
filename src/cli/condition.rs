//! A threshold that a command's figures are held against.

use crate::metrics::Metrics;

/// A threshold on a figure: `bubble>0.15`.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    figure: &'static Figure,
    holds: Holds,
    value: f64,
}

/// A name, and what it means.
type Figure = (&'static str, fn(&Metrics) -> Option<f64>);

const FIGURES: &[Figure] = &[
    ("makespan", |m| Some(m.makespan)),
    ("span", |m| Some(m.span)),
    ("bubble", |m| Some(m.bubble)),
    ("span_bubble", |m| Some(m.span_bubble)),
    ("bubble_over_ideal", |m| Some(m.bubble_over_ideal)),
    ("efficiency", |m| Some(m.efficiency)),
    ("gap_to_bound", |m| m.gap_to_bound),
    ("peak_activations", |m| Some(m.peak_activations())),
];

/// Of what is found and what it is held against.
type Holds = fn(&f64, &f64) -> bool;

/// Longer ones first: `>` stands in `>=`.
const OPERATORS: [(&str, Holds); 4] = [(">=", f64::ge), ("<=", f64::le), (">", f64::gt), ("<", f64::lt)];

impl Condition {
    /// The threshold that `text` is.
    pub fn parse(text: &str) -> Result<Condition, String> {
        let operator = OPERATORS.into_iter().find(|(operator, _)| text.contains(operator));
        let (operator, holds) =
            operator.ok_or_else(|| format!("expected FIGURE>NUMBER, as in 'bubble>0.15', found '{text}'"))?;
        let (name, value) = text.split_once(operator).unwrap_or((text, ""));
        let number = value.trim().parse::<f64>();
        let value = number.map_err(|_| format!("expected a number after {operator}, found '{value}'"))?;
        let figure = FIGURES.iter().find(|figure| figure.0 == name.trim()).filter(|_| !value.is_nan());
        let figure = figure.ok_or_else(|| {
            let names: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}, compared with a number; found '{text}'", names.join(", "))
        })?;
        Ok(Condition { text: text.to_string(), figure, holds, value })
    }

    /// What is found where it holds for `metrics`.
    pub fn found_in(&self, metrics: &Metrics) -> Option<String> {
        let found = (self.figure.1)(metrics)?;
        (self.holds)(&found, &self.value).then(|| format!("{} holds, found {} = {found}", self.text, self.figure.0))
    }
}
