//! `pipesim predict`.

use super::Failure;
use super::condition::{Judged, Scope};
use super::engine::EngineOptions;
use super::guard::Guarded;
use super::options::{CostOptions, DrawOptions, Format, JudgeOptions, RemarkOptions, WriteOptions};
use super::output::{table, versioned};
use super::selection::SearchOptions;
use crate::report::{self, Report};
use crate::resolve::{Host, Resolved};
use crate::sim::Predicted;
use crate::sim::event::{Each, EventError};
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
        let name = &resolved.graph.schedule().name;
        let busy = self.remarks.busy(&format!("predicting {name}"), None);
        let mut predicted = resolved.predict().map_err(place)?;
        drop(busy);
        if let (Some(machine), Some((jitter, samples))) = (&resolved.setup.machine, self.engine.chance()) {
            let busy = self.remarks.busy(&format!("{name} by chance"), Some((samples.into(), "samples")));
            let each: Each<'_> = &|count, work| {
                Guarded.each(count, &|number| {
                    work(number);
                    busy.done();
                });
            };
            let spread = predicted.spread(machine, jitter, samples, each).map_err(place)?;
            predicted.prediction.jitter = Some(spread);
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
        let printed = self.draw.print.show(&report, json, tables, || report::figures(&report));
        self.write.write(&report, printed, self.remarks)
    }
}
