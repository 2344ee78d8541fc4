//! `pipesim predict`.

use super::Failure;
use super::condition::{Judged, Scope, StepTimes};
use super::engine::EngineOptions;
use super::grid::{self, Combination};
use super::guard::Guarded;
use super::hardware::{self, HardwareOptions};
use super::numbers::Numbers;
use super::options::{CostOptions, DrawOptions, Format, JudgeOptions, RemarkOptions, WriteOptions};
use super::output::{self, table, versioned};
use super::selection::{Cap, SearchOptions, names};
use crate::cost::analytic::Analytic;
use crate::forecast::Forecast;
use crate::remedy::{Question, misfit};
use crate::report::{self, Point, Report, Table};
use crate::resolve::{Costs, Host, Resolved, Selection};
use crate::sim::event::{Each, EventError};
use crate::sim::{Predicted, Prediction};
use clap::Args;
use serde::Serialize;

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
    hardware: HardwareOptions,
    /// Whether --micro was given, which --batch may stand for.
    #[arg(skip)]
    pub micro_given: bool,
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

/// What `--format json` prints of a comparison.
#[derive(Serialize)]
struct Compared<'a> {
    schema_version: u32,
    predictions: Vec<Marked<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<Missing<'a>>,
    /// Which schedule is the shortest, and where that changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<String>,
}

/// A prediction, and the figures in which it is the best.
#[derive(Serialize)]
struct Marked<'a> {
    #[serde(flatten)]
    told: Told<'a>,
    best: Vec<&'static str>,
}

/// A prediction, and what it says of a model on hardware.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    #[serde(flatten)]
    forecast: Option<&'a Forecast>,
}

/// What is known of a model on hardware.
struct Forecasts {
    analytic: Analytic,
    each: Vec<(String, Forecast)>,
}

/// A combination that is not there.
#[derive(Serialize)]
struct Missing<'a> {
    schedule: &'a str,
    devices: u32,
    microbatches: u32,
    why: &'a str,
}

impl Predict {
    /// Predicts, prints, writes.
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let analytic = self.analytic()?;
        let unit = if analytic.is_some() { "ms" } else { self.costs.time_unit() };
        let whole_steps = analytic.is_some() || self.costs.profile.is_some();
        self.judge.refuse(Scope::Predictions { unit, whole_steps })?;
        let mut all = match &analytic {
            Some(analytic) => {
                let costs = Costs::Analytic(Box::new(analytic.clone()));
                self.asked(analytic)?.combinations(&costs, self.costs.balance, self.remarks)?
            }
            None => self.with_machine().combinations(&self.given()?, self.costs.balance, self.remarks)?,
        };
        if all.len() > 1 && self.engine.may_deadlock() {
            self.leave_out_deadlocks(&mut all)?;
        }
        let labels = all.iter().filter(|one| one.resolved.is_some());
        let labels: Vec<String> = labels.map(|one| one.label(self.schedules.are_several())).collect();
        let resolved = all.iter().filter_map(|one| one.resolved.as_ref());
        let results =
            resolved.zip(&labels).map(|(one, label)| self.predict(one, label)).collect::<Result<Vec<_>, _>>()?;
        if analytic.is_none() {
            self.remarks_on_costs(&all);
        }
        if let Some(analytic) = &analytic {
            let names: Vec<&str> = all.iter().filter_map(Combination::known_schedule).collect();
            hardware::remarks(analytic, &names).iter().for_each(|text| self.remarks.remark(text));
            if let Some(cap) = self.schedules.memory_cap.and_then(Cap::units) {
                self.remarks
                    .remark(&format!("note: --memory-cap {cap} is in activations; write {cap}GiB to limit bytes"));
            }
        }
        let forecasts = analytic.map(|analytic| self.forecasts(analytic, &all, &results)).transpose()?;
        let misfits =
            forecasts.iter().flat_map(|forecasts| &forecasts.each).filter_map(|(_, forecast)| forecast.misfit.as_ref());
        misfits.for_each(|misfit| self.remarks.remark(&format!("warning: {misfit}")));
        self.show(&results, &all, forecasts.as_ref())?;
        let judged =
            results.iter().zip(&labels).enumerate().map(|(number, (Predicted { prediction: p, .. }, label))| {
                let forecast = forecasts.as_ref().map(|forecasts| &forecasts.each[number].1);
                let iteration = forecast.map(|forecast| 1e3 * forecast.iteration_s).or(p.iteration);
                let predicted_step = StepTimes { iteration, period: p.period };
                Judged { predicted_step, ..Judged::predicted(label, &p.time_unit, &p.metrics) }
            });
        self.judge.held(&judged.collect::<Vec<_>>())?.judge()
    }

    /// The costs where no model on hardware is asked about.
    fn given(&self) -> Result<Costs, Failure> {
        let costs = self.costs.costs()?;
        Ok(match self.hardware.micro_batch_size {
            Some(sequences) => {
                if let Some((least, most)) = costs.measured_sequences().filter(|(a, b)| !(*a..=*b).contains(&sequences))
                {
                    self.remarks.remark(&format!(
                        "note: micro-batches of {least} to {most} sequences were measured, not of {sequences}: times go with their \
                         number; pipesim profile --calibrate-batch {least},{sequences} measures both"
                    ));
                }
                costs.with_sequences(sequences)
            }
            None => costs,
        })
    }

    /// The model on hardware that is asked about, if one is.
    fn analytic(&self) -> Result<Option<Analytic>, Failure> {
        let asked = &self.schedules;
        if self.hardware.hardware.is_some() && (asked.stages.are_several() || asked.micro.are_several()) {
            let what = "--stages and --micro take one number each with --hardware; ask once for each";
            return Err(Failure::Usage(what.to_string()));
        }
        let micro = (self.micro_given || self.hardware.batch.is_none()).then_some(asked.micro.first());
        let (stages, layers) = (asked.stages.first(), self.costs.layers.as_deref());
        let analytic = self.hardware.analytic(stages, asked.chunks, micro, layers, self.remarks)?;
        let bytes = self.schedules.memory_cap.and_then(Cap::bytes);
        Ok(analytic.map(|analytic| bytes.map_or(analytic.clone(), |bytes| analytic.with_memory(bytes))))
    }

    /// Schedules for as many micro-batches as the batch makes; several stages a device are interleaved where none is named.
    fn asked(&self, analytic: &Analytic) -> Result<SearchOptions, Failure> {
        let mut asked = self.with_machine();
        let micro = analytic.layout.micro;
        asked.schedules.micro = Numbers::read(&micro.to_string(), &(1..=u32::MAX)).map_err(Failure::Usage)?;
        asked.room = analytic.room();
        if asked.schedule.is_empty() && asked.chunks.is_some_and(|chunks| chunks > 1) {
            asked.schedules.schedule = vec![names("interleaved-1f1b").map_err(Failure::Usage)?];
        }
        Ok(asked)
    }

    /// The schedules on the machine that is asked for.
    fn with_machine(&self) -> SearchOptions {
        SearchOptions { machine: self.engine.machine(), ..self.schedules.clone() }
    }

    /// What is known of each schedule of a model on hardware.
    fn forecasts(&self, analytic: Analytic, all: &[Combination], results: &[Predicted]) -> Result<Forecasts, Failure> {
        let asked = Selection { balance: self.costs.balance, ..self.asked(&analytic)?.selection() };
        let there = all.iter().filter_map(|one| Some((&one.name, one.resolved.as_ref()?)));
        let one = |((name, resolved), result): ((&String, &Resolved), &Predicted)| {
            let mut forecast = Forecast::new(&analytic.as_resolved(resolved), result)
                .map_err(|error| Failure::Usage(error.to_string()))?;
            let question = Question { name, selection: &asked, analytic: &analytic, micro_given: self.micro_given };
            let _busy = self.remarks.busy(&format!("looking for a layout of {name} that fits"), None);
            forecast.misfit = misfit(&question, result.graph, &forecast.memory);
            Ok((result.prediction.schedule.clone(), forecast))
        };
        let each = there.zip(results).map(one).collect::<Result<Vec<_>, Failure>>()?;
        Ok(Forecasts { analytic, each })
    }

    /// Leaves out what deadlocks under the delivery asked for, as long as anything is left.
    fn leave_out_deadlocks(&self, all: &mut [Combination]) -> Result<(), Failure> {
        let mut stuck = None;
        for one in all.iter_mut() {
            let ended = one.resolved.as_ref().and_then(|resolved| resolved.predict().err());
            if let Some(error @ EventError::Deadlock(_)) = ended {
                one.leave_out(&error);
                if !self.schedules.are_several() {
                    one.remark_left_out(self.remarks);
                }
                stuck.get_or_insert_with(|| {
                    Failure::Schedule(format!("{}: {error}", one.label(self.schedules.are_several())))
                });
            }
        }
        match stuck {
            Some(failure) if all.iter().all(|one| one.resolved.is_none()) => Err(failure),
            _ => Ok(()),
        }
    }

    /// What is to be said of costs that were not given, and of what they are.
    fn remarks_on_costs(&self, all: &[Combination]) {
        if self.costs.costs.is_none() && self.costs.profile.is_none() {
            self.remarks.remark(
                "costs: units (F = I = W = 1, B = 2, no communication); give your own with --costs or --profile",
            );
        }
        if self.costs.costs_per.is_none() && self.costs.profile.is_none() {
            self.schedules.remark_on_model(all, self.remarks);
        }
    }

    /// The prediction, and how its makespan is spread under chance where that is asked for.
    fn predict<'a>(&self, resolved: &'a Resolved, label: &str) -> Result<Predicted<'a>, Failure> {
        let place = |e: EventError| match Failure::from(e) {
            Failure::Schedule(text) => Failure::Schedule(format!("{label}: {text}")),
            other => other,
        };
        let busy = self.remarks.busy(&format!("predicting {label}"), None);
        let mut predicted = resolved.predict().map_err(place)?;
        drop(busy);
        predicted.prediction.balance.clone_from(&resolved.balance);
        if let Some((jitter, samples)) = self.engine.chance() {
            let busy = self.remarks.busy(&format!("{label} by chance"), Some((samples.into(), "samples")));
            let each: Each<'_> = &|count, work| {
                Guarded.each(count, &|number| {
                    work(number);
                    busy.done();
                });
            };
            let spread = predicted.spread(jitter, samples, each).map_err(place)?;
            predicted.prediction.jitter = Some(spread);
        }
        Ok(predicted)
    }

    fn show(&self, results: &[Predicted], all: &[Combination], forecasts: Option<&Forecasts>) -> Result<(), Failure> {
        let several = self.schedules.are_several();
        // A comparison says what is left out, and what is above the cap.
        let compared = self.schedules.is_comparison() || all.iter().any(Combination::is_marked);
        let ops: usize = results.iter().map(|r| r.graph.len()).sum();
        let drawn = self.draw.print.format == Format::Table && ops <= MAX_DRAWN_OPS && !several;
        let mut report = match self.write.output.is_empty() {
            false => Report::predicted(results),
            true if drawn => Report::drawn(results),
            true => Report::figures(results),
        };
        if self.costs.costs_per.is_some() {
            report.subtitle = self.costs.of_all().described();
        }
        if compared {
            report = grid::compared(report, all, several);
        }
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.provenance.extend(super::output::origin());
        report.extra_tables.extend(balance_table(results));
        if let Some(forecasts) = forecasts {
            let tables =
                [hardware::table(&forecasts.analytic, &forecasts.each), hardware::memory_table(&forecasts.each)];
            report.extra_tables.extend(tables);
            for (entry, (_, forecast)) in report.entries.iter_mut().zip(&forecasts.each) {
                entry.over_steps.extend(forecast.figures());
            }
        }
        let json = || {
            let told = |(number, result)| Told::new(result, forecasts, number);
            let predictions = results.iter().enumerate().map(told);
            if !compared {
                return versioned("predictions", &predictions.collect::<Vec<_>>());
            }
            let best = report.entries.iter().zip(report.best());
            let best = best.filter(|(entry, _)| entry.predicted.is_some()).map(|(_, best)| best);
            output::json(&Compared {
                schema_version: 1,
                predictions: predictions.zip(best).map(|(told, best)| Marked { told, best }).collect(),
                left_out: all.iter().filter_map(missing).collect(),
                changes: report.changes(),
            })
        };
        let tables = || {
            if drawn {
                return self.draw.terminal(&report);
            }
            if several && self.write.writes_nothing() {
                self.remarks.remark("draw the sweep with -o sweep.svg, all timelines with -o timelines.html");
            } else if !several && self.write.writes_nothing() {
                self.remarks
                    .remark(&format!("{ops} ops are too many for the terminal; draw them with -o timeline.html"));
            }
            table(&report)
        };
        self.draw.print.tell_assumed(&self.costs)?;
        let printed = self.draw.print.show(&report, json, tables, || report::figures(&report));
        self.write.write(&report, printed, self.remarks)
    }
}

fn missing(one: &Combination) -> Option<Missing<'_>> {
    let Point { schedule, devices, microbatches, left_out, .. } = &one.point;
    let why = &left_out.as_ref()?.why;
    Some(Missing { schedule, devices: *devices, microbatches: *microbatches, why })
}

impl<'a> Told<'a> {
    fn new(result: &'a Predicted, forecasts: Option<&'a Forecasts>, number: usize) -> Told<'a> {
        let forecast = forecasts.and_then(|forecasts| forecasts.each.get(number)).map(|(_, forecast)| forecast);
        Told { prediction: &result.prediction, forecast }
    }
}

/// Splits that were searched, before and after, one a row; none where none was.
fn balance_table(results: &[Predicted]) -> Option<Table> {
    let list = |layers: &[usize]| layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let row = |Prediction { schedule, balance, time_unit: unit, .. }: &Prediction| {
        let found = balance.as_ref()?;
        Some(vec![
            schedule.clone(),
            list(&found.layers_before),
            format!("{:.2} {unit}{}", found.makespan_before, if found.fits_before { "" } else { ", does not fit" }),
            list(&found.layers),
            format!("{:.2} {unit}", found.makespan),
            format!("{:+.1} %", 100.0 * (found.makespan / found.makespan_before - 1.0)),
            if found.is_optimal { "no split is better" } else { "the best of those tried" }.to_string(),
            found.simulated.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = results.iter().filter_map(|result| row(&result.prediction)).collect();
    let at_typical = results.iter().any(|result| result.prediction.metrics.typical_speed.is_some());
    let header = ["schedule", "layers", "makespan", "balanced", "makespan then", "change", "proof", "simulated"];
    (!rows.is_empty()).then(|| Table {
        caption: if at_typical {
            "Layers of each stage, before and after --balance, at the machine's typical speed"
        } else {
            "Layers of each stage, before and after --balance"
        }
        .to_string(),
        header: header.map(str::to_string).to_vec(),
        rows,
    })
}
