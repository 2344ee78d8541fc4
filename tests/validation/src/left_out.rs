//! Files made from errors on rows that fits had not seen: the rows' ratios, and the intervals of predictions.

use crate::errors::quantile;
use crate::fit::{CrossValidation, LeftOutRatios};
use crate::row::{Row, read};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Share of the measured times in an interval.
pub const COVERAGE: f64 = 0.9;

/// Head of the file of intervals.
const HEAD: &str = "\
# 90 % intervals of measured / predicted iteration times of published steps, with constants fitted without them: without the group of
# the same publication, model, precision and GPU; for other machines, without their GPU, where each GPU has the same weight. Written by
# `cargo run --release -p pipesim-validation -- left-out`; the rows are in reports/published*/left_out.json.
";

/// Head of the file of percentiles.
const PUBLISHED_HEAD: &str = "\
# Percentiles 0 to 100 of measured / predicted iteration times of published steps, with constants fitted without them, as in
# intervals.toml. Written by `cargo run --release -p pipesim-validation -- left-out`.
";

/// Published steps of one kind of model, to which the kind's own constants are fitted.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Start of the names in the file of intervals.
    pub name: &'static str,
    /// The table.
    pub table: &'static str,
    /// The folder with the page and the ratios.
    pub folder: &'static str,
}

/// All kinds, with paths from the repository's root.
pub const KINDS: [Kind; 2] = [
    Kind { name: "dense", table: "tests/golden/throughputs/measured.json", folder: "reports/published" },
    Kind { name: "mixture", table: "tests/golden/moe/rows.json", folder: "reports/published-mixtures" },
];

/// A row's measured over predicted time and its weight.
pub type Measured = (f64, f64);

/// A class of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 16 bits or more, a machine with fitted rows.
    Wide,
    /// Fewer bits, a machine with fitted rows.
    Narrow,
    /// A machine without fitted rows, any precision.
    OtherMachine,
}

impl Class {
    /// All classes with the ends of their names in the file.
    pub const ALL: [(&'static str, Class); 3] =
        [("16-bits", Class::Wide), ("8-bits", Class::Narrow), ("other-machine", Class::OtherMachine)];

    fn includes(self, row: &Row) -> bool {
        match self {
            Class::Wide => !row.is_narrow(),
            Class::Narrow => row.is_narrow(),
            Class::OtherMachine => true,
        }
    }
}

/// Returns the measured over predicted times of the rows of a class, by fits without their group or their machine.
pub fn measured(rows: &[Row], ratios: &[LeftOutRatios], class: Class) -> Vec<Measured> {
    let known: BTreeMap<&str, &LeftOutRatios> = ratios.iter().map(|ratios| (ratios.id.as_str(), ratios)).collect();
    let rows: Vec<&Row> =
        rows.iter().filter(|row| class.includes(row) && known.contains_key(row.id.as_str())).collect();
    let kind = |row: &Row| (row.gpu.clone(), row.is_narrow());
    let mut weights: BTreeMap<(String, bool), f64> = BTreeMap::new();
    rows.iter().for_each(|row| *weights.entry(kind(row)).or_default() += row.weight);
    let of = |row: &&Row| {
        let found = known[row.id.as_str()];
        match class {
            Class::OtherMachine => (1.0 / found.machine, row.weight / weights[&kind(row)]),
            _ => (1.0 / found.group, row.weight),
        }
    };
    rows.iter().map(of).collect()
}

/// Returns the factors between which [`COVERAGE`] of the times are.
pub fn factors(measured: &[Measured]) -> [f64; 2] {
    let rest = (1.0 - COVERAGE) / 2.0;
    [quantile(measured, rest), quantile(measured, 1.0 - rest)]
}

/// Returns a kind's part of the file of intervals.
pub fn intervals(kind: Kind, rows: &[Row], ratios: &[LeftOutRatios]) -> String {
    let machines: BTreeSet<&str> = rows.iter().map(|row| row.gpu.as_str()).collect();
    let mut text = format!("{}-machines = {:?}\n", kind.name, machines.into_iter().collect::<Vec<_>>());
    for (key, class) in Class::ALL {
        let [low, high] = factors(&measured(rows, ratios, class));
        let _ = writeln!(text, "{}-{key} = [{low:.3}, {high:.3}]", kind.name);
    }
    text
}

/// Returns a kind's part of the file of percentiles.
pub fn percentiles(kind: Kind, rows: &[Row], ratios: &[LeftOutRatios]) -> String {
    let mut text = String::new();
    for (key, class) in Class::ALL {
        let measured = measured(rows, ratios, class);
        let at = |percent: u32| format!("{:.3}", quantile(&measured, f64::from(percent) / 100.0));
        let list = (0..=100).map(at).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{}-{key} = [{list}]", kind.name);
    }
    text
}

/// Fits each kind's constants, predicts each row of a fixed order without its like, and writes the ratios to the kind's folder and the
/// intervals and percentiles to `hardware/intervals.toml` and `hardware/published.toml`, all below `root`, the repository.
///
/// # Errors
/// A table that cannot be read, or files that cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let (mut file, mut published) = (HEAD.to_string(), PUBLISHED_HEAD.to_string());
    for kind in KINDS {
        let table = root.join(kind.table);
        let text = std::fs::read_to_string(&table).with_context(|| format!("cannot read {}", table.display()))?;
        let ratios = CrossValidation::new(&text, true)?.left_out()?;
        let lines: Vec<String> = ratios.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        replace(&root.join(kind.folder).join("left_out.json"), &format!("[\n{}\n]\n", lines.join(",\n")))?;
        let (rows, _) = read(&text)?;
        file += &format!("\n{}", intervals(kind, &rows, &ratios));
        published += &format!("\n{}", percentiles(kind, &rows, &ratios));
    }
    replace(&root.join("hardware/published.toml"), &published)?;
    replace(&root.join("hardware/intervals.toml"), &file)
}

fn replace(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// Reads the ratios that [`write()`] wrote to `folder`; none if it did not.
///
/// # Errors
/// A file that is not what [`write()`] writes.
pub fn read_ratios(folder: &Path) -> Result<Vec<LeftOutRatios>> {
    let path = folder.join("left_out.json");
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
