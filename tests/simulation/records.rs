//! Records of `pipesim.record`, against what their ranks wrote: the same ops, on one clock, whatever clocks the ranks had.

use crate::support::golden;
use pipesim::imports::{ImportOptions, Run, import};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;

fn ranks() -> [String; 2] {
    [0, 1]
        .map(|rank| fs::read_to_string(golden("record/interleavedzb_p2_m4").join(format!("rank{rank}.jsonl"))).unwrap())
}

fn read(ranks: &[String]) -> Result<Run, String> {
    let folder = tempfile::tempdir().unwrap();
    for (rank, text) in ranks.iter().enumerate() {
        fs::write(folder.path().join(format!("rank{rank}.jsonl")), text).unwrap();
    }
    import(&[folder.path().to_path_buf()], &ImportOptions::default(), &|_, _| ()).map_err(|error| error.to_string())
}

/// Moves all times of a file: numbers of 13 digits or more are times in ns.
fn moved(text: &str, by: i64) -> String {
    let mut out = String::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.parse::<i64>() {
            Ok(time) if digits.len() >= 13 => out += &format!("{}{}", time + by, &part[digits.len()..]),
            _ => out += part,
        }
    }
    out
}

/// Takes the exchanges of times out, which are on both ranks' clocks.
fn without_pings(text: &str) -> String {
    let line = |line: &str| line.find(",\"pings\"").map_or(line.to_string(), |at| format!("{}}}", &line[..at])) + "\n";
    text.lines().map(line).collect()
}

#[test]
fn records_have_all_ops_on_one_clock() {
    let run = read(&ranks()).unwrap();
    assert_eq!((run.ops.found, run.ops.expected, run.messages.found), (4 * 48, 4 * 48, 4 * 24));
    assert_eq!(run.order.as_deref(), Some("interleaved-zb"));
    // Both ranks read one clock: what is found is how far messages leave it open.
    let uncertainty_ns = run.timelines.iter().map(|timeline| timeline.clock_uncertainty_ns).max().unwrap();
    assert!(run.clocks[1].offset_ns.unsigned_abs() <= uncertainty_ns && uncertainty_ns < 500_000, "{:?}", run.clocks);
    // Exchanged times tie clocks without any message of the pipeline as far ahead as the rank was moved.
    let [first, second] = ranks();
    for by in [5_000_000, -3_000_000_000] {
        let moved = read(&[without_pings(&first), moved(&second, by)]).unwrap();
        assert!((moved.clocks[1].offset_ns - by).unsigned_abs() < 1_000_000, "{by}: {:?}", moved.clocks);
        assert_eq!(moved.ops.found, run.ops.found);
    }
}

#[test]
fn a_job_that_runs_or_started_again_is_read() {
    let [first, second] = ranks();
    let cut = &second[..second.len() - 40];
    let run = read(&[first.clone(), cut.to_string()]).unwrap();
    assert_eq!(run.steps().iter().filter(|step| step.incomplete_devices.is_empty()).count(), 3);
    let twice = read(&[first.repeat(2), second.repeat(2)]).unwrap();
    assert_eq!(
        twice.timelines,
        read(&[first, second])
            .unwrap()
            .timelines
            .into_iter()
            .map(|mut timeline| {
                timeline.provenance.clone_from(&twice.timelines[0].provenance);
                timeline
            })
            .collect::<Vec<_>>()
    );
    assert!(twice.warnings.iter().any(|warning| warning.contains("started again; 4 steps")), "{:?}", twice.warnings);
}

/// A byte that is changed or a piece that is cut out gives an error that names the file, or a run.
#[test]
fn damaged_records_are_errors() {
    let [first, second] = ranks();
    let mut dice = ChaCha8Rng::seed_from_u64(11);
    for _ in 0..400 {
        let mut bytes = second.clone().into_bytes();
        let at = dice.random_range(0..bytes.len());
        match dice.random_range(0..3) {
            0 => bytes[at] = dice.random_range(32..127),
            1 => drop(bytes.drain(at..(at + dice.random_range(1..30)).min(second.len()))),
            _ => bytes.insert(at, b"0,]}\"-\n"[dice.random_range(0..7)]),
        }
        let text = String::from_utf8(bytes).unwrap();
        if let Err(error) = read(&[first.clone(), text]) {
            let names_it = error.contains("rank1.jsonl, line ") || error.contains("rank") || error.contains("stage");
            assert!(names_it && error.contains(';'), "{error}");
        }
    }
}
