//! The headline of predictions, and what their saved timelines say about the question.

use pipesim_answer::question::{Predicted, Question};
use pipesim_cost::analytic::Analytic;
use pipesim_report::{ITERATION, MEMORY, QUESTION, Report};
use std::path::Path;

/// Writes into the headline of `report` what was asked, how long a step takes, and by how much the schedules differ.
pub fn add(report: &mut Report, question: &Question, layouts: &[Analytic], predictions: &[Predicted]) {
    let entries = report.entries.iter_mut().filter(|entry| entry.predicted.is_some());
    for (entry, one) in entries.zip(predictions) {
        entry.fits = one.estimate.as_ref().map(|estimate| estimate.memory.fits);
    }
    report.title = match layouts {
        [analytic] => report.headline_of(&asked(question, analytic)),
        _ => report.headline_of(&report.title),
    };
}

/// Returns model, hardware and layout: `llama-3-8b on 32 h100-sxm, tp 2 · pp 4 · dp 4`.
fn asked(question: &Question, analytic: &Analytic) -> String {
    let Analytic { machine, layout, .. } = analytic;
    let name = |of: &Option<String>| {
        let path = Path::new(of.as_deref().unwrap_or("model")).file_stem();
        path.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    };
    let model = match &question.model {
        // A dot in the name of a built-in model begins no ending.
        Some(model) if !model.contains('/') && !Path::new(model).exists() => model.clone(),
        model => name(model),
    };
    let degrees = [("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp), ("dp", layout.dp), ("ep", layout.ep)];
    let shown = degrees.iter().filter(|(name, degree)| *degree > 1 || ["tp", "pp", "dp"].contains(name));
    let shown: Vec<String> = shown.map(|(name, degree)| format!("{name} {degree}")).collect();
    format!("{model} on {} {}, {}", layout.gpus(), machine.hardware.name, shown.join(" · "))
}

/// Notes in each timeline what was asked, the time of the whole step and the memory of the fullest GPU, for a
/// comparison with a later one.
pub fn note(report: &mut Report, question: &Question, predictions: &[Predicted]) {
    let asked = question.to_toml().ok();
    let panels = report.entries.iter_mut().filter_map(|entry| entry.predicted.as_mut());
    for (panel, prediction) in panels.zip(predictions) {
        let estimate = prediction.estimate.as_ref();
        let notes = [
            (QUESTION, asked.clone()),
            (ITERATION, estimate.map(|estimate| estimate.iteration_s.to_string())),
            (MEMORY, estimate.map(|estimate| estimate.memory.fullest().total.to_string())),
        ];
        let known = notes.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?)));
        panel.timeline.provenance.extend(known);
    }
}
