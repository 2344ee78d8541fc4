//! Files of models: which configurations are read exactly or refused and why, and keys that contradict each other.

use crate::support::{Dice, golden_json};
use pipesim::models::{TransformerConfig, model_names, read_huggingface, read_shape, transformer_named};
use pipesim::{Kind, MicroBatch};
use serde_json::{Map, Value, json};

fn said(config: &Value) -> String {
    read_huggingface(&config.to_string()).unwrap_err().to_string()
}

/// What the refusal of a model must name: parts that no built-in model has, or its type where all parts are known.
const REFUSED: [(&str, &[&str]); 2] = [
    ("deepseek-ai--DeepSeek-V4-Flash.json", &["compressed attention", "hyper-connections", "sparse attention"]),
    ("meta-llama--Llama-3.2-90B-Vision-Instruct.json", &["cross-attention"]),
];

/// Real configurations are read with the parameters that `transformers` counts, or refused by what is not modelled. A model that is
/// proposed instead is a mixture if the refused one is, and at most twice as large or half as large.
#[test]
fn real_configurations_are_read_exactly_or_refused_by_their_part() {
    let models = golden_json("models.json");
    let mut read = 0;
    for (file, model) in models.as_object().unwrap() {
        let text = model["config"].to_string();
        let Some((_, words)) = REFUSED.iter().find(|(name, _)| name == file) else {
            let spec = read_huggingface(&text).unwrap_or_else(|why| panic!("{file}: {why}")).config.spec();
            let found = [spec.parameters(), spec.active_parameters()].map(|count| count as u64);
            let expected = ["parameters", "active_parameters"].map(|key| model[key].as_u64().unwrap());
            assert_eq!(found, expected, "{file}");
            read += 1;
            continue;
        };
        let said = said(&model["config"]);
        assert!(words.iter().all(|word| said.contains(word)), "{file}: {said}");
        assert!(!said.contains("experts are not") && !said.contains("windows are not"), "{file}: {said}");
        let Some((_, name)) = said.split_once("`model` ") else { continue };
        let (like, experts) = (transformer_named(name).unwrap(), model["experts"].as_bool().unwrap());
        assert_eq!(like.experts.is_some(), experts, "{file}: {name}");
        let times = like.spec().parameters() as f64 / model["parameters"].as_u64().unwrap() as f64;
        assert!((0.45..2.2).contains(&times), "{file}: {name}");
    }
    assert_eq!((read, models.as_object().unwrap().len()), (33 - REFUSED.len(), 33));
}

/// Families under another name. Phi-4-mini is published as 3.84 billion; InternLM2-7B has the layers of a Llama.
#[test]
fn models_with_the_layers_of_another_family_are_read() {
    let phi = json!({"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "intermediate_size": 8192,
        "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200_064, "tie_word_embeddings": true,
        "partial_rotary_factor": 0.75, "original_max_position_embeddings": 4096});
    assert_eq!(read_huggingface(&phi.to_string()).unwrap().config.spec().parameters(), 3_836_021_760);
    // the class of a text model is named like that of the model with an encoder
    let gemma = json!({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 26, "hidden_size": 1152,
        "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262_144, "sliding_window": 512});
    assert_eq!(read_huggingface(&gemma.to_string()).unwrap().config.spec().parameters(), 999_885_952);
    let intern = json!({"model_type": "internlm2", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92_544, "bias": false, "tie_word_embeddings": false});
    let layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336 + 2 * 4096;
    let found = read_huggingface(&intern.to_string()).unwrap().config.spec().parameters();
    assert_eq!(found, 2 * 92_544 * 4096 + 32 * layer + 4096);
}

/// Sizes of a small Llama, with `more` keys.
fn llama(more: &Value) -> Value {
    let mut keys = json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 8, "vocab_size": 128});
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    keys
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    for (more, expected) in [
        (json!({"layer_types": vec!["full_attention"; 3]}), "'layer_types' to have one entry per layer, 8, found 3"),
        (json!({"layer_types": "full_attention"}), "'layer_types' to be a list"),
        (json!({"layer_types": vec!["sliding_attention"; 8]}), "'sliding_window' of layers with windows, found none"),
        (
            json!({"layer_types": vec!["sliding_attention"; 8], "sliding_window": 16, "use_sliding_window": false}),
            "'use_sliding_window' false",
        ),
        (json!({"layer_types": vec!["chunked_attention"; 8], "sliding_window": 16}), "found \"chunked_attention\""),
        (json!({"use_sliding_window": true}), "'sliding_window' of layers with windows, found none"),
        (json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}), "expected one 'rope_theta'"),
        (json!({"rope_scaling": "linear"}), "'rope_scaling' to be an object"),
        (
            json!({"model_type": "qwen3_moe", "num_experts": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32}),
            "'num_experts' and 'num_local_experts' to be equal",
        ),
        (
            json!({"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2, "experts_per_token": 4,
            "sliding_window": 16}),
            "'num_experts_per_tok' and 'experts_per_token' to be equal",
        ),
        (
            json!({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}),
            "at most the model's 8 experts",
        ),
    ] {
        let said = said(&llama(&more));
        assert!(said.contains(expected) && !said.contains('\n'), "{more}: {said}");
    }
    let gpt2 = json!({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 96, "n_positions": 8, "n_ctx": 16});
    assert!(said(&gpt2).contains("'n_positions' and 'n_ctx' to be equal"));
    let deepseek = |more: Value| {
        let mut keys = json!({"model_type": "deepseek_v3", "num_key_value_heads": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8});
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        llama(&keys)
    };
    assert!(read_huggingface(&deepseek(json!({})).to_string()).is_ok());
    assert!(said(&deepseek(json!({"num_key_value_heads": 2}))).contains("as many key and value heads as heads"));
    assert!(said(&deepseek(json!({"attention_bias": true}))).contains("'attention_bias' false, found true"));
    assert!(said(&deepseek(json!({"first_k_dense_replace": 8}))).contains("expected experts in some of the 8 layers"));
    let twice = llama(&json!({})).to_string().replace('}', ", \"hidden_size\": 128}");
    let said = read_huggingface(&twice).unwrap_err().to_string();
    assert!(said.contains("each key once, found 'hidden_size' with two values") && said.contains("line 1"), "{said}");
}

/// FLOPs of the forward's attention: 4 per score and channel, with all keys or those of the window.
fn attention_flops(config: &TransformerConfig, tokens: usize) -> u128 {
    let micro = |tokens| MicroBatch { sequences: 1, tokens };
    let spec = config.spec();
    // what does not grow with the number of tokens alone
    spec.flops(Kind::F, micro(tokens)) - tokens as u128 * (spec.flops(Kind::F, micro(1)) - attention_of_one(config))
}

fn attention_of_one(config: &TransformerConfig) -> u128 {
    4 * (config.layers * config.heads * config.head_size) as u128
}

/// 300 random lists of layers and numbers of layers without windows: each layer has the attention that it names, by
/// the FLOPs of a window that is longer than the sequence or not.
#[test]
fn windows_are_those_of_the_named_layers() {
    let mut dice = Dice(7);
    for case in 0..300 {
        let layers = 1 + dice.below(8);
        let every = 1 + dice.below(4);
        let kinds: Vec<bool> = match dice.below(3) {
            0 => (0..layers).map(|layer| layer % every == every - 1).collect(),
            1 => (0..layers).map(|_| dice.below(2) == 0).collect(),
            _ => vec![dice.below(2) == 0; layers],
        };
        let (window, full) = (1 + dice.below(16), dice.below(layers + 2));
        let by_number = case % 3 == 0;
        let expected = if by_number { full.min(layers) } else { kinds.iter().filter(|is_full| **is_full).count() };
        let names = kinds.iter().map(|is_full| if *is_full { "full_attention" } else { "sliding_attention" });
        let more = match by_number {
            true => {
                json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": window, "max_window_layers": full})
            }
            false => json!({"sliding_window": window, "layer_types": names.collect::<Vec<_>>()}),
        };
        let mut keys = llama(&more);
        keys["num_hidden_layers"] = json!(layers);
        let described = read_huggingface(&keys.to_string()).unwrap_or_else(|why| panic!("{keys}: {why}"));
        let tokens = 16;
        // twice the scores under a causal mask: the square, or the square without the one of the keys before the window
        let before = tokens - window.min(tokens);
        let scores = layers * tokens * tokens - (layers - expected) * before * before;
        assert_eq!(attention_flops(&described.config, tokens), (4 * 64 * scores) as u128, "{keys}");
        let has_window = |layer| described.config.kind(layer).attention.is_some_and(|own| own.window.is_some());
        assert_eq!((0..layers).filter(|&layer| has_window(layer)).count(), layers - expected, "{keys}");
    }
}

/// Python's numbers that JSON does not have are read; texts with these words stay; columns of errors stay right.
#[test]
fn numbers_that_are_not_finite_are_read() {
    let text = |more: &str| llama(&json!({})).to_string().replacen('{', &format!("{{{more}, "), 1);
    let unknown = |more: &str| read_huggingface(&text(more)).unwrap_or_else(|why| panic!("{more}: {why}")).unknown;
    assert_eq!(unknown(r#""limit": [0.0, Infinity, -Infinity, NaN]"#), ["limit"]);
    assert_eq!(unknown(r#""_a": NaN, "_b": "NaN or -Infinity", "_c": "\"Infinity", "_d": "\\""#), Vec::<String>::new());
    for (more, expected) in [
        (r#""head_dim": NaN"#, "'head_dim' to be a whole number, found \"NaN\""),
        (r#""rope_theta": Infinity"#, "'rope_theta' to be a number above 0, found \"Infinity\""),
        (r#""rms_norm_eps": -Infinity"#, "'rms_norm_eps' to be a number above 0, found \"-Infinity\""),
        (r#""time_step_limit": [0.0, Infinity]"#, "Mamba layers ('time_step_limit')"),
    ] {
        let said = read_huggingface(&text(more)).unwrap_err().to_string();
        assert!(said.contains(expected), "{more}: {said}");
    }
    let said = read_huggingface("{\"a\": -Infinity, \"b\": Infinity,\n \"c\": NaN, oops}").unwrap_err().to_string();
    assert!(said.contains("invalid JSON") && said.contains("line 2 column 12"), "{said}");
    for end in ["Infinityy", "nan", "+Infinity", "NaN NaN"] {
        assert!(read_huggingface(&text(&format!("\"a\": {end}"))).is_err(), "{end}");
    }
    let shape =
        r#"{"arch": "gpt", "layers": 2, "hidden": 64, "heads": 4, "vocab": 96, "notes": "NaN", "name": Infinity}"#;
    assert!(read_shape(shape, 8).is_ok());
}

/// 300 random texts of these words, quotes and escapes stay as they are: the type of an unknown model is quoted in its refusal.
#[test]
fn random_texts_with_names_of_numbers_are_not_changed() {
    let mut dice = Dice(3);
    for _ in 0..300 {
        let pieces = ["NaN", "Infinity", "-Infinity", "\"", "\\", "\\\"", " ", "{", "é", ", "];
        let text: String = (0..1 + dice.below(6)).map(|_| pieces[dice.below(pieces.len())]).collect();
        let (before, after) =
            (["NaN", "0", "-Infinity"][dice.below(3)], ["Infinity", "[NaN, 1]", "null"][dice.below(3)]);
        let file = format!("{{\"_a\": {before}, \"model_type\": {}, \"_b\": {after}}}", Value::from(text.as_str()));
        let said = read_huggingface(&file).unwrap_err().to_string();
        assert!(said.contains(&format!("found '{text}'")), "{file}: {said}");
    }
}

fn shape(more: &[(&str, Value)]) -> Value {
    let keys = json!({"arch": "llama", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32_000});
    let mut keys: Map<String, Value> = keys.as_object().unwrap().clone();
    keys.extend(more.iter().map(|(key, value)| ((*key).to_string(), value.clone())));
    Value::Object(keys)
}

#[test]
fn keys_of_shape_files_that_contradict_each_other_are_refused() {
    let cases: [(&[(&str, Value)], &str); 13] = [
        (
            &[("attention", json!("mha")), ("kv_heads", json!(4))],
            "'kv_heads' to be the number of heads with 'attention' mha, found 4",
        ),
        (&[("attention", json!("mqa")), ("kv_heads", json!(4))], "'kv_heads' to be 1 with 'attention' mqa, found 4"),
        (&[("attention", json!("gqa"))], "'kv_heads' with 'attention' gqa, found none"),
        (&[("sliding_every", json!(2))], "'sliding_window' with 'sliding_every' 2"),
        (&[("act", json!("swiglu")), ("gated_mlp", json!(false))], "'gated_mlp' true with 'act' swiglu"),
        (&[("dense_first", json!(2))], "'experts' with 'dense_first'"),
        (&[("moe_every", json!(2))], "'experts' with 'moe_every'"),
        (&[("params_active_b", json!(70))], "as 'params_active_b' says"),
        (&[("params", json!(1e9)), ("params_total_b", json!(0.2))], "as 'params' says"),
        (&[("ffn", Value::Null)], "expected 'ffn', found none"),
        (&[("kv_heads", json!(3))], "multiple"),
        (&[("params_total_b", json!(70))], "as 'params_total_b' says"),
        (
            &[
                ("ffn", Value::Null),
                ("experts", json!(4)),
                ("top_k", json!(2)),
                ("moe_ffn", json!(64)),
                ("dense_first", json!(1)),
            ],
            "expected 'ffn', found none",
        ),
    ];
    for (more, expected) in cases {
        let said = read_shape(&shape(more).to_string(), 64).unwrap_err().to_string();
        assert!(said.contains(expected), "{more:?}: {said}");
    }
}

/// 300 random dense shapes have the parameters of the closed form, whatever says the number of key and value heads and the width of
/// the MLP; or are refused if two keys contradict each other.
#[test]
fn random_shapes_have_the_parameters_of_the_closed_form() {
    let mut dice = Dice(11);
    let mut refused = 0;
    for _ in 0..300 {
        let (layers, heads, size) = (1 + dice.below(6), [2, 4, 6, 12][dice.below(4)], 8 * (1 + dice.below(4)));
        let (hidden, vocab, ffn) = (heads * size, 1 + dice.below(500), 8 * (1 + dice.below(64)));
        let is_gpt = dice.below(2) == 0;
        let attention = ["mqa", "mha", "gqa", ""][dice.below(4)];
        let kv = [None, Some(1), Some(2), Some(heads)][dice.below(4)];
        let has_ffn = dice.below(3) > 0 || !is_gpt;
        let act = [None, Some("swiglu"), Some("gelu")][dice.below(3)];
        let mut keys = json!({"arch": if is_gpt { "gpt" } else { "llama" }, "layers": layers, "hidden": hidden, "heads": heads,
            "vocab": vocab, "pos": "rope"});
        let mut set = |key: &str, value: Value| keys[key] = value;
        if !attention.is_empty() {
            set("attention", json!(attention));
        }
        kv.into_iter().for_each(|kv| set("kv_heads", json!(kv)));
        act.into_iter().for_each(|act| set("act", json!(act)));
        if has_ffn {
            set("ffn", json!(ffn));
        }
        let groups = match (attention, kv) {
            ("mqa", None | Some(1)) => Some(1),
            ("mha", kv) if kv.is_none_or(|kv| kv == heads) => Some(heads),
            ("gqa", kv) => kv,
            ("", kv) => Some(kv.unwrap_or(heads)),
            _ => None,
        };
        let found = read_shape(&keys.to_string(), 64);
        let Some(groups) = groups else {
            assert!(found.unwrap_err().to_string().contains("kv_heads"), "{keys}");
            refused += 1;
            continue;
        };
        let found = found.unwrap_or_else(|why| panic!("{keys}: {why}")).spec().parameters();
        let ffn = if has_ffn { ffn } else { 4 * hidden };
        let matrices = if is_gpt && act != Some("swiglu") { 2 } else { 3 };
        // a GPT has biases of all products and norms; its gate, too, has one
        let bias = usize::from(is_gpt);
        let qkv = (heads + 2 * groups) * size * (hidden + bias);
        let projection = hidden * (hidden + bias);
        let mlp = matrices * hidden * ffn + bias * ((matrices - 1) * ffn + hidden);
        let norms = 2 * hidden * (1 + bias);
        let head = if is_gpt { 0 } else { vocab * hidden };
        let expected = vocab * hidden + layers * (qkv + projection + mlp + norms) + hidden * (1 + bias) + head;
        assert_eq!(found, expected as u128, "{keys}");
    }
    assert!((50..150).contains(&refused), "{refused}");
    // the reported case: one key and value head
    let mqa = read_shape(&shape(&[("layers", json!(24)), ("attention", json!("mqa"))]).to_string(), 64).unwrap();
    assert_eq!(mqa.groups, 1);
}

/// A GPT's MLP is four times as wide as its hidden state if a shape file does not say: 24 layers of 2304 are 1.65 G parameters.
#[test]
fn a_gpt_without_a_width_of_its_mlp_has_four_times_its_hidden_size() {
    let keys = json!({"arch": "gpt", "layers": 24, "hidden": 2304, "heads": 24, "vocab": 51_200});
    let found = read_shape(&keys.to_string(), 2048).unwrap().spec().parameters();
    let (h, layers) = (2304_u128, 24_u128);
    assert_eq!(found, layers * (12 * h * h + 13 * h) + 2 * h + (51_200 + 2048) * h);
}

/// Every key of the families' own classes is known: none is listed as one that may change the model.
#[test]
fn keys_of_the_families_are_all_known() {
    let of_llama = json!({"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": [2, 3], "head_dim": 16,
        "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 2048, "mlp_bias": false, "pad_token_id": null,
        "pretraining_tp": 1, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1e4, "tie_word_embeddings": false,
        "use_cache": true, "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"], "transformers_version": "4.57.0"});
    let described = read_huggingface(&llama(&of_llama).to_string()).unwrap();
    assert_eq!(described.unknown, Vec::<String>::new());
    // keys of other positions, norms or activations are not taken for harmless
    for key in [
        "rope_local_base_freq",
        "rope_interleaved",
        "swa_rope_theta",
        "norm_eps",
        "layernorm_epsilon",
        "hidden_activation",
    ] {
        assert_eq!(read_huggingface(&llama(&json!({key: 5})).to_string()).unwrap().unknown, [key]);
    }
    for key in
        ["max_window_layers", "use_bidirectional_attention", "num_mtp_modules", "pruned_heads", "use_parallel_residual"]
    {
        let said = said(&llama(&json!({key: 5})));
        assert!(said.contains(key) && !said.contains("llama-3-8b"), "{said}");
    }
    assert!(model_names().all(|name| transformer_named(&name).is_some()));
}
