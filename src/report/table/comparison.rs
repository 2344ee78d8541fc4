//! Predictions of several schedules, p and m in one table: the best of each column, and where the best schedule
//! changes.

use crate::report::number::{MISSING, number, percent, quantity};
use crate::report::{ComparisonPoint, Entry, Panel, Report, Table};
use std::collections::BTreeSet;

/// A figure, less of which is better.
struct Column {
    name: &'static str,
    header: &'static str,
    of: fn(&Panel) -> f64,
    /// The value that entries are compared by: times refer to one speed of the machine.
    by: fn(&Panel) -> f64,
    shown: fn(f64, &Panel) -> String,
    is_time: bool,
    fits: fn(&Compared<'_>) -> bool,
}

pub fn time(value: f64, panel: &Panel) -> String {
    quantity(value, &crate::report::text::fit(&panel.timeline.time_unit, 8, "…"))
}

pub fn bound_and_gap(panel: &Panel) -> [String; 2] {
    let m = &panel.metrics;
    // Unit costs have no unit to write.
    let bound = |bound| if panel.timeline.time_unit == "unit" { number(bound) } else { time(bound, panel) };
    [m.lower_bound.map_or(MISSING.into(), bound), m.gap().map_or(MISSING.into(), percent)]
}

const PER_MICROBATCH: &str = "per micro-batch";
const PEAK: &str = "peak_activations";
const OVER_IDEAL: &str = "bubble over ideal";

const COLUMNS: [Column; 6] = [
    Column {
        name: "makespan",
        header: "makespan",
        of: |p| p.metrics.makespan,
        by: typical_makespan,
        shown: time,
        is_time: true,
        // More micro-batches are more work, so makespans are not compared across m.
        fits: |c| c.by_point() || c.numbers(|point| point.microbatches) == 1,
    },
    Column {
        name: "makespan_per_microbatch",
        header: PER_MICROBATCH,
        of: |p| p.metrics.makespan / f64::from(p.timeline.microbatches.max(1)),
        by: |p| typical_makespan(p) / f64::from(p.timeline.microbatches.max(1)),
        shown: time,
        is_time: true,
        fits: |c| !c.by_point(),
    },
    share("bubble", "bubble", |p| p.metrics.bubble),
    share("span_bubble", "span bubble", |p| p.metrics.span_bubble),
    share("bubble_over_ideal", OVER_IDEAL, |p| p.metrics.bubble_over_ideal),
    Column {
        shown: |v, _| number(v),
        // Activations are counted in shares of a device's layers, so they are not compared across p.
        fits: |c| c.by_point() || c.numbers(|point| point.devices) == 1,
        ..share(PEAK, "peak activations", |p| p.metrics.peak_activations())
    },
];

/// A figure in percent that is compared everywhere.
const fn share(name: &'static str, header: &'static str, of: fn(&Panel) -> f64) -> Column {
    Column { name, header, of, by: of, shown: |v, _| percent(v), is_time: false, fits: |_| true }
}

/// The makespan at the machine's median speed if that varied, as each prediction is made for a speed of its own.
fn typical_makespan(panel: &Panel) -> f64 {
    panel.metrics.typical_speed.map_or(panel.metrics.makespan, |typical| typical.makespan)
}

/// Whether two figures are equal but for rounding.
fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

struct Compared<'a> {
    entries: Vec<(&'a Entry, &'a ComparisonPoint)>,
}

impl<'a> Compared<'a> {
    fn of(report: &'a Report) -> Option<Compared<'a>> {
        let entries: Vec<_> = report.entries.iter().filter_map(|entry| Some((entry, entry.point.as_ref()?))).collect();
        (!entries.is_empty()).then_some(Compared { entries })
    }

    /// Returns the number of distinct values.
    fn numbers<T: Ord>(&self, of: fn(&ComparisonPoint) -> T) -> usize {
        self.entries.iter().map(|(_, point)| of(point)).collect::<BTreeSet<T>>().len()
    }

    /// Whether schedules compete at each p and m; otherwise one schedule is compared with itself over all.
    fn by_point(&self) -> bool {
        self.numbers(|point| point.number) > 1
    }

    /// Whether an entry is the best of its rivals in a column, with some of them worse.
    fn is_best(&self, (entry, point): (&Entry, &ComparisonPoint), column: &Column) -> bool {
        let Some(panel) = entry.predicted.as_ref().filter(|_| point.above_cap.is_none()) else { return false };
        let same = |other: &ComparisonPoint| (other.devices, other.microbatches) == (point.devices, point.microbatches);
        let is_rival = |other: &ComparisonPoint| other.above_cap.is_none() && (!self.by_point() || same(other));
        let rivals = self.entries.iter().filter(|(_, other)| is_rival(other));
        let found: Vec<f64> = rivals.filter_map(|(entry, _)| entry.predicted.as_ref().map(column.by)).collect();
        let (least, most) = found.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &v| (a.min(v), b.max(v)));
        (column.fits)(self) && alike((column.by)(panel), least) && !alike(least, most)
    }

    /// Returns the unit of all times if they share one.
    fn unit(&self) -> Option<&str> {
        let mut units =
            self.entries.iter().flat_map(|(entry, _)| &entry.predicted).map(|p| p.timeline.time_unit.as_str());
        let first = units.next()?;
        units.all(|unit| unit == first).then_some(first)
    }

    /// Whether the machine's speed varied.
    fn at_many_speeds(&self) -> bool {
        let varied = |panel: &Panel| panel.metrics.typical_speed.is_some();
        self.entries.iter().any(|(entry, _)| entry.predicted.as_ref().is_some_and(varied))
    }

    fn best(&self, one: (&Entry, &ComparisonPoint)) -> Vec<&'static str> {
        COLUMNS.iter().filter(|column| self.is_best(one, column)).map(|column| column.name).collect()
    }

    fn table(&self) -> Table {
        let several = self.numbers(|point| (point.devices, point.microbatches)) > 1;
        let is_shown = |column: &&Column| match column.header {
            OVER_IDEAL => !several,
            PER_MICROBATCH => several && !self.by_point(),
            _ => true,
        };
        let shown: Vec<&Column> = COLUMNS.iter().filter(is_shown).collect();
        // If the machine's speed varied, bounds refer to another speed than these makespans.
        let bounds = !self.at_many_speeds();
        let bound_names = ["lower bound", "gap"].into_iter().skip(usize::from(several)).filter(|_| bounds);
        let mut header = vec!["schedule".to_string()];
        if several {
            header.extend(["p", "m"].map(str::to_string));
        }
        // One unit for all keeps the table narrow.
        let unit = self.unit().filter(|_| several);
        let name = |column: &&Column| match unit {
            Some(unit) if column.is_time => {
                format!("{} ({unit}{})", column.header, if unit == "unit" { "s" } else { "" })
            }
            _ => column.header.to_string(),
        };
        header.extend(shown.iter().map(name));
        header.extend(bound_names.clone().map(str::to_string));
        let row = |&(entry, point): &(&Entry, &ComparisonPoint)| {
            let mut cells = vec![point.schedule.clone()];
            if several {
                cells.extend([point.devices, point.microbatches].map(|number| number.to_string()));
            }
            match (&entry.predicted, &point.left_out) {
                (Some(panel), _) => {
                    cells.extend(shown.iter().map(|column| {
                        let mark = if self.is_best((entry, point), column) { "*" } else { "" };
                        let cap = point.above_cap.filter(|_| column.name == PEAK);
                        let above = cap.map_or_else(String::new, |cap| format!(" > {}", number(cap)));
                        let value = (column.of)(panel);
                        let short = unit.is_some() && column.is_time;
                        let shown = if short { number(value) } else { (column.shown)(value, panel) };
                        format!("{mark}{shown}{above}")
                    }));
                    let skipped = 2 - bound_names.clone().count();
                    cells.extend(bound_and_gap(panel).into_iter().skip(skipped));
                }
                (None, left_out) => cells.push(left_out.as_ref().map_or(MISSING, |left_out| left_out.what).to_string()),
            }
            cells.resize(header.len(), MISSING.into());
            cells
        };
        let rows = self.entries.iter().map(row).collect();
        Table { caption: self.caption(), header, rows }
    }

    /// Explains the stars, and says which schedule is the shortest where.
    fn caption(&self) -> String {
        let several = self.numbers(|point| (point.devices, point.microbatches)) > 1;
        let of = if self.by_point() && several { "p and m" } else { "column" };
        let changes = self.changes().map_or_else(String::new, |changes| format!(". {changes}"));
        let at = if self.at_many_speeds() { ", of times at the machine's median speed" } else { "" };
        format!("*: best of its {of}{at}{changes}")
    }

    /// Says in one line which schedule is the shortest and where that changes; none for one p and m.
    fn changes(&self) -> Option<String> {
        if !self.by_point() {
            let column = if (COLUMNS[0].fits)(self) { &COLUMNS[0] } else { &COLUMNS[1] };
            let best = self.entries.iter().filter(|one| self.is_best(**one, column));
            let places: Vec<String> = best.map(|(_, point)| self.place(point)).collect();
            let what = if column.name == "makespan" { "Shortest" } else { "Least time per micro-batch" };
            return match places.as_slice() {
                [] => None,
                places => Some(format!("{what}: {}", places.join(" and "))),
            };
        }
        (self.numbers(|point| (point.devices, point.microbatches)) > 1).then(|| self.along())
    }

    /// `p = 4, m = 16`, without the numbers that all points share.
    fn place(&self, point: &ComparisonPoint) -> String {
        let p = (self.numbers(|point| point.devices) > 1).then(|| format!("p = {}", point.devices));
        let m = (self.numbers(|point| point.microbatches) > 1).then(|| format!("m = {}", point.microbatches));
        p.into_iter().chain(m).collect::<Vec<_>>().join(", ")
    }

    /// Returns the schedules with the smallest makespan at a point.
    fn shortest(&self, devices: u32, microbatches: u32) -> String {
        let is_there =
            |at: &ComparisonPoint| (at.devices, at.microbatches) == (devices, microbatches) && at.above_cap.is_none();
        let there = || self.entries.iter().filter(|(_, at)| is_there(at));
        let makespan = |entry: &Entry| entry.predicted.as_ref().map(typical_makespan);
        let least = there().filter_map(|(entry, _)| makespan(entry)).fold(f64::INFINITY, f64::min);
        let names = there().filter(|(entry, _)| makespan(entry).is_some_and(|time| alike(time, least)));
        let mut names: Vec<String> =
            names.map(|(_, point)| point.schedule.split(" (").next().unwrap_or_default().to_string()).collect();
        names.dedup();
        if names.is_empty() { "none".to_string() } else { names.join(" = ") }
    }

    /// Returns the shortest schedule at each p and m, with equal neighbours merged.
    fn along(&self) -> String {
        let mut devices: Vec<(u32, Vec<(u32, String)>)> = Vec::new();
        for (_, point) in &self.entries {
            let (p, m) = (point.devices, point.microbatches);
            if devices.last().is_none_or(|(last, _)| *last != p) {
                devices.push((p, Vec::new()));
            }
            if let Some((_, along)) = devices.last_mut()
                && along.last().is_none_or(|(last, _)| *last != m)
            {
                along.push((m, self.shortest(p, m)));
            }
        }
        let along_m: Vec<(u32, String)> = devices.into_iter().map(|(p, along)| (p, runs("m", along))).collect();
        let text = match along_m.as_slice() {
            [(_, only)] => only.clone(),
            _ => runs("p", along_m),
        };
        match text.contains(" at ") {
            _ if text.starts_with("at ") => format!("Shortest {text}"),
            true => format!("Shortest: {text}"),
            false => format!("Shortest everywhere: {text}"),
        }
    }
}

/// `a at m = 4 to 8; b at m = 16`, or `a` if it is the same for all.
fn runs(letter: &str, along: Vec<(u32, String)>) -> String {
    let mut runs: Vec<(u32, u32, String)> = Vec::new();
    for (number, text) in along {
        match runs.last_mut() {
            Some((_, last, same)) if *same == text => *last = number,
            _ => runs.push((number, number, text)),
        }
    }
    if let [(.., only)] = runs.as_slice() {
        return only.clone();
    }
    let one = |(first, last, text): &(u32, u32, String)| {
        let at = if first == last { format!("{letter} = {first}") } else { format!("{letter} = {first} to {last}") };
        // Changes along m are written for each p.
        if text.contains(" at ") { format!("at {at}: {}", text.replace("; ", ", ")) } else { format!("{text} at {at}") }
    };
    runs.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns the table of schedules that do not exist for some p and m.
fn left_out(compared: &Compared<'_>) -> Option<Table> {
    let row = |(_, point): &(&Entry, &ComparisonPoint)| {
        let why = point.reason()?.to_string();
        Some(vec![point.schedule.clone(), point.devices.to_string(), point.microbatches.to_string(), why])
    };
    let rows: Vec<Vec<String>> = compared.entries.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| Table::new("Left out", &["schedule", "p", "m", "why"], rows))
}

impl Report {
    pub fn is_comparison(&self) -> bool {
        Compared::of(self).is_some()
    }

    /// Returns by entry the figures in which it is the best: among the schedules at its p and m or, if there is one
    /// schedule, over all p and m.
    pub fn best(&self) -> Vec<Vec<&'static str>> {
        let compared = Compared::of(self);
        let of = |entry: &Entry| {
            let point = entry.point.as_ref();
            compared.as_ref().zip(point).map(|(all, point)| all.best((entry, point))).unwrap_or_default()
        };
        self.entries.iter().map(of).collect()
    }

    /// Says in one line which schedule of a comparison is the shortest, and where that changes.
    pub fn changes(&self) -> Option<String> {
        Compared::of(self)?.changes()
    }

    /// Returns the tables shown besides the figures of each timeline.
    pub fn further_tables(&self) -> Vec<Table> {
        [self.comparison(), self.extra_tables.clone()].concat()
    }

    /// Returns the tables of a comparison, which replace that of predictions; empty otherwise.
    pub fn comparison(&self) -> Vec<Table> {
        let Some(compared) = Compared::of(self) else { return Vec::new() };
        [Some(compared.table()), left_out(&compared)].into_iter().flatten().collect()
    }
}
