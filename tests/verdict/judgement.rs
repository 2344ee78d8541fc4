//! Measured steps next to their predictions: units, verdicts, and what would explain a difference.

use pipesim_answer::question::{Question, answer};
use pipesim_answer::resolve::Files;
use pipesim_jobs::Measurement;
use pipesim_verdict::judgement::{
    Asked, Candidate, FlopCount, Measured, MeasuredError, Outcome, Verdict, judge, share_below,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

fn question(text: &str) -> Question {
    Question::from_toml(&format!("version = 1\n{text}")).unwrap()
}

/// Llama 3 70B on 64 H100s, as in the book.
fn llama() -> Question {
    question(
        "schedule = \"interleaved-1f1b\"\nmodel = \"llama-3-70b\"\nhardware = \"h100-sxm\"\nstages = 4\ntp = 8\ndp = 2\nbatch = 128\n\
         seq = 8192\nzero = \"1\"\nsequence-parallel = true\nmicro-batch-size = 1\n",
    )
}

fn verdict_of(question: &Question, measured: &str, log: Option<&Measurement>) -> Verdict {
    let found = answer(question, &Files).unwrap();
    let estimate = found.predictions[0].estimate.as_ref().unwrap();
    judge(question, &question.schedule[0], estimate, &Measured::parse(measured).unwrap(), log, &Files).unwrap()
}

fn seconds(question: &Question, measured: &str) -> f64 {
    let asked = Asked::new(question, &question.schedule[0], &Files).unwrap();
    Measured::parse(measured).unwrap().seconds(&asked.analytic).unwrap()[0]
}

/// 128 sequences of 8192 tokens on 64 GPUs are 1,048,576 tokens; every unit gives the seconds that follow from its definition.
#[test]
fn every_unit_is_of_the_same_step() {
    let llama = llama();
    let near = |text: &str, expected: f64| {
        let found = seconds(&llama, text);
        assert!((found / expected - 1.0).abs() < 1e-9, "{text}: {found} {expected}");
    };
    near("9.6s", 9.6);
    near("9600 ms", 9.6);
    near("100k tokens/s", 10.485_76);
    near("1638.4 tokens/s/gpu", 10.0);
    let asked = Asked::new(&llama, "interleaved-1f1b", &Files).unwrap();
    let tflop = |count: FlopCount| count.of_step(&asked.analytic) / 64.0 / 1e12;
    near("430 TFLOP/s/gpu model", tflop(FlopCount::Model) / 430.0);
    near("430 tflops megatron-half", tflop(FlopCount::HalfScores) / 430.0);
    near("43% MFU bf16", tflop(FlopCount::Model) / 0.43 / 989.0);
    near("43 % mfu 989", tflop(FlopCount::Model) / 0.43 / 989.0);
}

/// Scores of L layers of width h take 12 L h s FLOPs per token, forward and backward (Narayanan et al., arXiv 2104.04473, appendix); a
/// forward, which full recomputation repeats but for the logits, is a third of a step.
#[test]
fn counts_of_flops_differ_by_scores_and_recomputation() {
    let mut llama = llama();
    let of = |question: &Question, count: FlopCount| {
        count.of_step(&Asked::new(question, "interleaved-1f1b", &Files).unwrap().analytic)
    };
    let scores = 12.0 * 80.0 * 8192.0 * 8192.0 * 1_048_576.0;
    let half = of(&llama, FlopCount::Model) - of(&llama, FlopCount::HalfScores);
    assert!((half / (scores / 2.0) - 1.0).abs() < 1e-6, "{half} {scores}");
    assert_eq!(of(&llama, FlopCount::Hardware), of(&llama, FlopCount::Model));
    llama.recompute = "full".parse().unwrap();
    let (model, hardware) = (of(&llama, FlopCount::Model), of(&llama, FlopCount::Hardware));
    let logits = 6.0 * 8192.0 * 128_256.0 * 1_048_576.0;
    assert!((hardware / (model + (model - logits) / 3.0) - 1.0).abs() < 1e-9);
}

#[test]
fn measurements_without_a_meaning_are_refused() {
    let error = |text: &str| Measured::parse(text).unwrap_err();
    assert!(matches!(error("430 tflops"), MeasuredError::Uncounted(_)));
    assert!(error("430 tflops").to_string().contains("2025-03-06"));
    assert!(matches!(error("43% MFU"), MeasuredError::NoPeak(_)));
    assert!(matches!(error("12,300 tokens/s"), MeasuredError::Apart(_)));
    assert!(matches!(error("120,300 tokens/s"), MeasuredError::Apart(_)));
    for text in ["", "s", "9.6", "-1s", "9.6 parsecs", "9.6s,", "nan s", "1s,1 tokens/s", "1e400s", "430 tflops some"] {
        assert!(Measured::parse(text).is_err(), "{text}");
    }
    assert!(Measured::parse("0s").is_err());
}

/// The median of three values is the second.
#[test]
fn several_values_have_a_median_and_a_range() {
    let verdict = verdict_of(&llama(), "17.5s, 17.1s, 17.9s", None);
    assert_eq!((verdict.measured_s, verdict.measured_range_s), (17.5, Some([17.1, 17.9])));
}

/// 5 % of the published runs are below the interval of 90 %, 95 % below its upper end.
#[test]
fn shares_agree_with_the_interval() {
    let table: toml::Table = include_str!("../../hardware/intervals.toml").parse().unwrap();
    for class in ["dense-16-bits", "mixture-8-bits", "dense-outside-1", "dense-outside-2"] {
        let [low, high] = [0, 1].map(|end| table[class][end].as_float().unwrap());
        // a row of a small region weighs more than a hundredth
        for (end, share) in [(low, 0.05), (high, 0.95)] {
            let [below, above] = [0.0, 0.001].map(|more| share_below(class, end + more).unwrap());
            assert!(below < share + 0.011 && share - 0.011 < above, "{class} {end}: {below} to {above}");
        }
    }
    assert_eq!((share_below("dense-16-bits", 0.1), share_below("dense-16-bits", 9.0)), (Some(0.0), Some(1.0)));
    assert_eq!(share_below("none", 1.0), None);
}

/// A run is as expected if it is neither among the slowest tenth of the published ones nor among the fastest.
#[test]
fn verdicts_follow_published_runs() {
    let llama = llama();
    let estimate = answer(&llama, &Files).unwrap().predictions.remove(0).estimate.unwrap();
    let of = |ratio: f64| verdict_of(&llama, &format!("{}s", ratio * estimate.iteration_s), None);
    assert_eq!(
        (of(1.0).outcome, of(1.5).outcome, of(0.7).outcome),
        (Outcome::AsExpected, Outcome::Slower, Outcome::Faster)
    );
    for ratio in [0.93, 0.96, 1.04, 1.08, 1.12, 1.18] {
        let verdict = of(ratio);
        let share = verdict.share_below.unwrap();
        assert_eq!(verdict.outcome == Outcome::AsExpected, (0.1..=0.9).contains(&share), "{ratio}: {share}");
    }
    let [low, high] = estimate.iteration_interval_s.map(|seconds| verdict_of(&llama, &format!("{seconds}s"), None));
    assert_eq!((low.outcome, high.outcome), (Outcome::Faster, Outcome::Slower));
    assert!(of(1.02).candidates.is_empty() && !of(1.08).candidates.is_empty());
    let starts = |ratio: f64, text: &str| assert!(of(ratio).sentence.starts_with(text), "{}", of(ratio).sentence);
    starts(1.5, "Slower than expected: ");
    starts(0.001, "Impossible: ");
    assert!(of(5.0).sentence.contains(" is 5 times the prediction of "), "{}", of(5.0).sentence);
}

/// A step's FLOPs as Megatron-LM's own function counts them (flops.py runs it). It leaves out the router of a mixture.
#[test]
fn flops_are_those_of_megatron_before_and_after_it_halved_the_scores() {
    #[derive(Deserialize)]
    struct Row {
        shape: serde_json::Value,
        seq: u64,
        batch: u64,
        before: f64,
        after: f64,
    }
    let rows: Vec<Row> = serde_json::from_str(include_str!("flops.json")).unwrap();
    let path = std::env::temp_dir().join(format!("pipesim-flops-{}.json", std::process::id()));
    for Row { shape, seq, batch, before, after } in rows {
        std::fs::write(&path, shape.to_string()).unwrap();
        let text = format!(
            "schedule = \"1f1b\"\nhardware = \"h100-sxm\"\nstages = 1\ndp = 8\nbatch = {batch}\nmicro-batch-size = 1\nseq = {seq}\n"
        );
        let asked = Question { model: Some(path.display().to_string()), ..question(&text) };
        let analytic = Asked::new(&asked, "1f1b", &Files).unwrap().analytic;
        let router = if shape["moe"] == true { 1e-3 } else { 1e-12 };
        for (count, expected) in [(FlopCount::Model, before), (FlopCount::HalfScores, after)] {
            let found = count.of_step(&analytic);
            assert!((found / expected - 1.0).abs() < router, "{shape}: {found} {expected}");
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// What programs printed side by side: seconds of a step, and TFLOP/s per GPU in their own count.
#[test]
fn printed_times_and_tflops_agree() {
    let shape = |text: &str| std::env::temp_dir().join(format!("pipesim-printed-{}-{text}.json", std::process::id()));
    let mixtral = r#"{"arch": "llama", "moe": true, "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "experts": 8, "top_k": 2,
        "moe_ffn": 14336, "ffn": 14336, "gated_mlp": true, "vocab": 32000, "tied": false}"#;
    let bloom = r#"{"arch": "gpt", "layers": 70, "hidden": 14336, "ffn": 57344, "gated_mlp": false, "heads": 112, "kv_heads": 112, "vocab": 250880,
        "tied": true, "moe": false, "act": "gelu", "pos": "alibi"}"#;
    let qwen = r#"{"arch": "llama", "layers": 36, "hidden": 4096, "ffn": 12288, "gated_mlp": true, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "vocab": 151936, "tied": false, "moe": false}"#;
    let llama = r#"{"arch": "llama", "layers": 32, "hidden": 4096, "ffn": 14336, "gated_mlp": true, "heads": 32, "kv_heads": 8, "vocab": 128256,
        "tied": false, "moe": false}"#;
    // seconds, printed TFLOP/s, half a unit of the last digit of both, relative
    let check = |name: &str, model: &str, text: &str, count: FlopCount, [seconds, printed, rounding]: [f64; 3]| {
        std::fs::write(shape(name), model).unwrap();
        let mut asked = question(&format!("schedule = \"1f1b\"\nhardware = \"h100-sxm\"\n{text}"));
        asked.model = Some(shape(name).display().to_string());
        let measured = format!("{seconds}s");
        let log = Measurement { printed_tflops: Some(printed), ..Measurement::default() };
        let speed = verdict_of(&asked, &measured, Some(&log)).speed;
        let found = match count {
            FlopCount::Model => speed.model_tflops_per_gpu,
            FlopCount::HalfScores => speed.half_scores_tflops_per_gpu,
            FlopCount::Hardware => speed.hardware_tflops_per_gpu,
        };
        assert!((found / printed - 1.0).abs() < rounding, "{name}: {found} {printed}");
        assert_eq!(speed.printed_count, Some(count), "{name}");
        std::fs::remove_file(shape(name)).unwrap();
    };
    // NVIDIA/Megatron-LM#756, 2024-04; it does not count the router
    let text =
        "stages = 1\ntp = 4\ndp = 4\nep = 4\nbatch = 128\nmicro-batch-size = 1\nseq = 2048\nsequence-parallel = true\n";
    for (seconds, printed) in [(5.4449, 239.8), (5.5338, 236.0), (5.7186, 228.4)] {
        check("mixtral", mixtral, text, FlopCount::Model, [seconds, printed, 1e-3]);
    }
    // bigscience-workshop/bigscience train/tr11-176B-ml chronicles @9e64ede: everything recomputed
    let text = "stages = 10\ntp = 4\ndp = 8\nbatch = 2048\nmicro-batch-size = 2\nseq = 2048\nrecompute = \"full\"\n";
    for (seconds, printed) in [(105.22, 149.02), (106.25, 147.58), (111.14, 141.09)] {
        // it ran on 384 GPUs, of which stages of 5 and 6 layers were 12
        check("bloom", bloom, text, FlopCount::Hardware, [seconds, printed * 384.0 / 320.0, 1e-4]);
    }
    // NVIDIA-NeMo/Megatron-Bridge#388, 2025-08
    let text = "stages = 1\ndp = 8\nbatch = 128\nmicro-batch-size = 1\nseq = 8192\n";
    check("llama", llama, text, FlopCount::HalfScores, [12.78, 528.1, 5e-4]);
    // NVIDIA-NeMo/Megatron-Bridge examples/model_verification_cards/qwen3-8b/card.yaml @067f987
    let text = "stages = 1\ndp = 16\nbatch = 1024\nmicro-batch-size = 1\nseq = 4096\n";
    check("qwen", qwen, text, FlopCount::HalfScores, [25.070_32, 512.7, 1e-5]);
}

/// Writes what a candidate says as a question of its own, as somebody who follows it would.
fn as_question(asked: &Question, candidate: &Candidate, folder: &Path) -> Question {
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    for line in asked.to_toml().unwrap().lines() {
        let (key, value) = line.split_once(" = ").unwrap();
        lines.insert(key.to_string(), value.to_string());
    }
    if let Some(file) = &candidate.file {
        std::fs::write(folder.join("changed.toml"), file).unwrap();
    }
    let words: Vec<&str> = candidate.change.split('`').collect();
    for (at, setting) in words.iter().enumerate().skip(1).step_by(2) {
        let value = words[at + 1].trim().trim_end_matches("without").trim();
        if words[at - 1].ends_with("without ") {
            lines.remove(*setting);
            continue;
        }
        let value = match value {
            "" => "true".to_string(),
            "changed.toml" => format!("{:?}", folder.join("changed.toml").display().to_string()),
            number if number.parse::<u64>().is_ok() && *setting != "zero" => number.to_string(),
            text => format!("{text:?}"),
        };
        lines.insert((*setting).to_string(), value);
    }
    let text: String = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    Question::from_toml(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Each candidate's time is what the command that it prints is predicted to take: 100 random questions.
#[test]
fn candidates_are_what_their_commands_say() {
    let folder = std::env::temp_dir().join(format!("pipesim-candidates-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut state = 1_u64;
    let mut below = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    let mut checked = BTreeMap::new();
    for number in 0..100 {
        let mut pick = |list: &[&str]| list[below(list.len())].to_string();
        let model = pick(&["llama-3-8b", "llama-2-7b", "mixtral-8x7b", "gpt2-xl"]);
        let schedule = pick(&["1f1b", "interleaved-1f1b", "gpipe"]);
        let (stages, size) = (pick(&["2", "4"]), pick(&["1", "2"]));
        let text = format!(
            "model = \"{model}\"\nschedule = \"{schedule}\"\nstages = {stages}\nmicro-batch-size = {size}\nhardware = \"{}\"\n\
             tp = {}\ndp = {}\nbatch = 64\nseq = 1024\nprecision = \"{}\"\nrecompute = \"{}\"\nzero = \"{}\"\nsequence-parallel = {}\n",
            pick(&["h100-sxm", "gb200"]),
            pick(&["1", "2", "4"]),
            pick(&["1", "2", "4"]),
            pick(&["bf16", "fp8"]),
            pick(&["none", "selective", "full"]),
            pick(&["0", "1"]),
            pick(&["false", "true"]),
        );
        let asked = question(&text);
        let Ok(found) = answer(&asked, &Files) else { continue };
        let seconds = found.predictions[0].estimate.as_ref().unwrap().iteration_s;
        let factor = [0.7, 1.15, 1.5][number % 3];
        for candidate in verdict_of(&asked, &format!("{:.6}s", factor * seconds), None).candidates {
            let then = as_question(&asked, &candidate, &folder);
            let said = answer(&then, &Files).unwrap().predictions.remove(0).estimate.unwrap().iteration_s;
            assert!((candidate.iteration_s / said - 1.0).abs() < 1e-12, "{text}{candidate:?}: {said}");
            *checked.entry(candidate.name).or_insert(0) += 1;
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!("{checked:?}");
    assert!(checked.len() >= 12, "{checked:?}");
}

/// A log with the memory of full recomputation confirms it, and a ratio of 2 between the passes is against it.
#[test]
fn logs_confirm_and_exclude() {
    let llama = llama();
    let full = Question { recompute: "full".parse().unwrap(), ..llama.clone() };
    let full = answer(&full, &Files).unwrap().predictions.remove(0).estimate.unwrap();
    let measured = format!("{}s", full.iteration_s);
    let of = |log: &Measurement| {
        let verdict = verdict_of(&llama, &measured, Some(log));
        let one = verdict.candidates.iter().position(|one| one.name == "recompute-full").unwrap();
        (one, verdict.candidates[one].evidence.clone().unwrap().confirms)
    };
    let allocated_bytes = BTreeMap::from([(0, full.memory.fullest().total)]);
    assert_eq!(of(&Measurement { allocated_bytes, ..Measurement::default() }), (0, true));
    let timer = |ms: f64| pipesim_jobs::Timer { min_ms: ms, max_ms: ms };
    let timers =
        BTreeMap::from([("forward-compute".to_string(), timer(100.0)), ("backward-compute".to_string(), timer(200.0))]);
    let (place, confirms) = of(&Measurement { timers, ..Measurement::default() });
    assert!(place > 0 && !confirms);
}

/// A published step, asked for without the fault that it had.
#[derive(Deserialize)]
struct Fault {
    source: String,
    hardware: String,
    shape: serde_json::Value,
    question: String,
    measured: String,
    /// Any of these is right.
    fault: Vec<String>,
    rank: Option<usize>,
}

/// The table states where the fault is among the candidates, at worst; `null`: not among them.
#[test]
fn faults_of_published_steps_have_the_stated_ranks() {
    let faults: Vec<Fault> = serde_json::from_str(include_str!("faults.json")).unwrap();
    let folder = std::env::temp_dir().join(format!("pipesim-faults-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        Some(folder.join(name).display().to_string())
    };
    let (mut wrong, mut among_three) = (Vec::new(), 0);
    for fault in &faults {
        let mut asked = question(&fault.question);
        asked.hardware = write("hardware.toml", &fault.hardware);
        asked.model = write("model.json", &fault.shape.to_string());
        let verdict = verdict_of(&asked, &fault.measured, None);
        let rank =
            verdict.candidates.iter().position(|one| fault.fault.iter().any(|name| name == one.name)).map(|at| at + 1);
        let names: Vec<String> =
            verdict.candidates.iter().map(|one| format!("{} {:.2}", one.name, one.share)).collect();
        println!("{}: {rank:?}; {} {names:?}", fault.source, verdict.sentence);
        among_three += usize::from(rank.is_some_and(|rank| rank <= 3));
        let is_worse = fault.rank.is_some_and(|stated| rank.is_none_or(|rank| rank > stated));
        wrong.extend(is_worse.then(|| format!("{}: {rank:?}, not {:?}", fault.source, fault.rank)));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!("the fault is among the first three in {among_three} of {}", faults.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(among_three >= 11, "{among_three}");
}
