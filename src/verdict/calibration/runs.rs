//! Measured runs from a CSV file: one row per layout, one column per setting of a prediction, and the measured time.

use super::cells::{CsvRow, csv_rows};
use super::layouts::measured_layout;
use super::process::MeasuredLayout;
use crate::judgement::{Measured, MeasuredError};
use pipesim_answer::question::Question;
use pipesim_answer::resolve::{Error, Host, usage};
use std::collections::BTreeMap;

/// Column with the measured time of an iteration, or a speed.
pub const MEASURED: &str = "measured";

/// Most runs of a file.
const MOST: usize = 500;

/// Short names of columns.
const SHORT: [(&str, &str); 7] = [
    ("pp", "stages"),
    ("p", "stages"),
    ("vp", "chunks"),
    ("vpp", "chunks"),
    ("mbs", "micro-batch-size"),
    ("gbs", "batch"),
    ("measured-s", MEASURED),
];

/// Settings of a question about all layouts, which one layout does not have.
const OF_PLANS: [&str; 4] = ["gpus", "fix", "objective", "top"];

/// Reads runs and predicts each of them. Settings without a column, and empty cells, take their value from `asked`.
///
/// # Errors
/// With line and column: no CSV with a column of measured times, an unknown setting, a value that it cannot have, or a row that is not
/// exactly one layout of the same model on the same hardware.
pub fn measured_runs(text: &str, asked: &Question, host: &'static dyn Host) -> Result<Vec<MeasuredLayout>, Error> {
    let mut rows = csv_rows(text)?.into_iter();
    let Some(head) = rows.next() else {
        return Err(usage(format!("expected a line with names of columns, found none; start with tp,dp,{MEASURED}")));
    };
    let names: Vec<String> = head.cells.iter().map(|name| column(name)).collect();
    let Some(measured) = names.iter().position(|name| name == MEASURED) else {
        let found = names.join(", ");
        return Err(usage(format!(
            "line {}: expected a column '{MEASURED}' with seconds per iteration, found {found}; add it",
            head.line
        )));
    };
    let is_name = |name: &String| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
    let is_repeated = |name: &&String| !is_name(name) || names.iter().filter(|other| other == name).count() > 1;
    if let Some(name) = names.iter().find(is_repeated) {
        let expected = "expected each column once, called as an option";
        return Err(usage(format!("line {}: {expected}, found '{name}'; correct it", head.line)));
    }
    let rows: Vec<CsvRow> = rows.collect();
    if rows.is_empty() || rows.len() > MOST {
        return Err(usage(format!("expected 1 to {MOST} runs, found {}; give a line for each", rows.len())));
    }
    let one = |row: CsvRow| {
        let at = |error: Error| usage(format!("line {}: {error}", row.line));
        if row.cells.len() != names.len() {
            let (expected, found) = (names.len(), row.cells.len());
            return Err(at(usage(format!(
                "expected {expected} cells, found {found}; quote cells that contain commas"
            ))));
        }
        let given = names.iter().map(String::as_str).zip(row.cells.iter().map(String::as_str));
        let settings: BTreeMap<&str, &str> =
            given.filter(|(name, cell)| *name != MEASURED && !cell.is_empty()).collect();
        let step = seconds(&row.cells[measured]).map_err(at)?;
        let question = question(asked, &settings).map_err(at)?;
        measured_layout(&question, asked, &step, host).map_err(at)
    };
    rows.into_iter().map(one).collect()
}

/// Returns the setting of a column.
fn column(name: &str) -> String {
    let name = name.trim_start_matches('-').replace('_', "-").to_lowercase();
    SHORT.iter().find(|(short, _)| *short == name).map_or(name.clone(), |(_, setting)| (*setting).to_string())
}

/// Reads a time or a speed; a number alone is in seconds.
fn seconds(cell: &str) -> Result<Measured, Error> {
    let text = if cell.parse::<f64>().is_ok() { format!("{cell}s") } else { cell.to_string() };
    Measured::parse(&text).map_err(|error| {
        let found = if cell.is_empty() { "nothing".to_string() } else { format!("'{cell}'") };
        usage(match error {
            MeasuredError::Unknown(_) | MeasuredError::Apart(_) | MeasuredError::NotPositive(_) => format!(
                "column '{MEASURED}': expected seconds per iteration, or a speed with its unit, found {found}; write 10.4, 10400ms or \
                 1541 tokens/s/gpu"
            ),
            error => format!("column '{MEASURED}': {error}"),
        })
    })
}

/// Returns the question about one layout: what is asked, with the settings of a row.
fn question(asked: &Question, settings: &BTreeMap<&str, &str>) -> Result<Question, Error> {
    let is_plan = !asked.gpus.is_empty();
    // a row that gives the batch or its micro-batches decides both
    let is_replaced = |name: &str| {
        settings.contains_key(name)
            || matches!(name, "micro" | "batch") && ["micro", "batch"].iter().any(|one| settings.contains_key(one))
            || OF_PLANS.contains(&name)
            || is_plan && name == "schedule"
            || name == "version"
    };
    let mut text = format!("version = {}\n", asked.version);
    for (name, value) in asked.settings(&[]).filter(|(name, _)| !is_replaced(name)) {
        text += &format!("{name} = {}\n", value.to_string().replace('\u{7f}', "\\u007f"));
    }
    for (name, cell) in settings {
        text += &format!("{name} = {}\n", value(name, cell)?);
    }
    let mut question = Question::from_toml(&text)?;
    question.name_schedule();
    Ok(question)
}

/// Returns a cell as TOML: as it is, as a list of numbers, or as a text, whichever the setting takes.
fn value(name: &str, cell: &str) -> Result<String, Error> {
    let asked = |value: &str| Question::from_toml(&format!("version = 1\n{name} = {value}\n"));
    let is_list = cell.contains(',') && cell.split(',').all(|one| one.trim().parse::<u32>().is_ok());
    let is_plain = cell.parse::<f64>().is_ok() || matches!(cell, "true" | "false");
    let quoted = serde_json::Value::from(cell).to_string().replace('\u{7f}', "\\u007f");
    let plain = if is_list { format!("[{cell}]") } else { cell.to_string() };
    if (is_list || is_plain) && asked(&plain).is_ok() {
        return Ok(plain);
    }
    match asked(&quoted) {
        Ok(_) => Ok(quoted),
        Err(error) => {
            let why = error.to_string();
            let why = why.split_once(": ").filter(|(line, _)| line.starts_with("line ")).map_or(&*why, |(_, why)| why);
            Err(usage(format!("column '{name}': {}; correct it", why.trim_end_matches('\n'))))
        }
    }
}
