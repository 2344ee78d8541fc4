//! `pipesim run --device cuda` as a program, on stand-ins for NVIDIA's libraries (`tests/emulator`): every schedule, link and way
//! of starting gives PyTorch's losses. Delays at random before everything that streams do, so that a missing wait shows.

use crate::support::*;
use pipesim::MicroBatch;
use pipesim::internals::compute::cuda::{Sharing, storage};
use pipesim::internals::model_spec::gpt2;
use pipesim_gpu::Precision;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

/// pipesim where the stand-ins are found, without anything that this process inherited about GPUs.
pub fn pipesim(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(PROGRAM);
    with_stand_ins(&mut command).env("EMULATOR_JITTER", "1").env("EMULATOR_TIMEOUT", "120");
    command.env("EMULATOR_CONNECTIONS_WANTED", "32").env("EMULATOR_TEARDOWN_MS", "5");
    command.envs(variables.iter().copied());
    command
}

/// Trains the golden model for two steps of 8 sequences in 4 micro-batches; by schedule and link, the losses: PyTorch's.
pub fn train(
    more: &str,
    variables: &[(&str, &str)],
    setting: &str,
    tolerance: f64,
) -> BTreeMap<(String, String), Vec<f64>> {
    let steps = "--device cuda --micro 4 --batch 8 --steps 2 --warmup 0 --format json --quiet";
    let (code, json, told) = run(&mut pipesim(variables), &format!("{} {steps} {more}", golden_run()));
    assert_eq!(code, Some(0), "{more}: {told}");
    for run in json["runs"].as_array().unwrap() {
        // tokens go up before the first op, the loss comes down after the last
        let [wall, iteration] = ["wall_ms", "iteration_ms"].map(|key| run[key]["median"].as_f64().unwrap());
        assert!(run["device_kind"] == "cuda" && wall > iteration, "{run}");
    }
    check_losses(&json, setting, tolerance)
}

pub const STREAM: &str = "C_stream_b0.9_0.999_wd0";
const SAME: &str = "B_same_batch_b0.9_0.95_wd0_clip1";
const OF_SAME: &str = "--clip 1 --beta2 0.95 --repeat-batch";

/// Compiles the kernels of [`TINY`] models, once: where time is measured it is not the compiler's.
pub fn compile() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        for links in ["--link copy --link local --link nccl", "-n 2 --link nvshmem"] {
            let small =
                format!("{TINY} --device cuda --stages 2 --micro 2 --warmup 0 --schedule 1f1b --blocks 2 {links}");
            let (code, _, told) = run(&mut pipesim(&[]), &small);
            assert_eq!(code, Some(0), "{told}");
        }
    });
}

/// A model that takes no time.
pub const TINY: &str = "--seq 16 --steps 1 --channels 32 --heads 2";

#[test]
fn every_schedule_gives_pytorchs_losses_on_two_gpus() {
    let names: Vec<&str> = pipesim::internals::dsl::names_of_whole();
    let found = train(&format!("--stages 2 --schedule {}", names.join(",")), &[], STREAM, 1e-4);
    assert_eq!(found.len(), names.len());
    assert!(found.keys().all(|(_, link)| link == "copy"));
}

#[test]
fn slices_of_one_gpu_give_the_same() {
    let variables = [("EMULATOR_DEVICES", "1"), ("EMULATOR_MULTIPROCESSORS", "64")];
    train(&format!("--schedule 1f1b,zb-h2 --stages 4 --slices 4 {OF_SAME}"), &variables, SAME, 1e-4);
}

/// Slices of sequences, recomputes and offloads.
pub const BEYOND: &str = "seq1f1b:slices=2,1f1b-recompute,1f1b-offload:least=1";

/// Whether every link gave the same bits.
fn links_agree(found: &BTreeMap<(String, String), Vec<f64>>, schedules: &str, links: usize) {
    assert_eq!(found.len(), schedules.split(',').count() * links);
    for schedule in schedules.split(',') {
        let all: Vec<_> = found.iter().filter(|((name, _), _)| name == schedule).map(|(_, losses)| losses).collect();
        assert!(all.len() == links && all.windows(2).all(|pair| pair[0] == pair[1]), "{schedule}: {all:?}");
    }
}

#[test]
fn every_link_of_one_process_gives_the_same_bits() {
    let (links, schedules) = ("--link copy --link local --link nccl", format!("1f1b,dualpipe,{BEYOND}"));
    let found = train(&format!("--stages 2 --schedule {schedules} {links}"), &[], STREAM, 1e-4);
    links_agree(&found, &schedules, 3);
}

#[test]
fn every_link_between_ranks_gives_the_same_bits() {
    let (links, schedules) =
        ("--link copy --link local --link nccl --link nvshmem", format!("zb-h1,dualpipe,{BEYOND}"));
    let found = train(&format!("--stages 2 -n 2 --schedule {schedules} {links} {OF_SAME}"), &[], SAME, 1e-4);
    links_agree(&found, &schedules, 4);
}

#[test]
fn two_ranks_share_a_gpu_over_nvshmem() {
    let arguments = "--stages 2 -n 2 --slices 2 --link nvshmem --schedule zb-v";
    train(arguments, &[("EMULATOR_DEVICES", "1")], STREAM, 1e-4);
}

#[test]
fn bfloat16_stays_close() {
    train("--stages 2 --precision bfloat16 --schedule 1f1b,zb-v", &[], STREAM, 1e-2);
}

/// What a profile on GPUs says of messages and of what I leaves for W is what those store, in either precision.
#[test]
fn profiles_count_the_bytes_of_their_precision() {
    let folder = tempfile::tempdir().unwrap();
    for (name, precision, bytes) in [("float32", Precision::F32, 4), ("bfloat16", Precision::Bf16, 2)] {
        let path = folder.path().join(format!("{name}.json"));
        let small = "--stages 2 --micro 2 --warmup 0 --steps 2 --seq 16 --channels 32 --heads 2 --blocks 2";
        let arguments = format!("--device cuda --precision {name} {small} -q -o {}", path.display());
        let profiled = pipesim(&[]).arg("profile").args(arguments.split_whitespace()).output().unwrap();
        assert!(profiled.status.success(), "{}", String::from_utf8_lossy(&profiled.stderr));
        let costs: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let rows = 16 * costs["parts"][0]["sequences"].as_u64().unwrap();
        assert_eq!(costs["link"]["bytes"].as_u64().unwrap(), rows * 32 * bytes, "{name}");
        let tiny =
            gpt2::Config { layers: 2, heads: 2, channels: 32, ..*gpt2::Config::preset("tiny").as_ref().unwrap() };
        let micro = MicroBatch { sequences: rows as usize / 16, tokens: 16 };
        let keep = tiny.spec().keep(micro, &storage(precision, rows as usize, Sharing::NONE));
        assert!((costs["keep"].as_f64().unwrap() - keep).abs() < 1e-9, "{name}: {} {keep}", costs["keep"]);
    }
}

#[test]
fn nccl_is_refused_where_the_checker_finds_a_circle() {
    for more in ["--schedule zb-v", "--schedule pipeoffload", "--schedule 1f1b --delivery channel"] {
        let arguments = format!("--device cuda --stages 2 --micro 4 --link nccl {more}");
        let (code, _, told) = run(&mut pipesim(&[]), &arguments);
        assert_eq!(code, Some(3), "{told}");
        assert!(told.contains("wait for one another in a circle"), "{told}");
    }
}

#[test]
fn batches_go_through_nccl_as_groups() {
    for delivery in ["batched", "megatron", "pytorch"] {
        train(&format!("--stages 2 --link nccl --delivery {delivery} --schedule 1f1b"), &[], STREAM, 1e-4);
    }
    let arguments = "--device cuda --stages 2 --micro 4 --link nccl --delivery pytorch --schedule zb-v";
    let (code, _, told) = run(&mut pipesim(&[]), arguments);
    assert_ne!(code, Some(0));
    assert!(told.contains("expected receives just before their use with --link nccl"), "{told}");
}

/// Ranks with a GPU each, or two to a GPU, where collective calls copy between processes; over messages of every link.
#[test]
fn ranks_of_a_mesh_train_to_pytorchs_losses() {
    let four = [("EMULATOR_DEVICES", "4")];
    let links = "--link copy --link nccl --link nvshmem";
    let found = train(&format!("--stages 2 --tp 2 --dp 1 -n 4 {links} --schedule 1f1b"), &four, STREAM, 1e-4);
    assert!(found.len() == 3 && found.values().collect::<Vec<_>>().windows(2).all(|pair| pair[0] == pair[1]));
    let shared = [("EMULATOR_DEVICES", "2")];
    let found = train("--stages 1 --tp 2 --dp 2 -n 4 --slices 2 --schedule 1f1b", &shared, STREAM, 1e-4);
    assert_eq!(found.len(), 1);
}

#[test]
fn a_mesh_that_does_not_fit_is_refused_with_the_numbers() {
    for (more, words) in [
        (
            format!("{TINY} --blocks 2 --device cuda --tp 2 --dp 2"),
            "expected at most 2 devices on 2 visible GPUs, found 8",
        ),
        ("--device timed --tp 2 --costs F=1ms".to_string(), "timed devices have one worker per stage"),
    ] {
        let arguments = format!("{more} --stages 2 --micro 2 --schedule 1f1b");
        let (code, _, told) = run(&mut pipesim(&[]), &arguments);
        assert!(code != Some(0) && told.contains(words), "{more}: {code:?} {told}");
    }
}

/// A worker that dies or hangs is named, whether groups call NCCL or copy, in one process and in ranks of which one is killed.
#[test]
fn a_hang_or_a_death_in_a_mesh_ends_the_process_and_is_named() {
    compile();
    let common = "--device cuda --stages 1 --tp 2 --dp 2 --micro 4 --blocks 2 --schedule 1f1b";
    let four: &[_] = &[("EMULATOR_DEVICES", "4")];
    let one: &[_] = &[("EMULATOR_DEVICES", "1"), ("EMULATOR_MULTIPROCESSORS", "64")];
    let cases = [
        ("", "die", "device 0, replica 0, tensor rank 1 died", four),
        ("", "hang", "a device has waited for 3 s", four),
        ("--slices 4", "die", "device 0, replica 0, tensor rank 1 died", one),
        ("--slices 4", "hang", "a device has waited for 3 s", one),
        ("-n 4", "die", "device 0, replica 0, tensor rank 1 died", four),
        ("-n 4 --slices 4", "hang", "a device has waited for 3 s", one),
    ];
    for (more, fault, words, variables) in cases {
        let begin = Instant::now();
        let arguments = format!("{TINY} {common} {more} --inject {fault}@1:3 --timeout {}", waits(fault));
        let (code, _, told) = run(pipesim(variables).env("EMULATOR_JITTER", "0"), &arguments);
        assert!(code == Some(6) && told.contains(words), "{more} {fault}: {code:?} {told}");
        assert!(begin.elapsed() < Duration::from_secs(3) + END, "{more} {fault}: it took {:?}", begin.elapsed());
    }
}

#[test]
fn the_best_device_and_link_are_chosen() {
    let auto = |more: &str, variables: &[(&str, &str)]| {
        let small = format!("{TINY} --micro 2 --warmup 0 --schedule 1f1b --blocks 2 --format json --stages 2 {more}");
        let (code, json, told) = run(&mut pipesim(variables), &small);
        assert_eq!(code, Some(0), "{told}");
        let run = &json["runs"][0];
        (["device_kind", "link"].map(|key| run[key].as_str().unwrap().to_string()), told)
    };
    let (chosen, told) = auto("", &[]);
    assert_eq!(chosen, ["cuda", "copy"], "{told}");
    let (chosen, told) = auto("", &[("EMULATOR_DEVICES", "1")]);
    assert_eq!(chosen, ["cpu", "local"], "{told}");
    assert!(told.contains("device: cpu") && told.contains("at most 1 devices"), "why: {told}");
    assert_eq!(auto("-n 2", &[]).0, ["cuda", "nvshmem"]);
    // without peer access neither puts nor shared handles work between ranks; one process copies through the host
    let apart = &[("EMULATOR_PEERS", "0")];
    assert_eq!(auto("-n 2", apart).0, ["cuda", "local"]);
    assert_eq!(auto("", apart).0, ["cuda", "copy"]);
    let arguments = format!("{TINY} --device cuda --micro 2 --stages 2 --blocks 2 -s 1f1b -n 2 --link copy");
    let (code, _, told) = run(&mut pipesim(apart), &arguments);
    assert!(code == Some(5) && told.contains("expected GPUs with peer access"), "{code:?} {told}");
}

/// Libraries of CUDA 13 need driver 580: with an older one those of CUDA 12 are searched, and named in the fix.
#[test]
fn a_driver_of_cuda_12_takes_the_libraries_of_cuda_12() {
    let arguments = format!("{TINY} --device cuda --micro 2 --stages 2 --blocks 2 --warmup 0 --schedule 1f1b");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_string_lossy().to_string();
    let variables = [("EMULATOR_DRIVER_VERSION", "12080"), ("PIPESIM_CUDA_PATH", &path[..]), ("PATH", "/nonexistent")];
    let (code, _, told) = run(&mut pipesim(&variables), &arguments);
    assert!(code == Some(5) && told.contains("(libcublasLt.so.12)"), "{code:?} {told}");
    assert!(told.contains("pip install nvidia-cublas-cu12"), "{told}");
    for name in ["libcublasLt.so", "libnvrtc.so"] {
        let link = folder.path().join(format!("{name}.12"));
        std::os::unix::fs::symlink(emulator().join(format!("{name}.13")), link).unwrap();
    }
    let (code, _, told) = run(&mut pipesim(&variables), &arguments);
    assert_eq!(code, Some(0), "{told}");
}

/// Where nobody asked for GPUs, what they cannot take is trained on the CPU.
#[test]
fn a_model_that_no_gpu_can_take_is_trained_on_the_cpu() {
    let run = |more: &str, variables: &[(&str, &str)]| {
        let common = "--steps 1 --warmup 0 --micro 2 --stages 2 --schedule 1f1b --blocks 2 --seq 16 --format json";
        run(&mut pipesim(variables), &format!("{common} {more}"))
    };
    let small: &[_] = &[("EMULATOR_MEMORY_BYTES", "41943040")];
    for (more, variables, why) in [
        ("--channels 512 --heads 1", &[][..], "expected heads of at most"),
        ("--channels 32 --heads 2", small, "MiB of free memory on GPU"),
    ] {
        let (code, json, told) = run(more, variables);
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(json["runs"][0]["device_kind"], "cpu", "{told}");
        assert!(told.contains("device: cpu") && told.contains(why), "{told}");
        let (code, _, told) = run(&format!("{more} --device cuda"), variables);
        assert!(code == Some(1) && told.contains(why), "{code:?} {told}");
    }
}

/// What happens when a library is loaded happens to another process first.
#[test]
fn a_library_that_hangs_or_crashes_when_it_is_loaded_does_not_take_the_run_with_it() {
    let library = |body: &str| {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("driver.c");
        let text = format!(
            "#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void load(void) {{ {body}; }}\n"
        );
        std::fs::write(&source, text).unwrap();
        let library = folder.path().join("libcuda.so.1");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status().unwrap();
        assert!(built.success());
        folder
    };
    let on = |folder: &tempfile::TempDir| {
        pipesim(&[("LD_LIBRARY_PATH", &folder.path().display().to_string()), ("PATH", "/nowhere")])
    };
    // doctor says of each probe how its process ended
    let driver = |folder: &tempfile::TempDir| {
        let (_, json, _) = finish(on(folder).args(["doctor", "--format", "json", "--time-limit", "2"]));
        json["probes"].as_array().unwrap().iter().find(|probe| probe["name"] == "driver").unwrap().clone()
    };
    let load = |body: &str, found: &str| {
        let folder = library(body);
        let begin = Instant::now();
        let arguments = format!("{TINY} --stages 2 --micro 2 --warmup 0 --schedule 1f1b --blocks 2");
        let (code, _, told) = run(&mut on(&folder), &arguments);
        assert!(code == Some(0) && told.contains("expected NVIDIA's libraries to open"), "{body}: {code:?} {told}");
        assert!(begin.elapsed() < 2 * END, "{body}: {:?}", begin.elapsed());
        let probe = driver(&folder);
        assert!(probe["status"] == "broken" && probe["found"] == found && probe["fix"].is_string(), "{body}: {probe}");
    };
    let ends = [
        ("abort()", "the probe was ended by signal 6 (abort) before it could answer"),
        (
            "write(2, \"a line\\n\", 7); _exit(255)",
            "the probe ended with exit code 255 before it could answer (a line)",
        ),
        ("sleep(100)", "no answer within 2 s; the probe was killed"),
    ];
    std::thread::scope(|scope| {
        // only one way to end is tried with a run: it waits for a library that hangs for a minute
        let check = |(body, found): (&str, &str)| match body != "abort()" {
            true => assert_eq!(driver(&library(body))["found"], found),
            false => load(body, found),
        };
        ends.map(|end| scope.spawn(move || check(end))).map(|run| run.join().unwrap())
    });
    // half a line that a library prints is not the answer
    let probe = driver(&library("if (write(1, \"{half\", 5) < 0) abort()"));
    assert!(!probe["found"].as_str().unwrap().contains("the probe"), "{probe}");
}

/// cuBLASLt has hundreds of megabytes: from a cold disk it opens slowly, and is waited for up to a limit.
#[test]
fn a_library_that_opens_slowly_is_waited_for() {
    compile();
    let arguments = format!("{TINY} --device cuda --stages 2 --micro 2 --warmup 0 --schedule 1f1b --blocks 2");
    let open = |limit: &str, more: &str| {
        // longer than a device may wait, which itself is longer than a busy machine keeps a thread from running
        let variables = [("EMULATOR_OPENING_MS", "11000"), ("PIPESIM_OPENING_LIMIT", limit)];
        let (code, _, told) = run(&mut pipesim(&variables), &format!("{arguments} {more}"));
        (code, told)
    };
    let (code, told) = open("60", "-n 2 --timeout 10");
    assert_eq!(code, Some(0), "{told}");
    for (limit, words) in [
        ("1", "a process that opens them does not end within 1 s: set PIPESIM_OPENING_LIMIT=2 if the disk is slow"),
        ("0", "expected whole seconds from 1 to 3600 in PIPESIM_OPENING_LIMIT, found 0"),
    ] {
        let (code, told) = open(limit, "");
        assert!(code == Some(5) && told.contains(words), "{limit}: {code:?} {told}");
    }
}

/// The longest that a process may take to end once a device hung or died; what is waited for before is `--timeout`.
pub const END: Duration = Duration::from_secs(40);

/// Seconds that a device waits: few, to find one that hangs; where another dies, more than a busy machine takes.
fn waits(fault: &str) -> u32 {
    if fault == "hang" { 3 } else { 20 }
}

/// Whatever a stream waits for, and whatever a thread does meanwhile in a driver's call.
#[test]
fn a_hang_or_a_death_ends_the_process_under_every_link_and_is_named() {
    compile();
    let one = ["copy", "local", "nccl"].map(|link| format!("--link {link}"));
    let two = ["copy", "local", "nccl", "nvshmem"].map(|link| format!("--link {link} -n 2"));
    let faults = [("hang", "a device has waited for 3 s"), ("die", "device 1 died")];
    let common = "--device cuda --stages 2 --micro 8 --blocks 2 --schedule 1f1b";
    let end = |link: &str, (fault, words): (&str, &str), variables: &[(&str, &str)]| {
        let begin = Instant::now();
        let arguments = format!("{TINY} {common} {link} --inject {fault}@1:3 --timeout {}", waits(fault));
        let (code, _, told) = run(pipesim(variables).env("EMULATOR_JITTER", "0"), &arguments);
        assert!(code == Some(6) && told.contains(words), "{link} {fault}: {code:?} {told}");
        assert!(begin.elapsed() < Duration::from_secs(3) + END, "{link} {fault}: it took {:?}", begin.elapsed());
    };
    let mut cases: Vec<_> =
        one.iter().chain(&two).flat_map(|link| faults.map(|fault| (link.as_str(), fault, &[][..]))).collect();
    // a stream so short that the thread that enqueues is held up in a call of the driver, which nothing ends
    cases.push(("--link nvshmem -n 2", faults[0], &[("EMULATOR_QUEUE_DEPTH", "20")]));
    std::thread::scope(|scope| {
        for cases in cases.chunks(cases.len().div_ceil(3)) {
            scope.spawn(|| cases.iter().for_each(|&(link, fault, variables)| end(link, fault, variables)));
        }
    });
}

/// The stand-in ends a process with a message where a thread calls a library that is being taken down.
#[test]
fn processes_end_in_peace() {
    let variables = [("EMULATOR_TEARDOWN_MS", "40")];
    for _ in 0..8 {
        let small = format!("{TINY} --device cuda --micro 2 --warmup 0 --schedule 1f1b --blocks 2 --stages 2");
        let (code, _, told) = run(&mut pipesim(&variables), &small);
        assert_eq!(code, Some(0), "{told}");
    }
}

/// Memory of what was measured over one link is there for the next one, however long it takes to give it back.
#[test]
fn memory_is_back_before_more_is_asked_for() {
    let variables = [("EMULATOR_MEMORY_BYTES", "78000000"), ("EMULATOR_TEARDOWN_MS", "150")];
    let arguments = format!("{TINY} --device cuda --stages 2 --micro 4 --warmup 0 --schedule 1f1b --blocks 2");
    let (code, _, told) = run(&mut pipesim(&variables), &format!("{arguments} --link copy --link nccl"));
    assert_eq!(code, Some(0), "{told}");
}

#[test]
fn schedules_whose_first_messages_go_round_in_a_circle_run_over_nccl() {
    let variables = [("EMULATOR_DEVICES", "4")];
    for (stages, names) in [("2", "chimera,dualpipe,dualpipe-v"), ("4", "dualpipe,zb-h2,gpipe")] {
        let arguments = format!("{TINY} --device cuda --micro 8 --warmup 0 --blocks 8 --link nccl --timeout 20");
        let (code, json, told) =
            run(&mut pipesim(&variables), &format!("{arguments} --stages {stages} --schedule {names} --format json"));
        assert_eq!(code, Some(0), "{names}: {told}");
        let losses: Vec<_> = json["runs"].as_array().unwrap().iter().map(|run| run["losses"][0].clone()).collect();
        assert!(
            losses
                .windows(2)
                .all(|pair| pair[0].is_f64() && (pair[0].as_f64().unwrap() - pair[1].as_f64().unwrap()).abs() < 1e-5),
            "{losses:?}"
        );
    }
}

/// ... and used by all schedules.
#[test]
fn communicators_are_connected_once() {
    let connections = |names: &str| {
        let arguments = format!("{TINY} --device cuda --micro 4 --warmup 0 --blocks 4 --link nccl --stages 2");
        let told = run(&mut pipesim(&[("EMULATOR_NCCL_CONNECTS", "1")]), &format!("{arguments} --schedule {names}"));
        assert_eq!(told.0, Some(0), "{}", told.2);
        told.2.matches("connects:").count()
    };
    let one = connections("1f1b");
    assert_eq!((one, connections("1f1b,gpipe,zb-h1")), (6, one), "two directions and an exchange, at both ends");
}

/// A driver holds the host up where a stream holds as much as it can, whatever the host has to do then.
#[test]
fn no_stream_is_ever_full() {
    // the second model's backward is more than half of what a stream holds
    // and the sums of the third model's gradients by copies, one or more for each block
    for sizes in
        ["--micro 48 --blocks 4", "--micro 3 --blocks 40", "--micro 2 --blocks 200 --batch 4 --dp 2 --gpu-slices 2"]
    {
        let arguments = format!("{TINY} --device cuda --stages 1 --warmup 0 --schedule 1f1b {sizes}");
        let (code, _, told) = run(&mut pipesim(&[("EMULATOR_NEVER_FULL", "1")]), &arguments);
        assert_eq!(code, Some(0), "{sizes}: {told}");
    }
}

/// Sums by copies wait for nothing that a host has still to enqueue, so they end where every stream is nearly always full.
#[test]
fn sums_by_copies_end_in_streams_of_six_operations() {
    compile();
    for more in ["--dp 2 --gpu-slices 2 --schedule 1f1b", "--tp 2 --gpu-slices 4 --schedule zb-v --link local"] {
        let losses = |depth: &str| {
            let variables = [("EMULATOR_MULTIPROCESSORS", "32"), ("EMULATOR_QUEUE_DEPTH", depth)];
            let arguments =
                format!("{TINY} --device cuda --stages 2 --micro 4 --warmup 0 --blocks 4 --format json {more}");
            let (code, json, told) = run(&mut pipesim(&variables), &arguments);
            assert_eq!(code, Some(0), "{more}: {told}");
            json["runs"][0]["losses"].clone()
        };
        assert_eq!(losses("6"), losses("1024"), "{more}");
    }
}

#[test]
fn a_fault_of_the_thread_that_hands_messages_on_is_reported_at_once() {
    compile();
    let arguments = format!("{TINY} --device cuda --stages 2 --micro 4 --schedule 1f1b --blocks 2 --link local");
    let (code, _, told) = run(&mut pipesim(&[("EMULATOR_FAIL_THREAD", "messages")]), &arguments);
    assert!(code == Some(1) && told.contains("CUDA_ERROR_LAUNCH_FAILED"), "{code:?} {told}");
    assert!(!told.contains("has waited"), "{told}");
}

#[test]
fn without_a_driver_cuda_is_refused_with_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("LD_LIBRARY_PATH", folder.path()).env_remove("PIPESIM_CUDA_PATH");
    let (code, _, told) = run(&mut command, "--device cuda --stages 2 --micro 2");
    if Path::new("/dev/nvidiactl").exists() {
        return; // a machine with a driver finds it
    }
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("libcuda.so.1") && told.contains("--device cpu") && told.contains("doctor"), "{told}");
}

/// What is missing beside a driver that works is missing, too: exit code 5 where it was asked for, else the CPU.
#[test]
fn a_library_that_is_missing_beside_the_driver_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for file in emulator().read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.starts_with("lib") && !["cublasLt", "nccl"].iter().any(|missing| name.contains(missing)) {
            std::os::unix::fs::symlink(&file, folder.path().join(name)).unwrap();
        }
    }
    let path = folder.path().display().to_string();
    let variables = [("LD_LIBRARY_PATH", &*path), ("PATH", "/nowhere")];
    let run = |more: &str| {
        run(&mut pipesim(&variables), &format!("{TINY} --stages 2 --micro 2 --schedule 1f1b --blocks 2 {more}"))
    };
    let (code, _, told) = run("--device cuda");
    assert!(code == Some(5) && told.contains("cuBLASLt"), "{code:?} {told}");
    let (code, _, told) = run("");
    assert!(code == Some(0) && told.contains("device: cpu") && told.contains("cuBLASLt"), "{code:?} {told}");
    let (code, _, told) = run("--precision bfloat16");
    assert!(code == Some(5) && told.contains("--precision is for GPUs"), "{code:?} {told}");
    let (code, _, told) = run("--device cpu --slices 2");
    assert!(code == Some(2) && told.contains("--gpu-slices is for GPUs"), "{code:?} {told}");
    let cublas = emulator().join("libcublasLt.so.13");
    std::os::unix::fs::symlink(cublas, folder.path().join("libcublasLt.so.13")).unwrap();
    let (code, _, told) = run("--device cuda --link nccl");
    assert!(code == Some(5) && told.contains("libnccl.so.2"), "{code:?} {told}");
}

#[test]
fn defaults_that_a_link_would_stop_are_left_out_and_said() {
    let links = "--device cuda --stages 2 --micro 4 --blocks 4 --link copy --link nccl --format json";
    let (code, json, told) = run(&mut pipesim(&[]), &format!("{TINY} {links}"));
    assert!(code == Some(0) && told.contains("zb-v is left out"), "{told}");
    assert_eq!(json["runs"].as_array().unwrap().len(), 4 + 3, "{json}");
}

/// Two probes at a time on a GPU that admits one process would find it unavailable.
#[test]
fn doctor_finds_the_stand_ins_usable_and_a_bare_machine_not() {
    let (folder, arguments) =
        (tempfile::tempdir().unwrap(), ["doctor", "--format", "json", "--need", "cuda", "--need", "nvshmem"]);
    let exclusive = folder.path().display().to_string();
    let (code, json, told) = finish(pipesim(&[("EMULATOR_EXCLUSIVE", &exclusive)]).args(arguments));
    assert_eq!(code, Some(0), "{told}");
    let status = |name: &str| {
        let probes = json["probes"].as_array().unwrap();
        probes.iter().find(|probe| probe["name"] == name).unwrap()["status"].as_str().unwrap().to_string()
    };
    for name in ["driver", "devices", "peer-access", "nvrtc", "cublaslt", "nccl", "nvshmem", "processor"] {
        assert_eq!(status(name), "ok", "{name}: {json:#}");
    }
    let all = json.to_string();
    assert!(all.contains("compiles a kernel that runs") && all.contains("multiplies matrices"), "{all}");
}

/// Sessions over other links, and schedules after the first, share the kernels of a context.
#[test]
fn kernels_are_loaded_once_per_context() {
    let one = [("EMULATOR_MODULES", "1"), ("EMULATOR_DEVICES", "1")];
    for (more, variables) in
        [("--link copy --link local", &one[..1]), ("--link copy --link local --gpu-slices 2", &one)]
    {
        let arguments =
            format!("{TINY} --device cuda --micro 2 --warmup 0 --blocks 2 --stages 2 --schedule 1f1b,gpipe");
        let (code, json, told) = run(&mut pipesim(variables), &format!("{arguments} --format json {more}"));
        assert_eq!((code, json["runs"].as_array().map(Vec::len)), (Some(0), Some(4)), "{told}");
        let mut contexts: Vec<&str> = told.lines().filter(|line| line.ends_with("loads a module")).collect();
        assert_eq!(contexts.len(), 2, "{told}");
        contexts.dedup();
        assert_eq!(contexts.len(), 2, "{told}");
    }
}
