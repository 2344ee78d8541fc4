//! Searches each case of a table of what the zero-bubble authors' schedulers reach, and writes the ratios, worst first, as
//! Markdown: one search after another, each with its seconds. Names after the table keep the cases of these schedulers or p.
//!
//!     cargo run --release --example originals -- tests/golden/zero-bubble/originals.json [ZBV|p16 ...]

use pipesim::internals::cost::{GivenCosts, Slow};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::open::{Goal, OpenSchedule, Program};
use pipesim::internals::placement::Placement;
use pipesim::internals::settle::settle;
use pipesim::internals::sim;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

/// Costs of a chunk's ops and of a message, as the authors name them.
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

    /// What the search reaches, in units, and the seconds that it takes.
    fn searched(&self) -> Result<(f64, f64), Box<dyn Error>> {
        let (v, keep) = if self.is_linear() { (1.0, 0.5) } else { (2.0, 1.0) };
        let placement = if self.is_linear() { Placement::linear(self.p) } else { Placement::zigzag("V", self.p, 2) };
        let Costs { f, b, w, communication } = self.costs;
        let given = format!("F={},I={},W={},comm={communication},keep={keep}", v * f, v * b, v * w);
        let costs = given.parse::<GivenCosts>()?.table(&placement, self.m, &Slow::new())?;
        let goal = if self.goal == "span" { Goal::Span } else { Goal::Makespan };
        let program = Program::Search { split: self.scheduler != "1F1BV", cap: Some(self.cap), start: None };
        let programs = vec![program; self.p as usize];
        let open = OpenSchedule { name: self.scheduler.clone(), placement, microbatches: self.m, programs, goal };
        let begin = Instant::now();
        let schedule = settle(&open, &costs)?;
        let seconds = begin.elapsed().as_secs_f64();
        if !schedule.keeps_cap(self.cap, costs.keep) {
            return Err(format!("{} holds more than {}", self.scheduler, self.cap).into());
        }
        let devices = sim::sweep(&TaskGraph::new(schedule)?, &costs);
        let ticks = match goal {
            Goal::Makespan => devices.iter().map(|device| device.last_end).max(),
            Goal::Span => devices.iter().map(|device| device.last_end - device.first_start).max(),
        };
        Ok((ticks.unwrap_or(0) as f64 / costs.ticks_per_unit, seconds))
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

/// Cases, how many are better, equal and worse, the worst ratio, and seconds, the most and all.
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give the table, tests/golden/zero-bubble/originals.json")?;
    let kept: Vec<String> = arguments.collect();
    let mut cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    cases.retain(|case| kept.is_empty() || kept.contains(&case.scheduler) || kept.contains(&format!("p{}", case.p)));
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
