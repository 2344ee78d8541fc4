//! Mixtures of experts and their relatives: sizes, FLOPs and memory against published figures; shape files and Hugging Face's.

use crate::support::{golden_json, golden_list, root};
use pipesim::models::{
    Experts, MemoryModel, Operation, PREDICTION, Tensor, TransformerConfig, hardware, model_names, read_huggingface,
    read_shape, stack, transformer_named,
};
use pipesim::{Kind, MicroBatch, ParallelConfig, Recompute, Selection, Zero};
use serde_json::{Map, Value, json};

fn preset(name: &str) -> TransformerConfig {
    transformer_named(name).unwrap_or_else(|| panic!("{name}"))
}

/// The table's name of a preset.
fn table_name(name: &str) -> String {
    name.replace("llama4-", "llama-4-")
}

/// Whether the table counts a tensor: it leaves out norms and biases.
fn is_counted(tensor: &Tensor) -> bool {
    let axes = tensor.shape.len() - usize::from(tensor.is_of_experts);
    axes >= 2
}

/// Parameters of the model, and those that a token passes, without norms and biases.
fn counted(config: &TransformerConfig) -> [f64; 2] {
    let spec = config.spec();
    let mut sums = [0.0; 2];
    for part in spec.parts.iter().filter(|part| part.name != PREDICTION) {
        let all = part.parameters(is_counted) as f64 * part.count as f64;
        let routed = part.parameters(|tensor| is_counted(tensor) && tensor.is_of_experts) as f64 * part.count as f64;
        let (chosen, experts) = part.chosen_experts().unwrap_or((1, 1));
        sums[0] += all;
        sums[1] += all - routed * (1.0 - chosen as f64 / experts as f64);
    }
    sums
}

/// Total and active parameters of the 14 mixtures of the table, to its last digit.
#[test]
fn parameters_of_mixtures_are_the_published_ones() {
    let table = golden_json("moe/models.json");
    let models: Vec<_> = table.as_object().unwrap().iter().filter(|(name, _)| !name.starts_with('_')).collect();
    assert_eq!(models.len(), 14);
    for (name, row) in models {
        let config = preset(&table_name(name));
        let expected = ["params_total_b", "params_active_b"].map(|key| row[key].as_f64().unwrap());
        for (found, expected) in counted(&config).into_iter().zip(expected) {
            assert!((found / 1e9 - expected).abs() <= 0.005 + 1e-9, "{name}: {found} {expected}");
        }
        let active = config.spec().active_parameters() as f64 / 1e9;
        assert!((active / expected[1] - 1.0).abs() < 2e-3, "{name}: {active}");
    }
}

/// Numbers of parameters in the models' files on Hugging Face, without buffers of routers.
#[test]
fn parameters_are_those_of_the_published_files() {
    for (name, expected) in [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-2-27b", 27_227_128_320),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_630_071_296),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v2-lite", 15_706_484_224),
        // 256 or 384 offsets of a router per layer are no parameters
        ("deepseek-v3", 671_026_419_200 - 58 * 256),
        ("kimi-k2", 1_026_408_232_448 - 60 * 384),
    ] {
        assert_eq!(preset(name).spec().parameters(), expected, "{name}");
    }
    // DeepSeek-V3's README: 14 G for multi-token prediction, with the embedding and head that it shares
    let v3 = preset("deepseek-v3").spec();
    let whole = v3.prediction_parameters() + 2 * 129_280 * 7168;
    assert!((13.0..14.5).contains(&(whole as f64 / 1e9)), "{whole}");
}

/// The rows of the book's table of models, with all digits: name, parameters, active parameters of mixtures, FLOPs per token.
#[test]
fn the_table_of_models_is_what_they_are() {
    let page = std::fs::read_to_string(root().join("docs/src/models.md")).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        for (place, cell) in cells.iter().enumerate() {
            let name = cell.trim_matches('`');
            let Some(config) = transformer_named(name).filter(|_| name.len() + 2 == cell.len()) else { continue };
            let spec = config.spec();
            let tokens = if config.positions > 0 { config.positions.min(4096) } else { 4096 };
            let micro = MicroBatch { sequences: 1, tokens };
            let flops =
                [Kind::F, Kind::B].map(|kind| spec.flops(kind, micro) as f64).iter().sum::<f64>() / tokens as f64;
            let active = config.experts.map(|_| spec.active_parameters() as f64);
            let expected = [Some(spec.parameters() as f64), active, Some(flops)].into_iter().flatten();
            for (expected, text) in expected.zip(&cells[place + 1..]) {
                let digits = text.split_once('.').map_or(0, |(_, after)| after.len() as i32);
                let stated: f64 = text.replace(',', "").parse().unwrap_or_else(|_| panic!("{line}"));
                assert!((stated - expected / 1e9).abs() <= 0.501 * 10f64.powi(-digits), "{name}: {stated} {expected}");
            }
            found.insert(name.to_string());
        }
    }
    let others = ["tiny", "small", "base", "gpt-512m-plan"];
    let missing: Vec<String> = model_names()
        .filter(|name| !found.contains(name) && !others.contains(&name.as_str()))
        .filter(|name| !name.starts_with("llama-3.1") && name != "llama-3.3-70b")
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// FLOPs of a token in F and B by a second formula: 6 per weight that it passes, and 12 per score and channel.
#[test]
fn flops_follow_from_active_parameters_and_scores() {
    let tokens = 4096;
    let micro = MicroBatch { sequences: 1, tokens };
    for name in model_names().filter(|name| preset(name).layers > 12) {
        let config = preset(&name);
        let spec = config.spec();
        let found = (spec.flops(Kind::F, micro) + spec.flops(Kind::B, micro)) as f64 / tokens as f64;
        // the embedding is looked up, not multiplied, as are positions
        let untied = if config.tied { 0 } else { config.vocabulary * config.channels };
        let looked_up = untied + config.positions * config.channels;
        let products = 6.0 * (counted(&config)[1] - looked_up as f64);
        let scores: f64 = (0..config.layers)
            .map(|layer| {
                let slides = config.full_every == 0 || layer % config.full_every != config.full_every - 1;
                let t = tokens as f64;
                let seen = match config.window.filter(|_| slides).filter(|window| window.tokens < tokens) {
                    None => t,
                    Some(window) if window.is_chunked => window.tokens as f64,
                    Some(window) => window.tokens as f64 * (2.0 - window.tokens as f64 / t),
                };
                let value = config.latent.map_or(config.head_size, |latent| latent.value_size);
                6.0 * (config.heads * (config.head_size + value)) as f64 * seen
            })
            .sum();
        let main = found - prediction(&config, tokens);
        let expected = products + scores;
        assert!((main / expected - 1.0).abs() < 1e-9, "{name}: {main} {expected}");
    }
}

/// FLOPs per token of layers that predict further tokens, with their logits and the product that joins two rows.
fn prediction(config: &TransformerConfig, tokens: usize) -> f64 {
    let without = TransformerConfig { prediction_layers: 0, ..*config }.spec();
    let micro = MicroBatch { sequences: 1, tokens };
    let of = |kind| config.spec().flops(kind, micro) as f64 - without.flops(kind, micro) as f64;
    (of(Kind::F) + of(Kind::B)) / tokens as f64
}

/// The TFLOP/s that publications print, from the FLOPs here: they count half of the scores, and multi-token prediction where it
/// was trained. gpt-oss is counted otherwise there.
#[test]
fn flops_are_those_that_publications_print() {
    let mut compared = 0;
    for row in golden_list("moe/rows.json") {
        let (Some(printed), Some(seconds)) = (row["tflops_printed"].as_f64(), row["iteration_s"].as_f64()) else {
            continue;
        };
        let config = read_shape(&row["model"].to_string(), row["seq"].as_u64().unwrap() as usize).unwrap();
        let micro = MicroBatch { sequences: 1, tokens: row["seq"].as_u64().unwrap() as usize };
        let spec = config.spec();
        let flops = |of: fn(&Operation) -> bool| -> f64 {
            let parts =
                spec.parts.iter().flat_map(|part| part.operations.iter().map(move |operation| (part.count, operation)));
            let found = parts.filter(|(_, operation)| of(operation));
            found
                .map(|(count, operation)| {
                    count as f64
                        * [Kind::F, Kind::B].map(|kind| operation.flops(kind, micro) as f64).iter().sum::<f64>()
                })
                .sum()
        };
        let products = flops(|operation| !operation.has_heads()) + flops(Operation::has_heads) / 2.0;
        let all = products * row["batch"].as_f64().unwrap();
        let found = all / seconds / row["gpus"].as_f64().unwrap() / 1e12;
        let error = found / printed - 1.0;
        if row["model"]["base"] == "gpt-oss-20b" {
            continue;
        }
        assert!(error.abs() < 0.03, "{}: {found} {printed}", row["id"]);
        compared += 1;
    }
    assert_eq!(compared, 107);
}

/// Every model of both tables of published steps is a shape file; those cut down or changed in a run differ from the preset only
/// in that.
#[test]
fn models_of_published_steps_are_shape_files() {
    for (file, presets) in [("moe/rows.json", true), ("throughputs/measured.json", false)] {
        let rows = golden_list(file);
        for row in &rows {
            let config = read_shape(&row["model"].to_string(), row["seq"].as_u64().unwrap() as usize)
                .unwrap_or_else(|error| panic!("{}: {error}", row["id"]));
            let Some(base) = row["model"]["base"].as_str().filter(|_| presets) else { continue };
            let known = preset(&table_name(base));
            let same = TransformerConfig { layers: known.layers, prediction_layers: known.prediction_layers, ..config };
            assert_eq!(counted(&same)[1].round(), counted(&known)[1].round(), "{}", row["id"]);
        }
    }
    // entries of the table of models are shape files, too
    for (name, row) in golden_json("moe/models.json").as_object().unwrap() {
        let Some(row) = row.as_object().filter(|_| !name.starts_with('_')) else { continue };
        let mut row: Map<String, Value> = row.clone();
        row.insert("arch".to_string(), json!("llama"));
        assert_eq!(
            counted(&read_shape(&json!(row).to_string(), 4096).unwrap()),
            counted(&preset(&table_name(name))),
            "{name}"
        );
    }
}

#[test]
fn keys_that_say_what_is_not_modelled_are_rejected() {
    let rows = golden_list("moe/rows.json");
    let plain = rows.iter().find(|row| row["model"]["base"] == "deepseek-v3").unwrap()["model"].clone();
    let refused = |key: &str, value: Value| {
        let mut model = plain.as_object().unwrap().clone();
        model.insert(key.to_string(), value);
        read_shape(&json!(model).to_string(), 4096).unwrap_err().to_string()
    };
    for (key, value, expected) in [
        ("mamba_layers", json!(4), "Mamba layers are not modelled"),
        ("mamba_state_dim", json!(0), "Mamba layers are not modelled"),
        ("linear_attention_every", json!(2), "linear attention is not modelled"),
        ("hybrid_pattern", json!("M-M*"), "hybrid layers are not modelled"),
        ("vision_layers", json!(24), "encoders of images are not modelled"),
        ("index_top_k", json!(2048), "sparse attention is not modelled"),
        ("hyper_connections", json!(4), "hyper-connections are not modelled"),
        ("flux", json!(1), "'flux' is not a known key"),
        ("attention", json!("csa"), "others are not modelled"),
        ("attention", json!("gated-delta"), "delta-net layers are not modelled"),
        ("attention", json!("gqa"), "expected 'attention' mla with 'q_lora_rank'"),
        ("arch", json!("mamba"), "Mamba layers are not modelled"),
        ("act", json!("xielu"), "expected 'act' to be one of"),
        ("pos", json!("nope-every-4"), "expected 'pos' to be one of"),
        ("sliding_every", json!(6), "other patterns of windows are not modelled"),
        ("moe", json!(false), "'moe'"),
        ("top_k", json!(300), "at most the model's 256 experts"),
        ("router_groups", json!(7), "router groups that divide"),
        ("top_k", json!(129), "at most the 128 experts of a token's 4 router groups"),
        ("experts", json!("many"), "'experts' to be a whole number"),
        ("params", json!(1e9), "1.00 G parameters"),
        ("ffn", json!(1), "'ffn' and 'dense_ffn' to be equal"),
    ] {
        let found = refused(key, value);
        assert!(found.contains(expected) && !found.contains('\n'), "{key}: {found}");
    }
    assert!(read_shape("[]", 1).is_err() && read_shape("{}", 1).unwrap_err().to_string().contains("'arch'"));
}

/// Every file of the folder `models` is read completely, under its own name.
#[test]
fn every_file_of_a_model_is_read() {
    for entry in std::fs::read_dir(root().join("models")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().to_string();
        let known = preset(&name);
        known.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("model_type") {
            let described = read_huggingface(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(described.config, known, "{name}");
            // of Llama 4, only the text model
            assert_eq!(
                described.unknown.len(),
                usize::from(name.starts_with("llama-4")),
                "{name}: {:?}",
                described.unknown
            );
        } else {
            assert_eq!(read_shape(&text, 4096).unwrap(), known, "{name}");
        }
    }
}

/// The tables' vocabulary of Moonlight, and Grok-1's norms, are those of a benchmark; the rest is as on Hugging Face.
#[test]
fn configurations_on_hugging_face_are_those_of_the_benchmark() {
    for name in ["grok-1", "moonlight-16b-a3b"] {
        let path = root().join(format!("tests/configs/{name}.json"));
        let config = read_huggingface(&std::fs::read_to_string(path).unwrap()).unwrap().config;
        let known = preset(name);
        let config = TransformerConfig { vocabulary: known.vocabulary, norms: known.norms, ..config };
        assert_eq!(config.spec().parameters(), known.spec().parameters(), "{name}");
        assert_eq!((config.latent, config.experts), (known.latent, known.experts), "{name}");
    }
}

/// Numbers that the tables of experts do not have: BLOOM normalizes its embedding (arXiv 2211.05100, section 3.2.2), and squared ReLU
/// leaves zeros, which products multiply with less power, in a shape file as in a model by name.
#[test]
fn shape_files_have_embedding_norms_and_squared_relu() {
    let bloom = preset("bloom-176b");
    let c = bloom.channels;
    let layer = 12 * c * c + 13 * c;
    assert_eq!(bloom.spec().parameters(), (250_880 * c + 2 * c + 70 * layer + 2 * c) as u128);
    let squared = json!({"arch": "llama", "act": "squared_relu", "gated_mlp": false, "layers": 32, "hidden": 6144, "heads": 48,
        "kv_heads": 8, "ffn": 24_576, "vocab": 256_000});
    assert_eq!(read_shape(&squared.to_string(), 4096).unwrap(), preset("nemotron-4-15b"));
}

fn memory(config: &TransformerConfig, layout: &ParallelConfig) -> Vec<pipesim::models::DeviceMemory> {
    let graph = Selection::new(layout.pp, layout.micro).resolve("1f1b", &pipesim::Costs::default()).unwrap().graph;
    let stages = config.spec().split(layout.pp as usize, None).unwrap();
    let model = MemoryModel::new(config, layout, &stack(&layout.stack).unwrap());
    model.memory(hardware("b200").unwrap().memory_bytes(), &stages, graph.schedule()).per_device
}

/// GiB that PyTorch allocated in steps of DeepSeek-V2 and V3 with 4 layers, one of them dense, on 8 B200s: measured and published
/// by SimuMax (MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.md), fullest rank, 4096 tokens per micro-batch.
#[test]
fn memory_of_deepseek_is_what_was_measured() {
    for (name, ep, pp, dp, measured) in [
        ("deepseek-v2", 8, 1, 8, 45.63),
        ("deepseek-v2", 4, 2, 4, 44.70),
        ("deepseek-v3", 8, 1, 8, 104.30),
        ("deepseek-v3", 4, 2, 4, 114.00),
    ] {
        let known = preset(name);
        let experts = known.experts.map(|experts| Experts { dense_first: 1, ..experts });
        let config = TransformerConfig { layers: 4, prediction_layers: 0, experts, ..known };
        let layout =
            ParallelConfig { ep, pp, dp, micro: 4, sequence: 4096, zero: Zero::Optimizer, ..ParallelConfig::default() };
        let devices = memory(&config, &layout);
        let found = devices.iter().map(|device| device.allocated).max().unwrap() as f64 / f64::from(1 << 30);
        println!(
            "{name} ep {ep} pp {pp}: {found:.2} GiB, measured {measured}: {:+.1} %",
            100.0 * (found / measured - 1.0)
        );
        assert!((found / measured - 1.0).abs() < 0.05, "{name} ep {ep} pp {pp}: {found} {measured}");
    }
}

/// Experts are replicated by edp, everything else by dp: 2 bytes of weights, 4 of gradients and 12 of states, which replicas share.
#[test]
fn experts_are_sharded_over_their_own_replicas() {
    let config = TransformerConfig { layers: 4, ..preset("mixtral-8x7b") };
    let base = ParallelConfig { dp: 8, sequence: 1024, zero: Zero::Optimizer, ..ParallelConfig::default() };
    let experts = 4 * 8 * 3 * 4096 * 14_336_u64;
    for (ep, edp) in [(1, 8), (2, 4), (8, 1)] {
        let layout = ParallelConfig { ep, ..base.clone() };
        assert_eq!(layout.edp(), edp);
        let of = memory(&config, &layout)[0].of_which;
        let held = experts / u64::from(ep);
        assert_eq!(
            [of.expert_weights, of.expert_gradients, of.expert_optimizer],
            [2 * held, 4 * held, 12 * held / edp],
            "{ep}"
        );
    }
    // each expert on 2 ranks, attention on 4
    let layout = ParallelConfig { tp: 4, dp: 2, ep: 4, etp: 2, sequence_parallel: true, ..base };
    assert_eq!((layout.edp(), memory(&config, &layout)[0].of_which.expert_weights), (1, 2 * experts / 8));
    assert_eq!(layout.expert_rows(2), 1024 / 4 * 2 * 2);
}

/// Megatron's capacity pads the rows that experts receive and save.
#[test]
fn memory_of_experts_grows_with_their_capacity() {
    let config = TransformerConfig { layers: 4, ..preset("mixtral-8x7b") };
    let of = |routing: &str| {
        let routing = routing.parse().unwrap();
        let layout = ParallelConfig { dp: 8, ep: 8, sequence: 4096, routing, ..ParallelConfig::default() };
        memory(&config, &layout)[0].of_which
    };
    let (one, more) = (of("balanced"), of("capacity:1.5"));
    assert_eq!(more.dispatch_buffers, one.dispatch_buffers * 3 / 2);
    // the places of copies and the router's scores do not grow
    let grown = more.expert_activations as f64 / one.expert_activations as f64;
    assert!((1.45..=1.5).contains(&grown), "{grown}");
    assert_eq!(more.attention_activations, one.attention_activations);
}

/// What is recomputed is not saved: the second product's input of experts, the norms' outputs, ...
#[test]
fn recomputed_parts_are_not_saved() {
    let config = TransformerConfig { prediction_layers: 0, layers: 4, ..preset("deepseek-v3") };
    let layout = ParallelConfig { ep: 8, dp: 8, sequence: 4096, zero: Zero::Optimizer, ..ParallelConfig::default() };
    let held = |recompute: &str| {
        let recompute: Recompute = recompute.parse().unwrap();
        memory(&config, &ParallelConfig { recompute, ..layout.clone() })[0].activations
    };
    let all = held("none");
    let rows = 4096_u64 * 2;
    let less = |recompute: &str| all - held(recompute);
    assert_eq!(less("moe_act"), rows * 8 * 2048); // 3 layers are dense, 1 is a mixture
    assert_eq!(less("layernorm"), rows * 4 * 2 * 7168);
    assert_eq!(less("mlp"), rows * 3 * 3 * 18_432);
    assert_eq!(less("shared_experts"), rows * 3 * 2048);
    assert_eq!(less("mla_up_proj"), rows * 4 * 128 * (192 + 192 + 128));
    assert!(less("core_attn") < all / 50);
    let moe = less("moe");
    assert!(
        moe > less("moe_act") + less("shared_experts") && held("full") < held("moe,mlp,mla_up_proj,layernorm"),
        "{moe}"
    );
    assert_eq!(less("moe_act,mlp"), less("moe_act") + less("mlp"));
    assert_eq!("moe_act,layernorm".parse::<Recompute>().unwrap().to_string(), "moe_act,layernorm");
    assert!("moe_act,full".parse::<Recompute>().unwrap_err().to_string().contains("write it alone"));
    assert!("attention".parse::<Recompute>().unwrap_err().to_string().contains("core_attn"));
}
