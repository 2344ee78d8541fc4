//! `pipesim plan` as a user starts it: its answer, flags to paste, files, and questions without an answer.

use crate::support::PROGRAM;
use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// Runs a command line; returns exit code, stdout and stderr.
fn run(line: &str) -> (i32, String, String) {
    let mut command = Command::new(PROGRAM);
    let output = command.args(line.split_whitespace()).timeout(Duration::from_secs(300)).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn json(line: &str) -> Value {
    let (code, out, err) = run(line);
    assert_eq!(code, 0, "{line}: {err}");
    serde_json::from_str(&out).unwrap()
}

const SMALL: &str = "plan --model gpt2-large --hardware a100-sxm-80gb --gpus 8 --batch 32 --seq 1024 -q";

/// The JSON has the contract's keys, and each plan's command predicts what the plan says.
#[test]
fn the_command_of_a_plan_predicts_the_plan() {
    let small = "--model gpt2-large --gpus 8 --batch 32 --seq 1024";
    let mixture = "--model qwen3-30b-a3b --gpus 16 --batch 64 --seq 2048";
    let deep = "--model deepseek-v3 --gpus 256 --batch 256 --seq 4096 --hardware h100-sxm";
    for (question, extra) in [
        (small, "--hardware a100-sxm-80gb"),
        (small, "--hardware a100-sxm-80gb --memory-cap 20GiB --fix pp=4"),
        ("--model llama-2-7b --gpus 8 --batch 32 --seq 1024", "--hardware a100-sxm-80gb --stack torchtitan --fix pp=2"),
        (small, "--hardware h100-sxm --precision fp8 --fix cp=2"),
        (mixture, "--hardware h100-sxm --fix pp=2"),
        (mixture, "--hardware h100-sxm --fix tp=2,ep=1,recompute=moe_act,layernorm"),
        (mixture, "--hardware gb200 --fix tp=2,pp=1,recompute=layernorm,moe"),
        // one further prediction, whose layers and logits count as layers
        (deep, "--fix tp=1,cp=1,pp=16,ep=16"),
        (deep, "--fix tp=1,cp=1,pp=8,ep=32,recompute=mla_up_proj,moe_act,layernorm --memory-cap 200GiB"),
    ] {
        let line = format!("plan {question} -q {extra} --format json --top 3");
        let answer = json(&line);
        assert_eq!(answer["schema_version"], 1);
        let plans = answer["plans"].as_array().unwrap();
        assert_eq!(plans.len(), 3, "{line}");
        assert!(answer["evaluated"].as_u64().unwrap() >= 3 && !answer["ruled_out"].as_object().unwrap().is_empty());
        let mut before = 0.0;
        for (rank, plan) in plans.iter().enumerate() {
            for key in [
                "schedule",
                "tp",
                "pp",
                "dp",
                "cp",
                "ep",
                "micro_batch_size",
                "chunks",
                "recompute",
                "zero",
                "iteration_s",
                "memory_bytes",
                "command",
                "flags",
            ] {
                assert!(plan.get(key).is_some(), "{key}");
            }
            let time = plan["iteration_s"].as_f64().unwrap();
            assert!(time >= before);
            // plan 1 is the simplest within 4 % of the fastest
            before = if rank == 0 { 0.0 } else { time };
            let command = plan["command"].as_str().unwrap().trim_start_matches("pipesim ");
            let predicted = &json(&format!("{command} -q --format json"))["predictions"][0];
            assert_eq!(predicted["iteration_s"], plan["iteration_s"], "{command}");
            let devices = predicted["memory"]["per_device"].as_array().unwrap();
            let fullest = devices.iter().map(|device| device["total"].as_u64().unwrap()).max().unwrap();
            assert_eq!(plan["memory_bytes"], fullest, "{command}");
            assert_eq!(predicted["memory"]["fits"], true);
        }
    }
}

/// Commands and flags of plans say on how many ranks each expert is, whatever the default. torchtitan shares experts like other layers
/// if they have no ranks of their own (`apply_moe_ep_tp`).
#[test]
fn plans_with_experts_say_how_experts_are_shared() {
    for stack in ["megatron-core", "megatron-bridge", "torchtitan"] {
        for (tp, ep) in [(1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 8)] {
            let answer = json(&format!(
                "plan --model qwen3-30b-a3b --hardware h100-sxm --stack {stack} --gpus 8 --batch 32 --seq 2048 -q --memory-cap 2000GiB \
                 --fix pp=1,tp={tp},ep={ep},recompute=none,micro-batch-size=1 --format json --top 1"
            ));
            let plan = &answer["plans"][0];
            let command = plan["command"].as_str().unwrap().trim_start_matches("pipesim ");
            let predicted = &json(&format!("{command} -q --format json"))["predictions"][0];
            assert_eq!(predicted["iteration_s"], plan["iteration_s"], "{command}");
            assert_eq!(predicted["memory"]["per_device"][0]["total"], plan["memory_bytes"], "{command}");
            let etp = if stack == "torchtitan" && ep == 1 { tp } else { 1 };
            assert_eq!((&predicted["ep"], &predicted["etp"]), (&ep.into(), &etp.into()), "{command}");
            let flags = |target: &str| plan["flags"][target].as_str().unwrap_or_default().to_string();
            if stack == "torchtitan" {
                let degree = word_after(&flags("torchtitan"), "--parallelism.expert_parallel_degree");
                assert_eq!(degree, (ep > 1).then(|| ep.to_string()), "{command}");
                continue;
            }
            let says = |text: &str| flags("megatron").contains(text) || flags("megatron-bridge").contains(text);
            let size = says("--expert-tensor-parallel-size 1") && says("model.expert_tensor_parallel_size=1");
            assert_eq!(size, tp > 1, "{command}: the default is the tensor-parallel size");
            let refused = plan["refused"]["torchtitan"].as_str().unwrap_or_default();
            assert!(
                flags("torchtitan").is_empty() && refused.contains("cannot train this plan"),
                "{command}: {refused}"
            );
        }
    }
}

/// The word after `name` among options.
fn word_after(options: &str, name: &str) -> Option<String> {
    options.split_whitespace().skip_while(|word| *word != name).nth(1).map(str::to_string)
}

#[test]
fn flags_are_those_of_the_programs() {
    let flags = |extra: &str| {
        let (code, out, err) = run(&format!("{SMALL} {extra}"));
        assert_eq!(code, 0, "{extra}: {err}");
        out
    };
    let megatron = flags(
        "--to megatron --fix tp=2,pp=2,chunks=3,micro-batch-size=1,zero=1,recompute=full,sequence-parallel=on,cp=1,layers=6/6/6/6/6/6",
    );
    for part in [
        "--tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 2",
        "--num-layers-per-virtual-pipeline-stage 6",
        "--sequence-parallel",
        "--micro-batch-size 1 --global-batch-size 32 --seq-length 1024",
        "--use-distributed-optimizer",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "--bf16",
    ] {
        assert!(megatron.contains(part), "{part} in {megatron}");
    }
    let block = flags("--to megatron --fix tp=2,pp=2,cp=1,recompute=block:3");
    let layers = "--recompute-granularity full --recompute-method block --recompute-num-layers 3";
    assert!(block.contains(layers), "{block}");
    let bridge = flags("--to megatron-bridge --fix tp=2,pp=2,layers=19/17");
    assert!(bridge.contains("model.tensor_model_parallel_size=2") && bridge.contains("'\"Et*19|t*17L\"'"), "{bridge}");
    let titan = "--model llama-2-7b --to torchtitan --stack torchtitan --fix tp=2,pp=2,dp=2 -s zb-v";
    let flags_of = |extra: &str| {
        let small = SMALL.replace("--model gpt2-large ", "");
        let (code, out, err) = run(&format!("{small} {extra}"));
        assert_eq!(code, 0, "{extra}: {err}");
        out
    };
    let newest = flags_of(titan);
    let word = |key: &str| word_after(&newest, &format!("--parallelism.{key}"));
    assert_eq!(word("pipeline_parallel_schedule").as_deref(), Some("ZBVZeroBubble"), "{newest}");
    assert_eq!(word("tensor_parallel_degree").as_deref(), Some("2"), "{newest}");
    let old: toml::Table = flags_of(&format!("{titan} --framework-version 0.2")).parse().unwrap();
    let parallelism = old["parallelism"].as_table().unwrap();
    assert_eq!(parallelism["pipeline_parallel_schedule"].as_str(), Some("ZBVZeroBubble"));
    assert_eq!(parallelism["tensor_parallel_degree"].as_integer(), Some(2));
    let every = flags_of(&format!("{} --framework-version 0.2 --fix recompute=every:2", titan.replace("zb-v", "1f1b")));
    let every: toml::Table = every.parse().unwrap();
    assert_eq!(every["activation_checkpoint"]["mode"].as_str(), Some("selective"));
    assert_eq!(every["activation_checkpoint"]["selective_ac_option"].as_integer(), Some(2));
    let (code, _, err) = run(&format!("{SMALL} --fix recompute=every:2 --to megatron"));
    assert!(code == 2 && err.contains("cannot train this plan"), "{code} {err}");
    let deepspeed: Value =
        serde_json::from_str(&flags("--to deepspeed --stack megatron-deepspeed --fix pp=2,zero=1")).unwrap();
    let of = |key: &str| deepspeed[key].as_u64().unwrap();
    assert_eq!(of("train_batch_size"), 32);
    assert_eq!(deepspeed["zero_optimization"]["stage"], 1);
    let replicas = of("train_batch_size") / of("train_micro_batch_size_per_gpu") / of("gradient_accumulation_steps");
    assert!(4 % replicas == 0, "8 GPUs in pipelines of 2");
    let parts = "plan --model qwen3-30b-a3b --hardware h100-sxm --gpus 16 --batch 64 --seq 2048 -q --fix tp=2,ep=1,recompute=moe_act,layernorm --to";
    let (_, megatron, _) = run(&format!("{parts} megatron"));
    // whose default is the tensor-parallel size
    assert!(megatron.contains("--expert-tensor-parallel-size 1"), "{megatron}");
    assert!(megatron.contains("--recompute-granularity selective --recompute-modules moe_act layernorm"), "{megatron}");
    let (_, bridge, _) = run(&format!("{parts} megatron-bridge"));
    assert!(bridge.contains("model.recompute_modules='[moe_act,layernorm]'"), "{bridge}");
    let (code, _, err) = run(&format!("{parts} torchtitan"));
    assert!(code == 2 && err.contains("torchtitan") && err.contains("cannot train this plan"), "{code} {err}");
    let deep = "plan --model deepseek-v3 --hardware h100-sxm --gpus 256 --batch 256 --seq 4096 -q --memory-cap 400GiB";
    let (_, megatron, err) = run(&format!("{deep} --fix tp=1,cp=1,pp=8,ep=32,chunks=1,recompute=none --to megatron"));
    assert!(megatron.contains("--pipeline-model-parallel-layout 'Et*") && megatron.contains("mL'"), "{megatron}{err}");
    let (code, _, err) = run(&format!("{SMALL} --to megatron -s zb-v --fix pp=4"));
    assert!(code == 2 && err.contains("Megatron-LM has no zb-v"), "{code} {err}");
}

#[test]
fn files_and_formats_hold_the_plans() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let names = ["plan.html", "plan.svg", "plan.png", "plan.pdf", "plan.json", "plan.csv"].map(at);
    let outputs: String = names.iter().map(|name| format!(" -o {name}")).collect();
    let (code, table, err) = run(&format!("{SMALL}{outputs} --tables"));
    assert_eq!(code, 0, "{err}");
    for part in [
        "Best layouts of gpt2-large",
        "layouts considered",
        "slower by a lower bound",
        "of its step is computation",
        "pipesim predict --model gpt2-large",
        "--tensor-model-parallel-size",
    ] {
        assert!(table.contains(part), "{part}:\n{table}");
    }
    let read = |name: &str| fs::read(name).unwrap();
    let text = |name: &str| String::from_utf8(read(name)).unwrap();
    assert!(text(&names[0]).contains("<svg") && text(&names[0]).contains("model.tensor_model_parallel_size"));
    assert!(text(&names[1]).starts_with("<svg") && text(&names[1]).contains("time against memory"));
    assert!(read(&names[2]).starts_with(b"\x89PNG") && read(&names[3]).starts_with(b"%PDF"));
    let written: Value = serde_json::from_str(&text(&names[4])).unwrap();
    assert_eq!(written["plans"].as_array().unwrap().len(), 10);
    let csv = text(&names[5]);
    assert!(csv.starts_with("rank,gpus,schedule,tp,pp,dp,") && csv.lines().count() == 11);
    assert_eq!(run(&format!("{SMALL} --format csv")).1, csv);
    assert!(run(&format!("{SMALL} --format md")).1.contains("| plan | tp |"));
}

/// The answer begins with at most six lines, in the figures of the JSON; tables are shown if they are asked for.
#[test]
fn the_answer_comes_first_and_tables_on_demand() {
    let mixture = "plan --model qwen3-30b-a3b --hardware h100-sxm --gpus 16 --batch 64 --seq 2048 --fix pp=2 -q";
    let tight = &format!("{SMALL} --memory-cap 8GiB");
    for question in [SMALL, mixture, tight] {
        let (answer, text) = (json(&format!("{question} --format json")), run(question).1);
        let first: Vec<&str> = text.split("\n\n").next().unwrap().lines().collect();
        let words = first.iter().flat_map(|line| line.split_whitespace()).count();
        assert!((4..=6).contains(&first.len()) && words <= 140, "{} lines, {words} words:\n{text}", first.len());
        let plan = &answer["plans"][0];
        for degree in ["tp", "pp", "dp"] {
            assert!(first[1].contains(&format!("{degree} {}", plan[degree])), "{text}");
        }
        let tokens = plan["tokens_per_second_per_gpu"].as_f64().unwrap().round() as u64;
        assert!(first[2].replace(',', "").contains(&tokens.to_string()), "{tokens}: {text}");
        assert!(!text.contains("layouts considered") && text.contains("pipesim predict --model"), "{text}");
        let margin = &answer["memory_margin"];
        let is_tight = margin["left_bytes"].as_u64().unwrap() < margin["error_bytes"].as_u64().unwrap();
        assert_eq!(is_tight, text.contains("less than the mean error of predicted memory"), "{text}");
        let (code, with_tables, _) = run(&format!("{question} --tables"));
        assert!(code == 0 && with_tables.contains("layouts considered") && with_tables.starts_with(&first.join("\n")));
    }
}

/// `even` takes the fastest prediction, `low` leaves the mean error of predicted memory.
#[test]
fn a_risk_changes_which_plan_is_taken() {
    let tight = format!("{SMALL} --memory-cap 8GiB --format json --risk");
    let [low, usual, even] = ["low", "usual", "even"].map(|risk| json(&format!("{tight} {risk}")));
    let seconds = |plan: &Value| plan["iteration_s"].as_f64().unwrap();
    let limit = f64::from(1 << 30) * 8.0 / 1.056;
    for plan in low["plans"].as_array().unwrap() {
        assert!(plan["memory_bytes"].as_f64().unwrap() <= limit, "{plan}");
    }
    assert_eq!(low["memory_margin"]["sentence"], "");
    let fastest = even["plans"].as_array().unwrap().iter().map(seconds).fold(f64::INFINITY, f64::min);
    assert_eq!(seconds(&even["plans"][0]), fastest);
    assert!(seconds(&usual["plans"][0]) >= fastest);
}

/// Each number of GPUs has the plan of a question about it alone; days, dollars and efficiency follow from that.
#[test]
fn numbers_of_gpus_are_compared_and_a_deadline_names_the_smallest() {
    let folder = tempfile::tempdir().unwrap();
    let priced = folder.path().join("priced.toml");
    fs::write(&priced, "base = \"a100-sxm-80gb\"\ndollars_per_gpu_hour = 1.5\n").unwrap();
    let question = format!("plan --model gpt2-large --hardware {} --batch 32 --seq 1024 -q", priced.display());
    let found = json(&format!("{question} --gpus 8,1,4,3 --tokens 10B --days 1.5 --format json"));
    let sizes = found["sizes"]["clusters"].as_array().unwrap();
    let gpus: Vec<u64> = sizes.iter().map(|one| one["gpus"].as_u64().unwrap()).collect();
    assert_eq!(gpus, [1, 3, 4, 8]);
    let mut first = None;
    let mut in_time = Vec::new();
    for one in sizes {
        let gpus = one["gpus"].as_f64().unwrap();
        let alone = run(&format!("{question} --gpus {gpus} --top 1 --format json"));
        let Ok(alone) = serde_json::from_str::<Value>(&alone.1) else {
            assert!(alone.2.contains(one["refused"].as_str().unwrap()) && one["days"].is_null(), "{one}: {}", alone.2);
            continue;
        };
        let iteration = alone["plans"][0]["iteration_s"].as_f64().unwrap();
        assert_eq!(one["iteration_s"].as_f64().unwrap(), iteration);
        let speed = 32.0 * 1024.0 / iteration;
        let days = 10e9 / speed / 86_400.0;
        let smallest = *first.get_or_insert(speed / gpus);
        for (key, expected) in [
            ("tokens_per_second", speed),
            ("efficiency", speed / gpus / smallest),
            ("days", days),
            ("dollars", days * 24.0 * gpus * 1.5),
        ] {
            let value = one[key].as_f64().unwrap();
            assert!((value / expected - 1.0).abs() < 1e-9, "{key} of {gpus} GPUs: {value}, expected {expected}");
        }
        in_time.extend((days <= 1.5).then_some(gpus));
    }
    assert!(in_time.len() < 3 && in_time.first() == found["sizes"]["smallest"].as_f64().as_ref(), "{in_time:?}");
    let text = run(&format!("{question} --gpus 1,4,8 --tokens 10B --days 1.5")).1;
    assert!(text.contains("The smallest that ends 10B tokens in 1.5 days"), "{text}");
    let text = run(&format!("{question} --gpus 1,4 --tokens 10B --days 0.1")).1;
    assert!(text.contains("No number of GPUs ends 10B tokens in 0.1 days"), "{text}");
    let (code, _, err) = run(&format!("{question} --gpus 4 --days 3"));
    assert!(code == 2 && err.contains("--tokens"), "{err}");
    for (option, part) in [("--tokens 3X", "300B"), ("--tokens 1B --days -1", "above 0"), ("--tokens 0", "300B")] {
        let (code, _, err) = run(&format!("{question} --gpus 4 {option}"));
        assert!(code == 2 && err.contains(part), "{option}: {err}");
    }
}

/// A journal is begun, extended, and refused by another question.
#[test]
fn a_search_goes_on_from_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.journal");
    let line = format!("{SMALL} --resume {}", path.display());
    let first = run(&line);
    assert_eq!(first.0, 0, "{}", first.2);
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(run(&line).1, first.1);
    let other = run(&line.replace("--batch 32", "--batch 64"));
    assert!(other.0 == 2 && other.2.contains("expected the journal of this question"), "{}", other.2);
}

/// Questions without an answer, and what the one line about each must say: what was found, and the smallest change that helps.
const IMPOSSIBLE: &[(&str, &str)] = &[
    (
        "-s seq1f1b:slices=2 --fix pp=4",
        "plans are of forwards and backwards of whole micro-batches, found seq1f1b:slices=2",
    ),
    // names
    ("--model llama-3-71b", "llama-3-70b"),
    ("--model nothing.json", "nothing.json"),
    ("--hardware h101-sxm", "h100-sxm"),
    ("--hardware none.toml", "none.toml"),
    ("--stack megatron-kore", "megatron-core"),
    ("-s 2f2b", "1f1b"),
    ("-s mine.star", "mine.star"),
    ("-s interleaved-1f1b:w=2", "w"),
    ("--to nemo", "megatron"),
    ("--objective speed", "time"),
    ("--precision int8", "bf16"),
    ("--attention sparse", "flash"),
    ("-o plan.docx", ".html"),
    ("-o plan.svg -o plan.svg", "leave one out"),
    // numbers
    ("--gpus 0", "expected 1 or more"),
    ("--gpus many", "expected a whole number"),
    ("--gpus 64..8", "write 8..64"),
    ("--batch 0", "expected 1 or more"),
    ("--seq 0", "expected 1 or more"),
    ("--top 0", "expected 1 or more"),
    ("--memory-cap 80", "write 80GiB"),
    ("--memory-cap 80G", "write 80GiB"),
    ("--memory-cap eighty", "--memory-cap"),
    // what is fixed
    ("--fix tp", "write it as in tp=8"),
    ("--fix tp=", "write tp=8"),
    ("--fix tp=0", "write tp=8"),
    ("--fix tp=three", "write tp=8"),
    ("--fix tq=4", "did you mean tp?"),
    ("--fix zero=4", "0, 1, 2, 3"),
    ("--fix recompute=most", "none, selective, full"),
    ("--fix sequence-parallel=maybe", "on or off"),
    ("--fix recompute=moe_act", "which it does not have"),
    ("--fix recompute=full,moe_act", "write it alone"),
    ("--fix ep=2", "leave ep out"),
    ("--fix layers=a/b", "layers=20,20,21,19"),
    ("--fix layers=3/4", "add up to the model's 36"),
    ("--fix layers=18/18,pp=4", "leave"),
    ("--fix layers=9,9,9,pp=4", "add up to the model's 36"),
    ("--fix sequence-parallel=on,tp=1", "leave one of the two out"),
    // GPUs that do not divide
    ("--gpus 64 --fix tp=6", "choose tp=4 or tp=8"),
    ("--gpus 64 --fix pp=48", "choose pp=32 or pp=64"),
    ("--gpus 64 --fix dp=5", "choose dp=4 or dp=8"),
    ("--gpus 64 --fix tp=8,pp=8,dp=2", "ask for --gpus 128"),
    ("--gpus 64 --fix tp=2,pp=2,dp=2,cp=2", "ask for --gpus 16"),
    ("--gpus 14 --fix tp=7", "heads"),
    ("--gpus 64 --fix pp=64", "stages"),
    ("--gpus 8 --fix dp=8 --batch 12", "choose --batch 8"),
    ("--batch 134217728", "ask for a smaller --batch"),
    ("--fix micro-batch-size=5", "choose --batch 30"),
    ("--fix dp=4,micro-batch-size=16", "--batch 64"),
    ("--fix pp=2,chunks=40", "fewer chunks"),
    // what the software or the hardware cannot do
    ("--precision fp8", "bf16"),
    ("--stack fsdp --fix pp=4", "leave pp out"),
    ("--seq 4096", "1024"),
    ("--objective cost", "dollars_per_gpu_hour"),
    // memory
    ("--memory-cap 2GiB", "smallest needs"),
    ("--memory-cap 12GiB --fix zero=0,tp=1,pp=1", "leave zero out"),
    ("--memory-cap 1GiB --gpus 1", "GiB"),
    ("--model llama-3-405b --gpus 8 --seq 8192", "ask for --gpus"),
];

#[test]
fn impossible_questions_get_one_line_with_the_smallest_change() {
    assert!(IMPOSSIBLE.len() >= 50);
    let mut wrong = Vec::new();
    for (extra, part) in IMPOSSIBLE {
        let mut words: Vec<String> =
            "plan --model gpt2-large --hardware a100-sxm-80gb --gpus 8 --batch 32 --seq 1024 -q"
                .split(' ')
                .map(str::to_string)
                .collect();
        // an option given again replaces the usual value
        let mut given = extra.split_whitespace().peekable();
        while let Some(option) = given.next() {
            let value = given.next().unwrap_or_default().to_string();
            let known = words.iter().position(|word| word == option).filter(|_| option != "-o");
            match known {
                Some(at) => words[at + 1] = value,
                None => words.extend([option.to_string(), value]),
            }
        }
        let (code, out, err) = run(&words.join(" "));
        let lines = err.lines().filter(|line| !line.trim().is_empty()).count();
        // clap adds the values that it accepts, and where the help is
        let is_short = lines == 1 || err.contains("For more information") || err.contains("possible values");
        if code != 2 || !out.is_empty() || !err.contains(part) || !is_short || err.contains("a bug in pipesim") {
            wrong.push(format!("{extra}: exit code {code}, expected '{part}', found:\n{err}{out}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), IMPOSSIBLE.len(), wrong.join("\n"));
}

/// The files of a question, each with another text for the same name: a model in Hugging Face's and in pipesim's form, hardware, the
/// file that it is based on, software, and two schedules.
const FILES: [(&str, &str, &str); 7] = [
    (
        "config.json",
        r#"{"model_type": "gpt2", "n_layer": 4, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}"#,
        r#"{"model_type": "gpt2", "n_layer": 8, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}"#,
    ),
    (
        "shape.json",
        r#"{"arch": "gpt", "layers": 4, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50257}"#,
        r#"{"arch": "gpt", "layers": 4, "hidden": 1536, "heads": 12, "ffn": 3072, "vocab": 50257}"#,
    ),
    ("machine.toml", "base = \"base.toml\"\n", "base = \"base.toml\"\npower_watts = 200\n"),
    ("base.toml", "base = \"a100-sxm-80gb\"\n", "base = \"a100-sxm-80gb\"\nmemory_gib = 2\n"),
    ("stack.toml", "base = \"megatron-core\"\n", "base = \"megatron-core\"\ntensor_exposed = 1\nlogit_bytes = 8\n"),
    ("mine.star", "def device(r, p, m):\n    return m * F + m * B\n", "def device(r, p, m):\n    return m * (F + B)\n"),
    (
        "mine.csv",
        "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n",
        "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n",
    ),
];

/// Every option of `plan` with another value than in the question; the last ones only change what is shown.
const OTHER_VALUES: [(&str, &str); 27] = [
    ("--model", "shape.json"),
    ("--hardware", "h100-sxm"),
    ("--gpus", "4"),
    ("--batch", "16"),
    ("--seq", "256"),
    ("--memory-cap", "3GiB"),
    ("--stack", "torchtitan"),
    ("--framework-version", "0.18"),
    ("--schedules", "mine.csv"),
    ("--fix", "pp=2,recompute=full"),
    ("--precision", "fp32"),
    ("--attention", "plain"),
    ("--objective", "tokens-per-gpu"),
    ("--risk", "even"),
    ("--resume", "other.journal"),
    ("--top", "1"),
    ("--tokens", "1B"),
    ("--days", "1"),
    ("--tables", ""),
    ("--to", "pipesim"),
    ("--mine", "pp=2"),
    ("--calibrate", "runs.csv"),
    ("--format", "json"),
    ("--output", "plan.csv"),
    ("--save-question", "question.toml"),
    ("--ascii", ""),
    ("--quiet", ""),
];

/// A journal goes on only with the same question of files with the same contents; then the answer is that without a journal, to the byte.
#[test]
fn a_journal_knows_every_file_and_option() {
    let folder = tempfile::tempdir().unwrap();
    let write = |which: usize, other: bool| {
        let (name, text, changed) = FILES[which];
        fs::write(folder.path().join(name), if other { changed } else { text }).unwrap();
    };
    (0..FILES.len()).for_each(|which| write(which, false));
    fs::write(folder.path().join("runs.csv"), "dp,measured\n2,0.5\n").unwrap();
    let plan = |changes: &[(&str, &str)], journal: Option<&str>| {
        let mut options = vec![
            ("--model", "config.json"),
            ("--hardware", "machine.toml"),
            ("--gpus", "2"),
            ("--batch", "8"),
            ("--seq", "128"),
            ("--stack", "stack.toml"),
            ("--schedules", "mine.star"),
            ("--fix", "pp=2"),
            ("--top", "3"),
        ];
        for change in changes {
            match options.iter().position(|known| known.0 == change.0) {
                Some(at) => options[at] = *change,
                None => options.push(*change),
            }
        }
        options.retain(|option| !(option.0 == "--top" && changes.iter().any(|change| change.0 == "--to")));
        options.extend(journal.map(|name| ("--resume", name)));
        let mut command = Command::new(PROGRAM);
        command.arg("plan").current_dir(folder.path());
        for (option, value) in options {
            command.args([option, value].iter().filter(|word| !word.is_empty()));
        }
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let check = |what: &str, changes: &[(&str, &str)], journal: &str, must_be_refused: bool| {
        let (code, out, err) = plan(changes, Some(journal));
        if code == Some(2) && err.contains("expected the journal of this question") {
            assert!(must_be_refused, "{what}: {err}");
            return;
        }
        assert!(!must_be_refused, "{what}: the journal of another question was taken");
        let fresh = plan(changes, None);
        assert_eq!((code, out), (fresh.0, fresh.1), "{what}: {err}");
    };
    for (which, (name, ..)) in FILES.iter().enumerate() {
        let journal = format!("{which}.journal");
        let uses = match *name {
            "shape.json" => vec![("--model", *name)],
            "mine.csv" => vec![("--schedules", *name)],
            _ => Vec::new(),
        };
        let first = plan(&uses, Some(&journal));
        assert_eq!(first.0, Some(0), "{name}: {}", first.2);
        check(name, &uses, &journal, false);
        write(which, true);
        check(name, &uses, &journal, true);
        write(which, false);
    }
    let first = plan(&[], Some("whole.journal"));
    assert_eq!(first.0, Some(0), "{}", first.2);
    for (at, change) in OTHER_VALUES.iter().enumerate() {
        let before_resume = at < OTHER_VALUES.iter().position(|(option, _)| *option == "--resume").unwrap();
        if change.0 != "--resume" {
            check(change.0, &[*change], "whole.journal", before_resume);
        }
    }
    let (_, help, _) = run("plan --help");
    let options = help.lines().filter_map(|line| line.trim_start().strip_prefix("-s, ").or(Some(line.trim_start())));
    let options = options.filter_map(|line| line.strip_prefix("-o, ").or(line.strip_prefix("-q, ")).or(Some(line)));
    let options: Vec<&str> =
        options.filter(|line| line.starts_with("--")).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(options.len() >= OTHER_VALUES.len(), "{options:?}");
    // a file of a question, or a job, has values of the other options
    let is_file = |option: &str| option == "--question" || option.starts_with("--job");
    let unknown = |option: &&&str| !is_file(option) && !OTHER_VALUES.iter().any(|(known, _)| known == *option);
    assert_eq!(options.iter().filter(unknown).collect::<Vec<_>>(), Vec::<&&str>::new(), "no other value is listed");
}
