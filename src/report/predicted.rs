//! Predictions as a report.

use crate::{Entry, Panel, Report, Table, number, percent, quantity};
use pipesim_cost::assumed_in_words;
use pipesim_cost::pair::PairFigures;
use pipesim_sim::{Prediction, PredictionFigures, ShardingFigures, Spread};
use std::collections::BTreeSet;

const TYPICAL_SPEED: &str = " at median speed; times at the machine's measured speed";

impl Panel {
    /// Returns a prediction's timeline and figures, the causes of idle time, and the activation cap.
    pub fn predicted(result: &Prediction<'_>) -> Panel {
        Panel { idle: result.idle(), streams: result.stream_spans(), ..Panel::drawn(result) }
    }

    fn drawn(result: &Prediction<'_>) -> Panel {
        Panel { memory_cap: result.memory_cap, ..Panel::new(result.timeline(), result.metrics().clone()) }
    }
}

/// A prediction as a report shows it. It does not hold the schedule's graph, so that many take little memory.
pub struct PredictedEntry {
    pub figures: PredictionFigures,
    panel: Panel,
    subtitle: String,
    /// Number of the machine's measured speeds.
    speeds: usize,
}

impl PredictedEntry {
    /// Keeps the timeline and the causes of idle time.
    pub fn predicted(result: &Prediction<'_>) -> PredictedEntry {
        PredictedEntry::new(result, Panel::predicted(result))
    }

    /// The same without causes of idle time, which take longer to compute than the prediction.
    pub fn drawn(result: &Prediction<'_>) -> PredictedEntry {
        PredictedEntry::new(result, Panel::drawn(result))
    }

    /// The same without the spans of the timeline, which take memory.
    pub fn figures(result: &Prediction<'_>) -> PredictedEntry {
        PredictedEntry::new(result, Panel::new(result.empty_timeline(), result.metrics().clone()))
    }

    fn new(result: &Prediction<'_>, panel: Panel) -> PredictedEntry {
        let (figures, speeds) = (result.prediction.clone(), result.costs.effects.speeds.len());
        PredictedEntry { figures, panel, subtitle: subtitle(result), speeds }
    }

    /// Returns the entry of a report, and the figures.
    pub fn into_entry(self) -> (Entry, PredictionFigures) {
        let PredictedEntry { figures, panel, .. } = self;
        let (name, over_steps) = (figures.schedule.clone(), over_steps(&figures));
        (Entry { name, predicted: Some(panel), over_steps, ..Entry::default() }, figures)
    }
}

impl Report {
    /// Returns a report of predictions with timelines and causes of idle time.
    pub fn predicted(results: &[Prediction<'_>]) -> Report {
        Report::of_predictions(results.iter().map(PredictedEntry::predicted).collect()).0
    }

    /// The same without causes of idle time, which take longer to compute than the prediction.
    pub fn drawn(results: &[Prediction<'_>]) -> Report {
        Report::of_predictions(results.iter().map(PredictedEntry::drawn).collect()).0
    }

    /// Returns a report of predictions, and their figures.
    pub fn of_predictions(all: Vec<PredictedEntry>) -> (Report, Vec<PredictionFigures>) {
        let numbers = |of: fn(&PredictionFigures) -> u32| -> String {
            let numbers: BTreeSet<u32> = all.iter().map(|one| of(&one.figures)).collect();
            numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        };
        let title = if all.is_empty() {
            String::new()
        } else {
            format!("Predicted: {} devices, {} micro-batches", numbers(|p| p.devices), numbers(|p| p.microbatches))
        };
        let tables = [pairs(&all), collectives(&all), spreads(&all), intervals(&all), iterations(&all)];
        let report = Report {
            title,
            subtitle: all.first().map_or_else(String::new, |first| first.subtitle.clone()),
            provenance: [("program".to_string(), format!("pipesim {}", env!("CARGO_PKG_VERSION")))].into(),
            extra_tables: tables.into_iter().flatten().collect(),
            ..Report::default()
        };
        let (entries, figures) = all.into_iter().map(PredictedEntry::into_entry).unzip();
        (Report { entries, ..report }, figures)
    }
}

fn subtitle(result: &Prediction<'_>) -> String {
    let (c, typical) =
        (result.prediction.costs, if result.costs.effects.speeds.is_empty() { "" } else { TYPICAL_SPEED });
    let unit = if result.costs.units.time_unit == "unit" {
        String::new()
    } else {
        format!(" in {}", result.costs.units.time_unit)
    };
    let [f, i, w, b, comm, keep] = [c.F, c.I, c.W, c.B, c.comm, c.keep].map(number);
    let assumed = assumed_in_words(&result.costs.assumed);
    format!(
        "costs per device{unit}: F = {f}, I = {i}, W = {w}, B = {b}, comm = {comm}, keep = {keep}{assumed}{typical}"
    )
}

/// Returns the spread of makespans under jitter, and iterations if known, by column.
fn over_steps(prediction: &PredictionFigures) -> Vec<(&'static str, f64)> {
    let columns = |s: Spread| {
        let quantiles = [("jitter_p5", s.p5), ("jitter_p50", s.p50), ("jitter_p95", s.p95), ("jitter_p99", s.p99)];
        [("jitter_mean", s.mean)].into_iter().chain(quantiles)
    };
    let iterations = [("iteration", prediction.iteration), ("period", prediction.period)];
    let iterations = iterations.into_iter().filter_map(|(name, time)| Some((name, time?)));
    prediction.jitter.map(columns).into_iter().flatten().chain(iterations).collect()
}

/// Returns the table of makespans under jitter, if any was asked for.
fn spreads(results: &[PredictedEntry]) -> Option<Table> {
    let row = |p: &PredictionFigures| {
        let s = p.jitter?;
        let times = [s.mean, s.p5, s.p50, s.p95, s.p99].map(|time| quantity(time, &p.time_unit));
        Some([p.schedule.clone()].into_iter().chain(times).collect())
    };
    let rows: Vec<Vec<String>> = results.iter().filter_map(|r| row(&r.figures)).collect();
    let s = results.first()?.figures.jitter?;
    let caption = format!("Makespans of {} steps with random durations (seed {})", s.samples, s.seed);
    Some(Table::new(caption, &["schedule", "mean", "p5", "p50", "p95", "p99"], rows))
}

/// Returns the table of gathers and reductions between ops, if there are any. Each figure is the maximum over the devices.
fn collectives(results: &[PredictedEntry]) -> Option<Table> {
    let row = |p: &PredictionFigures| {
        let most = |of: fn(&ShardingFigures) -> f64| p.sharding.iter().map(of).fold(0.0, f64::max);
        let time = |of: fn(&ShardingFigures) -> f64| quantity(most(of), &p.time_unit);
        let gathers = most(|device| device.gathers as f64).to_string();
        let stages = most(|device| device.peak_stages as f64).to_string();
        let parameters = percent(most(|device| device.peak_parameters));
        let times = [time(|device| device.gather), time(|device| device.reduce), time(|device| device.exposed)];
        [p.schedule.clone(), gathers, stages, parameters].into_iter().chain(times).collect()
    };
    let has = results.iter().any(|result| !result.figures.sharding.is_empty());
    let rows = results.iter().map(|result| row(&result.figures)).collect();
    let caption =
        "Collectives between ops, the most of any device; exposed: for how long only they keep it from computing";
    let header = ["schedule", "gathers", "active stages", "of its parameters", "gathering", "reducing", "exposed"];
    has.then(|| Table::new(caption, &header, rows))
}

/// Returns the table of iterations, step ops included, if they are known.
fn iterations(results: &[PredictedEntry]) -> Option<Table> {
    let row = |p: &PredictionFigures| {
        let makespan = p.metrics.typical_speed.map_or(p.metrics.makespan, |typical| typical.makespan);
        let times = [makespan, p.iteration?, p.period?];
        Some([p.schedule.clone()].into_iter().chain(times.map(|time| quantity(time, &p.time_unit))).collect())
    };
    let rows: Vec<Vec<String>> = results.iter().filter_map(|r| row(&r.figures)).collect();
    let is_typical = results.iter().any(|r| r.speeds > 0);
    let speed = if is_typical { "; at median speed" } else { "" };
    let caption = format!("Iterations, step ops included, and the period of steps without a barrier{speed}");
    (!rows.is_empty()).then(|| Table::new(caption, &["schedule", "makespan", "iteration", "period"], rows))
}

/// Returns the table of intervals over the machine's measured speeds, if any were measured.
fn intervals(results: &[PredictedEntry]) -> Option<Table> {
    let row = |p: &PredictionFigures| {
        let interval = p.interval?;
        let range = |[low, high]: [f64; 2]| format!("{} to {}", number(low), quantity(high, &p.time_unit));
        Some(vec![p.schedule.clone(), range(interval.within_80), range(interval.within_95)])
    };
    let rows: Vec<Vec<String>> = results.iter().filter_map(|r| row(&r.figures)).collect();
    let steps = results.first()?.speeds;
    let caption = format!("Makespans at the speeds of {steps} measured steps");
    (!rows.is_empty()).then(|| Table::new(caption, &["schedule", "80 % of steps", "95 % of steps"], rows))
}

/// Maximum number of rows per schedule in the table of pairs; all are in the JSON.
const MOST_PAIRS: usize = 8;

/// Returns the table of pairs on two streams, the most frequent first.
fn pairs(results: &[PredictedEntry]) -> Option<Table> {
    let row = |schedule: &str, pair: &PairFigures| {
        let ms = |ns: u64| quantity(ns as f64 / 1e6, "ms");
        let hidden = pair.communication_ns.saturating_sub(pair.exposed_ns) as f64 / pair.communication_ns.max(1) as f64;
        let times = [
            pair.duration_ns,
            pair.forward_alone_ns,
            pair.backward_alone_ns,
            pair.in_a_row_ns,
            pair.compute_ns,
            pair.communication_ns,
            pair.exposed_ns,
        ];
        let stages =
            [format!("F of stage {}", pair.forward_stage), format!("{} of stage {}", pair.kind, pair.backward_stage)];
        let names = [schedule.to_string()].into_iter().chain(stages).chain([pair.count.to_string()]);
        names.chain(times.map(ms)).chain([percent(hidden)]).collect()
    };
    let of = |p: &PredictionFigures| {
        let mut pairs: Vec<&PairFigures> = p.pairs.iter().collect();
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.count));
        pairs.into_iter().take(MOST_PAIRS).map(|pair| row(&p.schedule, pair)).collect::<Vec<Vec<String>>>()
    };
    let rows: Vec<Vec<String>> = results.iter().flat_map(|result| of(&result.figures)).collect();
    let header = [
        "schedule",
        "forward",
        "backward",
        "pairs",
        "together",
        "forward alone",
        "backward alone",
        "in a row",
        "compute",
        "communication",
        "exposed",
        "hidden",
    ];
    let caption = "Pairs on a compute and a communication stream; exposed: for how long the compute stream waits";
    (!rows.is_empty()).then(|| Table::new(caption, &header, rows))
}
