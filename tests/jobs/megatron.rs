//! Options of Megatron-LM are read as its own parser reads them.

use pipesim_jobs::{Job, JobError, Launch, Missing, Setting, Settings, SourceFile, Sources, megatron};
use serde_json::Value;
use std::collections::BTreeMap;

/// Rows that the real parser read: see megatron.py.
const ROWS: &str = include_str!("megatron.json");

fn settings(words: &[&str]) -> Settings {
    let mut all = Settings::default();
    for word in words {
        match word.strip_prefix("--") {
            Some(name) => {
                all.0.push(Setting { name: name.to_string(), place: "job.sh:1".to_string(), ..Setting::default() })
            }
            None => all.0.last_mut().expect("an option comes first").values.push(word.to_string()),
        }
    }
    all
}

fn launch(words: &str, world: Option<u32>) -> Launch {
    let words: Vec<&str> = words.split_whitespace().collect();
    Launch { program: "pretrain_gpt.py".to_string(), settings: settings(&words), world, ..Launch::default() }
}

fn job(words: &str) -> Job {
    megatron::read(&launch(words, Some(8)), &Sources::default()).expect("a job")
}

fn read(row: &Value) -> Result<Job, JobError> {
    let words: Vec<&str> = row["arguments"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    megatron::read(&launch(&words.join(" "), row["world"].as_u64().map(|world| world as u32)), &Sources::default())
}

/// Names the keys in which a reading differs from that of the real parser.
fn differences(found: &Job, expected: &Value) -> Vec<String> {
    let found = serde_json::to_value(&found.reading).expect("a reading");
    let keys = expected.as_object().expect("a reading").iter();
    keys.filter(|(key, value)| found.get(key) != Some(value))
        .map(|(key, value)| format!("{key}: expected {value}, found {}", found[key]))
        .collect()
}

#[test]
fn every_row_is_read_as_the_real_parser_reads_it() {
    let rows: Vec<Value> = serde_json::from_str(ROWS).expect("a table");
    assert!(rows.len() >= 100);
    let mut wrong = Vec::new();
    for row in rows.iter().filter(|row| row.get("reading").is_some()) {
        let job = read(row).unwrap_or_else(|error| panic!("{}: {error}", row["arguments"]));
        let differ = differences(&job, &row["reading"]);
        if !differ.is_empty() {
            wrong.push(format!("{}: {}", row["arguments"], differ.join("; ")));
        }
    }
    assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn values_that_a_log_prints_are_the_same_job() {
    let rows: Vec<Value> = serde_json::from_str(ROWS).expect("a table");
    let printed: Vec<&Value> = rows.iter().filter(|row| row.get("printed").is_some()).collect();
    assert!(printed.len() >= 8);
    for row in printed {
        let values = row["printed"].as_object().expect("values").iter();
        let one = |(name, value): (&String, &Value)| Setting {
            name: name.clone(),
            values: vec![value.as_str().expect("a text").to_string()],
            ..Setting::default()
        };
        let settings = Settings(values.map(one).collect());
        let job = megatron::of_arguments(&settings, None, &Sources::default()).expect("a job");
        let differ = differences(&job, &row["reading"]);
        assert!(differ.is_empty(), "{}: {}", row["arguments"], differ.join("; "));
        assert!(job.unknown.is_empty(), "{:?}", job.unknown);
        let of_options = read(row).expect("a job");
        assert_eq!((&job.shape, &job.further), (&of_options.shape, &of_options.further), "{}", row["arguments"]);
    }
}

#[test]
fn options_are_sorted_by_what_they_mean() {
    let job = job(
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1 --seq-length 4096 --bf16 \
        --log-interval 1 --use-mcore-models --tp-comm-overlap --cp-comm-type p2p --exp-avg-dtype bf16 --num-layer 3",
    );
    assert_eq!(job.ignored, ["--log-interval 1", "--use-mcore-models", "--cp-comm-type p2p"]);
    let changes: Vec<&str> = job.not_modelled.iter().map(|one| one.option.as_str()).collect();
    assert_eq!(changes, ["--tp-comm-overlap", "--exp-avg-dtype bf16"]);
    assert_eq!(job.unknown[0].option, "--num-layer");
    assert_eq!(job.unknown[0].nearest.as_deref(), Some("--num-layers"));
    assert_eq!((job.framework.as_str(), job.stack.as_deref()), ("megatron-core", Some("megatron-core")));
}

#[test]
fn what_is_set_elsewhere_is_asked_for_at_once() {
    let mut launch = launch("--num-layers 2 --micro-batch-size 1 --save /x", Some(8));
    for (setting, name) in launch.settings.0.iter_mut().zip(["LAYERS", "2", "CHECKPOINTS"]) {
        setting.unresolved.push(name.to_string());
    }
    let parameter = Missing::Parameter { number: 2, used_by: "--micro-batch-size".to_string() };
    let variable = Missing::Variable { name: "LAYERS".to_string(), used_by: "--num-layers".to_string() };
    assert_eq!(megatron::read(&launch, &Sources::default()), Err(JobError::Missing(vec![variable, parameter])));
}

#[test]
fn settings_of_a_question_follow() {
    let mixture = "--num-experts 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-router-force-load-balancing";
    let overlap = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute --attention-backend unfused --cuda-graph-impl local \
        --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage 4";
    let expected = [
        ("attention", "plain"),
        ("cuda-graph", "full"),
        ("delay-wgrad", "true"),
        ("dispatcher", "hybridep"),
        ("moe-overlap", "true"),
        ("routing", "balanced"),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(name, value)| (name.into(), value.into())).into();
    let job = job(&format!("{mixture} {overlap}"));
    assert_eq!(job.further, expected);
    let groups = "--microbatch-group-size-per-virtual-pipeline-stage 4";
    assert!(job.not_modelled.iter().any(|one| one.option == groups), "{:?}", job.not_modelled);
}

/// Megatron's `parallel_state.py` cuts the data- and context-parallel ranks into instances of the optimizer; the fraction on the host is 1 unless
/// given (`arguments.py`).
#[test]
fn states_are_shared_by_instances_and_kept_on_the_host() {
    let read = |options: &str| {
        let options = format!(
            "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64 --micro-batch-size 1 --use-distributed-optimizer {options}"
        );
        megatron::read(&launch(&options, Some(32)), &Sources::default()).unwrap()
    };
    let all = read(
        "--tensor-model-parallel-size 2 --context-parallel-size 2 --num-distributed-optimizer-instances 4 --optimizer-cpu-offload",
    );
    assert_eq!([&all.further["shard"], &all.further["optimizer-offload"]], ["4", "1.0"]);
    assert!(all.not_modelled.is_empty(), "{:?}", all.not_modelled);
    let half = read("--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d");
    assert_eq!([&half.further["overlap-optimizer-offload"], &half.further["optimizer-offload"]], ["true", "0.5"]);
    assert!(!half.further.contains_key("shard"));
    let uneven = read("--num-distributed-optimizer-instances 3");
    assert_eq!(uneven.refused, ["Data parallel size should be divisible by partial DistOpt shard factor"]);
}

#[test]
fn a_hybrid_model_is_refused_as_a_model() {
    let job = job(
        "--hybrid-layer-pattern M*M-|M*M-/M* --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --pipeline-model-parallel-size 2",
    );
    assert_eq!((job.reading.layers, job.reading.mtp_layers), (Some(8), Some(1)));
    assert!(job.trained_model().is_err());
}

fn file(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_string(), text: text.to_string() }
}

#[test]
fn a_yaml_of_options_is_a_job() {
    let text = "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --bf16: true\n  \
        --tensor-model-parallel-size: ${TP}\n  --swiglu: false\n  --micro-batch-size: 4\n  --log-interval: 1\n";
    let mut sources = Sources { files: vec![file("model.yaml", text)], gpus: Some(8), ..Sources::default() };
    let missing = megatron::yaml::read(&sources).expect_err("a variable is missing");
    assert!(missing.to_string().contains("TP (for --tensor-model-parallel-size)"), "{missing}");
    sources.environment.insert("TP".to_string(), "2".to_string());
    let job = megatron::yaml::read(&sources).expect("a job").expect("a job of Megatron-LM");
    let read = &job.reading;
    assert_eq!((read.layers, read.ffn, read.gated), (Some(12), Some(2048), Some(false)));
    assert_eq!((read.tp, read.dp, read.global_batch), (Some(2), Some(4), Some(16)));
}

#[test]
fn a_primus_experiment_extends_its_model() {
    let experiment = "modules:\n  pre_trainer:\n    framework: megatron\n    model: ${MODEL:small.yaml}\n    overrides:\n      use_distributed_optimizer: false\n      \
        use_torch_fsdp2: true\n      global_batch_size: 32\n      fp8: hybrid\n";
    let mut sources = Sources { files: vec![file("job.yaml", experiment)], gpus: Some(8), ..Sources::default() };
    let path = "primus/configs/models/megatron/small.yaml".to_string();
    assert_eq!(megatron::yaml::read(&sources), Err(JobError::Missing(vec![Missing::File { path }])));
    sources.files.push(file("models/small.yaml", "extends:\n  - base.yaml\nnum_layers: 8\nnum_query_groups: 4\n"));
    sources.files.push(file("models/base.yaml", "hidden_size: 512\nnum_attention_heads: 8\nnum_layers: 2\ngroup_query_attention: true\nadd_bias_linear: false\n"));
    let job = megatron::yaml::read(&sources).expect("a job").expect("an experiment");
    let read = &job.reading;
    assert_eq!((read.layers, read.hidden, read.kv_heads), (Some(8), Some(512), Some(4)));
    assert_eq!((read.zero, read.distributed_optimizer, read.micro_batch), (Some(3), Some(false), Some(2)));
    assert_eq!((read.seq, read.precision.as_deref()), (Some(1024), Some("fp8-hybrid-delayed")));
    assert_eq!(job.shape["bias"], Value::Bool(false));
}

#[test]
fn ms_swift_takes_sizes_from_the_name_of_a_model() {
    let mut launch = launch(
        "--model Qwen/Qwen3-30B-A3B-Base --tensor_model_parallel_size 2 --sequence_parallel true --max_length 8192 --save_safetensors true",
        Some(16),
    );
    launch.program = "megatron sft".to_string();
    let job = megatron::read(&launch, &Sources::default()).expect("a job");
    let read = &job.reading;
    assert_eq!((read.layers, read.experts, read.moe_ffn, read.vocab), (Some(48), Some(128), Some(768), Some(151_936)));
    assert_eq!((read.micro_batch, read.global_batch, read.seq), (Some(1), Some(16), Some(8192)));
    assert_eq!((read.zero, read.recompute.as_deref(), read.etp), (Some(1), Some("core_attn"), Some(1)));
    assert_eq!((read.precision.as_deref(), read.sequence_parallel), (Some("bf16"), Some(true)));
    let model = job.trained_model().expect("a model").expect("a model");
    assert_eq!(model.setting, "qwen3-30b-a3b");
    assert!(job.unknown.is_empty() && job.not_modelled.is_empty());
}
