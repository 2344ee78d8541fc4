//! Files made from errors on rows that fits had not seen: the rows' ratios, the hull of the rows, and the intervals of predictions.

use crate::errors::quantile;
use crate::fit::{CrossValidation, LeftOutRatios};
use crate::regions::{self, Cut, OutsideRatio, based, hull};
use crate::row::{Row, read};
use anyhow::{Context, Result};
use pipesim::models::{Hull, HullPoint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Shares of the measured times in the intervals, and the ends of the intervals' names.
pub const COVERAGES: [(f64, &str); 2] = [(0.9, ""), (0.5, "-50")];

/// Date before which software of mixtures is early: after the last of [`EARLY`].
pub const EARLY_BEFORE: &str = "2026-03";

/// Rows of early or unexplained software, which took up to three times as long as later ones: DeepSeek-V3 on GB200 with NeMo 25.04,
/// Qwen3-30B-A3B on H100 with NeMo 25.11 and 26.02.
pub const EARLY: [&str; 5] = [
    "moe-dgxc-benchmarking-057",
    "moe-dgxc-benchmarking-058",
    "moe-dgxc-benchmarking-059",
    "moe-megatron-bridge-102",
    "moe-megatron-bridge-123",
];

/// Head of the file of intervals.
const HEAD: &str = "\
# Intervals of measured / predicted iteration times of published steps: 90 %, and 50 % with -50. In 16 and 8 bits: by fits without the
# group of the same publication, model, precision and GPU, of rows that others than their group cover. Outside: by fits without a region
# (a machine, a software, a precision, large or small values), where each region has the same weight, of rows outside of the hull of the
# others in one way, or in two or more; a publication outside of the tables counts as a region. Early: with the rows of early software, which
# the other classes leave out. Written by `cargo run -p pipesim-validation -- left-out`; the rows are in reports/published*/left_out.json
# and regions.json.
";

/// Head of the file of the hull.
const HULL_HEAD: &str = "\
# What published steps cover, by kind of model. Names: the number of groups (a publication, model, precision and GPU) with each; software
# counts for what is based on it. Sizes: the least and the most that two groups reach, the least and the most of all. Written by
# `cargo run -p pipesim-validation -- left-out`.
";

/// Head of the file of percentiles.
const PUBLISHED_HEAD: &str = "\
# Percentiles 0 to 100 of measured / predicted iteration times of published steps, with constants fitted without them, as in
# intervals.toml. Written by `cargo run -p pipesim-validation -- left-out`.
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
    /// Regions of sizes that are left out in turn.
    pub cuts: &'static [Cut],
}

/// All kinds, with paths from the repository's root.
pub const KINDS: [Kind; 2] = [
    Kind {
        name: "dense",
        table: "tests/golden/throughputs/measured.json",
        folder: "reports/published",
        cuts: &regions::DENSE,
    },
    Kind {
        name: "mixture",
        table: "tests/golden/moe/rows.json",
        folder: "reports/published-mixtures",
        cuts: &regions::MIXTURES,
    },
];

/// A row's measured over predicted time and its weight.
pub type Measured = (f64, f64);

/// A row that was predicted without its like.
#[derive(Clone, Debug)]
pub struct LeftOutRow {
    /// What the fit did not see: a group or a region.
    pub without: String,
    /// Measured over predicted time.
    pub measured: f64,
    /// Its weight; the rows of a region sum to 1.
    pub weight: f64,
    /// Number of axes on which it is outside of what the fit saw.
    pub outside: usize,
    is_narrow: bool,
    is_early: bool,
}

/// A class of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 16 bits or more, inside of the hull.
    Wide,
    /// Fewer bits, inside of the hull.
    Narrow,
    /// Outside in one way, or in two or more.
    Outside(usize),
    /// 16 bits or more, with early software.
    EarlyWide,
    /// Fewer bits, with early software.
    EarlyNarrow,
}

impl Class {
    /// Returns the classes of a kind with the ends of their names in the file.
    pub fn all(kind: Kind) -> Vec<(&'static str, Class)> {
        let usual = [
            ("16-bits", Class::Wide),
            ("8-bits", Class::Narrow),
            ("outside-1", Class::Outside(1)),
            ("outside-2", Class::Outside(2)),
        ];
        let early = [("early-16-bits", Class::EarlyWide), ("early-8-bits", Class::EarlyNarrow)];
        usual.into_iter().chain(early.into_iter().filter(|_| kind.name == "mixture")).collect()
    }

    fn includes(self, row: &LeftOutRow) -> bool {
        let is_inside = row.outside == 0;
        match self {
            Class::Wide => is_inside && !row.is_early && !row.is_narrow,
            Class::Narrow => is_inside && !row.is_early && row.is_narrow,
            Class::Outside(ways) => !row.is_early && row.outside.min(2) == ways,
            Class::EarlyWide => (is_inside || row.is_early) && !row.is_narrow,
            Class::EarlyNarrow => (is_inside || row.is_early) && row.is_narrow,
        }
    }
}

/// Returns the hull of all rows of a kind, and each row's place in it.
///
/// # Errors
/// A row without costs, or a file of software that cannot be read.
pub fn hull_of(root: &Path, rows: &[Row]) -> Result<(Hull, BTreeMap<String, HullPoint>)> {
    let point = |row: &Row| Ok((row.id.clone(), row.costs()?.hull_point(1)));
    let points: BTreeMap<String, HullPoint> = rows.iter().map(point).collect::<Result<_>>()?;
    let found = hull(rows.iter().map(|row| (row.group.as_str(), &points[&row.id])), &based(root)?);
    Ok((found, points))
}

/// Returns the rows that were predicted without their group, and those outside of the hull without their region.
///
/// # Errors
/// As [`hull_of`].
pub fn left_out_rows(
    root: &Path,
    rows: &[Row],
    ratios: &[LeftOutRatios],
    regions: &[OutsideRatio],
) -> Result<Vec<LeftOutRow>> {
    let (hull, points) = hull_of(root, rows)?;
    let known: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let one = |id: &str, without: &str, ratio: f64, outside: usize| {
        let (row, without) = (known.get(id), without.to_string());
        let (is_narrow, is_early) = (row.is_some_and(|row| row.is_narrow()), EARLY.contains(&id));
        let weight = row.map_or(1.0, |row| row.weight);
        LeftOutRow { without, measured: 1.0 / ratio, weight, outside, is_narrow, is_early }
    };
    let groups = ratios.iter().filter_map(|found| {
        let outside = hull.outside(points.get(&found.id)?, &[]).len();
        Some(one(&found.id, &known.get(found.id.as_str())?.group, found.group, outside))
    });
    let usual = regions.iter().filter(|one_of| !EARLY.contains(&one_of.id.as_str()));
    let regions = usual.map(|one_of| one(&one_of.id, &one_of.region, one_of.ratio, one_of.outside));
    let mut all: Vec<LeftOutRow> = groups.chain(regions).collect();
    let mut weights: BTreeMap<String, f64> = BTreeMap::new();
    all.iter()
        .filter(|row| row.outside > 0)
        .for_each(|row| *weights.entry(row.without.clone()).or_default() += row.weight);
    all.iter_mut().filter(|row| row.outside > 0).for_each(|row| row.weight /= weights[&row.without]);
    Ok(all)
}

/// Returns the measured over predicted times of the rows of a class.
pub fn measured<'a>(rows: impl IntoIterator<Item = &'a LeftOutRow>, class: Class) -> Vec<Measured> {
    rows.into_iter().filter(|row| class.includes(row)).map(|row| (row.measured, row.weight)).collect()
}

/// Returns the factors between which this share of the times are.
pub fn factors(measured: &[Measured], coverage: f64) -> [f64; 2] {
    let rest = (1.0 - coverage) / 2.0;
    [quantile(measured, rest), quantile(measured, 1.0 - rest)]
}

/// Returns a kind's part of the file of intervals.
pub fn intervals(kind: Kind, rows: &[LeftOutRow]) -> String {
    let mut text = String::new();
    for (key, class) in Class::all(kind) {
        for (coverage, end) in COVERAGES {
            let [low, high] = factors(&measured(rows, class), coverage);
            let _ = writeln!(text, "{}-{key}{end} = [{low:.3}, {high:.3}]", kind.name);
        }
    }
    text
}

/// Returns a kind's part of the file of percentiles.
pub fn percentiles(kind: Kind, rows: &[LeftOutRow]) -> String {
    let mut text = String::new();
    for (key, class) in Class::all(kind) {
        let measured = measured(rows, class);
        let at = |percent: u32| format!("{:.3}", quantile(&measured, f64::from(percent) / 100.0));
        let list = (0..=100).map(at).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{}-{key} = [{list}]", kind.name);
    }
    text
}

/// Returns the share of a class's rows that are in the interval of the rows with another group or region.
pub fn coverage(rows: &[LeftOutRow], class: Class, share: f64) -> f64 {
    let own: Vec<&LeftOutRow> = rows.iter().filter(|row| class.includes(row)).collect();
    let (mut inside, mut all) = (0.0, 0.0);
    for without in own.iter().map(|row| &row.without).collect::<BTreeSet<_>>() {
        let (unseen, seen): (Vec<&LeftOutRow>, Vec<&LeftOutRow>) = own.iter().partition(|row| row.without == *without);
        let [low, high] = factors(&measured(seen, class), share);
        for row in unseen {
            all += row.weight;
            inside += if (low..=high).contains(&row.measured) { row.weight } else { 0.0 };
        }
    }
    inside / all
}

/// Fits each kind's constants, predicts each row of a fixed order without its like, and writes the ratios to the kind's folder and the
/// hull, intervals and percentiles to `hardware/hull.toml`, `intervals.toml` and `published.toml`, all below `root`, the repository.
/// Prints how many rows are outside of the hull, and how many of each class its intervals cover.
///
/// # Errors
/// A table that cannot be read, or files that cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let (mut file, mut published) = (format!("{HEAD}\nearly-before = {EARLY_BEFORE:?}\n"), PUBLISHED_HEAD.to_string());
    let mut hulls = HULL_HEAD.to_string();
    for kind in KINDS {
        let table = root.join(kind.table);
        let text = std::fs::read_to_string(&table).with_context(|| format!("cannot read {}", table.display()))?;
        let fit = CrossValidation::new(&text, true)?;
        let (rows, _) = read(&text)?;
        let (hull, points) = hull_of(root, &rows)?;
        let (ratios, mut regions) = (fit.left_out()?, regions::outside(&fit, kind.cuts, &based(root)?)?);
        regions.extend(regions::reported(root, kind.name == "mixture", &hull)?);
        replace(&root.join(kind.folder).join("left_out.json"), &lines(&ratios)?)?;
        replace(&root.join(kind.folder).join("regions.json"), &lines(&regions)?)?;
        hulls += &regions::written(kind.name, &hull);
        let outside = rows.iter().filter(|row| !hull.outside(&points[&row.id], &[]).is_empty()).count();
        println!("{}: {outside} of {} rows are outside of the hull", kind.name, rows.len());
        let rows = left_out_rows(root, &rows, &ratios, &regions)?;
        for (key, class) in Class::all(kind) {
            let [wide, narrow] = COVERAGES.map(|(share, _)| 100.0 * coverage(&rows, class, share));
            let (count, [low, high]) = (measured(&rows, class).len(), factors(&measured(&rows, class), COVERAGES[0].0));
            println!(
                "{}-{key}: {count} rows, {low:.3} to {high:.3}, covers {wide:.1} %, the middle {narrow:.1} %",
                kind.name
            );
        }
        file += &format!("\n{}", intervals(kind, &rows));
        published += &format!("\n{}", percentiles(kind, &rows));
    }
    replace(&root.join("hardware/published.toml"), &published)?;
    replace(&root.join("hardware/hull.toml"), &hulls)?;
    replace(&root.join("hardware/intervals.toml"), &file)
}

fn lines<T: Serialize>(all: &[T]) -> Result<String> {
    let lines: Vec<String> = all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

fn replace(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Reads the ratios that [`write()`] wrote to `folder`; none if it did not.
///
/// # Errors
/// A file that is not what [`write()`] writes.
pub fn read_ratios(folder: &Path) -> Result<Vec<LeftOutRatios>> {
    read_lines(&folder.join("left_out.json"))
}

/// Reads the ratios by regions that [`write()`] wrote to `folder`; none if it did not.
///
/// # Errors
/// A file that is not what [`write()`] writes.
pub fn read_regions(folder: &Path) -> Result<Vec<OutsideRatio>> {
    read_lines(&folder.join("regions.json"))
}
