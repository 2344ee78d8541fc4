//! Fits the constants of `pipesim::internals::hardware::FITTED` to a table of published steps, and says how far predictions are off
//! where groups, families or machines were left out of the fit. Deterministic: coordinate descent from the values in that list.
//!
//!     cargo run --release --example fit -- TABLE.json [all|groups|families|machines]
//!
//! The loss is the mean over rows, by weight, of the size of ln(predicted / measured); beyond a quarter it counts a third, so
//! that a few rows that no model explains do not bend the rest. A constant that leaves its beginning costs a little, so that what the
//! rows say nothing of stays where it is.

use pipesim::internals::cost::analytic::{Analytic, Machine};
use pipesim::internals::hardware::{self, FITTED, Fitted, Hardware, Stack};
use pipesim::internals::published::{self, Errors, Orders, Row};
use pipesim::internals::resolve::Files;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

/// A row with the orders of its schedule, which are found once, under the constants as they are.
struct Case {
    row: Row,
    orders: Orders,
}

/// Values of the fitted constants, in their order.
type Constants = Vec<f64>;

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

    /// The error of a case, as a share; none where the row cannot be predicted.
    fn error(&self, case: &Case) -> Option<f64> {
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
        let time = published::step(&costs, &case.orders).ok()?;
        Some(time.iteration() / row.iteration_s - 1.0)
    }
}

fn loss(cases: &[&Case], constants: &[f64]) -> f64 {
    let Ok(tables) = Tables::new(constants) else { return f64::INFINITY };
    let (mut sum, mut weights) = (0.0, 0.0);
    for case in cases {
        let Some(error) = tables.error(case) else { continue };
        let size = (1.0 + error).max(1e-9).ln().abs();
        let size = if size > 0.25 { 0.25 + 0.3 * (size - 0.25) } else { size };
        sum += case.row.weight * (size * size + 1e-4).sqrt();
        weights += case.row.weight;
    }
    let moved = |(fitted, value): (&Fitted, &f64)| 4.0 * ((value + 1e-9) / fitted.start).ln().powi(2);
    sum / f64::max(weights, 1e-9) + 3e-4 * FITTED.iter().zip(constants).map(moved).sum::<f64>()
}

/// Coordinate descent: each constant in turn a step up or down, as long as that helps; steps grow and shrink.
fn fit(cases: &[&Case], rounds: usize) -> Constants {
    let mut constants: Constants = FITTED.iter().map(|fitted| fitted.start).collect();
    let mut steps = vec![0.2; constants.len()];
    let (mut best, mut again) = (loss(cases, &constants), 0);
    for _ in 0..rounds {
        let before = best;
        for (number, fitted) in FITTED.iter().enumerate() {
            let mut improved = false;
            for up in [true, false] {
                loop {
                    let old = constants[number];
                    let from = if old < 1e-6 { 0.05 * fitted.range[1].min(1.0) } else { old };
                    let factor = 1.0 + steps[number];
                    let new = if up { from * factor } else { from / factor };
                    constants[number] = new.clamp(fitted.range[0], fitted.range[1]);
                    let found = loss(cases, &constants);
                    if found >= best - 1e-7 {
                        constants[number] = old;
                        break;
                    }
                    (best, improved) = (found, true);
                }
                if improved {
                    break;
                }
            }
            steps[number] = if improved { f64::min(steps[number] * 1.3, 0.5) } else { steps[number] * 0.5 };
        }
        if before - best < 1e-5 {
            if again == 3 {
                break;
            }
            again += 1;
            steps.iter_mut().for_each(|step| *step = f64::max(*step, 0.1 / f64::from(1 << again)));
        }
    }
    constants
}

fn is_narrow(row: &Row) -> bool {
    matches!(row.precision.as_str(), "fp8" | "mxfp8" | "nvfp4")
}

/// Prints errors in all, by family and by machine.
fn print(errors: &[(&Row, f64)]) {
    let kinds: [fn(&Row) -> String; 3] = [
        |row| if is_narrow(row) { "8 and 4 bits".to_string() } else { "16 bits".to_string() },
        |row| format!("family {}", row.family),
        |row| format!("machine {}", row.gpu),
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
    let mut cases = Vec::new();
    let mut known: BTreeMap<(String, u32, u32, u32), usize> = BTreeMap::new();
    for row in published::read(&std::fs::read_to_string(table)?)? {
        let costs = row.costs()?;
        let key = (row.schedule().to_string(), row.pp, row.chunks, costs.layout.micro);
        let orders = match known.get(&key).and_then(|&number: &usize| cases.get(number)) {
            Some(Case { orders, .. }) => orders.clone(),
            None => published::orders(&row, &costs, &Files)?,
        };
        known.entry(key).or_insert(cases.len());
        cases.push(Case { row, orders });
    }
    // Twelve folds at most; a kind of row is in one of them altogether.
    let names: Vec<String> =
        cases.iter().map(|case| left_out(&case.row)).collect::<BTreeSet<_>>().into_iter().collect();
    let folds = names.len().min(12);
    let mut errors: Vec<(&Row, f64)> = Vec::new();
    for fold in 0..folds {
        let held =
            |case: &&Case| names.iter().position(|name| *name == left_out(&case.row)).map(|n| n % folds) == Some(fold);
        let (tested, fitted): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(held);
        let constants = fit(if mode == "all" { &tested } else { &fitted }, 60);
        let tables = Tables::new(&constants)?;
        errors.extend(tested.iter().filter_map(|case| Some((&case.row, tables.error(case)?))));
        if mode == "all" {
            FITTED.iter().zip(&constants).for_each(|(f, value)| println!("{}.{} = {value:.4}", f.scope, f.field));
        }
    }
    print(&errors);
    Ok(())
}
