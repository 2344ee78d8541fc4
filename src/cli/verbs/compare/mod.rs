//! `pipesim compare`: saved timelines side by side, predictions paired with measurements.

mod labels;

use crate::cli::Failure;
use crate::cli::options::costs::read_text;
use crate::cli::options::output::{DrawOptions, WriteOptions, origin};
use crate::cli::options::threshold::{Figures, ThresholdOptions};
use crate::cli::terminal::progress::RemarkOptions;
use clap::Args;
use labels::{Labelled, labels};
use pipesim_cost::TimeUnit;
use pipesim_diagnosis::trend;
use pipesim_report::{self as report, Entry, Panel, Report, steps_table};
use pipesim_schedule::op::Op;
use pipesim_schedule::timeline::{Source, Span, Timeline};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Compare {
    /// Timelines written by -o FILE.json, and report folders
    #[arg(required_unless_present_any = ["before", "after"])]
    files: Vec<PathBuf>,
    /// Show what changed from this timeline to that of --after, and what it gained
    #[arg(long, value_name = "FILE.json", requires = "after", conflicts_with = "files")]
    before: Option<PathBuf>,
    /// The timeline that --before is compared with
    #[arg(long, value_name = "FILE.json", requires = "before", conflicts_with = "files")]
    after: Option<PathBuf>,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
    #[command(flatten)]
    thresholds: ThresholdOptions,
}

/// A file of timelines.
struct Given {
    path: PathBuf,
    /// What was given: the file, or its report folder.
    origin: PathBuf,
}

impl Compare {
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let mut report = match (&self.before, &self.after) {
            (Some(before), Some(after)) => {
                let before = single(self.read(before)?, "--before", before)?;
                let after = single(self.read(after)?, "--after", after)?;
                let mut both = in_one_unit(vec![before, after])?.into_iter();
                let (Some(before), Some(after)) = (both.next(), both.next()) else { return Ok(()) };
                Report::of_change(before, after)
            }
            _ => {
                let (mut timelines, mut origins) = (Vec::new(), Vec::new());
                for Given { path, origin } in self.timelines()? {
                    timelines.extend(self.read(&path)?);
                    origins.resize(timelines.len(), origin);
                }
                paired(in_one_unit(timelines)?, &origins)
            }
        };
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.look.cut = false; // a comparison that ends with the fastest would mislead
        report.entries.iter().flat_map(|entry| &entry.notes).for_each(|note| self.remarks.remark(note));
        let verdict = self.thresholds.judge(&report.entries.iter().map(Figures::of_entry).collect::<Vec<_>>())?;
        let table = || self.draw.terminal(&report);
        let printed = self.draw.print.show(&report, || Ok(report.json()), table, || report::figures(&report));
        report.provenance.extend(origin());
        self.write.write(&report, &[], printed, self.remarks)?;
        verdict.result()
    }

    fn read(&self, path: &Path) -> Result<Vec<Timeline>, Failure> {
        let _busy = self.remarks.busy(&format!("reading {}", path.display()), None);
        let read = Timeline::list_from_json(&read_text(path, 4 << 30)?);
        read.map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
    }

    /// Returns the files, and the timelines in report folders.
    fn timelines(&self) -> Result<Vec<Given>, Failure> {
        let mut files = Vec::new();
        for path in &self.files {
            if !path.is_dir() {
                files.push(Given { path: path.clone(), origin: path.clone() });
                continue;
            }
            let shown = path.display();
            match report::timeline_files(path) {
                None => {
                    return Err(Failure::Usage(format!(
                        "cannot read {shown}: expected a file, found a folder that has no report; name the timelines in it"
                    )));
                }
                Some(found) if found.is_empty() => {
                    return Err(Failure::Usage(format!(
                        "expected timelines in the report folder {shown}, found none; write them again with -o {shown}"
                    )));
                }
                Some(found) => {
                    files.extend(found.into_iter().map(|found| Given { path: found, origin: path.clone() }));
                }
            }
        }
        Ok(files)
    }
}

/// Returns the one timeline of a file.
///
/// # Errors
/// It has several.
fn single(mut timelines: Vec<Timeline>, option: &str, path: &Path) -> Result<Timeline, Failure> {
    let names: Vec<String> = timelines.iter().map(|timeline| timeline.schedule.clone()).collect();
    match timelines.pop().filter(|_| timelines.is_empty()) {
        Some(timeline) => Ok(timeline),
        None => Err(Failure::Usage(format!(
            "{option}: expected a file with one timeline, found {} in {} ({}); write one schedule per file with -o",
            names.len(),
            path.display(),
            names.join(", ")
        ))),
    }
}

/// Converts timelines in different units of time to milliseconds; their spans are in nanoseconds in any case.
///
/// # Errors
/// Some are in a unit of time and some in abstract units, which have no length in time.
fn in_one_unit(mut timelines: Vec<Timeline>) -> Result<Vec<Timeline>, Failure> {
    let is_time = |t: &Timeline| TimeUnit::named(&t.time_unit).is_some_and(|unit| unit.ns() == t.unit_ns);
    let first = |wanted: bool| timelines.iter().find(|timeline| is_time(timeline) == wanted);
    if let (Some(time), Some(abstract_units)) = (first(true), first(false)) {
        return Err(Failure::Usage(format!(
            "expected timelines in one unit, found {} in {} and {} in abstract units ({}), which have no length in time; predict with \
             costs in a unit of time, as in --costs F=18.5ms,B=37ms, or with --profile",
            time.schedule, time.time_unit, abstract_units.schedule, abstract_units.time_unit
        )));
    }
    let units: BTreeSet<u64> = timelines.iter().filter(|t| is_time(t)).map(|t| t.unit_ns).collect();
    if units.len() > 1 {
        let ms = TimeUnit::Millisecond;
        for timeline in timelines.iter_mut().filter(|t| is_time(t)) {
            (timeline.time_unit, timeline.unit_ns) = (ms.name().to_string(), ms.ns());
        }
    }
    Ok(timelines)
}

/// Pairs each measured timeline with the first prediction of the same schedule, devices, chunks and micro-batches; the others stay
/// single. `origins`: where each timeline comes from.
fn paired(timelines: Vec<Timeline>, origins: &[PathBuf]) -> Report {
    let (mut entries, mut origin_of) = (Vec::<Entry>::new(), Vec::new());
    // By shape and source: the entries that wait for a timeline of that source.
    let mut waiting: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
    for (timeline, origin) in timelines.into_iter().zip(origins) {
        let is_measured = timeline.source == Source::Measured;
        let shape = |t: &Timeline| (t.schedule.clone(), t.devices, t.chunks, t.microbatches, t.time_unit.clone());
        let key = shape(&timeline);
        let index = waiting.get_mut(&(key.clone(), is_measured)).and_then(VecDeque::pop_front).unwrap_or_else(|| {
            waiting.entry((key, !is_measured)).or_default().push_back(entries.len());
            entries.push(Entry { name: timeline.schedule.clone(), ..Entry::default() });
            origin_of.push(origin.as_path());
            entries.len() - 1
        });
        let metrics = timeline.metrics();
        let side = if is_measured { &mut entries[index].measured } else { &mut entries[index].predicted };
        *side = Some(Panel::new(timeline, metrics));
    }
    label(&mut entries, &origin_of);
    let mut extra_tables = Vec::new();
    for entry in &mut entries {
        for timeline in entry.measured.iter().map(|panel| &panel.timeline) {
            entry.notes.extend(incomplete(&entry.name, timeline));
            extra_tables.extend(trend(timeline).map(|trend| steps_table(&entry.name, &timeline.time_unit, &trend)));
        }
        if let (Some(predicted), Some(measured)) = (&entry.predicted, &entry.measured) {
            entry.error = report::compare(&predicted.timeline, &measured.timeline).ok();
            entry.notes.extend(other_order(&predicted.timeline, &measured.timeline));
        }
    }
    let report = Report { title: "Compared timelines".to_string(), entries, extra_tables, ..Report::default() };
    let title = if report.entries.len() > 1 { report.headline_of(&report.title) } else { report.title.clone() };
    Report { title, ..report }
}

/// Says where a measured schedule has another order than the predicted one of the same name.
fn other_order(predicted: &Timeline, measured: &Timeline) -> Option<String> {
    let starts: BTreeMap<Op, (u32, u64)> =
        measured.ops().map(|(op, span)| (op, (span.device, span.start_ns))).collect();
    let mut last: BTreeMap<u32, (Op, &Span)> = BTreeMap::new();
    for (op, span) in predicted.ops() {
        // the ops of a pair overlap, and free ops have no order
        let is_before = |(_, other): &(Op, &Span)| other.start_ns < span.start_ns && other.end_ns <= span.start_ns;
        let before = last.insert(span.device, (op, span)).filter(is_before).map(|(before, _)| before);
        let found = before.and_then(|before| Some((before, starts.get(&before)?, starts.get(&op)?)));
        if let Some((before, earlier, later)) = found
            && earlier.0 == later.0
            && earlier.1 > later.1
        {
            return Some(format!(
                "{}: the prediction runs {before} before {op} on device {}, the measurement after it: they are of different orders",
                measured.schedule, span.device
            ));
        }
    }
    None
}

/// Adds to the names of entries of one schedule what tells them apart.
fn label(entries: &mut [Entry], origins: &[&Path]) {
    let labelled = |(entry, origin): (&Entry, &&Path)| {
        let first = entry.panels().next().map(|panel| (panel.timeline.devices, panel.timeline.microbatches));
        let (devices, microbatches) = first.unwrap_or_default();
        Labelled { schedule: entry.name.clone(), origin: origin.to_path_buf(), devices, microbatches }
    };
    let all: Vec<Labelled> = entries.iter().zip(origins).map(labelled).collect();
    for (entry, label) in entries.iter_mut().zip(labels(&all)) {
        entry.label = label;
        entry.name.extend(entry.label.iter().map(|label| format!(" ({label})")));
    }
}

/// Says which devices of a timeline have no complete trace.
fn incomplete(name: &str, timeline: &Timeline) -> Option<String> {
    let missing: Vec<String> = timeline.incomplete_devices.iter().map(ToString::to_string).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "{name}: the trace of device {} is missing or cut off; figures are of the other devices",
            missing.join(", ")
        )
    })
}
