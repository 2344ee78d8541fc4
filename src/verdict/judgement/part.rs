//! Parts of a step that Megatron times, next to their predictions.

use super::seconds::time;
use pipesim_cost::analytic::StepTime;
use pipesim_jobs::Measurement;
use pipesim_report::Table;
use serde::Serialize;

/// Names and timers of the parts.
const TIMED: [(&str, &[&str]); 3] = [
    ("forward and backward passes", &["forward-backward"]),
    ("gradients and weights between data-parallel ranks", &["all-grads-sync", "params-all-gather"]),
    ("optimizer", &["optimizer"]),
];
/// Name of what no timer has.
const REST: &str = "other";

/// A part of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// By the slowest rank's timer, in seconds.
    pub measured_s: f64,
    /// Predicted, in seconds.
    pub predicted_s: f64,
}

impl Part {
    /// Returns the parts of a log's median step next to a prediction; none if the log has no timer of the passes.
    pub fn all(predicted: &StepTime, log: &Measurement) -> Vec<Part> {
        if !log.timers.contains_key("forward-backward") {
            return Vec::new();
        }
        let passes = predicted.compute
            + predicted.tensor_parallel_exposed
            + predicted.expert_parallel_exposed
            + predicted.imbalance
            + predicted.pipeline_bubble;
        let seconds = [passes, predicted.data_parallel_exposed, predicted.optimizer];
        let mut rest = Part { name: REST, measured_s: log.median_s, predicted_s: predicted.iteration() };
        let mut all = Vec::new();
        for ((name, names), predicted_s) in TIMED.iter().zip(seconds) {
            let timers: Vec<f64> =
                names.iter().filter_map(|name| log.timers.get(*name)).map(|timer| timer.max_ms).collect();
            if !timers.is_empty() {
                let measured_s = timers.iter().sum::<f64>() / 1e3;
                rest.measured_s = (rest.measured_s - measured_s).max(0.0);
                rest.predicted_s -= predicted_s;
                all.push(Part { name, measured_s, predicted_s });
            }
        }
        all.push(rest);
        all
    }

    /// Returns the parts as a table.
    pub fn table(all: &[Part]) -> Option<Table> {
        let row = |part: &Part| {
            let more = time(part.measured_s - part.predicted_s);
            vec![part.name.to_string(), time(part.measured_s), time(part.predicted_s), more]
        };
        let header = ["part of the step", "measured", "predicted", "difference"];
        (!all.is_empty()).then(|| Table::new("", &header, all.iter().map(row).collect()))
    }
}
