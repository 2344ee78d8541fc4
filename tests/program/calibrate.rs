//! `--calibrate`: measured steps of a cluster correct predictions and plans.

use crate::support::PROGRAM;
use serde_json::Value;
use std::process::{Command, Output};

const MODEL: &str = "--model llama-3-8b --hardware h100-sxm --batch 128 --seq 8192 --precision fp8";
const LAYOUT: &str = "--stages 1 --dp 8 --zero 1 -s 1f1b";

/// Runs a verb about the model with this file of runs.
fn run(verb: &str, rest: &str, csv: Option<&str>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("runs.csv"), csv.unwrap_or_default()).unwrap();
    let calibrate = if csv.is_some() { "--calibrate runs.csv" } else { "" };
    let line = format!("{verb} {MODEL} {rest} {calibrate}");
    Command::new(PROGRAM).args(line.split_whitespace()).current_dir(folder.path()).output().unwrap()
}

fn json(verb: &str, rest: &str, csv: Option<&str>) -> Value {
    let output = run(verb, &format!("{rest} --format json"), csv);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A layout that was measured at twice its prediction is predicted at nearly that; its parts still sum to the iteration, its interval is
/// narrower in proportion, and its speeds are half as high.
#[test]
fn a_measured_layout_is_predicted_as_it_was_measured() {
    let plain = &json("predict", LAYOUT, None)["predictions"][0];
    let number = |value: &Value| value.as_f64().unwrap();
    let before = number(&plain["iteration_s"]);
    let csv = format!("measured\n{}\n", 2.0 * before);
    let one = &json("predict", LAYOUT, Some(&csv))["predictions"][0];
    let (after, found) = (number(&one["iteration_s"]), &one["calibration"]);
    assert!((after / before - 2.0).abs() < 0.01, "{after} {before}");
    assert_eq!(number(&found["iteration_s"]), after);
    assert_eq!(number(&found["uncalibrated_iteration_s"]), before);
    assert_eq!((number(&found["likeness"]), number(&found["measured_layouts"])), (1.0, 1.0));
    let parts: f64 = one["time_s"].as_object().unwrap().values().map(number).sum();
    assert!((parts / after - 1.0).abs() < 1e-9, "{parts} {after}");
    for speed in ["tokens_per_second", "tokens_per_second_per_gpu", "mfu"] {
        assert!((number(&plain[speed]) * before / (number(&one[speed]) * after) - 1.0).abs() < 1e-9, "{speed}");
    }
    let ends = |one: &Value| [0, 1].map(|end| number(&one["iteration_interval_s"][end]) / number(&one["iteration_s"]));
    let ([low, high], [wide_low, wide_high]) = (ends(one), ends(plain));
    assert!(wide_low < low && low < 1.0 && 1.0 < high && high < wide_high);
    let stderr = String::from_utf8(run("predict", LAYOUT, Some(&csv)).stderr).unwrap();
    assert!(stderr.contains("calibrated with 1 measured layout: times × ") && stderr.contains("likeness"), "{stderr}");
}

/// Layouts of one command each have their own correction, larger for those that are more alike.
#[test]
fn layouts_are_corrected_by_likeness() {
    let all = json("predict", "--stages 1 --dp 8,4 --tp 1,2 --zero 1 -s 1f1b", Some("tp,dp,measured\n1,8,20\n"));
    let all = all["predictions"].as_array().unwrap();
    let of = |one: &Value, key: &str| one["calibration"][key].as_f64().unwrap();
    assert!(all.len() > 2);
    for one in all {
        let (factor, likeness) = (of(one, "factor"), of(one, "likeness"));
        assert!(factor >= 1.0 && (0.0..=1.0).contains(&likeness), "{one}");
    }
    let mut sorted: Vec<&Value> = all.iter().collect();
    sorted.sort_by(|a, b| of(a, "likeness").total_cmp(&of(b, "likeness")));
    assert!(sorted.is_sorted_by(|a, b| of(a, "factor") <= of(b, "factor")));
}

/// Plans are ranked by corrected times: plan 1 is within 4 % of the best, the others follow by time.
#[test]
fn plans_are_ranked_by_corrected_times() {
    let csv = "pp,tp,dp,zero,measured\n1,1,8,1,12\n2,1,4,1,9\n";
    let found = json("plan", "--gpus 8 --top 6", Some(csv));
    let plans = found["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 6);
    let times: Vec<f64> = plans.iter().map(|plan| plan["calibration"]["iteration_s"].as_f64().unwrap()).collect();
    assert_eq!(times, plans.iter().map(|plan| plan["iteration_s"].as_f64().unwrap()).collect::<Vec<_>>());
    assert!(times[1..].is_sorted() && times[0] <= 1.04 * times[1], "{times:?}");
    let ruled_out: u64 = found["ruled_out"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(found["considered"].as_u64().unwrap(), plans.len() as u64 + ruled_out);
}

/// A log corrects its own layout to its median step; given with a file of runs, both count.
#[test]
fn logs_are_runs() {
    let log = format!("{}/examples/job/train.log", env!("CARGO_MANIFEST_DIR"));
    let of = |rest: &str| {
        let line = format!("predict --job {log} --hardware h100-sxm --format json -q --calibrate {log} {rest}");
        let output = Command::new(PROGRAM).args(line.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let found = of("");
    let [after, measured] = [&found["predictions"][0]["iteration_s"], &found["job"]["measured"]["median_s"]]
        .map(|one| one.as_f64().unwrap());
    assert!((after / measured - 1.0).abs() < 0.01, "{after} {measured}");
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs.csv");
    std::fs::write(&runs, "recompute,measured\nnone,9s\n").unwrap();
    let both = of(&format!("--calibrate {}", runs.display()));
    assert_eq!(both["predictions"][0]["calibration"]["measured_layouts"], 2);
}

#[test]
fn faults_name_the_file() {
    for (csv, message) in [("dp,measured\n8,fast\n", "runs.csv: line 2: column 'measured'"), ("", "runs.csv: expected")]
    {
        let output = run("predict", LAYOUT, Some(csv));
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(message), "{stderr}");
    }
}
