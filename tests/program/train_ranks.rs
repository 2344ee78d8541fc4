//! `pipesim train` on several ranks: losses and checkpoints are those of threads, signals and dead ranks leave a checkpoint that loads.

use crate::ranks::rank;
use crate::train::*;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The files of a checkpoint that hold tensors.
const TENSORS: [&str; 3] = ["model.safetensors", "first_moments.safetensors", "second_moments.safetensors"];

/// Checks that two runs have the same log and the same newest checkpoint.
#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    assert_eq!(log(one), log(other));
    assert_same_tensors(one, other);
}

/// Checks that two runs have the same newest checkpoint.
#[track_caller]
fn assert_same_tensors(one: &Path, other: &Path) {
    let newest = checkpoints(one).pop().unwrap();
    assert_eq!(Some(&newest), checkpoints(other).last());
    for file in TENSORS {
        let [one, other] = [one, other].map(|run| fs::read(run.join(&newest).join(file)).unwrap());
        assert!(one == other, "{file}");
    }
}

/// Settings of everything that happens between steps.
const BETWEEN: &str = "--clip 1 --validate-every 3 --sample-every 3 --sample-tokens 5 --save-every 4 --device cpu -q";

#[test]
fn ranks_write_what_threads_write_and_go_on_from_each_others_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} {BETWEEN} -m 8 --steps 8");
    // The ranks of a V hold other stages than those of a line, a bidirectional placement holds every stage twice.
    for (schedule, p, ranks) in [("1f1b", 4, 3), ("zb-v", 2, 2), ("dualpipe", 4, 2)] {
        let [threads, processes] = ["threads", "ranks"].map(|name| format!("{schedule}-{name}"));
        succeeds(&format!("{start} -p {p} -s {schedule} -o @/{threads}"), at);
        let out = succeeds(&format!("{start} -p {p} -s {schedule} -o @/{processes} -n {ranks}"), at);
        assert_eq!(out.matches("8 steps done").count(), 1, "{out}");
        assert_same(&at.join(&threads), &at.join(&processes));
        assert!(at.join(&processes).join("report/index.html").is_file());
        succeeds(&format!("train --resume @/{threads} --steps 12 -n {ranks} --device cpu -q"), at);
        succeeds(&format!("train --resume @/{processes} --steps 12 --device cpu -q"), at);
        assert_same(&at.join(threads), &at.join(processes));
    }
}

/// A model whose layers two tensor ranks share.
const SHARED: &str = "--blocks 4 --heads 2 --channels 16 --max-sequence 16 --seq 8 --lr 3e-3 --device cpu -q";

/// Ranks that have parts of the same tensors: shares of tensor ranks, and slices of the moments.
#[test]
fn ranks_with_parts_of_tensors_write_what_threads_write() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let cases = [
        ("mesh", "-p 2 -m 2 -s 1f1b --tp 2 --dp 2 --sequence-parallel --zero 1 --clip 1", 3),
        ("both", "-p 2 -m 4 -s dualpipe --zero 1", 2),
    ];
    for (name, pipeline, ranks) in cases {
        let [threads, processes] = ["threads", "ranks"].map(|kind| format!("{name}-{kind}"));
        let start = format!("train {SHARED} {pipeline} --steps 3");
        succeeds(&format!("{start} -o @/{threads}"), at);
        succeeds(&format!("{start} -o @/{processes} -n {ranks} --no-shared-memory"), at);
        assert_same(&at.join(&threads), &at.join(&processes));
        succeeds(&format!("train --resume @/{threads} --steps 5 -n {ranks} --device cpu -q"), at);
        succeeds(&format!("train --resume @/{processes} --steps 5 --device cpu -q"), at);
        assert_same(&at.join(threads), &at.join(processes));
    }
}

/// Checkpoints hold whole tensors: a run may go on with the optimizer shared, or no longer shared.
#[test]
fn sharing_the_optimizer_may_begin_and_end_with_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {SHARED} -p 2 -m 2 -s 1f1b --dp 2");
    succeeds(&format!("{start} --steps 6 -o @/never"), at);
    succeeds(&format!("{start} --zero 1 --steps 2 -o @/changing"), at);
    for (steps, more) in [(4, "--zero 0"), (5, "--zero 1"), (6, "")] {
        succeeds(&format!("train --resume @/changing --steps {steps} {more} --device cpu -q"), at);
    }
    // The norm that the log shows is summed in another order.
    assert_same_tensors(&at.join("never"), &at.join("changing"));
    let losses = |run: &str| log(&at.join(run)).iter().map(|step| step["loss"].clone()).collect::<Vec<_>>();
    assert_eq!(losses("never"), losses("changing"));
    // One replica has nobody to share with, and a checkpoint that says otherwise is no obstacle.
    succeeds("train --resume @/changing --steps 7 --dp 1 --micro 4 --device cpu -q", at);
}

/// A run that takes too long to end by itself, and its launcher.
fn long(at: &Path, more: &str) -> (Running, std::path::PathBuf) {
    let run = at.join(more.replace([' ', '-'], "_"));
    let arguments = format!("train {MODEL} -p 4 -m 4 -s 1f1b -q --device cpu --steps 1000000 --save-every 3 {more}");
    let mut command = command(&format!("{arguments} -o {}", run.display()), at);
    let running = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    until("a checkpoint", || run.is_dir() && !checkpoints(&run).is_empty());
    (running, run)
}

/// Sends a signal to `pid` and waits for the end of the launcher; its exit code and what it said.
fn signalled(mut running: Running, pid: u32, signal: &str) -> (Option<i32>, String) {
    let sent = Instant::now();
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    let code = running.0.wait().unwrap().code();
    assert!(sent.elapsed() < Duration::from_secs(40), "took {:?}", sent.elapsed());
    let mut said = String::new();
    running.0.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    (code, said)
}

/// Checks that a run goes on from its newest checkpoint as if nothing had happened.
fn goes_on(run: &Path, whole: &[serde_json::Value], at: &Path) {
    let done: usize = checkpoints(run).last().unwrap()[5..].parse().unwrap();
    assert!(done + 2 <= whole.len(), "{done} steps: the machine is faster than this test expects");
    succeeds(&format!("train --resume {} --steps {} --device cpu -q -n 2", run.display(), done + 2), at);
    assert_eq!(log(run), whole[..done + 2]);
    let left: Vec<_> = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn a_signal_to_the_launcher_saves_and_a_killed_rank_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    succeeds(&format!("train {MODEL} -p 4 -m 4 -s 1f1b -q --device cpu --steps 300 -o @/whole"), at);
    let whole = log(&at.join("whole"));
    for (ranks, signal, code) in [(2, "-INT", 130), (3, "-TERM", 143)] {
        let (running, run) = long(at, &format!("-n {ranks}"));
        let pid = running.0.id();
        let (found, said) = signalled(running, pid, signal);
        assert_eq!(found, Some(code), "{said}");
        let again = format!("pipesim train --resume {} -n {ranks}", run.display());
        assert!(said.contains(&again) && said.matches("go on with").count() == 1, "{said}");
        goes_on(&run, &whole, at);
    }
    for victim in [0, 1] {
        let (running, run) = long(at, &format!("-n 4 --seed 42 --timeout {}", 60 + victim));
        let pid = rank(running.0.id(), &format!("PIPESIM_RANK={victim}")).expect("the rank runs");
        let (found, said) = signalled(running, pid, "-KILL");
        assert_eq!(found, Some(6), "{said}");
        assert!(said.contains(&format!("rank {victim} was killed by signal 9")), "{said}");
        goes_on(&run, &whole, at);
    }
}

#[test]
fn what_does_not_fit_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 2 --steps 2 --device cpu -q");
    succeeds(&format!("{start} -s 1f1b -o @/run"), at);
    let cases = [
        (format!("{start} -s 1f1b -o @/other -n 3"), "at most as many ranks as devices"),
        (format!("{start} -s 1f1b -o @/run -n 2"), "those of another training"),
        ("train --resume @/run --steps 4 --device cpu -n 3".to_string(), "at most as many ranks as devices"),
        (format!("{start} -s 1f1b -o @/other -n 2 --sample-every 1 --sample-tokens 9"), "position table"),
        (format!("{start} -s 1f1b -o @/other --profile @/costs.json"), "does not depend on costs"),
    ];
    for (arguments, expected) in cases {
        let (code, _, err) = pipesim(&arguments, at);
        assert!(code == Some(2) && err.contains(expected) && err.matches("error").count() == 1, "{arguments}: {err}");
    }
}

/// Schedules whose order depends on costs: measured first, or read from a file. Their W's have the same order whatever the costs are.
#[test]
fn orders_that_depend_on_costs_have_the_losses_of_fixed_ones() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 4 --device cpu");
    succeeds(&format!("{start} -q -s 1f1b --steps 4 -o @/fixed"), at);
    succeeds(&format!("profile {MODEL} -p 2 -m 4 --device cpu -q -o @/costs.json --steps 2 --warmup 0"), at);
    for (number, more) in ["-s zb-v-greedy -n 2", "-s zb-1p --profile @/costs.json", "-s hanayo"].iter().enumerate() {
        let (code, _, err) = pipesim(&format!("{start} {more} --steps 2 -o @/run{number}"), at);
        assert_eq!(code, Some(0), "{more}: {err}");
        assert_eq!(err.matches("measuring 1f1b first").count(), usize::from(!more.contains("--profile")), "{err}");
        succeeds(&format!("train --resume @/run{number} --steps 4 --device cpu -q"), at);
        assert_eq!(log(&at.join(format!("run{number}"))), log(&at.join("fixed")), "{more}");
    }
    let (code, _, err) = pipesim(&format!("{start} -s auto --steps 1 -o @/auto"), at);
    assert!(code == Some(0) && err.contains("auto chose"), "{err}");
    let saved = fs::read_to_string(at.join("auto/step-000001/training.json")).unwrap();
    assert!(!saved.contains("\"auto"), "{saved}");
}

#[cfg(feature = "mpi")]
mod under_mpirun {
    use super::*;
    use crate::ranks::under_mpirun::mpirun;

    #[test]
    fn ranks_write_what_threads_write() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let start = format!("train {MODEL} {BETWEEN} -p 2 -m 4 -s zb-v --steps 8");
        succeeds(&format!("{start} -o @/threads"), at);
        for more in ["", "--no-shared-memory"] {
            let run = format!("ranks{more}");
            let arguments = format!("{start} {more} -o {}", at.join(&run).display());
            let output = mpirun(2, &[]).args(arguments.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_same(&at.join("threads"), &at.join(run));
        }
        succeeds("train --resume @/ranks --steps 12 --device cpu -q", at);
        let arguments = format!("train --resume {} --steps 12 --device cpu -q", at.join("threads").display());
        let output = mpirun(2, &[]).args(arguments.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_same(&at.join("threads"), &at.join("ranks"));
    }
}
