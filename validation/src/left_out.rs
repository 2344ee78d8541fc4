//! Files made from errors on rows that fits had not seen: the rows' ratios, and the intervals of predictions.

use crate::errors::quantile;
use crate::fit::{CrossValidation, LeftOutRatios};
use crate::row::{Row, read};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Share of the measured times in an interval.
pub const COVERAGE: f64 = 0.9;

/// Head of the file of intervals.
const HEAD: &str = "\
# Measured over predicted iteration times between which 90 % of published steps are, by constants that were fitted without them: without
# their publication, model, precision and GPU together, or without their machine. Written by
# `cargo run --release -p pipesim-validation -- left-out`; the rows are in reports/published/left_out.json.
";

/// Mixtures are not fitted yet.
const MIXTURES: &str = "
# Mixtures of experts: wide, from a rule of thumb.
mixture-16-bits = [0.6, 1.7]
mixture-16-bits-other-machine = [0.5, 2.0]
mixture-8-bits = [0.6, 1.7]
mixture-8-bits-other-machine = [0.5, 2.0]
";

/// A row's measured over predicted time and its weight.
pub type Measured = (f64, f64);

/// Returns the measured over predicted times of the dense rows of a precision class, by fits without their group, or without
/// their machine.
pub fn measured(rows: &[Row], ratios: &[LeftOutRatios], is_narrow: bool, other_machine: bool) -> Vec<Measured> {
    let of = |row: &Row| {
        let found = ratios.iter().find(|ratios| ratios.id == row.id)?;
        Some((1.0 / if other_machine { found.machine } else { found.group }, row.weight))
    };
    rows.iter().filter(|row| row.is_narrow() == is_narrow).filter_map(of).collect()
}

/// Returns the factors between which [`COVERAGE`] of the times are.
pub fn factors(measured: &[Measured]) -> [f64; 2] {
    let rest = (1.0 - COVERAGE) / 2.0;
    [quantile(measured, rest), quantile(measured, 1.0 - rest)]
}

/// Returns the file of intervals.
pub fn intervals(rows: &[Row], ratios: &[LeftOutRatios]) -> String {
    let machines: BTreeSet<&str> = rows.iter().map(|row| row.gpu.as_str()).collect();
    let mut text = format!("{HEAD}machines = {:?}\n\n", machines.into_iter().collect::<Vec<_>>());
    for (bits, is_narrow) in [("16-bits", false), ("8-bits", true)] {
        for (machine, other) in [("", false), ("-other-machine", true)] {
            let [low, high] = factors(&measured(rows, ratios, is_narrow, other));
            let _ = writeln!(text, "dense-{bits}{machine} = [{low:.3}, {high:.3}]");
        }
    }
    text + MIXTURES
}

/// Fits, predicts each row of a fixed order without its like, and writes the ratios to `folder` and the intervals to `intervals_file`.
///
/// # Errors
/// A table that cannot be read, or files that cannot be written.
pub fn write(text: &str, folder: &Path, intervals_file: &Path) -> Result<()> {
    let (rows, _) = read(text)?;
    let ratios = CrossValidation::new(text, true)?.left_out()?;
    let lines: Vec<String> = ratios.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let json = format!("[\n{}\n]\n", lines.join(",\n"));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (path, text) in
        [(folder.join("left_out.json"), json), (intervals_file.to_path_buf(), intervals(&rows, &ratios))]
    {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Reads the ratios that [`write`] wrote to `folder`; none if it did not.
///
/// # Errors
/// A file that is not what [`write`] writes.
pub fn read_ratios(folder: &Path) -> Result<Vec<LeftOutRatios>> {
    let path = folder.join("left_out.json");
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
