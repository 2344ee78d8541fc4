//! Files given to the wrong verb: what they are is said, what is intact is not called damaged, and what is named takes the file.

use crate::cli::pipesim;
use crate::support::golden_path;
use std::path::Path;

/// Each kind of file: what messages call it, its path, and the slots below that take it.
fn files(folder: &Path) -> Vec<(&'static str, String, Vec<&'static str>)> {
    let at = |name: &str| folder.join(name).display().to_string();
    let made = |arguments: String| {
        let (code, out, err) = pipesim(&arguments);
        assert_eq!(code, 0, "{arguments}: {err}");
        out
    };
    let text = |name: &str, text: &str| {
        std::fs::write(at(name), text).unwrap();
        at(name)
    };
    let trace = golden_path("kineto/plain_gpipe_p2_m4");
    made(format!("import {trace} -o {0} --costs {1} -q", at("measured.json"), at("costs.json")));
    let [pages, picture, spans] = ["predicted.json", "predicted.svg", "predicted.csv"].map(at);
    made(format!("predict -p 2 -m 4 -s 1f1b -o {pages} -o {picture} -o {spans} -q"));
    made(format!(
        "plan --model gpt2 --hardware h100-sxm --gpus 2 --batch 8 --seq 256 --schedules 1f1b -o {} -q",
        at("plan.json")
    ));
    let figures = made("predict -p 2 -m 4 -s 1f1b --format json -q".to_string());
    let explained = made("explain -p 2 -m 4 -s 1f1b --format json -q".to_string());
    let exported = made("export -p 2 -m 4 -s 1f1b --to json".to_string());
    let config = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_hidden_layers": 8, "vocab_size": 257, "_limit": [0.0, Infinity]}"#;
    let log = " [2024-09-03 15:56:55] iteration       20/  500000 | consumed samples:        20480 | elapsed time per iteration (ms): \
        12137.8 | throughput per GPU (TFLOP/s/GPU): 872.5 | global batch size:  1024 | lm loss: 1.064275E+01 |\n";
    let own_log = r#"{"step":1,"loss":5.6,"norm":1.0,"learning_rate":0.0003,"tokens_per_second":1000.0,"bubble":0.2}"#;
    let ops = "rank,stage,kind,microbatch,start_us,end_us\n0,0,F,0,0,10\n1,1,F,0,10,20\n1,1,B,0,20,40\n0,0,B,0,40,60\n";
    vec![
        ("saved timelines", at("predicted.json"), vec!["compare", "explain", "from", "import"]),
        ("saved timelines", at("measured.json"), vec!["compare", "explain", "from", "import"]),
        ("figures that a verb printed", text("figures.json", &figures), vec![]),
        ("figures that a verb printed", text("explained.json", &explained), vec![]),
        ("an exported schedule", text("exported.json", &exported), vec![]),
        ("a saved plan", at("plan.json"), vec![]),
        ("a table of timelines", at("predicted.csv"), vec![]),
        ("a cost file", at("costs.json"), vec!["profile"]),
        ("a profiler's trace", format!("{trace}/rank0_trace.json.gz"), vec!["import", "explain"]),
        ("a folder of profilers' traces", trace, vec!["import", "explain"]),
        ("a table of op times", text("ops.csv", ops), vec!["import", "explain"]),
        ("a model's config.json", text("config.json", config), vec!["model", "run"]),
        (
            "a model's shape file",
            text("shape.json", r#"{"arch": "gpt", "layers": 8, "hidden": 64, "heads": 4, "vocab": 257}"#),
            vec!["model"],
        ),
        ("a schedule", text("own.star", include_str!("../../schedules/gpipe.star")), vec!["schedule"]),
        ("a schedule in PyTorch's format", text("own.csv", "0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n"), vec!["schedule"]),
        ("a file of stage times", text("stages.csv", "stage,F_ms,B_ms\n0,1,2\n1,2,3\n"), vec!["costs"]),
        ("a file of stage times", text("stages.toml", "unit = \"ms\"\nF = [1, 2]\nB = 3\n"), vec!["costs"]),
        ("a table of hardware", text("hardware.toml", "base = \"h100-sxm\"\nbf16_tflops = 500\n"), vec!["hardware"]),
        ("a table of training software", text("stack.toml", "base = \"megatron-core\"\n"), vec!["stack"]),
        ("an llm.c checkpoint", golden_path("gpt2/model.bin"), vec!["checkpoint"]),
        ("a picture or a page", at("predicted.svg"), vec![]),
        ("the log of a training", text("log.jsonl", &format!("{own_log}\n{own_log}\n")), vec![]),
        ("Megatron's training log", text("train.log", &log.repeat(3)), vec![]),
        ("Megatron's training log", text("slurm.json", log.trim_start()), vec![]),
        (
            "a launch script",
            text("job.sh", "#!/bin/bash\ntorchrun pretrain_gpt.py --pipeline-model-parallel-size 4\n"),
            vec![],
        ),
        (
            "a launch script",
            text("job.toml", "[model]\nname = \"llama3\"\n[parallelism]\npipeline_parallel_degree = 2\n"),
            vec![],
        ),
    ]
}

/// Where a file can be given, and the command line.
const SLOTS: [(&str, &str); 12] = [
    ("compare", "compare FILE -q"),
    ("explain", "explain FILE -q"),
    ("import", "import FILE -q"),
    ("from", "profile --from FILE -q"),
    ("profile", "predict -p 2 -m 4 -s 1f1b --profile FILE -q"),
    ("costs", "predict -p 2 -m 4 -s 1f1b --costs FILE -q"),
    ("model", "predict -p 2 -m 4 -s 1f1b --hardware h100-sxm --model FILE -q"),
    ("hardware", "predict -p 2 -m 4 -s 1f1b --model gpt2 --hardware FILE -q"),
    ("stack", "predict -p 2 -m 4 -s 1f1b --model gpt2 --hardware h100-sxm --stack FILE -q"),
    ("schedule", "check -p 2 -m 2 -s FILE -q"),
    ("run", "run -p 2 -m 2 -s 1f1b --steps 1 --warmup 0 --device cpu --seq 8 --model FILE -q"),
    ("checkpoint", "run -p 2 -m 2 -s 1f1b --steps 1 --warmup 0 --device cpu --seq 8 --checkpoint FILE -q"),
];

const DAMAGED: [&str; 8] = [
    "cut off",
    "damaged",
    "invalid JSON",
    "not closed",
    "copy it",
    "copy the file",
    "download it again",
    "is not a known key",
];

/// Runs `lines`, a few at once.
fn all(lines: &[String]) -> Vec<(i32, String, String)> {
    let of = |part: &[String]| part.iter().map(|line| pipesim(line)).collect::<Vec<_>>();
    let parts: Vec<&[String]> = lines.chunks(lines.len().div_ceil(4)).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || of(part))).collect();
        running.into_iter().flat_map(|part| part.join().unwrap()).collect()
    })
}

#[test]
fn every_verb_says_what_a_file_of_another_kind_is_and_what_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let cases: Vec<_> = files.iter().flat_map(|file| SLOTS.iter().map(move |slot| (file, slot))).collect();
    let lines: Vec<String> = cases.iter().map(|((_, path, _), (_, line))| line.replace("FILE", path)).collect();
    let mut advice: Vec<String> = Vec::new();
    for (((what, path, takers), (slot, _)), (line, (code, _, err))) in cases.iter().zip(lines.iter().zip(all(&lines))) {
        // one rank's trace of several explains nothing
        if *slot == "explain" && err.contains("expected the ops of every device") {
            continue;
        }
        assert!(!DAMAGED.iter().any(|word| err.contains(word)), "{line}: {err}");
        if takers.contains(slot) {
            assert!(!err.contains(&format!("found {what}")), "{line}: {err}");
            assert!(code == 0 || path.ends_with("predicted.json"), "{line}: {code} {err}");
            continue;
        }
        assert!((1..=3).contains(&code) && err.contains(&format!("found {what}")), "{line}: {code} {err}");
        let command = err.split('`').nth(1).filter(|command| command.starts_with("pipesim "));
        advice.extend(command.map(|command| command["pipesim ".len()..].to_string()));
    }
    advice.sort();
    advice.dedup();
    // a schedule's file says its own numbers
    let filled = |line: &String| line.replace("--stages P --micro M", "--stages 2 --micro 2 -q");
    let advice: Vec<String> = advice.iter().filter(|line| !line.starts_with("run ")).map(filled).collect();
    assert!(advice.len() >= 10, "{advice:?}");
    for (line, (code, _, err)) in advice.iter().zip(all(&advice)) {
        assert_eq!(code, 0, "{line}: {err}");
    }
}

/// A number of heads that nobody chose is never blamed: heads of 64 channels if they divide, otherwise some that do.
#[test]
fn what_nobody_chose_is_not_blamed() {
    for (options, heads) in [
        ("--channels 128", Some("2 attention heads of 64 channels")),
        ("--channels 100", Some("5 attention heads of 20 channels")),
        ("--channels 97", Some("1 attention head of 97 channels")),
        ("--channels 192", None),
        ("--channels 128 --heads 4", None),
    ] {
        let line = format!("run --blocks 2 {options} -p 2 -m 2 -s 1f1b --steps 1 --warmup 0 --device cpu --seq 8");
        let (code, _, err) = pipesim(&line);
        assert_eq!(code, 0, "{line}: {err}");
        match heads {
            Some(heads) => assert!(err.contains(heads) && err.contains("choose others with --heads"), "{err}"),
            None => assert!(!err.contains("attention heads of"), "{err}"),
        }
    }
    let (code, _, err) = pipesim("run --blocks 2 -p 2 -m 2 --steps 1 --device cpu");
    assert!(code == 2 && err.contains("name schedules with -s: zb-v is one of the default ones"), "{err}");
    let (code, _, err) = pipesim("run --blocks 2 -s zb-v -p 2 -m 2 --steps 1 --device cpu");
    assert!(code == 2 && !err.contains("default"), "{err}");
    let (code, _, err) = pipesim("run --channels 128 --heads 6 -p 2 -m 2 -s 1f1b --steps 1 --device cpu");
    assert!(code == 2 && err.contains("found 128 channels and 6 heads"), "{err}");
}
