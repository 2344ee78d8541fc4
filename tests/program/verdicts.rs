//! `predict --measured`: a measured step next to its prediction.

use crate::cli::{fails, json, pipesim};
use std::fmt::Write;
use std::fs;

/// Llama 3 8B on 32 H100s.
const STEP: &str = "predict --model llama-3-8b --hardware h100-sxm --dp 4 --tp 2 --pp 4 --batch 256 --seq 8192";

/// A log as Megatron-LM prints it, with its arguments: steps of 9.56 to 9.64 s after a slow first one, and a slow one after a checkpoint.
fn log() -> String {
    let arguments = [
        ("num_layers", "32"),
        ("hidden_size", "4096"),
        ("ffn_hidden_size", "14336"),
        ("num_attention_heads", "32"),
        ("group_query_attention", "True"),
        ("num_query_groups", "8"),
        ("seq_length", "8192"),
        ("max_position_embeddings", "8192"),
        ("micro_batch_size", "1"),
        ("global_batch_size", "256"),
        ("tensor_model_parallel_size", "2"),
        ("pipeline_model_parallel_size", "4"),
        ("swiglu", "True"),
        ("normalization", "RMSNorm"),
        ("position_embedding_type", "rope"),
        ("untie_embeddings_and_output_weights", "True"),
        ("add_bias_linear", "False"),
        ("bf16", "True"),
        ("recompute_granularity", "None"),
    ];
    let mut text =
        "using world size: 32, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 2, \
                    pipeline-model-parallel size: 4\n------------------------ arguments ------------------------\n"
            .to_string();
    for (name, value) in arguments {
        let _ = writeln!(text, "  {name} {} {value}", ".".repeat(48 - name.len()));
    }
    text += "-------------------- end of arguments ---------------------\n";
    for step in 1..=20 {
        let ms = match step {
            1 => 30_000.0,
            11 => 14_000.0,
            _ => 9560.0 + f64::from(step % 5) * 20.0,
        };
        let _ = writeln!(
            text,
            " [2025-07-01 10:00:{step:02}.123456] iteration {step:8}/    1000 | consumed samples: {:12} | elapsed time per iteration (ms): \
             {ms:.1} | throughput per GPU (TFLOP/s/GPU): 351.4 | learning rate: 1.5E-04 | global batch size:   256 | lm loss: 1.0E+01 |",
            step * 256
        );
        if step == 10 {
            text += "saving checkpoint at iteration      10 to /checkpoints in torch_dist format\n";
        }
    }
    text + "(min, max) time across ranks (ms):\n    forward-backward ...............................: (8560.00, 8570.00)\n"
}

#[test]
fn a_verdict_comes_first_and_then_its_candidates() {
    let (code, out, err) = pipesim(&format!("{STEP} --measured 9.6s"));
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("Slower than expected: 9.6 s is "), "{out}");
    let at = |text: &str| out.find(text).unwrap_or_else(|| panic!("{text}: {out}"));
    assert!(
        at("something costs about") < at("what could explain it") && at("what to look at") < at("F forward"),
        "{out}"
    );
    assert!(out.contains("\n6 ") && !out.contains("\n7 "), "{out}");
    let found = json(&format!("{STEP} --measured 9.5s,9.6s,9.7s --format json"));
    let verdict = &found["verdict"];
    assert_eq!(verdict["measured_range_s"], serde_json::json!([9.5, 9.7]));
    let predicted = found["predictions"][0]["iteration_s"].as_f64().unwrap();
    let ratio = verdict["ratio"].as_f64().unwrap();
    assert!((ratio * predicted / 9.6 - 1.0).abs() < 1e-9, "{verdict}");
    assert!(verdict["candidates"][0]["iteration_s"].as_f64().unwrap() > predicted);
    let (code, out, _) = pipesim(&format!("{STEP} --measured {predicted:.3}s"));
    assert!(code == 0 && out.starts_with("As expected: ") && !out.contains("what could explain"), "{out}");
}

#[test]
fn a_log_is_a_measurement_of_options_and_of_its_own_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.log").display().to_string();
    fs::write(&path, log()).unwrap();
    for command in [format!("{STEP} --measured {path}"), format!("predict --job {path} --hardware h100-sxm")] {
        let verdict = json(&format!("{command} --format json"))["verdict"].clone();
        // 18 steps, of which 9.6 s is the middle
        assert_eq!((&verdict["measured_s"], &verdict["log"]["steps"]), (&9.6.into(), &18.into()), "{verdict}");
        assert_eq!(verdict["log"]["dropped"]["after_pause"], 1);
        assert_eq!(verdict["speed"]["printed_count"], "half-scores");
        assert_eq!(verdict["parts"][0]["measured_s"], 8.57);
        // the passes take what is predicted, so the rest of the step has the difference
        assert_eq!(
            (&verdict["candidates"][0]["name"], &verdict["candidates"][0]["evidence"]["confirms"]),
            (&"outside".into(), &true.into())
        );
        let candidates = verdict["candidates"].as_array().unwrap();
        let full = candidates.iter().find(|one| one["name"] == "recompute-full").unwrap();
        assert_eq!(full["evidence"]["confirms"], false, "{full}");
        assert!(full["next"].as_str().unwrap().contains(&path), "{full}");
    }
    fails(&format!("{STEP} --batch 128 --measured {path}").replace("--batch 256 ", ""), 2, &["128", "256", "--batch"]);
}

#[test]
fn what_is_no_measurement_is_refused() {
    for (value, says) in [
        ("0s", "above 0"),
        ("-9.6s", "-9.6s"),
        ("9.6", "9.6s"),
        ("soon", "path of a log"),
        ("430tflops", "megatron-half"),
        ("9.6s,12tokens/s", "9600ms"),
        ("missing.log", "path of a log"),
        ("Cargo.toml", "lines of training steps"),
    ] {
        fails(&format!("{STEP} --measured {value}"), 2, &["--measured", says]);
    }
    fails(&format!("{STEP} --measured 9.6s --format csv"), 2, &["CSV"]);
    fails(&format!("{STEP} --measured 9.6s -s 1f1b,gpipe"), 2, &["several schedules"]);
    fails(&format!("{STEP} --measured 9.6s").replace("--tp 2", "--tp 1,2"), 2, &["one layout"]);
    fails("predict --stages 4 --micro 8 --measured 9.6s", 2, &["--hardware"]);
}
