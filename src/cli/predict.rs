//! `pipesim predict`.

use super::Failure;
use super::condition::{Judged, Scope};
use super::engine::EngineOptions;
use super::options::{CostOptions, DrawOptions, Format, JudgeOptions, RemarkOptions, WriteOptions};
use super::output::{table, versioned};
use super::selection::SearchOptions;
use crate::report::{self, Report};
use crate::resolve::Resolved;
use crate::sim::event::{Config, EventError, monte_carlo};
use crate::sim::{Predicted, Spread};
use clap::Args;

/// Largest step whose timeline is drawn in the terminal without being asked for.
const MAX_DRAWN_OPS: usize = 200_000;

/// Arguments of `predict`.
#[derive(Args)]
pub struct Predict {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
    #[command(flatten)]
    judge: JudgeOptions,
}

impl Predict {
    /// Predicts, prints, writes.
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        self.judge.refuse(Scope::Predictions(self.costs.time_unit()))?;
        let mut resolved = self.schedules.resolved(&self.costs.costs()?, self.remarks)?;
        resolved.iter_mut().try_for_each(|resolved| self.engine.equip(resolved))?;
        let results = resolved.iter().map(|resolved| self.predict(resolved)).collect::<Result<Vec<_>, _>>()?;
        if self.costs.costs.is_none() && self.costs.profile.is_none() {
            self.remarks.remark(
                "costs: units (F = I = W = 1, B = 2, no communication); give your own with --costs or --profile",
            );
        }
        self.show(&results)?;
        let judged = results
            .iter()
            .map(|Predicted { prediction: p, .. }| Judged::predicted(&p.schedule, &p.time_unit, &p.metrics));
        self.judge.held(&judged.collect::<Vec<_>>())?.judge()
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
        let drawn = self.draw.print.format == Format::Table && ops <= MAX_DRAWN_OPS;
        let report =
            if drawn || !self.write.output.is_empty() { Report::predicted(results) } else { Report::figures(results) };
        let json = || versioned("predictions", &results.iter().map(|r| &r.prediction).collect::<Vec<_>>());
        let tables = || {
            if drawn {
                return self.draw.terminal(&report);
            }
            self.remarks.remark(&format!("{ops} ops are too many for the terminal; draw them with -o timeline.html"));
            table(&report)
        };
        let printed = self.draw.print.show(&report, json, tables, || csv(results));
        self.write.write(&report, printed, self.remarks)
    }
}

/// A row a schedule.
fn csv(results: &[Predicted]) -> String {
    let mut text = String::from(
        "schedule,devices,chunks,microbatches,time_unit,makespan,span,ideal,bubble,span_bubble,bubble_over_ideal,\
         efficiency,lower_bound,gap_to_bound,peak_activations\n",
    );
    for Predicted { prediction: p, .. } in results {
        let m = &p.metrics;
        let peak = m.peak_activations();
        let name = report::csv_cell(&p.schedule);
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
