//! `--job`: launch scripts, configurations and commands in place of options; `plan --mine`.

use crate::cli::{fails, json, pipesim};
use crate::support::PROGRAM;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// Asks with a job on standard input.
fn of_input(arguments: &str, job: &str) -> Value {
    let mut child = Command::new(PROGRAM)
        .args(arguments.split_whitespace())
        .args(["--format", "json", "-q", "--job", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(job.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{job}\n{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What plans print for a framework is a job, whose step is the plan's.
#[test]
fn plans_printed_for_a_framework_are_read_back() {
    let titan = "--module llama3 --config llama3_8b ";
    for (model, gpus, batch, stack, target, head) in [
        ("llama-3-8b", 32, 256, "megatron-core", "megatron", ""),
        ("mixtral-8x7b", 64, 256, "megatron-core", "megatron", ""),
        ("deepseek-v3", 128, 256, "megatron-core --fix cp=1,tp=1", "megatron", ""),
        ("llama-3-8b", 16, 64, "torchtitan", "torchtitan", titan),
        ("llama-3-70b", 64, 128, "megatron-bridge", "megatron-bridge", ""),
        // with states that groups of replicas share
        ("llama-3-8b", 64, 256, "megatron-core --fix shard=4", "megatron", ""),
        ("mixtral-8x7b", 64, 256, "megatron-bridge --fix shard=8", "megatron-bridge", ""),
        ("llama-3-8b", 64, 128, "torchtitan --fix zero=3,shard=8", "torchtitan", titan),
    ] {
        let machine = if model == "deepseek-v3" { "gb200" } else { "h100-sxm" };
        let plans = json(&format!(
            "plan --model {model} --hardware {machine} --gpus {gpus} --batch {batch} --seq 4096 --stack {stack} --format json -q"
        ));
        let mut compared = 0;
        for plan in plans["plans"].as_array().unwrap() {
            let Some(flags) = plan["flags"][target].as_str() else { continue };
            let model = if head.is_empty() { format!("--model {model}") } else { String::new() };
            let found =
                of_input(&format!("predict {model} --hardware {machine} --gpus {gpus}"), &format!("{head}{flags}"));
            let [found, planned] = [&found["predictions"][0], plan].map(|one| one["iteration_s"].as_f64().unwrap());
            assert!((found / planned - 1.0).abs() < 1e-9, "{flags}: {found} s, planned {planned} s");
            compared += 1;
        }
        assert!(compared >= 5, "{target}: {compared}");
    }
}

/// The rank of a layout is that among all plans, its time that of the plan.
#[test]
fn a_layout_stands_where_its_plan_does() {
    let question = "plan --model llama-3-8b --hardware h100-sxm --gpus 8 --batch 16 --seq 4096 --format json -q";
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let found = json(&format!("{question} --top 1000 --resume {}", journal.display()));
    // all layouts were predicted: none is left out for a bound of its time
    assert!(found["ruled_out"]["slower_by_a_bound"].is_null() && found["ruled_out"]["order_not_searched"].is_null());
    let plans = found["plans"].as_array().unwrap();
    let lines = std::fs::read_to_string(&journal).unwrap();
    let predicted = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.get(2).and_then(|bits| u64::from_str_radix(bits, 16).ok()).map(f64::from_bits)
    };
    let all: Vec<f64> = lines.lines().skip(1).filter_map(predicted).collect();
    assert!(all.len() > plans.len());
    let seconds = |plan: &Value| plan["iteration_s"].as_f64().unwrap();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let mut compared = 0;
    for plan in plans.iter().step_by(plans.len() / 16) {
        let layers = plan["layers"].as_array().unwrap();
        if layers.iter().any(|count| count != &layers[0]) {
            continue;
        }
        let keys = ["tp", "pp", "cp", "ep", "micro_batch_size", "chunks", "recompute", "zero", "sequence_parallel"];
        let mine = keys.map(|key| format!("{}={}", key.replace('_', "-"), text(&plan[key]))).join(",");
        let found = json(&format!("{question} --mine {mine}"));
        let faster = all.iter().filter(|other| **other < seconds(plan)).count();
        assert_eq!(found["mine"]["rank"], faster + 1, "{mine}");
        assert_eq!(found["mine"]["iteration_s"], plan["iteration_s"], "{mine}");
        let best = seconds(&found["plans"][0]);
        let saves = found["mine"]["best_saves"].as_f64().unwrap();
        assert!((saves - (1.0 - best / seconds(plan))).abs() < 1e-12, "{mine}: {saves}");
        compared += 1;
    }
    assert!(compared >= 6, "{compared}");
}

/// A layout that does not fit, or that the framework does not train, is said to be one, and has no rank if it does not fit.
#[test]
fn a_layout_that_cannot_be_trained_is_named() {
    let question = "plan --model llama-3-8b --hardware h100-sxm --gpus 16 --batch 64 --seq 4096 --format json -q";
    let found = &json(&format!("{question} --mine tp=1,zero=3,mbs=4"))["mine"];
    assert_eq!((&found["fits"], &found["rank"]), (&Value::from(false), &Value::Null));
    assert!(found["sentence"].as_str().unwrap().starts_with("Yours does not fit into memory"), "{found}");
    // Megatron-LM shards the optimizer alone
    assert!(found["refused"].as_str().unwrap().contains("--use-distributed-optimizer"), "{found}");
    let found = &json(&format!("{question} --mine tp=2,pp=4,vp=2"))["mine"];
    assert_eq!((&found["fits"], &found["refused"]), (&Value::from(true), &Value::Null));
}

/// A change that is said to help is one that `predict` finds as much faster.
#[test]
fn the_smallest_change_is_one_that_predict_confirms() {
    let found = json("plan --job examples/job/train.sh --hardware h100-sxm --format json -q");
    let change = &found["mine"]["smallest"];
    assert_eq!(change["settings"], serde_json::json!(["recompute full -> none"]));
    assert_eq!(change["leave_out"][0], "--recompute-granularity full");
    let without = json("predict --job examples/job/train.sh --hardware h100-sxm --recompute none --format json -q");
    assert_eq!(change["iteration_s"], without["predictions"][0]["iteration_s"]);
    fails(
        "plan --model llama-3-8b --hardware h100-sxm --gpus 16 --batch 64 --seq 4096 --mine tp=3",
        2,
        &["--mine", "16 GPUs"],
    );
}

#[test]
fn a_job_says_what_is_asked() {
    let job = "--job examples/job/train.sh --hardware h100-sxm -q";
    let (code, out, _) = pipesim(&format!("predict {job}"));
    let first = "Llama, 32 layers, 4096 wide, tp 2, pp 4, vp 4, dp 4 from 32 GPUs, 256 x 8192 tokens in micro-batches of 1, bf16, \
                 distributed optimizer, sequence parallel, recompute full; 19 options without effect";
    assert_eq!((code, out.lines().next()), (0, Some(first)));
    let read = &json(&format!("predict {job} --format json"))["job"];
    assert_eq!((&read["reading"]["kv_heads"], &read["reading"]["dp"]), (&Value::from(8), &Value::from(4)));
    assert_eq!(read["unknown"], Value::Array(Vec::new()));
    let same = "predict --model llama-3-8b --hardware h100-sxm --stages 4 --tp 2 --dp 4 --chunks 4 --batch 256 --seq 8192 \
                --sequence-parallel --zero 1 --recompute full -s interleaved-1f1b -q --format json";
    assert_eq!(json(&format!("predict {job} --format json"))["predictions"], json(same)["predictions"]);
    let nodes = json(&format!("predict {job} --format json --job-env NODES=8"));
    assert_eq!(nodes["job"]["reading"]["dp"], 8);
    // the first layer of each of 16 stages of two
    let job_of = std::fs::read_to_string("examples/job/train.sh").unwrap();
    let block = of_input(
        "predict --hardware h100-sxm",
        &job_of.replace("--recompute-method uniform", "--recompute-method block"),
    );
    assert_eq!(block["job"]["not_modelled"], Value::Array(Vec::new()));
    assert_eq!(block["predictions"], json(&same.replace("--recompute full", "--recompute block:1"))["predictions"]);
    // options that are given replace the job's
    let other = json(&format!("predict {job} --format json --recompute none --batch 512"));
    assert_eq!(other["predictions"][0]["microbatches"], 128);
}

#[test]
fn what_a_job_lacks_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.sh");
    fs::write(
        &path,
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $1 --sequence-paralel\n",
    )
    .unwrap();
    let path = path.display();
    fails(
        &format!("predict --job {path} --hardware h100-sxm"),
        2,
        &["LAYERS (for --num-layers)", "--job-env NAME=VALUE", "$1 (for --hidden-size)", "--job-args"],
    );
    let given = format!("--job {path} --job-env LAYERS=4 --job-args 1024");
    let (code, out, err) = pipesim(&format!("predict {given} --hardware h100-sxm"));
    assert_eq!(code, 2, "{err}");
    assert!(out.contains("no option --sequence-paralel; the nearest that it has is --sequence-parallel"), "{out}");
    fails("predict --job nothing.sh --hardware h100-sxm", 2, &["nothing.sh", "No such file"]);
    fails("predict --job --hardware h100-sxm", 2, &["expected a file, or a command after --"]);
    let (code, _, err) = pipesim("predict --job examples/job/train.sh");
    assert!(code == 2 && err.contains("--hardware h100-sxm"), "{err}");
    let (code, _, err) = pipesim("check --job examples/job/train.sh --job-env NODES=3");
    assert!(code == 2 && err.contains("multiple of dp · micro-batch size = 3 sequences, found 256"), "{err}");
}

#[test]
fn a_command_is_a_job() {
    let command = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
                   --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --vocab-size 50257 --bf16";
    let after = json(&format!("predict --hardware a100-sxm-80gb -q --format json --job -- {command}"));
    assert_eq!(after["predictions"], of_input("predict --hardware a100-sxm-80gb", command)["predictions"]);
    assert_eq!(after["job"]["reading"]["dp"], 8);
}
