//! A threshold that a command's figures are held against: `bubble>15%`, `predicted.makespan>=100ms`, `|makespan_error|>5%`.

use crate::cost::TimeUnit;
use crate::metrics::Metrics;
use crate::nearest::{hint, nearest};
use crate::report::Entry;

/// A threshold on a figure.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    side: Option<Side>,
    figure: &'static Figure,
    /// Whether the sign of what is found counts.
    signed: bool,
    holds: Holds,
    value: f64,
    /// How the value was written.
    unit: Unit,
}

/// Whose figure: without one, what was measured where there is a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Predicted,
    Measured,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// As the figure itself is.
    Own,
    Percent,
    /// A time; the value is in ms.
    Time,
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In the timeline's unit.
    Time,
    /// A fraction: 0.15 is 15 %.
    Fraction,
    /// In hundredths: 15 is 15 %.
    Points,
    Number,
}

/// Where a figure is found.
#[derive(Debug)]
enum Read {
    /// In a timeline.
    Timeline(fn(&Metrics) -> Option<f64>),
    /// In a step with what ends it.
    Step(fn(&StepTimes) -> Option<f64>),
    /// In prediction and measurement together.
    Pair(fn(&Judged) -> Option<f64>),
    /// In a run.
    Run(fn(&Judged) -> Option<f64>),
}

#[derive(Debug)]
struct Figure {
    name: &'static str,
    kind: Kind,
    read: Read,
}

const fn of_timeline(name: &'static str, kind: Kind, read: fn(&Metrics) -> Option<f64>) -> Figure {
    Figure { name, kind, read: Read::Timeline(read) }
}

static FIGURES: [Figure; 13] = [
    of_timeline("makespan", Kind::Time, |m| Some(m.makespan)),
    of_timeline("span", Kind::Time, |m| Some(m.span)),
    of_timeline("bubble", Kind::Fraction, |m| Some(m.bubble)),
    of_timeline("span_bubble", Kind::Fraction, |m| Some(m.span_bubble)),
    of_timeline("bubble_over_ideal", Kind::Fraction, |m| Some(m.bubble_over_ideal)),
    of_timeline("efficiency", Kind::Fraction, |m| Some(m.efficiency)),
    of_timeline("gap_to_bound", Kind::Fraction, |m| m.gap()),
    of_timeline("peak_activations", Kind::Number, |m| Some(m.peak_activations())),
    Figure { name: "makespan_error", kind: Kind::Fraction, read: Read::Pair(|j| j.makespan_error) },
    Figure { name: "bubble_error", kind: Kind::Points, read: Read::Pair(|j| j.bubble_error) },
    Figure { name: "iteration", kind: Kind::Time, read: Read::Step(|step| step.iteration) },
    Figure { name: "period", kind: Kind::Time, read: Read::Step(|step| step.period) },
    Figure { name: "tokens_per_second", kind: Kind::Number, read: Read::Run(|j| j.tokens_per_second) },
];

/// Of what is found and what it is held against.
type Holds = fn(&f64, &f64) -> bool;

const OPERATORS: [(&str, Holds); 4] = [(">=", f64::ge), ("<=", f64::le), (">", f64::gt), ("<", f64::lt)];

/// Units of time, in ms; what another ends with comes after it.
const TIMES: [(&str, f64); 8] =
    [("ns", 1e-6), ("us", 1e-3), ("µs", 1e-3), ("μs", 1e-3), ("ms", 1.0), ("min", 60e3), ("s", 1e3), ("h", 3600e3)];

/// How a threshold ends for one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The schedule has no such figure.
    Unknown,
    /// It does not hold.
    Passes,
    /// It holds: what was found, in words.
    Holds(String),
}

/// A step with what ends it, in the unit of its timeline; none where that is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTimes {
    /// Of a measurement the median.
    pub iteration: Option<f64>,
    /// The same, where steps follow each other without a barrier.
    pub period: Option<f64>,
}

/// What is found of one schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged<'a> {
    /// Its name.
    pub name: &'a str,
    /// Unit of its times: `unit`, or one of time.
    pub time_unit: &'a str,
    /// Figures of the prediction.
    pub predicted: Option<&'a Metrics>,
    /// Figures of the measurement.
    pub measured: Option<&'a Metrics>,
    /// Predicted / measured - 1.
    pub makespan_error: Option<f64>,
    /// Predicted - measured, in points.
    pub bubble_error: Option<f64>,
    /// A predicted step.
    pub predicted_step: StepTimes,
    /// A measured step.
    pub measured_step: StepTimes,
    /// Of the median step.
    pub tokens_per_second: Option<f64>,
}

impl<'a> Judged<'a> {
    /// A prediction.
    pub fn predicted(name: &'a str, time_unit: &'a str, metrics: &'a Metrics) -> Judged<'a> {
        Judged { name, time_unit, predicted: Some(metrics), ..Judged::default() }
    }

    /// What a report holds of one schedule.
    pub fn entry(entry: &'a Entry) -> Judged<'a> {
        Judged {
            name: &entry.name,
            time_unit: entry.panels().next().map_or("", |panel| &panel.timeline.time_unit),
            predicted: entry.predicted.as_ref().map(|panel| &panel.metrics),
            measured: entry.measured.as_ref().map(|panel| &panel.metrics),
            makespan_error: entry.error.as_ref().map(|error| error.makespan),
            bubble_error: entry.error.as_ref().map(|error| error.bubble),
            ..Judged::default()
        }
    }
}

/// What a command can judge, told before it works.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    /// Predictions in this unit of time, and whether what ends a step may be known.
    Predictions { unit: &'static str, whole_steps: bool },
    /// Predictions and runs, in ms; whether anything is trained.
    Runs { trains: bool },
}

/// What `--fail-if` takes.
pub fn help() -> String {
    let names = |wanted: fn(&Read) -> bool| {
        let names: Vec<&str> = FIGURES.iter().filter(|figure| wanted(&figure.read)).map(|figure| figure.name).collect();
        names.join(", ")
    };
    format!(
        "Exit with code 4 where this holds for a schedule: a figure, one of > >= < <=, and a number: 'bubble>15%', 'makespan>=100ms', \
         'predicted.span>40', '|makespan_error|>5%'; repeatable. Figures: {}; of prediction against measurement (run, compare; above 0 \
         where too much was predicted): {}; of steps with what ends them (run, predict --profile): {}; of run: {}. What was measured is judged where there is a measurement, unless predicted. \
         stands before the figure",
        names(|read| matches!(read, Read::Timeline(_))),
        names(|read| matches!(read, Read::Pair(_))),
        names(|read| matches!(read, Read::Step(_))),
        names(|read| matches!(read, Read::Run(_)))
    )
}

impl Condition {
    /// The threshold that `text` is.
    pub fn parse(text: &str) -> Result<Condition, String> {
        let (begin, end) = match text.find(['<', '>', '=', '!']) {
            Some(begin) => (begin, begin + text[begin..].chars().take_while(|c| "<>=!".contains(*c)).count()),
            None => (text.len(), text.len()),
        };
        let (left, operator, right) = (text[..begin].trim(), &text[begin..end], text[end..].trim());
        let known = OPERATORS.into_iter().find(|(name, _)| *name == operator);
        let Some((_, holds)) = known else {
            return Err(format!(
                "expected a figure, one of > >= < <=, and a number, as in 'bubble>0.15', found '{text}'"
            ));
        };
        let (left, signed) = match left.strip_prefix('|').and_then(|left| left.strip_suffix('|')) {
            Some(inside) => (inside.trim(), false),
            None => (left, true),
        };
        let (side, name) = match left.split_once('.') {
            Some(("predicted", name)) => (Some(Side::Predicted), name),
            Some(("measured", name)) => (Some(Side::Measured), name),
            _ => (None, left),
        };
        let figure = figure(name)?;
        if side.is_some() && matches!(figure.read, Read::Pair(_) | Read::Run(_)) {
            return Err(format!("{name} is of prediction and measurement together, or of a run; write {name} alone"));
        }
        let (value, unit) = value(right, figure)?;
        Ok(Condition { text: text.to_string(), side, figure, signed, holds, value, unit })
    }

    /// Refuses what can never be judged within `scope`.
    pub fn refuse(&self, scope: Scope) -> Result<(), String> {
        let name = self.figure.name;
        let what = match (scope, &self.figure.read) {
            (Scope::Predictions { .. }, Read::Pair(_) | Read::Run(_)) => {
                format!("nothing is measured here that {name} could be of; pipesim run measures")
            }
            (Scope::Predictions { .. }, _) if self.side == Some(Side::Measured) => {
                "nothing is measured here; leave measured. out, or use pipesim run".to_string()
            }
            (Scope::Predictions { whole_steps: false, .. }, Read::Step(_)) => {
                format!(
                    "nothing is known here of what ends a step, that {name} takes in; pipesim predict --profile knows"
                )
            }
            (Scope::Runs { trains: false }, Read::Run(_)) => {
                "timed devices train no tokens; judge iteration".to_string()
            }
            (Scope::Predictions { unit, .. }, _) => return self.fits_unit(unit),
            _ => return Ok(()),
        };
        Err(format!("--fail-if '{}': {what}", self.text))
    }

    fn fits_unit(&self, unit: &str) -> Result<(), String> {
        if self.unit != Unit::Time || TimeUnit::named(unit).is_some() {
            return Ok(());
        }
        Err(format!(
            "--fail-if '{}': the timeline counts units of --costs, not seconds; give a number without a unit, or costs with one, as in F=2ms",
            self.text
        ))
    }

    /// Whether it holds of `judged`.
    ///
    /// # Errors
    /// Its unit is not the timeline's.
    pub fn found_in(&self, judged: &Judged) -> Result<Verdict, String> {
        let (whose, found) = match &self.figure.read {
            Read::Timeline(read) => {
                let found = self.asked(judged.measured, judged.predicted);
                found.map_or(("", None), |(whose, metrics)| (whose, read(metrics)))
            }
            Read::Step(read) => {
                let found = self.asked(read(&judged.measured_step), read(&judged.predicted_step));
                found.map_or(("", None), |(whose, time)| (whose, Some(time)))
            }
            Read::Pair(read) => ("", read(judged)),
            Read::Run(read) => ("measured ", read(judged)),
        };
        let Some(found) = found else { return Ok(Verdict::Unknown) };
        let time_unit = judged.time_unit;
        self.fits_unit(time_unit)?;
        let ms = TimeUnit::named(time_unit).filter(|_| self.unit == Unit::Time).map_or(1.0, TimeUnit::ms);
        let size = ms * if self.signed { found } else { found.abs() };
        if !(self.holds)(&size, &self.value) {
            return Ok(Verdict::Passes);
        }
        let (name, shown) = (self.figure.name, self.shown(found, time_unit));
        Ok(Verdict::Holds(format!("{} holds: {whose}{name} = {shown}", self.text)))
    }

    /// What was measured, where there is that, unless a side is named; with whose it is, in words.
    fn asked<T>(&self, measured: Option<T>, predicted: Option<T>) -> Option<(&'static str, T)> {
        let both = [(Side::Measured, "measured ", measured), (Side::Predicted, "predicted ", predicted)];
        let mut asked = both.into_iter().filter(|(side, ..)| self.side.is_none_or(|wanted| wanted == *side));
        asked.find_map(|(_, whose, found)| Some((whose, found?)))
    }

    /// What was found, as the threshold was written.
    fn shown(&self, found: f64, time_unit: &str) -> String {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        match (self.figure.kind, self.unit) {
            (Kind::Fraction, Unit::Percent) => format!("{} %", rounded(100.0 * found)),
            (Kind::Points, _) => format!("{} points", rounded(found)),
            (Kind::Time, _) if TimeUnit::named(time_unit).is_some() => format!("{found} {time_unit}"),
            _ => found.to_string(),
        }
    }

    /// Why no schedule has its figure.
    pub fn nowhere(&self) -> String {
        format!("--fail-if '{}': no schedule here has such a figure; leave it out", self.text)
    }
}

/// The figure of that name.
fn figure(name: &str) -> Result<&'static Figure, String> {
    let found = FIGURES.iter().find(|figure| figure.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        format!("no figure is called '{name}'{}; expected one of {}", hint(&nearest(name, &names)), names.join(", "))
    })
}

/// The number, in the figure's own measure or in ms, and how it was written.
fn value(text: &str, figure: &Figure) -> Result<(f64, Unit), String> {
    let time = TIMES.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, Unit::Time, *ms)));
    let percent =
        || Some((text.strip_suffix('%')?, Unit::Percent, if figure.kind == Kind::Points { 1.0 } else { 0.01 }));
    let (digits, unit, factor) = time.or_else(percent).unwrap_or((text, Unit::Own, 1.0));
    let name = figure.name;
    match (unit, figure.kind) {
        (Unit::Percent, Kind::Time | Kind::Number) => {
            return Err(format!("{name} is no share, found '{text}'; leave % out"));
        }
        (Unit::Time, Kind::Fraction | Kind::Points | Kind::Number) => {
            return Err(format!("{name} is no time, found '{text}'; leave the unit out"));
        }
        _ => {}
    }
    let number = digits.trim().parse::<f64>().ok().filter(|value| value.is_finite());
    let number = number.ok_or_else(|| {
        let example = match figure.kind {
            Kind::Time => "40 or 100ms",
            Kind::Fraction | Kind::Points => "0.15 or 15%",
            Kind::Number => "8",
        };
        format!("expected a finite number for {name}, as in {example}, found '{text}'")
    })?;
    let share = ["bubble", "span_bubble", "efficiency"].contains(&name);
    if share && number * factor > 1.0 {
        return Err(format!("{name} is a share of at most 1, found '{text}'; write {number}% if that is meant"));
    }
    Ok((number * factor, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_their_units() {
        let read = |text: &str| Condition::parse(text).map(|c| (c.figure.name, c.value));
        assert_eq!(read("bubble > 15 %"), Ok(("bubble", 0.15)));
        assert_eq!(read("bubble_error>2%"), Ok(("bubble_error", 2.0)));
        assert_eq!(read("measured.makespan>=1.5s"), Ok(("makespan", 1500.0)));
        assert_eq!(read("iteration<100ms"), Ok(("iteration", 100.0)));
        assert_eq!(read("predicted.period<100ms"), Ok(("period", 100.0)));
        assert_eq!(read("|makespan_error|>5%"), Ok(("makespan_error", 0.05)));
        assert_eq!(read("makespan_error<-5%"), Ok(("makespan_error", -0.05)));
    }

    #[test]
    fn what_is_no_threshold_is_refused_with_the_reason() {
        for (text, part) in [
            ("", "as in 'bubble>0.15'"),
            (" ", "as in 'bubble>0.15'"),
            ("bubble", "one of > >= < <="),
            ("bubble=0.1", "one of > >= < <="),
            ("bubble==0.1", "one of > >= < <="),
            ("bubble=>0.1", "one of > >= < <="),
            ("bubble!=0.1", "one of > >= < <="),
            ("0.1<bubble<0.2", "no figure is called '0.1'"),
            ("bubble>", "finite number for bubble"),
            ("bubble>nan", "finite number"),
            ("bubble>-inf", "finite number"),
            ("bubble>1e400", "finite number"),
            ("bubble>0,15", "finite number"),
            ("bubble>15%%", "finite number"),
            ("bubble>100ms", "no time"),
            ("peak_activations>8%", "no share"),
            ("makespan>10%", "no share"),
            ("Bubble>0.1", "did you mean bubble?"),
            ("buble>0.1", "did you mean bubble?"),
            ("span-bubble>0.1", "did you mean span_bubble?"),
            ("speed>1", "expected one of makespan"),
            ("measured.tokens_per_second>1", "write tokens_per_second alone"),
            ("predicted.bubble_error>1", "write bubble_error alone"),
            ("meassured.bubble>1", "no figure is called"),
        ] {
            let refused = Condition::parse(text).expect_err(text);
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
