//! The check for a machine with a GPU (`tests/gpu`): from a copy of the tree, with an empty environment, on the stand-ins at tiny sizes;
//! and with programs that print at once what its parts expect, so that it can be killed, and its parts can fail in every way.

use crate::support::{Dice, PROGRAM, root, skipped_on_gpu, with_stand_ins};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Most files, and bytes of each, that may come back from the machine.
const FILES: usize = 8;
const BYTES: u64 = 16 << 20;

/// A copy of what is in the repository, as it travels, with packed programs.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// The check's programs are two scripts, and `tools` (name and script) come first on the PATH.
    fn new(programs: [&str; 2], tools: &[(&str, &str)]) -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        let [tree, pack, path] = ["tree", "pack", "path"].map(|name| machine.path(name));
        [&tree, &pack, &path].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let copy = "tar -cf - --exclude=./target --exclude=./.git --exclude=./reports . | tar -xf - -C \"$0\"";
        shell(Command::new("bash").args(["-c", copy]).arg(&tree).current_dir(root()));
        for (name, text) in ["pipesim", "training"].into_iter().zip(programs) {
            script(&pack.join(name), text);
        }
        shell(Command::new("gzip").args(["-1", "pipesim", "training"]).current_dir(&pack));
        shell(Command::new("bash").args(["-c", "sha256sum *.gz >checksums; echo test >commit"]).current_dir(&pack));
        tools.iter().for_each(|(name, text)| script(&path.join(name), text));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A call with an empty environment; its results are in the folders `work` and `kept` with this suffix.
    fn call(&self, arguments: &str, suffix: &str) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(self.path("tree/tests/gpu")).args(arguments.split(' ')).env_clear();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path("path").display());
        command.env("PATH", path).env("PIPESIM_GPU_PACK", self.path("pack")).env("PIPESIM_GPU_QUICK", "1");
        command.env("PIPESIM_GPU_WORK", self.path(&format!("work{suffix}")));
        command.env("OUT", self.path(&format!("kept{suffix}"))).stdin(Stdio::null());
        command
    }

    /// What has come back: few, small and whole files. Returns the lines of status.txt by part: outcome, and what was found.
    fn kept(&self, suffix: &str) -> BTreeMap<String, [String; 2]> {
        let kept = self.path(&format!("kept{suffix}"));
        let files: Vec<PathBuf> =
            fs::read_dir(&kept).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() <= FILES, "{files:?}");
        for file in &files {
            let about = fs::symlink_metadata(file).unwrap();
            assert!(about.is_file() && about.len() <= BYTES, "{file:?}: {about:?}");
        }
        let archive = kept.join("gpu-check.tar.gz");
        if !archive.exists() {
            return BTreeMap::new();
        }
        let unpacked = tempfile::tempdir().unwrap();
        shell(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(unpacked.path()));
        let text = fs::read_to_string(unpacked.path().join("status.txt")).unwrap();
        let row = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            assert!(unpacked.path().join(cells[0]).join("found").is_file(), "{line}");
            (cells[0].to_string(), [cells[1], cells[3]].map(str::to_string))
        };
        text.lines().map(row).collect()
    }
}

fn script(file: &Path, text: &str) {
    fs::write(file, format!("#!/bin/bash\n{text}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn shell(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The parts of a call, by its plan.
fn planned(call: &str) -> Vec<(String, u32)> {
    let output = Command::new(root().join("tests/gpu")).args(["plan", call]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (rows, _) = text.trim_end().rsplit_once('\n').unwrap();
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_string(), words[3].parse().unwrap())
    };
    rows.lines().map(row).collect()
}

/// However long each part takes, the last one begins: 10 s are for unpacking, probes and saving.
#[test]
fn the_parts_of_a_call_fit_its_time() {
    for (call, seconds) in [("a", 120), ("b", 450), ("all", 1800)] {
        let parts = planned(call);
        let before_last: u32 = parts[..parts.len() - 1].iter().map(|(_, seconds)| seconds).sum();
        assert!(before_last + 10 <= seconds, "{call}: {before_last}");
    }
    let help = Command::new(root().join("tests/gpu")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let lines = help.split("\nParts, ").nth(1).unwrap().lines().skip(1).take_while(|line| line.starts_with("    "));
    let listed: Vec<&str> =
        lines.filter(|line| !line.starts_with("     ")).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(listed, planned("all").iter().map(|(part, _)| part.as_str()).collect::<Vec<_>>());
}

/// Both calls, then the other parts that other tests of this program do not run anyway.
#[test]
fn its_parts_run_through_on_the_stand_ins() {
    if skipped_on_gpu("the check runs the tests, not they it") {
        return;
    }
    let programs = [PathBuf::from(PROGRAM), std::env::current_exe().unwrap()];
    let programs = programs.map(|program| format!("exec {} \"$@\"", program.display()));
    let machine = Machine::new([&programs[0], &programs[1]], &[]);
    let run = |arguments: &str, opening_ms: &str| {
        let mut command = machine.call(arguments, "");
        let mut emulated = Command::new("true");
        with_stand_ins(&mut emulated);
        command.envs(emulated.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("EMULATOR_DEVICES", "1").env("EMULATOR_TIMEOUT", "120").env("EMULATOR_OPENING_MS", opening_ms);
        // next to other tests, on a busy machine
        command.env("PIPESIM_GPU_PATIENCE", "5").env("PIPESIM_GPU_SECONDS", "2000");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", told(&output));
        told(&output)
    };
    let first = run("short a", "1300");
    assert!(first.contains("ten-losses\tok") && first.contains("doctor\tok"), "{first}");
    let second = run("short b", "0");
    assert!(second.contains("ten-losses: done before") && second.contains("doctor: done before"), "{second}");
    let found = machine.kept("");
    for (part, [outcome, words]) in &found {
        // neither PyTorch nor Nsight Compute
        let expected = if ["throughput", "ncu"].contains(&part.as_str()) { "skipped" } else { "ok" };
        assert_eq!(outcome, expected, "{part}: {words}: {second}");
    }
    let holds = |part: &str, words: &[&str]| words.iter().all(|word| found[part][1].contains(word));
    assert_eq!(found.len(), 11, "{found:?}");
    assert!(
        holds("doctor", &["compute mode", "MPS: no"]) && holds("ceilings", &["copy ", "product ", "enqueue "]),
        "{found:?}"
    );
    assert!(holds("times", &["products ", "(40.8), attention forward ", "rest "]), "{found:?}");
    assert!(holds(
        "headline",
        &["copy: over naive gpipe ", "copy-from-naive: ", "predicted from naive", "local: ", "1f1b F "]
    ));
    let ranks = &found["ranks"][1];
    let counts = ["losses are PyTorch's", "exit code 6 after"].map(|words| ranks.matches(words).count());
    assert_eq!(counts, [2, 2], "{ranks}");
    let kept = machine.path("kept");
    let summary = fs::read_to_string(kept.join("summary.md")).unwrap();
    assert!(summary.contains("| copy-from-naive | naive | zb-v |") && summary.contains("## times"), "{summary}");

    // results are taken in once, without what is of use to the check alone
    let taken = machine.path("taken");
    let import = || {
        let mut command = Command::new(root().join("tests/gpu"));
        command.arg("import").arg(kept.join("gpu-check.tar.gz")).arg(&taken).output().unwrap().status.code()
    };
    assert_eq!((import(), import()), (Some(0), Some(5)));
    assert!(taken.join("README.md").is_file() && taken.join("headline/copy/index.html").is_file());
    assert!(taken.join("clocks.csv").is_file() && !taken.join("times/done").exists());

    let others = "slices connections steps sanitizer";
    let told = run(&format!("{others} {}", machine.path("kept-others").display()), "0");
    for part in others.split(' ') {
        let expected = if part == "sanitizer" { "skipped" } else { "ok" };
        assert!(told.contains(&format!("{part}\t{expected}\t")), "{part}: {told}");
    }
    for words in ["8 queues: 1f1b ", "32 queues: 1f1b ", "2 sequences: 1f1b ", "4 steps in a row: 1f1b "] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// Programs that do what $FAULTS says of a part (a line `PART FAULT`), or print what the part expects.
const FAULT: &str = r#"
fault() {
    case $(sed -n "s/^$(basename "$PWD") //p" "$FAULTS" 2>/dev/null) in
        hang) trap '' TERM; while :; do sleep 1; done ;;
        fail) echo "error: as it was asked to" >&2; exit 1 ;;
        silent) exit 0 ;;
    esac
    sleep 0.05
}"#;

const PIPESIM: &str = r#"
case "$*" in
    --version) exit 0 ;;
    *--probe*) echo '{"status":"ok"}'; exit 0 ;;
esac
fault
case "$*" in
    doctor*) echo '{"needs": [], "probes": [{"name": "devices", "found": "a card"}]}'; exit 0 ;;
    *" -n 2 "*) echo "error: expected a link, found none" >&2; exit 5 ;;
esac
while [ "$1" != --output ]; do shift; done
mkdir -p "$2"
runs=
for name in naive gpipe 1f1b zb-v; do
    runs="$runs, {\"schedule\": \"$name\", \"predicted\": {\"makespan\": 2}, \"measured\": {\"makespan\": 2}, \"iteration_ms\": {\"median\": 2}, \"error\": {\"makespan\": 0}}"
    echo '{"chunks": 1, "spans": [{"queue": "compute", "op": "0F0", "device": 0, "start_ns": 0, "end_ns": 9}]}' >"$2/$name-measured.json"
done
echo "{\"calibrated_on\": {\"schedule\": \"1f1b\"}, \"runs\": [${runs:1}]}"
"#;

const TRAINING: &str = r#"
fault
echo "ceiling copy 4000.0 GB/s"
echo "group products: 40.80 ms, expected 40.8 ms on an H200, 1.00 times"
echo "test result: ok. 1 passed; 0 failed; 0 ignored"
"#;

/// Refuses to run without the options that leave clocks and caches alone.
const NCU: &str = r#"
[[ " $* " = *" --clock-control none "* && " $* " = *" --cache-control none "* ]] || { echo "error: clocks would be locked" >&2; exit 9; }
fault
while [ "$1" != --log-file ]; do shift; done
printf '%s\n' '"ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum"' '"","","ns","byte"' '"0","adamw_update","1,000","3,000,000"' >"$2"
"#;

const PYTHON: &str = r#"
case "$*" in
    *pytorch_gpu.py*) fault; echo '{"sizes": [{"sequences": 32, "pipesim": {"tokens_per_second": 1.0, "tflops": 1.0}}]}' >throughput.json; exit 0 ;;
esac
exec /usr/bin/env -u PATH PATH="${PATH#*:}" python3 "$@"
"#;

fn stubbed() -> Machine {
    let [pipesim, training, ncu, python] = [PIPESIM, TRAINING, NCU, PYTHON].map(|text| format!("{FAULT}\n{text}"));
    let smi = "while :; do echo 1980 MHz; [[ \" $* \" = *-lms* ]] || exit 0; sleep 0.5; done";
    Machine::new([&pipesim, &training], &[("ncu", &ncu), ("python3", &python), ("nvidia-smi", smi)])
}

/// In four calls each part hangs, fails, prints nothing, and does its work.
#[test]
fn a_part_that_hangs_or_fails_leaves_the_others_and_whole_archives() {
    let machine = stubbed();
    let parts = planned("b");
    let check = |turn: usize| {
        let fault = |number: usize| ["", "hang", "fail", "silent"][(number + turn) % 4];
        let lines = parts.iter().enumerate().map(|(number, (part, _))| format!("{part} {}\n", fault(number)));
        let faults = machine.path(&format!("faults{turn}"));
        fs::write(&faults, lines.collect::<String>()).unwrap();
        let begin = Instant::now();
        let suffix = turn.to_string();
        let output =
            machine.call("short b", &suffix).env("FAULTS", faults).env("PIPESIM_GPU_LIMIT", "6").output().unwrap();
        let (found, told) = (machine.kept(&suffix), told(&output));
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(begin.elapsed() < Duration::from_secs(120), "{told}");
        for (number, (part, _)) in parts.iter().enumerate() {
            let [outcome, words] = &found[part];
            let expected = match fault(number) {
                "" if part == "ranks" => "skipped", // no link
                "" => "ok",
                _ => "failed",
            };
            assert_eq!(outcome, expected, "{part} {}: {words}: {told}", fault(number));
            assert_eq!(words.starts_with("not done after 6 s"), fault(number) == "hang", "{part}: {words}");
            assert!(!words.is_empty(), "{part}: {told}");
        }
    };
    // where everything hangs, the call still ends in time
    let no_end = || {
        let faults = machine.path("faults");
        fs::write(&faults, parts.iter().map(|(part, _)| format!("{part} hang\n")).collect::<String>()).unwrap();
        let begin = Instant::now();
        let output = machine.call("short b", "-late").env("FAULTS", faults).env("PIPESIM_GPU_SECONDS", "16").output();
        let told = told(&output.unwrap());
        // its parts would hang for ever; a busy machine takes some seconds more to end them
        assert!(begin.elapsed() < Duration::from_secs(40), "{:?}: {told}", begin.elapsed());
        assert!(told.contains("ceilings\tfailed") && told.contains("ncu\tskipped\t0 s\tno time left"), "{told}");
        assert_eq!(machine.kept("-late").len(), parts.len(), "{told}");
    };
    std::thread::scope(|scope| {
        scope.spawn(no_end);
        (0..4).for_each(|turn| drop(scope.spawn(move || check(turn))));
    });
}

/// Kills all processes of a session.
fn kill_session(session: u32) {
    loop {
        let mut killed = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((_, fields)) = text.rsplit_once(')') else { continue };
            let fields: Vec<&str> = fields.split_whitespace().collect();
            if fields[3] == session.to_string() && fields[0] != "Z" {
                killed.push(entry.file_name());
            }
        }
        if killed.is_empty() {
            return;
        }
        let _ = Command::new("kill").arg("-KILL").args(killed).stderr(Stdio::null()).status();
    }
}

/// The machine may disappear at any time.
#[test]
fn a_call_that_is_killed_leaves_whole_archives_and_the_next_one_goes_on() {
    let machine = stubbed();
    let begin = Instant::now();
    let output = machine.call("short b", "-whole").output().unwrap();
    let whole = begin.elapsed();
    assert!(output.status.success() && machine.kept("-whole").len() == 10, "{}", told(&output));

    let mut dice = Dice(u64::from(std::process::id()));
    let moments: Vec<Duration> = (0..10).map(|_| whole.mul_f64(dice.below(1000) as f64 / 1000.0)).collect();
    let kill = |number: usize, moment: Duration| {
        let (suffix, call) = (number.to_string(), ["short a", "short b"][number % 2]);
        let mut command = machine.call(call, &suffix);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(moment);
        kill_session(child.id());
        child.wait().unwrap();
        let before = machine.kept(&suffix);
        let output = machine.call(call, &suffix).output().unwrap();
        let after = machine.kept(&suffix);
        assert!(output.status.success(), "killed after {moment:?}: {}", told(&output));
        assert_eq!(after.len(), planned(&call[6..]).len(), "killed after {moment:?}");
        assert!(
            before.iter().all(|(part, result)| after[part] == *result),
            "killed after {moment:?}: {before:?} {after:?}"
        );
    };
    std::thread::scope(|scope| {
        for (turn, pair) in moments.chunks(2).enumerate() {
            let kill = &kill;
            scope.spawn(move || pair.iter().enumerate().for_each(|(i, moment)| kill(2 * turn + i, *moment)));
        }
    });
}
