//! Mixtures of experts and stage layouts, from the command line.

use crate::cli::{fails, json, pipesim};
use crate::support::golden_list;

const V3: &str =
    "predict --model deepseek-v3 --hardware h100-sxm --stages 16 --dp 64 --ep 64 --batch 4096 --seq 4096 --zero 1";

#[test]
fn deepseek_v3_is_predicted() {
    let found = json(&format!("{V3} --layout Et*3|(tt|)*29,m|L --recompute mla_up_proj,moe_act --format json -q"));
    let one = &found["predictions"][0];
    assert_eq!((&one["schedule"], &one["chunks"], &one["gpus"]), (&"interleaved-1f1b".into(), &2.into(), &1024.into()));
    let parameters = one["parameters"].as_f64().unwrap();
    assert!((parameters / 671.03e9 - 1.0).abs() < 1e-4, "{parameters}");
    let layers = one["layers"].as_array().unwrap();
    assert_eq!((layers.len(), &layers[0], &layers[1], &layers[31]), (32, &3.into(), &2.into(), &0.into()));
    let mfu = one["mfu"].as_f64().unwrap();
    assert!((0.05..0.7).contains(&mfu), "{mfu}");
    assert_eq!([&one["ep"], &one["etp"], &one["edp"], &one["rounds"]], [64, 1, 1, 1]);
    // 37.55 G active parameters and 14 G for multi-token prediction, as DeepSeek's README has them, six FLOPs each, and scores
    let [active, flops] = ["active_parameters", "model_flops_per_token"].map(|key| one[key].as_f64().unwrap());
    assert!((active / 37.55e9 - 1.0).abs() < 1e-3 && (6.0..8.0).contains(&(flops / active)), "{active} {flops}");
    assert!(one["prediction_parameters"].as_f64().unwrap() > 11e9);
    let of_which = &one["memory"]["per_device"][3]["of_which"];
    // four layers of 256 experts over 64 GPUs, each on one of them: 2, 4 and 12 bytes
    let experts = 4 * 4 * 3 * 7168 * 2048_u64;
    let expected = [2, 4, 12].map(|bytes| bytes * experts);
    let found = ["expert_weights", "expert_gradients", "expert_optimizer"].map(|key| of_which[key].as_u64().unwrap());
    assert_eq!(found, expected);
    let (code, out, _) = pipesim(&format!("{V3} --layout Et*3|(tt|)*29,m|L --tables"));
    assert_eq!(code, 0);
    for expected in [
        "37.55 G active",
        "more for multi-token prediction",
        "ep 64 · etp 1 · edp 1",
        "expert weights",
        "dispatch buffers",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
}

/// Megatron's names are accepted, and rounds multiply a step.
#[test]
fn options_have_megatrons_names() {
    let asked = "predict --model qwen3-30b-a3b --hardware h100-sxm --stages 2 --dp 8 --seq 4096 -s interleaved-overlap --format json -q";
    let mine =
        json(&format!("{asked} --batch 64 --ep 8 --etp 1 --dispatcher deepep --moe-overlap --delay-wgrad --chunks 2"));
    let theirs = json(&format!(
        "{asked} --global-batch-size 64 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --moe-flex-dispatcher-backend deepep \
         --overlap-moe-expert-parallel-comm --delay-wgrad-compute --vpp 2"
    ));
    assert_eq!(mine, theirs);
    let layout = json(&format!("{asked} --batch 64 --ep 8 --pipeline-model-parallel-layout Et*12|t*12|t*12|t*12L"));
    assert_eq!(layout["predictions"][0]["chunks"], 2);
    let plain =
        "predict --model gpt-oss-20b --hardware b200 --stages 2 --ep 4 --dp 4 --seq 4096 -s 1f1b --format json -q";
    let number =
        |options: &str, key: &str| json(&format!("{plain} {options}"))["predictions"][0][key].as_f64().unwrap();
    let [one, four] = ["--batch 32", "--batch 128 --rounds 4"].map(|options| number(options, "iteration_s"));
    assert!(four > 3.0 * one && four < 4.0 * one + 1e-9, "{one} {four}");
    let [one, four] = ["--batch 32", "--batch 128 --rounds 4"].map(|options| number(options, "makespan"));
    assert_eq!(one, four);
}

/// Megatron-Core: `expert_tensor_parallel_size` is `tensor_model_parallel_size` by default, at any expert-parallel size; others keep
/// experts whole.
#[test]
fn experts_are_shared_as_the_software_does_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let own = format!("{}/own.toml", folder.path().display());
    std::fs::write(&own, "base = \"megatron-bridge\"\nmoment_bytes = 4\n").unwrap();
    for (stack, is_megatron) in [
        ("megatron-core", true),
        ("megatron-bridge", true),
        ("megatron-lm", true),
        (own.as_str(), true),
        ("torchtitan", false),
        ("megatron-deepspeed", false),
    ] {
        for (tp, ep) in [(1, 1), (4, 1), (2, 8)] {
            let sequence_parallel = if tp > 1 { "--sequence-parallel" } else { "" };
            let asked = format!(
                "predict --model qwen3-30b-a3b --hardware h100-sxm --stack {stack} --stages 1 --tp {tp} {sequence_parallel} --dp 16 --ep {ep} \
                 --batch 32 --seq 4096 -s 1f1b --format json -q"
            );
            let etp = if is_megatron { tp } else { 1 };
            let found = json(&asked);
            let one = &found["predictions"][0];
            assert_eq!((&one["etp"], &one["edp"]), (&etp.into(), &(16 * tp / ep / etp).into()), "{asked}");
            // 48 layers of 128 experts of three matrices, in 16 or 32 bits
            let held = 48 * 128 * 3 * 2048 * 768_u64 / (ep * etp) as u64;
            let bytes = if stack == "torchtitan" { 4 } else { 2 };
            assert_eq!(one["memory"]["per_device"][0]["of_which"]["expert_weights"], bytes * held, "{asked}");
            assert_eq!(found, json(&format!("{asked} --etp {etp}")), "{asked}");
        }
    }
}

/// DualPipe runs the same pairs without virtual stages; on a mixture, `--overlap streams` is `--moe-overlap`.
#[test]
fn schedules_with_pairs_hide_the_exchange_of_experts() {
    let asked = "predict --model qwen3-30b-a3b --hardware h100-sxm --stages 2 --dp 8 --ep 8 --batch 128 --seq 4096 --format json -q -s";
    let number = |options: &str, key: &str| json(&format!("{asked} {options}"))["predictions"][0][key].clone();
    for schedule in ["dualpipe", "dualpipe-v", "interleaved-overlap --chunks 2"] {
        let exposed = |options: &str| {
            number(&format!("{schedule} {options}"), "time_s")["expert_parallel_exposed"].as_f64().unwrap()
        };
        let (none, hidden) = (exposed(""), exposed("--moe-overlap"));
        assert!(hidden < 0.6 * none && hidden == exposed("--overlap streams"), "{schedule}: {none} {hidden}");
    }
    fails(&format!("{asked} 1f1b --moe-overlap"), 2, &["1f1b has no such pairs"]);
}

/// A row's model is a file that predict takes; its GPUs are folded twice.
#[test]
fn shape_files_are_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/shape.json", folder.path().display());
    let rows = golden_list("moe/rows.json");
    let row = rows.iter().find(|row| row["model"]["base"] == "grok-1" && row["pp"] == 8).unwrap();
    std::fs::write(&path, row["model"].to_string()).unwrap();
    let of = |key: &str| row[key].as_u64().unwrap();
    let asked = format!(
        "predict --model {path} --hardware h100-sxm --stages {} --chunks {} --tp {} --cp {} --dp {} --ep {} --etp {} --batch {} \
         --micro-batch-size {} --seq {} --sequence-parallel --zero 1 -s interleaved-1f1b --format json -q",
        of("pp"),
        of("chunks"),
        of("tp"),
        of("cp"),
        of("dp"),
        of("ep"),
        of("etp"),
        of("batch"),
        of("micro_batch_size"),
        of("seq"),
    );
    let found = json(&asked);
    assert_eq!(found["predictions"][0]["gpus"], row["gpus"]);
    std::fs::write(&path, row["model"].to_string().replacen('{', "{\"mamba_layers\": 2, ", 1)).unwrap();
    fails(&asked, 2, &["shape.json: 'mamba_layers': Mamba layers are not modelled"]);
}

/// What does not divide, fit or exist: one clear line each.
#[test]
fn impossible_layouts_are_rejected_in_one_line() {
    let qwen = "predict --model qwen3-30b-a3b --hardware h100-sxm --seq 4096 --stages 4 --micro 8";
    for (asked, expected) in [
        (format!("{qwen} --dp 8 --ep 3"), "128 experts to be a multiple of --ep, found 3"),
        (format!("{qwen} --dp 8 --ep 16"), "--ep 16 times --etp 1 to divide the 8 GPUs of a pipeline stage"),
        (format!("{qwen} --dp 8 --tp 2 --sequence-parallel --ep 8 --etp 4"), "times --etp 4 to divide the 16 GPUs"),
        (format!("{qwen} --dp 5 --etp 5"), "768 channels of an expert to be a multiple of --etp, found 5"),
        (format!("{qwen} --dp 8 --tp 2 --ep 8"), "--sequence-parallel with --tp 2 and experts"),
        (format!("{qwen} --dp 8 --delay-wgrad"), "--moe-overlap with --delay-wgrad"),
        (format!("{qwen} --dp 8 --moe-overlap"), "--ep above 1 with --moe-overlap"),
        (format!("{qwen} --dp 8 --ep 8 --moe-overlap"), "several virtual stages with --moe-overlap"),
        (format!("{qwen} --recompute mla_up_proj"), "found mla_up_proj, which it does not have"),
        (format!("{qwen} --recompute mlp"), "found mlp, which it does not have"),
        (format!("{qwen} --layout Et*24|t*24L"), "a multiple of --stages 4, found 2"),
        (format!("{qwen} --layout Et*12|t*12|t*12|t*11L"), "the model's 48 layers, found 47"),
        (format!("{qwen} --layout Et*12|t*12|t*12|t*12L --layers 12,12,12,12"), "so does --layout"),
        (format!("{qwen} --layout Et*12|t*12|t*12|t*12L --chunks 1"), "which --layout determines"),
        (format!("{qwen} --layout Et*12|t*12|(t*6|t*6L"), "column 12: '(' without ')*n'"),
        (format!("{qwen} --layout torchtitan:x"), "write torchtitan:1,1"),
        (format!("{qwen} --layout torchtitan:20,1"), "--layout: expected the first stage to have at most"),
        (format!("{qwen} --rounds 3 --batch 64").replace(" --micro 8", ""), "--batch to be a multiple of --rounds 3"),
        (format!("{V3} --layout Et*3|(tt|)*28,m|L|"), "61 layers, found 59"),
        (
            "predict --model llama-3-8b --hardware h100-sxm --stages 4 --micro 8 --ep 2".to_string(),
            "a mixture of experts for --ep",
        ),
        (
            "predict --stages 4 --micro 8 --costs F=1,loss=2".to_string(),
            "--costs has embedding, mtp or loss, which --layout places",
        ),
        ("predict --stages 4 --micro 8 --layout Et|t|t|tL --costs F=1/2/3/4".to_string(), "leave --layout out"),
        ("predict --stages 4 --micro 8 --layout torchtitan --costs F=1".to_string(), "torchtitan splits a known model"),
        (
            "run --stages 2 --micro 8 --layout Et|tL -s 1f1b".to_string(),
            "--layout says what stages hold for predictions",
        ),
        ("run --stages 2 --micro 4 --model mixtral-8x7b".to_string(), "found a mixture of experts"),
    ] {
        let (code, _, err) = pipesim(&asked);
        let line = err.lines().find(|line| line.starts_with("error")).unwrap_or_default();
        assert!(code == 2 && line.contains(expected), "{asked}: {code} {err}");
    }
}
