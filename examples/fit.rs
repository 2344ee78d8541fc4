//! Fits the constants of `pipesim::internals::hardware::FITTED` to a table of published steps, and says how far predictions are off
//! where each group, family or machine in turn was left out of the fit. Deterministic: Levenberg and Marquardt's method from the
//! values in that list, some seconds a fit, as many fits at a time as there are cores.
//!
//!     cargo run --release --example fit -- TABLE.json [all|groups|families|machines]
//!
//! The loss is the mean over rows, by weight, of the size of ln(predicted / measured); beyond a quarter it counts a third, so
//! that a few rows that no model explains do not bend the rest. A constant's beginning is taken to be known to a tenth: leaving it costs
//! as much as being off by a twentieth on a row for each such tenth, squared and halved.

use pipesim::internals::cost::analytic::{Analytic, Machine};
use pipesim::internals::hardware::{self, FITTED, Hardware, Stack};
use pipesim::internals::published::{self, Errors, Orders, Row};
use pipesim::internals::resolve::Files;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What beginnings are known to, as a share.
const KNOWN: f64 = 0.1;
/// What a row is taken to be off by whatever the constants are, as a share.
const NOISE: f64 = 0.05;
/// Beyond this a row counts less.
const FAR: f64 = 0.25;
const FAR_COUNTS: f64 = 0.3;
/// Step of the differences that stand for derivatives, as a share.
const STEP: f64 = 0.01;

/// A row with the orders of its schedule, which are found once, under the constants as they are.
struct Case {
    row: Row,
    orders: Orders,
}

/// Values of the fitted constants, in their order.
type Constants = Vec<f64>;

/// A matrix and the right side.
type Equations = (Vec<Vec<f64>>, Vec<f64>);

/// The machines and software of some constants.
struct Tables {
    hardware: BTreeMap<&'static str, Hardware>,
    stacks: BTreeMap<&'static str, Stack>,
}

impl Tables {
    fn new(constants: &[f64]) -> Result<Tables, Box<dyn Error>> {
        let value = |scope: &str, field: &str| {
            FITTED.iter().zip(constants).find(|(f, _)| f.scope == scope && f.field == field).map(|(_, value)| *value)
        };
        let (mut machines, mut stacks) = (BTreeMap::new(), BTreeMap::new());
        for name in hardware::names() {
            machines.insert(name, hardware::hardware_with(name, &value)?);
        }
        for name in pipesim::internals::layout::STACKS {
            stacks.insert(name, hardware::stack_with(name, &value)?);
        }
        Ok(Tables { hardware: machines, stacks })
    }

    /// Whether a row's machine and software are the same as in `other`.
    fn agrees(&self, other: &Tables, row: &Row) -> bool {
        let (gpu, stack) = (row.gpu.as_str(), row.stack.as_str());
        self.hardware.get(gpu) == other.hardware.get(gpu) && self.stacks.get(stack) == other.stacks.get(stack)
    }

    /// Predicted over measured; none where the row cannot be predicted.
    fn ratio(&self, case: &Case) -> Option<f64> {
        let row = &case.row;
        let known = self.hardware.get(row.gpu.as_str())?.clone();
        let machine = Machine {
            hardware: Hardware {
                gpus_per_node: row.gpus_per_node,
                network_gbps_per_gpu: row.network_gbps_per_gpu,
                ..known
            },
            stack: self.stacks.get(row.stack.as_str())?.clone(),
        };
        let costs = Analytic::new(row.sizes(), machine, row.layout().ok()?).ok()?;
        Some(published::step(&costs, &case.orders).ok()?.iteration() / row.iteration_s)
    }
}

/// Errors of rows that the fit sees, and how much they cost.
struct Fit<'a> {
    cases: &'a [&'a Case],
    weight: f64,
}

impl Fit<'_> {
    /// ln(predicted / measured) of each row; those of `before` where neither machine nor software changed.
    fn errors(&self, constants: &[f64], before: Option<(&Tables, &[f64])>) -> Result<Vec<f64>, Box<dyn Error>> {
        let tables = Tables::new(constants)?;
        let one = |(number, case): (usize, &&Case)| match before {
            Some((old, errors)) if tables.agrees(old, &case.row) => errors[number],
            _ => tables.ratio(case).map_or(0.0, |ratio| ratio.max(1e-9).ln()),
        };
        Ok(self.cases.iter().enumerate().map(one).collect())
    }

    /// What a row's error costs, and the weight that makes a square of it.
    fn cost(error: f64) -> (f64, f64) {
        let size = error.abs();
        let (near, slope) = if size > FAR { (FAR + FAR_COUNTS * (size - FAR), FAR_COUNTS) } else { (size, 1.0) };
        let smooth = near.hypot(0.01);
        (smooth, near / smooth * slope / size.max(1e-9))
    }

    /// What leaving a beginning costs, for a logarithm of one.
    fn held(&self) -> f64 {
        NOISE / (2.0 * self.weight * KNOWN * KNOWN)
    }

    fn loss(&self, constants: &[f64], errors: &[f64]) -> f64 {
        let rows = self.cases.iter().zip(errors).map(|(case, error)| case.row.weight * Fit::cost(*error).0);
        let moved = FITTED.iter().zip(constants).map(|(fitted, value)| (value / fitted.start).ln().powi(2));
        rows.sum::<f64>() / self.weight + self.held() * moved.sum::<f64>()
    }

    fn run(&self) -> Result<Constants, Box<dyn Error>> {
        let mut constants: Constants = FITTED.iter().map(|fitted| fitted.start).collect();
        let mut errors = self.errors(&constants, None)?;
        let (mut best, mut damping) = (self.loss(&constants, &errors), 1e-3);
        for _ in 0..30 {
            let before = best;
            let (matrix, slope) = self.normal(&constants, &errors)?;
            for _ in 0..6 {
                let mut damped = matrix.clone();
                (0..slope.len()).for_each(|i| damped[i][i] += damping * (matrix[i][i] + 1e-6));
                let step = solve(damped, slope.clone());
                let moved = constants.iter().zip(&step).zip(FITTED).map(|((value, step), fitted)| {
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

    /// The normal equations of a step in logarithms of the constants.
    fn normal(&self, constants: &[f64], errors: &[f64]) -> Result<Equations, Box<dyn Error>> {
        let tables = Tables::new(constants)?;
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
        for (i, (value, fitted)) in constants.iter().zip(FITTED).enumerate() {
            matrix[i][i] += 2.0 * self.held();
            slope[i] += 2.0 * self.held() * (value / fitted.start).ln();
        }
        Ok((matrix, slope))
    }
}

/// Gauss's elimination with pivots.
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

fn fit(cases: &[&Case]) -> Result<Constants, String> {
    let weight = cases.iter().map(|case| case.row.weight).sum::<f64>().max(1e-9);
    Fit { cases, weight }.run().map_err(|error| error.to_string())
}

fn is_narrow(row: &Row) -> bool {
    matches!(row.precision.as_str(), "fp8" | "mxfp8" | "nvfp4")
}

/// Prints errors in all, by family and by machine.
fn print(errors: &[(&Row, f64)]) {
    let kinds: [fn(&Row) -> String; 4] = [
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

/// The rows of a table, each with its orders; what is the same is found once.
fn cases(table: &str) -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases: Vec<Case> = Vec::new();
    let mut known: BTreeMap<(String, u32, u32, u32), usize> = BTreeMap::new();
    for row in published::read(&std::fs::read_to_string(table)?)?.0 {
        let costs = row.costs()?;
        let key = (row.schedule().to_string(), row.pp, row.chunks, costs.layout.micro);
        let orders = match known.get(&key).and_then(|&number| cases.get(number)) {
            Some(Case { orders, .. }) => orders.clone(),
            None => published::orders(&row, &costs, &Files)?,
        };
        known.entry(key).or_insert(cases.len());
        cases.push(Case { row, orders });
    }
    Ok(cases)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let table = arguments.first().ok_or("expected a table of published steps, found none: fit TABLE.json groups")?;
    let mode = arguments.get(1).map_or("all", String::as_str);
    let left_out: fn(&Row) -> String = match mode {
        "all" => |_| String::new(),
        "groups" => |row| row.group.clone(),
        "families" => |row| row.family.clone(),
        "machines" => |row| row.gpu.clone(),
        other => return Err(format!("expected all, groups, families or machines, found {other}").into()),
    };
    let cases = cases(table)?;
    let names: BTreeSet<String> = cases.iter().map(|case| left_out(&case.row)).collect();
    let names: Vec<String> = names.into_iter().collect();
    // each name in turn is left out; by name, so that the result does not depend on which fit ended first
    let found: Mutex<BTreeMap<usize, Result<Constants, String>>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(number) else { break };
            let seen: Vec<&Case> = cases.iter().filter(|case| mode == "all" || left_out(&case.row) != *name).collect();
            let constants = fit(&seen);
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(number, constants);
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
    let mut errors: Vec<(&Row, f64)> = Vec::new();
    for (number, constants) in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let constants = constants?;
        let tables = Tables::new(&constants)?;
        let tested = cases.iter().filter(|case| left_out(&case.row) == names[number]);
        errors.extend(tested.filter_map(|case| Some((&case.row, tables.ratio(case)? - 1.0))));
        if mode == "all" {
            FITTED.iter().zip(&constants).for_each(|(f, value)| println!("{}.{} = {value:.4}", f.scope, f.field));
        }
    }
    print(&errors);
    Ok(())
}
