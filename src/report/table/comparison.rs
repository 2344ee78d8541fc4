//! Predictions of several schedules, p and m in one table: the best of each column, and where the best schedule
//! changes.

use crate::contest::{Contest, FIGURES, MAKESPAN, PER_MICROBATCH};
use crate::number::{MISSING, number, percent, quantity};
use crate::{ComparisonPoint, Entry, Panel, Report, Table};
use std::collections::BTreeSet;

/// How a figure of the same place in [`FIGURES`] is shown.
struct Column {
    header: &'static str,
    shown: fn(f64, &Panel) -> String,
    is_time: bool,
}

pub fn time(value: f64, panel: &Panel) -> String {
    quantity(value, &crate::text::fit(&panel.timeline.time_unit, 8, "…"))
}

pub fn bound_and_gap(panel: &Panel) -> [String; 2] {
    let m = &panel.metrics;
    // Unit costs have no unit to write.
    let bound = |bound| if panel.timeline.time_unit == "unit" { number(bound) } else { time(bound, panel) };
    [m.lower_bound.map_or(MISSING.into(), bound), m.gap().map_or(MISSING.into(), percent)]
}

const OVER_IDEAL: &str = "bubble over ideal";

const COLUMNS: [Column; FIGURES.len()] = [
    Column { header: "makespan", shown: time, is_time: true },
    Column { header: "per micro-batch", shown: time, is_time: true },
    share("bubble"),
    share("span bubble"),
    share(OVER_IDEAL),
    Column { header: "peak activations", shown: |v, _| number(v), is_time: false },
];

const fn share(header: &'static str) -> Column {
    Column { header, shown: |v, _| percent(v), is_time: false }
}

struct ComparedEntries<'a> {
    entries: Vec<(&'a Entry, &'a ComparisonPoint)>,
    contest: Contest,
}

impl<'a> ComparedEntries<'a> {
    fn of(report: &'a Report) -> Option<ComparedEntries<'a>> {
        let contest = Contest::of(report)?;
        let entries = report.entries.iter().filter_map(|entry| Some((entry, entry.point.as_ref()?))).collect();
        Some(ComparedEntries { entries, contest })
    }

    /// Whether schedules compete at each p and m; otherwise one schedule is compared with itself over all.
    fn by_point(&self) -> bool {
        self.contest.rules.by_point
    }

    /// Whether there are several p or m.
    fn several(&self) -> bool {
        self.contest.rules.several()
    }

    fn is_best(&self, entry: &Entry, point: &ComparisonPoint, index: usize) -> bool {
        self.contest.is_best(point, entry.predicted.as_ref(), index)
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

    fn table(&self) -> Table {
        let several = self.several();
        let is_shown = |(index, column): &(usize, &Column)| match (*index, column.header) {
            (_, OVER_IDEAL) => !several,
            (PER_MICROBATCH, _) => several && !self.by_point(),
            _ => true,
        };
        let shown: Vec<(usize, &Column)> = COLUMNS.iter().enumerate().filter(is_shown).collect();
        // If the machine's speed varied, bounds refer to another speed than these makespans.
        let bounds = !self.at_many_speeds();
        let bound_names = ["lower bound", "gap"].into_iter().skip(usize::from(several)).filter(|_| bounds);
        let mut header = vec!["schedule".to_string()];
        if several {
            header.extend(["p", "m"].map(str::to_string));
        }
        // One unit for all keeps the table narrow.
        let unit = self.unit().filter(|_| several);
        let name = |(_, column): &(usize, &Column)| match unit {
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
                    cells.extend(shown.iter().map(|&(index, column)| {
                        let mark = if self.is_best(entry, point, index) { "*" } else { "" };
                        let cap = point.above_cap.filter(|_| FIGURES[index].name == "peak_activations");
                        let above = cap.map_or_else(String::new, |cap| format!(" > {}", number(cap)));
                        let value = (FIGURES[index].of)(panel);
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
        let of = if self.by_point() && self.several() { "p and m" } else { "column" };
        let changes = self.changes().map_or_else(String::new, |changes| format!(". {changes}"));
        let at = if self.at_many_speeds() { ", of times at the machine's median speed" } else { "" };
        format!("*: best of its {of}{at}{changes}")
    }

    /// Says in one line which schedule is the shortest and where that changes; none for one p and m.
    fn changes(&self) -> Option<String> {
        if !self.by_point() {
            let index = if self.contest.compares(MAKESPAN) { MAKESPAN } else { PER_MICROBATCH };
            let best = self.entries.iter().filter(|(entry, point)| self.is_best(entry, point, index));
            let places: Vec<String> = best.map(|(_, point)| self.place(point)).collect();
            let what = if index == MAKESPAN { "Shortest" } else { "Least time per micro-batch" };
            return match places.as_slice() {
                [] => None,
                places => Some(format!("{what}: {}", places.join(" and "))),
            };
        }
        self.several().then(|| self.along())
    }

    /// `p = 4, m = 16`, without the numbers that all points share.
    fn place(&self, point: &ComparisonPoint) -> String {
        let rules = self.contest.rules;
        let p = rules.several_devices.then(|| format!("p = {}", point.devices));
        let m = rules.several_microbatches.then(|| format!("m = {}", point.microbatches));
        p.into_iter().chain(m).collect::<Vec<_>>().join(", ")
    }

    /// Returns the names of `there`, the entries at one p and m, that have the smallest makespan.
    fn shortest(&self, there: &[(&Entry, &ComparisonPoint)]) -> String {
        let shortest = there.first().map(|(_, at)| self.contest.shortest(at.devices, at.microbatches).0);
        let shortest: BTreeSet<usize> = shortest.into_iter().flatten().collect();
        let is_shortest = |point: &&ComparisonPoint| point.above_cap.is_none() && shortest.contains(&point.number);
        let names = there.iter().map(|(_, point)| *point).filter(is_shortest);
        let mut names: Vec<String> =
            names.map(|point| point.schedule.split(" (").next().unwrap_or_default().to_string()).collect();
        names.dedup();
        if names.is_empty() { "none".to_string() } else { names.join(" = ") }
    }

    /// Returns the shortest schedule at each p and m, with equal neighbours merged.
    fn along(&self) -> String {
        let mut devices: Vec<(u32, Vec<(u32, String)>)> = Vec::new();
        let place = |(_, point): &(&Entry, &ComparisonPoint)| (point.devices, point.microbatches);
        for there in self.entries.chunk_by(|one, other| place(one) == place(other)) {
            let Some((p, m)) = there.first().map(place) else { continue };
            if devices.last().is_none_or(|(last, _)| *last != p) {
                devices.push((p, Vec::new()));
            }
            devices.last_mut().into_iter().for_each(|(_, along)| along.push((m, self.shortest(there))));
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
fn left_out(compared: &ComparedEntries<'_>) -> Option<Table> {
    let row = |(_, point): &(&Entry, &ComparisonPoint)| {
        let why = point.reason()?.to_string();
        Some(vec![point.schedule.clone(), point.devices.to_string(), point.microbatches.to_string(), why])
    };
    let rows: Vec<Vec<String>> = compared.entries.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| Table::new("Left out", &["schedule", "p", "m", "why"], rows))
}

impl Report {
    /// Says in one line which schedule of a comparison is the shortest, and where that changes.
    pub fn changes(&self) -> Option<String> {
        ComparedEntries::of(self)?.changes()
    }

    /// Returns the tables shown besides the figures of each timeline.
    pub fn further_tables(&self) -> Vec<Table> {
        [self.comparison(), self.extra_tables.clone()].concat()
    }

    /// Returns the tables of a comparison, which replace the table of predictions; empty otherwise.
    pub fn comparison(&self) -> Vec<Table> {
        let Some(compared) = ComparedEntries::of(self) else { return Vec::new() };
        [Some(compared.table()), left_out(&compared)].into_iter().flatten().collect()
    }
}
