//! The page "Is my throughput what I should expect?": what it says is predicted is what the commands predict.

use crate::support::{PROGRAM, root};
use std::process::Command;

/// Relative difference from the figures of the page that a new fit may make.
const TOLERANCE: f64 = 0.02;

/// Returns columns of what a command predicts.
fn columns<const N: usize>(line: &str, names: [&str; N]) -> [f64; N] {
    let line = format!("{line} --format csv").replace("pipesim ", &format!("{PROGRAM} "));
    let output = Command::new("sh").args(["-c", &line]).current_dir(root()).output().unwrap();
    // these runs were measured
    let remarks = String::from_utf8_lossy(&output.stderr);
    assert!(!remarks.contains("does not fit"), "{line}: {remarks}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (header, values) = (lines.next().unwrap(), lines.next().unwrap_or_else(|| panic!("{line}: {text}")));
    names.map(|wanted| {
        let column = header.iter().position(|name| *name == wanted).unwrap_or_else(|| panic!("{header:?}"));
        values[column].parse().unwrap_or_else(|_| panic!("{line}: {values:?}"))
    })
}

/// Returns the predicted iteration of a command of the page, in seconds.
fn predicted(line: &str) -> f64 {
    let [iteration_s] = columns(line, ["iteration_s"]);
    iteration_s
}

/// Returns the numbers of a list: "38.1, 33.5".
fn numbers(text: &str) -> Vec<f64> {
    text.split(", ").map(|number| number.trim().parse().unwrap_or_else(|_| panic!("'{text}' is no list"))).collect()
}

#[test]
fn predictions_of_the_throughput_page_are_those_of_its_commands() {
    let page = std::fs::read_to_string(root().join("docs/src/throughput.md")).unwrap();
    let (mut commands, mut sections) = (Vec::new(), 0);
    for line in page.lines() {
        if line.starts_with("pipesim ") && !line.contains("--measured") {
            commands.push(line);
        }
        let Some(figures) = line.strip_prefix("Published: ") else { continue };
        let figures = figures.trim_end_matches(" s.").split_once(" s. Predicted: ").unwrap_or_else(|| panic!("{line}"));
        let [published, stated] = [numbers(figures.0), numbers(figures.1)];
        let found: Vec<f64> = commands.drain(..).map(predicted).collect();
        assert!(published.len() == found.len() && stated.len() == found.len(), "{line}: {found:?}");
        for (stated, found) in stated.iter().zip(&found) {
            assert!((found / stated - 1.0).abs() < TOLERANCE, "{line}: now {found:.3?}");
        }
        sections += 1;
    }
    assert!(commands.is_empty() && sections >= 20, "{sections}");
}

/// The intervals are those of the file for the kind of model and the precision.
#[test]
fn intervals_are_those_of_the_kind_of_model_and_the_precision() {
    let table: toml::Table = std::fs::read_to_string(root().join("hardware/intervals.toml")).unwrap().parse().unwrap();
    let layout = "--hardware h100-sxm --stages 2 --dp 8 --batch 256 --seq 4096 --zero 1 -s 1f1b";
    for (model, precision, key) in [
        ("llama-3-8b", "bf16", "dense-16-bits"),
        ("qwen3-30b-a3b --ep 8 --etp 1", "bf16", "mixture-16-bits"),
        ("qwen3-30b-a3b --ep 8 --etp 1", "fp8", "mixture-8-bits"),
    ] {
        let line = format!("pipesim predict --model {model} {layout} --precision {precision}");
        let [time, low, high] = columns(&line, ["iteration_s", "iteration_low_s", "iteration_high_s"]);
        for (found, expected) in [low / time, high / time].iter().zip(table[key].as_array().unwrap()) {
            assert!((found - expected.as_float().unwrap()).abs() < 1e-3, "{line}: {found} {expected:?}");
        }
    }
}
