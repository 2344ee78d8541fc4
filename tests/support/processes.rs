//! Other processes: pipesim itself, this program again, and stand-ins for NVIDIA's libraries (`tests/emulator`) for them.

use super::{golden_path, root};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// pipesim.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_pipesim");

/// Runs a command to its end: exit code, the JSON that it printed if it did, and what it said.
pub fn finish(command: &mut Command) -> (Option<i32>, Value, String) {
    let output = command.output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), json, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The same with these arguments of `pipesim run`, between blanks; its report goes to a folder that is gone then.
pub fn run(command: &mut Command, arguments: &str) -> (Option<i32>, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    finish(command.arg("run").args(arguments.split_whitespace()).arg("-o").arg(folder.path().join("")))
}

/// Arguments for the golden model, in sequences of 32 tokens.
pub fn golden_run() -> String {
    let [model, tokens] = ["gpt2/model.bin", "gpt2/tokens.bin"].map(golden_path);
    format!("--checkpoint {model} --data {tokens} --seq 32 --lr 1e-3")
}

/// This program in a process of its own, in which it runs one test, named with its module.
pub fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--include-ignored"]);
    command
}

/// Whether tests run on this machine's own GPUs: `PIPESIM_TEST_GPU=1`.
pub fn on_gpu() -> bool {
    std::env::var_os("PIPESIM_TEST_GPU").is_some_and(|value| value == "1")
}

/// Says why a test, or a part of one, is not for a GPU; true there.
pub fn skipped_on_gpu(why: &str) -> bool {
    if on_gpu() {
        println!("skipped on a GPU: {why}");
    }
    on_gpu()
}

/// The folder with the stand-ins, built if need be; an error without a C++ compiler.
pub fn try_emulator() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    let built = Command::new(root().join("tests/emulator/build")).arg(&folder).output().unwrap();
    let told = String::from_utf8_lossy(&built.stderr).trim().to_string();
    assert!(built.status.success() || built.status.code() == Some(5), "{told}");
    if built.status.success() { Ok(folder) } else { Err(told) }
}

pub fn emulator() -> PathBuf {
    try_emulator().unwrap()
}

/// Lets a process find the stand-ins, and nothing about GPUs that this one inherited.
pub fn with_stand_ins(command: &mut Command) -> &mut Command {
    let elsewhere = "PIPESIM_KERNELS PIPESIM_CUDA_PATH CUDA_HOME CUDA_PATH CUDA_VISIBLE_DEVICES VIRTUAL_ENV CONDA_PREFIX \
         CUDA_DEVICE_MAX_CONNECTIONS NCCL_MAX_CTAS";
    for variable in elsewhere.split(' ') {
        command.env_remove(variable);
    }
    let folder = emulator();
    command.env("EMULATOR_HARDWARE_QUEUES", "1").env("EMULATOR_MULTIPROCESSORS", "64");
    command.env("LD_LIBRARY_PATH", &folder).env("PIPESIM_CACHE", folder.join("cache"))
}

/// The folder with the real cuDNN, which is too large to be fetched for every test: `$PIPESIM_CUDNN`. Without it what is not run is said
/// on the terminal, whatever is captured.
pub fn cudnn() -> Option<PathBuf> {
    let folder = std::env::var_os("PIPESIM_CUDNN").filter(|value| !value.is_empty());
    if folder.is_none() {
        let words = "NOT RUN: descriptors on the real cuDNN, as PIPESIM_CUDNN names no folder with nvidia-cudnn-cu13\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
    }
    folder.map(PathBuf::from)
}

/// NVIDIA's libraries of the PyPI wheels, or `None` where tests may do without.
///
/// # Panics
/// `$PIPESIM_CUDA_WHEELS` names no folder, nor is `PIPESIM_WITHOUT_WHEELS` set.
pub fn wheels() -> Option<PathBuf> {
    let folder = std::env::var_os("PIPESIM_CUDA_WHEELS").filter(|value| !value.is_empty());
    assert!(
        folder.is_some() || std::env::var_os("PIPESIM_WITHOUT_WHEELS").is_some(),
        "expected PIPESIM_CUDA_WHEELS to name a folder with NVIDIA's libraries, found it unset; run tests/wheels \
         FOLDER and name that, or set PIPESIM_WITHOUT_WHEELS=1"
    );
    if folder.is_none() {
        eprintln!("not run: PIPESIM_WITHOUT_WHEELS is set");
    }
    folder.map(PathBuf::from)
}
