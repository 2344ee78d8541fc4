//! `pipesim run --device cuda` as a program, on stand-ins for NVIDIA's libraries (`tests/emulator`): every schedule, link and way
//! of starting gives PyTorch's losses. Delays at random before everything that streams do, so that a missing wait shows.

use crate::support::*;
use std::path::Path;
use std::process::{Command, Output};

/// Runs pipesim where the stand-ins are found, without anything that this process inherited about GPUs.
fn pipesim(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(PROGRAM);
    with_stand_ins(&mut command);
    command.env("EMULATOR_JITTER", "1").env("EMULATOR_TIMEOUT", "120");
    command.args(arguments).envs(variables.iter().copied()).output().unwrap()
}

/// Trains the golden model for three steps of 8 sequences in 4 micro-batches; the JSON.
fn train(more: &[&str], variables: &[(&str, &str)]) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let report = format!("{}/", folder.path().display());
    let (model, tokens) = (golden_path("gpt2/model.bin"), golden_path("gpt2/tokens.bin"));
    let mut arguments = vec!["run", "--device", "cuda", "--micro", "4", "--batch", "8", "--seq", "32", "--lr", "1e-3"];
    arguments.extend(["--tokenizer", "bytes", "--steps", "3", "--warmup", "1", "--format", "json", "--quiet"]);
    arguments.extend(["--checkpoint", &model, "--data", &tokens, "-o", &report]);
    arguments.extend(more);
    let output = pipesim(&arguments, variables);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{more:?}: {}\n{told}", output.status);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["runs"].as_array().unwrap().iter().all(|run| run["device_kind"] == "cuda"));
    json
}

const STREAM: &str = "C_stream_b0.9_0.999_wd0";

#[test]
fn every_schedule_gives_pytorchs_losses_on_two_gpus() {
    let names: Vec<&str> = pipesim::internals::dsl::names();
    let mut arguments: Vec<&str> = names.iter().flat_map(|name| ["--schedule", name]).collect();
    arguments.extend(["--stages", "2"]);
    let found = check_losses(&train(&arguments, &[]), STREAM, 1e-4);
    assert_eq!(found.len(), names.len());
    assert!(found.keys().all(|(_, link)| link == "copy"));
}

#[test]
fn slices_of_one_gpu_give_the_same() {
    let clip = ["--stages", "4", "--slices", "4", "--clip", "1", "--beta2", "0.95", "--repeat-batch"];
    let arguments: Vec<&str> = ["--schedule", "1f1b", "--schedule", "zb-h2"].into_iter().chain(clip).collect();
    let variables = [("EMULATOR_DEVICES", "1"), ("EMULATOR_MULTIPROCESSORS", "64")];
    check_losses(&train(&arguments, &variables), "B_same_batch_b0.9_0.95_wd0_clip1", 1e-4);
}

#[test]
fn every_link_of_one_process_gives_the_same_bits() {
    let links = ["--link", "copy", "--link", "local", "--link", "nccl"];
    let arguments: Vec<&str> =
        ["--stages", "2", "--schedule", "1f1b", "--schedule", "dualpipe"].into_iter().chain(links).collect();
    let found = check_losses(&train(&arguments, &[]), STREAM, 1e-4);
    assert_eq!(found.len(), 6);
    for schedule in ["1f1b", "dualpipe"] {
        let of = |link: &str| &found[&(schedule.to_string(), link.to_string())];
        assert!(of("copy") == of("local") && of("copy") == of("nccl"), "{schedule}");
    }
}

#[test]
fn every_link_between_ranks_gives_the_same_bits() {
    let links = ["--link", "copy", "--link", "local", "--link", "nccl", "--link", "nvshmem"];
    let start = ["--stages", "2", "-n", "2", "--schedule", "zb-h1", "--schedule", "dualpipe", "--clip", "1"];
    let arguments: Vec<&str> = start.into_iter().chain(links).chain(["--beta2", "0.95", "--repeat-batch"]).collect();
    let found = check_losses(&train(&arguments, &[]), "B_same_batch_b0.9_0.95_wd0_clip1", 1e-4);
    assert_eq!(found.len(), 8);
    for schedule in ["zb-h1", "dualpipe"] {
        let all: Vec<_> = found.iter().filter(|((name, _), _)| name == schedule).map(|(_, losses)| losses).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{schedule}: {all:?}");
    }
}

#[test]
fn two_ranks_share_a_gpu_over_nvshmem() {
    let arguments = ["--stages", "2", "-n", "2", "--slices", "2", "--link", "nvshmem", "--schedule", "zb-v"];
    check_losses(&train(&arguments, &[("EMULATOR_DEVICES", "1")]), STREAM, 1e-4);
}

#[test]
fn bfloat16_stays_close() {
    let arguments = ["--stages", "2", "--precision", "bfloat16", "--schedule", "1f1b", "--schedule", "zb-v"];
    check_losses(&train(&arguments, &[]), STREAM, 1e-2);
}

#[test]
fn nccl_is_refused_where_the_checker_finds_a_circle() {
    let arguments = ["run", "--device", "cuda", "--stages", "2", "--micro", "4", "--link", "nccl"];
    for more in [&["--schedule", "zb-v"][..], &["--schedule", "1f1b", "--delivery", "channel"]] {
        let all: Vec<&str> = arguments.iter().chain(more).copied().collect();
        let output = pipesim(&all, &[]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains("wait for one another in a circle"), "{told}");
    }
}

#[test]
fn the_best_device_and_link_are_chosen() {
    let auto = |more: &[&str], variables: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let report = format!("{}/", folder.path().display());
        let mut all = vec!["run", "--micro", "2", "--seq", "16", "--steps", "1", "--warmup", "0", "--schedule", "1f1b"];
        all.extend(["--channels", "32", "--heads", "2", "--blocks", "2", "--format", "json", "-o", &report]);
        all.extend(more);
        let output = pipesim(&all, variables);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let run = &json["runs"][0];
        (run["device_kind"].as_str().unwrap().to_string(), run["link"].as_str().unwrap().to_string(), told)
    };
    let (device, link, told) = auto(&["--stages", "2"], &[]);
    assert_eq!((device.as_str(), link.as_str()), ("cuda", "copy"), "{told}");
    let (device, link, told) = auto(&["--stages", "2"], &[("EMULATOR_DEVICES", "1")]);
    assert_eq!((device.as_str(), link.as_str()), ("cpu", "local"), "{told}");
    assert!(told.contains("device: cpu") && told.contains("at most 1 devices"), "why: {told}");
    let (device, link, _) = auto(&["--stages", "2", "-n", "2"], &[]);
    assert_eq!((device.as_str(), link.as_str()), ("cuda", "nvshmem"));
}

#[test]
fn a_hang_on_a_gpu_is_ended_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let report = format!("{}/", folder.path().display());
    let (model, tokens) = (golden_path("gpt2/model.bin"), golden_path("gpt2/tokens.bin"));
    for (more, text) in [
        (&["--inject", "hang@1:3"][..], "device 0 at op number"),
        (&["--inject", "die@1:3"], "device 1 died"),
        (&["--inject", "die@1:3", "-n", "2", "--link", "nvshmem"], "device 1 died"),
    ] {
        let mut all = vec!["run", "--device", "cuda", "--stages", "2", "--micro", "8", "--batch", "8", "--seq", "32"];
        all.extend(["--tokenizer", "bytes", "--schedule", "1f1b", "--timeout", "3", "-o", &report]);
        all.extend(["--checkpoint", &model, "--data", &tokens]);
        all.extend(more);
        let output = pipesim(&all, &[("EMULATOR_JITTER", "0")]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{more:?}: {told}");
        assert!(told.contains(text), "{more:?}: {told}");
    }
}

#[test]
fn without_a_driver_cuda_is_refused_with_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("LD_LIBRARY_PATH", folder.path()).env_remove("PIPESIM_CUDA_PATH");
    let output = command.args(["run", "--device", "cuda", "--stages", "2", "--micro", "2"]).output().unwrap();
    if Path::new("/dev/nvidiactl").exists() {
        return; // a machine with a driver finds it
    }
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{told}");
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
    let report = format!("{path}/report/");
    let run = |more: &[&str]| {
        let mut all = vec!["run", "--stages", "2", "--micro", "2", "--seq", "16", "--steps", "1", "--schedule", "1f1b"];
        all.extend(["--channels", "32", "--heads", "2", "--blocks", "2", "-o", &report]);
        all.extend(more);
        let output = pipesim(&all, &[("LD_LIBRARY_PATH", &path), ("PATH", "/nowhere")]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, told) = run(&["--device", "cuda"]);
    assert!(code == Some(5) && told.contains("cuBLASLt"), "{code:?} {told}");
    let (code, told) = run(&[]);
    assert!(code == Some(0) && told.contains("device: cpu") && told.contains("cuBLASLt"), "{code:?} {told}");
    let (code, told) = run(&["--precision", "bfloat16"]);
    assert!(code == Some(5) && told.contains("--precision is for GPUs"), "{code:?} {told}");
    let (code, told) = run(&["--device", "cpu", "--slices", "2"]);
    assert!(code == Some(2) && told.contains("--slices is for GPUs"), "{code:?} {told}");
    let cublas = emulator().join("libcublasLt.so.13");
    std::os::unix::fs::symlink(cublas, folder.path().join("libcublasLt.so.13")).unwrap();
    let (code, told) = run(&["--device", "cuda", "--link", "nccl"]);
    assert!(code == Some(5) && told.contains("libnccl.so.2"), "{code:?} {told}");
}

#[test]
fn defaults_that_a_link_would_stop_are_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let report = format!("{}/", folder.path().display());
    let mut all = vec!["run", "--device", "cuda", "--stages", "2", "--micro", "4", "--seq", "16", "--steps", "1"];
    all.extend(["--channels", "32", "--heads", "2", "--blocks", "4", "--link", "copy", "--link", "nccl"]);
    all.extend(["--format", "json", "-o", &report]);
    let output = pipesim(&all, &[]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("zb-v is left out"), "{told}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs: Vec<_> =
        json["runs"].as_array().unwrap().iter().map(|r| (r["schedule"].clone(), r["link"].clone())).collect();
    assert_eq!(runs.len(), 4 + 3, "{runs:?}");
}

#[test]
fn doctor_finds_the_stand_ins_usable_and_a_bare_machine_not() {
    let output = pipesim(&["doctor", "--format", "json", "--need", "cuda", "--need", "nvshmem"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let status = |name: &str| {
        let probes = json["probes"].as_array().unwrap();
        probes.iter().find(|probe| probe["name"] == name).unwrap()["status"].as_str().unwrap().to_string()
    };
    for name in ["driver", "devices", "peer-access", "nvrtc", "cublaslt", "nccl", "nvshmem", "processor"] {
        assert_eq!(status(name), "ok", "{name}: {json:#}");
    }
}
