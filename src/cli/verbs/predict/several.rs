//! `predict` of several layouts of a model on hardware: a row per layout and schedule.

use super::grid::Combination;
use super::{LayoutFigures, Predict, Printed};
use crate::cli::Failure;
use crate::cli::options::output::{origin, versioned};
use crate::cli::options::threshold::{Figures, Side};
use crate::cli::terminal::table;
use crate::cost::analytic::Analytic;
use crate::report::{self, PredictedEntry, Report, Table, gibibytes, quantity};
use crate::resolve::Costs;
use crate::sim::PredictionFigures;
use crate::step_estimate::StepEstimate;

/// Maximum number of predictions of one command.
const MOST: usize = 10_000;

/// One layout under one schedule.
struct One<'a> {
    analytic: &'a Analytic,
    name: String,
    estimate: StepEstimate,
}

impl One<'_> {
    fn layout(&self) -> LayoutFigures {
        LayoutFigures::new(self.analytic, &self.estimate)
    }

    fn label(&self) -> String {
        let layout = &self.analytic.layout;
        let size = layout.micro_batch_size;
        format!("{} tp={} p={} dp={} micro-batch={size}", self.name, layout.tp, layout.pp, layout.dp)
    }
}

impl Predict {
    /// Predicts every schedule under every layout.
    pub(super) fn several(&self, analytics: &[Analytic]) -> Result<(), Failure> {
        let count = analytics.len() * self.schedules.names().len();
        if count > MOST {
            let what = format!("expected at most {MOST} predictions, found {count}; give fewer layouts or schedules");
            return Err(Failure::Usage(what));
        }
        let (mut all, mut results, mut refused) = (Vec::new(), Vec::new(), None);
        let shown = if self.write.output.is_empty() { PredictedEntry::figures } else { PredictedEntry::predicted };
        let mut any = false;
        for analytic in analytics {
            let costs = Costs::Analytic(Box::new(analytic.clone()));
            let mut predict = |one: Combination| -> Result<(), Failure> {
                let Some(resolved) = &one.resolved else { return Ok(()) };
                let result = self.predict(resolved, &one.name)?;
                let estimate = StepEstimate::new(&analytic.as_resolved(resolved), &result).map_err(Failure::usage)?;
                all.push(One { analytic, name: result.prediction.schedule.clone(), estimate });
                results.push(shown(&result));
                Ok(())
            };
            // All of a layout are resolved before any is predicted, so that a refused layout leaves nothing behind.
            match self.asked(analytic)?.combinations(&costs, self.costs.balance, self.remarks) {
                Ok(found) => {
                    any = true;
                    found.into_iter().try_for_each(&mut predict)?;
                }
                Err(failure) => {
                    self.remarks.remark(&format!("note: {} is left out: {failure}", analytic.layout));
                    refused.get_or_insert(failure);
                }
            }
        }
        if let (false, Some(failure)) = (any, refused) {
            return Err(failure);
        }
        let (report, figures) = Report::of_predictions(results);
        self.show_several(&all, report, &figures)?;
        let labels: Vec<String> = all.iter().map(One::label).collect();
        let each = all.iter().zip(&figures).zip(&labels);
        let figures = each.map(|((one, p), label)| {
            let figures = Figures::new(label, &p.time_unit).with_metrics(Side::Predicted, &p.metrics);
            figures.with_step(Side::Predicted, Some(1e3 * one.estimate.iteration_s), p.period)
        });
        self.thresholds.judge(&figures.collect::<Vec<_>>())?.result()
    }

    fn show_several(&self, all: &[One<'_>], mut report: Report, figures: &[PredictionFigures]) -> Result<(), Failure> {
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.provenance.extend(origin());
        for (entry, one) in report.entries.iter_mut().zip(all) {
            entry.over_steps.extend(one.estimate.figures());
            entry.over_steps.extend(one.layout().figures());
        }
        let csv = report::figures(&report);
        for (entry, one) in report.entries.iter_mut().zip(all) {
            entry.name = one.label();
        }
        report.extra_tables = vec![layouts(all)];
        let json = || {
            let printed = all.iter().zip(figures).map(|(one, prediction)| Printed {
                prediction,
                forecast: Some(&one.estimate),
                layout: Some(one.layout()),
                best: None,
            });
            versioned("predictions", &printed.collect::<Vec<_>>())
        };
        let printed = self.draw.print.show(&report, json, || table(&report), || csv.clone());
        self.write.write(&report, &[], printed, self.remarks)
    }
}

/// Returns a table of layouts, the fastest per GPU first.
fn layouts(all: &[One<'_>]) -> Table {
    let header = ["schedule", "tp", "pp", "dp", "micro-batch", "GPUs", "iteration", "tokens/s/GPU", "memory", "fits"];
    let mut sorted: Vec<&One<'_>> = all.iter().collect();
    sorted.sort_by(|a, b| b.estimate.tokens_per_second_per_gpu.total_cmp(&a.estimate.tokens_per_second_per_gpu));
    let row = |one: &&One<'_>| {
        let (layout, estimate) = (one.layout(), &one.estimate);
        let mut cells = vec![one.name.clone()];
        cells.extend([layout.tp, layout.pp, layout.dp, layout.micro_batch_size].map(|number| number.to_string()));
        cells.push(estimate.gpus.to_string());
        cells.push(quantity(1e3 * estimate.iteration_s, "ms"));
        cells.push(report::number(estimate.tokens_per_second_per_gpu));
        cells.push(gibibytes(layout.memory_bytes));
        cells.push(if estimate.memory.fits { "yes" } else { "no" }.to_string());
        cells
    };
    Table::new("Layouts, the most tokens per second and GPU first", &header, sorted.iter().map(row).collect())
}
