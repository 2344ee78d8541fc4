//! The page: predicted against measured on logarithmic axes, errors by kind of row, and the largest misses.

use super::errors::{self, Errors, TRAITS, is_narrow};
use super::held::Held;
use crate::hardware::FITTED;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Colours of families, in turn.
const COLORS: [&str; 10] =
    ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#dd8452", "#55a868", "#8172b3"];

/// How many misses are listed.
const MISSES: usize = 15;

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// The scatter as a picture.
pub fn scatter(rows: &[Held]) -> String {
    const SIZE: f64 = 640.0;
    const LEFT: f64 = 60.0;
    let points: Vec<(f64, f64, &Held)> = rows
        .iter()
        .filter_map(|held| Some((held.row.iteration_s, held.time.as_ref().ok()?.iteration(), held)))
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
    let families: BTreeSet<&str> = points.iter().map(|(.., held)| held.row.family.as_str()).collect();
    let color = |family: &str| COLORS[families.iter().position(|known| *known == family).unwrap_or(0) % COLORS.len()];
    for (measured, predicted, held) in &points {
        let (x, y) = (LEFT + place(*measured), 10.0 + SIZE - place(*predicted));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\" fill-opacity=\"0.7\"><title>{}: {measured:.4} s measured, {predicted:.4} s predicted</title></circle>",
            color(&held.row.family),
            escaped(&held.row.id)
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

/// A table: its caption, header, and rows.
type Sheet = (String, Vec<String>, Vec<Vec<String>>);

fn cells(name: &str, errors: &Errors) -> Vec<String> {
    vec![
        name.to_string(),
        errors.rows.to_string(),
        format!("{:.1}", errors.weight),
        percent(errors.mean),
        percent(errors.median),
        signed(errors.bias),
    ]
}

/// All tables of the page.
fn sheets(rows: &[Held]) -> Vec<Sheet> {
    let header = |first: &str| [first, "rows", "weight", "mean error", "median", "bias"].map(str::to_string).to_vec();
    let wide = |held: &Held| !is_narrow(held);
    let pure = |held: &Held| held.row.tp == 1 && held.row.dp == 1 && held.row.cp == 1 && held.row.pp > 1;
    let whole = vec![
        cells("16 bits", &errors::errors(rows, wide)),
        cells("8 and 4 bits", &errors::errors(rows, is_narrow)),
        cells("pure pipelines", &errors::errors(rows, pure)),
        cells("rule of thumb, 16 bits", &errors::rule_of_thumb(rows, wide)),
        cells("rule of thumb, 8 and 4 bits", &errors::rule_of_thumb(rows, is_narrow)),
    ];
    let mut sheets = vec![("In all".to_string(), header("rows of"), whole)];
    for (name, of) in TRAITS {
        let rows = errors::by(rows, of).iter().map(|(kind, errors)| cells(kind, errors)).collect();
        sheets.push((format!("By {name}"), header(name), rows));
    }
    let mut worst: Vec<(&Held, f64)> = rows.iter().filter_map(|held| Some((held, held.error()?))).collect();
    worst.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let miss = |(held, error): &(&Held, f64)| {
        let row = &held.row;
        let layout =
            format!("tp {} pp {} cp {} dp {}, {} x {}", row.tp, row.pp, row.cp, row.dp, row.micro_batch_size, row.seq);
        let predicted = held.time.as_ref().map_or(0.0, |time| time.iteration());
        vec![
            row.id.clone(),
            row.model.name.clone(),
            layout,
            format!("{:.3} s", row.iteration_s),
            format!("{predicted:.3} s"),
            signed(*error),
            cause(held, *error).to_string(),
        ]
    };
    let header =
        ["row", "model", "layout", "measured", "predicted", "error", "likely cause"].map(str::to_string).to_vec();
    sheets.push(("Largest misses".to_string(), header, worst.iter().take(MISSES).map(miss).collect()));
    let unknown: Vec<Vec<String>> =
        rows.iter().filter_map(|held| Some(vec![held.row.id.clone(), held.time.as_ref().err()?.clone()])).collect();
    if !unknown.is_empty() {
        sheets.push(("Not predicted".to_string(), ["row", "why"].map(str::to_string).to_vec(), unknown));
    }
    sheets
}

/// What of the model of a step is likely to be wrong where a row is far off; judged by what the row is, not by its number.
fn cause(held: &Held, error: f64) -> &'static str {
    let row = &held.row;
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

/// What is said above the tables.
fn summary(rows: &[Held]) -> Vec<String> {
    let held = rows.iter().filter(|held| held.time.is_ok()).count();
    let (right, all) = errors::pairs(rows);
    let ordered = 100.0 * right as f64 / all.max(1) as f64;
    vec![
        format!(
            "{held} of {} published, measured steps are predicted from model, hardware, layout and software alone, with {} fitted constants. \
             Errors are of iteration time; rows count by their weight, which is less than 1 where they are near-duplicates.",
            rows.len(),
            FITTED.len()
        ),
        format!(
            "The constants were fitted on these rows (examples/fit.rs repeats it, and says what comes out where groups, families or machines are left out). \
             Layouts of one model that differ by more than 8 % are ordered as measured in {right} of {all} pairs ({ordered:.1} %)."
        ),
        "The rule of thumb is the median MFU of a GPU and precision over the same rows.".to_string(),
    ]
}

/// The page in Markdown.
pub fn markdown(rows: &[Held]) -> String {
    let mut text = "# Published steps, predicted\n\n".to_string();
    for line in summary(rows) {
        text += &format!("{line}\n\n");
    }
    text += "![predicted against measured](scatter.svg)\n";
    for (caption, header, rows) in sheets(rows) {
        let line = |cells: &[String]| {
            format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
        };
        text += &format!("\n## {caption}\n\n{}", line(&header));
        text += &line(&vec!["---".to_string(); header.len()]);
        rows.iter().for_each(|row| text += &line(row));
    }
    text
}

/// The page in HTML, by itself.
pub fn html(rows: &[Held]) -> String {
    let mut text = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Published steps, predicted</title>\n\
        <style>body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;font-size:13px}\
        td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}svg{max-width:100%}</style>\
        </head><body>\n<h1>Published steps, predicted</h1>\n"
        .to_string();
    for line in summary(rows) {
        text += &format!("<p>{}</p>\n", escaped(&line));
    }
    text += &scatter(rows);
    for (caption, header, rows) in sheets(rows) {
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

/// Rows and errors for programs.
pub fn json(rows: &[Held]) -> serde_json::Value {
    let row = |held: &Held| {
        let time = held.time.as_ref();
        serde_json::json!({
            "id": held.row.id, "family": held.row.family, "group": held.row.group, "weight": held.row.weight,
            "measured_s": held.row.iteration_s,
            "predicted_s": time.ok().map(|time| time.iteration()),
            "time_s": time.ok(),
            "error": held.error(),
            "why_not": time.err(),
        })
    };
    let (right, all) = errors::pairs(rows);
    serde_json::json!({
        "schema_version": 1,
        "fitted_constants": FITTED.len(),
        "errors": {
            "16_bits": errors::errors(rows, |held| !is_narrow(held)),
            "narrow": errors::errors(rows, is_narrow),
            "rule_of_thumb_16_bits": errors::rule_of_thumb(rows, |held| !is_narrow(held)),
        },
        "pairs": {"right": right, "all": all},
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
