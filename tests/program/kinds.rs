//! Models with layers other than attention and an MLP, from the command line.

use crate::cli::{fails, json, pipesim};
use crate::support::golden_json;
use std::path::Path;

const NANO: &str = "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";
const QWEN: &str = "Qwen--Qwen3.5-35B-A3B.json";
const GLM: &str = "zai-org--GLM-5.2.json";

/// Writes a published configuration, and returns its path.
fn written(folder: &Path, file: &str) -> String {
    let path = folder.join(file);
    std::fs::write(&path, golden_json("models.json")[file]["config"].to_string()).unwrap();
    path.display().to_string()
}

/// The answer says how unlike layers are split, and that nothing like them was measured.
#[test]
fn answers_say_what_is_unusual() {
    let folder = tempfile::tempdir().unwrap();
    let nano = written(folder.path(), NANO);
    let asked = format!(
        "predict --model {nano} --hardware h100-sxm --stages 4 --dp 8 --ep 8 --batch 128 --seq 8192 --zero 1 -q"
    );
    let (code, out, _) = pipesim(&format!("{asked} -s 1f1b"));
    assert_eq!(code, 0);
    assert!(out.contains("no published run of a mixture has Mamba layers"), "{out}");
    assert!(out.contains("Layers differ, and their costs split them: "), "{out}");
    for options in [
        "--tp 2 --sequence-parallel",
        "--cp 2",
        "--recompute moe_act,layernorm,core_attn,moe",
        "--recompute full",
        "--layout Et*13|t*13|t*13|t*13L",
        "--layout MEMEM*EMEMEM*|EMEMEM*EMEMEM|*EMEMEM*EMEMEM|EM*EMEMEMEME",
    ] {
        let found = json(&format!("{asked} -s 1f1b --format json {options}"));
        let one = &found["predictions"][0];
        assert!(one["iteration_s"].as_f64().unwrap() > 0.0, "{options}");
        let activations = one["memory"]["per_device"][0]["activations"].as_u64().unwrap();
        assert!(activations > 1 << 30, "{options}: {activations}");
    }
    fails(
        &format!("{asked} --tp 16 --sequence-parallel -s 1f1b"),
        2,
        &["8 groups of Mamba layers to be a multiple of --tp"],
    );
    fails(
        &format!("{asked} --layout MEMEM*EMEMEM*|EMEMEM*EMEMEM|*EMEMEM*EMEMEM|EM*EMEMEMEMM -s 1f1b"),
        2,
        &["hybrid pattern"],
    );
    assert_eq!(
        pipesim(&format!(
            "explain --model {nano} --hardware h100-sxm --stages 4 --dp 8 --ep 8 --batch 128 --seq 8192 -s 1f1b"
        ))
        .0,
        0
    );
}

/// Megatron-Bridge takes stages of layers with one part in the hybrid pattern, and others in the layout.
#[test]
fn plans_have_the_options_of_megatron_bridge() {
    let folder = tempfile::tempdir().unwrap();
    for (file, gpus, fixed, expected) in [
        (NANO, 64, "pp=4,tp=1,cp=1,ep=8", "model.hybrid_layer_pattern='\"MEMEM*E"),
        (GLM, 256, "pp=8,tp=1,cp=1,ep=32", "model.pipeline_model_parallel_layout='\"E"),
        (QWEN, 64, "pp=4,tp=1,cp=1,ep=8", "model.pipeline_model_parallel_size=4"),
    ] {
        let path = written(folder.path(), file);
        let asked = format!(
            "plan --model {path} --hardware h200-sxm --gpus {gpus} --batch 1024 --seq 4096 --stack megatron-bridge -s 1f1b --fix {fixed},recompute=full --to megatron-bridge"
        );
        let (code, out, told) = pipesim(&asked);
        assert!(code == 0 && out.contains(expected), "{file}: {out} {told}");
    }
}

/// Training names what it lacks.
#[test]
fn training_refuses_such_layers_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (file, expected) in [
        (NANO, "Mamba layers"),
        (QWEN, "delta nets"),
        (GLM, "sparse attention"),
        ("LiquidAI--LFM2.5-VL-1.6B.json", "convolutions"),
        ("tiiuae--Falcon-H1-0.5B-Instruct.json", "Mamba layers"),
    ] {
        let path = written(folder.path(), file);
        fails(&format!("run --model {path} --stages 2 --micro 2"), 2, &[expected]);
        let out = folder.path().join("out");
        fails(
            &format!("train --model {path} --stages 2 --micro 2 --schedule 1f1b --output {}", out.display()),
            2,
            &[expected],
        );
    }
}
