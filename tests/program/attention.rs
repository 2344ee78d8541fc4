//! `--attention cudnn` on the emulator, whose cuDNN takes the descriptors that the real one takes.

use crate::emulated::{STREAM, pipesim, train};
use crate::support::*;

const SMALL: &str = "--seq 16 --channels 32 --heads 2 --blocks 2 --stages 2 --micro 2 --warmup 0 --steps 1 --schedule 1f1b --format json";

fn run_with(variables: &[(&str, &str)], more: &str) -> (Option<i32>, serde_json::Value, String) {
    run(&mut pipesim(variables), &format!("{SMALL} {more}"))
}

#[test]
fn cudnns_attention_gives_pytorchs_losses() {
    let with = "--stages 2 --precision bf16 --attention cudnn";
    train(&format!("{with} --schedule 1f1b,zb-v"), &[], STREAM, 1e-2);
    // slices of a GPU, and recomputed forwards
    let variables = [("EMULATOR_DEVICES", "1"), ("EMULATOR_MULTIPROCESSORS", "32")];
    train(&format!("{with} --schedule 1f1b-recompute --gpu-slices 2"), &variables, STREAM, 1e-2);
}

#[test]
fn what_cudnn_does_not_compute_is_refused_by_name() {
    let cuda = "--device cuda --precision bf16 --attention cudnn";
    let (code, _, told) = run_with(&[], cuda);
    assert_eq!(code, Some(0), "{told}");
    for (more, variables, code, words) in [
        ("--device cpu --attention cudnn", &[][..], 2, "--attention is for GPUs; leave it out, or use --device cuda"),
        (
            "--device cuda --attention cudnn",
            &[],
            2,
            "expected bfloat16 for cuDNN's attention, found float32: add --precision bf16",
        ),
        (
            cuda,
            &[("EMULATOR_CUDNN_VERSION", "92700")],
            5,
            "expected cuDNN 9.28.0 or newer, found 9.27.0: pip install --upgrade nvidia-cudnn-cu13",
        ),
    ] {
        let (found, _, told) = run_with(variables, more);
        assert!(found == Some(code) && told.contains(words), "{more}: {found:?} {told}");
    }
    for (replaced, by, words) in [
        ("--heads 2", "--heads 8", "a multiple of 8 channels for cuDNN's attention, found 4"),
        ("1f1b", "seq1f1b", "expected whole sequences for cuDNN's attention, found slices"),
    ] {
        let (found, _, told) = run(&mut pipesim(&[]), &format!("{} {cuda}", SMALL.replace(replaced, by)));
        assert!(found == Some(1) && told.contains(words), "{by}: {found:?} {told}");
    }
}

/// A machine with everything but cuDNN runs without it, and says what to do with it.
#[test]
fn a_missing_cudnn_is_named_with_its_fix() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(emulator()).unwrap().flatten() {
        if file.file_name() != "libcudnn.so.9" {
            std::os::unix::fs::symlink(file.path(), folder.path().join(file.file_name())).unwrap();
        }
    }
    let path = folder.path().display().to_string();
    let without = [("LD_LIBRARY_PATH", &path[..]), ("PATH", "/nowhere")];
    let (code, _, told) = run_with(&without, "--device cuda --precision bf16");
    assert_eq!(code, Some(0), "{told}");
    let (code, _, told) = run_with(&without, "--device cuda --precision bf16 --attention cudnn");
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("expected cuDNN (libcudnn.so.9), found none in") && told.contains("pip install"), "{told}");
    let doctor = |variables: &[(&str, &str)]| {
        let (code, json, told) = finish(pipesim(variables).args(["doctor", "--format", "json", "--need", "cuda"]));
        assert_eq!(code, Some(0), "{told}");
        let probes = json["probes"].as_array().unwrap();
        let probe = probes.iter().find(|probe| probe["name"] == "cudnn").unwrap();
        ["status", "found", "fix"].map(|key| probe[key].as_str().unwrap_or_default().to_string())
    };
    let [status, _, fix] = doctor(&without);
    assert!(status == "missing" && fix.starts_with("nothing without --attention cudnn"), "{status} {fix}");
    let [status, found, _] = doctor(&[]);
    assert!(status == "ok" && found.starts_with("9.28.1, "), "{status} {found}");
}
