//! `pipesim watch`: follows a job that records its pipeline with `pipesim.record`.

use crate::cli::Failure;
use crate::cli::options::output::{DrawOptions, Format};
use crate::cli::options::values::whole;
use crate::cli::terminal::print_while_read;
use crate::cli::terminal::progress::RemarkOptions;
use clap::Args;
use pipesim_import::Follower;
use pipesim_report::{Entry, Panel, Report};
use pipesim_schedule::timeline::{StepFigures, Timeline};
use std::path::PathBuf;
use std::time::Duration;

/// How often the folder is looked at.
const PAUSE: Duration = Duration::from_millis(300);
/// Later steps are compared with the median of the first ones. The very first one warms up, and does not count.
const FIRST: usize = 10;

#[derive(Args)]
#[command(
    after_help = "In the job, on every rank of the pipeline:\n\n  for batch in batches:\n      with pipesim.record(\"run\"):\n          schedule.step(batch)\n\nThen: pipesim watch run/"
)]
pub struct Watch {
    /// Folder that the job gives pipesim.record
    folder: PathBuf,
    /// End after so many steps [default: on Ctrl-C]
    #[arg(long, value_name = "N", conflicts_with = "last", value_parser = whole::<u32>(1..))]
    steps: Option<u32>,
    /// Show the timeline of the last step that all ranks have completed, and end
    #[arg(long)]
    last: bool,
    /// Which pipeline, if the job has several [default: 0]
    #[arg(long, value_name = "N")]
    pipeline: Option<u32>,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Watch {
    pub fn run(&self) -> Result<(), Failure> {
        let mut follower = Follower::new(&self.folder, self.pipeline);
        if self.last {
            return self.show_last(&mut follower);
        }
        if self.draw.print.format != Format::Table {
            return Err(Failure::usage("--format: expected --last with it, found a job that is followed; add --last"));
        }
        let (mut first, mut shown) = (Vec::new(), 0);
        let mut waits = false;
        loop {
            for timeline in follower.completed().map_err(Failure::usage)? {
                if shown > 0 && first.len() < FIRST {
                    first.push(step_ns(&timeline));
                    first.sort_unstable();
                }
                let usual = first.get(first.len() / 2).copied().filter(|_| first.len() > 2);
                if !print_while_read(&format!("{}\n", line(&timeline, usual)))? {
                    return Ok(());
                }
                shown += 1;
                if self.steps.is_some_and(|most| shown >= most) {
                    return Ok(());
                }
            }
            if shown == 0 && !waits {
                self.remarks.remark(&format!("waiting for steps in {}; Ctrl-C ends", self.folder.display()));
                waits = true;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn show_last(&self, follower: &mut Follower) -> Result<(), Failure> {
        let last = follower.completed().map_err(Failure::usage)?.pop();
        let timeline = last.ok_or_else(|| {
            Failure::Usage(format!(
                "expected steps that all ranks have completed, found none in {}; wait, or name the folder that the job gives pipesim.record",
                self.folder.display()
            ))
        })?;
        let panel = Panel::new(timeline.clone(), timeline.metrics());
        let report = Report {
            title: "Recorded step".to_string(),
            verdict: line(&timeline, None),
            entries: vec![Entry { name: "measured".to_string(), measured: Some(panel), ..Entry::default() }],
            ..Report::default()
        };
        let table = || self.draw.terminal(&report);
        self.draw.print.show(&report, || Ok(report.json()), table, || pipesim_report::figures(&report)).map(|_| ())
    }
}

/// Returns the time of the step: from its first to its last rank's mark.
fn step_ns(timeline: &Timeline) -> u64 {
    let figures = timeline.steps.first();
    figures.map_or(0, |step| step.iteration_ns.unwrap_or(step.makespan_ns))
}

/// Returns what is said of a step: time, bubble, the device with the most work, and the change since the first steps.
fn line(timeline: &Timeline, usual_ns: Option<u64>) -> String {
    let ns = step_ns(timeline);
    let (number, bubble, slowest) = timeline.steps.first().map_or_else(Default::default, said);
    let drift = usual_ns.map_or_else(String::new, |usual| {
        format!("   {:+.1} % since the first steps", 100.0 * (ns as f64 / usual.max(1) as f64 - 1.0))
    });
    format!("step {number:<5} {:>10.1} ms   bubble {bubble:>4.1} %   {slowest}{drift}", ns as f64 / 1e6)
}

fn said(step: &StepFigures) -> (u64, f64, String) {
    let mean = step.busy_ns.iter().sum::<u64>() as f64 / step.busy_ns.len().max(1) as f64;
    let most = (0..).zip(&step.busy_ns).max_by_key(|&(device, busy): &(u32, _)| (busy, std::cmp::Reverse(device)));
    let slowest = most.map_or_else(String::new, |(device, &busy)| {
        format!("busiest device {device}, {:+.1} % of the mean", 100.0 * (busy as f64 / mean.max(1.0) - 1.0))
    });
    (step.number, 100.0 * step.bubble, slowest)
}
