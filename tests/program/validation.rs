//! Validation in `pipesim train` on GPUs and ranks: forwards alone, with the losses of CPU threads.

use crate::emulated::{compile, pipesim};
use crate::train::{MODEL, log, succeeds};
use std::path::Path;

/// A model that GPUs take.
const SMALL: &str = "--blocks 4 --heads 2 --channels 32 --seq 16 --micro 4 --lr 3e-3 --steps 3 --quiet";

/// What `pipesim train` on the emulator tells, with the run in `folder`.
fn emulated(more: &str, variables: &[(&str, &str)], folder: &Path) -> String {
    let mut command = pipesim(variables);
    command.args(format!("train {SMALL} --device cuda {more} -o {}", folder.display()).split_whitespace());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{more}: {told}");
    told
}

/// The losses of a run, and those of its validations.
fn losses(run: &Path) -> Vec<f64> {
    let lines = log(run);
    lines.iter().flat_map(|line| [&line["loss"], &line["validation_loss"]].map(|loss| loss.as_f64().unwrap())).collect()
}

#[test]
fn gpus_validate_by_forwards_over_every_link() {
    compile();
    let folder = tempfile::tempdir().unwrap();
    let validate = "--validate-every 1 --validation-batches 2";
    for (schedule, links) in [
        ("1f1b", &["local", "copy", "nccl", "nvshmem -n 2"][..]),
        ("zb-v", &["copy"]),
        ("dualpipe", &["local", "nccl"]),
        ("seq1f1b:slices=2", &["local", "copy", "nccl", "nvshmem -n 2"]),
        ("1f1b-recompute", &["local", "nccl", "nvshmem -n 2"]),
        ("1f1b-offload:least=1", &["nccl"]),
        ("pipeoffload", &["local", "nvshmem -n 2"]),
        ("1f1b --tp 2 --dp 2 --sequence-parallel --zero 1", &["copy", "nccl"]),
    ] {
        let cpu = folder.path().join("cpu");
        let place = format!("-p 2 -s {schedule} {validate}");
        succeeds(&format!("train {SMALL} --device cpu {place} -o @/cpu"), folder.path());
        for (number, link) in links.iter().enumerate() {
            let gpu = folder.path().join(format!("gpu{number}"));
            let variables = [("EMULATOR_DEVICES", "8"), ("EMULATOR_JITTER", "3")];
            emulated(&format!("{place} --link {link}"), &variables, &gpu);
            for (ours, cpu) in losses(&gpu).iter().zip(&losses(&cpu)) {
                assert!((ours - cpu).abs() < 1e-4, "{schedule} {link}: {ours}, on the CPU {cpu}");
            }
            std::fs::remove_dir_all(gpu).unwrap();
        }
        std::fs::remove_dir_all(cpu).unwrap();
    }
}

/// NCCL matches messages by their order alone, so devices that receive in another order than their peers send take the wrong ones.
#[test]
fn a_schedule_whose_messages_nccl_mixes_up_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("train {SMALL} --device cuda -p 2 -s zb-v --link nccl -o {}", folder.path().display());
    let output = pipesim(&[("EMULATOR_DEVICES", "2")]).args(arguments.split_whitespace()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("take another --link or schedule"), "{told}");
}

/// Number of matrix products that the emulator ran.
fn products(told: &str) -> usize {
    let operations = told.lines().filter_map(|line| line.split_once(" stream ")?.1.split_once(' '));
    operations.filter(|(_, operation)| operation.contains("cublasLtMatmul")).count()
}

#[test]
fn a_validation_on_gpus_takes_the_products_of_forwards() {
    compile();
    let folder = tempfile::tempdir().unwrap();
    let variables = [("EMULATOR_TRACE", "1"), ("EMULATOR_JITTER", "0")];
    let count = |more: &str, name: &str| {
        products(&emulated(&format!("-p 2 -s 1f1b {more}"), &variables, &folder.path().join(name)))
    };
    let without = count("", "without");
    // 3 validations of 2 batches; each of 4 micro-batches multiplies by 4 weights per block, and by the head's
    let forward = 4 * (4 * 4 + 1);
    assert_eq!(count("--validate-every 1 --validation-batches 2", "with") - without, 3 * 2 * forward);
    assert_eq!(without % 3, 0);
}

#[test]
fn ranks_validate_with_the_bits_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let start = format!("train {MODEL} -m 8 --steps 3 --validate-every 1 --validation-batches 3 --device cpu -q");
    for (number, schedule) in
        ["1f1b -p 4", "dualpipe -p 4", "seq1f1b:slices=2 -p 2", "zb-v -p 2 --dp 2 --zero 1"].iter().enumerate()
    {
        let [threads, ranks] = ["threads", "ranks"].map(|name| format!("{name}{number}"));
        succeeds(&format!("{start} -s {schedule} -o @/{threads}"), folder.path());
        succeeds(&format!("{start} -s {schedule} -o @/{ranks} -n 2 --no-shared-memory"), folder.path());
        assert_eq!(log(&folder.path().join(threads)), log(&folder.path().join(ranks)), "{schedule}");
    }
}
