//! What a run keeps resident, by the system's account, against what it says beforehand that it will.

use crate::support::PROGRAM;
use assert_cmd::Command;
use serde_json::Value;

/// Within 5 % (or 12 MiB, what the allocator and the process itself take or not), on one device and two, with one schedule and two besides the calibrating one, whatever is kept in flight.
#[test]
fn a_run_takes_the_memory_that_it_predicts() {
    let runs = [
        "--stages 1 --micro 2 -s 1f1b --warmup 0 --blocks 4",
        "--stages 2 --micro 4 -s gpipe --warmup 1 --blocks 4",
        "--stages 2 --micro 2 -s gpipe,zb-v --warmup 1 --blocks 4",
        "--stages 2 --micro 8 -s gpipe --warmup 1 --blocks 2 --channels 96 --seq 128",
    ];
    for words in runs {
        let sequence = if words.contains("--seq") { "" } else { "--seq 16" };
        let line = format!("run {words} {sequence} --model tiny --device cpu --steps 1 --format json -q");
        let output = Command::new(PROGRAM).args(line.split_whitespace()).output().unwrap();
        let printed: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{line}: {e}: {output:?}"));
        let bytes = |key: &str| printed["memory"][key].as_f64().unwrap();
        let error = bytes("predicted_bytes") / bytes("measured_bytes") - 1.0;
        println!("{words}: {:.1} MiB, {:+.2} %", bytes("measured_bytes") / f64::from(1 << 20), 100.0 * error);
        let off = (bytes("predicted_bytes") - bytes("measured_bytes")).abs();
        assert!(error.abs() <= 0.05 || off <= f64::from(12 << 20), "{words}: {error}");
    }
}
