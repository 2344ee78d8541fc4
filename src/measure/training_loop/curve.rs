//! The losses of a run as a plot.

use super::log::{LOG, LogLine};
use anyhow::{Context, Result};
use pipesim_report::{Chart, Plot, PlotAxis, Plots, Series, SeriesStyle};
use std::path::Path;

/// Most points of a series: each is the mean of as many neighbouring steps.
const MOST_POINTS: usize = 200;

/// Returns the losses in the log of the run in `folder`, by step; `None` of fewer than two steps.
///
/// # Errors
/// The log cannot be read.
pub fn loss_curve(folder: &Path) -> Result<Option<Plots>> {
    let path = folder.join(LOG);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let lines: Vec<LogLine> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if lines.len() < 2 {
        return Ok(None);
    }
    let losses: Vec<(f64, f64)> = lines.iter().map(|line| (f64::from(line.step), line.loss)).collect();
    let size = losses.len().div_ceil(MOST_POINTS);
    let mean = |part: &[(f64, f64)]| {
        let count = part.len() as f64;
        (part.iter().map(|point| point.0).sum::<f64>() / count, part.iter().map(|point| point.1).sum::<f64>() / count)
    };
    let name = if size > 1 { format!("training, mean of {size} steps") } else { "training".to_string() };
    let held_out = lines.iter().filter_map(|line| Some((f64::from(line.step), line.validation_loss?)));
    let series = [(name, losses.chunks(size).map(mean).collect()), ("held-out tokens".to_string(), held_out.collect())];
    let series = series.into_iter().filter(|(_, points): &(String, Vec<_>)| !points.is_empty());
    let chart = Chart {
        title: "Loss".to_string(),
        x: PlotAxis { label: "step".to_string(), ..PlotAxis::default() },
        y: PlotAxis { label: "mean loss per token, nats".to_string(), ..PlotAxis::default() },
        series: series.map(|(name, points)| Series { name, style: SeriesStyle::Line, points }).collect(),
        guides: Vec::new(),
    };
    Ok(Some(Plots { title: String::new(), plots: vec![Plot::Chart(chart)], ..Plots::default() }))
}
