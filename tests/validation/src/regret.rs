//! Regret: how much slower the layout that is predicted to be the best is than the best measured one of the same grid.

use crate::layouts::{self, LayoutPrediction};
use crate::prediction::{self, RowPrediction};
use crate::row;
use anyhow::{Result, bail};
use pipesim::plans::{Preference, RESERVE, RESOLUTION};
use std::collections::BTreeMap;

/// Fewest timed layouts of a search problem.
const LEAST_TIMED: usize = 5;
/// Regret up to which a choice counts as good.
const GOOD: f64 = 0.03;

/// One layout of a search problem.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Predicted time of an iteration, in seconds; `None` if it cannot be predicted.
    pub predicted_s: Option<f64>,
    /// Whether it is predicted to fit into memory, as `plan` demands; `None` if unknown.
    pub fits: Option<bool>,
    /// Measured time of an iteration, in seconds.
    pub measured_s: Option<f64>,
    pub ran_out: bool,
    pub preference: Preference,
}

/// A choice among the layouts of a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Measured time over the best measured one, minus 1.
    Regret(f64),
    /// The chosen layout ran out of memory.
    OutOfMemory,
    /// Nothing is predicted to fit.
    Nothing,
}

/// The layouts of one model on one number of GPUs with one software.
#[derive(Clone, Debug)]
pub struct Problem {
    pub name: String,
    pub layouts: Vec<Layout>,
}

impl Problem {
    fn timed(&self) -> impl Iterator<Item = (&Layout, f64)> {
        self.layouts.iter().filter_map(|layout| Some((layout, layout.measured_s?)))
    }

    fn best(&self) -> f64 {
        self.timed().map(|(_, seconds)| seconds).fold(f64::INFINITY, f64::min)
    }

    fn regret(&self, seconds: f64) -> Choice {
        Choice::Regret(seconds / self.best() - 1.0)
    }

    /// Returns the choice by prediction among all layouts that were timed or ran out of memory.
    pub fn chosen(&self) -> Choice {
        let known = self.layouts.iter().filter(|layout| layout.ran_out || layout.measured_s.is_some());
        match preferred(known.filter(|layout| layout.fits != Some(false))) {
            None => Choice::Nothing,
            Some(Layout { measured_s: Some(seconds), .. }) => self.regret(*seconds),
            Some(_) => Choice::OutOfMemory,
        }
    }

    /// Returns the choice by prediction of someone who knows which layouts fit.
    pub fn told(&self) -> Choice {
        let best = preferred(self.timed().map(|(layout, _)| layout));
        best.and_then(|layout| layout.measured_s).map_or(Choice::Nothing, |seconds| self.regret(seconds))
    }

    /// Returns the choice of the rule of someone who knows which layouts fit.
    pub fn rule(&self) -> Choice {
        let best = self.timed().min_by(|a, b| a.0.preference.cmp(&b.0.preference).then(a.1.total_cmp(&b.1)));
        best.map_or(Choice::Nothing, |(_, seconds)| self.regret(seconds))
    }
}

/// Returns the layout that `plan` puts first: the simplest of those that predictions cannot tell from the fastest.
fn preferred<'a>(layouts: impl Iterator<Item = &'a Layout>) -> Option<&'a Layout> {
    let predicted: Vec<(f64, &Layout)> = layouts.filter_map(|layout| Some((layout.predicted_s?, layout))).collect();
    let limit = predicted.iter().map(|(seconds, _)| *seconds).fold(f64::INFINITY, f64::min) * (1.0 + RESOLUTION);
    let near = predicted.into_iter().filter(|(seconds, _)| *seconds <= limit);
    near.min_by(|a, b| a.1.preference.cmp(&b.1.preference).then(a.0.total_cmp(&b.0))).map(|(_, layout)| layout)
}

/// Returns the search problems of a grid of layouts.
fn grids(runs: &[LayoutPrediction]) -> Vec<Problem> {
    let mut problems: BTreeMap<String, Vec<Layout>> = BTreeMap::new();
    for run in runs {
        let row = &run.row;
        let name = format!("{}, {} tokens, {} GPUs, {}", row.model, row.seq, row.gpus, row.kernels);
        problems.entry(name).or_default().push(Layout {
            predicted_s: run.estimate.as_ref().ok().map(|estimate| estimate.iteration_s),
            fits: run.estimate.as_ref().ok().map(|estimate| {
                let memory = &estimate.memory;
                memory.fullest().total as f64 <= memory.capacity_bytes as f64 * (1.0 - RESERVE)
            }),
            measured_s: row.iteration_s,
            ran_out: row.ran_out(),
            preference: Preference::new(row.micro_batch_size, row.recompute != "none", row.tp, row.pp),
        });
    }
    problems.into_iter().map(|(name, layouts)| Problem { name, layouts }).collect()
}

/// Returns the name of the search problem that a published step belongs to.
fn problem_of(row: &row::Row) -> String {
    format!("{}, {} GPUs, batch {}, {} tokens, {}", row.group, row.gpus, row.batch, row.seq, row.stack)
}

/// Returns the rows of problems with enough layouts.
fn of_problems(rows: Vec<row::Row>) -> Vec<row::Row> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(problem_of(row)).or_default() += 1);
    rows.into_iter().filter(|row| counts[&problem_of(row)] >= LEAST_TIMED).collect()
}

/// Returns the search problems of published steps: rows that differ in their layout alone.
fn published(rows: &[RowPrediction]) -> Vec<Problem> {
    let mut problems: BTreeMap<String, Vec<Layout>> = BTreeMap::new();
    for one in rows {
        let row = &one.row;
        let name = problem_of(row);
        let recomputes = row.recompute.as_ref().is_some_and(|what| what.name() != "none");
        problems.entry(name).or_default().push(Layout {
            predicted_s: one.time.as_ref().ok().map(pipesim::costs::StepTime::iteration),
            fits: None,
            measured_s: Some(row.iteration_s),
            ran_out: false,
            preference: Preference::new(row.micro_batch_size, recomputes, row.tp * row.cp, row.pp),
        });
    }
    problems.into_iter().map(|(name, layouts)| Problem { name, layouts }).collect()
}

/// Regrets of several problems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub problems: usize,
    pub out_of_memory: usize,
    pub nothing: usize,
    /// Mean and largest regret of the choices that ran.
    pub mean: f64,
    pub worst: f64,
    /// Share of all problems with a regret of at most 3 %.
    pub good: f64,
}

impl Summary {
    /// Summarizes choices.
    pub fn of(choices: &[Choice]) -> Summary {
        let regrets: Vec<f64> = choices
            .iter()
            .filter_map(|choice| match choice {
                Choice::Regret(regret) => Some(*regret),
                _ => None,
            })
            .collect();
        let count = |wanted: Choice| choices.iter().filter(|choice| **choice == wanted).count();
        let many = |count: usize| count.max(1) as f64;
        Summary {
            problems: choices.len(),
            out_of_memory: count(Choice::OutOfMemory),
            nothing: count(Choice::Nothing),
            mean: regrets.iter().sum::<f64>() / many(regrets.len()),
            worst: regrets.iter().copied().fold(0.0, f64::max),
            good: regrets.iter().filter(|regret| **regret <= GOOD).count() as f64 / many(choices.len()),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn cell(choice: Choice) -> String {
    match choice {
        Choice::Regret(regret) => percent(regret),
        Choice::OutOfMemory => "out of memory".to_string(),
        Choice::Nothing => "nothing fits".to_string(),
    }
}

/// A table: header and rows.
type Table = (Vec<String>, Vec<Vec<String>>);

fn texts(cells: &[&str]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

/// Returns the regrets of each problem with at least five timed layouts, and a summary.
fn tables(problems: &[Problem]) -> [Table; 2] {
    let names = ["chosen by prediction", "chosen, known memory", "rule of thumb, known memory"];
    let mut columns: [Vec<Choice>; 3] = Default::default();
    let mut line = |problem: &Problem| {
        let choices = [problem.chosen(), problem.told(), problem.rule()];
        columns.iter_mut().zip(choices).for_each(|(column, choice)| column.push(choice));
        let counts = [problem.layouts.len(), problem.timed().count()].map(|count| count.to_string());
        [problem.name.clone()].into_iter().chain(counts).chain(choices.map(cell)).collect()
    };
    let enough = problems.iter().filter(|problem| problem.timed().count() >= LEAST_TIMED);
    let each = enough.map(&mut line).collect();
    let summary = |(name, column): (&&str, &Vec<Choice>)| {
        let Summary { problems, out_of_memory, nothing, mean, worst, good } = Summary::of(column);
        let counts = [problems, out_of_memory, nothing].map(|count| count.to_string());
        [name.to_string()].into_iter().chain(counts).chain([mean, worst, good].map(percent)).collect()
    };
    let all = names.iter().zip(&columns).map(summary).collect();
    let header = ["choice", "problems", "out of memory", "nothing fits", "mean regret", "worst", "within 3 %"];
    let [_, known, rule] = names;
    [(texts(&["problem", "layouts", "timed", "chosen", known, rule]), each), (texts(&header), all)]
}

/// Returns the regrets among published steps whose layouts were all timed, and a summary.
pub fn of_published(rows: &[RowPrediction]) -> [Table; 2] {
    tables(&published(rows))
}

/// Returns the regrets of a table as Markdown: a grid of layouts, or published steps. Problems of fewer than five timed layouts are left
/// out.
///
/// # Errors
/// A table that is neither.
pub fn page(text: &str) -> Result<String> {
    let problems = if text.contains("\"outcome\"") {
        grids(&layouts::predict(layouts::read(text)?))
    } else {
        let (rows, faults) = row::read(text)?;
        if rows.is_empty() {
            bail!("expected measured steps or a grid of layouts, found none:\n  {}", faults.join("\n  "));
        }
        published(&prediction::predict(of_problems(rows)))
    };
    let markdown = |(header, rows): &Table| {
        let line = |cells: &Vec<String>| format!("| {} |\n", cells.join(" | "));
        let names = header.iter().filter(|name| ["problem", "choice"].contains(&name.as_str())).count();
        let right = vec!["---:".to_string(); header.len() - names];
        let rule = [vec![":---".to_string(); names], right].concat();
        [header, &rule].into_iter().chain(rows).map(line).collect::<String>()
    };
    Ok(tables(&problems).iter().map(markdown).collect::<Vec<_>>().join("\n"))
}
