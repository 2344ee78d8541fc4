//! `predict --format csv` over several p or m: rows are printed as soon as they are known, so that there may be many.

use super::{Predict, comparison, write_spans};
use crate::cli::Failure;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::print_while_read;
use pipesim_answer::question::{Case, Prepared, Question};
use pipesim_report::{Contest, Entry, FigureRows, PredictedEntry, Rules};
use pipesim_sim::PredictionFigures;

/// Most rows of one schedule that wait for each other: the best of them is known at the end.
const WAITING: usize = 10_000;

/// Rows on their way to stdout.
struct Stream {
    rules: Rules,
    /// Whether the best of rivals are marked.
    marks: bool,
    /// The columns, known from the first prediction.
    rows: Option<FigureRows>,
    /// Rows that wait for their rivals, or for the columns.
    waiting: Vec<Entry>,
    /// Whether somebody reads.
    is_read: bool,
}

impl Stream {
    /// Adds a row, and prints those that wait if it belongs to other rivals.
    fn add(&mut self, entry: Entry) -> Result<(), Failure> {
        let place = |entry: &Entry| entry.point.as_ref().map(|point| (point.devices, point.microbatches));
        let is_rival = |last: &Entry| self.rules.by_point && place(last) == place(&entry);
        let waits = self.waiting.last().is_none_or(is_rival) || self.marks && !self.rules.by_point;
        if !waits {
            self.print()?;
        }
        self.waiting.push(entry);
        Ok(())
    }

    /// Prints the rows that wait, unless the columns are still unknown.
    fn print(&mut self) -> Result<(), Failure> {
        let mut text = String::new();
        if self.rows.is_none() {
            if self.waiting.iter().all(|entry| entry.predicted.is_none()) {
                return Ok(());
            }
            let rows = FigureRows::of(&self.waiting);
            text += &rows.header();
            self.rows = Some(rows);
        }
        let mut contest = Contest::new(self.rules);
        let waiting = std::mem::take(&mut self.waiting);
        let with_points = || waiting.iter().filter_map(|entry| Some((entry, entry.point.as_ref()?)));
        if self.marks {
            with_points().for_each(|(entry, point)| contest.add(point, entry.predicted.as_ref()));
        }
        for (entry, point) in with_points() {
            let best = contest.best(point, entry.predicted.as_ref());
            text.extend(self.rows.iter().map(|rows| rows.row(entry, &best)));
        }
        self.is_read = self.is_read && print_while_read(&text)?;
        Ok(())
    }
}

impl Predict {
    /// Predicts every schedule at every p and m, and prints rows as soon as the best of their rivals is known.
    pub(super) fn stream(&self, question: &Question, prepared: &Prepared) -> Result<(), Failure> {
        let rules = Rules {
            by_point: question.names().len() > 1,
            several_devices: question.stages.len() > 1,
            several_microbatches: question.micro.len() > 1,
        };
        let marks = rules.by_point || question.count() <= WAITING;
        let mut stream = Stream { rules, marks, rows: None, waiting: Vec::new(), is_read: true };
        let mut spans = self.span_files(question, true)?;
        let (mut labels, mut judged) = (Vec::new(), Vec::<PredictionFigures>::new());
        let printed = prepared.each(&Sandbox, &self.remarks, &mut |found| {
            let mut entry = Entry::default();
            if let Some(prediction) = found.prediction {
                write_spans(found.case, prediction, &mut spans)?;
                let figures;
                (entry, figures) = PredictedEntry::figures(prediction).into_entry();
                if !self.thresholds.are_none() {
                    labels.push(found.case.label(true));
                    judged.push(figures);
                }
            }
            stream.add(entry_of(found.case, entry))?;
            // Without a reader, nothing is left to do, unless files or thresholds ask for all rows.
            let is_needed = stream.is_read || !spans.are_none() || !self.thresholds.are_none();
            if is_needed { Ok(()) } else { Err(Failure::Reported(0)) }
        });
        match printed {
            Err(Failure::Reported(0)) => return Ok(()),
            printed => printed?,
        }
        stream.print()?;
        if !marks {
            self.remarks.remark(&format!(
                "note: more than {WAITING} rows of one schedule are printed before the best is known: the column best is empty"
            ));
        }
        spans.finish(|path| self.remarks.remark(&format!("wrote {}", path.display())))?;
        self.judge(&labels, judged.iter().map(|figures| (figures, None)))
    }
}

fn entry_of(case: &Case, entry: Entry) -> Entry {
    Entry { name: case.label(true), point: Some(comparison::point(case)), ..entry }
}
