//! `pipesim import`: profilers' traces of other programs become timelines.

use crate::cli::Failure;
use crate::cli::options::output::{DrawOptions, OneFile, WriteOptions, json, origin};
use crate::cli::terminal::progress::RemarkOptions;
use crate::import;
use clap::Args;
use pipesim_cost::CostFile;
use pipesim_diagnosis::{self as diagnosis, Fit, MeasuredStep};
use pipesim_import::{ImportOptions, LabelRule, RankClock, Run};
use pipesim_report::{self as report, Entry, Panel, Report, Table};
use pipesim_schedule::timeline::{StepFigures, Timeline};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Most timelines whose prediction is compared with them.
const MOST_FITS: usize = 5;

#[derive(Args)]
pub struct Import {
    /// Traces of one run, one file per rank: files, folders, and patterns such as 'traces/rank*.json.gz'
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Number of the step to show, as in the trace [default: the step with the median makespan]
    #[arg(long, value_name = "N", conflicts_with = "all_steps")]
    step: Option<u64>,
    /// Only steps with these numbers: 3..8, or 5; their median is shown, with the spread
    #[arg(long, value_name = "A..B", value_parser = step_range, conflicts_with = "step")]
    steps: Option<(u64, u64)>,
    /// Show and write all steps
    #[arg(long)]
    all_steps: bool,
    /// Which pipeline, if the traces have several [default: 0]
    #[arg(long, value_name = "N")]
    pipeline: Option<u32>,
    /// Ranges whose names match are ops of this kind; the group is the micro-batch: 'fwd_(\d+)=F'. A group (?<stage>\d+) is the stage; repeatable
    #[arg(long = "label", value_name = "REGEX=KIND")]
    labels: Vec<LabelRule>,
    /// Write costs by stage and kind of all complete steps, for predict --profile, too
    #[arg(long, value_name = "FILE.json")]
    costs: Option<PathBuf>,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
}

/// Unit of the progress that is shown.
const MEBIBYTE: u64 = 1 << 20;

impl Import {
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let costs = self.costs.as_deref().map(costs_file).transpose()?;
        let options = ImportOptions { labels: self.labels.clone(), pipeline: self.pipeline };
        let run = read_traces(&self.traces, &options, self.remarks)?;
        let run = match self.steps {
            Some((first, last)) => run.between(first, last).map_err(Failure::usage)?,
            None => run,
        };
        if let Some(file) = costs {
            let complete: Vec<&Timeline> =
                run.timelines.iter().filter(|timeline| timeline.incomplete_devices.is_empty()).collect();
            if complete.is_empty() {
                return Err(Failure::usage(
                    "--costs: expected a step whose devices are all recorded, found none; import all ranks' traces",
                ));
            }
            let costs = costs_of_steps(&complete, self.remarks).map_err(Failure::Usage)?;
            file.write(&json(&costs)?, self.remarks, |path| format!("; use it with pipesim predict --profile {path}"))?;
        }
        let mut report = self.report(&run)?;
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        let table = || self.draw.terminal(&report);
        let printed = self.draw.print.show(&report, || Ok(report.json()), table, || report::figures(&report));
        report.provenance.extend(origin());
        self.write.write(&report, &[], printed, self.remarks)
    }

    fn report(&self, run: &Run) -> Result<Report, Failure> {
        let chosen: Vec<&Timeline> = if self.all_steps {
            run.timelines.iter().collect()
        } else {
            vec![run.timeline(self.step).map_err(Failure::usage)?]
        };
        let entry = |timeline: &&Timeline| {
            let name = match timeline.step.filter(|_| self.all_steps) {
                Some(step) => format!("{}, step {step}", timeline.schedule),
                None => timeline.schedule.clone(),
            };
            let panel = Panel::new((*timeline).clone(), timeline.metrics());
            Entry { name, measured: Some(panel), ..Entry::default() }
        };
        Ok(Report {
            title: "Imported run".to_string(),
            verdict: verdict(run, &chosen),
            entries: chosen.iter().map(entry).collect(),
            extra_tables: [steps(run, chosen[0]), clocks(run)].into_iter().flatten().collect(),
            ..Report::default()
        })
    }
}

/// Parses `3..8` or `5`: the first and the last step.
fn step_range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (first.trim().parse::<u64>(), last.trim().parse::<u64>());
    match (first, last) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err("expected the numbers of the first and the last step, as in 3..8; correct it".to_string()),
    }
}

/// Reads traces, shows the progress of large ones, and says what was odd.
pub fn read_traces(traces: &[PathBuf], options: &ImportOptions, remarks: RemarkOptions) -> Result<Run, Failure> {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |data| data.len());
    let in_folder = |path: &PathBuf| {
        let entries = std::fs::read_dir(path).ok().into_iter().flatten().flatten();
        entries.map(|entry| size(&entry.path())).sum::<u64>()
    };
    let all: u64 = traces.iter().map(|path| if path.is_dir() { in_folder(path) } else { size(path) }).sum();
    let of = (all > 0).then_some((all.div_ceil(MEBIBYTE), "MiB"));
    let busy = remarks.busy("reading traces", of);
    let shown = Cell::new(0);
    let progress = |done: u64, _: u64| {
        while shown.get() < done / MEBIBYTE {
            busy.done();
            shown.set(shown.get() + 1);
        }
    };
    let run = import(traces, options, &progress).map_err(Failure::usage)?;
    run.warnings.iter().for_each(|warning| remarks.remark(&format!("warning: {warning}")));
    Ok(run)
}

/// Returns the file for costs.
fn costs_file(path: &Path) -> Result<OneFile, Failure> {
    if path.extension().is_none_or(|ending| ending != "json") {
        return Err(Failure::Usage(format!(
            "--costs: expected the name of a file that ends in .json, found '{}'; use such a name",
            path.display()
        )));
    }
    OneFile::at(Some(path), &[".json"])
}

/// Says what was recovered.
pub fn verdict(run: &Run, chosen: &[&Timeline]) -> String {
    let order = match &run.order {
        Some(name) => format!("the order is that of {name}"),
        None => "the order is that of no built-in schedule".to_string(),
    };
    let shown = match (chosen, run.steps().len()) {
        ([one], count) if count > 1 => {
            let spread =
                run.spread().map_or_else(String::new, |(least, most)| format!(" ({} to {})", ms(least), ms(most)));
            format!("; step {} is shown, one of {count}{spread}", one.step.unwrap_or_default())
        }
        _ => String::new(),
    };
    let aligned = match chosen.iter().map(|timeline| timeline.clock_uncertainty_ns).max() {
        Some(ns) if run.clocks.len() > 1 => format!("; clocks agree to {:.3} ms", ns as f64 / 1e6),
        _ => String::new(),
    };
    let messages = if run.messages.expected > 0 { format!(", {} messages", run.messages) } else { String::new() };
    format!("{}: {} ops{messages}; {order}{aligned}{shown}", run.format, run.ops)
}

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

/// Returns the figures of all steps, the one shown marked.
fn steps(run: &Run, shown: &Timeline) -> Option<Table> {
    const MOST: usize = 20;
    let row = |step: &StepFigures| {
        let mark = if step.incomplete_devices.is_empty() { "" } else { "?" };
        let mark = if Some(step.number) == shown.step { format!("{mark}*") } else { mark.to_string() };
        let slowest =
            (0..).zip(&step.busy_ns).max_by_key(|&(device, busy): &(u32, _)| (busy, std::cmp::Reverse(device)));
        vec![
            format!("{}{mark}", step.number),
            ms(step.makespan_ns),
            format!("{:.1} %", 100.0 * step.bubble),
            step.iteration_ns.map_or_else(|| "-".to_string(), ms),
            slowest.map_or_else(String::new, |(device, busy)| format!("{device} ({})", ms(*busy))),
        ]
    };
    let rows: Vec<Vec<String>> = run.steps().iter().take(MOST).map(row).collect();
    let more = run.steps().len().saturating_sub(MOST);
    let more = if more > 0 { format!("; {more} more in the file") } else { String::new() };
    let caption = format!("Steps (* shown, ? without some ops{more})");
    (rows.len() > 1)
        .then(|| Table::new(&caption, &["step", "makespan", "bubble", "to next start", "busiest device"], rows))
}

/// Returns each rank's clock against the first one's.
fn clocks(run: &Run) -> Option<Table> {
    let row = |clock: &RankClock| {
        vec![
            clock.device.to_string(),
            clock.rank.to_string(),
            format!("{:+.3} ms", clock.offset_ns as f64 / 1e6),
            format!("{:+.1} ppm", clock.drift_ppm),
            if clock.is_tied { "yes" } else { "no" }.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = run.clocks.iter().map(row).collect();
    let header = ["device", "rank", "clock ahead", "runs fast", "tied"];
    (rows.len() > 1).then(|| Table::new("Clocks, against the first device", &header, rows))
}

/// Returns the costs of steps of one run, and says how well they predict the first steps.
///
/// # Errors
/// As [`diagnosis::costs`].
pub fn costs_of_steps(steps: &[&Timeline], remarks: RemarkOptions) -> Result<CostFile, String> {
    let costs = diagnosis::costs(steps).map_err(|error| error.to_string())?;
    for timeline in steps.iter().take(MOST_FITS) {
        let step = MeasuredStep::new(timeline).map_err(|error| error.to_string())?;
        let fit = Fit::new(&step, &costs).map_err(|error| error.to_string())?;
        let number = timeline.step.map_or_else(String::new, |step| format!(" step {step}"));
        remarks.remark(&format!(
            "{}{number}: predicted from these costs {:+.1} %, replayed op by op {:+.1} %; {}",
            timeline.schedule,
            100.0 * fit.makespan_error,
            100.0 * fit.replay_error,
            fit.best_in_words()
        ));
    }
    Ok(costs)
}
