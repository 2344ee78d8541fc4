//! Fit of the constants in [`FITTED`], or for mixtures of experts in [`MIXTURE_FITTED`], to a table of published steps, also with
//! each group, family, machine or model in turn left out.
//!
//! The method is Levenberg and Marquardt's, from the start values; it is deterministic and takes some seconds per fit.
//! The loss is the weighted mean over rows of |ln(predicted / measured)|; beyond 25 % the slope is a third, so that a few rows that no
//! model explains do not dominate. Each constant's start is assumed to be known: a distance of that uncertainty costs as much as an
//! error of 5 % on one row, squared and halved.

use crate::errors::Errors;
use crate::fitted::{FITTED, Fitted, MIXTURE_FITTED};
use crate::prediction::{Key, Orders, key, orders, step};
use crate::row::{Row, read};
use anyhow::Result;
use clap::ValueEnum;
use pipesim::costs::{Analytic, Platform};
use pipesim::schedules::Files;
use pipesim::{Hardware, Host, Stack, models};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

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

/// Returns what is fitted to these rows.
fn fitted_to(cases: &[Case]) -> &'static [Fitted] {
    if cases.iter().any(|case| case.row.experts.is_some()) { MIXTURE_FITTED } else { FITTED }
}

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
            stack: self.stacks.get(row.stack.as_str())?.clone(),
        };
        let costs = Analytic::new(row.sizes(), machine, row.layout().ok()?).ok()?;
        Some(step(&costs, &case.orders).ok()?.iteration() / row.iteration_s)
    }
}

/// The rows of one fit.
struct Fit<'a> {
    cases: &'a [&'a Case],
    fitted: &'static [Fitted],
    weight: f64,
}

impl Fit<'_> {
    /// Returns ln(predicted / measured) of each row, copied from `before` if neither hardware nor software changed.
    fn errors(&self, constants: &[f64], before: Option<(&Tables, &[f64])>) -> Result<Vec<f64>> {
        let tables = Tables::new(self.fitted, constants)?;
        let one = |(number, case): (usize, &&Case)| match before {
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

    /// Weight of the squared logarithmic distance from the start values.
    fn held(&self, fitted: &Fitted) -> f64 {
        NOISE / (2.0 * self.weight * fitted.known * fitted.known)
    }

    fn loss(&self, constants: &[f64], errors: &[f64]) -> f64 {
        let rows = self.cases.iter().zip(errors).map(|(case, error)| case.row.weight * Fit::cost(*error).0);
        let moved = self.fitted.iter().zip(constants);
        let held = moved.map(|(fitted, value)| self.held(fitted) * (value / fitted.start).ln().powi(2));
        rows.sum::<f64>() / self.weight + held.sum::<f64>()
    }

    fn run(&self) -> Result<Constants> {
        let mut constants: Constants = self.fitted.iter().map(|fitted| fitted.start).collect();
        let mut errors = self.errors(&constants, None)?;
        let (mut best, mut damping) = (self.loss(&constants, &errors), 1e-3);
        for _ in 0..30 {
            let before = best;
            let (matrix, slope) = self.normal(&constants, &errors)?;
            for _ in 0..6 {
                let mut damped = matrix.clone();
                (0..slope.len()).for_each(|i| damped[i][i] += damping * (matrix[i][i] + 1e-6));
                let step = solve(damped, slope.clone());
                let moved = constants.iter().zip(&step).zip(self.fitted).map(|((value, step), fitted)| {
                    (value * (-step.clamp(-0.7, 0.7)).exp())
                        .clamp(fitted.range[0].max(1e-3 * fitted.start), fitted.range[1])
                });
                let moved: Constants = moved.collect();
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
        Ok(constants)
    }

    /// Returns the normal equations of a step in the logarithms of the constants.
    fn normal(&self, constants: &[f64], errors: &[f64]) -> Result<Equations> {
        let tables = Tables::new(self.fitted, constants)?;
        let mut slopes: Vec<Vec<f64>> = Vec::new();
        for number in 0..constants.len() {
            let mut moved = constants.to_vec();
            moved[number] *= 1.0 + STEP;
            let found = self.errors(&moved, Some((&tables, errors)))?;
            slopes.push(found.iter().zip(errors).map(|(new, old)| (new - old) / STEP.ln_1p()).collect());
        }
        let count = constants.len();
        let (mut matrix, mut slope) = (vec![vec![0.0; count]; count], vec![0.0; count]);
        for (row, (case, error)) in self.cases.iter().zip(errors).enumerate() {
            let weight = Fit::cost(*error).1 * case.row.weight / self.weight;
            for i in 0..count {
                slope[i] += weight * slopes[i][row] * error;
                (0..count).for_each(|j| matrix[i][j] += weight * slopes[i][row] * slopes[j][row]);
            }
        }
        for (i, (value, fitted)) in constants.iter().zip(self.fitted).enumerate() {
            matrix[i][i] += 2.0 * self.held(fitted);
            slope[i] += 2.0 * self.held(fitted) * (value / fitted.start).ln();
        }
        Ok((matrix, slope))
    }
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

fn fit(cases: &[&Case], fitted: &'static [Fitted]) -> Result<Constants> {
    let weight = cases.iter().map(|case| case.row.weight).sum::<f64>().max(1e-9);
    Fit { cases, fitted, weight }.run()
}

fn is_narrow(row: &Row) -> bool {
    matches!(row.precision.as_str(), "fp8" | "mxfp8" | "nvfp4")
}

/// Prints errors by precision, family and machine.
fn print_errors(errors: &[(&Row, f64)]) {
    let kinds: [fn(&Row) -> String; 6] = [
        |_| "all".to_string(),
        |row| format!("model {}", row.model.base.as_deref().unwrap_or(&row.model.name)),
        |row| if is_narrow(row) { "8 and 4 bits".to_string() } else { "16 bits".to_string() },
        |row| match row.pp > 1 && row.tp * row.dp == 1 {
            true => "pure pipelines".to_string(),
            false => "others".to_string(),
        },
        |row| format!("family {}", row.family),
        |row| format!("machine {}, {}", row.gpu, if is_narrow(row) { "8 and 4 bits" } else { "16 bits" }),
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

/// Returns the rows of a table with their orders, which are made once for equal rows.
fn cases(text: &str) -> Result<Vec<Case>> {
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
    read(text)?.0.into_iter().map(&mut case).collect()
}

/// What each fit leaves out in turn.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum LeftOut {
    /// Nothing: one fit on all rows, and its constants are printed
    All,
    /// Rows of one publication, model, precision and GPU
    Groups,
    /// Rows of one publication
    Families,
    /// Rows of one GPU
    Machines,
    /// Rows of one model, and smaller ones of its kind
    Models,
}

/// Fits the constants to the rows of the JSON table `text` and prints the errors on the rows that were left out.
///
/// # Errors
/// A table that cannot be read, or rows that cannot be ordered.
pub fn print(text: &str, left_out: LeftOut) -> Result<()> {
    let name_of: fn(&Row) -> String = match left_out {
        LeftOut::All => |_| String::new(),
        LeftOut::Groups => |row| row.group.clone(),
        LeftOut::Families => |row| row.family.clone(),
        LeftOut::Machines => |row| row.gpu.clone(),
        LeftOut::Models => |row| row.model.base.clone().unwrap_or_else(|| row.model.name.clone()),
    };
    let is_all = left_out == LeftOut::All;
    let cases = cases(text)?;
    let fitted = fitted_to(&cases);
    let names: BTreeSet<String> = cases.iter().map(|case| name_of(&case.row)).collect();
    let names: Vec<String> = names.into_iter().collect();
    // By number of the name, so that the result does not depend on which fit ends first.
    let found: Mutex<BTreeMap<usize, Result<Constants>>> = Mutex::default();
    Files.each(names.len(), &|number| {
        let seen: Vec<&Case> = cases.iter().filter(|case| is_all || name_of(&case.row) != names[number]).collect();
        let constants = fit(&seen, fitted);
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(number, constants);
    });
    let mut errors: Vec<(&Row, f64)> = Vec::new();
    for (number, constants) in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let constants = constants?;
        let tables = Tables::new(fitted, &constants)?;
        let tested = cases.iter().filter(|case| name_of(&case.row) == names[number]);
        errors.extend(tested.filter_map(|case| Some((&case.row, tables.ratio(case)? - 1.0))));
        if is_all {
            fitted.iter().zip(&constants).for_each(|(f, value)| println!("{}.{} = {value:.4}", f.scope, f.field));
        }
    }
    print_errors(&errors);
    Ok(())
}
