//! Several processes train together: `pipesim run -n N`, and with the feature `mpi` under `mpirun`. The losses are PyTorch's,
//! and a rank that dies ends the others.

use crate::support::{self, *};
use pipesim::internals::dsl;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Arguments that train the golden model on p devices, 8 sequences a step in 8 micro-batches.
fn arguments(p: u32, more: &[&str]) -> Vec<String> {
    let (model, tokens) = (golden("gpt2/model.bin"), golden("gpt2/tokens.bin"));
    let mut arguments: Vec<String> = ["run", "--micro", "8", "--seq", "32", "--lr", "1e-3", "--tokenizer", "bytes"]
        .iter()
        .chain(&["--warmup", "1", "--format", "json", "--quiet", "--device", "cpu"])
        .map(|text| text.to_string())
        .collect();
    arguments.extend(["--stages".to_string(), p.to_string()]);
    arguments.extend(["--checkpoint".to_string(), model.display().to_string()]);
    arguments.extend(["--data".to_string(), tokens.display().to_string()]);
    arguments.extend(more.iter().map(|text| text.to_string()));
    arguments
}

/// Runs `program` with what names the ranks, then pipesim's arguments. No variable of an outer launcher is handed on.
fn run(mut command: Command, arguments: &[String], report: &Path) -> Output {
    command.args(arguments).arg("-o").arg(format!("{}/", report.display())).output().unwrap()
}

fn pipesim() -> Command {
    Command::new(PROGRAM)
}

/// Checks the JSON of a run: each schedule's losses are those of `key`; returns the schedules' names and the link.
fn check_losses(output: &Output, key: &str) -> (BTreeSet<String>, String) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = support::check_losses(&json, key, 1e-4);
    let link = found.keys().next_back().map_or(String::new(), |(_, link)| link.clone());
    (found.into_keys().map(|(name, _)| name).collect(), link)
}

/// The schedules that exist for p devices and have at most `stages` stages there.
fn schedules(p: u32, stages: u32) -> Vec<&'static str> {
    let fits = |name: &&str| order(name, p, 8, None).is_ok_and(|order| order.placement().stages() <= stages);
    dsl::names().into_iter().filter(fits).collect()
}

fn with_schedules<'a>(names: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    names.iter().flat_map(|name| ["--schedule", name]).chain(more.iter().copied()).collect()
}

#[test]
fn two_ranks_give_pytorchs_losses_under_every_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let names = schedules(2, 4);
    let more = with_schedules(&names, &["-n", "2", "--steps", "3"]);
    let output = run(pipesim(), &arguments(2, &more), folder.path());
    let (ran, link) = check_losses(&output, "C_stream_b0.9_0.999_wd0");
    assert_eq!((ran.len(), link.as_str()), (names.len(), "local"));
}

#[test]
fn four_ranks_give_pytorchs_losses() {
    let folder = tempfile::tempdir().unwrap();
    let names = schedules(4, 4);
    assert!(names.len() >= 5, "{names:?}");
    let more = with_schedules(&names, &["-n", "4", "--steps", "3", "--clip", "1", "--beta2", "0.95", "--repeat-batch"]);
    let output = run(pipesim(), &arguments(4, &more), folder.path());
    let (ran, _) = check_losses(&output, "B_same_batch_b0.9_0.95_wd0_clip1");
    assert_eq!(ran.len(), names.len());
}

/// Two chunks a device want 8 stages on 4 devices: more than the golden model has blocks. One device computes the reference.
fn deeper_model(command: Command, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let names = schedules(4, 8);
    assert!(names.len() >= 20, "{names:?}");
    let sizes = ["--blocks", "8", "--heads", "2", "--channels", "16", "--vocabulary", "257", "--max-sequence", "32"];
    let mut arguments: Vec<String> = ["run", "--micro", "8", "--seq", "16", "--tokenizer", "bytes", "--format", "json"]
        .iter()
        .chain(&["--quiet", "--device", "cpu", "--steps", "3", "--warmup", "0"])
        .chain(&sizes)
        .map(|text| text.to_string())
        .collect();
    let one: Vec<String> = arguments.iter().cloned().chain(["--stages".into(), "1".into()]).collect();
    let output = run(pipesim(), &one, folder.path());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let reference = json["runs"][0]["losses"].clone();
    arguments.extend(["--stages".to_string(), "4".to_string()]);
    arguments.extend(with_schedules(&names, more).iter().map(|text| text.to_string()));
    let output = run(command, &arguments, folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), names.len());
    for run in runs {
        for step in 0..3 {
            let [ours, one] = [&run["losses"], &reference].map(|losses| losses[step].as_f64().unwrap());
            assert!((ours - one).abs() < 1e-5, "{} step {step}: {ours}, one device {one}", run["schedule"]);
        }
    }
}

#[test]
fn four_ranks_of_two_chunks_give_the_losses_of_one_device() {
    deeper_model(pipesim(), &["-n", "4"]);
}

#[test]
fn fewer_ranks_than_devices_and_more_devices_than_one_each() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--schedule", "1f1b", "-n", "3", "--steps", "3", "--baseline"];
    let output = run(pipesim(), &arguments(4, &more), folder.path());
    check_losses(&output, "C_stream_b0.9_0.999_wd0");
}

/// The process with this in its environment whose parent is `launcher`.
fn rank(launcher: u32, wanted: &str) -> Option<u32> {
    std::fs::read_dir("/proc").unwrap().find_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent: u32 = status.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        (parent == launcher && environment.split(|&byte| byte == 0).any(|item| item == wanted.as_bytes()))
            .then_some(pid)
    })
}

/// Starts a long run on three ranks, waits until steps are reported, kills the rank that has `victim` in its environment; exit
/// code, stderr, and how long the end took.
fn kill_mid_run(
    command: Command,
    more: &[&str],
    victim: &str,
) -> (Option<i32>, String, Duration, PathBuf, tempfile::TempDir) {
    signal_mid_run(command, more, victim, "-9")
}

/// [`kill_mid_run`] with another signal.
fn signal_mid_run(
    mut command: Command,
    more: &[&str],
    victim: &str,
    signal: &str,
) -> (Option<i32>, String, Duration, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let errors = folder.path().join("stderr");
    let mut more = arguments(3, &[more, &["--schedule", "1f1b", "--steps", "100000"]].concat());
    more.retain(|argument| argument != "--quiet");
    let mut child = command
        .args(&more)
        .arg("-o")
        .arg(format!("{}/", report.display()))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let told = || std::fs::read_to_string(&errors).unwrap();
    while !told().contains("step 3 1f1b") {
        assert!(start.elapsed() < Duration::from_secs(120), "no steps: {}", told());
        assert!(child.try_wait().unwrap().is_none(), "ended early: {}", told());
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rank(child.id(), victim).expect("the rank runs");
    let killed = Instant::now();
    assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
    let status = child.wait().unwrap();
    (status.code(), told(), killed.elapsed(), report, folder)
}

/// Whether a report was written there.
fn has_files(report: &Path) -> bool {
    report.read_dir().is_ok_and(|mut files| files.next().is_some())
}

#[test]
fn a_killed_rank_ends_the_others_is_named_and_what_was_measured_is_written() {
    let (code, told, took, report, _folder) = kill_mid_run(pipesim(), &["-n", "3"], "PIPESIM_RANK=1");
    assert_eq!(code, Some(6), "{told}");
    assert!(told.contains("rank 1 was killed by signal 9"), "{told}");
    assert!(told.contains("device 1 at op number"), "who was where: {told}");
    assert!(took < Duration::from_secs(10), "took {took:?}");
    assert!(has_files(&report), "{told}");
}

/// Nothing hangs: a rank that stands still is as good as dead.
#[test]
fn a_stopped_rank_ends_the_others() {
    let more = ["-n", "3", "--timeout", "2"];
    let (code, told, took, _, _folder) = signal_mid_run(pipesim(), &more, "PIPESIM_RANK=1", "-STOP");
    assert_eq!(code, Some(6), "{told}");
    assert!(told.contains("at op number") && took < Duration::from_secs(40), "took {took:?}: {told}");
}

#[test]
fn a_killed_rank_0_is_named_by_the_launcher() {
    let (code, told, took, _, _folder) = kill_mid_run(pipesim(), &["-n", "3"], "PIPESIM_RANK=0");
    assert_eq!(code, Some(6), "{told}");
    assert!(told.contains("rank 0 was killed by signal 9"), "{told}");
    assert!(took < Duration::from_secs(10), "took {took:?}");
}

#[test]
fn a_dead_or_hanging_device_of_another_rank_is_named() {
    for (fault, text) in [("die@1:3", "device 1 died"), ("hang@1:3", "at op number")] {
        let folder = tempfile::tempdir().unwrap();
        let more = ["--schedule", "1f1b", "-n", "2", "--steps", "3", "--timeout", "2", "--inject", fault];
        let output = run(pipesim(), &arguments(2, &more), folder.path());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{fault}: {told}");
        assert!(told.contains(text) && told.matches("error:").count() == 1, "{fault}: {told}");
    }
}

#[test]
fn contradictions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(pipesim(), &arguments(2, &["-n", "3"]), folder.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("at most as many ranks as devices"));
    let mut under = pipesim();
    under.env("OMPI_COMM_WORLD_SIZE", "4");
    let output = run(under, &arguments(4, &["-n", "2"]), folder.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("leave -n out"));
    let mut under = pipesim();
    under.env("OMPI_COMM_WORLD_SIZE", "4").env("PMI_SIZE", "2");
    assert_eq!(run(under, &arguments(4, &[]), folder.path()).status.code(), Some(2));
    let mut under = pipesim();
    under.env("SLURM_STEP_NUM_TASKS", "4");
    let output = run(under, &arguments(4, &[]), folder.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--mpi=pmix"));
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_says_so_under_mpirun() {
    let folder = tempfile::tempdir().unwrap();
    let mut under = pipesim();
    under.env("OMPI_COMM_WORLD_SIZE", "4");
    let output = run(under, &arguments(4, &[]), folder.path());
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--features mpi"));
}

#[cfg(feature = "mpi")]
mod under_mpirun {
    use super::*;

    fn mpirun(ranks: u32) -> Command {
        let mut command = Command::new("mpirun");
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            &ranks.to_string(),
            PROGRAM,
        ]);
        command
    }

    #[test]
    fn four_ranks_give_pytorchs_losses() {
        let folder = tempfile::tempdir().unwrap();
        let names = schedules(4, 4);
        let more = with_schedules(&names, &["--steps", "3", "--link", "mpi"]);
        let output = run(mpirun(4), &arguments(4, &more), folder.path());
        let (ran, link) = check_losses(&output, "C_stream_b0.9_0.999_wd0");
        assert_eq!((ran.len(), link.as_str()), (names.len(), "mpi"));
    }

    #[test]
    fn four_ranks_of_two_chunks_give_the_losses_of_one_device() {
        deeper_model(mpirun(4), &[]);
    }

    /// As between machines: every message goes through MPI.
    #[test]
    fn ranks_that_share_no_memory_give_the_same_losses() {
        let folder = tempfile::tempdir().unwrap();
        let names = schedules(2, 4);
        let more =
            with_schedules(&names, &["--steps", "3", "--apart", "--clip", "1", "--beta2", "0.95", "--repeat-batch"]);
        let output = run(mpirun(2), &arguments(2, &more), folder.path());
        let (ran, link) = check_losses(&output, "B_same_batch_b0.9_0.95_wd0_clip1");
        assert_eq!((ran.len(), link.as_str()), (names.len(), "mpi"));
    }

    /// GPUs (stand-ins for NVIDIA's libraries) whose ranks `mpirun` started, over every link that can join them.
    #[test]
    fn gpus_of_ranks_give_pytorchs_losses() {
        let emulator = emulator();
        let (cache, variables) = (emulator.join("cache"), ["LD_LIBRARY_PATH", "PIPESIM_CACHE"]);
        for (link, more) in [("mpi", &[][..]), ("mpi", &["--apart"]), ("nvshmem", &[]), ("nccl", &["--apart"])] {
            let folder = tempfile::tempdir().unwrap();
            let mut command = Command::new("mpirun");
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]);
            for (variable, value) in variables.iter().zip([&emulator, &cache]) {
                command.arg("-x").arg(format!("{variable}={}", value.display()));
            }
            command.arg(PROGRAM);
            let more =
                [more, &["--schedule", "zb-h1", "--schedule", "dualpipe", "--steps", "3", "--link", link]].concat();
            let mut arguments = arguments(2, &more);
            arguments.iter_mut().filter(|text| *text == "cpu").for_each(|text| *text = "cuda".to_string());
            let (ran, used) = check_losses(&run(command, &arguments, folder.path()), "C_stream_b0.9_0.999_wd0");
            assert_eq!((ran.len(), used.as_str()), (2, link));
        }
    }

    #[test]
    fn a_killed_rank_ends_the_others_and_what_was_measured_is_written() {
        let (code, told, took, report, _folder) = kill_mid_run(mpirun(3), &[], "OMPI_COMM_WORLD_RANK=1");
        assert!(code != Some(0), "{told}");
        assert!(told.contains("signal 9"), "mpirun names it: {told}");
        assert!(told.contains("device 1 at op number"), "who was where: {told}");
        assert!(took < Duration::from_secs(10), "took {took:?}");
        assert!(has_files(&report), "{told}");
    }

    #[test]
    fn an_error_of_every_rank_is_told_once_with_its_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let output = run(mpirun(2), &arguments(2, &["--schedule", "nonsense"]), folder.path());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.matches("nonsense").count(), 1, "{told}");
    }
}
