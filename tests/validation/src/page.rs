//! The page: predicted against measured times on logarithmic axes, errors by kind of row, and the largest errors.

use crate::errors::{self, Errors, GROUPINGS, is_narrow};
use crate::fit::LeftOutRatios;
use crate::fitted::fitted_to;
use crate::matched::matched;
use crate::prediction::RowPrediction;
use crate::regret;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Colors of the families.
const COLORS: [&str; 10] =
    ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#dd8452", "#55a868", "#8172b3"];

/// Number of large errors to list.
const MISSES: usize = 15;

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// Returns the scatter plot as SVG.
fn scatter(rows: &[RowPrediction]) -> String {
    const SIZE: f64 = 640.0;
    const LEFT: f64 = 60.0;
    let points: Vec<(f64, f64, &RowPrediction)> = rows
        .iter()
        .filter_map(|prediction| {
            Some((prediction.row.iteration_s, prediction.time.as_ref().ok()?.iteration(), prediction))
        })
        .filter(|(measured, predicted, _)| *measured > 0.0 && *predicted > 0.0)
        .collect();
    let all = || points.iter().flat_map(|(measured, predicted, _)| [*measured, *predicted]);
    let low = all().fold(f64::INFINITY, f64::min).max(1e-6).log10().floor().clamp(-6.0, 6.0);
    let high = all().fold(0.0, f64::max).max(1e-5).log10().ceil().clamp(low + 1.0, 9.0);
    let place = |seconds: f64| (seconds.log10() - low) / (high - low) * SIZE;
    let (width, height) = (LEFT + SIZE + 190.0, SIZE + 60.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut decade = low;
    while decade <= high {
        let at = (decade - low) / (high - low) * SIZE;
        let label = if decade < 0.0 {
            format!("{} ms", 10f64.powf(decade + 3.0).round())
        } else {
            format!("{} s", 10f64.powf(decade).round())
        };
        let (x, y) = (LEFT + at, 10.0 + SIZE - at);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} 10V{:.1}M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\"/>",
            10.0 + SIZE,
            LEFT + SIZE
        );
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", SIZE + 26.0);
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, y + 4.0);
        decade += 1.0;
    }
    let line = |factor: f64, dash: &str| {
        let shift = factor.log10() / (high - low) * SIZE;
        let (from, to) = ((-shift).max(0.0), (SIZE - shift).min(SIZE));
        format!(
            "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#888\" fill=\"none\"{dash}/>\n",
            LEFT + from,
            10.0 + SIZE - from - shift,
            LEFT + to,
            10.0 + SIZE - to - shift
        )
    };
    svg += &(line(1.0, "") + &line(1.1, " stroke-dasharray=\"4 4\"") + &line(1.0 / 1.1, " stroke-dasharray=\"4 4\""));
    let families: BTreeSet<&str> = points.iter().map(|(.., prediction)| prediction.row.family.as_str()).collect();
    let color = |family: &str| COLORS[families.iter().position(|known| *known == family).unwrap_or(0) % COLORS.len()];
    for (measured, predicted, prediction) in &points {
        let (x, y) = (LEFT + place(*measured), 10.0 + SIZE - place(*predicted));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\" fill-opacity=\"0.7\"><title>{}: {measured:.4} s measured, {predicted:.4} s predicted</title></circle>",
            color(&prediction.row.family),
            escaped(&prediction.row.id)
        );
    }
    for (number, family) in families.iter().enumerate() {
        let y = 24.0 + 18.0 * number as f64;
        let x = LEFT + SIZE + 16.0;
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            color(family),
            x + 10.0,
            y + 4.0,
            escaped(family)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">measured iteration (dashed: 10 % off)</text>",
        LEFT + SIZE / 2.0,
        SIZE + 48.0
    );
    let _ = writeln!(
        svg,
        "<text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">predicted iteration</text>",
        10.0 + SIZE / 2.0
    );
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table: caption, header and rows.
type Sheet = (String, Vec<String>, Vec<Vec<String>>);

fn cells(name: &str, errors: &Errors, left_out: Option<Errors>) -> Vec<String> {
    let left_out = left_out.filter(|errors| errors.rows > 0);
    let left_out = left_out.map(|errors| [percent(errors.mean), percent(errors.median), signed(errors.bias)]);
    let left_out = left_out.unwrap_or_default();
    let fitted = [
        name.to_string(),
        errors.rows.to_string(),
        format!("{:.1}", errors.weight),
        percent(errors.mean),
        percent(errors.median),
        signed(errors.bias),
    ];
    fitted.into_iter().chain(left_out).collect()
}

/// Returns a row's left-out ratio for a grouping: without its family or machine where the table is by these, otherwise without
/// its group.
fn ratio_of(ratios: &LeftOutRatios, grouping: &str) -> f64 {
    match grouping {
        "family" => ratios.family,
        "GPU" => ratios.machine,
        _ => ratios.group,
    }
}

/// Returns the errors of the rows that `includes` accepts, by fits without them.
fn left_out_errors(
    rows: &[RowPrediction],
    ratios: &[LeftOutRatios],
    grouping: &str,
    includes: impl Fn(&RowPrediction) -> bool,
) -> Errors {
    let known: BTreeMap<&str, &LeftOutRatios> = ratios.iter().map(|ratios| (ratios.id.as_str(), ratios)).collect();
    let error = |prediction: &RowPrediction| {
        Some((ratio_of(known.get(prediction.row.id.as_str())?, grouping) - 1.0, prediction.row.weight))
    };
    Errors::of(&rows.iter().filter(|prediction| includes(prediction)).filter_map(error).collect::<Vec<_>>())
}

/// Returns all tables of the page.
fn sheets(rows: &[RowPrediction], ratios: &[LeftOutRatios]) -> Vec<Sheet> {
    let header = |first: &str, left_out: &str| {
        let fitted = [first, "rows", "weight", "mean error", "median", "bias"].map(str::to_string);
        let left_out = ["mean", "median", "bias"].map(|what| format!("{what} without its {left_out}"));
        fitted.into_iter().chain(left_out).collect::<Vec<_>>()
    };
    let wide = |prediction: &RowPrediction| !is_narrow(prediction);
    let pure = |prediction: &RowPrediction| {
        prediction.row.tp == 1 && prediction.row.dp == 1 && prediction.row.cp == 1 && prediction.row.pp > 1
    };
    let whole = vec![
        cells("16 bits", &errors::errors(rows, wide), Some(left_out_errors(rows, ratios, "", wide))),
        cells("8 and 4 bits", &errors::errors(rows, is_narrow), Some(left_out_errors(rows, ratios, "", is_narrow))),
        cells("pure pipelines", &errors::errors(rows, pure), Some(left_out_errors(rows, ratios, "", pure))),
        cells("rule of thumb, 16 bits", &errors::rule_of_thumb(rows, wide), None),
        cells("rule of thumb, 8 and 4 bits", &errors::rule_of_thumb(rows, is_narrow), None),
    ];
    let mut sheets = vec![("In all".to_string(), header("rows of", "group"), whole)];
    for (name, of) in GROUPINGS {
        let line = |kind: &String| {
            let includes = |prediction: &RowPrediction| of(prediction) == *kind;
            let left_out = left_out_errors(rows, ratios, name, includes);
            cells(kind, &errors::errors(rows, includes), Some(left_out))
        };
        let left_out = match name {
            "family" => "family",
            "GPU" => "machine",
            _ => "group",
        };
        sheets.push((format!("By {name}"), header(name, left_out), errors::kinds(rows, of).iter().map(line).collect()));
    }
    let mut worst: Vec<(&RowPrediction, f64)> =
        rows.iter().filter_map(|prediction| Some((prediction, prediction.error()?))).collect();
    worst.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let miss = |(prediction, error): &(&RowPrediction, f64)| {
        let row = &prediction.row;
        let layout =
            format!("tp {} pp {} cp {} dp {}, {} x {}", row.tp, row.pp, row.cp, row.dp, row.micro_batch_size, row.seq);
        let predicted = prediction.time.as_ref().map_or(0.0, |time| time.iteration());
        vec![
            row.id.clone(),
            row.model.name.clone(),
            layout,
            format!("{:.3} s", row.iteration_s),
            format!("{predicted:.3} s"),
            signed(*error),
            cause(prediction, *error).to_string(),
        ]
    };
    let header =
        ["row", "model", "layout", "measured", "predicted", "error", "likely cause"].map(str::to_string).to_vec();
    sheets.push(("Largest misses".to_string(), header, worst.iter().take(MISSES).map(miss).collect()));
    sheets.extend(pairs_sheet(rows));
    sheets.extend(regret_sheets(rows));
    let unknown: Vec<Vec<String>> = rows
        .iter()
        .filter_map(|prediction| Some(vec![prediction.row.id.clone(), prediction.time.as_ref().err()?.clone()]))
        .collect();
    if !unknown.is_empty() {
        sheets.push(("Not predicted".to_string(), ["row", "why"].map(str::to_string).to_vec(), unknown));
    }
    sheets
}

/// Returns the table of rows that differ in one setting; `None` without any.
fn pairs_sheet(rows: &[RowPrediction]) -> Option<Sheet> {
    let change = |ratio: f64| signed(ratio - 1.0);
    let verdict = |holds: bool| if holds { "yes" } else { "no" }.to_string();
    let pairs = matched(rows);
    let line = |pair: &crate::matched::MatchedPair| {
        let [first, second] = &pair.ids;
        let figures = [change(pair.measured), change(pair.predicted)];
        let verdicts = [verdict(pair.has_right_sign()), verdict(pair.has_right_size())];
        let names = [format!("{first}, {second}"), pair.change.clone()];
        names.into_iter().chain(figures).chain(verdicts).collect()
    };
    let header = ["rows", "change", "measured", "predicted", "sign", "within a third"].map(str::to_string).to_vec();
    let caption = "Rows that differ in one setting".to_string();
    (!pairs.is_empty()).then(|| (caption, header, pairs.iter().map(line).collect()))
}

/// Returns the regrets of choosing layouts by prediction; none without grids of layouts.
fn regret_sheets(rows: &[RowPrediction]) -> Vec<Sheet> {
    let captions = ["Regret of choosing the layout by prediction", "Regret in all"].map(str::to_string);
    let [each, all] = regret::of_published(rows);
    let tables = if each.1.is_empty() { Vec::new() } else { vec![each, all] };
    captions.into_iter().zip(tables).map(|(caption, (header, rows))| (caption, header, rows)).collect()
}

/// Returns the likely cause of a large error, judged from the properties of the row.
fn cause(prediction: &RowPrediction, error: f64) -> &'static str {
    let row = &prediction.row;
    let long = row.seq >= 65_536;
    match () {
        () if row.zero == Some(3) && row.gpus >= 256 && error < 0.0 => {
            "gathers of weights over many nodes, slower than a ring's"
        }
        () if long => "attention of long sequences: the kernels are not known",
        () if row.gpus >= 256 && row.dp >= 32 && error < 0.0 => "collectives over many nodes",
        () if row.tp > 1 && row.micro_batch_size <= 2 && error < 0.0 => "host-bound: launches with tensor parallelism",
        () if error < -0.3 => "slower than alike layouts; memory nearly full",
        () => "not known",
    }
}

/// Returns the paragraphs above the tables.
fn summary(rows: &[RowPrediction]) -> Vec<String> {
    let predicted = rows.iter().filter(|row| row.time.is_ok()).count();
    let (right, all) = errors::pairs(rows);
    let ordered = 100.0 * right as f64 / all.max(1) as f64;
    vec![
        format!(
            "{predicted} of {} published, measured steps are predicted from model, hardware, layout and software alone, with {} fitted constants. \
             Errors are weighted errors of the iteration time; near-duplicate rows have a weight below 1.",
            rows.len(),
            fitted_to(rows.iter().map(|row| &row.row)).len()
        ),
        format!(
            "The constants were fitted on these rows (`cargo run --release -p pipesim-validation -- fit` repeats the fit, also with groups, families or machines left out). \
             Of {all} pairs of layouts of one model that differ by more than 8 %, {right} ({ordered:.1} %) are ranked correctly."
        ),
        "Columns 'without its group, family or machine' have errors of fits without rows of the same publication, model, precision and GPU, \
         of the same publication, or of the same GPU (`pipesim-validation left-out`). They estimate the error of a new prediction."
            .to_string(),
        "The rule of thumb is the median MFU of a GPU and precision over the same rows.".to_string(),
    ]
}

/// Writes the page to `folder` and returns it in Markdown.
///
/// # Errors
/// The files cannot be written.
pub fn write(rows: &[RowPrediction], ratios: &[LeftOutRatios], folder: &Path) -> Result<String> {
    let markdown = markdown(rows, ratios);
    let files = [
        ("README.md", markdown.clone()),
        ("index.html", html(rows, ratios)),
        ("scatter.svg", scatter(rows)),
        ("published.json", serde_json::to_string_pretty(&json(rows))? + "\n"),
    ];
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(markdown)
}

/// Returns the page in Markdown.
fn markdown(rows: &[RowPrediction], ratios: &[LeftOutRatios]) -> String {
    let mut text = "# Published steps, predicted\n\n".to_string();
    for line in summary(rows) {
        text += &format!("{line}\n\n");
    }
    text += "![predicted against measured](scatter.svg)\n";
    for (caption, header, rows) in sheets(rows, ratios) {
        let line = |cells: &[String]| {
            format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
        };
        text += &format!("\n## {caption}\n\n{}", line(&header));
        text += &line(&vec!["---".to_string(); header.len()]);
        rows.iter().for_each(|row| text += &line(row));
    }
    text
}

/// Returns the page as self-contained HTML.
fn html(rows: &[RowPrediction], ratios: &[LeftOutRatios]) -> String {
    let mut text = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Published steps, predicted</title>\n\
        <style>body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;font-size:13px}\
        td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}svg{max-width:100%}</style>\
        </head><body>\n<h1>Published steps, predicted</h1>\n"
        .to_string();
    for line in summary(rows) {
        text += &format!("<p>{}</p>\n", escaped(&line));
    }
    text += &scatter(rows);
    for (caption, header, rows) in sheets(rows, ratios) {
        let line = |cells: &[String], tag: &str| {
            let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect::<String>();
            format!("<tr>{cells}</tr>\n")
        };
        text += &format!("<h2>{}</h2>\n<table>\n{}", escaped(&caption), line(&header, "th"));
        rows.iter().for_each(|row| text += &line(row, "td"));
        text += "</table>\n";
    }
    text + "</body></html>\n"
}

/// Returns rows and errors as JSON.
fn json(rows: &[RowPrediction]) -> serde_json::Value {
    let row = |prediction: &RowPrediction| {
        let time = prediction.time.as_ref();
        serde_json::json!({
            "id": prediction.row.id, "family": prediction.row.family, "group": prediction.row.group, "weight": prediction.row.weight,
            "measured_s": prediction.row.iteration_s,
            "predicted_s": time.ok().map(|time| time.iteration()),
            "time_s": time.ok(),
            "error": prediction.error(),
            "why_not": time.err(),
        })
    };
    let (right, all) = errors::pairs(rows);
    serde_json::json!({
        "schema_version": 1,
        "fitted_constants": fitted_to(rows.iter().map(|row| &row.row)).len(),
        "matched_pairs": matched(rows),
        "errors": {
            "16_bits": errors::errors(rows, |prediction| !is_narrow(prediction)),
            "narrow": errors::errors(rows, is_narrow),
            "rule_of_thumb_16_bits": errors::rule_of_thumb(rows, |prediction| !is_narrow(prediction)),
        },
        "pairs": {"right": right, "all": all},
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
