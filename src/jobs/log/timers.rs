//! Timers that frameworks print.

use super::number::{leading, value};
use super::steps::{Weighted, quantile};
use crate::measurement::Timer;
use std::collections::BTreeMap;

/// Most names of timers.
const NAMES: usize = 200;
/// Most printed values of a timer that are kept, the last ones.
const VALUES: usize = 4096;

/// Printed timers. The first print of each is dropped if there are others, as it has the first step.
#[derive(Default)]
pub(super) struct Timers {
    prints: BTreeMap<String, Vec<[f32; 2]>>,
    /// The name that lines of single ranks belong to, and whether one was read.
    name: Option<(String, bool)>,
}

impl Timers {
    /// Reads a line in one of the forms: `NAME ....: (MIN, MAX)`, `NAME ....: MAX`, `rank N: VALUE` after `NAME:`, and
    /// `time (ms) | NAME: VALUE | NAME: VALUE`.
    pub(super) fn read(&mut self, line: &str) {
        if let Some((_, list)) = line.split_once("time (ms) |") {
            for entry in list.split('|') {
                if let Some((name, rest)) = entry.split_once(':')
                    && let Some((ms, _)) = leading(rest)
                {
                    self.push(name.trim(), [ms, ms]);
                }
            }
        } else if let Some((name, rest)) = line.split_once("..: ") {
            let name = name.trim_end_matches('.').trim_end();
            let name = name.rsplit_once(' ').map_or(name, |(_, last)| last);
            let both = rest.strip_prefix('(').and_then(leading).and_then(|(min, rest)| {
                let (max, rest) = leading(rest.strip_prefix(',')?)?;
                rest.starts_with(')').then_some([min, max])
            });
            if let Some(times) =
                both.or_else(|| leading(rest).filter(|(_, rest)| rest.trim().is_empty()).map(|(ms, _)| [ms, ms]))
            {
                self.push(name, times);
            }
        } else if let Some((_, rest)) = line.rsplit_once("    rank ") {
            if let Some((_, rest)) = leading(rest)
                && let Some(ms) = value(rest, ": ")
            {
                self.rank(ms);
            }
        } else if let Some(name) = line.trim_end().strip_suffix(':')
            && let Some((before, name)) = name.rsplit_once("  ")
            && !before.contains(|c: char| c.is_alphabetic())
        {
            self.name = is_name(name).then(|| (name.to_string(), false));
        }
    }

    fn rank(&mut self, ms: f64) {
        let Some((name, begun)) = self.name.clone() else { return };
        match self.prints.get_mut(&name).and_then(|prints| prints.last_mut()).filter(|_| begun) {
            Some([min, max]) => (*min, *max) = (min.min(ms as f32), max.max(ms as f32)),
            None => self.push(&name, [ms, ms]),
        }
        self.name = Some((name, true));
    }

    fn push(&mut self, name: &str, [min, max]: [f64; 2]) {
        let known = self.prints.contains_key(name);
        let sensible = min >= 0.0 && max >= min && max < 1e9;
        if !sensible || !(known || is_name(name) && self.prints.len() < NAMES) {
            return;
        }
        let prints = self.prints.entry(name.to_string()).or_default();
        if prints.len() == VALUES {
            prints.drain(..VALUES / 2);
        }
        prints.push([min as f32, max as f32]);
    }

    /// Returns the medians.
    pub(super) fn medians(&self) -> BTreeMap<String, Timer> {
        let median = |prints: &[[f32; 2]], which: usize| {
            let counted = &prints[usize::from(prints.len() > 1)..];
            quantile(
                &mut counted.iter().map(|times| Weighted { value: times[which], weight: 1 }).collect::<Vec<_>>(),
                0.5,
            )
        };
        let of = |prints: &Vec<[f32; 2]>| Timer { min_ms: median(prints, 0), max_ms: median(prints, 1) };
        self.prints.iter().map(|(name, prints)| (name.clone(), of(prints))).collect()
    }
}

fn is_name(name: &str) -> bool {
    (2..=80).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/'))
}
