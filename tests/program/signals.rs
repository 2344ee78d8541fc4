//! Ctrl-C, a killed rank: what was measured until then is written.

use crate::support::*;
use serde_json::Value;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run under way, with its output in files of a folder that goes with it.
struct Running {
    child: Child,
    folder: tempfile::TempDir,
}

/// What has a program heed signals even where whoever runs the tests ignores them.
const HEEDING: &str = "--default-signal=INT,TERM,HUP";

/// pipesim with these signals heeded or ignored, see env(1).
fn with_signals(setting: &str) -> Command {
    let mut command = Command::new("env");
    command.args([setting, PROGRAM]);
    command
}

impl Running {
    /// Starts pipesim in a process group of its own.
    fn start(arguments: &str) -> Running {
        Running::start_with(HEEDING, arguments)
    }

    fn start_with(signals: &str, arguments: &str) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        let mut command = with_signals(signals);
        command.args(arguments.split_whitespace()).arg("-o").arg(folder.path().join("report").join(""));
        command.stdout(file("stdout")).stderr(file("stderr")).stdin(Stdio::null()).process_group(0);
        Running { child: command.spawn().unwrap(), folder }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn report(&self) -> PathBuf {
        self.folder.path().join("report")
    }

    /// Waits until it has said this.
    fn until(&mut self, said: &str) {
        let start = Instant::now();
        while !self.read("stderr").contains(said) {
            assert!(start.elapsed() < Duration::from_secs(120), "never said {said}: {}", self.read("stderr"));
            assert!(self.child.try_wait().unwrap().is_none(), "ended early: {}", self.read("stderr"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to the process, or with `group` to all of them, as a terminal does.
    fn signal(&self, signal: &str, group: bool) {
        let sign = if group { "-" } else { "" };
        let mut kill = Command::new("kill");
        kill.args([signal, "--", &format!("{sign}{}", self.child.id())]);
        assert!(kill.status().unwrap().success());
    }

    /// As [`signal`](Self::signal), and waits for the end; exit code and what was said.
    fn end(&mut self, signal: &str, group: bool) -> (Option<i32>, String) {
        let start = Instant::now();
        self.signal(signal, group);
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), self.read("stderr"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("went on for {:?}: {}", start.elapsed(), self.read("stderr"));
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.read("stdout")).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ =
            Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// A model of next to nothing.
const MODEL: &str = "--blocks 4 --heads 1 --channels 8 --vocabulary 257 --max-sequence 8 --device cpu";
const COMMON: &str =
    "--blocks 4 --heads 1 --channels 8 --vocabulary 257 --max-sequence 8 --device cpu --stages 2 --micro 4";

#[test]
fn ctrl_c_finishes_the_step_and_writes_what_was_measured() {
    let cases = [
        ("-INT", "SIGINT", 130, "", false),
        ("-TERM", "SIGTERM", 143, "-n 2", false),
        ("-INT", "SIGINT", 130, "-n 2", true),
    ];
    for (signal, name, expected, more, group) in cases {
        let mut run = Running::start(&format!(
            "run {COMMON} --schedule 1f1b,gpipe --steps 100000 --warmup 1 --format json --timeout 60 {more}"
        ));
        run.until("step 3 1f1b");
        let (code, told) = run.end(signal, group);
        assert_eq!(code, Some(expected), "{more}: {told}");
        assert!(
            told.contains(&format!("stopped by {name} after ")) && told.contains(" of 100000 steps per schedule"),
            "{told}"
        );
        assert!(!told.contains("error:"), "{told}");
        let json = run.json();
        assert!(json["ended_early"].as_str().unwrap().contains(name), "{json}");
        let report = std::fs::read_to_string(run.report().join("report.json")).unwrap();
        assert!(report.contains(&format!("stopped by {name} after ")), "the report does not say so");
        let steps: Vec<usize> =
            json["runs"].as_array().unwrap().iter().map(|run| numbers(&run["losses"]).len()).collect();
        assert!(steps[0] >= 3 && steps[0].abs_diff(steps[1]) <= 1, "{steps:?}");
        assert!(told.contains(&format!("after {} of", steps[0].min(steps[1]))), "{steps:?}: {told}");
        assert!(run.report().join("index.html").is_file() || run.report().read_dir().unwrap().count() > 0, "{told}");
    }
}

#[test]
fn before_a_step_is_measured_there_is_nothing_to_write() {
    // as many steps before them as can be asked for, each of some milliseconds: many seconds on any machine
    let model = "--blocks 4 --heads 1 --channels 64 --vocabulary 257 --max-sequence 64 --batch 16 --device cpu";
    for more in ["", "-n 2"] {
        let mut run = Running::start(&format!(
            "run {model} -p 2 -m 4 --schedule 1f1b --steps 9 --warmup 999 --repeat-batch {more}"
        ));
        run.until("link: local");
        std::thread::sleep(Duration::from_millis(500));
        let (code, told) = run.end("-INT", true);
        assert_eq!(code, Some(130), "{told}");
        assert!(told.contains("stopped before a step was measured by SIGINT; nothing is written"), "{told}");
        assert!(!told.contains("error:") && run.read("stdout").is_empty(), "{told}");
        assert!(!run.report().is_dir() || run.report().read_dir().unwrap().count() == 0, "{told}");
    }
}

#[test]
fn profile_and_accuracy_write_what_was_measured() {
    let mut run = Running::start(
        "run -p 2 -m 4 --steps 100000 --device timed --costs F=1,I=1,W=1 --unit-ms 1 -s gpipe --format json",
    );
    run.until("measuring: ");
    let (code, told) = run.end("-INT", false);
    assert_eq!(code, Some(130), "{told}");
    assert_eq!(run.json()["runs"][0]["schedule"], "gpipe");

    let more = "-p 2 -m 2,4 -s gpipe,1f1b --calibrate-micro 2 --steps 90000 -v";
    let mut run = Running::start(&format!("report accuracy {MODEL} {more}"));
    run.until("step 2 ");
    let (code, told) = run.end("-INT", false);
    assert_eq!(code, Some(130), "{told}");
    assert!(run.report().join("accuracy.json").is_file(), "{told}");

    let folder = tempfile::tempdir().unwrap();
    let costs = folder.path().join("costs.json");
    let mut child = with_signals(HEEDING)
        .args(format!("profile {COMMON} --steps 100000 -o").split_whitespace())
        .arg(&costs)
        .stderr(std::fs::File::create(folder.path().join("stderr")).unwrap())
        .spawn()
        .unwrap();
    let told = || std::fs::read_to_string(folder.path().join("stderr")).unwrap();
    while !told().contains("step 2 ") {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130), "{}", told());
    assert!(std::fs::read_to_string(&costs).unwrap().contains("schema_version"), "{}", told());
}

/// What a shell starts in the background, or `nohup`, is to go on.
#[test]
fn signals_that_are_ignored_stay_so() {
    let mut run = Running::start_with(
        "--ignore-signal=INT,HUP",
        &format!("run {COMMON} --schedule 1f1b --steps 100000 --warmup 1 --format json"),
    );
    run.until("step 3 1f1b");
    run.signal("-INT", false);
    run.signal("-HUP", true);
    let said = run.read("stderr").lines().count();
    run.until(&format!("step {} 1f1b", said + 100));
    let (code, told) = run.end("-TERM", false);
    assert_eq!(code, Some(143), "{told}");
    assert!(told.contains("stopped by SIGTERM after "), "{told}");
}
