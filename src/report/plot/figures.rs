//! The plots that a report has: sweeps over p and m, time against memory, errors, step times, and memory over time.

use super::{Chart, HeatMap, Plot, PlotAxis, Plots, Series, SeriesStyle};
use crate::contest::{Contest, MAKESPAN};
use crate::number::percent;
use crate::scene::rows::{activations, rows};
use crate::{ComparisonPoint, Entry, Panel, Report};
use std::collections::{BTreeMap, BTreeSet};

const MOST: usize = 12;

impl Report {
    /// Returns the plots of what the report knows: a sweep over p or m as lines, over both as heat maps; time against
    /// memory with its Pareto front; error against m; step times; memory over time.
    pub fn plots(&self) -> Plots {
        let points = self.sweep();
        let mut plots: Vec<Plot> = Contest::of(self).map_or_else(Vec::new, |contest| sweeps(&points, &contest));
        plots.extend(pareto(self));
        plots.extend(errors(self));
        plots.extend(step_times(self));
        if points.is_empty() {
            plots.extend(memory(self));
        }
        let maps = plots.iter().any(|plot| matches!(plot, Plot::HeatMap(_)));
        let empty = if maps { self.empty_cells() } else { Vec::new() };
        let notes = [self.subtitle.clone(), self.changes().unwrap_or_default()].into_iter().chain(empty);
        let notes = notes.filter(|note| self.look.notes && !note.is_empty()).collect();
        Plots { title: self.headline().to_string(), plots, notes, look: self.look.clone() }
    }

    /// Whether a picture of the report shows plots: it is a sweep, and nothing is asked about timelines.
    pub fn is_plotted(&self) -> bool {
        let look = &self.look;
        let timelines = look.window.is_some() || look.collapse || look.causes || !look.memory || !look.waits;
        !timelines && !self.sweep().is_empty()
    }

    /// Why heat maps have empty cells: for each schedule the number of them, and the first one's reason.
    fn empty_cells(&self) -> Vec<String> {
        let mut by: BTreeMap<usize, Vec<&ComparisonPoint>> = BTreeMap::new();
        let points = self.entries.iter().filter_map(|entry| entry.point.as_ref());
        points
            .filter(|point| point.left_out.is_some())
            .for_each(|point| by.entry(point.number).or_default().push(point));
        let told = |of: Vec<&ComparisonPoint>| {
            let (first, others) = (of.first()?, of.len() - 1);
            let others = match others {
                0 => String::new(),
                1 => "; another cell is empty, too".to_string(),
                n => format!("; {n} other cells are empty, too"),
            };
            let ComparisonPoint { schedule, devices, microbatches, .. } = first;
            Some(format!("–: {schedule} at p = {devices}, m = {microbatches}: {}{others}", first.reason()?))
        };
        by.into_values().take(MOST).filter_map(told).collect()
    }

    /// The predictions of a comparison over several p or m; empty for one p and m.
    fn sweep(&self) -> Vec<(&ComparisonPoint, &Panel)> {
        let points = self.entries.iter().filter_map(|entry| Some((entry.point.as_ref()?, entry.predicted.as_ref()?)));
        let points: Vec<_> = points.collect();
        let at: BTreeSet<_> = points.iter().map(|(point, _)| (point.devices, point.microbatches)).collect();
        if at.len() > 1 { points } else { Vec::new() }
    }
}

/// A figure of a prediction that sweeps show, with its label.
type Figure = (&'static str, fn(&Panel) -> f64);

const BUBBLE: Figure = ("bubble, %", |panel| 100.0 * panel.metrics.bubble);
const FIGURES: [Figure; 3] = [
    BUBBLE,
    ("time per micro-batch", |panel| panel.metrics.makespan / f64::from(panel.timeline.microbatches.max(1))),
    ("peak activations", |panel| panel.metrics.peak_activations()),
];

/// A schedule's name and its predictions.
type OfSchedule<'a> = (String, Vec<(&'a ComparisonPoint, &'a Panel)>);

/// Groups points by schedule, in the order in which the schedules were asked for. A name for several schedules, such as `auto`, is one group.
fn by_schedule<'a>(points: &[(&'a ComparisonPoint, &'a Panel)]) -> Vec<OfSchedule<'a>> {
    let mut by: BTreeMap<usize, Vec<(&ComparisonPoint, &Panel)>> = BTreeMap::new();
    points.iter().for_each(|&(point, panel)| by.entry(point.number).or_default().push((point, panel)));
    let name =
        |of: &[(&ComparisonPoint, &Panel)]| of.first().map_or_else(String::new, |(point, _)| point.schedule.clone());
    by.into_values().map(|of| (name(&of), of)).collect()
}

fn numbers(points: &[(&ComparisonPoint, &Panel)], of: fn(&ComparisonPoint) -> u32) -> Vec<u32> {
    points.iter().map(|(point, _)| of(point)).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Lines over m or p; heat maps of the bubble over both.
fn sweeps(points: &[(&ComparisonPoint, &Panel)], contest: &Contest) -> Vec<Plot> {
    let (devices, microbatches) = (numbers(points, |point| point.devices), numbers(points, |point| point.microbatches));
    if points.is_empty() {
        return Vec::new();
    }
    if devices.len() > 1 && microbatches.len() > 1 {
        return heat_maps(points, contest, &devices, &microbatches);
    }
    let (label, values, of): (_, _, fn(&ComparisonPoint) -> u32) = if devices.len() > 1 {
        ("devices p", devices, |point| point.devices)
    } else {
        ("micro-batches m", microbatches, |point| point.microbatches)
    };
    let chart = |(figure, value): &Figure| {
        let line = |(name, of_schedule): OfSchedule| Series {
            name,
            style: SeriesStyle::Line,
            points: of_schedule.iter().map(|(point, panel)| (f64::from(of(point)), value(panel))).collect(),
        };
        Plot::Chart(Chart {
            title: figure.trim_end_matches(", %").to_string(),
            x: counts(label, &values),
            y: PlotAxis { label: figure.to_string(), from_zero: true, ..PlotAxis::default() },
            series: by_schedule(points).into_iter().take(MOST).map(line).collect(),
            guides: Vec::new(),
        })
    };
    FIGURES.iter().map(chart).collect()
}

/// An axis of counts with a tick for each; logarithmic over a factor of 4 or more.
fn counts(label: &str, values: &[u32]) -> PlotAxis {
    let values: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
    let log = values.first().zip(values.last()).is_some_and(|(first, last)| *last >= 4.0 * first);
    PlotAxis { label: label.to_string(), log, ticks: Some(values), from_zero: false }
}

/// A heat map of the bubble per schedule, all on one scale of colours, after a map of the shortest ones if several are.
fn heat_maps(
    points: &[(&ComparisonPoint, &Panel)],
    contest: &Contest,
    devices: &[u32],
    microbatches: &[u32],
) -> Vec<Plot> {
    let (_, bubble) = BUBBLE;
    let all = || points.iter().map(|(_, panel)| bubble(panel));
    let range = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let schedules = by_schedule(points);
    let several = schedules.len() > 1;
    let map = |(name, of): &OfSchedule| {
        let places: BTreeMap<(u32, u32), _> = of.iter().map(|one| ((one.0.devices, one.0.microbatches), one)).collect();
        let cell = |p: u32, m: u32| {
            let (point, panel) = places.get(&(p, m))?;
            let best = several && contest.is_best(point, Some(panel), MAKESPAN);
            let value = bubble(panel);
            Some((value, format!("{}{}", percent(value / 100.0), if best { " *" } else { "" })))
        };
        Plot::HeatMap(HeatMap {
            title: format!("{name}: bubble{}", if several { " (*: shortest makespan)" } else { "" }),
            columns: microbatches.iter().map(|m| format!("m = {m}")).collect(),
            rows: devices.iter().map(|p| format!("p = {p}")).collect(),
            cells: devices.iter().map(|&p| microbatches.iter().map(|&m| cell(p, m)).collect()).collect(),
            range,
            series: Vec::new(),
        })
    };
    let maps = schedules.iter().take(MOST).map(map);
    shortest(&schedules, contest, devices, microbatches).into_iter().chain(maps).collect()
}

/// A map of the shortest schedule in each cell, and of how much shorter it is than the second; nothing if one is shortest everywhere.
fn shortest(schedules: &[OfSchedule], contest: &Contest, devices: &[u32], microbatches: &[u32]) -> Option<Plot> {
    let number = |(_, of): &OfSchedule| of.first().map(|(point, _)| point.number);
    let series: BTreeMap<usize, usize> =
        schedules.iter().enumerate().filter_map(|(index, schedule)| Some((number(schedule)?, index))).collect();
    let cell = |p: u32, m: u32| {
        let (shortest, lead) = contest.shortest(p, m);
        let index = series.get(shortest.first()?)?;
        Some((*index as f64, lead.map_or_else(String::new, percent)))
    };
    let cells: Vec<Vec<_>> = devices.iter().map(|&p| microbatches.iter().map(|&m| cell(p, m)).collect()).collect();
    let mut winners = cells.iter().flatten().flatten().map(|&(number, _)| number);
    let first = winners.next()?;
    winners.any(|number| number != first).then(|| {
        Plot::HeatMap(HeatMap {
            title: "Shortest makespan, and by how much".to_string(),
            columns: microbatches.iter().map(|m| format!("m = {m}")).collect(),
            rows: devices.iter().map(|p| format!("p = {p}")).collect(),
            cells,
            series: schedules.iter().map(|(name, _)| name.clone()).collect(),
            ..HeatMap::default()
        })
    })
}

/// Makespan against peak activations of the schedules for one p and m, and the Pareto front. A sweep shows only its
/// largest p and m. Nothing for fewer than three schedules, or of different time units.
fn pareto(report: &Report) -> Option<Plot> {
    let panels = report.entries.iter().filter_map(|entry| Some((entry.schedule(), entry.predicted.as_ref()?)));
    let at = |panel: &Panel| (panel.timeline.devices, panel.timeline.microbatches);
    let last = panels.clone().map(|(_, panel)| at(panel)).max()?;
    let shown: Vec<(&str, &Panel)> = panels.filter(|(_, panel)| at(panel) == last).collect();
    let unit = &shown.first()?.1.timeline.time_unit;
    if shown.len() < 3 || shown.len() > MOST || shown.iter().any(|(_, panel)| panel.timeline.time_unit != *unit) {
        return None;
    }
    let place = |panel: &Panel| (panel.metrics.peak_activations(), panel.metrics.makespan);
    let mut sorted: Vec<(f64, f64)> = shown.iter().map(|(_, panel)| place(panel)).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut front: Vec<(f64, f64)> = Vec::new();
    for point in sorted {
        if front.last().is_none_or(|last| point.1 < last.1) {
            front.push(point);
        }
    }
    // The front continues to the right edge of the chart.
    let widest = shown.iter().map(|(_, panel)| place(panel).0).fold(0.0, f64::max);
    front.push((widest, front[front.len() - 1].1));
    let mut series: Vec<Series> = shown
        .iter()
        .map(|(name, panel)| Series { name: (*name).to_string(), style: SeriesStyle::Dots, points: vec![place(panel)] })
        .collect();
    series.push(Series { name: "Pareto front".to_string(), style: SeriesStyle::Steps, points: front });
    Some(Plot::Chart(Chart {
        title: format!("Time against memory, p = {}, m = {}", last.0, last.1),
        x: PlotAxis { label: "peak activations".to_string(), ..PlotAxis::default() },
        y: PlotAxis { label: format!("makespan, {unit}"), ..PlotAxis::default() },
        series,
        guides: Vec::new(),
    }))
}

/// Error of the predicted makespan against m, a line per schedule; nothing where one m was measured.
fn errors(report: &Report) -> Option<Plot> {
    let mut lines: Vec<Series> = Vec::new();
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut counted = BTreeSet::new();
    for entry in &report.entries {
        let (Some(measured), Some(error)) = (&entry.measured, &entry.error) else { continue };
        let (name, m) = (&measured.timeline.schedule, measured.timeline.microbatches);
        counted.insert(m);
        let point = (f64::from(m), 100.0 * error.makespan);
        let number = *numbers.entry(name).or_insert(lines.len());
        if number == lines.len() {
            lines.push(Series { name: name.clone(), style: SeriesStyle::Line, points: Vec::new() });
        }
        lines[number].points.push(point);
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let counted: Vec<u32> = counted.into_iter().collect();
    let (first, last) = (f64::from(*counted.first()?), f64::from(*counted.last()?));
    (counted.len() > 1).then(|| {
        Plot::Chart(Chart {
            title: "Error of the predicted makespan".to_string(),
            x: counts("micro-batches m", &counted),
            y: PlotAxis { label: "predicted / measured − 1, %".to_string(), from_zero: true, ..PlotAxis::default() },
            series: lines,
            guides: vec![[(first, 0.0), (last, 0.0)]],
        })
    })
}

/// A histogram of the measured step times of each schedule; nothing for fewer than ten steps.
fn step_times(report: &Report) -> Option<Plot> {
    let measured: Vec<&Entry> = report.entries.iter().filter(|entry| entry.step_ms.len() >= 10).take(MOST).collect();
    let all = || measured.iter().flat_map(|entry| entry.step_ms.iter().copied());
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let longest = measured.iter().map(|entry| entry.step_ms.len()).max()?;
    let bins = ((longest as f64).sqrt().ceil() as usize * 2).clamp(8, 40);
    let width = ((most - least) / bins as f64).max(1e-6);
    let histogram = |entry: &&Entry| {
        let mut counts = vec![0u32; bins];
        entry.step_ms.iter().for_each(|ms| counts[(((ms - least) / width) as usize).min(bins - 1)] += 1);
        let edge = |bin: usize| least + width * bin as f64;
        let mut points = vec![(edge(0), 0.0)];
        points.extend(counts.iter().enumerate().map(|(bin, &count)| (edge(bin), f64::from(count))));
        points.push((edge(bins), 0.0));
        Series { name: entry.name.clone(), style: SeriesStyle::Steps, points }
    };
    Some(Plot::Chart(Chart {
        title: "Step times".to_string(),
        x: PlotAxis { label: "makespan of a step, ms".to_string(), ..PlotAxis::default() },
        y: PlotAxis { label: "steps".to_string(), from_zero: true, ..PlotAxis::default() },
        series: measured.iter().map(histogram).collect(),
        guides: Vec::new(),
    }))
}

/// Activations over time on the device with the highest peak, a line per schedule.
fn memory(report: &Report) -> Option<Plot> {
    let panels = report.entries.iter().filter_map(|entry| Some((&entry.name, entry.panels().next()?))).take(MOST);
    let panels: Vec<(&String, &Panel)> = panels.collect();
    let unit = &panels.first()?.1.timeline.time_unit;
    let line = |(name, panel): &(&String, &Panel)| {
        let t = &panel.timeline;
        let peak = |curve: &Vec<(u64, f64)>| curve.iter().map(|&(_, held)| held).fold(0.0, f64::max);
        let curves = rows(t).iter().map(|row| activations(t, row)).collect::<Vec<_>>();
        let highest = curves.into_iter().reduce(|a, b| if peak(&b) > peak(&a) { b } else { a })?;
        let time = |ns: u64| ns as f64 / t.unit_ns.max(1) as f64;
        let points = highest.iter().map(|&(ns, held)| (time(ns), held)).collect::<Vec<_>>();
        (!points.is_empty()).then(|| Series { name: (*name).clone(), style: SeriesStyle::Steps, points })
    };
    let series: Vec<Series> = panels.iter().filter_map(line).collect();
    let alike = panels.iter().all(|(_, panel)| panel.timeline.time_unit == *unit);
    (alike && !series.is_empty()).then(|| {
        Plot::Chart(Chart {
            title: "Activations held by the fullest device".to_string(),
            x: PlotAxis { label: format!("time, {unit}"), from_zero: true, ..PlotAxis::default() },
            y: PlotAxis { label: "activations".to_string(), from_zero: true, ..PlotAxis::default() },
            series,
            guides: Vec::new(),
        })
    })
}
