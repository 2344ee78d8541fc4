//! Specifications of models: parameters, FLOPs, saved activations and stages, against published figures.

use pipesim::internals::model_spec::{gpt2, of_hub, unknown};
use pipesim::models::{
    BLOCK, EMBEDDING, Gpt2Config, HEAD, Outline, Storage, TransformerConfig, model_spec, read_huggingface,
    transformer_named,
};
use pipesim::{Kind, MicroBatch, Placement};

fn parameters(name: &str) -> u128 {
    transformer_named(name).unwrap().spec().parameters()
}

/// Counts of the published checkpoints; for GPT-3 with the digits of arXiv 2005.14165, table D.1; for Nemotron-4, embeddings and
/// the rest, with those of arXiv 2402.16819 and 2406.11704.
#[test]
fn gpt_presets_have_the_published_parameters() {
    assert_eq!(parameters("gpt-512m-plan"), 220_384_256);
    assert_eq!(parameters("bloom-176b"), 176_247_271_424);
    assert_eq!(parameters("mpt-7b"), 6_649_286_656);
    for (name, millions) in [("gpt-3-6.7b", 6_660.0), ("gpt-3-13b", 12_850.0), ("gpt-3-175b", 174_600.0)] {
        let found = parameters(name) as f64 / 1e6;
        assert!((found / millions - 1.0).abs() < 5e-4, "{name}: {found}");
    }
    for (name, embeddings, rest) in [("nemotron-4-15b", 3.2, 12.5), ("nemotron-4-340b", 9.4, 331.6)] {
        let config = transformer_named(name).unwrap();
        let found = 2.0 * (config.vocabulary * config.channels) as f64 / 1e9;
        assert!((found - embeddings).abs() < 0.06, "{name}: {found}");
        assert!((parameters(name) as f64 / 1e9 - found - rest).abs() < 0.06, "{name}");
    }
    // 29.95B in its publisher's table
    assert!((parameters("mpt-30b") as f64 / 1e9 - 29.95).abs() < 0.01);
}

fn gpt2(name: &str) -> Gpt2Config {
    Gpt2Config::preset(name).unwrap()
}

#[test]
fn gpt2_presets_have_the_published_parameters() {
    let published =
        [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)];
    for (name, parameters) in published {
        assert_eq!(gpt2(name).spec().parameters(), parameters, "{name}");
    }
    assert_eq!(gpt2("gpt2").parameter_count(), 124_475_904, "llm.c pads the vocabulary to 50304");
}

#[test]
fn tensors_have_the_order_of_llm_cs_files() {
    let spec = gpt2("gpt2").spec();
    let names: Vec<&str> = spec.tensors().map(|(_, tensor)| tensor.name).collect();
    assert_eq!(names, gpt2::TENSOR_NAMES);
    // llm.c's table of elements of GPT-2 124M
    let lengths = gpt2("gpt2").transformer().tensor_lengths();
    assert_eq!(lengths[..5], [38_633_472, 786_432, 9_216, 9_216, 21_233_664]);
}

#[test]
fn gpt2_flops_match_the_published_formulas() {
    // Narayanan et al. 2021 (arXiv 2104.04473): 96 B s l h² (1 + s/6h + V/16lh) with full recomputation of the blocks
    for (name, config) in Gpt2Config::PRESETS {
        let micro = MicroBatch { sequences: 3, tokens: 128 };
        let [b, s, l, h, v] = [3, 128, config.layers, config.channels, config.vocabulary].map(|size| size as u128);
        let spec = config.spec();
        let [f, i, w, full] = [Kind::F, Kind::I, Kind::W, Kind::B].map(|kind| spec.flops(kind, micro));
        assert_eq!(full, i + w);
        let recomputed = spec.parts[1].flops(Kind::F, micro) * l;
        assert_eq!(
            f + full + recomputed,
            96 * b * s * l * h * h + 16 * b * s * s * l * h + 6 * b * s * h * v,
            "{name}"
        );
        assert_eq!(f + full, 72 * b * s * l * h * h + 12 * b * s * s * l * h + 6 * b * s * h * v, "{name}");
        // Qi et al. 2023 (arXiv 2401.10241), table 1, of a block
        let block = [Kind::F, Kind::I, Kind::W].map(|kind| spec.parts[1].flops(kind, micro));
        let sbh = s * b * h;
        assert_eq!(block, [sbh * (24 * h + 4 * s), sbh * (24 * h + 8 * s), sbh * 24 * h], "{name}");
    }
}

#[test]
fn a_block_saves_16_c_elements_per_token_for_each_half_of_the_backward() {
    let config = gpt2("gpt2");
    let (micro, n, c) = (MicroBatch { sequences: 4, tokens: 64 }, 256, 768);
    let storage = Storage::whole(0, 2, 128, 3);
    let left = |part: usize, kind| config.spec().parts[part].left(kind, micro, &storage);
    // inputs of the four products 7C, gradients of their outputs 9C; two LayerNorms' sums
    assert_eq!(left(1, Kind::F), n * (16 * c * 2 + 4 * (4 + 12)));
    assert_eq!(left(1, Kind::I), n * 16 * c * 2 + 2 * 3 * 2 * c * 4);
    assert_eq!(left(2, Kind::F), n * ((2 * c + 50304) * 2 + 8));
    assert_eq!(left(2, Kind::I), n * (c + 50304) * 2 + 3 * 2 * c * 4);
    assert_eq!([left(0, Kind::F), left(0, Kind::I), left(1, Kind::W)], [0, n * c * 2, 0]);
}

#[test]
fn the_gradient_norm_has_one_square_per_group() {
    let spec = gpt2("tiny").spec();
    assert_eq!(spec.squares(), 8 + 3, "token and position embedding, blocks, final LayerNorm");
    assert_eq!([spec.square(EMBEDDING, 0), spec.square(BLOCK, 5), spec.square(HEAD, 0)], [0, 7, 10]);
}

#[test]
fn a_device_stores_the_tied_embedding_once() {
    let spec = gpt2("gpt2").spec();
    let [first, last]: [_; 2] = spec.split(2, None).unwrap().try_into().unwrap();
    let same = |elements| elements;
    assert_eq!(spec.device_elements([&first, &last], same), 124_475_904);
    let apart: u64 = [&first, &last].map(|stage| spec.device_elements([stage], same)).iter().sum();
    assert_eq!(apart, 124_475_904 + 50304 * 768);
    assert_eq!(spec.tied_elements(same), 50304 * 768);
}

#[test]
fn llama_presets_have_the_published_parameters() {
    let published: [(&str, u128); 9] = [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_241_732_096),
    ];
    for (name, parameters) in published {
        assert_eq!(model_spec(name).unwrap().parameters(), parameters, "{name}");
    }
}

#[test]
fn llama_flops_are_six_per_weight_and_token_plus_attention() {
    let (spec, micro) = (model_spec("llama-3-8b").unwrap(), MicroBatch { sequences: 1, tokens: 8192 });
    let weights = spec.parameters() - (128_256 * 4096 + 65 * 4096); // without embedding and norms
    let attention = 12 * 32 * 8192 * 8192 * 4096;
    let found: u128 = [Kind::F, Kind::I, Kind::W].map(|kind| spec.flops(kind, micro)).iter().sum();
    assert_eq!(found, 6 * weights * 8192 + attention);
}

#[test]
fn an_untied_head_is_not_exchanged() {
    let spec = model_spec("llama-2-7b").unwrap();
    let (placement, stages) = (Placement::linear(4), spec.split(4, None).unwrap());
    assert_eq!(spec.outline().exchange(&placement, &stages), None);
    assert_eq!(spec.squares(), 1 + 32 + 2);
    assert_eq!(spec.tied_elements(|elements| elements), 0);
}

#[test]
fn a_stage_is_one_run_of_the_layers_of_all_parts() {
    let outline =
        Outline { parts: vec![("in", 1), ("dense", 3), ("mixture", 5), ("out", 1)], order: Vec::new(), tied: None };
    let stages = outline.split(3, Some(&[2, 4, 2])).unwrap();
    let runs = |stage: usize| stages[stage].runs().iter().map(|(_, run)| run.clone()).collect::<Vec<_>>();
    assert_eq!(runs(0), [0..1, 0..2, 0..0, 0..0]);
    assert_eq!(runs(1), [0..0, 2..3, 0..3, 0..0]);
    assert_eq!(runs(2), [0..0, 3..3, 3..5, 0..1]);
}

#[test]
fn only_tied_tensors_on_two_devices_are_exchanged() {
    let exchange = |placement: &Placement, tied| {
        let outline = Outline::transformer(8, tied);
        outline.exchange(placement, &outline.split(placement.stages() as usize, None).unwrap())
    };
    assert_eq!(exchange(&Placement::linear(4), true), Some([0, 3]));
    assert_eq!(exchange(&Placement::linear(4), false), None);
    assert_eq!(exchange(&Placement::linear(1), true), None);
    assert_eq!(exchange(&Placement::zigzag("v", 4, 2), true), None);
    assert_eq!(exchange(&Placement::bidirectional(4, 1).unwrap(), true), None);
}

#[test]
fn published_configs_give_the_published_models() {
    let llama = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "max_position_embeddings": 8192}"#;
    assert_eq!(read_huggingface(llama).unwrap().config.spec().parameters(), 70_553_706_496);
    let gpt2 = r#"{"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}"#;
    assert_eq!(read_huggingface(gpt2).unwrap().config.spec().parameters(), 124_439_808);
}

#[test]
fn invalid_configs_are_rejected_in_one_line() {
    let said = |text: &str| read_huggingface(text).unwrap_err().to_string();
    assert!(said("[]").contains("an object"));
    assert!(said("{").contains("invalid JSON"));
    let unknown = said(r#"{"model_type": "phi2", "hidden_size": 3072}"#);
    assert!(unknown.contains("found 'phi2' (did you mean phi?)"), "{unknown}");
    let other = said(&llama_3(r#""model_type": "qwen3""#));
    assert!(other.contains("expected 'architectures' of a model of type 'qwen3', found 'LlamaForCausalLM'"), "{other}");
    assert!(
        said(r#"{"model_type": "llama", "hidden_size": -1}"#).contains("'hidden_size' to be a whole number, found -1")
    );
    assert!(said(r#"{"model_type": "llama", "num_hidden_layers": 2}"#).contains("'hidden_size', found none"));
    assert!(said(r#"{"hidden_size": 64, "num_hidden_layers": 2}"#).contains("expected 'model_type', found none"));
    let text = r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 5, "n_embd": 768, "vocab_size": 10}"#;
    assert!(said(text).contains("multiple"));
    let text = r#"{"model_type": "gpt2", "n_layer": 1.5, "n_head": 12, "n_embd": 768, "vocab_size": 10}"#;
    assert!(said(text).contains("'n_layer' to be a whole number, found 1.5"));
    let text = r#"{"model_type": "gpt2", "n_layer": 0, "n_head": 12, "n_embd": 768, "vocab_size": 10}"#;
    assert!(said(text).contains("layers"));
}

const LLAMA_3: &str = r#""architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0",
    "use_cache": true, "vocab_size": 128256"#;

fn llama_3(more: &str) -> String {
    format!("{{{LLAMA_3}, {more}}}")
}

#[test]
fn harmless_keys_are_ignored_and_unknown_ones_are_listed() {
    let described = read_huggingface(&llama_3(r#""model_type": "llama""#)).unwrap();
    assert_eq!((described.config.spec().parameters(), described.unknown), (8_030_261_248, Vec::new()));
    let described =
        read_huggingface(&llama_3(r#""model_type": "llama", "flux_factor": 3, "sliding_window": null"#)).unwrap();
    assert_eq!(described.unknown, ["flux_factor"]);
    // Qwen2.5 7B: biases for queries, keys and values; a window that is not used
    let qwen = r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "sliding_window": 131072, "tie_word_embeddings": false, "use_mrope": false, "use_sliding_window": false, "vocab_size": 152064}"#;
    let described = read_huggingface(qwen).unwrap();
    assert_eq!((described.config.spec().parameters(), described.config.window), (7_615_616_512, None));
    assert_eq!(described.unknown, Vec::<String>::new());
    let gpt2 = r#"{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
        "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index",
        "summary_use_proj": true, "task_specific_params": {"text-generation": {"max_length": 50}}, "vocab_size": 50257}"#;
    assert_eq!(read_huggingface(gpt2).unwrap().unknown, Vec::<String>::new());
}

#[test]
fn biases_and_windows_are_read() {
    let plain = llama_3(r#""model_type": "llama""#)
        .replace(r#""attention_bias": false, "#, "")
        .replace(r#""mlp_bias": false, "#, "");
    let of = |more: &str| read_huggingface(&plain.replacen('{', &format!("{{{more}, "), 1)).unwrap().config;
    let parameters = |config: TransformerConfig| config.spec().parameters();
    let plain = parameters(of(r#""attention_bias": false"#));
    // queries 4096, keys and values 1024 each, the projection 4096; gate and up 14336 each, down 4096
    assert_eq!(parameters(of(r#""attention_bias": true"#)) - plain, 32 * (4096 + 2 * 1024 + 4096));
    assert_eq!(parameters(of(r#""mlp_bias": true"#)) - plain, 32 * (2 * 14336 + 4096));
    assert_eq!(of(r#""sliding_window": 4096"#).window.map(|window| window.tokens), Some(4096));
    assert_eq!(of(r#""sliding_window": 4096, "use_sliding_window": false"#).window, None);
    let full = vec!["\"full_attention\""; 32].join(", ");
    assert_eq!(of(&format!("\"sliding_window\": 4096, \"layer_types\": [{full}]")).window, None);
}

#[test]
fn keys_of_unsupported_features_are_rejected_by_name() {
    for (kind, keys) in [
        ("llama", r#""num_local_experts": 8, "num_experts_per_tok": 2"#),
        ("qwen2", r#""num_experts": 64, "moe_intermediate_size": 1408"#),
    ] {
        let said = read_huggingface(&llama_3(&format!("{keys}, \"model_type\": \"{kind}\""))).unwrap_err().to_string();
        assert!(said.contains(&format!("'{kind}' without keys of other families, found '")), "{said}");
    }
    for (keys, key) in [
        (r#""kv_lora_rank": 512"#, "kv_lora_rank"),
        (r#""num_nextn_predict_layers": 1"#, "num_nextn_predict_layers"),
        (r#""mamba_d_state": 16"#, "mamba_d_state"),
        (r#""linear_num_key_heads": 16"#, "linear_num_key_heads"),
        (r#""qkv_bias": true"#, "qkv_bias"),
        (r#""use_qk_norm": true"#, "use_qk_norm"),
        (r#""attention_chunk_size": 8192"#, "attention_chunk_size"),
        (r#""vision_config": {"depth": 32}"#, "vision_config"),
        (r#""add_cross_attention": true"#, "add_cross_attention"),
        (r#""layer_types": ["full_attention", "linear_attention"]"#, "linear_attention"),
    ] {
        let said = read_huggingface(&llama_3(&format!("{keys}, \"model_type\": \"llama\""))).unwrap_err().to_string();
        assert!(said.contains(key) && !said.contains('\n'), "{said}");
    }
    // keys whose value disables the feature
    let none = r#""num_local_experts": 0, "kv_lora_rank": null, "add_cross_attention": false, "model_type": "llama""#;
    assert_eq!(read_huggingface(&llama_3(none)).unwrap().unknown, Vec::<String>::new());
}

#[test]
fn unknown_models_get_suggestions() {
    for (name, expected) in [
        ("llama3-70", "did you mean llama-3-70b?"),
        ("llama-70b", "did you mean llama-2-70b, llama-3-70b or llama-3.1-70b?"),
        ("gpt3", "did you mean gpt-3-6.7b, gpt-3-13b or gpt-3-175b?"),
        ("Llama-3-70B-Instruct", "did you mean llama-3-70b?"),
        ("olmoe-1b-7b", "no model is called 'olmoe-1b-7b'; known: tiny"),
        ("llama-5-70b", "no model is called 'llama-5-70b'; known: tiny"),
    ] {
        assert!(unknown(name).contains(expected), "{name}: {}", unknown(name));
    }
    assert_eq!(of_hub("meta-llama/Llama-3-70B"), Some("Llama-3-70B"));
    assert!(unknown("Llama-3-70B").ends_with("write `model` llama-3-70b"));
    for path in ["models/config.json", "./gpt2", "a/b/gpt2", "/gpt2", "~/gpt2", "gpt2/", "gpt2"] {
        assert_eq!(of_hub(path), None, "{path}");
    }
}
