//! The time axis: which parts of a timeline are visible, and where a time is on it.

use crate::number::spacing;
use crate::scene::repeat::{Repeat, steady};
use crate::{Panel, Report};
use pipesim_schedule::timeline::Queue;

/// The visible time of one panel, mapped to 0 to 1.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Start and end of each visible part, in ns, in order.
    parts: Vec<(u64, u64)>,
    /// Width of the mark between two parts, in ns.
    gap: f64,
    /// Width of the whole axis, in ns.
    length: f64,
    /// The steady state that is drawn once, if there are two parts.
    pub repeat: Option<Repeat>,
    /// Mean duration of an op, in ns.
    typical: f64,
    end_ns: u64,
}

impl Axis {
    /// The visible part of `panel`: a window in ns, or everything but the repeats of the steady state.
    fn of(panel: &Panel, window: Option<(u64, u64)>, repeat: Option<Repeat>) -> Axis {
        let (end_ns, typical) = (panel.timeline.end_ns(), typical_op(panel));
        let parts = match (window, repeat) {
            (Some(window), _) => vec![window],
            (None, Some(repeat)) => vec![(0, repeat.hidden().0), (repeat.hidden().1, end_ns)],
            (None, None) => vec![(0, end_ns)],
        };
        Axis { parts, gap: 0.0, length: 1.0, repeat: repeat.filter(|_| window.is_none()), typical, end_ns }
    }

    /// Visible nanoseconds, without marks.
    fn shown(&self) -> f64 {
        self.parts.iter().map(|(from, to)| (to - from) as f64).sum()
    }

    /// Visible nanoseconds, with marks.
    fn taken(&self) -> f64 {
        self.shown() + self.gap * self.parts.len().saturating_sub(1) as f64
    }

    /// Returns the position of a time: 0 to 1 if visible, beyond 1 after the axis ends. Hidden times are at the cut.
    pub fn place(&self, ns: u64) -> f64 {
        let mut left = 0.0;
        for (number, &(from, to)) in self.parts.iter().enumerate() {
            if ns <= to || number + 1 == self.parts.len() {
                return (left + ns.saturating_sub(from) as f64) / self.length;
            }
            if ns < self.parts[number + 1].0 {
                return (left + (to - from) as f64) / self.length;
            }
            left += (to - from) as f64 + self.gap;
        }
        0.0
    }

    pub fn parts(&self) -> impl Iterator<Item = Part> {
        let mut left = 0.0;
        self.parts.iter().filter_map(move |&(from, to)| {
            let room = (self.length - left).max(0.0);
            let part = Part { from, to, left: left / self.length, length: self.length };
            left += (to - from) as f64 + self.gap;
            // The last part may be cut at the end of the axis.
            let to = if (to - from) as f64 > room { from.saturating_add(room.round() as u64) } else { to };
            (room > 0.0).then_some(Part { to, ..part })
        })
    }

    /// Returns the left and right edges of the visible pieces of an interval.
    pub fn seen(&self, start: u64, end: u64) -> impl Iterator<Item = (f64, f64)> {
        self.parts().filter_map(move |part| part.inside(start, end))
    }

    /// Returns the left and right edge of the mark for hidden time.
    pub fn mark(&self) -> Option<(f64, f64)> {
        let (_, to) = *self.parts.first().filter(|_| self.parts.len() > 1)?;
        let left = self.place(to);
        (left < 1.0).then(|| (left, left + self.gap / self.length))
    }

    /// Returns where the axis ends: at 1, or if it has a cut, at the panel's end.
    pub fn end(&self) -> f64 {
        if self.parts.len() > 1 { self.place(self.end_ns).min(1.0) } else { 1.0 }
    }

    /// Returns the largest width that a duration can have.
    pub fn width(&self, ns: u64) -> f64 {
        ns as f64 / self.length
    }

    /// Returns the mean width of the panel's pipeline ops.
    pub fn typical(&self) -> f64 {
        self.typical / self.length
    }

    /// Whether the panel goes on after the axis ends.
    pub fn goes_on(&self) -> bool {
        self.place(self.end_ns) > 1.0 + 1e-9
    }

    /// Whether the panel begins before the axis.
    pub fn began(&self) -> bool {
        self.parts.first().is_some_and(|&(from, _)| from > 0)
    }

    /// Returns about `count` ticks at multiples of 1, 2 or 5 times a power of ten: position and time in `panel`'s unit;
    /// and the decimals of their labels.
    pub fn ticks(&self, panel: &Panel, count: usize) -> (Vec<(f64, f64)>, usize) {
        let unit = panel.timeline.unit_ns.max(1) as f64;
        let (step, decimals) = spacing(self.length / unit, count);
        let mut ticks = Vec::new();
        let mut left = 0.0;
        for &(from, to) in &self.parts {
            // The axis may be longer than its only part; times after a cut say nothing behind the end.
            let last = self.parts.len() == 1;
            let room = if last { self.length - left } else { (to - from) as f64 }.min(self.length - left);
            let (from, to) = (from as f64 / unit, (from as f64 + room) / unit);
            let first = (from / step - 1e-9).ceil();
            let most = (to / step + 1e-9).floor() - first;
            for i in 0..=most.clamp(-1.0, 1000.0) as i64 {
                let value = (first + i as f64) * step;
                ticks.push(((left + (value - from) * unit) / self.length, value));
            }
            left += room + self.gap;
        }
        (ticks, decimals)
    }
}

/// A contiguous visible part of the time.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Start, in ns.
    pub from: u64,
    /// End, in ns.
    pub to: u64,
    /// Left edge on the axis.
    left: f64,
    /// Width of the whole axis, in ns.
    length: f64,
}

impl Part {
    /// Returns the left and right edge of the visible piece of an interval, if any is visible.
    pub fn inside(&self, start: u64, end: u64) -> Option<(f64, f64)> {
        if start >= self.to || end <= self.from || start >= end {
            return None;
        }
        let at = |ns: u64| self.left + (ns.clamp(self.from, self.to) - self.from) as f64 / self.length;
        Some((at(start), at(end)))
    }
}

/// The time scale that all panels of one time unit share.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Latest visible time by unit.
    ends: Vec<(String, f64)>,
    axes: Vec<Vec<Axis>>,
}

impl Scale {
    /// Returns a scale that shows everything.
    pub fn of_all(report: &Report, room: f64, target: f64) -> Scale {
        let axes =
            report.entries.iter().map(|e| e.panels().map(|panel| Axis::of(panel, None, None)).collect()).collect();
        Scale::shared(report, axes, None, room, target, 0.0)
    }

    /// Returns a scale on which an op is at least `target` wide if possible, on an axis `room` wide whose marks of
    /// hidden time are `gap` wide. A schedule that takes more than twice the shortest's time is cut for that at the end
    /// of the others if the look allows it; a window is never cut.
    pub fn readable(report: &Report, room: f64, target: f64, gap: f64) -> Scale {
        let look = &report.look;
        let axes = report.entries.iter().map(|entry| {
            let mut repeats =
                entry.panels().map(|panel| Some(panel).filter(|_| look.collapse).and_then(|p| steady(&p.timeline)));
            let first = repeats.next().flatten().filter(|first| repeats.all(|other| other == Some(*first)));
            entry.panels().map(|panel| Axis::of(panel, None, first)).collect()
        });
        Scale::shared(report, axes.collect(), look.window, room, target, gap)
    }

    fn shared(
        report: &Report,
        mut axes: Vec<Vec<Axis>>,
        window: Option<(f64, f64)>,
        room: f64,
        target: f64,
        gap: f64,
    ) -> Scale {
        let mut ends: Vec<(String, f64)> = Vec::new();
        let panels = || {
            report
                .entries
                .iter()
                .enumerate()
                .flat_map(|(e, entry)| entry.panels().enumerate().map(move |(i, p)| (e, i, p)))
        };
        for (_, _, panel) in panels() {
            let unit = &panel.timeline.time_unit;
            if ends.iter().all(|(name, _)| name != unit) {
                ends.push((unit.clone(), 0.0));
            }
        }
        for (unit, end) in &mut ends {
            let of_unit: Vec<(usize, usize, &Panel)> =
                panels().filter(|(_, _, p)| p.timeline.time_unit == *unit).collect();
            let ns = |panel: &Panel| panel.timeline.unit_ns.max(1) as f64;
            let longest = of_unit.iter().map(|(_, _, panel)| panel.iteration()).fold(0.0, f64::max);
            for &(e, i, panel) in &of_unit {
                if let Some((from, to)) = window {
                    let to = if to.is_finite() { to } else { longest.max(from) };
                    let whole = |units: f64| (units * ns(panel)).round() as u64;
                    axes[e][i] = Axis::of(panel, Some((whole(from), whole(to).max(whole(from)))), None);
                }
            }
            // The longest of each entry, in units.
            let in_units = |of: &dyn Fn(&Axis) -> f64, axes: &[Vec<Axis>]| -> Vec<f64> {
                let mut by_entry: Vec<(usize, f64)> = Vec::new();
                for &(e, i, panel) in &of_unit {
                    let units = of(&axes[e][i]) / ns(panel);
                    match by_entry.last_mut() {
                        Some(last) if last.0 == e => last.1 = last.1.max(units),
                        _ => by_entry.push((e, units)),
                    }
                }
                by_entry.into_iter().map(|(_, units)| units).collect()
            };
            let op = of_unit.iter().map(|&(e, i, panel)| axes[e][i].typical / ns(panel)).fold(f64::INFINITY, f64::min);
            let most = in_units(&Axis::shown, &axes).into_iter().fold(0.0, f64::max);
            for &(e, i, panel) in &of_unit {
                axes[e][i].gap = if gap > 0.0 { most * ns(panel) * gap / (room - gap).max(gap) } else { 0.0 };
            }
            let taken = in_units(&Axis::taken, &axes);
            let shown = match window {
                Some(_) => most,
                None if !report.look.cut || gap > 0.0 && report.look.collapse => taken.into_iter().fold(0.0, f64::max),
                None => readable(&taken, op, room, target),
            };
            *end = shown;
            for &(e, i, panel) in &of_unit {
                axes[e][i].length = if shown > 0.0 { shown * ns(panel) } else { 1.0 };
            }
        }
        Scale { ends, axes }
    }

    pub fn axes(&self, entry: usize) -> &[Axis] {
        &self.axes[entry]
    }

    /// Returns the latest visible time in `panel`'s unit, always above 0.
    pub fn end(&self, panel: &Panel) -> f64 {
        let end = self.ends.iter().find(|(unit, _)| *unit == panel.timeline.time_unit).map_or(0.0, |&(_, end)| end);
        if end > 0.0 { end } else { 1.0 / panel.timeline.unit_ns.max(1) as f64 }
    }

    /// Whether panels have different time units, which cannot share a scale.
    pub fn is_mixed(&self) -> bool {
        self.ends.len() > 1
    }
}

/// Returns the time to show of schedules that take `times`, with ops of `op`.
fn readable(times: &[f64], op: f64, room: f64, target: f64) -> f64 {
    let longest = times.iter().copied().fold(0.0, f64::max);
    let shortest = times.iter().copied().filter(|&time| time > 0.0).fold(f64::INFINITY, f64::min);
    if op * room / longest >= target || !op.is_finite() || longest <= 2.0 * shortest {
        return longest;
    }
    times.iter().copied().filter(|&time| time <= 2.0 * shortest).fold(0.0, f64::max)
}

/// Mean duration of a panel's pipeline ops, in ns.
fn typical_op(panel: &Panel) -> f64 {
    let (mut sum, mut count) = (0.0, 0u32);
    for span in panel.timeline.spans.iter().filter(|span| span.queue == Queue::Compute) {
        sum += (span.end_ns - span.start_ns.min(span.end_ns)) as f64;
        count += 1;
    }
    if count == 0 { f64::INFINITY } else { sum / f64::from(count) }
}
