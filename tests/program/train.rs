//! `pipesim train`: checkpoints, and runs that go on after an interruption as if there had been none.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A model of next to nothing, whose learning rate depends on no number of steps.
pub const MODEL: &str = "--blocks 4 --heads 1 --channels 8 --max-sequence 16 --seq 8 --lr 3e-3";

/// pipesim with these arguments, in which `@` is a folder.
pub fn command(arguments: &str, folder: &Path) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", PROGRAM]);
    command.args(arguments.replace('@', &folder.display().to_string()).split_whitespace()).stdin(Stdio::null());
    command
}

/// Its exit code, what it printed and what it said.
pub fn pipesim(arguments: &str, folder: &Path) -> (Option<i32>, String, String) {
    let output = command(arguments, folder).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), out, err)
}

#[track_caller]
pub fn succeeds(arguments: &str, folder: &Path) -> String {
    let (code, out, err) = pipesim(arguments, folder);
    assert_eq!(code, Some(0), "{arguments}: {err}");
    out
}

/// The log of a run, without times.
pub fn log(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("log.jsonl")).unwrap();
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        for time in ["tokens_per_second", "bubble"] {
            assert!(line[time].is_f64(), "{line}");
            line.as_object_mut().unwrap().remove(time);
        }
        line
    };
    text.lines().map(line).collect()
}

/// The checkpoints of a run, oldest first.
pub fn checkpoints(run: &Path) -> Vec<String> {
    let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.path() {
            path if path.is_dir() => copy(&path, &target),
            path => assert!(fs::copy(path, target).is_ok()),
        }
    }
}

#[test]
fn a_resumed_run_has_the_losses_of_an_uninterrupted_one_under_any_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let settings = "--lr-schedule cosine --warmup-steps 3 --clip 1 --weight-decay 0.01 --validate-every 4 --sample-every 6 \
                    --sample-tokens 5 --temperature 1.1 --top-k 20 --save-every 4 --device cpu -q";
    let out = succeeds(&format!("train {MODEL} {settings} -p 2 -m 4 -s zb-v --steps 12 -o @/whole"), at);
    assert!(out.contains("12 steps done"), "{out}");
    let whole = log(&at.join("whole"));
    assert_eq!(whole.len(), 12);
    assert!(whole[3]["validation_loss"].is_f64() && whole[5]["sample"].is_string(), "{:?}", whole[3]);
    assert!(whole.iter().all(|line| line["norm"].as_f64().is_some_and(|norm| norm > 0.0)));
    assert!(whole[11]["loss"].as_f64() < whole[0]["loss"].as_f64());
    assert_eq!(checkpoints(&at.join("whole")), ["step-000008", "step-000012"]);
    assert!(at.join("whole/report/index.html").is_file());
    for (number, pipeline) in
        ["", "-p 4 -s 1f1b", "-p 1 -s gpipe", "-s interleaved-zb --chunks 2", "-n 2", "-p 4 -s gpipe -n 3"]
            .iter()
            .enumerate()
    {
        let run = format!("again{number}");
        copy(&at.join("whole"), &at.join(&run));
        fs::remove_dir_all(at.join(&run).join("step-000012")).unwrap();
        succeeds(&format!("train --resume @/{run} {pipeline} --device cpu -q"), at);
        assert_eq!(log(&at.join(&run)), whole, "{pipeline}");
        for file in ["model.safetensors", "first_moments.safetensors", "second_moments.safetensors"] {
            let [one, other] =
                ["whole", &*run].map(|run| fs::read(at.join(run).join("step-000012").join(file)).unwrap());
            assert!(one == other, "{file} {pipeline}");
        }
    }
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    succeeds(&format!("train {MODEL} -p 2 -m 2 -s 1f1b --steps 4 --save-every 2 --device cpu -q -o @/run"), at);
    let saved = at.join("run/step-000004");
    let refused = |what: &str| {
        let (code, out, err) = pipesim("train --resume @/run --steps 6 --device cpu -q", at);
        assert!(code == Some(1) && out.is_empty() && err.contains("expected a complete checkpoint"), "{what}: {err}");
        assert!(err.contains(what) && err.contains("step-000002"), "{what}: {err}");
    };
    let files: Vec<PathBuf> = fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 6);
    for file in files {
        let (name, bytes) = (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&file).unwrap());
        for at in [0, bytes.len() / 2, bytes.len() - 3] {
            let mut other = bytes.clone();
            other[at] ^= 4;
            fs::write(&file, other).unwrap();
            refused(if name == "manifest.json" { "json" } else { &name });
        }
        fs::write(&file, &bytes[..bytes.len() - 2]).unwrap(); // more than a final line break
        refused(if name == "manifest.json" { "complete" } else { &name });
        fs::remove_file(&file).unwrap();
        refused(&name);
        fs::write(&file, bytes).unwrap();
    }
    succeeds("train --resume @/run --steps 6 --device cpu -q", at);
    // The data of a run must be the same, too.
    fs::write(at.join("text"), "a text that is long enough for some batches of this model ".repeat(20)).unwrap();
    succeeds(&format!("train {MODEL} -p 1 -m 2 -s 1f1b --data @/text --steps 1 --device cpu -q -o @/own"), at);
    fs::write(at.join("text"), "a text that is long enough for some batches of this modem ".repeat(20)).unwrap();
    let (code, _, err) = pipesim("train --resume @/own --steps 2 --device cpu -q", at);
    assert!(code == Some(2) && err.contains("CRC-32"), "{err}");
}

/// A process that is killed at the end of the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn interrupted_runs_go_on_with_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 4 -s zb-v --device cpu -q");
    succeeds(&format!("{start} --steps 400 -o @/whole"), at);
    let whole = log(&at.join("whole"));
    // Steps take less than a millisecond, checkpoints some: every other interruption meets one that is being written.
    for (number, signal) in ["INT", "KILL", "KILL", "TERM", "KILL", "KILL", "INT", "KILL"].iter().enumerate() {
        let run = at.join(format!("run{number}"));
        let arguments = format!("{start} --steps 1000000 --save-every 3 -o {}", run.display());
        let mut running = Running(command(&arguments, at).stderr(Stdio::piped()).spawn().unwrap());
        until("a checkpoint", || run.is_dir() && !checkpoints(&run).is_empty());
        std::thread::sleep(Duration::from_millis(7 * number as u64));
        let kill = Command::new("kill").args([&format!("-{signal}"), &running.0.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let code = running.0.wait().unwrap().code();
        let mut said = String::new();
        std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        match *signal {
            "KILL" => assert_eq!(code, None),
            _ => assert!(
                matches!(code, Some(130 | 143)) && said.contains("go on with") && said.contains("--resume"),
                "{code:?}: {said}"
            ),
        }
        let done: u32 = checkpoints(&run).last().unwrap()[5..].parse().unwrap();
        let last = done as usize + 4;
        assert!(last <= whole.len(), "{signal} after {done} steps: the machine is faster than this test expects");
        succeeds(&format!("train --resume {} --steps {last} --device cpu -q", run.display()), at);
        assert_eq!(log(&run), whole[..last], "{signal} after {done} steps");
        let left: Vec<_> = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 2 --steps 3 --device cpu -q");
    succeeds(&format!("{start} -s 1f1b -o @/run"), at);
    let cases = [
        (format!("{start} -s 1f1b -o @/run"), "those of another training"),
        (format!("{start} -s 1f1b,gpipe -o @/other"), "one schedule"),
        (format!("{start} -s 1f1b -o @/other --warmup-steps 4"), "--warmup-steps"),
        (format!("{start} -s 1f1b -o @/other --min-lr 1"), "--lr-schedule"),
        (format!("{start} -s 1f1b -o @/other --lr-schedule linear --min-lr 1"), "at most --lr"),
        (format!("{start} -s 1f1b -o @/other --held-out 5%"), "--validate-every"),
        (format!("{start} -s 1f1b -o @/other --validate-every 1 --held-out 0.001%"), "held-out tokens"),
        (format!("{start} -s 1f1b -o @/other --sample-every 1 --sample-tokens 9"), "position table"),
        (format!("{start} -s 1f1b -o @/other --sample-every 1 --top-k 9"), "--temperature"),
        ("train --resume @/run".to_string(), "steps left"),
        ("train --resume @/run --lr 1".to_string(), "part of the checkpoint"),
        ("train --resume @/run/step-000003 --steps 2 -q".to_string(), "steps left"),
        (format!("run {MODEL} --model @/run/step-000003 -p 2 -m 2 -o @/r"), "--blocks changes a GPT-2 by name"),
        ("run --model @/run -p 2 -m 2 -o @/r".to_string(), "config.json"),
        ("train -p 2 -m 2 -s 1f1b".to_string(), "--output"),
        ("train -s 1f1b -o @/other".to_string(), "--stages"),
    ];
    for (arguments, expected) in cases {
        let (code, _, err) = pipesim(&arguments, at);
        assert!(code == Some(2) && err.contains(expected), "{arguments}: {code:?} {err}");
    }
}
