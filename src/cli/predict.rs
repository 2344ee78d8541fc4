//! `pipesim predict`.

use super::Failure;
use super::engine::EngineOptions;
use super::options::{CostOptions, Format, OutputOptions};
use super::output::print;
use super::selection::ScheduleOptions;
use crate::report::{Entry, Panel, Report, Table, number};
use crate::resolve::Resolved;
use crate::sim::event::{Config, EventError, monte_carlo};
use crate::sim::{Predicted, Prediction, Spread};
use clap::Args;
use serde::Serialize;

/// Largest step whose timeline is drawn in the terminal without being asked for.
const MAX_DRAWN_OPS: usize = 200_000;

/// What is said of costs, and with them of lower bounds, where times are under the speed that was measured.
const TYPICAL_SPEED: &str = " at typical speed, as are lower bounds; times under the machine's speed as it went";

/// Arguments of `predict`.
#[derive(Args)]
pub struct Predict {
    #[command(flatten)]
    schedules: ScheduleOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Predictions<'a> {
    schema_version: u32,
    predictions: Vec<&'a Prediction>,
}

impl Predict {
    /// Predicts, prints, writes.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn run(&self) -> Result<(), Failure> {
        self.output.check_writable()?;
        if self.costs.profile.is_none() && self.costs.layers.is_some() {
            return Err(Failure::Usage("--layers splits a measured model: give its costs with --profile".to_string()));
        }
        let mut resolved = self.schedules.resolved(&self.costs.costs()?, &self.output)?;
        resolved.iter_mut().try_for_each(|resolved| self.engine.equip(resolved))?;
        let results = resolved.iter().map(|resolved| self.predict(resolved)).collect::<Result<Vec<_>, _>>()?;
        if self.costs.costs.is_none() && self.costs.profile.is_none() {
            self.output.remark(
                "costs: units (F = I = W = 1, B = 2, no communication); give your own with --costs or --profile",
            );
        }
        self.show(&results)?;
        let figures = results.iter().map(|r| (r.prediction.schedule.as_str(), &r.prediction.metrics));
        self.output.check_thresholds(figures)
    }

    /// The prediction, and how its makespan is spread under chance where that is asked for.
    fn predict<'a>(&self, resolved: &'a Resolved) -> Result<Predicted<'a>, Failure> {
        let place = |e: EventError| match Failure::from(e) {
            Failure::Schedule(text) => Failure::Schedule(format!("{}: {text}", resolved.graph.schedule().name)),
            other => other,
        };
        let mut predicted = resolved.predict().map_err(place)?;
        if let (Some(machine), Some((jitter, samples, seed))) = (&resolved.setup.machine, self.engine.chance()) {
            let config = Config { jitter: Some(jitter), ..machine.clone() };
            let makespans = monte_carlo(&resolved.graph, &resolved.costs, &config, samples, seed).map_err(place)?;
            predicted.prediction.jitter = Some(Spread::new(&makespans, seed, &resolved.costs));
        }
        Ok(predicted)
    }

    fn show(&self, results: &[Predicted]) -> Result<(), Failure> {
        let ops: usize = results.iter().map(|r| r.graph.len()).sum();
        let drawn = self.output.format == Format::Table && ops <= MAX_DRAWN_OPS;
        let report = if drawn || !self.output.output.is_empty() { self.report(results) } else { self.figures(results) };
        match self.output.format {
            Format::Json => {
                let predictions = results.iter().map(|r| &r.prediction).collect();
                let json = serde_json::to_string_pretty(&Predictions { schema_version: 1, predictions });
                print(&format!("{}\n", json.map_err(anyhow::Error::from)?))?;
            }
            Format::Table if drawn => print(&self.output.terminal(&report))?,
            Format::Table => {
                self.output
                    .remark(&format!("{ops} ops are too many for the terminal; draw them with -o timeline.html"));
                print(&crate::report::table(&report))?;
            }
            Format::Md => print(&crate::report::markdown(&report))?,
            Format::Csv => print(&csv(results))?,
        }
        self.output.write(&report)
    }

    fn report(&self, results: &[Predicted]) -> Report {
        let mut report = self.figures(results);
        for (entry, result) in report.entries.iter_mut().zip(results) {
            if let Some(panel) = &mut entry.predicted {
                panel.timeline = result.timeline();
            }
        }
        report
    }

    /// The report without its timelines' spans.
    fn figures(&self, results: &[Predicted]) -> Report {
        let (p, m) = (self.schedules.stages, self.schedules.micro);
        let subtitle = results.first().map_or_else(String::new, |r| {
            let (c, typical) = (r.prediction.costs, if r.costs.speeds.is_empty() { "" } else { TYPICAL_SPEED });
            format!(
                "costs per device: F = {}, I = {}, W = {}, B = {}, comm = {}, keep = {}{typical}",
                c.F, c.I, c.W, c.B, c.comm, c.keep
            )
        });
        Report {
            title: format!("Predicted: {p} devices, {m} micro-batches"),
            subtitle,
            provenance: [("program".to_string(), format!("pipesim {}", env!("CARGO_PKG_VERSION")))].into(),
            entries: results
                .iter()
                .map(|r| Entry {
                    name: r.prediction.schedule.clone(),
                    predicted: Some(Panel { timeline: r.empty_timeline(), metrics: r.prediction.metrics.clone() }),
                    ..Entry::default()
                })
                .collect(),
            extra_tables: spreads(results).into_iter().collect(),
        }
    }
}

/// How makespans are spread under chance, where that was asked for.
fn spreads(results: &[Predicted]) -> Option<Table> {
    let row = |p: &Prediction| {
        let s = p.jitter?;
        let times = [s.mean, s.p5, s.p50, s.p95, s.p99].map(number);
        Some([p.schedule.clone()].into_iter().chain(times).collect())
    };
    let rows: Vec<Vec<String>> = results.iter().filter_map(|r| row(&r.prediction)).collect();
    let s = results.first()?.prediction.jitter?;
    Some(Table {
        caption: format!("Makespans of {} steps with durations that vary by chance (seed {})", s.samples, s.seed),
        header: ["schedule", "mean", "p5", "p50", "p95", "p99"].map(str::to_string).to_vec(),
        rows,
    })
}

/// A row a schedule.
fn csv(results: &[Predicted]) -> String {
    let mut text = String::from(
        "schedule,devices,chunks,microbatches,time_unit,makespan,span,ideal,bubble,span_bubble,bubble_over_ideal,\
         efficiency,lower_bound,gap_to_bound,peak_activations\n",
    );
    for Predicted { prediction: p, .. } in results {
        let m = &p.metrics;
        let peak = m.per_device.iter().map(|d| d.peak_activations).fold(0.0, f64::max);
        let name = if p.schedule.contains([',', '"', '\n']) {
            format!("\"{}\"", p.schedule.replace('"', "\"\""))
        } else {
            p.schedule.clone()
        };
        text += &format!(
            "{name},{},{},{},{},{},{},{},{},{},{},{},{},{},{peak}\n",
            p.devices,
            p.chunks,
            p.microbatches,
            p.time_unit,
            m.makespan,
            m.span,
            m.ideal,
            m.bubble,
            m.span_bubble,
            m.bubble_over_ideal,
            m.efficiency,
            m.lower_bound.unwrap_or_default(),
            m.gap_to_bound.unwrap_or_default()
        );
    }
    text
}
