//! Fit of the constants in `FITTED`, or for mixtures of experts in `MIXTURE_FITTED`, to a table of published steps, also with
//! each group, family, machine or model in turn left out.
//!
//! The method is Levenberg and Marquardt's, from the start values; it is deterministic and takes some seconds per fit.
//! The loss is the weighted mean over rows of |ln(predicted / measured)|; beyond 25 % the slope is a third, so that a few rows that no
//! model explains do not dominate. Start values are assumed to be known to 10 %, a few to less: each such distance costs as much as
//! an error of 5 % on one row, squared and halved.

use crate::errors::Errors;
use crate::fitted::{Fitted, fitted_to};
use crate::prediction::{Key, Orders, is_searched, key, orders, step};
use crate::row::{Row, read};
use anyhow::Result;
use clap::ValueEnum;
use pipesim::costs::{Analytic, Platform};
use pipesim::{Hardware, Stack, models};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Relative error that a row is assumed to have for any constants.
const NOISE: f64 = 0.05;
/// Relative error beyond which a row counts less.
const FAR: f64 = 0.25;
const FAR_COUNTS: f64 = 0.3;
/// Relative step of the finite differences.
const STEP: f64 = 0.01;

/// A row with the orders of its schedule, made once under the current constants.
struct Case {
    row: Row,
    orders: Orders,
}

/// Values of the fitted constants, in their order.
type Constants = Vec<f64>;

/// A matrix and a right-hand side.
type Equations = (Vec<Vec<f64>>, Vec<f64>);

/// Hardware and software under given constants.
struct Tables {
    hardware: BTreeMap<&'static str, Hardware>,
    stacks: BTreeMap<&'static str, Stack>,
}

impl Tables {
    fn new(fitted: &[Fitted], constants: &[f64]) -> Result<Tables> {
        let value = |scope: &str, field: &str| {
            fitted.iter().zip(constants).find(|(f, _)| f.scope == scope && f.field == field).map(|(_, value)| *value)
        };
        let (mut machines, mut stacks) = (BTreeMap::new(), BTreeMap::new());
        for name in models::hardware_names() {
            machines.insert(name, models::hardware_with(name, &value)?);
        }
        for name in models::STACKS {
            stacks.insert(name, models::stack_with(name, &value)?);
        }
        Ok(Tables { hardware: machines, stacks })
    }

    /// Returns whether the hardware and software of a row are the same as in `other`.
    fn agrees(&self, other: &Tables, row: &Row) -> bool {
        let (gpu, stack) = (row.gpu.as_str(), row.stack.as_str());
        self.hardware.get(gpu) == other.hardware.get(gpu) && self.stacks.get(stack) == other.stacks.get(stack)
    }

    /// Returns predicted over measured time; `None` if the row cannot be predicted.
    fn ratio(&self, case: &Case) -> Option<f64> {
        let row = &case.row;
        let known = self.hardware.get(row.gpu.as_str())?.clone();
        let machine = Platform {
            hardware: Hardware {
                gpus_per_node: row.gpus_per_node,
                network_gbps_per_gpu: row.network_gbps_per_gpu,
                ..known
            },
            stack: row.software(self.stacks.get(row.stack.as_str())?.clone()),
        };
        let costs = Analytic::new(row.sizes(), machine, row.layout().ok()?).ok()?;
        Some(step(&costs, &case.orders).ok()?.iteration() / row.iteration_s)
    }
}

/// Rows of one fit, with their weights; 0 leaves a row out.
struct Fit<'a> {
    cases: &'a [Case],
    fitted: &'static [Fitted],
    weights: Vec<f64>,
}

/// Where a fit ends.
struct Optimum {
    constants: Constants,
    /// ln(predicted / measured) of each row.
    errors: Vec<f64>,
    /// Their slopes in the logarithms of the constants, by constant and row.
    slopes: Vec<Vec<f64>>,
}

impl Fit<'_> {
    fn of_all(cases: &[Case]) -> Fit<'_> {
        let weights = cases.iter().map(|case| case.row.weight).collect();
        Fit { cases, fitted: fitted_to(cases.iter().map(|case| &case.row)), weights }
    }

    fn weight(&self) -> f64 {
        self.weights.iter().sum::<f64>().max(1e-9)
    }

    /// Returns ln(predicted / measured) of each row, copied from `before` if neither hardware nor software changed.
    fn errors(&self, constants: &[f64], before: Option<(&Tables, &[f64])>) -> Result<Vec<f64>> {
        let tables = Tables::new(self.fitted, constants)?;
        let one = |(number, case): (usize, &Case)| match before {
            Some((old, errors)) if tables.agrees(old, &case.row) => errors[number],
            _ => tables.ratio(case).map_or(0.0, |ratio| ratio.max(1e-9).ln()),
        };
        Ok(self.cases.iter().enumerate().map(one).collect())
    }

    /// Returns the loss of an error, and the weight of its square with the same slope.
    fn cost(error: f64) -> (f64, f64) {
        let size = error.abs();
        let (near, slope) = if size > FAR { (FAR + FAR_COUNTS * (size - FAR), FAR_COUNTS) } else { (size, 1.0) };
        let smooth = near.hypot(0.01);
        (smooth, near / smooth * slope / size.max(1e-9))
    }

    /// Weight of the squared logarithmic distance from a start value.
    fn held(&self, fitted: &Fitted) -> f64 {
        NOISE / (2.0 * self.weight() * fitted.known * fitted.known)
    }

    fn loss(&self, constants: &[f64], errors: &[f64]) -> f64 {
        let rows = self.weights.iter().zip(errors).map(|(weight, error)| weight * Fit::cost(*error).0);
        let moved = self.fitted.iter().zip(constants);
        let moved = moved.map(|(fitted, value)| self.held(fitted) * (value / fitted.start).ln().powi(2));
        rows.sum::<f64>() / self.weight() + moved.sum::<f64>()
    }

    fn run(&self) -> Result<Optimum> {
        let mut constants: Constants = self.fitted.iter().map(|fitted| fitted.start).collect();
        let mut errors = self.errors(&constants, None)?;
        let (mut best, mut damping) = (self.loss(&constants, &errors), 1e-3);
        for _ in 0..30 {
            let before = best;
            let equations = self.equations(&constants, &errors, &self.slopes(&constants, &errors)?);
            for _ in 0..6 {
                let moved = damped_step(self.fitted, &constants, &equations, damping);
                let found = self.errors(&moved, None)?;
                let loss = self.loss(&moved, &found);
                if loss < best {
                    (constants, errors, best, damping) = (moved, found, loss, f64::max(damping * 0.3, 1e-6));
                    break;
                }
                damping *= 4.0;
            }
            if before - best < 1e-6 {
                break;
            }
        }
        let slopes = self.slopes(&constants, &errors)?;
        Ok(Optimum { constants, errors, slopes })
    }

    /// Returns the constants of a fit without some rows, by Gauss and Newton's steps from the optimum with all of them, whose slopes
    /// are assumed to hold. They differ little from those of a fit from the start values.
    fn without(&self, all: &Optimum, leaves_out: impl Fn(&Row) -> bool) -> Constants {
        let weights = self.cases.iter().map(|case| if leaves_out(&case.row) { 0.0 } else { case.row.weight }).collect();
        let rest = Fit { weights, ..*self };
        let (mut constants, mut errors) = (all.constants.clone(), all.errors.clone());
        for _ in 0..6 {
            constants = damped_step(self.fitted, &constants, &rest.equations(&constants, &errors, &all.slopes), 1e-3);
            errors.clone_from(&all.errors);
            for ((new, old), slopes) in constants.iter().zip(&all.constants).zip(&all.slopes) {
                errors.iter_mut().zip(slopes).for_each(|(error, slope)| *error += slope * (new / old).ln());
            }
        }
        constants
    }

    fn slopes(&self, constants: &[f64], errors: &[f64]) -> Result<Vec<Vec<f64>>> {
        let tables = Tables::new(self.fitted, constants)?;
        let one = |number: usize| {
            let mut moved = constants.to_vec();
            moved[number] *= 1.0 + STEP;
            let found = self.errors(&moved, Some((&tables, errors)))?;
            Ok(found.iter().zip(errors).map(|(new, old)| (new - old) / STEP.ln_1p()).collect())
        };
        (0..constants.len()).map(one).collect()
    }

    /// Returns the normal equations of a step in the logarithms of the constants.
    fn equations(&self, constants: &[f64], errors: &[f64], slopes: &[Vec<f64>]) -> Equations {
        let count = constants.len();
        let (mut matrix, mut slope) = (vec![vec![0.0; count]; count], vec![0.0; count]);
        for (row, (weight, error)) in self.weights.iter().zip(errors).enumerate() {
            let weight = Fit::cost(*error).1 * weight / self.weight();
            for i in 0..count {
                slope[i] += weight * slopes[i][row] * error;
                (0..count).for_each(|j| matrix[i][j] += weight * slopes[i][row] * slopes[j][row]);
            }
        }
        for (i, (value, fitted)) in constants.iter().zip(self.fitted).enumerate() {
            matrix[i][i] += 2.0 * self.held(fitted);
            slope[i] += 2.0 * self.held(fitted) * (value / fitted.start).ln();
        }
        (matrix, slope)
    }
}

/// Returns the constants after a damped step.
fn damped_step(fitted: &[Fitted], constants: &[f64], (matrix, slope): &Equations, damping: f64) -> Constants {
    let mut damped = matrix.clone();
    (0..slope.len()).for_each(|i| damped[i][i] += damping * (matrix[i][i] + 1e-6));
    let step = solve(damped, slope.clone());
    let moved = constants.iter().zip(&step).zip(fitted).map(|((value, step), fitted)| {
        (value * (-step.clamp(-0.7, 0.7)).exp()).clamp(fitted.range[0].max(1e-3 * fitted.start), fitted.range[1])
    });
    moved.collect()
}

/// Gaussian elimination with partial pivoting.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let count = right.len();
    for i in 0..count {
        let size = |row: &usize| matrix[*row][i].abs();
        let pivot = (i..count).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(i);
        matrix.swap(i, pivot);
        right.swap(i, pivot);
        for row in i + 1..count {
            let factor = matrix[row][i] / matrix[i][i];
            let above = matrix[i].clone();
            matrix[row].iter_mut().zip(&above).skip(i).for_each(|(entry, above)| *entry -= factor * above);
            right[row] -= factor * right[i];
        }
    }
    for i in (0..count).rev() {
        let known: f64 = (i + 1..count).map(|column| matrix[i][column] * right[column]).sum();
        right[i] = (right[i] - known) / matrix[i][i];
    }
    right
}

/// Prints errors by precision, family and machine.
fn print_errors(errors: &[(&Row, f64)]) {
    let kinds: [fn(&Row) -> String; 6] = [
        |_| "all".to_string(),
        |row| format!("model {}", row.model.base.as_deref().unwrap_or(&row.model.name)),
        |row| if row.is_narrow() { "8 and 4 bits".to_string() } else { "16 bits".to_string() },
        |row| match row.pp > 1 && row.tp * row.dp == 1 {
            true => "pure pipelines".to_string(),
            false => "others".to_string(),
        },
        |row| format!("family {}", row.family),
        |row| format!("machine {}, {}", row.gpu, if row.is_narrow() { "8 and 4 bits" } else { "16 bits" }),
    ];
    for kind in kinds {
        let mut by: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        errors.iter().for_each(|(row, error)| by.entry(kind(row)).or_default().push((*error, row.weight)));
        for (name, found) in by {
            let Errors { rows, weight, mean, median, bias } = Errors::of(&found);
            let [mean, median, bias] = [mean, median, bias].map(|share| 100.0 * share);
            println!(
                "{name:32} {rows:4} rows, weight {weight:5.1}: mean {mean:5.1} %, median {median:5.1} %, bias {bias:+5.1} %"
            );
        }
    }
}

/// Returns the rows of a table with their orders, which are made once for equal rows; without those of searched orders if these are
/// `fixed` only.
fn cases(text: &str, fixed: bool) -> Result<Vec<Case>> {
    let mut known: BTreeMap<Key, Orders> = BTreeMap::new();
    let mut case = |row: Row| {
        let costs = row.costs()?;
        let key = key(&row, &costs);
        let orders = match known.get(&key) {
            Some(orders) => orders.clone(),
            None => known.entry(key).or_insert(orders(&row, &costs)?).clone(),
        };
        Ok(Case { row, orders })
    };
    read(text)?.0.into_iter().filter(|row| !fixed || !is_searched(row)).map(&mut case).collect()
}

/// What each fit leaves out in turn.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum LeftOut {
    /// Nothing: one fit on all rows, and its constants are printed
    All,
    /// Rows of one publication, model, precision and GPU
    Groups,
    /// Rows of one publication
    Families,
    /// Rows of one GPU
    Machines,
    /// Rows of one model, and of smaller ones of its kind
    Models,
}

impl LeftOut {
    fn name_of(self, row: &Row) -> &str {
        match self {
            LeftOut::All => "",
            LeftOut::Groups => &row.group,
            LeftOut::Families => &row.family,
            LeftOut::Machines => &row.gpu,
            LeftOut::Models => row.model.base.as_ref().unwrap_or(&row.model.name),
        }
    }
}

/// A row's predicted over measured time, by constants that were fitted without rows like it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOutRatios {
    /// Identifier of the row.
    pub id: String,
    /// Fitted without its group: publication, model, precision and GPU.
    pub group: f64,
    /// Fitted without its publication.
    pub family: f64,
    /// Fitted without its GPU.
    pub machine: f64,
}

/// A fit to all rows, from which fits without some of them follow.
pub struct CrossValidation {
    cases: Vec<Case>,
    all: Optimum,
}

impl CrossValidation {
    /// Fits the constants to the rows of the JSON table `text`; `fixed`: without rows whose orders are searched.
    ///
    /// # Errors
    /// A table that cannot be read, or rows that cannot be ordered.
    pub fn new(text: &str, fixed: bool) -> Result<CrossValidation> {
        let cases = cases(text, fixed)?;
        let all = Fit::of_all(&cases).run()?;
        Ok(CrossValidation { cases, all })
    }

    fn fitted(&self) -> &'static [Fitted] {
        fitted_to(self.cases.iter().map(|case| &case.row))
    }

    /// Returns each row's predicted over measured time, in the table's order, by a fit without the rows that have the same name.
    ///
    /// # Errors
    /// Constants out of range.
    fn ratios(&self, left_out: LeftOut) -> Result<Vec<f64>> {
        let names: BTreeSet<&str> = self.cases.iter().map(|case| left_out.name_of(&case.row)).collect();
        let mut ratios = vec![1.0; self.cases.len()];
        for name in names {
            let is_named = |row: &Row| left_out.name_of(row) == name;
            let constants = match left_out {
                LeftOut::All => self.all.constants.clone(),
                _ => Fit::of_all(&self.cases).without(&self.all, is_named),
            };
            let tables = Tables::new(self.fitted(), &constants)?;
            for (ratio, case) in ratios.iter_mut().zip(&self.cases).filter(|(_, case)| is_named(&case.row)) {
                *ratio = tables.ratio(case).unwrap_or(1.0);
            }
        }
        Ok(ratios)
    }

    /// Returns the rows with their costs.
    ///
    /// # Errors
    /// As [`Row::costs`].
    pub fn rows(&self) -> Result<Vec<(&Row, Analytic)>> {
        self.cases.iter().map(|case| Ok((&case.row, case.row.costs()?))).collect()
    }

    /// Returns predicted over measured times of the rows at these places by a fit without them, in their order.
    ///
    /// # Errors
    /// Constants out of range.
    pub fn without(&self, places: &BTreeSet<usize>) -> Result<Vec<f64>> {
        let ids: BTreeSet<&str> = places.iter().map(|place| self.cases[*place].row.id.as_str()).collect();
        let constants = Fit::of_all(&self.cases).without(&self.all, |row| ids.contains(row.id.as_str()));
        let tables = Tables::new(self.fitted(), &constants)?;
        Ok(places.iter().map(|place| tables.ratio(&self.cases[*place]).unwrap_or(1.0)).collect())
    }

    /// Returns all rows' ratios by fits without their group, family and machine.
    ///
    /// # Errors
    /// Constants out of range.
    pub fn left_out(&self) -> Result<Vec<LeftOutRatios>> {
        let [groups, families, machines] =
            [LeftOut::Groups, LeftOut::Families, LeftOut::Machines].map(|left_out| self.ratios(left_out));
        let ratios = groups?.into_iter().zip(families?).zip(machines?);
        Ok(self
            .cases
            .iter()
            .zip(ratios)
            .map(|(case, ((group, family), machine))| LeftOutRatios { id: case.row.id.clone(), group, family, machine })
            .collect())
    }

    /// Prints the errors on the rows that each fit leaves out.
    ///
    /// # Errors
    /// Constants out of range.
    pub fn print(&self, left_out: LeftOut) -> Result<()> {
        if left_out == LeftOut::All {
            let constants = self.fitted().iter().zip(&self.all.constants);
            constants.for_each(|(f, value)| println!("{}.{} = {value:.4}", f.scope, f.field));
        }
        let ratios = self.ratios(left_out)?;
        print_errors(&self.cases.iter().zip(&ratios).map(|(case, ratio)| (&case.row, ratio - 1.0)).collect::<Vec<_>>());
        Ok(())
    }
}
