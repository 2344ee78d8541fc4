//! `predict` of several layouts of a model on hardware: a row per layout and schedule.

use super::{Collected, Kept, Predict, add_columns};
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::calibrate::with_corrections;
use crate::cli::options::output::{origin, versioned};
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::{table, wrap};
use pipesim_answer::question::{Case, LayoutFigures, Predicted, Prepared, Question, answer};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_report::{self as report, PredictedEntry, SpanFiles, Table, gibibytes, quantity};
use pipesim_verdict::prediction;

/// Maximum number of predictions of one command.
const MOST: usize = 10_000;

/// Returns the name of a prediction with its layout.
fn label(one: &Predicted) -> String {
    let name = &one.figures.schedule;
    one.layout.map_or_else(String::new, |LayoutFigures { tp, pp, dp, micro_batch_size, .. }| {
        format!("{name} tp={tp} p={pp} dp={dp} micro-batch={micro_batch_size}")
    })
}

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

/// Returns the answer in a few lines. Where nothing fits, the fastest layout has a change that makes it fit.
fn first_lines(asked: &Question, prepared: &Prepared, schedules: &[String], predictions: &[Predicted]) -> String {
    let Some(analytic) = prepared.layouts().first() else { return String::new() };
    let each = schedules.iter().zip(predictions);
    let known = each.filter_map(|(schedule, one)| Some((alone(asked, schedule, one)?, one.estimate.clone()?)));
    let mut steps: Vec<(String, StepEstimate)> = Vec::new();
    let mut questions = Vec::new();
    for ((question, settings), estimate) in known {
        steps.push((settings, estimate));
        questions.push(question);
    }
    let speed = |step: &StepEstimate| step.tokens_per_second_per_gpu;
    let fastest = (0..steps.len()).max_by(|&a, &b| speed(&steps[a].1).total_cmp(&speed(&steps[b].1)));
    if let Some(fastest) = fastest.filter(|_| !steps.iter().any(|(_, step)| step.memory.fits)) {
        let found = answer(&questions[fastest], &Sandbox).ok().and_then(|found| found.predictions.into_iter().next());
        steps[fastest].1.misfit = found.and_then(|one| one.estimate?.misfit);
    }
    let steps: Vec<(&str, &StepEstimate)> = steps.iter().map(|(name, step)| (name.as_str(), step)).collect();
    let next = |settings: &str| {
        format!("pipesim explain with {settings} and the other options as they are says what would shorten it.")
    };
    let asked = prediction::asked_of_layouts(analytic, prepared.layouts().len());
    as_flags(wrap(&prediction::layout_lines(asked, &steps, next), 0)) + "\n"
}

impl Predict {
    /// Predicts every schedule under every layout.
    pub(super) fn layouts(&self, question: &Question, prepared: &Prepared) -> Result<(), Failure> {
        let count = prepared.layouts().len() * question.names().len();
        if count > MOST {
            let what = format!("expected at most {MOST} predictions, found {count}; give fewer layouts or schedules");
            return Err(Failure::Usage(what));
        }
        let shown: Kept =
            if self.write.output.is_empty() { PredictedEntry::figures } else { PredictedEntry::predicted };
        let found = self.collect(prepared, self.remarks, &mut SpanFiles::default(), |_| shown)?;
        let labels: Vec<String> = found.predictions.iter().map(label).collect();
        let predictions = self.show_layouts(question, prepared, found, &labels)?;
        self.judge(&labels, predictions.iter().map(|one| (&one.figures, one.estimate.as_ref())))
    }

    fn show_layouts(
        &self,
        question: &Question,
        prepared: &Prepared,
        found: Collected,
        labels: &[String],
    ) -> Result<Vec<Predicted>, Failure> {
        let Collected { cases, mut report, predictions, corrected, .. } = found;
        let schedules: Vec<String> = cases.into_iter().filter(Case::exists).map(|case| case.name).collect();
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.provenance.extend(origin());
        add_columns(&mut report, &predictions);
        let csv = report::figures(&report);
        report.entries.iter_mut().zip(labels).for_each(|(entry, label)| entry.name.clone_from(label));
        report.extra_tables = vec![layouts(&predictions)];
        let json = || with_corrections(versioned("predictions", &predictions)?, "predictions", &corrected);
        let text = || first_lines(question, prepared, &schedules, &predictions) + &table(&report);
        let printed = self.draw.print.show(&report, json, text, || csv.clone());
        self.write.write(&report, &[], printed, self.remarks)?;
        Ok(predictions)
    }
}

/// Returns a table of layouts, the fastest per GPU first.
fn layouts(predictions: &[Predicted]) -> Table {
    let header = ["schedule", "tp", "pp", "dp", "micro-batch", "GPUs", "iteration", "tokens/s/GPU", "memory", "fits"];
    let known = predictions.iter().filter_map(|one| Some((&one.figures.schedule, one.estimate.as_ref()?, one.layout?)));
    let mut sorted: Vec<(&String, &StepEstimate, LayoutFigures)> = known.collect();
    sorted.sort_by(|(_, a, _), (_, b, _)| b.tokens_per_second_per_gpu.total_cmp(&a.tokens_per_second_per_gpu));
    let row = |(name, estimate, layout): (&String, &StepEstimate, LayoutFigures)| {
        let mut cells = vec![name.clone()];
        cells.extend([layout.tp, layout.pp, layout.dp, layout.micro_batch_size].map(|number| number.to_string()));
        cells.push(estimate.gpus.to_string());
        cells.push(quantity(1e3 * estimate.iteration_s, "ms"));
        cells.push(report::number(estimate.tokens_per_second_per_gpu));
        cells.push(gibibytes(layout.memory_bytes));
        cells.push(if estimate.memory.fits { "yes" } else { "no" }.to_string());
        cells
    };
    Table::new("Layouts, the most tokens per second and GPU first", &header, sorted.into_iter().map(row).collect())
}
