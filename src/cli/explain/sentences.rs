//! An explanation in sentences: what costs most, why, and what to try, with the number that trying it gives.

use super::explained::Explained;
use crate::advice::{Change, LEAST, What};
use crate::report::{number, percent, quantity};
use crate::sim::Sensitivity;
use std::collections::BTreeMap;

/// Causes, and schedules that are as long as one another, that are named.
const NAMED: usize = 3;
/// Makespans of other schedules that are named.
const GROUPS: usize = 2;

impl Explained {
    /// At most six.
    pub(super) fn tell(&self) -> Vec<String> {
        let lines = [self.headline(), self.causes(), self.bound(), self.within(), self.beyond(), self.others()];
        lines.into_iter().filter(|line| !line.is_empty()).collect()
    }

    fn time(&self, time: f64) -> String {
        quantity(time, &self.time_unit)
    }

    fn headline(&self) -> String {
        let (makespan, p) = (self.metrics.makespan, f64::from(self.devices.max(1)));
        let idle = self.idle.total.idle / p;
        format!(
            "{}: an average device works {} and idles {} (bubble {}).",
            self.time(makespan),
            number(makespan - idle),
            number(idle),
            percent(self.metrics.bubble)
        )
    }

    /// Whether a cap was given; without, a device's own peak stands for it.
    fn is_capped(&self) -> bool {
        self.memory.iter().any(|curve| curve.cap.is_some())
    }

    /// What idle time is made of, most first.
    fn causes(&self) -> String {
        let (total, whole) = (&self.idle.total, f64::from(self.devices) * self.metrics.makespan);
        let memory = match self.is_capped() {
            true => "memory cap (a forward was ready, but above --memory-cap)",
            false => "own peak (a forward was ready, but above what the device ever holds)",
        };
        let mut causes = [
            (total.fill, "fill (before first ops)"),
            (total.drain, "drain (after last ops)"),
            (total.dependence, "dependence (waiting for ops elsewhere)"),
            (total.communication, "exposed communication (waiting for messages)"),
            (total.imbalance, "imbalance (waiting for slow stages)"),
            (total.memory, memory),
            (total.order, "order (a later op would have fitted)"),
        ];
        causes.sort_by(|one, other| other.0.total_cmp(&one.0));
        let named = causes.iter().take(NAMED).filter(|(time, _)| *time > LEAST * whole);
        let named: Vec<String> = named.map(|(time, what)| format!("{} {what}", percent(time / whole))).collect();
        let worst = (0..).zip(&self.idle.per_device).max_by(|(_, one), (_, other)| one.idle.total_cmp(&other.idle));
        let even = self.idle.per_device.windows(2).all(|pair| (pair[0].idle - pair[1].idle).abs() <= LEAST * whole);
        match (named.as_slice(), worst) {
            ([], _) | (_, None) => String::new(),
            (named, Some((device, worst))) if !even => {
                format!("Idle: {}; device {device} most of all, {}.", named.join(", "), number(worst.idle))
            }
            (named, _) => format!("Idle: {}.", named.join(", ")),
        }
    }

    /// Whether the same ops could be shorter in another order.
    fn bound(&self) -> String {
        let makespan = self.metrics.typical_speed.map_or(self.metrics.makespan, |typical| typical.makespan);
        let meaning = match self.bounds.best_name {
            "work" => "the busiest device's ops",
            "critical path" => "one micro-batch there and back, the critical path",
            "head + work + tail" => "head + work + tail: a device's ops and what must come before and after them",
            _ => "what fits within the memory cap",
        };
        let peaks = self.bounds_at_own_peaks.memory.unwrap_or(0.0);
        if makespan <= self.bounds.best * (1.0 + LEAST) {
            format!("No order of these ops is shorter (bound: {meaning}).")
        } else if makespan <= peaks * (1.0 + LEAST) {
            let best = self.time(self.bounds.best);
            format!(
                "No order of these ops in which no device holds more is shorter; with more, {best} at least ({meaning})."
            )
        } else {
            let best = self.bounds.best.max(peaks);
            let least = if peaks > self.bounds.best { "each device holding no more than here" } else { meaning };
            format!("Another order of these ops saves {} at most (bound: {least}).", percent(1.0 - best / makespan))
        }
    }

    fn schedules(&self) -> impl Iterator<Item = &Change> {
        self.advice.changes.iter().filter(|change| change.what == What::Schedule)
    }

    /// The most activations that others may hold: the cap, or as many as this schedule.
    fn fits(&self, change: &Change) -> bool {
        change.peak_activations <= self.advice.limit * (1.0 + 1e-9)
    }

    /// `name` (more of it).
    fn named(&self, change: &Change, with_peak: bool) -> String {
        let mut more = Vec::new();
        if with_peak || change.peak_activations < 0.9 * self.advice.limit {
            more.push(format!("holds {}", number(change.peak_activations)));
        }
        if change.weight_copies > 1 && self.advice.changes.iter().any(|other| other.weight_copies == 1) {
            more.push(format!("{} x the weights", change.weight_copies));
        }
        let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
        format!("`{}`{more}", change.change)
    }

    /// `A` and `B` take 25.5, 14 % less; ...
    fn list<'a>(&self, changes: impl Iterator<Item = &'a Change>, with_peak: bool) -> String {
        let mut groups: Vec<(&Change, Vec<String>)> = Vec::new();
        for change in changes {
            let name = self.named(change, with_peak);
            match groups.last_mut() {
                Some((first, names)) if (first.saves - change.saves).abs() <= LEAST / 10.0 => names.push(name),
                _ => groups.push((change, vec![name])),
            }
        }
        let group = |(at, (change, names)): (usize, &(&Change, Vec<String>))| {
            let more = names.len().saturating_sub(NAMED);
            let names = names.iter().take(NAMED).cloned().chain((more > 0).then(|| format!("{more} more")));
            let (names, verb) = joined(&names.collect::<Vec<_>>());
            let less = percent(change.saves);
            match at {
                0 => format!("{names} {verb} {}, {less} less", self.time(change.makespan)),
                _ => format!("{names} {less}"),
            }
        };
        groups.iter().take(GROUPS).enumerate().map(group).collect::<Vec<_>>().join("; ")
    }

    /// Other schedules that hold no more.
    fn within(&self) -> String {
        let limit = match self.is_capped() {
            true => format!("--memory-cap {}", number(self.advice.limit)),
            false => format!("its {}", activations(self.advice.limit)),
        };
        let fitting = || self.schedules().filter(|change| self.fits(change));
        let better: Vec<&Change> = fitting().filter(|change| change.saves > LEAST).collect();
        if better.is_empty() {
            let mut ties: Vec<&Change> = fitting().filter(|change| change.saves.abs() <= LEAST).collect();
            ties.sort_by(|one, other| one.peak_activations.total_cmp(&other.peak_activations));
            let ties: Vec<String> = ties.into_iter().take(NAMED).map(|change| self.named(change, false)).collect();
            let (names, verb) = joined(&ties);
            let ties = if ties.is_empty() { String::new() } else { format!("; {names} {verb} as long") };
            return format!("Within {limit}, no other schedule tried is shorter{ties}.");
        }
        format!("Within {limit}, {}.", self.list(better.into_iter(), false))
    }

    /// Other schedules that hold more.
    fn beyond(&self) -> String {
        let best = self.schedules().filter(|change| self.fits(change)).map(|change| change.saves).fold(0.0, f64::max);
        let larger = self.schedules().filter(|change| !self.fits(change) && change.saves > best + LEAST);
        let list = self.list(larger.take(1), true);
        let more = format!("ore than {} would", activations(self.advice.limit));
        if list.is_empty() { format!("M{more} not help.") } else { format!("M{more} help: {list}.") }
    }

    /// What else was tried, and what one percent is worth.
    fn others(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut useless: Vec<&str> = Vec::new();
        let mut seen = BTreeMap::new();
        for change in self.advice.changes.iter().filter(|change| change.what != What::Schedule) {
            let number_of_kind = seen.entry(change.what).or_insert(0);
            *number_of_kind += 1;
            if change.saves <= LEAST {
                useless.push(if change.what == What::Micro { "more micro-batches" } else { &change.change });
            } else if *number_of_kind == 1 {
                let each = if change.what == What::Micro { f64::from(change.microbatches.max(1)) } else { 1.0 };
                let makespan = self.time(change.makespan / each);
                parts.push(match change.what {
                    What::Micro => {
                        format!("`{}` takes {makespan} a micro-batch, {} less", change.change, percent(change.saves))
                    }
                    What::Split => format!("{} take {makespan}, {} less", change.change, percent(change.saves)),
                    What::Layers => format!("`{}` saves {}", change.change, percent(change.saves)),
                    _ => format!("{} would save {}", change.change, percent(change.saves)),
                });
            }
        }
        parts.extend(self.one_percent());
        useless.dedup();
        if !useless.is_empty() {
            parts.push(format!("{} would not help", useless.join(" and ")));
        }
        let text = parts.join("; ");
        let mut letters = text.chars();
        letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
    }

    /// What the most sensitive devices and communication are worth.
    fn one_percent(&self) -> Option<String> {
        let saving = |part: &Sensitivity| part.percent > 10.0 * LEAST;
        let devices = || self.sensitivities.iter().filter(|s| s.part.starts_with("device ") && saving(s));
        let best = devices().next()?.percent;
        let alike: Vec<&str> = devices()
            .filter(|s| (s.percent - best).abs() < LEAST)
            .filter_map(|s| s.part.strip_prefix("device "))
            .collect();
        Some(match alike.as_slice() {
            [one] => format!("a 1 % faster device {one} saves {best:.2} %"),
            all if all.len() == self.devices as usize => format!("any device 1 % faster saves {best:.2} %"),
            all if all.len() > 6 => format!("any of {} devices 1 % faster saves {best:.2} %", all.len()),
            [most @ .., last] => format!("1 % faster devices {} and {last} save {best:.2} % each", most.join(", ")),
            [] => return None,
        })
    }
}

/// `A takes`, `A and B take`, `A, B and C take`.
fn joined(names: &[String]) -> (String, &'static str) {
    match names {
        [one] => (one.clone(), "takes"),
        [most @ .., last] => (format!("{} and {last}", most.join(", ")), "take"),
        [] => (String::new(), "takes"),
    }
}

fn activations(units: f64) -> String {
    format!("{} activation{}", number(units), if units == 1.0 { "" } else { "s" })
}
