//! An explanation in sentences: what costs most, why, and what to try, with the number that trying it gives.

use super::StepExplanation;
use crate::advice::{Advice, Change, LEAST, What};
use pipesim_cost::pair::PairFigures;
use pipesim_report::{number, percent, quantity};
use pipesim_sim::{Sensitivity, SlowOps};

/// Most causes, and schedules of equal makespan, that are named.
const NAMED: usize = 3;
/// Most different makespans of other schedules.
const GROUPS: usize = 2;
/// Least share of the time for which a cause of idle time is named.
const LEAST_CAUSE: f64 = 0.000_5;
/// Largest difference of savings for which schedules are named together.
const ALIKE: f64 = 0.000_05;
const LISTED: usize = 6;

impl StepExplanation {
    /// Writes at most seven sentences, and of a measured step its own.
    pub(super) fn write(&self) -> Vec<String> {
        if let Some(measured) = &self.measured {
            return self.write_measured(measured);
        }
        let lines =
            [self.headline(), self.causes(), self.exposed(), self.bound(), self.within(), self.beyond(), self.others()];
        lines.into_iter().filter(|line| !line.is_empty()).collect()
    }

    pub(super) fn time(&self, time: f64) -> String {
        quantity(time, &self.time_unit)
    }

    pub(super) fn headline(&self) -> String {
        let (makespan, p) = (self.metrics.makespan, f64::from(self.devices.max(1)));
        let idle = self.idle.total.idle / p;
        format!(
            "{}: an average device works {} and idles {} (bubble {}).",
            self.time(makespan),
            number(makespan - idle),
            self.time(idle),
            percent(self.metrics.bubble)
        )
    }

    /// Whether a cap was given; otherwise a device's own peak counts as one.
    fn is_capped(&self) -> bool {
        self.memory.iter().any(|curve| curve.cap.is_some())
    }

    /// Names the main causes of idle time.
    pub(super) fn causes(&self) -> String {
        let (total, whole) = (&self.idle.total, f64::from(self.devices) * self.metrics.makespan);
        let memory = match self.is_capped() {
            true => "memory cap (a forward was ready, but above `memory-cap`)",
            false => "own peak (a forward was ready, but above what the device ever holds)",
        };
        let imbalance = match self.idle.slow {
            SlowOps::Stages => "imbalance (waiting for slow stages)",
            SlowOps::Slices => "imbalance (waiting for slices that take longer than others)",
            SlowOps::Both => "imbalance (waiting for slow stages and slices)",
        };
        let mut causes = [
            (total.fill, "fill (before first ops)"),
            (total.drain, "drain (after last ops)"),
            (total.dependence, "dependence (waiting for ops elsewhere)"),
            (total.communication, "exposed communication (waiting for messages)"),
            (total.imbalance, imbalance),
            (total.memory, memory),
            (total.order, "order (a later op would have fitted)"),
            (total.host, "host delays (all that an op needed was there)"),
            (total.straggler, "stragglers (waiting for ops that took longer than they do on average)"),
        ];
        causes.sort_by(|one, other| other.0.total_cmp(&one.0));
        let named = causes.iter().take(NAMED).filter(|(time, _)| *time > LEAST_CAUSE * whole);
        let mut words: Vec<String> = named.map(|(time, what)| format!("{} {what}", percent(time / whole))).collect();
        if words.is_empty() {
            return String::new();
        }
        let rest: f64 = causes.iter().skip(words.len()).map(|(time, _)| time).sum();
        words.extend((rest > LEAST_CAUSE * whole).then(|| format!("{} other causes", percent(rest / whole))));
        format!("Idle: {}{}.", words.join(", "), self.most_idle())
    }

    /// Adds a sentence on what pairs on two streams hide. The compute stream's waits inside of pairs count as work, not as idle
    /// time.
    fn exposed(&self) -> String {
        let sum =
            |of: fn(&PairFigures) -> u64| self.pairs.iter().map(|pair| (pair.count * of(pair)) as f64).sum::<f64>();
        let (exposed, communication) = (sum(|pair| pair.exposed_ns), sum(|pair| pair.communication_ns));
        if communication == 0.0 {
            return String::new();
        }
        let devices = f64::from(self.devices.max(1));
        format!(
            "Pairs hide {} of the experts' communication; for the rest an average device waits {} within its work.",
            percent(1.0 - (exposed / communication).min(1.0)),
            quantity(exposed / devices / 1e6, "ms")
        )
    }

    /// Names the devices that idle most, unless all idle alike.
    fn most_idle(&self) -> String {
        let idle = |device: usize| self.time(self.idle.per_device[device].idle);
        let all = 0..self.idle.per_device.len();
        let Some(worst) = all
            .clone()
            .max_by(|&one, &other| self.idle.per_device[one].idle.total_cmp(&self.idle.per_device[other].idle))
        else {
            return String::new();
        };
        let alike: Vec<String> =
            all.clone().filter(|&device| idle(device) == idle(worst)).map(|device| device.to_string()).collect();
        match alike.as_slice() {
            alike if alike.len() == all.len() => String::new(),
            [one] => format!("; device {one} most of all, {}", idle(worst)),
            alike if alike.len() > LISTED => format!("; {} devices most of all, {} each", alike.len(), idle(worst)),
            alike => format!("; devices {} most of all, {} each", joined(alike).0, idle(worst)),
        }
    }

    /// Says whether another order of the same ops could be shorter, with and without more memory.
    fn bound(&self) -> String {
        let makespan = self.bounded();
        let meaning = match self.bounds.best_name {
            "work" => "the busiest device's ops",
            "critical path" => "one micro-batch there and back, the critical path",
            "head + work + tail" => "head + work + tail: a device's ops and what must come before and after them",
            _ => "what fits within the memory cap",
        };
        let saves = |bound: f64| share(1.0 - bound / makespan);
        let (any, here) = (self.bounds.best, self.bound_here());
        let is_reached = |bound: f64| makespan <= bound * (1.0 + LEAST);
        let shorter = self.exact.as_ref().filter(|exact| exact.makespan < makespan * (1.0 - LEAST));
        if is_reached(any) {
            format!("No order of these ops is shorter (bound: {meaning}).")
        } else if let Some(exact) = shorter {
            let proof = if exact.optimal {
                "none is shorter".to_string()
            } else {
                format!("none saves more than {}", saves(here))
            };
            format!(
                "Another order of these ops{} in which no device holds more takes {}, {} less; {proof}. With more memory {} at most.",
                exact.of,
                self.time(exact.makespan),
                saves(exact.makespan),
                saves(any)
            )
        } else if is_reached(here) {
            let best = saves(any);
            format!(
                "No order of these ops is shorter if no device may hold more; with more memory, reordering saves at most {best} (bound: {meaning})."
            )
        } else if saves(here) == saves(any) {
            format!("Reordering these ops saves at most {} (bound: {meaning}).", saves(any))
        } else {
            format!(
                "Reordering these ops saves at most {} if no device may hold more, and at most {} otherwise (bound: {meaning}).",
                saves(here),
                saves(any)
            )
        }
    }

    /// Formats ``` `A` and `B` take 25.5, 14 % less; .. ```.
    fn list<'a>(&self, advice: &Advice, changes: impl Iterator<Item = &'a Change>, with_peak: bool) -> String {
        let mut groups: Vec<(&Change, Vec<String>)> = Vec::new();
        for change in changes {
            let name = advice.named(change, with_peak);
            match groups.last_mut() {
                Some((first, names)) if (first.saves - change.saves).abs() <= ALIKE => names.push(name),
                _ => groups.push((change, vec![name])),
            }
        }
        let group = |(at, (change, names)): (usize, &(&Change, Vec<String>))| {
            let more = names.len().saturating_sub(NAMED);
            let names = names.iter().take(NAMED).cloned().chain((more > 0).then(|| format!("{more} more")));
            let (names, verb) = joined(&names.collect::<Vec<_>>());
            let less = share(change.saves);
            match at {
                0 => format!("{names} {verb} {}, {less} less", self.time(change.makespan)),
                _ => format!("{names} {less}"),
            }
        };
        groups.iter().take(GROUPS).enumerate().map(group).collect::<Vec<_>>().join("; ")
    }

    /// Names other schedules that hold no more.
    pub(super) fn within(&self) -> String {
        let Some(advice) = &self.advice else { return String::new() };
        let limit = match self.is_capped() {
            true => format!("`memory-cap` {}", number(advice.limit)),
            false => format!("its {}", activations(advice.limit)),
        };
        let fitting = || advice.schedules().filter(|change| advice.fits(change) && change.fits != Some(false));
        let better: Vec<&Change> = fitting().filter(|change| change.saves > LEAST).collect();
        let peak = self.metrics.peak_activations();
        let above = if self.is_capped() && peak > advice.limit * (1.0 + LEAST) {
            format!("It holds {}, more than {limit}. ", activations(peak))
        } else {
            String::new()
        };
        if better.is_empty() {
            let mut ties: Vec<&Change> = fitting().filter(|change| change.saves.abs() <= LEAST).collect();
            ties.sort_by(|one, other| one.peak_activations.total_cmp(&other.peak_activations));
            let ties: Vec<String> = ties.into_iter().take(NAMED).map(|change| advice.named(change, false)).collect();
            let (names, verb) = joined(&ties);
            let ties = if ties.is_empty() { String::new() } else { format!("; {names} {verb} as long") };
            let shorter = |change: &&Change| advice.fits(change) && change.saves > LEAST;
            let mut hidden = advice.changes.iter().filter(shorter).filter(|change| change.what.kind() == "schedule");
            let tried = match hidden.next() {
                Some(change) if change.refused.is_some() => "that the framework runs",
                Some(_) => "that fits into memory",
                None => "tried",
            };
            return format!("{above}Within {limit}, no other schedule {tried} is shorter{ties}.");
        }
        format!("{above}Within {limit}, {}.", self.list(advice, better.into_iter(), false))
    }

    /// Names other schedules that hold more.
    pub(super) fn beyond(&self) -> String {
        let Some(advice) = &self.advice else { return String::new() };
        let best =
            advice.schedules().filter(|change| advice.fits(change)).map(|change| change.saves).fold(0.0, f64::max);
        let larger = advice.schedules().filter(|change| !advice.fits(change) && change.saves > best + LEAST);
        let (too_large, larger): (Vec<&Change>, Vec<&Change>) = larger.partition(|change| change.fits == Some(false));
        let limit = activations(advice.limit);
        let text = if let Some(first) = larger.first() {
            format!("More than {limit} would help: {}.", self.list(advice, std::iter::once(*first), true))
        } else if let Some(first) = too_large.first() {
            let (name, less) = (advice.named(first, true), share(first.saves));
            format!("More than {limit} would help, but no such schedule fits into memory; {name} would save {less}.")
        } else {
            format!("Holding more than {limit} makes no tried schedule shorter.")
        };
        text + &advice.out_of_reach()
    }

    /// Says what other changes and one percent of speed save.
    pub(super) fn others(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        let (mut useless, mut too_large): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let changes = self.advice.as_ref().map_or(&[][..], |advice| &advice.changes);
        let is_schedule = |change: &Change| matches!(change.what, What::Schedule(_));
        let rest = &changes[changes.partition_point(is_schedule)..];
        let rest: Vec<&Change> = rest.iter().filter(|change| change.refused.is_none()).collect();
        for changes in rest.chunk_by(|one, other| one.what.kind() == other.what.kind()) {
            let fits = |change: &&&Change| change.fits != Some(false);
            let Some(change) = changes.iter().filter(fits).find(|change| change.saves > LEAST) else {
                let (possible, large): (Vec<&Change>, Vec<&Change>) = changes.iter().partition(|change| fits(change));
                let names = |changes: Vec<&Change>| changes.iter().map(|change| change.what.to_string()).collect();
                useless.extend(
                    Some(names(possible)).filter(|names: &Vec<String>| !names.is_empty()).map(|names| joined(&names).0),
                );
                too_large.extend(names(large));
                continue;
            };
            let (name, less) = (&change.what, share(change.saves));
            let held = if change.order_held_fixed { " with the order held fixed" } else { "" };
            parts.push(match name {
                What::Micro(count) => {
                    let each = self.time(change.makespan / f64::from((*count).max(1)));
                    format!("{name} takes {each} a micro-batch, {less} less")
                }
                What::Split => format!("{name} take {}, {less} less", self.time(change.makespan)),
                What::Layers(_) | What::Balance => format!("{name} saves {less}"),
                _ => format!("{name} would save {less}{held}"),
            });
        }
        parts.extend(self.one_percent());
        if !useless.is_empty() {
            parts.push(format!("{} would not help", useless.join(" and ")));
        }
        if !too_large.is_empty() {
            parts.push(format!("{} would not fit into memory", joined(&too_large).0));
        }
        let text = parts.join("; ");
        let mut letters = text.chars();
        letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
    }

    /// Says what one percent of speed of the most sensitive devices saves.
    fn one_percent(&self) -> Option<String> {
        let saving = |part: &Sensitivity| part.percent >= 0.005;
        let devices = || self.sensitivities.list.iter().filter(|s| s.part.starts_with("device ") && saving(s));
        let best = devices().next()?.percent;
        let alike: Vec<&str> = devices()
            .filter(|s| format!("{:.2}", s.percent) == format!("{best:.2}"))
            .filter_map(|s| s.part.strip_prefix("device "))
            .collect();
        let held = if self.sensitivities.order_held_fixed { " with the order held fixed" } else { "" };
        Some(match alike.as_slice() {
            [one] => format!("a 1 % faster device {one} saves {best:.2} %{held}"),
            all if all.len() == self.devices as usize => format!("any device 1 % faster saves {best:.2} %{held}"),
            all if all.len() > LISTED => format!("any of {} devices 1 % faster saves {best:.2} %{held}", all.len()),
            [most @ .., last] => {
                format!("1 % faster devices {} and {last} save {best:.2} % each{held}", most.join(", "))
            }
            [] => return None,
        })
    }
}

impl Advice {
    fn schedules(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| matches!(change.what, What::Schedule(_)) && change.refused.is_none())
    }

    /// Says which schedule would save the most if the framework could follow it; nothing if another one saves as much.
    fn out_of_reach(&self) -> String {
        let best = self.schedules().map(|change| change.saves).fold(LEAST, f64::max);
        let schedules = self.changes.iter().filter(|change| matches!(change.what, What::Schedule(_)));
        let refused = schedules.filter_map(|change| Some((change, change.refused.as_ref()?)));
        let most = refused
            .filter(|(change, _)| change.fits != Some(false))
            .max_by(|one, other| one.0.saves.total_cmp(&other.0.saves));
        most.filter(|(change, _)| change.saves > best + LEAST).map_or_else(String::new, |(change, why)| {
            format!(
                " Of schedules that the framework lacks, {} would save {}: {why}.",
                self.named(change, true),
                share(change.saves)
            )
        })
    }

    /// Whether a schedule keeps the cap, or holds no more than the explained one.
    fn fits(&self, change: &Change) -> bool {
        change.peak_activations <= self.limit * (1.0 + 1e-9)
    }

    /// Formats a name with its memory: `zb-v (holds 4)`.
    fn named(&self, change: &Change, with_peak: bool) -> String {
        let mut more = Vec::new();
        if with_peak || change.peak_activations < 0.9 * self.limit {
            more.push(format!("holds {}", number(change.peak_activations)));
        }
        if change.weight_copies > 1 && self.changes.iter().any(|other| other.weight_copies == 1) {
            more.push(format!("{} x the weights", change.weight_copies));
        }
        let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
        format!("`{}`{more}", change.what)
    }
}

/// Formats a share of the makespan; a share that rounds to 0 is `less than 0.1 %`.
fn share(saved: f64) -> String {
    if saved > 0.0 && saved < 0.000_5 { "less than 0.1 %".to_string() } else { percent(saved) }
}

/// Joins names with their verb: `A takes`, `A, B and C take`.
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
