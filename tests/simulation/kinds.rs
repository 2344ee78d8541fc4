//! Kinds of layers other than attention and an MLP: FLOPs by part and kept bytes against the formulas of their kernels, what tensor-parallel ranks
//! share, and stages of layers that differ.

use crate::support::{golden_json, golden_list};
use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::{
    Degrees, Operation, Part, StageLayout, Storage, TransformerConfig, hardware, read_huggingface, stack,
};
use pipesim::{Kind, MicroBatch, ParallelConfig, Zero};
use pipesim_validation::{predict, read};
use std::collections::BTreeMap;

fn model(file: &str) -> TransformerConfig {
    let config = &golden_json("models.json")[file]["config"];
    read_huggingface(&config.to_string()).unwrap_or_else(|why| panic!("{file}: {why}")).config
}

/// What the kernels' formulas call a product with this weight; the indexers' are within others.
fn part_of(weight: &str) -> &'static str {
    match weight {
        "w13" | "w2" => "mlp",
        "shared_w13" | "shared_w2" | "shared_gate" => "experts_shared",
        "latent_down" | "latent_up" => "experts_latent_projections",
        _ => "projections",
    }
}

/// Adds up a part's forward FLOPs by what they are for.
fn add(sums: &mut BTreeMap<&'static str, f64>, part: &Part, micro: MicroBatch) {
    let mut weights = part.matrices();
    for operation in &part.operations {
        let name = match operation {
            Operation::Attention { .. } => "scores",
            Operation::Index { .. } => "indexer_scores_full",
            Operation::Convolve { .. } => "convolution",
            Operation::Scan(_) => "scan_chunked",
            Operation::Grouped { .. } => "experts_routed",
            Operation::Classify { .. } => "head",
            Operation::Route { .. } => {
                weights.next();
                "router"
            }
            Operation::Product { .. } => part_of(weights.next().unwrap().name),
            _ => continue,
        };
        let flops = part.count as u128 * operation.flops(Kind::F, micro);
        *sums.entry(name).or_default() += flops as f64 / micro.tokens as f64;
    }
}

/// The formulas count exactly the keys that a query sees, half of what a model's FLOPs count without a window.
#[test]
fn flops_of_each_part_are_those_of_the_kernels() {
    let golden = golden_json("kinds.json");
    let mut compared = 0;
    for (file, row) in golden["models"].as_object().unwrap() {
        let spec = TransformerConfig { prediction_layers: 0, ..model(file) }.spec();
        for tokens in [4096, 32768] {
            let micro = MicroBatch { sequences: 1, tokens };
            let mut sums = BTreeMap::new();
            spec.parts.iter().for_each(|part| add(&mut sums, part, micro));
            let said = |key: &str| row[tokens.to_string()][key].as_f64().unwrap_or(0.0);
            for (name, found) in sums {
                let expected = match name {
                    "scores" => 2.0 * (said("scores_causal") + said("scores_sparse_absorbed_causal")),
                    "projections" => {
                        said("linear_projections") + said("attention_projections") + said("indexer_projections")
                    }
                    name => said(name),
                };
                let off = if expected > 0.0 { (found / expected - 1.0).abs() } else { found };
                assert!(off < 1e-3, "{file}, {tokens} tokens, {name}: {found} {expected}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 100, "{compared}");
}

/// Bytes that the mixer of a layer keeps per token, after the norm before it.
fn kept(part: &Part, width: usize) -> u64 {
    let storage = Storage::whole(8, 2, 1, 0);
    let micro = MicroBatch { sequences: 1, tokens: 4096 };
    let is_norm = |operation: &&Operation| matches!(operation, Operation::Norm { width: norm, .. } if *norm == width);
    let mixer = part.operations.iter().take_while(|operation| !matches!(operation, Operation::Add { .. }));
    let kept: u64 = mixer
        .filter(|operation| !is_norm(operation))
        .map(|operation| operation.left(Kind::F, micro, &storage, None))
        .sum();
    kept / 4096
}

/// What the kernels save by their source. Attention in 16 bits keeps its output once, as the input of the product after it; the formulas count it
/// again with a gate.
#[test]
fn kept_bytes_of_mixers_are_what_their_kernels_save() {
    let golden = golden_json("kinds.json");
    let mut compared = 0;
    for (file, row) in golden["models"].as_object().unwrap() {
        let spec = model(file).spec();
        for (kind, bytes) in row["kept_bytes_per_token"].as_object().unwrap() {
            let name = match kind.as_str() {
                "gated_delta_net" => "delta",
                "kimi_delta_attention" => "kda",
                "mamba2" => "mamba",
                // next to layers with experts and other mixers, attention has no name
                "full_attention" if spec.parts.iter().any(|part| part.name == "mixture") => "mixture",
                "full_attention" => "attention",
                "sparse_attention_with_indexer" => "sparse",
                "sparse_attention_shared_indexer" => "shared sparse",
                other => panic!("{other}"),
            };
            let mut named = spec.parts.iter().filter(|part| {
                part.name == name || part.name.strip_prefix(name).is_some_and(|rest| rest.starts_with(" mixture"))
            });
            let part = named.next().unwrap_or_else(|| panic!("{file}: {name}"));
            let (found, expected) = (kept(part, spec.width), bytes.as_u64().unwrap());
            let off = (found as f64 / expected as f64 - 1.0).abs();
            assert!(off < 0.02, "{file}, {kind}: {found} {expected}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared}");
}

/// Rows that others measured on five kinds of GPUs, to which nothing was fitted: runs of a recipe (A), and of older releases or for support (B).
#[test]
fn measured_steps_are_predicted_as_well_as_is_claimed() {
    let models = golden_json("models.json");
    let mut rows = golden_list("kinds_rows.json");
    let quality: BTreeMap<String, String> =
        rows.iter().map(|row| (row["id"].to_string(), row["quality"].as_str().unwrap().to_string())).collect();
    for row in &mut rows {
        let config = &models[row["model"]["config"].as_str().unwrap()]["config"];
        row["model"]["config"] = config.clone();
    }
    let (rows, faults) = read(&serde_json::to_string(&rows).unwrap()).unwrap();
    assert!(faults.is_empty() && rows.len() == 29, "{faults:?}");
    let mut errors: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for predicted in predict(rows) {
        let row = &predicted.row;
        let error = predicted.error().unwrap_or_else(|| panic!("{}: {:?}", row.id, predicted.time));
        let key = (quality[&format!("\"{}\"", row.id)].clone(), row.model.name.clone());
        println!("{} {} on {}: {:+.1} %", row.id, row.model.name, row.gpu, 100.0 * error);
        errors.entry(key).or_default().push(error.abs());
    }
    let mean = |quality: &str| {
        let of = || errors.iter().filter(|((own, _), _)| own == quality).flat_map(|(_, errors)| errors);
        of().sum::<f64>() / of().count() as f64
    };
    for ((quality, name), errors) in &errors {
        println!(
            "{quality} {name}: {:.1} % in {}",
            100.0 * errors.iter().sum::<f64>() / errors.len() as f64,
            errors.len()
        );
    }
    println!("A: {:.3}, B: {:.3}", mean("A"), mean("B"));
    assert!(mean("A") < 0.20 && mean("B") < 0.35, "{} {}", mean("A"), mean("B"));
}

const NANO: &str = "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";
const ULTRA: &str = "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16.json";
const NEXT: &str = "Qwen--Qwen3-Next-80B-A3B-Instruct.json";
const GLM: &str = "zai-org--GLM-5.2.json";

/// Megatron's mixers: of Mamba, ranks share heads and groups, of the fused first product each piece; of a delta net, heads of keys and values.
/// An indexer is copied.
#[test]
fn tensor_parallel_ranks_share_mixers_by_heads_and_groups() {
    let share = |file: &str, part: &str, tensor: &str, tp: usize| {
        let spec = model(file).spec();
        let part = spec.parts.iter().find(|own| own.name == part).unwrap();
        let tensor = part.tensors().find(|own| own.name == tensor).unwrap_or_else(|| panic!("{tensor}"));
        tensor.elements_under(Degrees { tp, ep: 1, etp: 1 })
    };
    // z, x, B, C and dt of 64 heads with 64 channels and 8 groups with a state of 128, from 2,688 channels
    for tp in [1, 2, 4, 8] {
        let rows = (2 * 64 * 64 + 2 * 8 * 128 + 64) / tp;
        assert_eq!(share(NANO, "mamba", "mamba_in", tp), (rows * 2688) as u64);
        assert_eq!(share(NANO, "mamba", "mamba_conv", tp), ((64 * 64 + 2 * 8 * 128) / tp * 4) as u64);
        assert_eq!(share(NANO, "mamba", "a_log", tp), 64 / tp as u64);
        assert_eq!(share(NANO, "mamba", "mamba_out", tp), (64 * 64 / tp * 2688) as u64);
        // queries, keys, values, gate, beta and decay of 16 heads of keys and 32 of values, 128 channels each, from 2,048
        let rows = (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32) / tp;
        assert_eq!(share(NEXT, "delta mixture", "delta_in", tp), (rows * 2048) as u64);
        // queries' and keys' narrow rows, and the indexer's key and weights, have copies
        assert_eq!(share(GLM, "sparse block", "wdown", tp), share(GLM, "sparse block", "wdown", 1));
    }
    for (file, tp, expected) in [
        (NANO, 16, "8 groups of Mamba layers"),
        (NEXT, 32, "heads"),
        ("moonshotai--Kimi-K3.json", 64, "heads"),
        ("ai21labs--AI21-Jamba-1.5-Mini.json", 64, "heads"),
    ] {
        let why = model(file).check_tensor_ranks(tp).unwrap_err().to_string();
        assert!(why.contains(expected), "{file}: {why}");
    }
}

fn layout(pp: u32) -> ParallelConfig {
    ParallelConfig { pp, dp: 16, ep: 16, micro: 32, sequence: 8192, zero: Zero::Optimizer, ..ParallelConfig::default() }
}

/// The time of a step, and whether costs split the layers.
fn step(file: &str, layout: ParallelConfig) -> (f64, bool) {
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack("megatron-core").unwrap() };
    let found = Analytic::new(model(file), machine, layout).unwrap().estimate("1f1b").unwrap();
    (found.time_s.iteration(), found.is_split_by_cost)
}

/// Layers that differ are split by their costs, which is faster than equal numbers of them or as fast.
#[test]
fn stages_of_layers_that_differ_are_balanced_by_cost() {
    for (file, pp) in [(NANO, 4), (ULTRA, 4), (ULTRA, 6), (GLM, 6), (NEXT, 4), ("google--gemma-4-26B-A4B.json", 3)] {
        let layers = model(file).layers;
        let even: Vec<usize> =
            (0..pp as usize).map(|stage| layers / pp as usize + usize::from(stage < layers % pp as usize)).collect();
        let [own, even] = [None, Some(even)].map(|layers| step(file, ParallelConfig { layers, ..layout(pp) }));
        assert!(own.0 <= even.0 * 1.005 && own.1 && !even.1, "{file}: {own:?} {even:?}");
    }
}

/// Megatron's hybrid pattern says stages by its bars; the letters must be the model's.
#[test]
fn hybrid_patterns_are_stages() {
    let config = model(NANO);
    let pattern = config.pattern.unwrap().letters(0).unwrap();
    assert_eq!(pattern, golden_json("models.json")[NANO]["config"]["hybrid_override_pattern"]);
    let bars = format!("{}|{}", &pattern[..30], &pattern[30..]);
    let stages = |text: &str| StageLayout::parse(text).unwrap();
    assert_eq!(stages(&bars).stages, stages("Et*30|t*22L").stages);
    let check = |text: &str| {
        let layout = ParallelConfig { layout: Some(stages(text)), ..layout(2) };
        layout.validate(&config).map_err(|why| why.to_string())
    };
    assert_eq!(check(&bars), Ok(()));
    let other = format!("M{}", &bars[1..].replacen('*', "M", 1));
    assert!(check(&other).unwrap_err().contains("hybrid pattern"));
    assert!(check(&bars[1..]).is_err());
    let ultra = model(ULTRA).pattern.unwrap().letters(1).unwrap();
    assert!(ultra.ends_with("/*E"), "{ultra}");
    assert_eq!(stages(&ultra).layers(), [108, 1]);
}
