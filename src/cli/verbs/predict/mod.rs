//! `pipesim predict`: simulate schedules.

mod comparison;
mod judged;
mod layouts;
mod measured;
mod stream;
mod sweep;

use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::job_file::{JobGpus, JobOptions};
use crate::cli::options::calibrate::{CalibrateOptions, with_corrections};
use crate::cli::options::costs::CostOptions;
use crate::cli::options::engine::EngineOptions;
use crate::cli::options::fsdp::FsdpOptions;
use crate::cli::options::hardware::HardwareOptions;
use crate::cli::options::output::{self, DrawOptions, Format, WriteOptions, origin, versioned};
use crate::cli::options::schedules::SearchOptions;
use crate::cli::options::threshold::{Figures, Scope, Side, ThresholdOptions};
use crate::cli::question_file::QuestionOptions;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::{table, wrap};
use clap::Args;
use pipesim_answer::question::{Case, Found, Predicted, Prepared, Question};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_cost::analytic::Analytic;
use pipesim_report::{self as report, ComparisonPoint, PredictedEntry, Report, SpanFiles};
use pipesim_sim::{Prediction, PredictionFigures};
use pipesim_verdict::calibration::Corrected;
use pipesim_verdict::judgement::Verdict;
use pipesim_verdict::{figures, headline, prediction};
use serde::Serialize;
use serde_json::{Value, json};

/// Most ops of a timeline in the terminal.
const MAX_DRAWN_OPS: usize = 200_000;

#[derive(Args)]
pub struct Predict {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    hardware: HardwareOptions,
    #[command(flatten)]
    calibrate: CalibrateOptions,
    /// Whether --micro was given instead of --batch.
    #[arg(skip)]
    pub micro_given: bool,
    #[command(flatten)]
    fsdp: FsdpOptions,
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    pub draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    pub remarks: RemarkOptions,
    #[command(flatten)]
    thresholds: ThresholdOptions,
    #[command(flatten)]
    file: QuestionOptions,
    #[command(flatten)]
    measured: measured::MeasuredOptions,
    /// Print the tables, too, of a model on hardware: all figures, the parts of the time, and the memory
    #[arg(long, conflicts_with = "format")]
    tables: bool,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub job_gpus: JobGpus,
}

#[derive(Serialize)]
struct Compared<'a> {
    schema_version: u32,
    predictions: Vec<Rated<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<Value>,
    /// Which schedule is shortest, and at which p and m that changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a Verdict>,
}

/// A prediction whose measured step is judged.
#[derive(Serialize)]
struct Judged<'a> {
    schema_version: u32,
    predictions: &'a [Predicted],
    verdict: &'a Verdict,
}

/// A prediction in a comparison, with the figures in which it is best.
#[derive(Serialize)]
struct Rated<'a> {
    #[serde(flatten)]
    prediction: &'a Predicted,
    best: Vec<&'static str>,
}

/// The schedules of a question, and the predictions of those that exist.
#[derive(Default)]
struct Collected {
    cases: Vec<Case>,
    report: Report,
    predictions: Vec<Predicted>,
    /// Of a measured step.
    verdict: Option<Verdict>,
    /// What measured steps change, for each prediction if there are any.
    corrected: Vec<Corrected>,
}

/// Returns what is kept of a prediction.
type Kept = fn(&Prediction<'_>) -> PredictedEntry;

impl Predict {
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let question = self.question();
        let prepared =
            question.prepare(&Sandbox, &self.remarks).map_err(|error| self.draw.print.without_answer(error))?;
        self.file.save(&question, self.remarks)?;
        self.check_measured(&prepared)?;
        if prepared.layouts().len() > 1 {
            if self.tables {
                return Err(Failure::usage(
                    "expected one layout with --tables, found several, whose table is always printed; leave it out",
                ));
            }
            return self.layouts(&question, &prepared);
        }
        let on_hardware = !prepared.layouts().is_empty();
        if self.tables && !on_hardware {
            let why = "expected --model and --hardware with --tables, found none: other tables are always printed; leave it out";
            return Err(Failure::usage(why));
        }
        let unit = if on_hardware { "ms" } else { self.costs.time_unit() };
        self.thresholds
            .check_scope(Scope::Predictions { unit, whole_steps: on_hardware || question.profile.is_some() })?;
        if !on_hardware && question.are_several() {
            return self.sweep(&question, &prepared);
        }
        let mut ops = 0;
        let is_drawn = |ops: usize| self.draw.print.format == Format::Table && ops <= MAX_DRAWN_OPS;
        let kept = |found: &Found<'_>| -> Kept {
            match self.write.output.is_empty() {
                false => PredictedEntry::predicted,
                true if is_drawn(found.ops) => PredictedEntry::drawn,
                true => PredictedEntry::figures,
            }
        };
        let remarks = RemarkOptions { says_misfits: on_hardware && self.says_misfits(), ..self.remarks };
        let found = self.collect(&prepared, remarks, &mut SpanFiles::default(), |found| {
            ops = found.ops;
            kept(found)
        });
        let found = found.map_err(|failure| self.draw.print.without_answer(failure))?;
        let labels = found.labels(false);
        let found = Collected { verdict: self.verdict(&question, &found)?, ..found };
        let head = found.verdict.as_ref().map(measured::Head::new);
        let first = match (prepared.layouts(), &head) {
            (_, Some(head)) => head.to_string(),
            ([analytic], None) => first_lines(analytic, &found.predictions, self.tables),
            _ => String::new(),
        };
        let tables = |report: &Report| {
            let rest = head.as_ref().map(|head| head.rest(report));
            let report = rest.as_ref().unwrap_or(report);
            if !first.is_empty() && !self.tables {
                let drawn = if is_drawn(ops) { self.draw.timeline(report) } else { String::new() };
                return [first, drawn, tables_asked_for(report)]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("\n");
            }
            if is_drawn(ops) {
                return first + &self.draw.terminal(report);
            }
            if self.write.writes_nothing() {
                self.remarks
                    .remark(&format!("{ops} ops are too many for the terminal; draw them with -o timeline.html"));
            }
            first + &table(report)
        };
        let predictions = self.show(&question, &prepared, found, &self.write, tables)?;
        self.judge(&labels, predictions.iter().map(|one| (&one.figures, one.estimate.as_ref())))
    }

    /// Whether the lines of the answer say what does not fit.
    fn says_misfits(&self) -> bool {
        let is_measured = || self.draw.print.job.as_ref().is_some_and(|job| job.measured.is_some());
        self.draw.print.format == Format::Table && self.measured.measured.is_none() && !is_measured()
    }

    /// Returns the question of these options.
    pub fn question(&self) -> Question {
        let mut question = self.schedules.question();
        self.costs.ask(&mut question);
        self.hardware.ask(&mut question);
        self.fsdp.ask(&mut question);
        self.engine.ask(&mut question);
        if !self.micro_given {
            question.micro.clear();
        }
        self.measured.choose_schedule(&mut question);
        question
    }

    /// Predicts each schedule, and keeps of each what `kept` returns; spans go to files of spans as soon as they are known.
    fn collect(
        &self,
        prepared: &Prepared,
        remarks: RemarkOptions,
        spans: &mut SpanFiles,
        mut kept: impl FnMut(&Found<'_>) -> Kept,
    ) -> Result<Collected, Failure> {
        let (mut found, mut results, mut steps) = (Collected::default(), Vec::new(), Vec::new());
        prepared.each(&Sandbox, &remarks, &mut |one| {
            found.cases.push(one.case.clone());
            if let Some(prediction) = one.prediction {
                write_spans(one.case, prediction, spans)?;
                results.push(kept(&one)(prediction));
                steps.push((one.estimate, one.layout, one.framework));
            }
            Ok::<(), Failure>(())
        })?;
        let (report, figures) = Report::of_predictions(results);
        let predicted = |(figures, (estimate, layout, framework))| Predicted { figures, estimate, layout, framework };
        found.predictions = figures.into_iter().zip(steps).map(predicted).collect();
        if let Some(calibration) = self.calibrate.calibration(&self.question())? {
            let estimates = found.predictions.iter_mut().filter_map(|one| one.estimate.as_mut());
            found.corrected = estimates.map(|estimate| calibration.correct(estimate)).collect();
            remarks.remark(&calibration.described(&found.corrected));
        }
        Ok(Collected { report, ..found })
    }

    /// Compares predictions with thresholds.
    fn judge<'a>(
        &self,
        labels: &'a [String],
        predictions: impl Iterator<Item = (&'a PredictionFigures, Option<&'a StepEstimate>)>,
    ) -> Result<(), Failure> {
        let figures = labels.iter().zip(predictions).map(|(label, (p, estimate))| {
            let iteration = estimate.map(|estimate| 1e3 * estimate.iteration_s).or(p.iteration);
            let figures = Figures::new(label, &p.time_unit).with_metrics(Side::Predicted, &p.metrics);
            figures.with_step(Side::Predicted, iteration, p.period)
        });
        self.thresholds.judge(&figures.collect::<Vec<_>>())?.result()
    }

    /// Prints and writes predictions of one layout, or at several p and m.
    fn show(
        &self,
        question: &Question,
        prepared: &Prepared,
        found: Collected,
        write: &WriteOptions,
        tables: impl FnOnce(&Report) -> String,
    ) -> Result<Vec<Predicted>, Failure> {
        let Collected { cases, mut report, predictions, verdict, corrected } = found;
        // A comparison shows what is left out and what is above the cap.
        let compared = question.is_comparison() || cases.iter().any(Case::is_marked);
        if self.costs.costs.is_some() || self.costs.costs_per.is_some() {
            report.subtitle = self.costs.given().described();
        }
        if compared {
            report = comparison::compared(report, &cases, question.are_several());
        }
        add_columns(&mut report, &predictions);
        if !question.are_several() {
            headline::add(&mut report, question, prepared.layouts(), &predictions);
        }
        headline::note(&mut report, question, &predictions);
        write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.provenance.extend(origin());
        if let Some(verdict) = &verdict {
            report.verdict = verdict.to_string();
            report.extra_tables.extend(verdict.tables(|text| as_flags(text)));
        }
        report.extra_tables.extend(figures::balance(&predictions));
        if let [analytic] = prepared.layouts() {
            report.extra_tables.extend([figures::table(analytic, &predictions), figures::memory_table(&predictions)]);
        }
        let json = || {
            if let (false, Some(verdict)) = (compared, &verdict) {
                let text = output::json(&Judged { schema_version: 1, predictions: &predictions, verdict })?;
                return Ok(as_flags(with_corrections(text, "predictions", &corrected)?));
            }
            if !compared {
                let text = with_corrections(versioned("predictions", &predictions)?, "predictions", &corrected)?;
                return Ok(with_flags(text, &predictions));
            }
            let best = report.entries.iter().zip(report.best());
            let best = best.filter(|(entry, _)| entry.predicted.is_some()).map(|(_, best)| best);
            let text = output::json(&Compared {
                schema_version: 1,
                predictions: predictions
                    .iter()
                    .zip(best)
                    .map(|(prediction, best)| Rated { prediction, best })
                    .collect(),
                left_out: cases.iter().filter_map(missing).collect(),
                changes: report.changes(),
                verdict: verdict.as_ref(),
            })?;
            let text = with_corrections(text, "predictions", &corrected)?;
            Ok(if verdict.is_some() { as_flags(text) } else { with_flags(text, &predictions) })
        };
        self.draw.print.show_assumed(&self.costs)?;
        let printed = self.draw.print.show(&report, json, || tables(&report), || report::figures(&report));
        write.write(&report, &[], printed, self.remarks)?;
        Ok(predictions)
    }
}

impl Collected {
    /// Returns the labels of what is predicted, with p and m if there are `several`.
    fn labels(&self, several: bool) -> Vec<String> {
        self.cases.iter().filter(|case| case.exists()).map(|case| case.label(several)).collect()
    }
}

/// Writes the spans of a prediction to files of spans, if there are any.
fn write_spans(case: &Case, prediction: &Prediction<'_>, spans: &mut SpanFiles) -> Result<(), Failure> {
    if spans.are_none() {
        return Ok(());
    }
    let (mut entry, _) = PredictedEntry::drawn(prediction).into_entry();
    entry.name = case.label(true);
    if !spans.write(&entry)? {
        return Err(Failure::Usage(format!(
            "{}: expected slices at every p and m or at none, as they have a column in a file of spans; give the others alone",
            entry.name
        )));
    }
    Ok(())
}

/// Adds the columns of steps on hardware to the entries that are predicted, and in what they are less certain.
fn add_columns(report: &mut Report, predictions: &[Predicted]) {
    let entries = report.entries.iter_mut().filter(|entry| entry.predicted.is_some());
    for (entry, one) in entries.zip(predictions) {
        entry.over_steps.extend(one.estimate.iter().flat_map(StepEstimate::figures));
        entry.over_steps.extend(one.layout.iter().flat_map(|layout| layout.figures()));
        entry.outside = one.estimate.as_ref().map(|estimate| estimate.outside.join("; "));
    }
}

/// Returns the tables that an option asked for: all but the last two, the figures and the memory of every step on hardware.
fn tables_asked_for(report: &Report) -> String {
    let count = report.extra_tables.len().saturating_sub(2);
    if count == 0 {
        return String::new();
    }
    table(&Report { extra_tables: report.extra_tables[..count].to_vec(), ..Report::default() })
}

/// Returns the answer in a few lines, and an empty one.
fn first_lines(analytic: &Analytic, predictions: &[Predicted], tables: bool) -> String {
    let next = match tables {
        true => "",
        false => "pipesim explain with the same options says what would shorten it; --tables prints all figures.",
    };
    let lines = prediction::lines(analytic, predictions, next);
    let lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { String::new() } else { as_flags(wrap(&lines, 0)) + if tables { "\n" } else { "" } }
}

/// Writes the settings of suggestions as flags.
fn with_flags(json: String, predictions: &[Predicted]) -> String {
    let has_suggestion = |one: &Predicted| one.estimate.as_ref().is_some_and(|estimate| estimate.misfit.is_some());
    if predictions.iter().any(has_suggestion) { as_flags(json) } else { json }
}

/// Returns a schedule that is left out.
fn missing(case: &Case) -> Option<Value> {
    let ComparisonPoint { schedule, devices, microbatches, left_out, .. } = &case.point;
    let why = as_flags(&left_out.as_ref()?.why);
    Some(json!({ "schedule": schedule, "devices": devices, "microbatches": microbatches, "why": why }))
}
