//! The page "Is my throughput what I should expect?": what it says is predicted is what the commands predict.

use crate::support::{PROGRAM, root};
use std::process::Command;

/// Relative difference from the figures of the page that a new fit may make.
const TOLERANCE: f64 = 0.02;

/// Returns the predicted iteration of a command of the page, in seconds.
fn predicted(line: &str) -> f64 {
    let line = format!("{line} --format csv").replace("pipesim ", &format!("{PROGRAM} "));
    let output = Command::new("sh").args(["-c", &line]).current_dir(root()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (header, values) = (lines.next().unwrap(), lines.next().unwrap_or_else(|| panic!("{line}: {text}")));
    let column = header.iter().position(|name| *name == "iteration_s").unwrap_or_else(|| panic!("{header:?}"));
    values[column].parse().unwrap_or_else(|_| panic!("{line}: {values:?}"))
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
        if line.starts_with("pipesim ") {
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
    assert!(commands.is_empty() && sections >= 18, "{sections}");
}
