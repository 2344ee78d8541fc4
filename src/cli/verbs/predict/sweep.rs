//! `predict` over several p or m: a row per schedule, p and m. A prediction is made at a time; of the others only what is shown is
//! kept.

use super::{Collected, Kept, Predict};
use crate::cli::Failure;
use crate::cli::options::output::{Format, WriteOptions};
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::signals::remove_unfinished_on_signals;
use crate::cli::terminal::table;
use pipesim_answer::question::{Prepared, Question};
use pipesim_answer::resolve::Variant;
use pipesim_report::{Output, OutputKind, PredictedEntry, Report, SpanFiles, TimelineRendering};
use std::collections::BTreeSet;

/// Most combinations with timelines, with figures in memory, and in a stream.
const MOST: [usize; 3] = [10_000, 100_000, 1_000_000];

/// Whether only figures are kept, as no output needs timelines and causes of idle time.
fn kept(keeps_figures: bool) -> Kept {
    if keeps_figures { PredictedEntry::figures } else { PredictedEntry::predicted }
}

impl Predict {
    /// Predicts every schedule at every p and m.
    pub(super) fn sweep(&self, question: &Question, prepared: &Prepared) -> Result<(), Failure> {
        let keeps_figures = self.keeps_figures(question);
        let is_streamed = self.draw.print.format == Format::Csv && self.files().all(is_of_spans) && keeps_figures;
        self.check_count(question, is_streamed, keeps_figures)?;
        if is_streamed {
            return self.stream(question, prepared);
        }
        let mut spans = self.span_files(question, keeps_figures)?;
        let mut found = self.collect(prepared, self.remarks, &mut spans, |_| kept(keeps_figures))?;
        if keeps_figures && self.files().any(|file| !is_of_spans(file)) && !are_at_several(&found) {
            // There is no map of one p and m, but a picture of its timelines.
            let quiet = RemarkOptions { quiet: true, ..self.remarks };
            found = self.collect(prepared, quiet, &mut SpanFiles::default(), |_| kept(false))?;
        }
        let tables = |report: &Report| {
            if self.write.writes_nothing() {
                self.remarks.remark("draw the sweep with -o sweep.svg, all timelines with -o timelines.html");
            }
            table(report)
        };
        let rest = |output: &&Output| spans.are_none() || !is_of_spans(output);
        let write =
            WriteOptions { output: self.write.output.iter().filter(rest).cloned().collect(), ..self.write.clone() };
        let labels = found.labels(true);
        let predictions = self.show(question, prepared, found, &write, tables)?;
        spans.finish(|path| self.remarks.remark(&format!("wrote {}", path.display())))?;
        self.judge(&labels, predictions.iter().map(|one| (&one.figures, None)))
    }

    /// The outputs other than stdout.
    fn files(&self) -> impl Iterator<Item = &Output> {
        self.write.output.iter().filter(|output| !matches!(output.shape, OutputKind::Stdout))
    }

    /// Whether no output needs timelines. Spans go to files of spans as soon as they are known.
    fn keeps_figures(&self, question: &Question) -> bool {
        let look = self.write.look.look();
        let timelines = look.window.is_some() || look.collapse || !look.memory || !look.waits;
        // Whether `auto` takes a schedule with slices, which have a column, is known at the end.
        let is_auto = |name: &String| Variant::parse(name).is_ok_and(|variant| variant.is_auto());
        let is_auto = question.names().iter().any(is_auto);
        let needs_figures = |output: &Output| match output.shape {
            OutputKind::File(TimelineRendering::Still, _) => !timelines, // a map
            OutputKind::File(..) => output.ends_in(".tex") || is_of_spans(output) && !is_auto,
            OutputKind::Folder | OutputKind::Stdout => false,
        };
        self.files().all(needs_figures)
    }

    fn check_count(&self, question: &Question, is_streamed: bool, keeps_figures: bool) -> Result<(), Failure> {
        let (most, advice) = match (is_streamed, keeps_figures) {
            (_, false) => (MOST[0], format!(", or --format csv without -o, which takes {}", MOST[2])),
            (false, true) => (MOST[1], format!(", or --format csv, which takes {}", MOST[2])),
            (true, true) => (MOST[2], String::new()),
        };
        let count = question.count();
        if count > most {
            return Err(Failure::Usage(format!(
                "expected at most {most} combinations, found {count}; give fewer -p or -m{advice}"
            )));
        }
        Ok(())
    }

    /// Begins the files of spans that are written prediction by prediction.
    pub(super) fn span_files(&self, question: &Question, keeps_figures: bool) -> Result<SpanFiles, Failure> {
        if !keeps_figures || !self.files().any(is_of_spans) {
            return Ok(SpanFiles::default());
        }
        remove_unfinished_on_signals();
        let paths = self.files().filter(|file| is_of_spans(file)).map(|file| file.path.as_path());
        Ok(SpanFiles::begin(paths, question.are_cut(&Sandbox)?)?)
    }
}

/// Whether an output is a file with a line per span.
fn is_of_spans(output: &Output) -> bool {
    matches!(output.shape, OutputKind::File(..)) && output.ends_in(".csv")
}

/// Whether predictions exist at several p and m, so that pictures are maps.
fn are_at_several(found: &Collected) -> bool {
    let exist = found.cases.iter().filter(|case| case.exists());
    exist.map(|case| (case.devices, case.microbatches)).collect::<BTreeSet<_>>().len() > 1
}
