//! How numbers, texts and names of files are written and read.

use crate::report::sample;
use pipesim::internals::report::{Output, OutputKind, folded, number, off_by, percent, plus_minus, quantity, visible};
use pipesim::{Report, Table};
use std::path::Path;

#[test]
fn numbers_have_significant_digits_and_thousands() {
    for (value, text) in [
        (33.0, "33"),
        (0.0, "0"),
        (-0.0, "0"),
        (1234.5, "1,234"),
        (-1234567.0, "-1,234,567"),
        (12.3456, "12.35"),
        (0.0012345, "0.001234"),
        (0.1 + 0.2, "0.3"),
        (999.96, "1,000"),
        (f64::NAN, "–"),
        (1e300, "1.000e300"),
    ] {
        assert_eq!(number(value), text, "{value:e}");
    }
    assert_eq!([0.2727, -0.00001, 149.5].map(percent), ["27.3 %", "0.0 %", "14,950 %"]);
    let errors = [0.2617, -0.012, 0.0004, -0.0004].map(off_by);
    assert_eq!(errors, ["26.2 % too long", "1.2 % too short", "0.0 %", "0.0 %"]);
    let noise = [0.012, 0.0994, 0.0996, 0.25, 12.0].map(plus_minus);
    assert_eq!(noise, ["± 1.2 %", "± 9.9 %", "± 10 %", "± 25 %", "± 1,200 %"]);
    assert_eq!([quantity(1.0, "unit"), quantity(33.0, "unit")], ["1 unit", "33 units"]);
}

#[test]
fn texts_are_escaped_and_folded() {
    assert_eq!(visible("a\u{1b}[2J\r\nb\t\u{9b}\u{202e}", 99), "a\\u{1b}[2J\\u{d}\nb\t\\u{9b}\\u{202e}");
    assert_eq!(visible(&"é".repeat(50), 8), "éééé ... (92 more bytes)");
    let text =
        "short\nname     one two three four\n  indented words and more words\n\n/a/path/that/is/longer/than/the/room\n";
    let narrow = "short\nname     one two\n         three four\n  indented words and\n  more words\n\n/a/path/that/is/long\ner/than/the/room\n";
    assert_eq!([Some(80), Some(20), None].map(|width| folded(text, width)), [text, narrow, text]);
}

fn shape(name: &str) -> &'static str {
    match Output::named(name) {
        Ok(Output { shape: OutputKind::Stdout, .. }) => "stdout",
        Ok(Output { shape: OutputKind::File(..), .. }) => "file",
        Ok(Output { shape: OutputKind::Folder, .. }) => "folder",
        Err(_) => "refused",
    }
}

#[test]
fn a_name_says_what_is_written() {
    let cases = [
        ("stdout", "-"),
        ("file", "x.svg x.pdf x.tex X.SVG x.trace.json.gz a.b.csv /v1.2/x.html ./-.json x.trace.json .x.svg"),
        ("folder", "out out/ . .. / ./ ../ a/.. v1.2/ x.eps/ x.svg/ .x ./- ~ -x a.b/c"),
        ("refused", "x.eps e.MD x.txt x.trace x.gz x.json.gz v1.2 x. .svg .trace.json a/.png x.svg~ ..."),
    ];
    for (expected, names) in cases {
        names.split(' ').for_each(|name| assert_eq!(shape(name), expected, "{name}"));
    }
    assert_eq!(shape(""), "refused");
    let error = Output::named("x.eps").unwrap_err().to_string();
    assert!(error.contains(".svg .png .pdf .html") && error.contains("write x.eps/"), "{error}");
    for (name, ok) in [
        ("-", true),
        ("c.JSON", true),
        ("costs", true),
        ("/dev/fd/3", true),
        ("c.pdf", false),
        ("c/", false),
        ("", false),
        (".", false),
    ] {
        assert_eq!(Output::of_one_file(Path::new(name), &[".json"]).is_ok(), ok, "{name}");
    }
}

#[test]
fn latex_has_three_rules_and_no_commands_from_texts() {
    let texts = |row: &[&str]| row.iter().map(ToString::to_string).collect::<Vec<_>>();
    let header = texts(&["schedule", "bubble", r"~^\ &%_#${}"]);
    let rows = vec![texts(&["1f1b_x", "27.3 %", "2 × 3 µs · 1−2\u{1b}"]), texts(&["naive"])];
    let table = Table { caption: "50 % & more".to_string(), header, rows };
    let found = Report { extra_tables: vec![table], entries: Vec::new(), ..sample(2, 2, 0.0, false) }.latex();
    let expected = "\\begin{table}\n  \\centering\\small\\tabcolsep=5pt\n  \\caption{50 \\% \\& more}\n  \\begin{tabular}{lrr}\n    \\toprule\n    \
                    schedule & bubble & \\shortstack[r]{\\textasciitilde{}\\textasciicircum{}\\textbackslash{}\\\\\\&\\%\\_\\#\\$\\{\\}} \\\\\n    \
                    \\midrule\n    1f1b\\_x & 27.3 \\% & 2 $\\times$ 3 $\\mu$s $\\cdot$ 1$-$2 \\\\\n    naive &  & \\\\\n    \
                    \\bottomrule\n  \\end{tabular}\n\\end{table}\n";
    assert!(found.ends_with(expected), "{found}\n{expected}");
}

#[test]
fn folders_are_tried_out_by_many_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = Output::named(folder.path().join("reports/latest")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| place.try_out().unwrap()));
        }
    });
}
