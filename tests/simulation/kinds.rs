//! Kinds of layers other than attention and an MLP: FLOPs by part and kept bytes against the formulas of their kernels, what tensor-parallel ranks
//! share, and stages of layers that differ.

use crate::support::golden_json;
use pipesim::models::{Operation, Part, Storage, TransformerConfig, read_huggingface};
use pipesim::{Kind, MicroBatch};
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
    let kept: u64 =
        mixer.filter(|operation| !is_norm(operation)).map(|operation| operation.left(Kind::F, micro, &storage, None)).sum();
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
