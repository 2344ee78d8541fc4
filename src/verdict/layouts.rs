//! Several layouts: which is the best, and a row for each.

use crate::prediction;
use pipesim_answer::question::{LayoutFigures, Predicted, Prepared, Question, answer};
use pipesim_answer::resolve::Host;
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_report::{Table, gibibytes, number, quantity};
use std::collections::BTreeMap;

/// Returns the question about `schedule` on one layout of `asked`, and its schedule with the settings that the layouts do not share.
fn alone(asked: &Question, schedule: &str, one: &Predicted) -> Option<(Question, String)> {
    let (layout, micro) = (one.layout?, one.figures.microbatches);
    let mut question = Question { schedule: vec![schedule.to_string()], ..asked.clone() };
    let mut told = Vec::new();
    let settings = [
        ("tp", &mut question.tp, layout.tp),
        ("stages", &mut question.stages, layout.pp),
        ("dp", &mut question.dp, layout.dp),
        ("micro-batch-size", &mut question.micro_batch_size, layout.micro_batch_size),
        ("micro", &mut question.micro, micro),
    ];
    for (name, values, own) in settings {
        if values.len() > 1 {
            *values = vec![own];
            told.push(format!("`{name}` {own}"));
        }
    }
    told.splice(..0, (asked.names().len() > 1).then(|| format!("-s {schedule}")));
    Some((question, told.join(" ")))
}

/// Returns the answer in at most six lines; `schedules` has the name of each prediction as it was asked for. Where nothing fits, the
/// fastest layout has a change that makes it fit.
pub fn lines(
    asked: &Question,
    prepared: &Prepared,
    schedules: &[String],
    predictions: &[Predicted],
    host: &'static dyn Host,
) -> Vec<String> {
    let Some(analytic) = prepared.layouts().first() else { return Vec::new() };
    let each = schedules.iter().zip(predictions);
    let known = each.filter_map(|(schedule, one)| Some((alone(asked, schedule, one)?, one.estimate.clone()?, one)));
    let mut steps: Vec<(String, StepEstimate)> = Vec::new();
    let mut besides: BTreeMap<String, String> = BTreeMap::new();
    let mut questions = Vec::new();
    for ((question, settings), estimate, one) in known {
        besides.insert(settings.clone(), prediction::asked_besides(one));
        steps.push((settings, estimate));
        questions.push(question);
    }
    let speed = |step: &StepEstimate| step.tokens_per_second_per_gpu;
    let fastest = (0..steps.len()).max_by(|&a, &b| speed(&steps[a].1).total_cmp(&speed(&steps[b].1)));
    if let Some(fastest) = fastest.filter(|_| !steps.iter().any(|(_, step)| step.memory.fits)) {
        let found = answer(&questions[fastest], host).ok().and_then(|found| found.predictions.into_iter().next());
        steps[fastest].1.misfit = found.and_then(|one| one.estimate?.misfit);
    }
    let steps: Vec<(&str, &StepEstimate)> = steps.iter().map(|(name, step)| (name.as_str(), step)).collect();
    let next = |settings: &str| {
        format!("pipesim explain with {settings} and the other options as they are says what would shorten it.")
    };
    let asked = prediction::asked_of_layouts(analytic, prepared.layouts().len());
    let besides = |settings: &str| besides.get(settings).cloned().unwrap_or_default();
    prediction::layout_lines(asked, &steps, besides, next)
}

/// Returns a table of layouts, the fastest per GPU first.
pub fn table(predictions: &[Predicted]) -> Table {
    let header =
        ["schedule", "tp", "pp", "dp", "micro-batch", "m", "GPUs", "iteration", "tokens/s/GPU", "memory", "fits"];
    let known = predictions.iter().filter_map(|one| Some((one, one.estimate.as_ref()?, one.layout?)));
    let mut sorted: Vec<(&Predicted, &StepEstimate, LayoutFigures)> = known.collect();
    sorted.sort_by(|(_, a, _), (_, b, _)| b.tokens_per_second_per_gpu.total_cmp(&a.tokens_per_second_per_gpu));
    let row = |(one, estimate, layout): (&Predicted, &StepEstimate, LayoutFigures)| {
        let mut cells = vec![one.figures.schedule.clone()];
        let numbers = [layout.tp, layout.pp, layout.dp, layout.micro_batch_size, one.figures.microbatches];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.push(estimate.gpus.to_string());
        cells.push(quantity(1e3 * estimate.iteration_s, "ms"));
        cells.push(number(estimate.tokens_per_second_per_gpu));
        cells.push(gibibytes(layout.memory_bytes));
        cells.push(if estimate.memory.fits { "yes" } else { "no" }.to_string());
        cells
    };
    Table::new("Layouts, the most tokens per second and GPU first", &header, sorted.into_iter().map(row).collect())
}
