//! `--fail-if`: thresholds on figures, as `bubble>15%`, `predicted.makespan>=100ms`, `|makespan_error|>5%`.

use crate::cli::Failure;
use clap::Args;
use pipesim_cost::TimeUnit;
use pipesim_report::Entry;
use pipesim_schedule::metrics::Metrics;
use pipesim_schedule::nearest::{hint, nearest};

/// Thresholds that end the program with exit code 4.
#[derive(Args, Clone, Debug, Default)]
pub struct ThresholdOptions {
    /// Thresholds
    #[arg(long, value_name = "CONDITION", value_parser = Threshold::parse, help = help())]
    pub fail_if: Vec<Threshold>,
}

#[derive(Clone, Debug)]
pub struct Threshold {
    text: String,
    /// Without one, the measurement's figure if there is a measurement, else the prediction's.
    side: Option<Side>,
    figure: Figure,
    /// Whether the figure is written between bars: `|makespan_error|`.
    is_absolute: bool,
    holds: Holds,
    value: f64,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Predicted,
    Measured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// In the figure's own unit.
    Own,
    Percent,
    /// A time, converted to ms.
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FigureKind {
    /// In the timeline's unit.
    Time,
    /// 0.15 is 15 %.
    Fraction,
    /// 15 is 15 %.
    Points,
    Number,
}

/// What a figure belongs to, which decides the verbs that know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Timeline,
    /// A whole step, including gradient reduction and optimizer.
    Step,
    /// Prediction and measurement together.
    Pair,
    Run,
}

/// Name, kind and owner of a figure.
type Figure = (&'static str, FigureKind, Of);

const FIGURES: [Figure; 13] = [
    ("makespan", FigureKind::Time, Of::Timeline),
    ("span", FigureKind::Time, Of::Timeline),
    ("bubble", FigureKind::Fraction, Of::Timeline),
    ("span_bubble", FigureKind::Fraction, Of::Timeline),
    ("bubble_over_ideal", FigureKind::Fraction, Of::Timeline),
    ("efficiency", FigureKind::Fraction, Of::Timeline),
    ("gap_to_bound", FigureKind::Fraction, Of::Timeline),
    ("peak_activations", FigureKind::Number, Of::Timeline),
    ("makespan_error", FigureKind::Fraction, Of::Pair),
    ("bubble_error", FigureKind::Points, Of::Pair),
    ("iteration", FigureKind::Time, Of::Step),
    ("period", FigureKind::Time, Of::Step),
    ("tokens_per_second", FigureKind::Number, Of::Run),
];

/// Compares the figure found with the threshold.
type Holds = fn(&f64, &f64) -> bool;

const OPERATORS: [(&str, Holds); 4] = [(">=", f64::ge), ("<=", f64::le), (">", f64::gt), ("<", f64::lt)];

/// Units of time in ms; a unit comes before its suffixes.
const TIMES: [(&str, f64); 8] =
    [("ns", 1e-6), ("us", 1e-3), ("µs", 1e-3), ("μs", 1e-3), ("ms", 1.0), ("min", 60e3), ("s", 1e3), ("h", 3600e3)];

#[derive(Clone, Debug)]
pub struct Figures<'a> {
    schedule: &'a str,
    /// `unit` or a unit of time.
    time_unit: &'a str,
    /// Figures by name; figures of prediction and measurement together count as measured.
    values: Vec<(Side, &'static str, f64)>,
}

impl<'a> Figures<'a> {
    pub fn new(schedule: &'a str, time_unit: &'a str) -> Figures<'a> {
        Figures { schedule, time_unit, values: Vec::new() }
    }

    pub fn of_entry(entry: &'a Entry) -> Figures<'a> {
        let unit = entry.panels().next().map_or("", |panel| &panel.timeline.time_unit);
        let mut figures = Figures::new(&entry.name, unit);
        for (side, panel) in [(Side::Predicted, &entry.predicted), (Side::Measured, &entry.measured)] {
            if let Some(panel) = panel {
                figures = figures.with_metrics(side, &panel.metrics);
            }
        }
        let error = entry.error.as_ref();
        figures.with(Side::Measured, "makespan_error", error.map(|error| error.makespan)).with(
            Side::Measured,
            "bubble_error",
            error.map(|error| error.bubble),
        )
    }

    pub fn with(mut self, side: Side, name: &'static str, value: Option<f64>) -> Figures<'a> {
        self.values.extend(value.map(|value| (side, name, value)));
        self
    }

    pub fn with_metrics(self, side: Side, m: &Metrics) -> Figures<'a> {
        self.with(side, "makespan", Some(m.makespan))
            .with(side, "span", Some(m.span))
            .with(side, "bubble", Some(m.bubble))
            .with(side, "span_bubble", Some(m.span_bubble))
            .with(side, "bubble_over_ideal", Some(m.bubble_over_ideal))
            .with(side, "efficiency", Some(m.efficiency))
            .with(side, "gap_to_bound", m.gap())
            .with(side, "peak_activations", Some(m.peak_activations()))
    }

    /// Adds times of a whole step: alone, and between steps that follow each other without a barrier.
    pub fn with_step(self, side: Side, iteration: Option<f64>, period: Option<f64>) -> Figures<'a> {
        self.with(side, "iteration", iteration).with(side, "period", period)
    }
}

/// The figures that a verb will know, decided before it works.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    /// Predictions in this unit of time, with or without times of whole steps.
    Predictions { unit: &'static str, whole_steps: bool },
    /// Predictions and runs in ms.
    Runs { trains: bool },
}

fn help() -> String {
    let names = |of: Of| {
        let names: Vec<&str> = FIGURES.iter().filter(|figure| figure.2 == of).map(|figure| figure.0).collect();
        names.join(", ")
    };
    format!(
        "Exit with code 4 if this holds for a schedule: a figure, one of > >= < <=, and a number: 'bubble>15%', 'makespan>=100ms', \
         'predicted.span>40', '|makespan_error|>5%'; repeatable. Figures: {}; of prediction against measurement (run, compare; positive: \
         the prediction is too high): {}; of whole steps (run, --profile, --hardware): {}; of run: {}. The measured figure is used if there \
         is one; to use the prediction's, prefix the name with predicted.",
        names(Of::Timeline),
        names(Of::Pair),
        names(Of::Step),
        names(Of::Run)
    )
}

impl ThresholdOptions {
    pub fn are_none(&self) -> bool {
        self.fail_if.is_empty()
    }

    /// Rejects thresholds on figures that the verb will not know, before any work.
    pub fn check_scope(&self, scope: Scope) -> Result<(), Failure> {
        self.fail_if.iter().try_for_each(|threshold| threshold.check_scope(scope)).map_err(Failure::Usage)
    }

    /// Returns a failure if a threshold holds, with a line for each schedule and threshold.
    pub fn judge(&self, found: &[Figures]) -> Result<Verdict, Failure> {
        let mut held = Vec::new();
        for threshold in &self.fail_if {
            let known = found.iter().filter_map(|figures| Some((figures, threshold.value_in(figures)?)));
            let known: Vec<(&Figures, (Side, f64))> = known.collect();
            if known.is_empty() {
                let text = &threshold.text;
                return Err(Failure::Usage(format!(
                    "--fail-if '{text}': no schedule here has this figure; leave it out"
                )));
            }
            for (figures, (side, value)) in known {
                let what = threshold.judge(figures.time_unit, side, value).map_err(Failure::Usage)?;
                held.extend(what.map(|what| format!("{}: {what}", figures.schedule)));
            }
        }
        Ok(Verdict(held))
    }
}

/// The thresholds that hold.
#[must_use]
pub struct Verdict(Vec<String>);

impl Verdict {
    /// Fails if any threshold holds.
    pub fn result(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Threshold(self.0.join("\nerror: "))) }
    }
}

impl Threshold {
    fn parse(text: &str) -> Result<Threshold, String> {
        let (begin, end) = match text.find(['<', '>', '=', '!']) {
            Some(begin) => (begin, begin + text[begin..].chars().take_while(|c| "<>=!".contains(*c)).count()),
            None => (text.len(), text.len()),
        };
        let (left, operator, right) = (text[..begin].trim(), &text[begin..end], text[end..].trim());
        let Some((_, holds)) = OPERATORS.into_iter().find(|(name, _)| *name == operator) else {
            return Err(format!(
                "expected a figure, one of > >= < <=, and a number, as in 'bubble>0.15', found '{text}'"
            ));
        };
        let inside = left.strip_prefix('|').and_then(|left| left.strip_suffix('|'));
        let (side, name) = match inside.map_or(left, str::trim).split_once('.') {
            Some(("predicted", name)) => (Some(Side::Predicted), name),
            Some(("measured", name)) => (Some(Side::Measured), name),
            _ => (None, inside.map_or(left, str::trim)),
        };
        let Some(figure @ (_, kind, of)) = FIGURES.into_iter().find(|figure| figure.0 == name) else {
            let names = FIGURES.map(|figure| figure.0);
            let hint = hint(&nearest(name, &names));
            return Err(format!("no figure is called '{name}'{hint}; expected one of {}", names.join(", ")));
        };
        if side.is_some() && matches!(of, Of::Pair | Of::Run) {
            return Err(format!("{name} has no predicted or measured side; write {name} alone"));
        }
        let (value, unit) = value(right, name, kind)?;
        Ok(Threshold { text: text.to_string(), side, figure, is_absolute: inside.is_some(), holds, value, unit })
    }

    fn check_scope(&self, scope: Scope) -> Result<(), String> {
        let (name, _, of) = self.figure;
        let what = match (scope, of) {
            (Scope::Predictions { .. }, Of::Pair | Of::Run) => {
                format!("{name} needs a measurement; pipesim run measures")
            }
            (Scope::Predictions { .. }, _) if self.side == Some(Side::Measured) => {
                "nothing is measured here; leave measured. out, or use pipesim run".to_string()
            }
            (Scope::Predictions { whole_steps: false, .. }, Of::Step) => {
                format!(
                    "{name} includes what ends a step, which is unknown here; give --profile, or --model and --hardware"
                )
            }
            (Scope::Runs { trains: false }, Of::Run) => "timed devices train no tokens; judge iteration".to_string(),
            (Scope::Predictions { unit, .. }, _) => return self.check_unit(unit),
            _ => return Ok(()),
        };
        Err(format!("--fail-if '{}': {what}", self.text))
    }

    fn check_unit(&self, unit: &str) -> Result<(), String> {
        if self.unit != Unit::Time || TimeUnit::named(unit).is_some() {
            return Ok(());
        }
        Err(format!(
            "--fail-if '{}': the timeline counts units of --costs, not seconds; give a number without a unit, or costs with one, as in F=2ms",
            self.text
        ))
    }

    /// Returns the figure, measured if there is a measurement and no side is named.
    fn value_in(&self, figures: &Figures) -> Option<(Side, f64)> {
        let sides =
            [Side::Measured, Side::Predicted].into_iter().filter(|side| self.side.is_none_or(|one| one == *side));
        let value = |side| figures.values.iter().find(|(of, name, _)| (*of, *name) == (side, self.figure.0));
        sides.filter_map(value).map(|(side, _, value)| (*side, *value)).next()
    }

    /// Says what was found if the threshold holds.
    fn judge(&self, time_unit: &str, side: Side, found: f64) -> Result<Option<String>, String> {
        self.check_unit(time_unit)?;
        let ms = TimeUnit::named(time_unit).filter(|_| self.unit == Unit::Time).map_or(1.0, TimeUnit::ms);
        let size = ms * if self.is_absolute { found.abs() } else { found };
        if !(self.holds)(&size, &self.value) {
            return Ok(None);
        }
        let (name, kind, of) = self.figure;
        let whose = match (of, side) {
            (Of::Pair, _) => "",
            (_, Side::Measured) => "measured ",
            (_, Side::Predicted) => "predicted ",
        };
        let rounded = |value: f64| if value.abs() < 1e-3 { value } else { (value * 1e4).round() / 1e4 };
        let shown = match (kind, self.unit) {
            (FigureKind::Fraction, Unit::Percent) => format!("{} %", rounded(100.0 * found)),
            (FigureKind::Points, _) => format!("{} points", rounded(found)),
            (FigureKind::Time, _) if TimeUnit::named(time_unit).is_some() => format!("{} {time_unit}", rounded(found)),
            _ => rounded(found).to_string(),
        };
        Ok(Some(format!("{} holds: {whose}{name} = {shown}", self.text)))
    }
}

/// Parses a threshold's number into the figure's own unit or ms.
fn value(text: &str, name: &str, kind: FigureKind) -> Result<(f64, Unit), String> {
    let percent = if kind == FigureKind::Points { 1.0 } else { 0.01 };
    let units = TIMES.map(|(unit, ms)| (unit, Unit::Time, ms)).into_iter().chain([("%", Unit::Percent, percent)]);
    let mut written = units.filter_map(|(written, unit, factor)| Some((text.strip_suffix(written)?, unit, factor)));
    let (digits, unit, factor) = written.next().unwrap_or((text, Unit::Own, 1.0));
    match (unit, kind) {
        (Unit::Percent, FigureKind::Time | FigureKind::Number) => {
            return Err(format!("{name} is not a share, found '{text}'; leave % out"));
        }
        (Unit::Time, FigureKind::Fraction | FigureKind::Points | FigureKind::Number) => {
            return Err(format!("{name} is not a time, found '{text}'; leave the unit out"));
        }
        _ => {}
    }
    let number = digits.trim().parse::<f64>().ok().filter(|value| value.is_finite());
    let number = number.ok_or_else(|| {
        let example = match kind {
            FigureKind::Time => "40 or 100ms",
            FigureKind::Fraction | FigureKind::Points => "0.15 or 15%",
            FigureKind::Number => "8",
        };
        format!("expected a finite number for {name}, as in {example}, found '{text}'")
    })?;
    let share = ["bubble", "span_bubble", "efficiency"].contains(&name);
    if share && number * factor > 1.0 {
        return Err(format!("{name} is a share of at most 1, found '{text}'; write {number}% if that is meant"));
    }
    Ok((number * factor, unit))
}
