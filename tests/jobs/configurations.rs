//! Configurations of torchtitan, nanotron, Megatron-Bridge and DeepSpeed are read as their own parsers read them; damaged ones end with an error.

use pipesim_jobs::{Job, JobError, Launch, Missing, Setting, Settings, SourceFile, Sources, config};
use serde_json::Value;

/// Returns the rows that the scripts in `parsers/` wrote; `PIPESIM_ROWS` names another file of rows.
fn rows() -> impl Iterator<Item = Value> {
    let usual = || crate::in_repository("tests/jobs/configurations.jsonl");
    let file = std::env::var("PIPESIM_ROWS").map_or_else(|_| usual(), Into::into);
    let text = std::fs::read_to_string(file).expect("a file of rows");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    rows.into_iter()
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_string()
}

fn read(name: &str, text: &str, arguments: &[&str], gpus: Option<u32>) -> Result<Option<Job>, JobError> {
    let files = vec![SourceFile { name: name.to_string(), text: text.to_string() }];
    let arguments = arguments.iter().map(|word| (*word).to_string()).collect();
    config::read(&Sources { files, arguments, gpus, ..Sources::default() })
}

fn read_row(row: &Value) -> Result<Option<Job>, JobError> {
    let arguments: Vec<&str> = row["arguments"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let gpus = row["gpus"].as_u64().and_then(|gpus| u32::try_from(gpus).ok());
    read(&text(row, "name"), &text(row, "text"), &arguments, gpus)
}

/// Returns what differs between a job's reading and a row's.
fn differences(row: &Value) -> Vec<String> {
    let job = match read_row(row) {
        Ok(Some(job)) => job,
        other => return vec![format!("not read: {other:?}")],
    };
    let found = serde_json::to_value(&job.reading).expect("a reading is JSON");
    let expected = row["reading"].as_object().expect("a table");
    expected
        .iter()
        .filter(|(key, value)| found[key.as_str()] != **value)
        .map(|(key, value)| format!("{key}: expected {value}, found {}", found[key.as_str()]))
        .collect()
}

#[test]
fn configurations_are_read_as_their_own_parsers_read_them() {
    let wrong: Vec<String> = rows()
        .enumerate()
        .map(|(number, row)| (number, text(&row, "form"), differences(&row)))
        .filter(|(_, _, differences)| !differences.is_empty())
        .map(|(number, form, differences)| format!("row {} ({form}): {}", number + 1, differences.join("; ")))
        .collect();
    assert!(rows().count() >= 100);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A generator of numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).expect("below a usize")
    }
}

const SPLINTERS: [&str; 12] =
    ["-1", "0", "99999999999", "null", "[]", "{", "\"", "true", "&a", "*a", "${model.name}", "\u{e9}"];

#[test]
fn damaged_configurations_end_with_a_reading_or_an_error() {
    let rows: Vec<Value> = rows().collect();
    let mut numbers = Numbers(1);
    for _ in 0..500 {
        let row = &rows[numbers.below(rows.len())];
        let mut text: Vec<char> = text(row, "text").chars().collect();
        for _ in 0..=numbers.below(4) {
            let place = numbers.below(text.len());
            match numbers.below(3) {
                0 => drop(text.drain(place..(place + numbers.below(12)).min(text.len()))),
                1 => text.truncate(place.max(1)),
                _ => drop(text.splice(place..place, SPLINTERS[numbers.below(SPLINTERS.len())].chars())),
            }
        }
        let damaged: String = text.into_iter().collect();
        let name = row["name"].as_str().unwrap_or_default();
        if let Err(error) = read(name, &damaged, &["--training.seq_len", "x"], Some(64)) {
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn hostile_configurations_end_with_one_error() {
    let bomb: String = (1..40).map(|level| format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1)).collect();
    let hostile = [
        ("deep.yaml", format!("model: {}", "[".repeat(1 << 20)), "expected"),
        ("deeper.yaml", format!("model:\n  {}x", "- ".repeat(1 << 20)), "at most 64 levels"),
        ("bomb.yaml", format!("a0: &a0 [x, x]\n{bomb}"), "at most 200000 values"),
        ("deep.json", format!("{{\"train_batch_size\": {}", "[".repeat(1 << 20)), "expected JSON"),
        ("deep.toml", format!("[model]\nname = {}", "[".repeat(1 << 20)), "expected TOML"),
        ("long.toml", format!("[training]\nseq_len = 1\nx = \"{}\"\ny = ", "x".repeat(1 << 24)), "expected TOML"),
        (
            "many.toml",
            format!("[training]\n{}", (0..30_000).map(|key| format!("k{key} = 1\n")).collect::<String>()),
            "at most 5000 values",
        ),
    ];
    for (name, text, part) in hostile {
        let error = read(name, &text, &[], None).expect_err(name).to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}

#[test]
fn wrong_values_are_errors_with_their_place() {
    let degree = |value: &str| format!("[model]\nflavor = \"8B\"\n\n[parallelism]\ntensor_parallel_degree = {value}\n");
    for (text, arguments, part) in [
        (
            degree("0"),
            [].as_slice(),
            "job.toml:5: expected `parallelism.tensor_parallel_degree` to be a whole number of at least 1, found 0",
        ),
        (degree("-2"), &[], "found -2"),
        (degree("\"x\""), &[], "found \"x\""),
        (degree("1.5"), &[], "found 1.5"),
        (degree("99999999999"), &[], "found 99999999999"),
        (degree("3"), &["--training.seq_len=1k"], "expected `training.seq_len`"),
        (degree("3"), &[], "expected a multiple of tp · pp · cp = 3 GPUs, found 64"),
        ("[training]\ncompile = 3\n".to_string(), &[], "expected `training.compile` to be true or false, found 3"),
    ] {
        let error = read("job.toml", &text, arguments, Some(64)).expect_err(&text).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn every_option_has_a_meaning() {
    let text = "[model]\nname = \"llama3\"\nflavor = \"8b\"\nconverters = [\"float8\"]\n[training]\nseqlen = 4096\nsteps = 10\n\
                [parallelism]\nenable_async_tensor_parallel = true\ntensor_parallel_degree = 2\n[activation_checkpoint]\nmode = \"full\"\nselective_ac_option = \"op\"\n";
    let job = read("job.toml", text, &[], None).expect("a job").expect("torchtitan's");
    let unknown: Vec<_> =
        job.unknown.iter().map(|one| (one.option.as_str(), one.nearest.as_deref(), one.place.as_str())).collect();
    assert_eq!(
        unknown,
        [("model.flavor = 8b", Some("8B"), "job.toml:3"), ("training.seqlen", Some("training.seq_len"), "job.toml:6")]
    );
    assert!(job.ignored.iter().any(|one| one == "training.steps 10"));
    assert!(job.ignored.iter().any(|one| one == "activation_checkpoint.selective_ac_option op"));
    assert_eq!(job.not_modelled.len(), 1);
    assert_eq!(job.not_modelled[0].option, "parallelism.enable_async_tensor_parallel true");
    assert_eq!(job.further["precision"], "fp8");
}

/// Every name that a framework's fields use is one that its vocabulary reads.
#[test]
fn names_that_are_read_are_in_the_vocabulary() {
    let folder = crate::in_repository("jobs/readings");
    let folder = folder.parent().expect("a folder").display();
    for framework in ["torchtitan", "nanotron", "deepspeed", "bridge"] {
        let table =
            |path: String| -> toml::Table { std::fs::read_to_string(&path).expect("a file").parse().expect("TOML") };
        let readings = table(format!("{folder}/readings/{framework}.toml"));
        let vocabulary = table(format!("{folder}/{framework}.toml"));
        let reads: Vec<&str> =
            vocabulary["reads"].as_array().expect("a list").iter().filter_map(|one| one.as_str()).collect();
        let fields =
            readings["fields"].as_table().expect("a table").values().filter_map(|names| names.as_array()).flatten();
        for name in fields.filter_map(|name| name.as_str()) {
            assert!(reads.contains(&name), "{framework}: {name}");
        }
        for name in vocabulary["unless"].as_table().into_iter().flatten().map(|(name, _)| name) {
            assert!(vocabulary["changes"].get(name).is_some(), "{framework}: {name}");
        }
    }
}

/// Returns the command of a program with options `--NAME VALUE` and words.
fn launch(program: &str, options: &[(&str, &str)], words: &[&str], world: Option<u32>) -> Launch {
    let setting = |(name, value): &(&str, &str)| Setting {
        name: (*name).to_string(),
        values: value.split_whitespace().map(str::to_string).collect(),
        place: "job.sh:1".to_string(),
        ..Setting::default()
    };
    let settings = Settings(options.iter().map(setting).collect());
    let words = words.iter().map(|word| (*word).to_string()).collect();
    Launch { program: program.to_string(), settings, words, world, ..Launch::default() }
}

fn of_launch(launch: &Launch, files: &[(&str, &str)]) -> Result<Option<Job>, JobError> {
    let file = |(name, text): &(&str, &str)| SourceFile { name: (*name).to_string(), text: (*text).to_string() };
    config::of_launch(launch, &Sources { files: files.iter().map(file).collect(), ..Sources::default() })
}

/// Facts: torchtitan's registry at b5bcd76c has 65,536 tokens per pass and 8,192 per sequence for Llama 3 70B, with 8-way tensor parallelism.
#[test]
fn commands_start_registered_configurations() {
    let options = [("module", "llama3"), ("config", "llama3_70b"), ("parallelism.tensor_parallel_degree", "4")];
    let job =
        of_launch(&launch("torchtitan.train", &options, &[], Some(64)), &[]).expect("a job").expect("torchtitan's");
    let reading = job.reading;
    assert_eq!((reading.layers, reading.hidden, reading.tp, reading.dp), (Some(80), Some(8192), Some(4), Some(16)));
    assert_eq!((reading.local_batch, reading.seq, reading.recompute.as_deref()), (Some(8), Some(8192), Some("full")));
    let wrong = [("module", "llama3"), ("config", "llama3_7b")];
    let error = of_launch(&launch("torchtitan.train", &wrong, &[], None), &[]).expect_err("no such configuration");
    assert!(error.to_string().contains("the nearest name is llama3_"), "{error}");
}

#[test]
fn commands_take_their_configuration_from_a_file_of_the_job() {
    let toml = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 2\n";
    let options =
        [("job.config_file", "./configs/job.toml"), ("training.local_batch_size", "2"), ("compile.enable", "")];
    let command = launch("torchtitan/train.py", &options, &[], Some(16));
    let job = of_launch(&command, &[("job.sh", ""), ("job.toml", toml)]).expect("a job").expect("torchtitan's");
    assert_eq!(
        (job.reading.local_batch, job.reading.global_batch, job.reading.compile),
        (Some(2), Some(16), Some(true))
    );
    let missing = JobError::Missing(vec![Missing::File { path: "./configs/job.toml".to_string() }]);
    assert_eq!(of_launch(&command, &[]), Err(missing));
    let megatron = launch("pretrain_gpt.py", &[("num-layers", "2"), ("deepspeed_config", "ds.json")], &[], None);
    assert_eq!(of_launch(&megatron, &[]), Ok(None));
    let recipe = launch("scripts/performance/setup_experiment.py", &[("model_recipe_name", "llama3_70b")], &[], None);
    let error = of_launch(&recipe, &[]).expect_err("a recipe's values are not known");
    assert!(error.to_string().contains("llama3_70b"), "{error}");
}

/// Facts: 4 GPUs of 2 sequences each, 8 times accumulated, are 64 sequences; full sharding is ZeRO's stage 3.
#[test]
fn commands_start_a_trainer() {
    let options = [
        ("model_name_or_path", "meta-llama/Llama-2-7b-hf"),
        ("per_device_train_batch_size", "2"),
        ("gradient_accumulation_steps", "8"),
        ("fsdp", "full_shard auto_wrap"),
        ("bf16", "True"),
        ("gradient_checkpointing", "True"),
        ("learning_rate", "2e-5"),
        ("model_max_length", "2048"),
    ];
    let job = of_launch(&launch("train.py", &options, &[], Some(4)), &[]).expect("a job").expect("a trainer's");
    let reading = &job.reading;
    assert_eq!((reading.global_batch, reading.num_microbatches, reading.zero), (Some(64), Some(8), Some(3)));
    assert_eq!((reading.recompute.as_deref(), reading.precision.as_deref()), (Some("full"), Some("bf16")));
    assert_eq!((job.model.as_deref(), job.stack.as_deref()), (Some("meta-llama/Llama-2-7b-hf"), Some("fsdp")));
    assert!(job.unknown.is_empty(), "{:?}", job.unknown);
    let config =
        r#"{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": true}}"#;
    let with_file = [("deepspeed", "ds.json"), ("per_device_train_batch_size", "4"), ("bf16", "false")];
    let job = of_launch(&launch("train.py", &with_file, &[], Some(8)), &[("ds.json", config)])
        .expect("a job")
        .expect("DeepSpeed's");
    let reading = &job.reading;
    assert_eq!((reading.micro_batch, reading.global_batch, reading.zero), (Some(4), Some(32), Some(2)));
    assert_eq!((job.framework.as_str(), reading.precision.as_deref()), ("deepspeed", Some("fp16")));
}

/// Facts: NeMo 1 has 2 nodes with 8 devices; tp 4 and pp 2 leave 2 replicas, and 64 sequences are 32 passes of each.
#[test]
fn commands_start_nemo() {
    let yaml = "trainer:\n  devices: 8\n  num_nodes: 1\n  precision: bf16\nmodel:\n  micro_batch_size: 1\n  global_batch_size: 64\n  \
                tensor_model_parallel_size: 4\n  pipeline_model_parallel_size: 2\n  encoder_seq_length: 4096\n  max_position_embeddings: \
                ${.encoder_seq_length}\n  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 11008\n  num_attention_heads: 32\n  \
                activation: fast-swiglu\n  sequence_parallel: true\n  optim:\n    name: distributed_fused_adam\n";
    let options = [("config-path", "conf"), ("config-name", "llama.yaml")];
    let words = ["trainer.num_nodes=2", "++model.activations_checkpoint_granularity=selective"];
    let command = launch("megatron_gpt_pretraining.py", &options, &words, None);
    let job = of_launch(&command, &[("conf/llama.yaml", yaml)]).expect("a job").expect("NeMo's");
    let reading = job.reading;
    assert_eq!((reading.world, reading.dp, reading.num_microbatches), (Some(16), Some(2), Some(32)));
    assert_eq!((reading.gated, reading.zero, reading.sequence_parallel), (Some(true), Some(1), Some(true)));
    assert_eq!((reading.recompute.as_deref(), reading.precision.as_deref()), (Some("core_attn"), Some("bf16")));
}
