//! `--cuda-graphs` on the emulator: the same bits in fewer launches.

use crate::emulated::{compile, pipesim};
use crate::support::*;
use serde_json::{Value, json};
use std::path::Path;

/// A high learning rate makes the losses show the last bits of sums.
const SMALL: &str = "--seq 16 --micro 4 --warmup 1 --steps 3 --lr 0.1 --device cuda";
const GPT: &str = "--channels 32 --heads 2 --blocks 4 --stages 2";

/// The losses of each schedule, and what the graphs did: calls, launches, graphs, refused lists.
fn trained(more: &str, variables: &[(&str, &str)]) -> (Vec<Value>, Vec<u64>) {
    let (code, json, told) = run(&mut pipesim(variables), &format!("{SMALL} --format json --quiet {more}"));
    assert_eq!(code, Some(0), "{more}: {told}");
    let losses = json["runs"].as_array().unwrap().iter().map(|run| run["losses"].clone()).collect();
    let words = json["cuda_graphs"].as_str().unwrap_or_default();
    let number = |word: &str| word.parse().ok();
    let (figures, _) = words.split_once(" in a step").map_or((words, ""), |(figures, rest)| (figures, rest));
    let rest = words.split(',').skip(1).flat_map(|part| part.split(' ')).filter_map(number);
    (losses, figures.split(' ').filter_map(number).chain(rest).collect())
}

/// Calls and launches with graphs, whose losses are the same as without.
fn compared(more: &str, variables: &[(&str, &str)]) -> [u64; 2] {
    let ((expected, none), (found, graphs)) =
        (trained(more, variables), trained(&format!("{more} --cuda-graphs on"), variables));
    assert_eq!(found, expected, "{more}");
    assert!(none.is_empty(), "{none:?}");
    let &[calls, launches, captured, refused] = &graphs[..] else { panic!("{more}: {graphs:?}") };
    assert!(captured > 0 && refused == 0, "{more}: {graphs:?}");
    [calls, launches]
}

#[test]
fn losses_are_the_same_bits_in_fewer_launches() {
    compile();
    let variables = [("EMULATOR_JITTER", "3"), ("EMULATOR_MULTIPROCESSORS", "64")];
    for more in [
        "-s gpipe,1f1b,zb-v",
        "-s 1f1b,zb-v --precision bf16",
        "-s seq1f1b:slices=2,1f1b-recompute,pipeoffload",
        "-s 1f1b --link nccl --link local",
    ] {
        let [calls, launches] = compared(&format!("{GPT} {more}"), &variables);
        assert!(calls > 5 * launches, "{more}: {calls} calls in {launches} launches");
    }
    // cuDNN's attention is between graphs
    let [calls, launches] = compared(&format!("{GPT} -s 1f1b --precision bf16 --attention cudnn"), &variables);
    assert!(2 * calls > 7 * launches, "{calls} calls in {launches} launches");
}

#[test]
fn llama_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let config = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 4, "vocab_size": 257, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "hidden_act": "silu",
    });
    std::fs::write(&file, config.to_string()).unwrap();
    for more in ["", "--precision bf16"] {
        let [calls, launches] = compared(&format!("--stages 2 -s 1f1b --model {} {more}", file.display()), &[]);
        assert!(calls > 6 * launches, "{calls} calls in {launches} launches");
    }
}

/// Collective calls are between graphs: by NCCL on a GPU each, and by copies on slices.
#[test]
fn tensor_and_data_parallel_workers_give_the_same_bits() {
    compile();
    let gpus = [("EMULATOR_DEVICES", "8")];
    let slices = [("EMULATOR_DEVICES", "2"), ("EMULATOR_MULTIPROCESSORS", "32")];
    for (more, variables) in [
        ("--tp 2 --dp 2 -s 1f1b", &gpus[..]),
        ("--tp 2 --dp 2 -s zb-v --sequence-parallel --zero 1 --precision bf16", &gpus),
        ("--tp 2 --dp 2 -s 1f1b --gpu-slices 4", &slices),
    ] {
        let [calls, launches] = compared(&format!("{GPT} {more}"), variables);
        assert!(calls > 2 * launches, "{more}: {calls} calls in {launches} launches");
    }
}

/// All files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "safetensors"))
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// Number of graphs, of their nodes and of calls outside of graphs that the emulator started in a training of `steps` steps.
fn started(steps: usize, graphs: &str, folder: &Path) -> [usize; 3] {
    let train = format!(
        "train {GPT} --seq 16 --micro 4 --lr 0.1 --device cuda -s 1f1b --steps {steps} --cuda-graphs {graphs} --quiet --output {}",
        folder.display()
    );
    let mut command = pipesim(&[("EMULATOR_TRACE", "1"), ("EMULATOR_JITTER", "0")]);
    let output = command.args(train.split(' ')).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let operations = told.lines().filter_map(|line| line.split_once(" stream ")?.1.split_once(' '));
    let mut found = [0; 3];
    for (_, operation) in operations {
        let is_ops = ["_f32", "cublasLtMatmul", "cuMemcpyDtoD"].iter().any(|part| operation.contains(part));
        match operation {
            "cuGraphLaunch" => found[0] += 1,
            node if node.starts_with("node ") => found[1] += 1,
            _ if is_ops => found[2] += 1,
            _ => {}
        }
    }
    found
}

/// Counted by the emulator, in the fourth step, when everything was captured.
#[test]
fn a_step_takes_a_launch_for_each_part_of_each_op_and_weights_are_the_same() {
    compile();
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let count = |graphs: &str| {
        let [few, more] = [3, 4].map(|steps| started(steps, graphs, &place(&format!("{graphs}{steps}"))));
        [0, 1, 2].map(|kind| more[kind] - few[kind])
    };
    let ([none, no_nodes, calls], [graphs, nodes, others]) = (count("off"), count("on"));
    assert_eq!((none, no_nodes, nodes + others), (0, 0, calls));
    // 4 micro-batches of F, I and W over 4 blocks, embedding and head, of which W of the embedding has another number of tokens each time
    let parts = 4 * 3 * (4 + 2);
    assert!((parts - 12..=parts).contains(&graphs), "{graphs} graphs for {parts} parts");
    assert!(calls > 5 * (graphs + others), "{calls} calls, {graphs} graphs, {others} outside");
    let [expected, found] = ["off4", "on4"].map(|name| files(&place(name).join("step-000004")));
    assert!(expected.len() == 3 && expected == found, "parameters and moments");
}

/// Where a library cannot be captured, its ops run without graphs.
#[test]
fn what_cannot_be_captured_is_enqueued_call_by_call() {
    compile();
    let (expected, _) = trained(&format!("{GPT} -s 1f1b"), &[]);
    let fails = [("EMULATOR_CAPTURE_FAILS", "1")];
    let (found, graphs) = trained(&format!("{GPT} -s 1f1b --cuda-graphs on"), &fails);
    assert_eq!(found, expected);
    assert!(graphs[3] > 10, "{graphs:?}");
    let (code, _, told) = run(&mut pipesim(&[]), "--stages 2 --micro 2 --device cpu --cuda-graphs on");
    assert!(code == Some(2) && told.contains("--cuda-graphs is for GPUs"), "{told}");
}
