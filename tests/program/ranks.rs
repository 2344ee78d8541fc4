//! Several processes train together: `pipesim run -n N`, and with the feature `mpi` under `mpirun`. The losses are PyTorch's,
//! and a rank that dies ends the others.

use crate::support::*;
use pipesim::schedules;
use std::collections::BTreeSet;
#[cfg(feature = "mpi")]
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments that train the golden model on p devices, 8 sequences a step in 8 micro-batches.
fn arguments(p: u32, more: &str) -> String {
    format!("{} --micro 8 --warmup 1 --format json --quiet --device cpu --stages {p} {more}", golden_run())
}

fn pipesim() -> Command {
    Command::new(PROGRAM)
}

const STREAM: &str = "C_stream_b0.9_0.999_wd0";
const SAME: &str = "B_same_batch_b0.9_0.95_wd0_clip1";
const OF_SAME: &str = "--clip 1 --beta2 0.95 --repeat-batch";

/// Trains `names` for three steps on p devices and checks the losses of `key`; the link.
fn trained(mut command: Command, p: u32, names: &[&str], more: &str, key: &str) -> String {
    let more = format!("--steps 3 --schedule {} {more}", names.join(","));
    let (code, json, told) = run(&mut command, &arguments(p, &more));
    assert_eq!(code, Some(0), "{told}");
    let found = check_losses(&json, key, 1e-4);
    let ran: BTreeSet<&String> = found.keys().map(|(name, _)| name).collect();
    assert_eq!(ran.len(), names.len());
    found.keys().next_back().unwrap().1.clone()
}

/// The schedules that exist for p devices and have at most `stages` stages there.
fn schedules(p: u32, stages: u32) -> Vec<&'static str> {
    let fits = |name: &&str| order(name, p, 8, None).is_ok_and(|order| order.placement().stages() <= stages);
    schedules::names_of_whole().into_iter().filter(fits).collect()
}

#[test]
fn two_ranks_give_pytorchs_losses_under_every_schedule() {
    let beyond = ["seq1f1b:slices=2", "1f1b-recompute", "pipeoffload"];
    let names: Vec<&str> = schedules(2, 4).into_iter().chain(beyond).collect();
    assert_eq!(trained(pipesim(), 2, &names, "-n 2", STREAM), "local");
}

/// Eight sequences a step: in four micro-batches per replica, or in eight on tensor ranks. Ranks that share a worker's tensor group, and
/// ranks that do not.
#[test]
fn ranks_of_a_mesh_give_pytorchs_losses() {
    let golden = golden_run();
    let meshes = [
        (4, "--dp 2 -n 2"),
        (8, "--tp 2 -n 2"),
        (8, "--tp 2 -n 4"),
        (4, "--tp 2 --dp 2 -n 3"),
        (4, "--dp 2 --zero 1 -n 4"),
        (8, "--tp 2 --sequence-parallel -n 2"),
        (4, "--tp 2 --dp 2 --sequence-parallel --zero 1 -n 3"),
    ];
    for (micro, mesh) in meshes {
        let line = format!(
            "{golden} --micro {micro} --warmup 0 --format json --quiet --device cpu --stages 2 --steps 3 -s 1f1b,zb-v {mesh} {OF_SAME}"
        );
        let (code, json, told) = run(&mut pipesim(), &line);
        assert_eq!(code, Some(0), "{mesh}: {told}");
        let found = check_losses(&json, SAME, 1e-4);
        let losses: Vec<_> = found.values().collect();
        assert!(losses.len() == 2 && losses[0] == losses[1], "{mesh}: schedules differ: {found:?}");
    }
}

#[test]
fn ranks_that_end_properly_are_not_missed() {
    // What a rank says when it leaves may be read after its process is gone.
    let line = "-p 2 -m 2 -s gpipe --device timed -n 2 --steps 1 --warmup 0 --unit-ms 0.1 --costs F=1,I=1,W=1 -q --format json";
    for number in 0..25 {
        let (code, _, told) = run(&mut pipesim(), line);
        assert_eq!((code, told.as_str()), (Some(0), ""), "run {number}");
    }
}

#[test]
fn four_ranks_give_pytorchs_losses() {
    let names = schedules(4, 4);
    assert!(names.len() >= 5, "{names:?}");
    let names: Vec<&str> = names.into_iter().chain(["1f1b-offload"]).collect();
    trained(pipesim(), 4, &names, &format!("-n 4 {OF_SAME}"), SAME);
}

/// Two chunks a device want 8 stages on 4 devices: more than the golden model has blocks. One device computes the reference.
fn deeper_model(mut command: Command, more: &str) {
    let names = schedules(4, 8);
    assert!(names.len() >= 20, "{names:?}");
    let sizes = "--blocks 8 --heads 2 --channels 16 --vocabulary 257 --max-sequence 32 --seq 16";
    let common = format!("{sizes} --micro 8 --steps 3 --warmup 0 --format json --quiet --device cpu");
    let (_, json, _) = run(&mut pipesim(), &format!("{common} --stages 1"));
    let reference = numbers(&json["runs"][0]["losses"]);
    let (code, json, told) = run(&mut command, &format!("{common} --stages 4 --schedule {} {more}", names.join(",")));
    assert_eq!(code, Some(0), "{told}");
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), names.len());
    for run in runs {
        for (step, (ours, one)) in numbers(&run["losses"])[..3].iter().zip(&reference[..3]).enumerate() {
            assert!((ours - one).abs() < 1e-5, "{} step {step}: {ours}, one device {one}", run["schedule"]);
        }
    }
}

#[test]
fn four_ranks_of_two_chunks_give_the_losses_of_one_device() {
    deeper_model(pipesim(), "-n 4");
}

#[test]
fn fewer_ranks_than_devices_and_more_devices_than_one_each() {
    let (code, json, told) = run(&mut pipesim(), &arguments(4, "--schedule 1f1b -n 3 --steps 3 --baseline"));
    assert_eq!(code, Some(0), "{told}");
    check_losses(&json, STREAM, 1e-4);
}

/// The process with this in its environment whose parent is `launcher`.
pub fn rank(launcher: u32, wanted: &str) -> Option<u32> {
    std::fs::read_dir("/proc").unwrap().find_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent: u32 = status.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        (parent == launcher && environment.split(|&byte| byte == 0).any(|item| item == wanted.as_bytes()))
            .then_some(pid)
    })
}

/// What a long run has said when some of its steps are measured.
const STEPPED: &str = "step 3 1f1b";

/// `command` with the arguments of a long run.
fn long(mut command: Command, more: &str) -> Command {
    let more = arguments(3, &format!("{more} --schedule 1f1b --steps 100000")).replace("--quiet", "");
    command.arg("run").args(more.split_whitespace());
    command
}

/// Starts a run of several ranks, waits until it has said `sign`: steps are measured. Sends `signal` to the rank that has
/// `victim` in its environment; exit code, stderr, how long the end took, and whether a report was written.
fn signal_mid_run(
    mut command: Command,
    sign: &str,
    victim: &str,
    signal: &str,
) -> (Option<i32>, String, Duration, bool) {
    let folder = tempfile::tempdir().unwrap();
    let (report, errors) = (folder.path().join("report"), folder.path().join("stderr"));
    command.arg("-o").arg(report.join(""));
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&errors).unwrap());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    let told = || std::fs::read_to_string(&errors).unwrap();
    while !told().contains(sign) {
        assert!(start.elapsed() < Duration::from_secs(120), "no steps: {}", told());
        assert!(child.try_wait().unwrap().is_none(), "ended early: {}", told());
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rank(child.id(), victim).expect("the rank runs");
    let killed = Instant::now();
    assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
    let status = child.wait().unwrap();
    let written = report.read_dir().is_ok_and(|mut files| files.next().is_some());
    (status.code(), told(), killed.elapsed(), written)
}

/// Kills a rank mid-run: the others end soon, and what was measured is written; exit code and stderr.
fn kill_mid_run(command: Command, more: &str, victim: &str) -> (Option<i32>, String) {
    let (code, told, took, written) = signal_mid_run(long(command, more), STEPPED, victim, "-9");
    assert!(told.contains("device 1 at op number"), "who was where: {told}");
    assert!(took < Duration::from_secs(40), "took {took:?}");
    assert!(written, "{told}");
    (code, told)
}

#[test]
fn a_killed_rank_ends_the_others_is_named_and_what_was_measured_is_written() {
    let (code, told) = kill_mid_run(pipesim(), "-n 3", "PIPESIM_RANK=1");
    assert_eq!(code, Some(6), "{told}");
    assert!(told.contains("rank 1 was killed by signal 9"), "{told}");
}

/// Nothing hangs: a rank that stands still is as good as dead, and named; rank 0 is let go on, to write what was measured.
#[test]
fn a_stopped_rank_ends_the_others_and_is_named() {
    for rank in [0, 1] {
        let victim = format!("PIPESIM_RANK={rank}");
        let (code, told, took, written) = signal_mid_run(long(pipesim(), "-n 3"), STEPPED, &victim, "-STOP");
        assert_eq!(code, Some(6), "{told}");
        assert!(told.contains(&format!("rank {rank} (process ")) && told.contains("was stopped (SIGSTOP)"), "{told}");
        assert!(took < Duration::from_secs(40) && written, "took {took:?}: {told}");
    }
}

/// Starts ranks and stops one as soon as it is there; the launcher, the rank's process, and the folder of the report.
fn stopped_at_once(more: &str, wanted: u32) -> (std::process::Child, u32, tempfile::TempDir) {
    let mut command = pipesim();
    let folder = tempfile::tempdir().unwrap();
    let more = arguments(3, &format!("-n 3 --schedule 1f1b --steps 3 {more}"));
    command.arg("run").args(more.split_whitespace()).arg("-o").arg(folder.path().join("report"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let pid = loop {
        if let Some(pid) = rank(child.id(), &format!("PIPESIM_RANK={wanted}")) {
            break pid;
        }
        assert!(start.elapsed() < Duration::from_secs(40), "no rank {wanted}");
    };
    assert!(Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success());
    (child, pid, folder)
}

#[test]
fn a_rank_stopped_in_its_first_second_ends_the_others_within_the_time_out() {
    for wanted in 0..3 {
        let start = Instant::now();
        let (child, _, _folder) = stopped_at_once("--timeout 2", wanted);
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{told}");
        assert!(told.contains(&format!("rank {wanted} (process ")) && told.contains("was stopped (SIGSTOP)"), "{told}");
        assert!(start.elapsed() < Duration::from_secs(40), "took {:?}: {told}", start.elapsed());
    }
}

#[test]
fn a_rank_that_is_continued_in_time_goes_on() {
    let (child, pid, _folder) = stopped_at_once("--timeout 30", 1);
    std::thread::sleep(Duration::from_secs(1));
    assert!(Command::new("kill").args(["-CONT", &pid.to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The queues of an emulated delivery are one table, whoever's devices they are.
#[test]
fn deliveries_that_are_emulated_give_the_same_losses_in_several_processes() {
    for (delivery, names) in [
        ("buffered(1)", "gpipe,1f1b"),
        ("channel", "naive,gpipe"),
        ("channel:per-peer", "gpipe"),
        ("channel:per-direction,front-loaded", "gpipe,1f1b"),
    ] {
        let more = format!("--schedule {names} --steps 3 --timeout 20 -n 2 --delivery {delivery}");
        let (code, json, told) = run(&mut pipesim(), &arguments(2, &more));
        assert_eq!(code, Some(0), "{delivery}: {told}");
        assert_eq!(check_losses(&json, STREAM, 1e-4).len(), names.split(',').count(), "{delivery}");
    }
}

/// Timed devices are measured as those that train are: what they did until a rank was gone is written.
#[test]
fn a_killed_rank_of_timed_devices_loses_nothing() {
    let words = "run -p 2 -m 4 -n 2 -s gpipe --device timed --costs F=1,I=1,W=1 --unit-ms 1 --steps 100000";
    let mut command = pipesim();
    command.args(words.split_whitespace());
    let (code, told, _, written) = signal_mid_run(command, "measuring: ", "PIPESIM_RANK=1", "-9");
    assert!(code == Some(6) && told.contains("rank 1 was killed by signal 9"), "{told}");
    assert!(written, "{told}");
}

#[test]
fn a_killed_rank_0_is_named_by_the_launcher() {
    let (code, told, took, written) = signal_mid_run(long(pipesim(), "-n 3"), STEPPED, "PIPESIM_RANK=0", "-9");
    assert_eq!(code, Some(6), "{told}");
    assert!(told.contains("rank 0 was killed by signal 9"), "{told}");
    assert!(written && told.contains("rank 1 writes the results so far"), "{told}");
    assert!(took < Duration::from_secs(40), "took {took:?}");
}

#[test]
fn a_dead_or_hanging_device_of_another_rank_is_named() {
    for (fault, text) in [("die@1:3", "device 1 died"), ("hang@1:3", "at op number")] {
        let more = format!("--schedule 1f1b -n 2 --steps 3 --timeout 5 --inject {fault}");
        let (code, _, told) = run(&mut pipesim(), &arguments(2, &more));
        assert_eq!(code, Some(6), "{fault}: {told}");
        // where devices of both ranks wait, both may come to their limit at once
        let most = if fault.starts_with("hang") { 2 } else { 1 };
        assert!(told.contains(text) && (1..=most).contains(&told.matches("error:").count()), "{fault}: {told}");
    }
}

#[test]
fn contradictions_are_refused() {
    let four = ("OMPI_COMM_WORLD_SIZE", "4");
    let cases = [
        (2, "-n 3", &[][..], "at most as many ranks as devices"),
        (2, "-n 9 --tp 2 --dp 2", &[], "2 stages x 2 replicas x 2 tensor ranks = 8 workers"),
        (4, "-n 2", &[four], "leave -n out"),
        (4, "-n 2", &[four], "(OMPI_COMM_WORLD_SIZE=4)"),
        (4, "", &[four, ("PMI_SIZE", "2")], "OMPI_COMM_WORLD_SIZE=4 and PMI_SIZE=2"),
        (4, "", &[four, ("RANK", "0"), ("WORLD_SIZE", "8")], "OMPI_COMM_WORLD_SIZE=4 and WORLD_SIZE=8"),
        (4, "", &[("SLURM_PROCID", "9"), ("SLURM_STEP_NUM_TASKS", "4")], "SLURM_PROCID=9 and SLURM_STEP_NUM_TASKS=4"),
        (4, "", &[("SLURM_STEP_NUM_TASKS", "4")], "--mpi=pmix"),
        (4, "", &[("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "4"), ("RANK", "0")], "torchrun started 4"),
    ];
    for (p, more, variables, words) in cases {
        let (code, _, told) = run(pipesim().envs(variables.iter().copied()), &arguments(p, more));
        assert!(code == Some(2) && told.contains(words), "{code:?} {told}");
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_says_so_under_mpirun() {
    let (code, _, told) = run(pipesim().env("OMPI_COMM_WORLD_SIZE", "4"), &arguments(4, ""));
    assert!(code == Some(5) && told.contains("--features mpi"), "{code:?} {told}");
}

#[cfg(feature = "mpi")]
pub mod under_mpirun {
    use super::*;
    use crate::emulated::BEYOND;

    /// So many ranks, which get these variables.
    pub fn mpirun(ranks: u32, variables: &[(&str, &Path)]) -> Command {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()]);
        for (variable, value) in variables {
            command.arg("-x").arg(format!("{variable}={}", value.display()));
        }
        command.arg(PROGRAM);
        command
    }

    #[test]
    fn four_ranks_give_pytorchs_losses() {
        assert_eq!(trained(mpirun(4, &[]), 4, &schedules(4, 4), "--link mpi", STREAM), "mpi");
    }

    #[test]
    fn four_ranks_of_two_chunks_give_the_losses_of_one_device() {
        deeper_model(mpirun(4, &[]), "");
    }

    #[test]
    fn ranks_of_a_mesh_give_pytorchs_losses() {
        let golden = golden_run();
        for more in ["", "--no-shared-memory"] {
            let line = format!(
                "{golden} --micro 4 --warmup 0 --format json --quiet --device cpu --stages 2 --steps 3 -s 1f1b --tp 2 --dp 2 \
                 --sequence-parallel --zero 1 {OF_SAME} {more}"
            );
            let (code, json, told) = run(&mut mpirun(4, &[]), &line);
            assert_eq!(code, Some(0), "{told}");
            check_losses(&json, SAME, 1e-4);
        }
    }

    /// As between machines: every message goes through MPI.
    #[test]
    fn ranks_that_share_no_memory_give_the_same_losses() {
        let more = format!("--no-shared-memory {OF_SAME}");
        assert_eq!(trained(mpirun(2, &[]), 2, &schedules(2, 4), &more, SAME), "mpi");
    }

    /// GPUs (stand-ins for NVIDIA's libraries) whose ranks `mpirun` started, over every link that can join them.
    #[test]
    fn gpus_of_ranks_give_pytorchs_losses() {
        let emulator = emulator();
        let variables = [
            ("LD_LIBRARY_PATH", &*emulator),
            ("PIPESIM_CACHE", &*emulator.join("cache")),
            ("EMULATOR_MULTIPROCESSORS", Path::new("64")),
        ];
        for (link, more) in
            [("mpi", ""), ("mpi", "--no-shared-memory"), ("nvshmem", ""), ("nccl", "--no-shared-memory")]
        {
            let more = format!("{more} --link {link} --schedule zb-h1,dualpipe,{BEYOND} --steps 3");
            let arguments = arguments(2, &more).replace("--device cpu", "--device cuda");
            let (code, json, told) = run(&mut mpirun(2, &variables), &arguments);
            assert_eq!(code, Some(0), "{told}");
            let found = check_losses(&json, STREAM, 1e-4);
            assert!(found.len() == 5 && found.keys().all(|(_, used)| used == link), "{found:?}");
        }
    }

    #[test]
    fn a_killed_rank_ends_the_others_and_what_was_measured_is_written() {
        let (code, told) = kill_mid_run(mpirun(3, &[]), "", "OMPI_COMM_WORLD_RANK=1");
        assert!(code != Some(0), "{told}");
        assert!(told.contains("signal 9"), "mpirun names it: {told}");
    }

    #[test]
    fn a_delivery_is_not_emulated_without_shared_memory() {
        let (code, _, told) =
            run(&mut mpirun(2, &[]), &arguments(2, "--schedule 1f1b --no-shared-memory --delivery buffered(1)"));
        assert!(code == Some(2) && told.contains("expected ranks that share memory"), "{told}");
    }

    /// Rank 1 sees that rank 0 is gone, and writes what was measured.
    #[test]
    fn a_killed_rank_0_leaves_a_report() {
        let victim = "OMPI_COMM_WORLD_RANK=0";
        let (code, told, took, written) = signal_mid_run(long(mpirun(3, &[]), ""), STEPPED, victim, "-KILL");
        assert!(code != Some(0) && took < Duration::from_secs(40) && written, "took {took:?}: {told}");
        assert!(told.contains("rank 1 writes the results so far") && told.contains("signal 9"), "{told}");
    }

    #[test]
    fn a_stopped_rank_is_named_within_10_seconds_and_what_was_measured_is_written() {
        for rank in [0, 1] {
            let victim = format!("OMPI_COMM_WORLD_RANK={rank}");
            let (code, told, took, written) = signal_mid_run(long(mpirun(3, &[]), ""), STEPPED, &victim, "-STOP");
            assert!(code != Some(0) && took < Duration::from_secs(40) && written, "took {took:?}: {told}");
            assert!(told.contains(&format!("rank {rank} has not answered for 4 s")), "{told}");
        }
    }

    /// A library in front of MPI in which rank 1 gets a signal when it is to create a communicator of some ranks. The thread itself
    /// gets it, so that it goes no further.
    const FAULT: &str = r#"
        #include <mpi.h>
        #include <signal.h>
        #include <stdlib.h>
        int MPI_Comm_create_group(MPI_Comm parent, MPI_Group group, int tag, MPI_Comm *made) {
            int rank;
            PMPI_Comm_rank(parent, &rank);
            if (rank == 1) raise(atoi(getenv("FAULT_SIGNAL")));
            return PMPI_Comm_create_group(parent, group, tag, made);
        }"#;

    /// MPI waits for all ranks of a communicator that it creates, in a call that nothing ends.
    #[test]
    fn a_rank_that_dies_or_stops_in_the_creation_of_a_communicator_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [source, library] = ["fault.c", "libfault.so"].map(|name| folder.path().join(name));
        std::fs::write(&source, FAULT).unwrap();
        let made = Command::new("mpicc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
        assert!(made.success());
        for (signal, words) in [("9", "signal 9"), ("19", "rank 1 has not answered for 4 s")] {
            let variables = [("LD_PRELOAD", &*library), ("FAULT_SIGNAL", Path::new(signal))];
            let more = "--tp 2 --no-shared-memory --schedule 1f1b --steps 3";
            let begin = Instant::now();
            let (code, _, told) = run(&mut mpirun(4, &variables), &arguments(2, more));
            assert!(code != Some(0) && told.contains(words) && told.contains("rank 1"), "{signal}: {code:?} {told}");
            assert!(begin.elapsed() < Duration::from_secs(40), "{signal}: it took {:?}: {told}", begin.elapsed());
        }
    }

    #[test]
    fn an_error_of_every_rank_is_told_once_with_its_exit_code() {
        let (code, _, told) = run(&mut mpirun(2, &[]), &arguments(2, "--schedule nonsense"));
        assert_eq!(code, Some(2), "{told}");
        assert_eq!(told.matches("nonsense").count(), 1, "{told}");
    }
}
