//! How published steps turned out next to predictions that had not seen them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Written by `pipesim-validation left-out`.
const TEXT: &str = include_str!("../../../hardware/published.toml");

/// Percentiles 0 to 100 of measured / predicted times, by class.
static PUBLISHED: LazyLock<BTreeMap<String, Vec<f64>>> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());

/// Returns the share of published runs of a class whose ratio is below this one; `None` if nothing is published of it.
pub fn share_below(class: &str, ratio: f64) -> Option<f64> {
    let percentiles = PUBLISHED.get(class).filter(|list| list.len() > 1)?;
    let below = percentiles.iter().filter(|percentile| **percentile < ratio).count();
    Some(below.saturating_sub(1) as f64 / (percentiles.len() - 1) as f64)
}
