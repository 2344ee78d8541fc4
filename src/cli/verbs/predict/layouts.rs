//! `predict` of several layouts of a model on hardware: a row per layout and schedule.

use super::{Collected, Kept, Predict, add_columns};
use crate::cli::Failure;
use crate::cli::options::calibrate::with_corrections;
use crate::cli::options::output::{origin, versioned};
use crate::cli::terminal::table;
use pipesim_answer::question::{LayoutFigures, Predicted, Prepared, Question};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_report::{self as report, PredictedEntry, SpanFiles, Table, gibibytes, quantity};

/// Maximum number of predictions of one command.
const MOST: usize = 10_000;

/// Returns the name of a prediction with its layout.
fn label(one: &Predicted) -> String {
    let name = &one.figures.schedule;
    one.layout.map_or_else(String::new, |LayoutFigures { tp, pp, dp, micro_batch_size, .. }| {
        format!("{name} tp={tp} p={pp} dp={dp} micro-batch={micro_batch_size}")
    })
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
        let predictions = self.show_layouts(found, &labels)?;
        self.judge(&labels, predictions.iter().map(|one| (&one.figures, one.estimate.as_ref())))
    }

    fn show_layouts(&self, found: Collected, labels: &[String]) -> Result<Vec<Predicted>, Failure> {
        let Collected { mut report, predictions, corrected, .. } = found;
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.provenance.extend(origin());
        add_columns(&mut report, &predictions);
        let csv = report::figures(&report);
        report.entries.iter_mut().zip(labels).for_each(|(entry, label)| entry.name.clone_from(label));
        report.extra_tables = vec![layouts(&predictions)];
        let json = || with_corrections(versioned("predictions", &predictions)?, "predictions", &corrected);
        let printed = self.draw.print.show(&report, json, || table(&report), || csv.clone());
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
