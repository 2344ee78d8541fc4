//! Options that are changed by hand are read as Megatron-LM's argparse reads them, or are refused in its words.

use pipesim_jobs::{Job, JobError, Launch, Setting, Settings, Sources, megatron};
use serde_json::Value;

/// Rows that the real parser read: see megatron.py.
const ROWS: &str = include_str!("megatron.json");
/// Options of a whole number that most rows have, and flags (`action='store_true'`).
const NUMBERS: [&str; 3] = ["num-layers", "hidden-size", "micro-batch-size"];
const FLAGS: [&str; 4] = ["bf16", "swiglu", "sequence-parallel", "use-distributed-optimizer"];

fn setting(name: &str, values: &[&str]) -> Setting {
    let values = values.iter().map(|value| value.to_string()).collect();
    Setting { name: name.to_string(), values, place: "job.sh:1".to_string(), ..Setting::default() }
}

fn read(settings: &[Setting], world: Option<u32>) -> Result<Job, JobError> {
    let settings = Settings(settings.to_vec());
    let launch = Launch { program: "pretrain_gpt.py".to_string(), settings, world, ..Launch::default() };
    megatron::read(&launch, &Sources::default())
}

/// Returns the options and GPUs of each row that the real parser takes.
fn rows() -> Vec<(Vec<Setting>, Option<u32>)> {
    let rows: Vec<Value> = serde_json::from_str(ROWS).expect("a table");
    let taken = rows.iter().filter(|row| row.get("reading").is_some());
    let options = |row: &Value| {
        let mut all: Vec<Setting> = Vec::new();
        for word in row["arguments"].as_array().expect("words").iter().filter_map(Value::as_str) {
            match (word.strip_prefix("--"), all.last_mut()) {
                (None, Some(last)) => last.values.push(word.to_string()),
                (name, _) => all.push(setting(name.expect("an option comes first"), &[])),
            }
        }
        (all, row["world"].as_u64().map(|world| world as u32))
    };
    taken.map(options).collect()
}

#[test]
fn nothing_that_the_real_parser_takes_is_refused() {
    for (options, world) in rows() {
        let job = read(&options, world).expect("a job");
        assert!(job.refused.is_empty(), "{options:?}: {:?}", job.refused);
    }
}

#[test]
fn what_the_real_parser_refuses_is_no_silent_reading() {
    let mut mutations = 0;
    let mut check = |options: &[Setting], world: Option<u32>, expected: String| {
        mutations += 1;
        let job = read(options, world);
        let said = job.as_ref().map_or_else(|error| vec![error.to_string()], |job| job.refused.clone());
        let found = said.iter().any(|one| one.starts_with(&expected)) || job.is_err();
        assert!(found, "{options:?}: expected {expected}, found {said:?}");
    };
    for (options, world) in rows().into_iter().step_by(40) {
        let changed = |name: &str, to: Setting| -> Vec<Setting> {
            let at = options.iter().rposition(|one| one.name == name).expect("an option of all rows");
            let mut all = options.clone();
            all[at] = to;
            all
        };
        for name in NUMBERS {
            for value in ["None", "1e3", "1__0", "_1", "4.0", "x", "--", ""] {
                let expected = format!("argument --{name}: invalid int value: '{value}'");
                check(&changed(name, setting(name, &[value])), world, expected);
            }
            check(&changed(name, setting(name, &["8", "33"])), world, "unrecognized arguments: 33".to_string());
            check(&changed(name, setting(name, &["8", "-x"])), world, "unrecognized arguments: -x".to_string());
            check(&changed(name, setting(name, &[])), world, format!("argument --{name}: expected one argument"));
            let other = name.replace('-', "_");
            check(&changed(name, setting(&other, &["8"])), world, format!("unrecognized arguments: --{other} 8"));
        }
        for (name, value) in FLAGS.into_iter().zip(["true", "false", "1", "True"]) {
            let all = [options.clone(), vec![setting(name, &[value])]].concat();
            check(&all, world, format!("unrecognized arguments: {value}"));
        }
        for name in ["recompute-granularity", "recompute-method", "fp8-format", "moe-token-dispatcher-type"] {
            let all = [options.clone(), vec![setting(name, &["foo"])]].concat();
            check(&all, world, format!("argument --{name}: invalid choice: 'foo'"));
        }
    }
    assert!(mutations > 150, "{mutations}");
}

#[test]
fn numbers_are_those_of_python() {
    let (options, world) = rows().swap_remove(0);
    for (value, layers) in [("007", 7), ("+4", 4), (" 4 ", 4), ("1_000", 1000)] {
        let all = [options.clone(), vec![setting("num-layers", &[value])]].concat();
        let job = read(&all, world).expect("a job");
        assert_eq!((job.reading.layers, job.refused), (Some(layers), Vec::new()), "'{value}'");
    }
}
