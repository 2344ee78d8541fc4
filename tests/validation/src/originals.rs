//! Searched schedules against what the zero-bubble authors' schedulers reach, case by case.

use anyhow::{Result, ensure};
use pipesim::costs::Slow;
use pipesim::schedules::{Goal, OpenSchedule, Program, order_ops};
use pipesim::simulation::predict;
use pipesim::{GivenCosts, Placement, Setup, TaskGraph};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Costs of the ops of a chunk and of a message, in the authors' notation.
#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
struct Costs {
    f: f64,
    b: f64,
    w: f64,
    #[serde(rename = "comm")]
    communication: f64,
}

#[derive(Deserialize)]
struct Case {
    scheduler: String,
    p: u32,
    m: u32,
    costs: Costs,
    /// Activation units that a device may hold.
    cap: f64,
    /// `makespan` or `span`.
    goal: String,
    reached: f64,
}

impl Case {
    fn is_linear(&self) -> bool {
        ["ZB1P", "ZB2P"].contains(&self.scheduler.as_str())
    }

    /// Returns the result of the search, in time units, and the seconds it takes.
    fn searched(&self) -> Result<(f64, f64)> {
        let (v, keep) = if self.is_linear() { (1.0, 0.5) } else { (2.0, 1.0) };
        let placement = if self.is_linear() { Placement::linear(self.p) } else { Placement::zigzag("V", self.p, 2) };
        let Costs { f, b, w, communication } = self.costs;
        let given = format!("F={},I={},W={},comm={communication},keep={keep}", v * f, v * b, v * w);
        let costs = given.parse::<GivenCosts>()?.table(&placement, self.m, &Slow::new())?;
        let goal = if self.goal == "span" { Goal::Span } else { Goal::Makespan };
        let program = Program::Search { split: self.scheduler != "1F1BV", cap: Some(self.cap), start: None };
        let programs = vec![program; self.p as usize];
        let open = OpenSchedule {
            name: self.scheduler.clone(),
            placement,
            microbatches: self.m,
            slices: Default::default(),
            programs,
            goal,
        };
        let begin = Instant::now();
        let schedule = order_ops(&open, &costs)?;
        let seconds = begin.elapsed().as_secs_f64();
        ensure!(schedule.keeps_cap(self.cap, costs.keep), "{} holds more than {}", self.scheduler, self.cap);
        let graph = TaskGraph::new(schedule)?;
        let predicted = predict(&graph, &costs, &Setup::default())?;
        let devices = predicted.devices();
        let ticks = match goal {
            Goal::Makespan => devices.iter().map(|device| device.last_end).max(),
            Goal::Span => devices.iter().map(|device| device.last_end - device.first_start).max(),
        };
        Ok((ticks.unwrap_or(0) as f64 / costs.units.ticks_per_unit, seconds))
    }

    fn row(&self, found: f64, seconds: f64) -> String {
        let Costs { f, b, w, communication } = self.costs;
        format!(
            "| {} | {} | {} | {f}, {b}, {w}, {communication} | {} | {} | {} | {found:.3} | {:.5} | {seconds:.2} |",
            self.scheduler,
            self.p,
            self.m,
            self.cap,
            self.goal,
            self.reached,
            found / self.reached
        )
    }
}

/// Counts, the worst ratio, and the longest and total time in seconds.
#[derive(Clone, Copy, Default)]
struct Summary {
    cases: u32,
    better: u32,
    worse: u32,
    worst: f64,
    longest: f64,
    seconds: f64,
}

impl Summary {
    fn with(self, ratio: f64, seconds: f64) -> Summary {
        Summary {
            cases: self.cases + 1,
            better: self.better + u32::from(ratio < 1.0 - 1e-9),
            worse: self.worse + u32::from(ratio > 1.0 + 1e-9),
            worst: self.worst.max(ratio),
            longest: self.longest.max(seconds),
            seconds: self.seconds + seconds,
        }
    }
}

/// Searches each case of the JSON table `text`, one after another, and prints the ratios as Markdown, worst first. `only` names
/// the schedulers or numbers of devices (`p16`) to keep.
///
/// # Errors
/// An unreadable table, or a search that fails.
pub fn print(text: &str, only: &[String]) -> Result<()> {
    let mut cases: Vec<Case> = serde_json::from_str(text)?;
    cases.retain(|case| only.is_empty() || only.contains(&case.scheduler) || only.contains(&format!("p{}", case.p)));
    let (mut rows, mut summaries) = (Vec::new(), BTreeMap::<(u32, &str), Summary>::new());
    for case in &cases {
        let (found, seconds) = case.searched()?;
        let ratio = found / case.reached;
        let family = case.scheduler.trim_end_matches(|c: char| c.is_ascii_digit());
        let summary = summaries.entry((case.p, family)).or_default();
        *summary = summary.with(ratio, seconds);
        rows.push((ratio, case.row(found, seconds)));
    }
    println!("| p | scheduler | cases | better | equal | worse | worst ratio | longest, s | mean, s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for ((p, family), s) in &summaries {
        let equal = s.cases - s.better - s.worse;
        let mean = s.seconds / f64::from(s.cases);
        println!(
            "| {p} | {family} | {} | {} | {equal} | {} | {:.5} | {:.2} | {mean:.2} |",
            s.cases, s.better, s.worse, s.worst, s.longest
        );
    }
    println!("\n| scheduler | p | m | F, B, W, comm | cap | goal | theirs | ours | ratio | s |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.iter().for_each(|(_, row)| println!("{row}"));
    Ok(())
}
