//! Files of stage times: CSV with a row per stage, or TOML with a list per kind.

use super::error::CostError;
use super::given::GivenCosts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Whether costs name a file instead of numbers.
pub fn is_file(text: &str) -> bool {
    let ending = Path::new(text).extension().map(|ending| ending.to_ascii_lowercase());
    !text.contains('=') && ending.is_some_and(|ending| ending == "csv" || ending == "toml")
}

/// Reads stage times from the `text` of the file at `path`.
///
/// # Errors
/// Values that are no stage times.
pub fn read(path: &str, text: &str) -> Result<GivenCosts, String> {
    let is_csv = Path::new(path).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    let columns = if is_csv { csv(text) } else { toml(text) };
    columns.and_then(Columns::costs).map_err(|why| format!("{path}: {why}"))
}

/// Values by name, as they are written: `F`, `I`, `W`, `B` and `layers` with one per stage or one for all, `comm` and `keep`.
struct Columns {
    values: BTreeMap<String, Vec<String>>,
    /// Unit of all times; empty without one.
    unit: String,
}

impl Columns {
    fn costs(mut self) -> Result<GivenCosts, String> {
        let layers = self.values.remove("layers");
        let pair = |(key, values): (&String, &Vec<String>)| {
            let unit = if key == "keep" { "" } else { &self.unit };
            format!("{key}={}{unit}", values.join(":"))
        };
        let text: Vec<String> = self.values.iter().map(pair).collect();
        let costs: GivenCosts = text.join(",").parse().map_err(|error: CostError| error.to_string())?;
        let Some(layers) = layers else { return Ok(costs) };
        let count = |text: &String| {
            text.parse::<usize>().map_err(|_| format!("layers: expected whole numbers, found '{text}'"))
        };
        costs.with_own_layers(layers.iter().map(count).collect::<Result<_, _>>()?).map_err(|error| error.to_string())
    }
}

/// Reads `stage,layers,F_ms,B_ms` and a row per stage.
fn csv(text: &str) -> Result<Columns, String> {
    const EXPECTED: &str = "expected a header such as stage,layers,F_ms,B_ms and a row per stage";
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let header: Vec<&str> = lines.next().ok_or(EXPECTED)?.split(',').map(str::trim).collect();
    let mut columns = Columns { values: BTreeMap::new(), unit: String::new() };
    let (mut units, mut keys) = (Vec::new(), BTreeSet::new());
    for name in &header {
        let (key, unit) = name.split_once('_').unwrap_or((name, ""));
        if !keys.insert(key) {
            return Err(format!("expected one column '{key}', found two; leave one of them out"));
        }
        if ["F", "I", "W", "B", "comm"].contains(&key) {
            units.push(unit);
        } else if !["stage", "layers", "keep"].contains(name) {
            return Err(format!(
                "{EXPECTED}, found the column '{name}'; known are stage, layers, F, I, W, B, comm and keep"
            ));
        }
    }
    units.dedup();
    match units.as_slice() {
        [unit] => columns.unit = (*unit).to_string(),
        [] => return Err(format!("{EXPECTED}, found no times")),
        _ => return Err("expected one unit for all times, as in F_ms,B_ms; convert the others".to_string()),
    }
    for (number, line) in lines.enumerate() {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != header.len() {
            return Err(format!(
                "row {}: expected {} cells, as in the header, found {}",
                number + 1,
                header.len(),
                cells.len()
            ));
        }
        for (name, cell) in header.iter().zip(cells) {
            let key = name.split_once('_').map_or(*name, |(key, _)| key);
            if key == "stage" {
                if cell != number.to_string() {
                    return Err(format!(
                        "expected stage {number} in row {}, found '{cell}'; sort the rows by stage",
                        number + 1
                    ));
                }
                continue;
            }
            let values = columns.values.entry(key.to_string()).or_default();
            if !["comm", "keep"].contains(&key) || values.first().is_none_or(|first| first != cell) {
                values.push(cell.to_string());
            }
        }
    }
    if columns.values.is_empty() {
        return Err(format!("{EXPECTED}, found only the header; add the rows"));
    }
    Ok(columns)
}

/// Reads `unit = "ms"`, `F = [18.5, 24]`, `B = 27`, `layers = [10, 9]`, `comm`, `keep`.
fn toml(text: &str) -> Result<Columns, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("expected TOML: {}", error.message()))?;
    let mut columns = Columns { values: BTreeMap::new(), unit: String::new() };
    for (key, value) in table {
        if key == "unit" {
            columns.unit = value.as_str().ok_or("unit: expected a text: ns, us, ms or s")?.to_string();
            continue;
        }
        if !["F", "I", "W", "B", "comm", "keep", "layers"].contains(&key.as_str()) {
            return Err(format!("expected unit, F, I, W, B, comm, keep and layers, found '{key}'; correct it"));
        }
        let number = |value: &toml::Value| match value {
            toml::Value::Integer(number) => Ok(number.to_string()),
            toml::Value::Float(number) => Ok(number.to_string()),
            _ => Err(format!("{key}: expected a number, or a list with one per stage; correct it")),
        };
        let values = match &value {
            toml::Value::Array(list) => list.iter().map(number).collect::<Result<_, _>>()?,
            one => vec![number(one)?],
        };
        columns.values.insert(key, values);
    }
    Ok(columns)
}
