//! The outside contract: what each verb prints and writes, where, and with which exit code.

use crate::support::{PROGRAM, golden_json};
use assert_cmd::Command;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gpt2");
const SMALL: &str = "predict --stages 4 --micro 8";

/// Code, stdout and stderr of a command.
pub type Done = (i32, String, String);

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.timeout(Duration::from_secs(400)).env_remove("NO_COLOR").env_remove("COLUMNS").env("RUST_BACKTRACE", "0");
    command
}

fn finish(mut command: Command) -> Done {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let done = (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr));
    assert!(!done.2.contains("panicked") || done.2.contains("injected fault"), "{}", done.2);
    done
}

/// Runs the program; arguments are separated by spaces.
pub fn pipesim(arguments: &str) -> Done {
    let mut command = command(PROGRAM);
    command.args(arguments.split_whitespace());
    finish(command)
}

/// Runs a shell line in which `$P` is the program.
fn shell(line: &str) -> Done {
    let mut command = command("bash");
    command.env("P", PROGRAM).args(["-c", line]);
    finish(command)
}

#[track_caller]
pub fn fails(arguments: &str, code: i32, parts: &[&str]) {
    let (found, out, err) = pipesim(arguments);
    assert_eq!(found, code, "{arguments}: {err}");
    assert!(out.is_empty(), "{arguments} printed {out}");
    parts.iter().for_each(|part| assert!(err.contains(part), "{arguments}: expected '{part}' in {err}"));
}

#[track_caller]
pub fn json(arguments: &str) -> Value {
    let (code, out, err) = pipesim(arguments);
    assert_eq!(code, 0, "{arguments}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn numbers(list: &Value, key: &str) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_f64().unwrap()).collect()
}

fn file(folder: &TempDir, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const PREDICTION: &str = "schedule devices chunks microbatches time_unit costs makespan span ideal bubble span_bubble \
                          bubble_over_ideal efficiency lower_bound gap_to_bound lower_bound_if_split per_device";

#[test]
fn predict_prints_the_documented_object() {
    let found = json(&format!("{SMALL} --format json"));
    assert_eq!((keys(&found), &found["schema_version"]), (vec!["schema_version", "predictions"], &Value::from(1)));
    let list = &found["predictions"];
    let schedules: Vec<&str> = list.as_array().unwrap().iter().map(|p| p["schedule"].as_str().unwrap()).collect();
    assert_eq!(schedules, ["naive", "gpipe", "1f1b", "zb-v"]);
    assert_eq!(numbers(list, "makespan"), [96.0, 33.0, 33.0, 25.5]);
    assert_eq!(numbers(list, "span")[3], 24.0);
    let peak = |p: &Value| numbers(&p["per_device"], "peak_activations").into_iter().fold(0.0, f64::max);
    assert_eq!(list.as_array().unwrap().iter().map(peak).collect::<Vec<_>>(), [1.0, 8.0, 4.0, 4.0]);
    for p in list.as_array().unwrap() {
        assert_eq!(keys(p).join(" "), PREDICTION);
        assert_eq!(keys(&p["costs"]), ["F", "I", "W", "B", "comm", "keep"]);
        assert_eq!(keys(&p["per_device"][0]), ["device", "busy", "idle", "peak_activations"]);
        assert_eq!((&p["time_unit"], p["per_device"].as_array().unwrap().len()), (&Value::from("unit"), 4));
    }
    let p = &list[2];
    let close = |key: &str, value: f64| assert!((p[key].as_f64().unwrap() - value).abs() < 1e-12, "{key}: {p}");
    let shares =
        [("bubble", 3.0 / 11.0), ("span_bubble", 3.0 / 11.0), ("bubble_over_ideal", 0.375), ("gap_to_bound", 0.0)];
    let rest = [("ideal", 24.0), ("efficiency", 8.0 / 11.0), ("lower_bound", 33.0)];
    shares.into_iter().chain(rest).for_each(|(key, value)| close(key, value));
}

#[test]
fn data_goes_to_stdout_and_remarks_to_stderr() {
    for format in ["table", "json", "csv", "md"] {
        let (code, out, err) = pipesim(&format!("{SMALL} --format {format}"));
        assert!(code == 0 && err.contains("costs: units") && !out.contains("costs: units"), "{format}: {err}");
        let (_, quiet_out, quiet) = pipesim(&format!("{SMALL} --format {format} -q"));
        assert_eq!((quiet.as_str(), quiet_out), ("", out));
    }
    let csv = pipesim(&format!("{SMALL} --format csv")).1;
    let widths: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(widths, [18; 5]);
    assert!(csv.starts_with("schedule,devices,chunks,microbatches,time_unit,makespan"), "{csv}");
    assert!(pipesim(&format!("{SMALL} --format md")).1.lines().any(|line| line.starts_with("| zb-v")));
}

#[test]
fn names_are_forgiving() {
    let makespan = |name: &str| json(&format!("{SMALL} --format json -s {name}"))["predictions"][0]["makespan"].clone();
    for name in ["zb-v", "ZB-V", "zbv", "Zb_V", "ZBV"] {
        assert_eq!(makespan(name), 25.5, "{name}");
    }
}

/// Wherever a number of costs, times or factors is taken: as people write it, and as scripts print it.
#[test]
fn numbers_are_taken_as_scripts_print_them() {
    for number in [
        "18.522000000000002",
        "1.3333333333333333",
        "4/3",
        "1.8522000000000002e-05",
        "5E+2",
        "1.0E0",
        ".5",
        "0.366412213740458",
    ] {
        for flag in ["--costs F=", "--costs I=1,W=1,B=", "--costs comm=", "--straggler 1=", "--transfer "] {
            let found = json(&format!("{SMALL} --format json -q {flag}{number}"));
            assert!(found["predictions"][0]["makespan"].as_f64().unwrap() > 0.0, "{flag}{number}: {found}");
        }
    }
    for machine in [
        "--jitter 0.30000000000000004 --samples 2",
        "--jitter 1/3 --samples 2",
        "--overlap-slowdown 1.2000000000000002",
    ] {
        assert_eq!(pipesim(&format!("{SMALL} -s 1f1b -q {machine}")).0, 0, "{machine}");
    }
    // What a script adds up is what a person means, to the last tick.
    let same = |a: &str, b: &str| {
        let of = |costs: &str| json(&format!("{SMALL} --format json -q --costs {costs}"))["predictions"].clone();
        assert_eq!(of(a), of(b), "{a} {b}");
    };
    same("F=18.522000000000002,I=0.30000000000000004,keep=0.7999999999999999", "F=18.522,I=0.3,keep=0.8");
    same("F=4/3,W=1/8", "F=1.3333333333333333,W=0.125");
    for number in ["1e16", "1e-99", "1/0", "infinity", "-1/3", "1e", "٣"] {
        fails(&format!("{SMALL} --costs F={number}"), 2, &["--costs", "expected a number such as 1.25"]);
        fails(&format!("{SMALL} --transfer={number}"), 2, &["--transfer", "expected a number such as 1.25"]);
    }
    fails(&format!("{SMALL} --transfer=1/2/3"), 2, &["--transfer", "expected a number such as 1.25"]);
    fails(
        "predict --stages 4 --micro 8 -s 1f1b --costs F=1/2/3",
        2,
        &["expected one value per stage, 4 here, found 3"],
    );
}

#[test]
fn bad_numbers_and_names_are_usage_errors() {
    fails("predict --stages 0 --micro 8", 2, &["0"]);
    fails("predict --stages 4 --micro 0", 2, &["0"]);
    fails("predict --stages -1 --micro 8", 2, &[]);
    fails("predict --stages 4 --micro 1000000000000", 2, &["1000000000000"]);
    fails("predict --stages 4 --micro 1.5", 2, &["1.5"]);
    fails("predict --stages 4", 2, &["--micro"]);
    fails("frobnicate", 2, &["frobnicate"]);
    for costs in ["F=NaN", "F=-1", "F=inf", "F=1e99", "F=1e400", "F", "F=", "X=1", "F=1,F=2", "keep=2", "comm=-0.1"] {
        fails(&format!("{SMALL} --costs {costs}"), 2, &["--costs"]);
    }
    fails(&format!("{SMALL} --costs F=999999999999,W=0.000000000001"), 2, &["overflow"]);
    for slow in ["1=NaN", "1=-1", "1=0", "x=1", "1", "9=2"] {
        fails(&format!("{SMALL} --straggler {slow}"), 2, &["--straggler"]);
    }
    fails(&format!("{SMALL} -s zbb"), 2, &["no schedule is called 'zbb'", "did you mean zb-v", "looped-bfs"]);
    fails(&format!("{SMALL} -s 1f1b --set group=4"), 2, &["no option 'group'"]);
    fails(&format!("{SMALL} -s interleaved-1f1b --set group=4"), 2, &["no option 'group'; it has v"]);
    fails(&format!("{SMALL} -s 1f1b --set group"), 2, &["KEY=VALUE"]);
    fails(
        &format!("{SMALL} -s 1f1b --chunks 2"),
        2,
        &["1f1b has 1 stage per device, but 2 were requested; omit --chunks"],
    );
    fails(&format!("{SMALL} -s zb-v --chunks 3"), 2, &["zb-v has 2 stages per device"]);
    fails(&format!("{SMALL} --layers 1,2"), 2, &["--layers"]);
    for condition in ["bubble", "bubble>x", "bubble>NaN", "speed>1"] {
        fails(&format!("{SMALL} --fail-if {condition}"), 2, &["--fail-if"]);
    }
    fails(&format!("{SMALL} -s /no/such.star"), 2, &["/no/such.star"]);
    fails(&format!("{SMALL} --profile /no/such.json"), 2, &["/no/such.json"]);
}

#[test]
fn training_options_that_do_not_fit_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let run = |rest: &str| format!("run -q --stages 2 --micro 4 -o {}/r {rest}", folder.path().display());
    let golden = format!("--checkpoint {GOLDEN}/model.bin --data {GOLDEN}/tokens.bin");
    fails(&run("--layers 3,4"), 2, &["add up to the model's 8", "[3, 4]"]);
    fails(&run("--layers 18446744073709551615,9"), 2, &["add up"]);
    fails(&run("--batch 6"), 2, &["multiple of --micro 4, found 6; try 8"]);
    fails(&run(&format!("{golden} --seq 65")), 2, &["--seq of at most 64"]);
    fails(&run(&format!("{golden} --batch 4000000")), 2, &[]);
    fails(&run("--model gpt5"), 2, &["no model is called 'gpt5'", "gpt2"]);
    for flag in
        ["--lr nan", "--lr -1", "--beta1 1", "--clip 0", "--timeout 0", "--timeout nan", "--steps 0", "--heads 0"]
    {
        fails(&run(flag), 2, &[]);
    }
    fails(&run("--blocks 99999999999"), 2, &["99999999999"]);
    fails(&run("--link nccl"), 2, &["--link local"]);
    fails(&run("--device timed --unit-ms nan"), 2, &["--unit-ms"]);
    assert!(names(folder.path()).is_empty(), "something was written");
}

#[test]
fn a_long_timeout_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let run = format!("run -q --stages 1 --micro 1 -s 1f1b --steps 1 -o {}/r", folder.path().display());
    for rest in ["--device timed --timeout 1e30", "--device timed --timeout 3e38", "--timeout 1e30"] {
        assert_eq!(pipesim(&format!("{run} {rest}")).0, 0, "{rest}");
    }
}

#[test]
fn broken_schedules_exit_with_3_and_show_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let deadlock = "def device(r, p, m):\n    return m * (F + B) if r == 0 else m * F + m * B\n";
    let circle = "deadlock for p = 4, m = 8: the devices wait for one another in a circle";
    let cases: [(&str, &[&str]); 4] = [
        ("def device(r, p, m):\n    return m * F\n", &["try", "<-- here"]),
        (deadlock, &[circle, "try.star:2: deadlock", "<-- here", "(0B0)"]),
        ("def device(r, p, m):\n    require(False, 'never')\n", &["try", "never"]),
        ("def device(r, p, m):\n    return 1000000000000000 * F\n", &["try", "budget"]),
    ];
    for (text, parts) in cases {
        fails(&format!("{SMALL} -s {}", file(&folder, "try.star", text)), 3, parts);
    }
    fails(&format!("{SMALL} -s 1f1b --max-ops 10"), 3, &["budget is 10 ops", "--max-ops"]);
    fails("predict -p 1048576 -m 2147483647 -s 1f1b", 3, &["budget is", "--max-ops"]);
    fails("predict -p 1048576 -m 2147483647 --chunks 1048576 -s interleaved-1f1b", 3, &["budget is", "--max-ops"]);
}

/// Memory is limited from outside: without a budget of their own these would take all there is.
#[test]
fn words_and_values_that_would_fill_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let device = "def device(r, p, m):\n    return ";
    let values = ["[F] * 300000000", "list(range(1000000000))", "(\"a\" * 2000000000).replace(\"a\", \"bbbb\")"];
    let mut texts = vec![
        format!("{device}alternate(1000000000 * F, 1000000000 * B)\n"),
        format!("x = 'a'\nfor i in range(60):\n    x = x + x\n{device}m * (F + B)\n"),
    ];
    texts.extend(values.map(|value| format!("x = {value}\n{device}m * (F + B)\n")));
    let mut wrong = Vec::new();
    for text in &texts {
        let path = file(&folder, "try.star", text);
        let line = format!("ulimit -v 3500000; timeout 60 $P {SMALL} -q -s {path} 2>{path}.err");
        let (code, ..) = shell(&line);
        if code != 3 {
            wrong.push((code, text));
        }
    }
    assert!(wrong.is_empty(), "expected exit code 3, found {wrong:?}");
}

#[test]
fn thresholds_exit_with_4_after_printing() {
    let (code, out, err) = pipesim(&format!("{SMALL} --format json --fail-if bubble>0.7"));
    assert!(code == 4 && err.contains("naive: bubble>0.7 holds: predicted bubble = 0.75"), "{code}: {err}");
    serde_json::from_str::<Value>(&out).unwrap();
    assert_eq!(pipesim(&format!("{SMALL} --fail-if bubble>0.75 --fail-if peak_activations>8")).0, 0);
    assert_eq!(pipesim(&format!("{SMALL} --fail-if makespan>=96")).0, 4);
    for figure in ["iteration", "predicted.period"] {
        fails(&format!("{SMALL} --fail-if {figure}>1"), 2, &["what ends a step", "--profile"]);
        fails(&format!("explain -p 2 -m 2 -s 1f1b --fail-if {figure}>1"), 2, &["what ends a step"]);
    }
    let model = "predict -q -p 4 -m 8 -s 1f1b --model llama-3-8b --hardware h100-sxm --fail-if";
    for model in [model.to_string(), model.replacen("predict", "explain", 1)] {
        assert_eq!(pipesim(&format!("{model} iteration>1h")).0, 0);
        assert_eq!(pipesim(&format!("{model} iteration>1ms")).0, 4);
    }
}

/// The period of steps that follow each other at once, in every form in which figures are given.
#[test]
fn steps_in_a_row_have_a_period_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let model = "--device cpu --blocks 4 --heads 1 --channels 8 --vocabulary 257 --max-sequence 8";
    let line = format!("run -q -p 2 -m 2 -s 1f1b {model} --steps 3 --back-to-back 2");
    let found = json(&format!("{line} --format json -o {at}/r --fail-if predicted.period>1h --fail-if period>1h"));
    let run = &found["runs"][0];
    assert_eq!((run["steps"].as_u64(), run["losses"].as_array().unwrap().len()), (Some(3), 6));
    let [makespan, iteration, period] =
        ["makespan", "iteration", "period"].map(|key| run["predicted"][key].as_f64().unwrap());
    assert!(makespan < iteration && 0.0 < period && period <= iteration, "{run}");
    let text = std::fs::read_to_string(folder.path().join("r/report.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    for key in ["makespan", "iteration", "period"] {
        assert!(run["error"][key].is_f64() && run["error"][key] == report["schedules"][0]["error"][key], "{key}");
    }
    let (code, out, err) = pipesim(&format!("{line} --format csv -o - --fail-if period>0"));
    assert!(code == 4 && err.contains("measured period = "), "{code}: {err}");
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|other| *other == name).map(|number| rows[1][number]);
    for name in ["period_ms_median", "error_iteration", "error_period"] {
        assert!(column(name).unwrap().parse::<f64>().is_ok(), "{name}: {out}");
    }
}

#[test]
fn a_device_kind_that_is_not_there_exits_with_5() {
    fails("run -q --stages 2 --micro 2 --device cuda", 5, &["--device cpu"]);
}

#[test]
fn dead_and_hanging_devices_exit_with_6() {
    let folder = tempfile::tempdir().unwrap();
    for fault in ["die@1:3", "hang@1:1"] {
        let out = folder.path().display();
        let (code, _, err) = pipesim(&format!(
            "run -q --stages 2 --micro 4 -s 1f1b --checkpoint {GOLDEN}/model.bin --data {GOLDEN}/tokens.bin --seq 32 \
             --batch 8 --timeout 3 --inject {fault} -o {out}/r"
        ));
        assert!(code == 6 && err.contains("device 1"), "{fault}: {code} {err}");
    }
    assert!(names(folder.path()).is_empty(), "something was written");
}

#[test]
fn what_cannot_be_read_or_written_exits_with_1_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    fails(&format!("{SMALL} -q -o {at}/none/x.svg"), 1, &["there is no folder"]);
    file(&folder, "plain", "x");
    fails(&format!("{SMALL} -q -o {at}/plain"), 1, &["it is a file"]);
    std::fs::create_dir(folder.path().join("f.svg")).unwrap();
    fails(&format!("{SMALL} -q -o {at}/f.svg"), 1, &["it is a folder"]);
    assert_eq!(shell(&format!("$P {SMALL} -q >/dev/full")).0, 1);
    let (model, tokens) =
        (std::fs::read(format!("{GOLDEN}/model.bin")).unwrap(), std::fs::read(format!("{GOLDEN}/tokens.bin")).unwrap());
    let mut sizes = model.clone();
    sizes[8..32].fill(0x7f);
    let checkpoints: [(&str, &[u8]); 4] =
        [("empty", &[]), ("half", &model[..model.len() / 2]), ("sizes", &sizes), ("magic", &tokens)];
    for (name, bytes) in checkpoints {
        let path = file(&folder, name, bytes);
        fails(&format!("run -q --stages 2 --micro 2 --checkpoint {path} -o {at}/r"), 1, &[name, "checkpoint"]);
    }
    let half = file(&folder, "tokens", &tokens[..tokens.len() / 2]);
    let run = format!("run -q --stages 2 --micro 2 --checkpoint {GOLDEN}/model.bin --data {half} -o {at}/r");
    fails(&run, 1, &["tokens"]);
    let left = names(folder.path());
    assert_eq!(left, ["empty", "f.svg", "half", "magic", "plain", "sizes", "tokens"]);
}

const ENDINGS: [&str; 9] =
    ["x.svg", "x.png", "x.pdf", "x.tex", "x.html", "x.json", "x.csv", "x.trace.json", "x.trace.json.gz"];

#[test]
fn every_kind_of_file_is_written_twice_with_the_same_bytes() {
    let write = || {
        let folder = tempfile::tempdir().unwrap();
        let outputs = ENDINGS.map(|name| format!("-o {}/{name}", folder.path().display())).join(" ");
        let (code, _, err) = pipesim(&format!("{SMALL} {outputs} -o {}/report", folder.path().display()));
        assert!(code == 0 && err.matches("wrote ").count() == 10, "{err}");
        folder
    };
    let (one, two) = (write(), write());
    let read = |folder: &TempDir| -> Vec<(PathBuf, Vec<u8>)> {
        let list = |sub: &str| names(&folder.path().join(sub)).into_iter();
        let all = list("").map(PathBuf::from).chain(list("report").map(|name| Path::new("report").join(name)));
        let files = all.filter(|path| folder.path().join(path).is_file());
        files.map(|path| (path.clone(), std::fs::read(folder.path().join(&path)).unwrap())).collect()
    };
    let (one, two) = (read(&one), read(&two));
    assert!(one.len() > 10 && one.iter().all(|(_, bytes)| !bytes.is_empty()));
    one.iter().zip(&two).for_each(|(a, b)| assert!(a == b, "{} differs from {}", a.0.display(), b.0.display()));
    let bytes = |name: &str| &one.iter().find(|(path, _)| path == Path::new(name)).unwrap().1;
    assert!(bytes("x.png").starts_with(b"\x89PNG") && bytes("x.trace.json.gz").starts_with(&[0x1f, 0x8b]));
    for name in ["x.json", "x.trace.json"] {
        serde_json::from_slice::<Value>(bytes(name)).unwrap();
    }
    for arguments in [format!("{SMALL} --format json"), SMALL.to_string()] {
        assert_eq!(pipesim(&arguments), pipesim(&arguments));
    }
}

#[test]
fn the_terminal_is_respected() {
    let escape = |out: &str| out.contains('\u{1b}');
    assert!(escape(&pipesim(&format!("{SMALL} --color always")).1));
    assert!(!escape(&pipesim(SMALL).1) && !escape(&shell(&format!("NO_COLOR=1 $P {SMALL}")).1));
    for verb in [SMALL, "predict --stages 16 --micro 64", "predict -p 4 -m 8 -s interleaved-1f1b --chunks 3"] {
        let (_, out, _) = pipesim(&format!("{verb} --ascii"));
        assert!(out.is_ascii() && !out.is_empty(), "{out}");
        for columns in [80, 100] {
            let (_, out, _) = shell(&format!("COLUMNS={columns} $P {verb}"));
            out.lines().for_each(|line| assert!(line.chars().count() <= columns, "{columns} columns: {line}"));
        }
        for columns in ["0", "1", "7", "1000000000", "many"] {
            assert_eq!(shell(&format!("COLUMNS={columns} $P {verb}")).0, 0, "{columns} columns");
        }
    }
}

#[test]
fn readers_that_go_away_are_no_failure() {
    for verb in [SMALL, "predict -p 64 -m 512", "schedules", "completions bash", "completions zsh"] {
        let (_, out, _) = shell(&format!("{{ (sleep 0.2; $P {verb} 2>&1; echo $? >&3) | true; }} 3>&1"));
        assert_eq!(out.trim(), "0", "{verb}, both closed");
        let (_, out, _) = shell(&format!("{{ ($P {verb} 2>/dev/null; echo $? >&3) | head -1 >/dev/null; }} 3>&1"));
        assert_eq!(out.trim(), "0", "{verb} | head -1");
    }
    assert_eq!(shell(&format!("$P {SMALL} 2>/dev/full")).0, 0);
    assert_eq!(shell("$P completions bash >/dev/full").0, 1);
}

#[test]
fn schedules_and_completions_are_listed() {
    let (code, out, _) = pipesim("schedules");
    let all = pipesim::schedules::names();
    assert!(code == 0 && all.iter().all(|name| out.contains(name)), "{out}");
    let list = json("schedules --json");
    assert_eq!(list["schedules"].as_array().unwrap().len(), all.len());
    assert!(pipesim("schedules ZBV").1.ends_with(include_str!("../../schedules/zb-v.star")));
    fails("schedules zbx", 2, &["did you mean zb-v"]);
    assert!(pipesim("completions bash").1.contains("pipesim"));
}

#[test]
fn many_chunks_and_devices_are_predicted() {
    assert_eq!(pipesim("predict -p 1 -m 1 -s looped-bfs --chunks 200000 --format csv").0, 0);
    // a schedule may take five seconds of processor time, which are more work on an idle machine than on a busy one
    assert_eq!(pipesim("predict -p 50000 -m 1 -s 1f1b --format csv").0, 0);
}

#[test]
fn duplicate_schedules_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let found = json(&format!("{SMALL} -s 1f1b,1F1B -s 1f1b --format json -o {}/r", folder.path().display()));
    assert_eq!(numbers(&found["predictions"], "makespan"), [33.0; 3]);
    assert_eq!(names(&folder.path().join("r")).iter().filter(|name| name.ends_with("predicted.json")).count(), 3);
}

#[test]
fn run_prints_the_documented_object_and_its_losses_are_pytorchs() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let found = json(&format!(
        "run --stages 2 --micro 4 -s zb-v,gpipe,gpipe --checkpoint {GOLDEN}/model.bin --data {GOLDEN}/tokens.bin --seq 32 \
         --batch 8 --lr 1e-3 --steps 10 --format json -o {at}/r"
    ));
    let expected: Value = golden_json("gpt2/expected.json");
    assert_eq!(keys(&found), ["schema_version", "calibrated_on", "verdict", "runs"]);
    assert_eq!(found["calibrated_on"]["schedule"], "1f1b");
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|r| r["schedule"].as_str().unwrap()).collect::<Vec<_>>(), ["zb-v", "gpipe", "gpipe"]);
    for run in runs {
        for key in ["devices", "microbatches", "device_kind", "link", "losses", "tokens_per_second"] {
            assert!(!run[key].is_null(), "{key}");
        }
        assert_eq!(keys(&run["iteration_ms"]), ["median", "ci95"]);
        assert_eq!(keys(&run["wall_ms"]), ["median", "ci95"]);
        // the host's clock runs before the first op and after the last, and what it says is the speed: 8 sequences of 32 tokens
        let [wall, iteration] = ["wall_ms", "iteration_ms"].map(|key| run[key]["median"].as_f64().unwrap());
        let speed = run["tokens_per_second"].as_f64().unwrap();
        assert!(wall > iteration && (speed - 256.0 / (wall / 1e3)).abs() < 1e-6 * speed, "{run}");
        assert_eq!(
            keys(&run["error"]),
            ["makespan", "noise", "iteration", "bubble", "op_start_p95", "self_replay"],
            "one error per quantity"
        );
        for side in ["predicted", "measured"] {
            // Only a machine whose speed varied has figures at its typical one, and enough steps an interval; no steps in a row, no
            // period was measured.
            let sometimes = ["typical_speed", "interval", "iteration", "period"];
            assert!(run[side]["iteration"].is_f64() && run[side]["period"].is_f64() == (side == "predicted"));
            let always: Vec<&str> = keys(&run[side]).into_iter().filter(|key| !sometimes.contains(key)).collect();
            assert_eq!((always.join(" "), &run[side]["time_unit"]), (PREDICTION.into(), &json!("ms")));
        }
        let theirs = expected["C_stream_b0.9_0.999_wd0"].as_array().unwrap();
        let losses = run["losses"].as_array().unwrap();
        assert_eq!((losses.len(), losses), (10, runs[0]["losses"].as_array().unwrap()));
        for (ours, theirs) in losses.iter().zip(theirs) {
            assert!((ours.as_f64().unwrap() - theirs.as_f64().unwrap()).abs() < 1e-4, "{ours}, PyTorch {theirs}");
        }
    }
    let timelines = names(&folder.path().join("r"));
    let of = |side: &str| timelines.iter().find(|name| name.starts_with("zb-v") && name.ends_with(side)).unwrap();
    let both = format!("{at}/r/{} {at}/r/{}", of("predicted.json"), of("measured.json"));
    assert!(pipesim(&format!("compare {both}")).1.contains("zb-v"));
    json(&format!("compare {both} --format json"));
}

#[test]
fn a_profile_predicts() {
    let folder = tempfile::tempdir().unwrap();
    let costs = format!("{}/costs.json", folder.path().display());
    let golden = format!("--checkpoint {GOLDEN}/model.bin --data {GOLDEN}/tokens.bin --seq 32 --batch 8");
    assert_eq!(pipesim(&format!("profile --stages 2 --micro 4 {golden} --steps 3 -o {costs}")).0, 0);
    let found = json(&format!("predict --stages 2 --micro 4 --profile {costs} --format json"));
    assert!(numbers(&found["predictions"], "makespan").iter().all(|&ms| ms > 0.0 && ms.is_finite()));
    assert_eq!(found["predictions"][0]["time_unit"], "ms");
    fails(&format!("predict --stages 2 --micro 4 --profile {costs} --costs F=1"), 2, &["--costs"]);
    fails(&format!("predict --stages 5 --micro 4 -s 1f1b --profile {costs}"), 2, &["1f1b"]);
    let text = std::fs::read_to_string(&costs).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let optional = ["provenance", "speeds", "contention"];
    for key in keys(&value) {
        for bad in [json!(-1), json!(u64::MAX), json!(1e308), json!("x"), Value::Null, json!("gone")] {
            let mut broken = value.clone();
            broken[key] = bad.clone();
            if bad == "gone" {
                broken.as_object_mut().unwrap().remove(key);
            }
            let path = file(&folder, "broken.json", broken.to_string());
            let (code, _, err) = pipesim(&format!("predict -q --stages 2 --micro 4 --profile {path}"));
            let is_left_out = bad == "gone" || bad.is_null() && key == "contention";
            assert!(code == 2 || code == 0 && optional.contains(&key) && is_left_out, "{key} = {bad}: {code} {err}");
        }
    }
    let changed = |said: &str, change: fn(&mut Value)| {
        let mut other = value.clone();
        change(&mut other);
        let path = file(&folder, "names.json", other.to_string());
        fails(&format!("predict -q --stages 2 --micro 4 --profile {path}"), 2, &[said]);
    };
    changed("listed twice", |value| {
        let part = value["parts"][0].clone();
        value["parts"].as_array_mut().unwrap().push(part);
    });
    changed("speeds: expected the same devices in every step", |value| {
        value["speeds"][0]["devices"].as_array_mut().unwrap().push(json!([[10, 1_000_000]]));
    });
    changed("foo", |value| value["parts"][0]["part"] = json!("foo"));
    changed("op_overhead_ns", |value| value["op_overhead_ns"] = json!({"F": 1, "I": 1}));
    changed("op_overhead_ns", |value| value["op_overhead_ns"]["B"] = json!(1));
    // A norm that was measured is between the last backward and the optimizer.
    let mut clipped = value.clone();
    clipped["step"]["norm_block_ns"] = json!(50_000_000);
    let path = file(&folder, "clipped.json", clipped.to_string());
    let iteration = |path: &str| {
        let found = json(&format!("predict -s 1f1b --stages 2 --micro 4 --profile {path} --format json"));
        numbers(&found["predictions"], "iteration")[0]
    };
    assert!(iteration(&path) > iteration(&costs) + 50.0);
    let held = format!("predict -q -s 1f1b --stages 2 --micro 4 --profile {path} --fail-if");
    assert_eq!(pipesim(&format!("{held} iteration<50ms --fail-if predicted.period>1h")).0, 0);
    assert!(pipesim(&format!("{held} iteration>50ms")).2.contains("predicted iteration = "));
    // Costs of another model are refused before anything is trained.
    let other = "--blocks 4 --channels 128 --heads 2 --seq 16 --steps 1 -o -";
    fails(&format!("run --stages 2 --micro 4 -s 1f1b {other} --profile {costs}"), 2, &["hidden state", "profile"]);
    let many = format!("predict -s 1f1b --stages 2 --micro 4 --profile {costs} --micro-batch-size 1000");
    let (code, _, told) = pipesim(&many);
    assert!(code == 0 && told.contains("not of 1000"), "{told}");
    for (bad, code) in
        [(json!([1000, 1300]), 0), (json!([]), 0), (json!([900]), 2), (json!([1000, 999]), 2), (json!([1000, "x"]), 2)]
    {
        let mut other = value.clone();
        other["link"]["per_mille"] = bad.clone();
        let path = file(&folder, "links.json", other.to_string());
        let (found, _, err) = pipesim(&format!("predict -q --stages 2 --micro 4 --profile {path}"));
        assert!(
            found == code && (code == 0 || err.contains("per_mille") || err.contains("cost file")),
            "{bad}: {found} {err}"
        );
    }
    let path = file(&folder, "broken.json", &text[..text.len() / 2]);
    fails(&format!("predict -q --stages 2 --micro 4 --profile {path}"), 2, &["broken.json"]);
}

/// A cost file of a machine whose speed went as `speeds` says: by step, by device, (end in ns, millionths of the typical time).
fn noisy_costs(speeds: Value) -> String {
    let part = |part: &str, kind: &str, ns: u64| json!({"part": part, "kind": kind, "sequences": 1, "tokens": 8, "duration_ns": ns, "samples": 9});
    let kinds = [("F", 1_000_000), ("I", 1_100_000), ("W", 900_000)];
    let parts = [("embedding", 10), ("block", 100), ("head", 150)];
    let parts = parts.iter().flat_map(|(name, share)| kinds.map(|(kind, ns)| part(name, kind, ns * share / 100)));
    let rates = ["optimizer_embedding_ns", "optimizer_block_ns", "norm_block_ns", "reduce_put_ns", "reduce_add_ns"];
    let rates: serde_json::Map<String, Value> =
        rates.map(|rate| (rate.to_string(), Value::from(50_000))).into_iter().collect();
    let link = json!({"put_ns": 20_000, "bytes": 1024, "latency_ns": 30_000});
    json!({"schema_version": 1, "provenance": {}, "layers": 8, "parts": parts.collect::<Vec<_>>(),
        "op_overhead_ns": {"F": 1000, "I": 1000, "W": 1000}, "gap_ns": 2000, "link": link, "step": rates, "keep": 1.0,
        "speeds": speeds})
    .to_string()
}

#[test]
fn every_verb_gives_the_same_prediction_on_a_noisy_machine() {
    let folder = tempfile::tempdir().unwrap();
    let step = |slowness: [u64; 3]| {
        let device =
            |shift: u64| [[7_000_000, slowness[0]], [20_000_000 + shift, slowness[1]], [60_000_000, slowness[2]]];
        json!({"devices": [device(0), device(1_000_000), device(2_000_000), device(5_000_000)]})
    };
    let slow =
        [[1_000_000, 2_500_000, 1_600_000], [3_000_000, 1_000_000, 1_700_000], [2_000_000, 1_300_000, 2_100_000]];
    let fast = [[500_000, 600_000, 500_000]];
    for (machine, speeds) in [("slow", &slow[..]), ("fast", &fast[..])] {
        let speeds = speeds.iter().map(|&slowness| step(slowness)).collect::<Vec<_>>();
        let profile = file(&folder, &format!("{machine}.json"), noisy_costs(speeds.into()));
        let drawn = format!("{}/{machine}-drawn.json", folder.path().display());
        let common = format!("-p 4 -m 6 -s naive,1f1b,zb-v --memory-cap 4 --profile {profile} --format json");
        let predicted = json(&format!("predict {common} -o {drawn}"))["predictions"].clone();
        let explained = json(&format!("explain {common}"))["explanations"].clone();
        let compared = json(&format!("compare {drawn} --format json"))["schedules"].clone();
        let by_events = json(&format!("predict {common} --delivery one-sided"))["predictions"].clone();
        for (number, p) in predicted.as_array().unwrap().iter().enumerate() {
            let (e, c) = (&explained[number], &compared[number]["predicted"]);
            for figure in ["makespan", "span", "bubble", "lower_bound", "gap_to_bound", "typical_speed"] {
                assert_eq!((&p[figure], &p[figure]), (&e[figure], &c[figure]), "{figure} of {}", p["schedule"]);
                assert_eq!(p[figure], by_events[number][figure], "{figure} of {} by either engine", p["schedule"]);
            }
            let [typical, bound, gap] =
                [&p["typical_speed"]["makespan"], &p["lower_bound"], &p["typical_speed"]["gap_to_bound"]]
                    .map(|figure| figure.as_f64().unwrap());
            assert!(gap >= 0.0 && (typical / bound - 1.0 - gap).abs() < 1e-12, "{typical} {bound} {gap}");
            assert_eq!((&e["bounds"]["best"], &e["idle"]["makespan"]), (&p["lower_bound"], &p["makespan"]));
            let (makespan, bubble) = (p["makespan"].as_f64().unwrap(), p["bubble"].as_f64().unwrap());
            let [iteration, period] = ["iteration", "period"].map(|name| p[name].as_f64().unwrap());
            assert!(iteration >= makespan && period <= iteration, "{makespan} {iteration} {period}");
            let idle = e["idle"]["total"]["idle"].as_f64().unwrap();
            let same = (idle - 4.0 * makespan * bubble).abs() < 1e-6;
            assert!(same, "{idle} of idle time, bubble {bubble} of {makespan}");
            let path = e["critical_path"].as_array().unwrap();
            assert_eq!((&path[0]["start"], &path[path.len() - 1]["end"]), (&Value::from(0.0), &p["makespan"]));
            let saved: f64 = ["F", "I", "W", "B", "communication"]
                .iter()
                .filter_map(|part| e["sensitivities"].as_array().unwrap().iter().find(|s| s["part"] == *part))
                .map(|s| s["percent"].as_f64().unwrap())
                .sum();
            assert!((saved - 1.0).abs() < 0.1, "1 % less of all saves {saved} % of {}", p["schedule"]);
        }
        // What is compared is compared at one speed.
        let several = json(&format!("predict {}", common.replace("-m 6", "-m 6,9").replace("--memory-cap 4 ", "")))["predictions"].clone();
        let typical = |p: &Value| p["typical_speed"]["makespan"].as_f64().unwrap();
        for p in several.as_array().unwrap() {
            let rivals = several.as_array().unwrap().iter().filter(|other| other["microbatches"] == p["microbatches"]);
            let least = rivals.map(typical).fold(f64::INFINITY, f64::min);
            let is_best = p["best"].as_array().unwrap().contains(&json!("makespan"));
            assert_eq!(is_best, typical(p) == least, "{p}");
        }
        let shown = pipesim(&format!("predict {} --format md", common.replace(" --format json", ""))).1;
        let steady = shown.split("median speed (above").nth(1).expect("a table of its own for bounds").to_string();
        for p in predicted.as_array().unwrap() {
            let gap = format!("{:.1} % |", 100.0 * p["typical_speed"]["gap_to_bound"].as_f64().unwrap());
            let row = steady.lines().find(|line| line.starts_with(&format!("| {} ", p["schedule"].as_str().unwrap())));
            assert!(row.is_some_and(|row| row.ends_with(&gap) && row.matches(" ms |").count() == 2), "{row:?} {gap}");
        }
        assert!(!shown.split("median speed (above").next().unwrap().contains("gap"), "{shown}");
        let gap = numbers(&predicted, "gap_to_bound");
        assert!(gap.iter().all(|&gap| if machine == "slow" { gap > 0.0 } else { gap < 0.4 }), "{machine}: {gap:?}");
        let beaten = gap.iter().any(|&gap| gap < 0.0);
        assert!(machine == "slow" || beaten, "a bound that a fast machine beats is not hidden");
    }
}

#[test]
fn corrupt_timelines_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/t.json", folder.path().display());
    assert_eq!(pipesim(&format!("predict -q -p 2 -m 2 -s 1f1b -o {path}")).0, 0);
    assert_eq!(pipesim(&format!("compare {path}")).0, 0);
    let text = std::fs::read_to_string(&path).unwrap();
    let changes = [
        ("\"devices\":2", "4000000000 0 -1 1"),
        ("\"keep\":1.0", "NaN -5 1e308 1e999 null"),
        ("\"schema_version\":1", "2 x"),
        ("\"time_unit\":\"unit\"", "\"furlong\" \"ms\" \"\" 3"),
        ("\"start_ns\":0", "-1 18446744073709551615 0.5"),
        ("\"op\":\"0F1\"", "\"0F0\" \"9F1\" \"0F4294967295\" 3"),
    ];
    let mut wrong = Vec::new();
    for (from, values) in changes {
        assert!(text.contains(from), "{from} in {text}");
        for value in values.split(' ') {
            let to = format!("{}:{value}", from.split(':').next().unwrap());
            let path = file(&folder, "broken.json", text.replace(from, &to));
            let (code, ..) = shell(&format!("ulimit -v 4000000; $P compare {path} 2>{path}.err"));
            if code != 2 {
                wrong.push((code, to));
            }
        }
    }
    for (name, text) in
        [("empty", ""), ("deep", &"[".repeat(100_000)), ("half", &text[..text.len() / 2]), ("list", "[]")]
    {
        fails(&format!("compare {}", file(&folder, name, text)), 2, &[name]);
    }
    fails(&format!("compare {}/none.json", folder.path().display()), 2, &["none.json"]);
    assert!(wrong.is_empty(), "expected exit code 2, found {wrong:?}");
}

#[test]
fn a_damaged_timeline_is_blamed_at_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/t.json", folder.path().display());
    assert_eq!(pipesim(&format!("predict -q -p 2 -m 2 -s gpipe,1f1b -o {path}")).0, 0);
    let whole: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let ops = whole["timelines"][1]["spans"].as_array().unwrap().iter().enumerate();
    let compute: Vec<usize> = ops.filter(|(_, span)| span["queue"] == "compute").map(|(number, _)| number).collect();
    let (one, other) = (compute[0], compute[1]);
    type Damage<'a> = &'a dyn Fn(&mut Value);
    let damages: [(&str, Damage<'_>); 17] = [
        ("timelines[1].time_unit: expected unit, ns, us, ms or s, found 'furlong'", &|file| {
            file["timelines"][1]["time_unit"] = json!("furlong");
        }),
        ("timelines[1].unit_ns: expected 1000000, the nanoseconds of 1 ms, found 1000000000", &|file| {
            file["timelines"][1]["time_unit"] = json!("ms");
        }),
        (
            "timelines[1].lower_bound_ns: expected a lower bound of at most 9000000000 ns, the makespan, found",
            &|file| {
                file["timelines"][1]["lower_bound_ns"] = json!(9_000_000_001_u64);
            },
        ),
        ("schema_version: expected schema_version 1, which", &|file| file["schema_version"] = json!(7)),
        ("schema_version is missing", &|file| drop(file.as_object_mut().unwrap().remove("schema_version"))),
        ("timelines[1].schema_version: expected schema_version 1", &|file| {
            file["timelines"][1]["schema_version"] = json!(2);
            file["timelines"][1]["colour"] = json!("a field of later versions");
        }),
        ("timelines[1]: missing field `devices`", &|file| {
            drop(file["timelines"][1].as_object_mut().unwrap().remove("devices"));
        }),
        ("timelines[0].time_unit: expected a string, found number", &|file| {
            file["timelines"][0]["time_unit"] = json!(3)
        }),
        ("timelines[1].provenance.date: expected a string", &|file| {
            file["timelines"][1]["provenance"]["date"] = json!([1]);
        }),
        ("spans[0].start_ns: expected a whole number", &|file| {
            file["timelines"][1]["spans"][0]["start_ns"] = json!("x")
        }),
        ("spans[0]: missing field `end_ns`", &|file| {
            drop(file["timelines"][1]["spans"][0].as_object_mut().unwrap().remove("end_ns"));
        }),
        ("spans[0].queue: unknown variant `tea`, expected one of `compute`, `send`, `receive`", &|file| {
            file["timelines"][1]["spans"][0]["queue"] = json!("tea");
        }),
        ("later, found 5", &|file| {
            file["timelines"][1]["spans"][other]["start_ns"] = json!(9);
            file["timelines"][1]["spans"][other]["end_ns"] = json!(5);
        }),
        ("on device 0, which runs one op at a time", &|file| {
            file["timelines"][1]["spans"][one]["end_ns"] = file["timelines"][1]["spans"][other]["end_ns"].clone();
        }),
        ("device: expected 0 to 1, of 2 devices, found 2", &|file| {
            file["timelines"][1]["spans"][0]["device"] = json!(2)
        }),
        ("timelines[1] has no spans", &|file| file["timelines"][1]["spans"] = json!([])),
        ("timelines[1] lacks ops", &|file| drop(file["timelines"][1]["spans"].as_array_mut().unwrap().remove(one))),
    ];
    for (what, damage) in damages {
        let mut broken = whole.clone();
        damage(&mut broken);
        fails(&format!("compare {}", file(&folder, "broken.json", broken.to_string())), 2, &["broken.json", what]);
    }
    let text = whole.to_string();
    for at in [text.len() / 3, text.len() - 1] {
        fails(&format!("compare {}", file(&folder, "cut.json", &text[..at])), 2, &["cut.json", "cut off", "column"]);
    }
    for other in ["{\"predictions\": []}", "[]", "{}", "3"] {
        fails(&format!("compare {}", file(&folder, "other.json", other)), 2, &["other.json", "expected"]);
    }
}

#[test]
fn training_that_leaves_the_numbers_fails_after_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let small = "-p 2 -m 2 --blocks 2 --channels 16 --heads 1 --seq 8 --steps 3 --lr 1e30";
    for ranks in ["", "-n 2"] {
        let (code, out, err) =
            pipesim(&format!("run {small} {ranks} -s gpipe,1f1b -o {at}/r -o {at}/r.json --format csv"));
        assert_eq!(code, 1, "{err}");
        assert!(err.contains("error: the loss of step 1 of gpipe is NaN"), "{err}");
        assert!(folder.path().join("r/index.html").is_file() && folder.path().join("r.json").is_file());
        let rows: Vec<&str> = out.lines().collect();
        assert!(
            rows.len() == 3 && rows[1].starts_with("gpipe,2,1,2,ms,") && rows[2].starts_with("1f1b,2,1,2,ms,"),
            "{out}"
        );
        assert!(rows.iter().all(|row| row.split(',').count() == rows[0].split(',').count()), "{out}");
    }
    fails(&format!("profile {small} -o {at}/c.json"), 1, &["the loss of step 1 of 1f1b is NaN"]);
    assert!(folder.path().join("c.json").is_file());
}

#[test]
fn run_and_compare_give_the_same_errors_and_calibration_is_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let line =
        format!("run -p 2 -m 4 --blocks 2 --channels 16 --heads 1 --seq 8 --steps 4 -s 1f1b -o {at}/r --format json");
    let (code, out, err) = pipesim(&line);
    assert_eq!(code, 0, "{err}");
    assert_eq!(err.matches("step 2 ").count(), 1, "one line a step of what was asked for: {err}");
    let run = serde_json::from_str::<Value>(&out).unwrap()["runs"][0].clone();
    let both = format!("{at}/r/1f1b-predicted.json {at}/r/1f1b-measured.json");
    let compared = json(&format!("compare {both} --format json"))["schedules"][0].clone();
    for figure in ["makespan", "bubble", "op_start_p95"] {
        assert_eq!(run["error"][figure], compared["error"][figure], "{figure}");
    }
    for side in ["predicted", "measured"] {
        for figure in ["makespan", "span", "bubble", "lower_bound", "gap_to_bound", "typical_speed"] {
            assert_eq!(run[side][figure], compared[side][figure], "{side} {figure}");
        }
    }
    let of = |side: &str| run[side]["makespan"].as_f64().unwrap();
    let error = run["error"]["makespan"].as_f64().unwrap();
    assert!((of("predicted") / of("measured") - 1.0 - error).abs() < 1e-9, "{error}");
    assert!(compared["error"]["self_replay"].is_null(), "of two timelines alone nothing is known of it");
}

#[test]
fn what_takes_long_shows_that_it_goes_on() {
    let long = "predict -p 32 -m 256 -s 1f1b --jitter 0.1 --samples 200000 --format csv";
    let words: Vec<&str> = long.split(' ').collect();
    let mut child = std::process::Command::new(PROGRAM).args(words).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.take(2).find(|line| line.starts_with("1f1b with jitter: ")); // the first is about unit costs
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(told.as_ref().is_some_and(|line| line.contains(" of 200000 samples after ")), "{told:?}");
    assert_eq!(pipesim("predict -p 8 -m 64 -s 1f1b --jitter 0.1 --format csv -q").2, "");
}

#[test]
fn endless_files_are_not_read() {
    for line in [
        "predict -p 2 -m 2 --profile /dev/zero",
        "compare /dev/zero",
        "run -q -p 2 -m 2 --data /dev/zero -o /dev/null/x",
    ] {
        let (code, out, _) = shell(&format!("ulimit -v 4000000; $P {line} 2>&1"));
        assert!(matches!(code, 1 | 2) && !out.contains("memory"), "{line}: {code} {out}");
    }
}

#[test]
fn check_tells_which_deliveries_a_schedule_survives() {
    let found = json("check -p 4 -m 8 -s 1f1b,gpipe --format json");
    let verdicts = |n: usize| found["checks"][n]["deliveries"].as_array().unwrap().clone();
    let survives = |n: usize, delivery: &str| {
        verdicts(n).iter().find(|v| v["delivery"] == delivery).unwrap()["survives"].as_bool().unwrap()
    };
    // Receives just before their use on one queue: 1F1B's neighbours send to each other and neither receives.
    assert!(survives(0, "one-sided") && survives(0, "channel:front-loaded") && !survives(0, "channel"));
    assert!(verdicts(1).iter().all(|v| v["survives"] == true));
    let (code, _, err) = pipesim("check -p 2 -m 4 -s 1f1b --delivery channel");
    assert_eq!(code, 3);
    assert!(err.contains("0SEND_F1") && err.contains("waits for") && err.contains("1SEND_B0"), "{err}");
    assert_eq!(pipesim("check -p 2 -m 4 -s 1f1b --delivery one-sided").0, 0);
    fails("check -p 2 -m 4 --delivery pigeon", 2, &["expected one-sided, buffered(k)"]);
    let (code, _, err) = pipesim("run -p 2 -m 4 -s 1f1b --delivery channel --device timed --steps 1");
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("in a circle"), "{err}");
}

#[test]
fn explain_accounts_for_every_idle_tick() {
    let found = json("explain -p 4 -m 8 -s 1f1b,zb-v --costs F=1,I=1,W=1,comm=0.1 --format json");
    for e in found["explanations"].as_array().unwrap() {
        let total = &e["idle"]["total"];
        let causes = ["fill", "drain", "dependence", "communication", "imbalance", "memory", "order"];
        let sum: f64 = causes.iter().map(|cause| total[*cause].as_f64().unwrap()).sum();
        let idle: f64 = e["per_device"].as_array().unwrap().iter().map(|d| d["idle"].as_f64().unwrap()).sum();
        assert!((sum - idle).abs() < 1e-9 && idle > 0.0, "{sum} {idle}");
        let path = e["critical_path"].as_array().unwrap();
        assert_eq!(path[0]["start"], 0.0);
        assert_eq!(path[path.len() - 1]["end"], e["makespan"]);
    }
    let (code, out, _) = pipesim("explain -p 4 -m 8 -s gpipe --tables");
    assert_eq!(code, 0);
    // GPipe at unit costs: device r waits r for its first op and 2 r for others to end, fill and drain alone
    assert!(out.contains("Why devices idle") && out.contains("critical path"), "{out}");
}

#[test]
fn schedules_travel_through_pytorchs_files() {
    let folder = TempDir::new().unwrap();
    for to in ["pytorch-csv", "pytorch-csv-comms"] {
        let path = folder.path().join(format!("{to}.csv"));
        let shown = path.display();
        assert_eq!(pipesim(&format!("export -p 4 -m 8 -s zb-v --to {to} -o {shown} -q")).0, 0);
        let back = json(&format!("predict -p 4 -m 8 -s {shown} --format json"));
        let own = json("predict -p 4 -m 8 -s zb-v --format json");
        assert_eq!(back["predictions"][0]["makespan"], own["predictions"][0]["makespan"]);
        fails(&format!("predict -p 4 -m 9 -s {shown}"), 2, &["for 4 devices and 8 micro-batches"]);
    }
    let (_, out, _) = pipesim("export -p 2 -m 4 -s dualpipe --to json");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["placement"]["device_of_stage"], json!([[0, 1], [1, 0]]));
    let first = found["programs"][0].as_array().unwrap();
    assert!(first.iter().any(|entry| entry == "(1F3;0B0)OVERLAP_F_B"), "{first:?}");
    let (_, dot, _) = pipesim("export -p 2 -m 2 -s 1f1b --to dot");
    assert!(dot.starts_with("digraph") && dot.matches("->").count() == 2 * 3 + 2 * 2, "{dot}");
    fails("export -p 2 -m 4 -s dualpipe --to pytorch-csv", 3, &["stage 0 is on device 0 and on device 1"]);
    fails("export -p 2 -m 4 --to json", 2, &["export writes one schedule"]);
}

#[test]
fn export_writes_for_a_version_of_pytorch() {
    let comms = |more: &str| pipesim(&format!("export -p 2 -m 2 -s zb-v --to pytorch-csv-comms {more} -q"));
    let (newest, older) = (comms(""), comms("--torch 2.14"));
    assert_eq!(
        (comms("--torch 2.15"), comms("--torch 2.11"), comms("--torch 2.14.1")),
        (newest.clone(), older.clone(), older.clone())
    );
    assert!(
        newest.1.contains("0WAIT_SEND_F0") && newest.1.contains("3REDUCE_GRAD,3WAIT_REDUCE_GRAD,3RESHARD"),
        "{newest:?}"
    );
    assert!(older.0 == 0 && older.1.contains("3REDUCE_GRAD,3RESHARD") && !older.1.contains("WAIT"), "{older:?}");
    let known = ["'2.16'", "--torch", "2.11, 2.12, 2.13, 2.14, 2.15"];
    fails("export -p 2 -m 2 -s zb-v --to pytorch-csv-comms --torch 2.16", 2, &known);
    fails("export -p 2 -m 2 -s zb-v --to json --torch 2.15", 2, &["--torch is for PyTorch's files; leave it out"]);
}

#[test]
fn auto_is_never_worse_than_what_fits_the_cap() {
    let all = "naive,gpipe,1f1b,eager-1f1b,interleaved-1f1b,looped-bfs,zb-h1,zb-h2,zb-1p,zb-2p,zb-v,zb-v-greedy,v-half,v-min,v-zb,\
               1f1b-v,interleaved-zb,chimera,hanayo,group-interleaved";
    for (costs, cap) in [("F=1,I=1,W=1", 8), ("F=1,I=1,W=1", 2), ("F=1.2,I=1,W=0.6,comm=0.05", 3)] {
        let common = format!("predict -p 4 -m 8 --costs {costs} --format json --memory-cap {cap}");
        let auto = json(&format!("{common} -s auto"))["predictions"][0].clone();
        let peak = |p: &Value| {
            let peaks = p["per_device"].as_array().unwrap().iter().map(|d| d["peak_activations"].as_f64().unwrap());
            peaks.fold(0.0, f64::max)
        };
        assert!(peak(&auto) <= f64::from(cap) && auto["schedule"].as_str().unwrap().starts_with("auto ("), "{auto}");
        for other in json(&format!("{common} -s {all}"))["predictions"].as_array().unwrap() {
            let fits = peak(other) <= f64::from(cap);
            assert!(!fits || auto["makespan"].as_f64() <= other["makespan"].as_f64(), "{other} is better than {auto}");
        }
    }
    fails("predict -p 4 -m 8 -s auto --memory-cap 0.5", 3, &["no schedule for p = 4, m = 8 runs within 0.5"]);
    fails("predict -p 4 -m 8 -s auto --memory-cap 80GiB", 2, &["activation units"]);
    fails("predict -p 4 -m 8 -s auto --memory-cap nan", 2, &["from 0.001 up"]);
    fails("predict -p 4 -m 8 -s auto --set group=2", 2, &["no option 'group' here"]);
    fails("predict -p 4 -m 8 --straggler 1=1 --straggler 1=2", 2, &["names a device twice"]);
    fails("run -p 2 -m 4 --device cpu --straggler 1=2", 2, &["--straggler needs --device timed"]);
    // above the cap: no bound within it, and a warning
    let over = json("explain -p 4 -m 9 -s zb-h1 --memory-cap 2 --format json")["explanations"][0].clone();
    let bounds = &over["bounds"];
    assert!(bounds["memory"].is_null() && bounds["best"].as_f64() <= over["makespan"].as_f64(), "{over}");
}

#[test]
fn the_machine_can_do_more_than_costs_say() {
    let makespan = |options: &str| {
        let found = json(&format!(
            "predict -p 4 -m 8 -s interleaved-1f1b --costs F=1,I=1,W=1,comm=0.1 --format json {options}"
        ));
        found["predictions"][0]["makespan"].as_f64().unwrap()
    };
    let plain = makespan("");
    assert_eq!(makespan("--delivery one-sided"), plain);
    // PyTorch issue 172668: receives that were queued early hold up the sends behind them
    assert!(makespan("--delivery channel:front-loaded") > 1.2 * plain);
    assert!(makespan("--transfer 0.3") > plain && makespan("--overlap-slowdown 1.2") > plain);
    let one_core = makespan("--cores 1");
    assert!((4.0 * 24.0..1.02 * 4.0 * 24.0).contains(&one_core), "one core does all the work: {one_core}");
    assert!(makespan("--straggler 2=1.3") > plain);
    let jitter = "predict -p 4 -m 8 -s 1f1b --format json --jitter 0.1 --samples 200";
    let (one, other) = (json(jitter), json(jitter));
    assert_eq!(one, other, "the same seed gives the same steps");
    let spread = &one["predictions"][0]["jitter"];
    assert!(spread["p5"].as_f64() < spread["p50"].as_f64() && spread["p50"].as_f64() < spread["p99"].as_f64());
    let circle = ["1f1b: under channel delivery the devices wait", "SEND_B0"];
    fails("predict -p 4 -m 8 -s 1f1b --delivery channel", 3, &circle);
    fails("predict -p 4 -m 8 --jitter 7", 2, &["at most 1"]);
}

#[test]
fn overlapped_pairs_mean_what_is_asked() {
    let makespan = |meaning: &str| {
        let found = json(&format!("predict -p 8 -m 20 -s dualpipe --format json --overlap {meaning}"));
        found["predictions"][0]["makespan"].as_f64().unwrap()
    };
    // DeepSeek's figure: 66 units with F and B in turn
    assert_eq!(makespan("atomic"), 66.0);
    assert!(makespan("max") < 60.0 && makespan("serial") <= 66.0);
    fails("predict -p 2 -m 4 --overlap none", 2, &["atomic, serial, runtime, max"]);
}
