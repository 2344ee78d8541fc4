//! `predict` over several p or m: a row per schedule, p and m. A prediction is made at a time; of the others only what is shown is
//! kept.

use super::Predict;
use super::grid::{ChunksBySchedule, Combination};
use crate::cli::Failure;
use crate::cli::options::output::{Format, WriteOptions};
use crate::cli::options::schedules::SearchOptions;
use crate::cli::options::threshold::{Figures, Side};
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::signals::remove_unfinished_on_signals;
use crate::cli::terminal::table;
use crate::report::{Output, OutputKind, PredictedEntry, Report, SpanFiles, TimelineRendering};
use crate::resolve::{Costs, Variant};
use crate::sim::Prediction;
use crate::sim::event::EventError;
use std::collections::BTreeSet;

/// Most combinations with timelines, with figures in memory, and in a stream.
const MOST: [usize; 3] = [10_000, 100_000, 1_000_000];

/// What is kept of a prediction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// The figures. Spans go to files of spans as soon as they are known.
    Figures,
    /// The timeline and the causes of idle time.
    Timeline,
}

impl Kept {
    pub(super) fn of(self, result: &Prediction) -> PredictedEntry {
        match self {
            Kept::Figures => PredictedEntry::figures(result),
            Kept::Timeline => PredictedEntry::predicted(result),
        }
    }
}

/// The combinations of a sweep, and the predictions of those that exist.
#[derive(Default)]
struct Collected {
    all: Vec<Combination>,
    results: Vec<PredictedEntry>,
    chunks: ChunksBySchedule,
}

impl Predict {
    /// Predicts every schedule at every p and m.
    pub(super) fn sweep(&self, schedules: &SearchOptions, costs: &Costs) -> Result<(), Failure> {
        let kept = self.kept(schedules);
        let is_streamed =
            self.draw.print.format == Format::Csv && self.files().all(is_of_spans) && kept == Kept::Figures;
        self.check_count(schedules, is_streamed, kept)?;
        if is_streamed {
            return self.stream(schedules, costs);
        }
        let mut spans = self.span_files(schedules, kept)?;
        let mut found = self.collect(schedules, costs, kept, &mut spans, self.remarks)?;
        if kept == Kept::Figures && self.files().any(|file| !is_of_spans(file)) && !are_at_several(&found.all) {
            // There is no map of one p and m, but a picture of its timelines.
            let quiet = RemarkOptions { quiet: true };
            found = self.collect(schedules, costs, Kept::Timeline, &mut SpanFiles::default(), quiet)?;
        }
        let Collected { all, results, chunks } = found;
        self.remarks_on_costs(&chunks);
        let (report, figures) = Report::of_predictions(results);
        let tables = |report: &Report| {
            if self.write.writes_nothing() {
                self.remarks.remark("draw the sweep with -o sweep.svg, all timelines with -o timelines.html");
            }
            table(report)
        };
        let rest = |output: &&Output| spans.are_none() || !is_of_spans(output);
        let write =
            WriteOptions { output: self.write.output.iter().filter(rest).cloned().collect(), ..self.write.clone() };
        self.show(report, &figures, &all, None, &write, tables)?;
        spans.finish(|path| self.remarks.remark(&format!("wrote {}", path.display())))?;
        if self.thresholds.are_none() {
            return Ok(());
        }
        let labels: Vec<String> = all.iter().filter(|one| one.exists()).map(|one| one.label(true)).collect();
        let judged = figures.iter().zip(&labels).map(|(p, label)| {
            let figures = Figures::new(label, &p.time_unit).with_metrics(Side::Predicted, &p.metrics);
            figures.with_step(Side::Predicted, p.iteration, p.period)
        });
        self.thresholds.judge(&judged.collect::<Vec<_>>())?.result()
    }

    /// The outputs other than stdout.
    fn files(&self) -> impl Iterator<Item = &Output> {
        self.write.output.iter().filter(|output| !matches!(output.shape, OutputKind::Stdout))
    }

    fn kept(&self, schedules: &SearchOptions) -> Kept {
        let look = self.write.look.look();
        let timelines = look.window.is_some() || look.collapse || !look.memory || !look.waits;
        // Whether `auto` takes a schedule with slices, which have a column, is known at the end.
        let is_auto = |name: &String| Variant::parse(name).is_ok_and(|variant| variant.is_auto());
        let is_auto = schedules.names().iter().any(is_auto);
        let needs_figures = |output: &Output| match output.shape {
            OutputKind::File(TimelineRendering::Still, _) => !timelines, // a map
            OutputKind::File(..) => output.ends_in(".tex") || is_of_spans(output) && !is_auto,
            OutputKind::Folder | OutputKind::Stdout => false,
        };
        if self.files().all(needs_figures) { Kept::Figures } else { Kept::Timeline }
    }

    fn check_count(&self, schedules: &SearchOptions, is_streamed: bool, kept: Kept) -> Result<(), Failure> {
        let (most, advice) = match (is_streamed, kept) {
            (_, Kept::Timeline) => (MOST[0], format!(", or --format csv without -o, which takes {}", MOST[2])),
            (false, Kept::Figures) => (MOST[1], format!(", or --format csv, which takes {}", MOST[2])),
            (true, Kept::Figures) => (MOST[2], String::new()),
        };
        let count = schedules.count();
        if count > most {
            return Err(Failure::Usage(format!(
                "expected at most {most} combinations, found {count}; give fewer -p or -m{advice}"
            )));
        }
        Ok(())
    }

    /// Begins the files of spans that are written prediction by prediction.
    pub(super) fn span_files(&self, schedules: &SearchOptions, kept: Kept) -> Result<SpanFiles, Failure> {
        if kept == Kept::Timeline || !self.files().any(is_of_spans) {
            return Ok(SpanFiles::default());
        }
        remove_unfinished_on_signals();
        let paths = self.files().filter(|file| is_of_spans(file)).map(|file| file.path.as_path());
        Ok(SpanFiles::begin(paths, schedules.are_cut()?)?)
    }

    fn collect(
        &self,
        schedules: &SearchOptions,
        costs: &Costs,
        kept: Kept,
        spans: &mut SpanFiles,
        remarks: RemarkOptions,
    ) -> Result<Collected, Failure> {
        let mut found = Collected::default();
        self.each_prediction(schedules, costs, remarks, |one, result, _| {
            if let Some(result) = result {
                found.chunks.note(&one.name, result.graph);
                self.write_spans(one, result, spans)?;
                found.results.push(kept.of(result));
            }
            found.all.push(Combination { name: one.name.clone(), point: one.point.clone(), resolved: None });
            Ok(())
        })?;
        Ok(found)
    }

    /// Writes the spans of a prediction to files of spans, if there are any.
    pub(super) fn write_spans(
        &self,
        one: &Combination,
        result: &Prediction,
        spans: &mut SpanFiles,
    ) -> Result<(), Failure> {
        if spans.are_none() {
            return Ok(());
        }
        let (mut entry, _) = PredictedEntry::drawn(result).into_entry();
        entry.name = one.label(true);
        if !spans.write(&entry)? {
            return Err(Failure::Usage(format!(
                "{}: expected slices at every p and m or at none, as they have a column in a file of spans; give the others alone",
                entry.name
            )));
        }
        Ok(())
    }

    /// Predicts each combination, and gives it to `visit` with its prediction, none if it is left out, and its label.
    pub(super) fn each_prediction(
        &self,
        schedules: &SearchOptions,
        costs: &Costs,
        remarks: RemarkOptions,
        mut visit: impl FnMut(&Combination, Option<&Prediction>, &str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut stuck, mut any) = (None, false);
        schedules.each_combination(costs, self.costs.balance, remarks, |mut one| {
            let label = one.label(true);
            let Some(resolved) = one.resolved.take() else { return visit(&one, None, &label) };
            let failure = |error: EventError| match Failure::from(error) {
                Failure::Schedule(text) => Failure::Schedule(format!("{label}: {text}")),
                other => other,
            };
            match self.simulate(&resolved, &label) {
                Err(error @ EventError::Deadlock(_)) if self.engine.delivery.is_some() => {
                    one.leave_out(&error);
                    stuck.get_or_insert(failure(error));
                    visit(&one, None, &label)
                }
                Err(error) => Err(failure(error)),
                Ok(result) => {
                    any = true;
                    visit(&one, Some(&result), &label)
                }
            }
        })?;
        match stuck {
            Some(failure) if !any => Err(failure),
            _ => Ok(()),
        }
    }
}

/// Whether an output is a file with a line per span.
fn is_of_spans(output: &Output) -> bool {
    matches!(output.shape, OutputKind::File(..)) && output.ends_in(".csv")
}

/// Whether predictions exist at several p and m, so that pictures are maps.
fn are_at_several(all: &[Combination]) -> bool {
    let exist = all.iter().filter(|one| one.exists());
    exist.map(|one| (one.point.devices, one.point.microbatches)).collect::<BTreeSet<_>>().len() > 1
}
