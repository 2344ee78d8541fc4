//! `predict` of several layouts of a model on hardware: a row per layout and schedule.

use super::{Collected, Kept, Predict, add_columns};
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::calibrate::with_corrections;
use crate::cli::options::output::{origin, versioned};
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::{table, wrap};
use pipesim_answer::question::{Case, LayoutFigures, Predicted, Prepared, Question};
use pipesim_report::{self as report, PredictedEntry, SpanFiles};
use pipesim_verdict::layouts;

/// Maximum number of predictions of one command.
const MOST: usize = 10_000;

/// Returns the name of a prediction with its layout.
fn label(one: &Predicted) -> String {
    let (name, m) = (&one.figures.schedule, one.figures.microbatches);
    one.layout.map_or_else(String::new, |LayoutFigures { tp, pp, dp, micro_batch_size, .. }| {
        format!("{name} tp={tp} p={pp} dp={dp} micro-batch={micro_batch_size} m={m}")
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
        report.extra_tables = vec![layouts::table(&predictions)];
        let json = || with_corrections(versioned("predictions", &predictions)?, "predictions", &corrected);
        let text = || {
            let lines = layouts::lines(question, prepared, &schedules, &predictions, &Sandbox);
            as_flags(wrap(&lines, 0)) + "\n" + &table(&report)
        };
        let printed = self.draw.print.show(&report, json, text, || csv.clone());
        self.write.write(&report, &[], printed, self.remarks)?;
        Ok(predictions)
    }
}
