//! What the program says to input that others' habits, or a slip, produce: the tip that helps, and none that misleads.

use crate::cli::{fails, json, pipesim};
use clap::error::ErrorKind;
use pipesim::internals::cli;
use std::collections::BTreeSet;

/// What the program comes to. It is not started for what the parser refuses in words of its own, which it prints as they are.
fn answered(arguments: &str) -> (i32, String, String) {
    let words = ["pipesim"].into_iter().chain(arguments.split_whitespace());
    match cli::parse(words) {
        Err(refused) if refused.kind() != ErrorKind::ValueValidation && !arguments.starts_with("help ") => {
            (refused.exit_code(), String::new(), refused.to_string())
        }
        _ => pipesim(arguments),
    }
}

#[test]
fn a_hundred_inputs_get_the_tip_that_helps() {
    let table = include_str!("tips.txt");
    let rows = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in rows {
        let [arguments, must, must_not] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("three columns: {row}")
        };
        let long = |word| match word {
            "B" => "predict -p 4 -m 8",
            "T" => "train -p 2 -m 2 -s 1f1b -o run",
            "H" => "predict -p 4 -m 8 --model llama-3-70b --hardware h100-sxm",
            word => word,
        };
        let arguments: Vec<&str> = arguments.split(' ').map(long).collect();
        let (code, out, err) = answered(&arguments.join(" "));
        count += 1;
        if code != 2 || !out.is_empty() || !err.contains(must) || err.contains(must_not) {
            wrong.push(format!("{row}\n    exit code {code}, {out}{err}"));
        }
    }
    assert!(count >= 100, "{count} inputs");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The names of other programs mean the same as ours.
#[test]
fn other_names_are_understood() {
    let figures = |arguments: &str| {
        let found = json(&format!("predict -q --format json {arguments}"));
        found["predictions"].clone()
    };
    for (other, ours) in [
        ("--pp 4 --num-microbatches 8 -s 1f1b", "-p 4 -m 8 -s 1f1b"),
        ("--pipeline-parallel-degree 4 --micro-batches 8 -s 1f1b", "-p 4 -m 8 -s 1f1b"),
        ("-p 4 -m 8 -s interleaved-1f1b --vpp 4", "-p 4 -m 8 -s interleaved-1f1b --chunks 4"),
        (
            "-p 4 -m 8 -s interleaved-1f1b --virtual-pipeline-model-parallel-size 4",
            "-p 4 -m 8 -s interleaved-1f1b --chunks 4",
        ),
        ("-p 4 -m 8 -s Schedule1F1B", "-p 4 -m 8 -s 1f1b"),
        ("-p 4 -m 8 -s ScheduleGPipe", "-p 4 -m 8 -s gpipe"),
        ("-p 4 -m 8 -s ScheduleInterleaved1F1B", "-p 4 -m 8 -s interleaved-1f1b"),
        ("-p 4 -m 8 -s ScheduleLoopedBFS", "-p 4 -m 8 -s looped-bfs"),
        ("-p 4 -m 8 -s ScheduleInterleavedZeroBubble", "-p 4 -m 8 -s interleaved-zb"),
        ("-p 4 -m 8 -s InterleavedZeroBubble", "-p 4 -m 8 -s interleaved-zb"),
        ("-p 4 -m 8 -s ScheduleZBVZeroBubble", "-p 4 -m 8 -s zb-v"),
        ("-p 4 -m 8 -s ZBVZeroBubble", "-p 4 -m 8 -s zb-v"),
        ("-p 4 -m 8 -s ScheduleDualPipeV", "-p 4 -m 8 -s dualpipe-v"),
        ("-p 4 -m 8 -s DualPipeV", "-p 4 -m 8 -s dualpipe-v"),
        ("-p 4 -m 8 -s interleaved,vpp:v=4", "-p 4 -m 8 -s interleaved-1f1b,interleaved-1f1b:v=4"),
        ("-p 4 -m 8 -s PipeDream-Flush", "-p 4 -m 8 -s 1f1b"),
        ("-p 4 -m 8 -s f-then-b", "-p 4 -m 8 -s gpipe"),
        ("-p 4 -m 8 -s 1f1b --slow 2=1.3", "-p 4 -m 8 -s 1f1b --straggler 2=1.3"), // the option's former name
        (
            "-p 4 --model Llama3_8B --hardware H100_SXM --data-parallel-size 2 --tensor-parallel-size 2 --global-batch-size 32 \
             --seq-len 2048 --context-parallel-size 1 --precision bfloat16 -s 1f1b",
            "-p 4 --model llama-3-8b --hardware h100-sxm --dp 2 --tp 2 --batch 32 --seq 2048 --cp 1 --precision bf16 -s 1f1b",
        ),
        (
            "-p 2 --model llama-3-8b --hardware h100-sxm --dp 2 --tp 2 --gbs 32 --mbs 2 --sp -s 1f1b",
            "-p 2 --model llama-3-8b --hardware h100-sxm --dp 2 --tp 2 --batch 32 --micro-batch-size 2 --sequence-parallel -s 1f1b",
        ),
    ] {
        assert_eq!(figures(other), figures(ours), "{other}");
    }
    let help = pipesim("predict --help").1;
    for alias in ["--pp", "--num-microbatches", "--micro-batches", "--vpp", "--virtual-pipeline-model-parallel-size"] {
        assert!(help.contains(alias), "{alias} is not in the help");
    }
    assert!(help.contains("--data-parallel-size"));
}

#[test]
fn check_says_first_what_frameworks_do() {
    let (code, one, _) = pipesim("check -q -p 4 -m 8 -s 1f1b");
    let runs = "Megatron-LM 2026-08: runs. PyTorch 2.15: runs.";
    assert_eq!((code, one.lines().next()), (0, Some(runs)));
    let (code, several, _) = pipesim("check -q -p 4 -m 8 -s 1f1b,zb-v");
    let lines: Vec<&str> = several.lines().take(2).collect();
    assert_eq!((code, lines[0]), (0, format!("1f1b  {runs}").as_str()));
    assert!(lines[1].starts_with("zb-v  Megatron-LM 2026-08: has no zb-v") && lines[1].contains("PyTorch 2.15: runs."));
    assert!(!several.contains("DEADLOCK"), "{several}");
    let asked = pipesim("check -q -p 4 -m 8 -s 1f1b --delivery one-sided").1;
    assert!(!asked.contains("Megatron"), "{asked}");
}

/// What the frameworks raise: torch 2.15, distributed/pipelining/schedules.py:1441; Megatron-LM, pipeline_parallel/schedules.py:1148 and
/// :1160; nanotron, parallel/pipeline_parallel/engine.py:253. PyTorch's files have no ops that recompute or copy activations.
#[test]
fn check_says_what_frameworks_refuse() {
    let verdict = |arguments: &str, framework: &str| {
        let found = serde_json::from_str::<serde_json::Value>(
            &pipesim(&format!("check -q {arguments} --framework {framework} --format json")).1,
        )
        .unwrap();
        let one = found["checks"][0]["frameworks"][0].clone();
        let error = one["objections"].as_array().unwrap().iter().map(|objection| objection["error"].to_string());
        (one["verdict"].as_str().unwrap().to_string(), error.collect::<String>())
    };
    for (arguments, framework, expected, error) in [
        ("-p 4 -m 2 -s 1f1b", "pytorch", "refused", "Number of microbatches (2) must be greater than or equal to"),
        ("-p 4 -m 2 -s gpipe", "pytorch", "runs", ""),
        ("-p 4 -m 2 -s 1f1b", "megatron-core", "runs", ""),
        ("-p 4 -m 2 -s 1f1b", "nanotron", "refused", "must be at least PP_SIZE-1=3"),
        ("-p 4 -m 6 -s interleaved-1f1b", "megatron-core", "refused", ""),
        ("-p 6 -m 3 -s interleaved-1f1b", "megatron-core", "refused", ""),
        ("-p 4 -m 6 -s interleaved-1f1b", "pytorch", "runs", ""),
        ("-p 4 -m 8 -s interleaved-1f1b", "megatron-core", "runs", ""),
        ("-p 4 -m 8 -s zb-v", "megatron-core", "missing", "Megatron-LM has no zb-v"),
        ("-p 4 -m 8 -s v-half", "pytorch", "runs", "PyTorch has no v-half"),
        ("-p 4 -m 8 -s 1f1b-recompute", "pytorch", "missing", ""),
        ("-p 4 -m 8 -s 1f1b-offload", "pytorch", "missing", ""),
        ("-p 4 -m 8 -s 1f1b-vocab", "pytorch", "missing", ""),
        ("-p 4 -m 8 -s chimera", "pytorch", "missing", "in PyTorch a stage is on one row only"),
    ] {
        let (found, text) = verdict(arguments, framework);
        assert!(found == expected && text.contains(error), "{framework}, {arguments}: {found} {text}");
    }
    let (code, out, err) = pipesim("check -q -p 4 -m 2 -s 1f1b --framework pytorch");
    assert_eq!(code, 3);
    assert!(out.starts_with("PyTorch 2.15: refuses: ") && out.contains("schedules.py:1441"), "{out}");
    assert!(err.contains("1f1b: PyTorch 2.15: refuses"), "{err}");
    assert_eq!(pipesim("check -q -p 4 -m 8 -s 1f1b --framework pytorch --framework-version 2.11").0, 0);
    fails("check -q -p 4 -m 8 -s 1f1b --framework pytorch --framework-version 1.0", 2, &["2.15"]);
    fails("check -q -p 4 -m 8 -s 1f1b --framework torch", 2, &["choose among", "pytorch"]);
}

#[cfg(feature = "training")]
#[test]
fn doctor_says_first_that_the_cpu_is_enough() {
    let (code, out, _) = pipesim("doctor");
    assert_eq!(code, 0);
    assert!(out.starts_with("cpu: yes, `pipesim run` works here"), "{out}");
}

/// What is listed as an option is understood, and what is understood is listed.
#[test]
fn schedules_list_v_where_it_is_understood() {
    for schedule in json("schedules --json")["schedules"].as_array().unwrap() {
        let name = schedule["name"].as_str().unwrap();
        let listed = schedule["options"].as_array().unwrap().iter().any(|one| one.as_str().unwrap().starts_with("v ="));
        let (code, _, err) = pipesim(&format!("check -q -p 4 -m 8 -s {name}:v=4"));
        assert_eq!(listed, code == 0, "{name}: {err}");
    }
}

#[test]
fn exports_say_which_costs_made_their_order() {
    const NOTE: &str = "costs decide this order; made with costs per device: F = 1, I = 1, W = 1, B = 2";
    let (code, dot, err) = pipesim("export -p 4 -m 8 -s v-half --to dot");
    assert!(code == 0 && err.contains(NOTE) && err.contains("give your own with --costs"), "{err}");
    assert!(dot.starts_with("// order made with costs per device: F = 1"), "{dot}");
    let (_, csv, err) = pipesim("export -p 4 -m 8 -s v-half --to pytorch-csv");
    assert!(err.contains(NOTE) && csv.starts_with("0F0,"), "{err}{csv}");
    let given = json("export -q -p 4 -m 8 -s v-half --to json --costs F=10ms,I=11ms,W=9ms --straggler 2=1.5");
    assert_eq!(
        given["made_with"],
        "costs per device in ms: F = 10, I = 11, W = 9, B = 20, comm = 0, keep = 1, device 2 x 1.5"
    );
    let (_, fixed, err) = pipesim("export -p 4 -m 8 -s 1f1b --to json");
    assert!(err.is_empty() && !fixed.contains("made_with"), "{err}{fixed}");
}

#[test]
fn compare_reads_report_folders_and_one_unit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (report, units, ms, us) = (path("report"), path("units.json"), path("ms.json"), path("us.json"));
    for (schedules, costs, place) in [
        ("zb-v,1f1b", "F=1", &report),
        ("gpipe", "F=1", &units),
        ("gpipe", "F=2ms,I=2ms,W=2ms", &ms),
        ("gpipe", "F=2000us,I=2000us,W=2000us", &us),
    ] {
        let (code, _, err) = pipesim(&format!("predict -q -p 4 -m 8 -s {schedules} --costs {costs} -o {place}"));
        assert_eq!(code, 0, "{err}");
    }
    let names = |files: &str| -> Vec<String> {
        let (code, csv, err) = pipesim(&format!("compare -q {files} --format csv"));
        assert_eq!(code, 0, "{err}");
        csv.lines().skip(1).map(|row| row.split(',').next().unwrap().to_string()).collect()
    };
    assert_eq!(names(&report), ["zb-v", "1f1b"]);
    assert_eq!(names(&format!("{report} {units}")), ["zb-v", "1f1b", "gpipe"]);
    assert_eq!(names(&format!("{ms} {us}")), ["gpipe (ms.json)", "gpipe (us.json)"]);
    for files in [format!("{report} {ms}"), format!("{ms} {units}")] {
        fails(&format!("compare {files}"), 2, &["expected timelines in one unit", " in ms and ", "in abstract units"]);
    }
    fails(
        &format!("compare {}", folder.path().display()),
        2,
        &["found a folder that has no report; name the timelines in it"],
    );
    fails(&format!("compare {report}/report.json"), 2, &["a report's figures", "give the folder that it is in"]);
}

#[test]
fn empty_files_are_called_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.json");
    for (text, found) in [
        ("", "found an empty file"),
        (" \n", "found an empty file"),
        ("{", "cut off"),
        ("x", "invalid JSON"),
        ("[]", "other JSON"),
    ] {
        std::fs::write(&path, text).unwrap();
        fails(&format!("predict -p 4 -m 8 --profile {}", path.display()), 2, &["expected a cost file", found]);
    }
    std::fs::write(&path, "").unwrap();
    let path = path.display();
    fails(&format!("predict -p 4 -m 8 --model {path} --hardware h100-sxm"), 2, &["config.json, found an empty file"]);
    fails(&format!("compare {path}"), 2, &["found an empty file"]);
}

#[test]
fn a_picture_is_not_suggested_to_those_who_write_one() {
    const SUGGESTED: &str = "too many for the terminal";
    let folder = tempfile::tempdir().unwrap();
    let large = "predict -p 1024 -m 100 -s gpipe";
    assert!(pipesim(large).2.contains(SUGGESTED));
    for name in ["big.csv", "big.tex"] {
        let (code, _, err) = pipesim(&format!("{large} -o {}", folder.path().join(name).display()));
        assert!(code == 0 && !err.contains(SUGGESTED), "{err}");
    }
}

/// Suggested options exist, and names of other programs are not ours: finds rows that a new option makes useless.
#[test]
fn tables_name_options_that_some_verb_has() {
    let mut program = cli::command();
    program.build();
    let below = |verb: &clap::Command| -> Vec<clap::Command> {
        verb.get_subcommands().filter(|verb| verb.get_name() != "help").cloned().collect()
    };
    let verbs: Vec<clap::Command> =
        below(&program).into_iter().flat_map(|verb| [below(&verb), vec![verb]].concat()).collect();
    let has = |verb: &clap::Command, option: &str| {
        let mut shown = verb.get_arguments().filter(|argument| !argument.is_hide_set());
        shown.any(|argument| {
            argument.get_long() == Some(option) || argument.get_all_aliases().unwrap_or_default().contains(&option)
        })
    };
    let some_verb_has = |option: &str| verbs.iter().any(|verb| has(verb, option));
    let foreign: toml::Table = include_str!("../../src/cli/options/foreign.toml").parse().unwrap();
    let table = |name: &str| foreign[name].as_table().unwrap();
    let mut seen = BTreeSet::new();
    for (options, names) in table("flags") {
        for option in options.split(' ') {
            assert!(some_verb_has(option) && table("meanings").contains_key(option), "--{option}");
        }
        for name in names.as_str().unwrap().split(' ') {
            assert!(seen.insert(name), "{name} is listed twice");
            assert!(!verbs.iter().all(|verb| has(verb, name)), "every verb has --{name}");
        }
    }
    table("values").keys().for_each(|option| assert!(some_verb_has(option), "no verb has --{option}"));
    for (here, names) in table("verbs") {
        let verb = here.split(' ').nth(1).unwrap();
        assert!(verb.starts_with('-') || program.find_subcommand(verb).is_some(), "{here}");
        for name in names.as_str().unwrap().split(' ') {
            assert!(program.find_subcommand(name).is_none(), "{name} is a verb");
        }
    }
}
