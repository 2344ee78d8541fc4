//! Questions and faults that others reported in public about training jobs: what pipesim says about them is right.

use crate::cli::{json, pipesim};
use crate::support::golden_path;
use serde_json::Value;

fn predictions(arguments: &str) -> Vec<Value> {
    json(&format!("predict {arguments} --format json -q"))["predictions"].as_array().unwrap().clone()
}

fn makespans(found: &[Value]) -> Vec<f64> {
    found.iter().map(|one| one["makespan"].as_f64().unwrap()).collect()
}

fn peaks(found: &Value) -> Vec<f64> {
    let devices = found["per_device"].as_array().unwrap();
    devices.iter().map(|device| device["peak_activations"].as_f64().unwrap()).collect()
}

/// Before December 2024 PyTorch wrote B for the backward of the input and BW for the whole one.
#[test]
fn files_of_the_old_dialect_are_read() {
    let line = format!("predict --stages 2 --micro 2 -s {} --format csv", golden_path("reports/old.csv"));
    let (code, printed, told) = pipesim(&line);
    assert_eq!(code, 0, "{told}");
    // Device 0: F0 F1, waits for I0 of device 1 until 4, BW0 until 6, BW1 until 8.
    assert_eq!(printed.lines().nth(1).and_then(|row| row.split(',').nth(5)), Some("8"), "{printed}");
    let warnings: Vec<&str> = told.lines().filter(|line| line.starts_with("warning:")).collect();
    assert!(matches!(warnings.as_slice(), [one] if one.contains("2 BW read as B")), "{told}");
}

/// https://github.com/deepspeedai/DeepSpeed/issues/4477: the first GPU holds most although stages are balanced.
#[test]
fn the_first_device_holds_the_most_micro_batches() {
    let found = predictions("--stages 8 --micro 32 -s 1f1b,gpipe");
    assert_eq!(peaks(&found[0]), [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    assert_eq!(peaks(&found[1]), [32.0; 8]);
}

/// https://github.com/deepspeedai/DeepSpeed/issues/4602: accumulating gradients raises memory until m = p.
#[test]
fn accumulation_raises_memory_up_to_p_micro_batches() {
    let found = predictions("--stages 8 --micro 1,2,8,16 -s 1f1b");
    let most = |one: &Value| peaks(one).into_iter().fold(0.0, f64::max);
    assert_eq!(found.iter().map(most).collect::<Vec<_>>(), [1.0, 2.0, 8.0, 8.0]);
}

/// https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5077: the heaviest stage counts, not the mean.
#[test]
fn the_heaviest_of_uneven_stages_counts() {
    let layout = "--hardware h100-sxm --stages 4 --micro 8 --layers 1,2,2,3 -s 1f1b";
    let found = &predictions(&format!("--model {} {layout}", golden_path("reports/eight.json")))[0];
    // Two bytes per parameter: four products of attention and three of the gated MLP, and two norms per layer.
    let (hidden, ffn, vocabulary) = (1024_u64, 4096, 32000);
    let layer = 2 * (4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden);
    let (embedding, head) = (2 * vocabulary * hidden, 2 * vocabulary * hidden + 2 * hidden);
    let devices = found["memory"]["per_device"].as_array().unwrap();
    let weights: Vec<u64> = devices.iter().map(|device| device["weights"].as_u64().unwrap()).collect();
    assert_eq!(weights, [layer + embedding, 2 * layer, 2 * layer, 3 * layer + head]);
    assert_eq!(weights[3], 166_213_632);
    let totals: Vec<u64> = devices.iter().map(|device| device["total"].as_u64().unwrap()).collect();
    assert_eq!((found["memory_bytes"].as_u64(), totals.iter().max()), (Some(totals[3]), Some(&totals[3])));
}

/// https://github.com/deepseek-ai/DualPipe/issues/15 and /issues/8: above three chunks interleaving has the smaller bubble.
#[test]
fn four_chunks_per_device_beat_dualpipe() {
    let found = predictions("--stages 8 --micro 32 -s interleaved-1f1b:v=2,interleaved-1f1b:v=4,dualpipe");
    // F + B = 3: m of them, and (p - 1)/v; DualPipe (p/2 - 1)(F&B + B - 3W) with F&B = 3, B = 2 and W = 1.
    let (p, m) = (8.0, 32.0);
    let interleaved = |v: f64| 3.0 * (m + (p - 1.0) / v);
    let dualpipe = 3.0 * m + (p / 2.0 - 1.0) * (3.0 + 2.0 - 3.0);
    assert_eq!(makespans(&found), [interleaved(2.0), interleaved(4.0), dualpipe]);
    assert_eq!(makespans(&found), [106.5, 101.25, 102.0]);
}

/// https://github.com/alibaba/Megatron-LLaMA/issues/11: two GPUs run out of memory, four do not.
#[test]
fn seven_billion_parameters_need_four_gpus() {
    let fits = |layout: &str| {
        let model = "--model llama-2-7b --hardware a800-sxm-80gb --stages 1 --tp 2 --sequence-parallel --seq 4096";
        let found = &predictions(&format!("{model} --micro-batch-size 4 --zero 1 -s 1f1b {layout}"))[0];
        (found["gpus"].as_u64().unwrap(), found["memory"]["fits"].as_bool().unwrap())
    };
    assert_eq!([fits("--dp 1 --batch 32"), fits("--dp 2 --batch 64")], [(2, false), (4, true)]);
}
