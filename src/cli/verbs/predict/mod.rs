//! `pipesim predict`: simulate schedules.

mod grid;
mod several;
mod stream;
mod sweep;

use crate::cli::Failure;
use crate::cli::options::costs::CostOptions;
use crate::cli::options::engine::EngineOptions;
use crate::cli::options::fsdp::FsdpOptions;
use crate::cli::options::hardware::{self, HardwareOptions};
use crate::cli::options::memory_cap::MemoryCap;
use crate::cli::options::output::{self, DrawOptions, Format, WriteOptions, origin, versioned};
use crate::cli::options::schedules::SearchOptions;
use crate::cli::options::threshold::{Figures, Scope, Side, ThresholdOptions};
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::table;
use crate::cost::analytic::Analytic;
use crate::layout::ParallelConfig;
use crate::report::{self, ComparisonPoint, PredictedEntry, Report, Table};
use crate::resolve::{Costs, Host, Resolved, Selection};
use crate::sim::event::{Each, EventError};
use crate::sim::{Prediction, PredictionFigures};
use crate::step_estimate::StepEstimate;
use crate::suggestion::{FitRequest, suggest_fit};
use clap::Args;
use grid::{ChunksBySchedule, Combination};
use serde::Serialize;
use serde_json::{Value, json};

/// Most ops of a timeline in the terminal.
const MAX_DRAWN_OPS: usize = 200_000;

#[derive(Args)]
pub struct Predict {
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    hardware: HardwareOptions,
    /// Whether --micro was given instead of --batch.
    #[arg(skip)]
    pub micro_given: bool,
    #[command(flatten)]
    fsdp: FsdpOptions,
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    draw: DrawOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
    #[command(flatten)]
    thresholds: ThresholdOptions,
}

#[derive(Serialize)]
struct Compared<'a> {
    schema_version: u32,
    predictions: Vec<Printed<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<Value>,
    /// Which schedule is shortest, and at which p and m that changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<String>,
}

/// A prediction, with the estimate for a model on hardware.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    prediction: &'a PredictionFigures,
    #[serde(flatten)]
    forecast: Option<&'a StepEstimate>,
    #[serde(flatten)]
    layout: Option<LayoutFigures>,
    /// In a comparison: the figures in which it is best.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<Vec<&'static str>>,
}

/// The layout of a prediction on hardware, and the memory of its fullest device.
#[derive(Clone, Copy, Serialize)]
struct LayoutFigures {
    tp: u32,
    pp: u32,
    dp: u32,
    cp: u32,
    /// Of a mixture of experts.
    #[serde(flatten)]
    experts: Option<ExpertFigures>,
    micro_batch_size: u32,
    memory_bytes: u64,
}

/// How experts are folded onto the GPUs of a stage.
#[derive(Clone, Copy, Serialize)]
struct ExpertFigures {
    ep: u32,
    etp: u32,
    edp: u64,
    rounds: u32,
}

impl LayoutFigures {
    fn new(analytic: &Analytic, estimate: &StepEstimate) -> LayoutFigures {
        let ParallelConfig { tp, pp, dp, cp, ep, etp, rounds, micro_batch_size, .. } = analytic.layout;
        let experts = analytic.model.experts.map(|_| ExpertFigures { ep, etp, edp: analytic.layout.edp(), rounds });
        LayoutFigures { tp, pp, dp, cp, experts, micro_batch_size, memory_bytes: estimate.memory.fullest().total }
    }

    /// Returns the figures with their column names.
    fn figures(self) -> [(&'static str, f64); 5] {
        [
            ("tp", f64::from(self.tp)),
            ("dp", f64::from(self.dp)),
            ("cp", f64::from(self.cp)),
            ("micro_batch_size", f64::from(self.micro_batch_size)),
            ("memory_bytes", self.memory_bytes as f64),
        ]
    }
}

struct Forecasts {
    analytic: Analytic,
    each: Vec<(String, StepEstimate)>,
}

impl Predict {
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let mut analytics = self.hardware.all(&self.with_machine(), &self.costs, self.micro_given, self.remarks)?;
        if analytics.len() > 1 {
            return self.several(&analytics);
        }
        let analytic = analytics.pop();
        let unit = if analytic.is_some() { "ms" } else { self.costs.time_unit() };
        let whole_steps = analytic.is_some() || self.costs.profile.is_some();
        self.thresholds.check_scope(Scope::Predictions { unit, whole_steps })?;
        let mut all = match &analytic {
            Some(analytic) => {
                let costs = Costs::Analytic(Box::new(analytic.clone()));
                self.asked(analytic)?.combinations(&costs, self.costs.balance, self.remarks)?
            }
            None => {
                let layout = self.costs.stage_layout(self.schedules.stages.first(), self.schedules.chunks)?;
                let costs = self.hardware.costs(&self.costs, self.remarks)?.with_layout(layout.clone());
                let schedules = self.with_machine();
                let schedules = layout.map_or_else(|| Ok(schedules.clone()), |layout| schedules.arranged(&layout))?;
                if schedules.are_several() {
                    return self.sweep(&schedules, &costs);
                }
                schedules.combinations(&costs, self.costs.balance, self.remarks)?
            }
        };
        if all.len() > 1 && self.engine.delivery.is_some() {
            self.leave_out_deadlocks(&mut all)?;
        }
        let labels: Vec<String> = all.iter().filter(|one| one.exists()).map(|one| one.label(false)).collect();
        let resolved = all.iter().filter_map(|one| one.resolved.as_ref());
        let results =
            resolved.zip(&labels).map(|(one, label)| self.predict(one, label)).collect::<Result<Vec<_>, _>>()?;
        if analytic.is_none() {
            let mut chunks = ChunksBySchedule::default();
            let graphs = all.iter().filter_map(|one| Some((&one.name, &one.resolved.as_ref()?.graph)));
            graphs.for_each(|(name, graph)| chunks.note(name, graph));
            self.remarks_on_costs(&chunks);
        }
        if let Some(analytic) = &analytic {
            let names: Vec<&str> = all.iter().filter_map(Combination::known_schedule).collect();
            hardware::remarks(analytic, &names).iter().for_each(|text| self.remarks.remark(text));
            if let Some(cap) = self.schedules.memory_cap.and_then(MemoryCap::units) {
                self.remarks
                    .remark(&format!("note: --memory-cap {cap} is in activations; write {cap}GiB to limit bytes"));
            }
        }
        let forecasts = analytic.map(|analytic| self.forecasts(analytic, &all, &results)).transpose()?;
        let misfits =
            forecasts.iter().flat_map(|forecasts| &forecasts.each).filter_map(|(_, forecast)| forecast.misfit.as_ref());
        misfits.for_each(|misfit| self.remarks.remark(&format!("warning: {misfit}")));
        let ops: usize = results.iter().map(|result| result.graph.len()).sum();
        let drawn = self.draw.print.format == Format::Table && ops <= MAX_DRAWN_OPS;
        let shown: fn(&Prediction) -> PredictedEntry = match self.write.output.is_empty() {
            false => PredictedEntry::predicted,
            true if drawn => PredictedEntry::drawn,
            true => PredictedEntry::figures,
        };
        let (report, figures) = Report::of_predictions(results.iter().map(shown).collect());
        let tables = |report: &Report| {
            if drawn {
                return self.draw.terminal(report);
            }
            if self.write.writes_nothing() {
                self.remarks
                    .remark(&format!("{ops} ops are too many for the terminal; draw them with -o timeline.html"));
            }
            table(report)
        };
        self.show(report, &figures, &all, forecasts.as_ref(), &self.write, tables)?;
        let figures =
            results.iter().zip(&labels).enumerate().map(|(number, (Prediction { prediction: p, .. }, label))| {
                let forecast = forecasts.as_ref().map(|forecasts| &forecasts.each[number].1);
                let iteration = forecast.map(|forecast| 1e3 * forecast.iteration_s).or(p.iteration);
                let figures = Figures::new(label, &p.time_unit).with_metrics(Side::Predicted, &p.metrics);
                figures.with_step(Side::Predicted, iteration, p.period)
            });
        self.thresholds.judge(&figures.collect::<Vec<_>>())?.result()
    }

    fn asked(&self, analytic: &Analytic) -> Result<SearchOptions, Failure> {
        self.with_machine().under(analytic)
    }

    fn with_machine(&self) -> SearchOptions {
        SearchOptions { machine: self.engine.machine(), fsdp: self.fsdp.rule(), ..self.schedules.clone() }
    }

    /// Estimates each schedule of a model on hardware.
    fn forecasts(&self, analytic: Analytic, all: &[Combination], results: &[Prediction]) -> Result<Forecasts, Failure> {
        let asked = Selection { balance: self.costs.balance, ..self.asked(&analytic)?.selection() };
        let there = all.iter().filter_map(|one| Some((&one.name, one.resolved.as_ref()?)));
        let one = |((name, resolved), result): ((&String, &Resolved), &Prediction)| {
            let mut forecast = StepEstimate::new(&analytic.as_resolved(resolved), result).map_err(Failure::usage)?;
            let question = FitRequest { name, selection: &asked, analytic: &analytic, micro_given: self.micro_given };
            let _busy = self.remarks.busy(&format!("searching a layout of {name} that fits"), None);
            forecast.misfit = suggest_fit(&question, result.graph, &forecast.memory);
            Ok((result.prediction.schedule.clone(), forecast))
        };
        let each = there.zip(results).map(one).collect::<Result<Vec<_>, Failure>>()?;
        Ok(Forecasts { analytic, each })
    }

    /// Leaves out combinations that deadlock under --delivery, unless all do.
    fn leave_out_deadlocks(&self, all: &mut [Combination]) -> Result<(), Failure> {
        let mut stuck = None;
        for one in all.iter_mut() {
            let ended = one.resolved.as_ref().and_then(|resolved| resolved.predict().err());
            if let Some(error @ EventError::Deadlock(_)) = ended {
                one.leave_out(&error);
                one.remark_left_out(self.remarks);
                stuck.get_or_insert_with(|| Failure::Schedule(format!("{}: {error}", one.label(false))));
            }
        }
        match stuck {
            Some(failure) if all.iter().all(|one| !one.exists()) => Err(failure),
            _ => Ok(()),
        }
    }

    fn remarks_on_costs(&self, chunks: &ChunksBySchedule) {
        if self.costs.costs.is_none() && self.costs.profile.is_none() {
            self.remarks.remark(
                "costs: units (F = I = W = 1, B = 2, no communication); give your own with --costs or --profile",
            );
        }
        if self.costs.costs_per.is_none() && self.costs.profile.is_none() {
            self.schedules.remark_on_model(chunks, self.remarks);
        }
    }

    /// Predicts a schedule, with percentiles of the makespan under --jitter.
    fn predict<'a>(&self, resolved: &'a Resolved, label: &str) -> Result<Prediction<'a>, Failure> {
        self.simulate(resolved, label).map_err(|error| match Failure::from(error) {
            Failure::Schedule(text) => Failure::Schedule(format!("{label}: {text}")),
            other => other,
        })
    }

    fn simulate<'a>(&self, resolved: &'a Resolved, label: &str) -> Result<Prediction<'a>, EventError> {
        let busy = self.remarks.busy(&format!("predicting {label}"), None);
        let mut predicted = resolved.predict()?;
        drop(busy);
        predicted.prediction.balance.clone_from(&resolved.balance);
        if let Some((jitter, samples)) = self.engine.jitter() {
            let busy = self.remarks.busy(&format!("{label} with jitter"), Some((samples.into(), "samples")));
            let each: Each<'_> = &|count, work| {
                Sandbox.each(count, &|number| {
                    work(number);
                    busy.done();
                });
            };
            let spread = predicted.spread(jitter, samples, each)?;
            predicted.prediction.jitter = Some(spread);
        }
        Ok(predicted)
    }

    fn show(
        &self,
        mut report: Report,
        figures: &[PredictionFigures],
        all: &[Combination],
        forecasts: Option<&Forecasts>,
        write: &WriteOptions,
        tables: impl FnOnce(&Report) -> String,
    ) -> Result<(), Failure> {
        // A comparison shows what is left out and what is above the cap.
        let compared = self.schedules.is_comparison() || all.iter().any(Combination::is_marked);
        if self.costs.costs.is_some() || self.costs.costs_per.is_some() {
            report.subtitle = self.costs.given().described();
        }
        if compared {
            report = grid::compared(report, all, self.schedules.are_several());
        }
        write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.provenance.extend(origin());
        report.extra_tables.extend(balance_table(figures));
        if let Some(forecasts) = forecasts {
            let tables =
                [hardware::table(&forecasts.analytic, &forecasts.each), hardware::memory_table(&forecasts.each)];
            report.extra_tables.extend(tables);
            for (entry, (_, forecast)) in report.entries.iter_mut().zip(&forecasts.each) {
                entry.over_steps.extend(forecast.figures());
                entry.over_steps.extend(LayoutFigures::new(&forecasts.analytic, forecast).figures());
            }
        }
        let json = || {
            let forecast = |number: usize| Some(&forecasts?.each.get(number)?.1);
            let predictions = figures.iter().enumerate().map(|(number, prediction)| Printed {
                prediction,
                forecast: forecast(number),
                layout: forecasts.zip(forecast(number)).map(|(all, one)| LayoutFigures::new(&all.analytic, one)),
                best: None,
            });
            if !compared {
                return versioned("predictions", &predictions.collect::<Vec<_>>());
            }
            let best = report.entries.iter().zip(report.best());
            let best = best.filter(|(entry, _)| entry.predicted.is_some()).map(|(_, best)| best);
            output::json(&Compared {
                schema_version: 1,
                predictions: predictions.zip(best).map(|(one, best)| Printed { best: Some(best), ..one }).collect(),
                left_out: all.iter().filter_map(missing).collect(),
                changes: report.changes(),
            })
        };
        self.draw.print.show_assumed(&self.costs)?;
        let printed = self.draw.print.show(&report, json, || tables(&report), || report::figures(&report));
        write.write(&report, &[], printed, self.remarks)
    }
}

/// Returns a combination that is left out.
fn missing(one: &Combination) -> Option<Value> {
    let ComparisonPoint { schedule, devices, microbatches, left_out, .. } = &one.point;
    let why = &left_out.as_ref()?.why;
    Some(json!({ "schedule": schedule, "devices": devices, "microbatches": microbatches, "why": why }))
}

/// Makes a table of the splits that --balance found, before and after, one row per schedule.
fn balance_table(figures: &[PredictionFigures]) -> Option<Table> {
    let list = |layers: &[usize]| layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let row = |PredictionFigures { schedule, balance, time_unit: unit, .. }: &PredictionFigures| {
        let found = balance.as_ref()?;
        Some(vec![
            schedule.clone(),
            list(&found.layers_before),
            format!("{:.2} {unit}{}", found.makespan_before, if found.fits_before { "" } else { ", does not fit" }),
            list(&found.layers),
            format!("{:.2} {unit}", found.makespan),
            format!("{:+.1} %", 100.0 * (found.makespan / found.makespan_before - 1.0)),
            if found.is_optimal { "no split is better" } else { "best of those tried" }.to_string(),
            found.simulated.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = figures.iter().filter_map(row).collect();
    let at_typical = figures.iter().any(|one| one.metrics.typical_speed.is_some());
    let caption = "Layers of each stage, before and after --balance";
    let caption = format!("{caption}{}", if at_typical { ", at the machine's median speed" } else { "" });
    let header = ["schedule", "layers", "makespan", "balanced", "makespan then", "change", "proof", "simulated"];
    (!rows.is_empty()).then(|| Table::new(caption, &header, rows))
}
