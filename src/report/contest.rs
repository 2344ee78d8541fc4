//! Who is best: the figures in which an entry of a comparison is ahead of its rivals. Tables, maps and files ask here.

use crate::{ComparisonPoint, Panel, Report};
use std::collections::{BTreeMap, BTreeSet};

/// A figure where lower is better.
pub struct Figure {
    pub name: &'static str,
    pub of: fn(&Panel) -> f64,
    /// The value that entries are compared by: times refer to one speed of the machine.
    by: fn(&Panel) -> f64,
    is_compared: fn(&Rules) -> bool,
}

/// Index of the makespan in [`FIGURES`], and of the makespan per micro-batch.
pub const MAKESPAN: usize = 0;
pub const PER_MICROBATCH: usize = 1;

pub const FIGURES: [Figure; 6] = [
    Figure {
        name: "makespan",
        of: |p| p.metrics.makespan,
        by: typical_makespan,
        // More micro-batches are more work, so makespans are not compared across m.
        is_compared: |rules| rules.by_point || !rules.several_microbatches,
    },
    Figure {
        name: "makespan_per_microbatch",
        of: |p| p.metrics.makespan / f64::from(p.timeline.microbatches.max(1)),
        by: |p| typical_makespan(p) / f64::from(p.timeline.microbatches.max(1)),
        is_compared: |rules| !rules.by_point,
    },
    share("bubble", |p| p.metrics.bubble),
    share("span_bubble", |p| p.metrics.span_bubble),
    share("bubble_over_ideal", |p| p.metrics.bubble_over_ideal),
    Figure {
        // Activations are counted in shares of a device's layers, so they are not compared across p.
        is_compared: |rules| rules.by_point || !rules.several_devices,
        ..share("peak_activations", |p| p.metrics.peak_activations())
    },
];

/// A figure that is compared everywhere.
const fn share(name: &'static str, of: fn(&Panel) -> f64) -> Figure {
    Figure { name, of, by: of, is_compared: |_| true }
}

/// The makespan at the machine's median speed if that varied, as each prediction is made for a speed of its own.
fn typical_makespan(panel: &Panel) -> f64 {
    panel.metrics.typical_speed.map_or(panel.metrics.makespan, |typical| typical.makespan)
}

/// Whether two figures are equal but for rounding.
fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Who competes with whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether schedules compete at each p and m; otherwise one schedule is compared with itself over all.
    pub by_point: bool,
    /// Whether there are several p.
    pub several_devices: bool,
    /// Whether there are several m.
    pub several_microbatches: bool,
}

impl Rules {
    fn of<'a>(points: impl Iterator<Item = &'a ComparisonPoint>) -> Rules {
        let (mut numbers, mut devices, mut microbatches) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for point in points {
            numbers.insert(point.number);
            devices.insert(point.devices);
            microbatches.insert(point.microbatches);
        }
        Rules {
            by_point: numbers.len() > 1,
            several_devices: devices.len() > 1,
            several_microbatches: microbatches.len() > 1,
        }
    }

    /// Whether there are several p or m.
    pub fn several(self) -> bool {
        self.several_devices || self.several_microbatches
    }
}

/// The rivals within the cap at one p and m: one value for each, and the extremes of each figure.
struct ContestGroup {
    least: [f64; FIGURES.len()],
    most: [f64; FIGURES.len()],
    /// Typical makespan and number of the schedule, in the order of entries.
    makespans: Vec<(f64, usize)>,
}

/// The rivals of a comparison. Entries above the cap on activations, or without a prediction, are not among them.
pub struct Contest {
    pub rules: Rules,
    arenas: BTreeMap<(u32, u32), ContestGroup>,
}

impl Contest {
    pub fn new(rules: Rules) -> Contest {
        Contest { rules, arenas: BTreeMap::new() }
    }

    /// Returns the contest of a report's entries; none if it compares nothing.
    pub fn of(report: &Report) -> Option<Contest> {
        let entries = || report.entries.iter().filter_map(|entry| Some((entry, entry.point.as_ref()?)));
        entries().next()?;
        let mut contest = Contest::new(Rules::of(entries().map(|(_, point)| point)));
        for (entry, point) in entries() {
            contest.add(point, entry.predicted.as_ref());
        }
        Some(contest)
    }

    /// Adds an entry, each only once.
    pub fn add(&mut self, point: &ComparisonPoint, predicted: Option<&Panel>) {
        let Some(panel) = predicted.filter(|_| point.above_cap.is_none()) else { return };
        let new = || ContestGroup {
            least: [f64::INFINITY; FIGURES.len()],
            most: [0.0; FIGURES.len()],
            makespans: Vec::new(),
        };
        let arena = self.arenas.entry(self.rules.place(point)).or_insert_with(new);
        for (index, figure) in FIGURES.iter().enumerate() {
            let value = (figure.by)(panel);
            arena.least[index] = arena.least[index].min(value);
            arena.most[index] = arena.most[index].max(value);
        }
        if self.rules.by_point {
            arena.makespans.push((typical_makespan(panel), point.number));
        }
    }

    /// Whether an entry is the best of its rivals in figure number `index`, with some of them worse.
    pub fn is_best(&self, point: &ComparisonPoint, predicted: Option<&Panel>, index: usize) -> bool {
        let Some(panel) = predicted.filter(|_| point.above_cap.is_none()) else { return false };
        let Some(arena) = self.arenas.get(&self.rules.place(point)) else { return false };
        let (figure, least, most) = (&FIGURES[index], arena.least[index], arena.most[index]);
        (figure.is_compared)(&self.rules) && alike((figure.by)(panel), least) && !alike(least, most)
    }

    /// Returns the figures in which an entry is the best.
    pub fn best(&self, point: &ComparisonPoint, predicted: Option<&Panel>) -> Vec<&'static str> {
        let is_best = |&index: &usize| self.is_best(point, predicted, index);
        (0..FIGURES.len()).filter(is_best).map(|index| FIGURES[index].name).collect()
    }

    /// Whether figure number `index` is compared.
    pub fn compares(&self, index: usize) -> bool {
        (FIGURES[index].is_compared)(&self.rules)
    }

    /// Returns the numbers of the schedules with the least makespan at a p and m, in the order of entries, and by which share the
    /// next one is longer than the first; none if there is no other. Empty if no schedule is within the cap.
    pub fn shortest(&self, devices: u32, microbatches: u32) -> (Vec<usize>, Option<f64>) {
        let Some(arena) = self.arenas.get(&(devices, microbatches)) else { return (Vec::new(), None) };
        let least = arena.least[MAKESPAN];
        let shortest = arena.makespans.iter().filter(|(time, _)| alike(*time, least)).map(|&(_, number)| number);
        let shortest: Vec<usize> = shortest.collect();
        let others = arena.makespans.iter().filter(|(time, _)| !alike(*time, least)).map(|&(time, _)| time);
        let second = if shortest.len() > 1 { least } else { others.fold(f64::INFINITY, f64::min) };
        (shortest, second.is_finite().then(|| 1.0 - least / second))
    }
}

impl Rules {
    /// Where an entry competes.
    fn place(self, point: &ComparisonPoint) -> (u32, u32) {
        if self.by_point { (point.devices, point.microbatches) } else { (0, 0) }
    }
}

impl Report {
    /// Returns by entry the figures in which it is the best: among the schedules at its p and m or, if there is one
    /// schedule, over all p and m.
    pub fn best(&self) -> Vec<Vec<&'static str>> {
        let contest = Contest::of(self);
        let best = |(contest, point): (&Contest, &ComparisonPoint), predicted| contest.best(point, predicted);
        let entries = self.entries.iter();
        entries
            .map(|entry| contest.as_ref().zip(entry.point.as_ref()).map(|one| best(one, entry.predicted.as_ref())))
            .map(Option::unwrap_or_default)
            .collect()
    }
}
