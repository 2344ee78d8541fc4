//! The check for a machine with a GPU (`tests/gpu`), run on the stand-ins at tiny sizes: its parts do what they say, in the order
//! in which they tell most, and each leaves what it found behind.

use crate::support::{PROGRAM, root, skipped_on_gpu, with_stand_ins};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

fn check() -> Command {
    let mut command = Command::new(root().join("tests/gpu"));
    with_stand_ins(&mut command);
    command
}

/// Its parts in the order in which its help lists them.
fn listed() -> Vec<String> {
    let output = check().arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let lines = help.split("\nParts, ").nth(1).unwrap().lines();
    let parts = lines.skip(1).take_while(|line| line.starts_with("    "));
    parts.map(|line| line.split_whitespace().next().unwrap().to_string()).collect()
}

/// A line of status.txt by part: outcome, and what was found.
fn status(folder: &Path) -> (Vec<String>, BTreeMap<String, [String; 2]>) {
    let text = std::fs::read_to_string(folder.join("status.txt")).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let order = rows.iter().map(|row| row[0].to_string()).collect();
    (order, rows.iter().map(|row| (row[0].to_string(), [row[1], row[3]].map(str::to_string))).collect())
}

/// A plan fits in the time that it is for, and its parts are those of the check.
#[test]
fn plans_fit_their_minutes() {
    for (name, most) in [("short", 600), ("all", 1800)] {
        let output = check().args(["plan", name]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (rows, sum) = text.trim_end().rsplit_once('\n').unwrap();
        let number = |words: &str| words.split_whitespace().rev().nth(1).unwrap().parse::<u32>().unwrap();
        assert_eq!(rows.lines().map(number).sum::<u32>(), number(sum), "{text}");
        assert!(number(sum) <= most, "{text}");
        let parts: Vec<&str> = rows.lines().map(|row| row.split_whitespace().next().unwrap()).collect();
        assert!(if name == "all" { parts == listed() } else { parts.contains(&"times") }, "{text}");
    }
}

#[test]
fn its_first_parts_run_through_on_the_stand_ins() {
    if skipped_on_gpu("the check runs the tests, not they it") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [pack, out] = ["pack", "out"].map(|name| folder.path().join(name));
    let programs = out.join(".bin");
    std::fs::create_dir_all(&pack).unwrap();
    std::fs::create_dir_all(&programs).unwrap();
    // as if it had unpacked them
    for (name, text) in [("checksums", "none"), ("commit", "a test")] {
        std::fs::write(pack.join(name), text).unwrap();
        std::fs::write(programs.join(name), text).unwrap();
    }
    symlink(PROGRAM, programs.join("pipesim")).unwrap();
    symlink(std::env::current_exe().unwrap(), programs.join("training")).unwrap();

    // what takes longest stays out: these are other tests of this program
    let parts = [
        "doctor",
        "slices",
        "times",
        "throughput",
        "connections",
        "exits",
        "steps",
        "sharing",
        "ranks",
        "sanitizer",
        "choices",
    ];
    let mut command = check();
    command.args(parts).arg(&out).env("PIPESIM_GPU_PACK", &pack).env("PIPESIM_GPU_QUICK", "1");
    command.env("EMULATOR_DEVICES", "1").env("EMULATOR_MULTIPROCESSORS", "64").env("EMULATOR_TIMEOUT", "120");
    // beside other tests, on a busy machine
    command.env("PIPESIM_GPU_PATIENCE", "5").env("PIPESIM_GPU_SECONDS", "2000");
    let output = command.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");

    let (order, found) = status(&out);
    assert_eq!(order, parts, "each has its line, in their order");
    for part in parts {
        // neither a GPU that PyTorch could use nor code that the tool could look into
        let expected = if ["throughput", "sanitizer"].contains(&part) { "skipped" } else { "ok" };
        assert_eq!(found[part][0], expected, "{part}: {told}");
        assert!(out.join(part).join("log.txt").is_file() && out.join(part).join("found").is_file());
    }
    assert!(found["doctor"][1].contains("compute mode") && found["doctor"][1].contains("MPS: no"), "{found:?}");
    assert!(
        found["connections"][1].contains("8 queues: 1f1b ") && found["connections"][1].contains("32 queues: 1f1b ")
    );
    assert!(
        found["times"][1].contains("(40.8), attention forward ") && found["times"][1].contains("rest "),
        "{found:?}"
    );
    assert!(
        found["times"][1].contains("DRAM bytes: ")
            && ["LayerNorm backward in one pass ", "CUDA graphs at B = 2 "]
                .iter()
                .all(|name| found["choices"][1].contains(name))
    );
    assert!(found["steps"][1].contains("2 sequences: 1f1b ") && found["steps"][1].contains("4 steps in a row: 1f1b "));
    assert!(found["sharing"][1].starts_with("taking turns: 1f1b "), "{found:?}");
    assert!(found["exits"][1].starts_with("3 runs, exit code 0 each time"), "{found:?}");
    let ranks = &found["ranks"][1];
    assert_eq!(
        (ranks.matches("losses are PyTorch's").count(), ranks.matches("exit code 6 after").count()),
        (2, 2),
        "{ranks}"
    );
    assert!(std::fs::metadata(out.join("gpu-check.tar.gz")).unwrap().len() > 1000);

    // results are taken in once, without what is of use to the check alone
    let taken = folder.path().join("taken");
    let import = || check().arg("import").arg(out.join("gpu-check.tar.gz")).arg(&taken).output().unwrap().status.code();
    assert_eq!((import(), import()), (Some(0), Some(5)));
    let text = std::fs::read_to_string(taken.join("README.md")).unwrap();
    assert!(text.contains("| part |") && taken.join("times/lines.txt").is_file() && !taken.join("times/done").exists());

    // the summary has all parts, in the order of the help; what is done is not done again
    let summary = std::fs::read_to_string(out.join("summary.md")).unwrap();
    let rows = summary.split("| part |").nth(1).unwrap().lines().skip(2);
    let rows: Vec<String> = rows.map(|row| row.split('|').nth(1).unwrap().trim().to_string()).collect();
    assert_eq!(rows, listed());
    let again =
        check().arg("exits").arg(&out).env("PIPESIM_GPU_PACK", &pack).env("PIPESIM_GPU_QUICK", "1").output().unwrap();
    assert!(String::from_utf8_lossy(&again.stdout).starts_with("exits: done before"), "{again:?}");
}
