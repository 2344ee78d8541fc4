use pipesim_models::model_spec::huggingface;
use pipesim_models::model_spec::{MicroBatch, Operation, Storage};
use pipesim_schedule::op::Kind;
use serde_json::Value;
fn counts(config: &Value) -> Result<[u64; 2], String> {
    let spec = huggingface::read(&config.to_string()).map_err(|why| why.to_string())?.config.spec();
    Ok([spec.parameters() as u64, spec.active_parameters() as u64])
}
fn pair(v: &Value) -> Option<[u64; 2]> { Some([v.get(0)?.as_u64()?, v.get(1)?.as_u64()?]) }
fn without(config: &Value, path: &str) -> Value {
    let mut config = config.clone();
    let place = match path.split_once('.') { Some((o, _)) => &mut config[o], None => &mut config };
    place.as_object_mut().unwrap().remove(path.rsplit('.').next().unwrap());
    config
}
fn paths(config: &Value) -> Vec<String> {
    let m = config.as_object().unwrap();
    let text = m.get("text_config").and_then(Value::as_object);
    let inner: Vec<String> = text.into_iter().flat_map(|m| m.keys()).map(|k| format!("text_config.{k}")).collect();
    m.keys().cloned().chain(inner).collect()
}
fn deletions(name: &str, config: &Value, whole: [u64; 2], changed: &Value) {
    for path in paths(config) {
        let expected = changed.get(&path).map_or(Some(whole), pair);
        match counts(&without(config, &path)) {
            Ok(found) if found == expected.unwrap_or(whole) => {}
            Ok(found) => println!("DEL {name} without {path}: {found:?} {expected:?}"),
            Err(why) if std::env::var("V").is_ok() => println!("   (refused) {name} without {path}: {why} {expected:?}"),
            Err(_) => {}
        }
    }
}
fn json(path: &str) -> Value { serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() }
fn main() {
    let golden = json("tests/golden/models.json");
    let fam = json("tests/golden/families.json");
    for (name, row) in golden.as_object().unwrap() {
        let whole = [row["parameters"].as_u64().unwrap(), row["active_parameters"].as_u64().unwrap()];
        match counts(&row["config"]) {
            Err(why) => println!("REFUSED {name}: {why}"),
            Ok(found) if found != whole => println!("WRONG {name} {found:?} {whole:?}"),
            Ok(_) => deletions(name, &row["config"], whole, &fam["published"][name]),
        }
    }
    if let Ok(path) = std::env::var("SMALL") {
        for (name, row) in json(&path).as_object().unwrap() {
            let whole = pair(&row["counts"]).unwrap();
            match counts(&row["config"]) {
                Err(why) => println!("SMALL REFUSED {name}: {why}"),
                Ok(found) if found != whole => println!("SMALL WRONG {name} {found:?} {whole:?} {} {}", found[0] as i64 - whole[0] as i64, found[1] as i64 - whole[1] as i64),
                Ok(_) => deletions(name, &row["config"], whole, &row["without"]),
            }
        }
    }
    for (name, row) in json("/work/shared/golden/models/flops.json")["models"].as_object().unwrap() {
        let Some(file) = row["config"].as_str() else { continue };
        let Ok(found) = huggingface::read(&golden[file]["config"].to_string()) else { continue };
        let spec = found.config.spec();
        println!("FLOPS {name}");
        for tokens in [4096usize, 32768] {
            let micro = MicroBatch { sequences: 1, tokens };
            let mut sums = std::collections::BTreeMap::<&str, u128>::new();
            for part in spec.parts.iter().filter(|p| p.name != "prediction") {
                for o in &part.operations {
                    let kind = match o { Operation::Attention { .. } => "scores", Operation::Index { .. } => "index", Operation::Convolve { .. } => "conv", Operation::Scan(_) => "scan", Operation::Grouped { .. } => "experts", Operation::Route { .. } => "router", Operation::Classify { .. } => "head", _ => "products" };
                    if part.name == "head" && found.config.prediction_layers > 0 && kind == "head" { *sums.entry(kind).or_default() += o.flops(Kind::F, micro) / (1 + found.config.prediction_layers as u128); continue; }
                    *sums.entry(kind).or_default() += part.count as u128 * o.flops(Kind::F, micro);
                }
            }
            let m = &row[tokens.to_string()]["model"];
            let g = |k: &str| m[k].as_f64().unwrap_or(0.0);
            let want = |k: &str| match k { "scores" => 2.0 * (g("scores_causal") + g("scores_sparse_absorbed_causal")), "index" => g("indexer_scores_full"), "conv" => g("convolution"), "scan" => g("scan_chunked"), "experts" => g("experts_routed"), "router" => g("router"), "head" => g("head"), _ => ["linear_projections","attention_projections","mlp","experts_shared","experts_latent_projections","indexer_projections"].iter().map(|k| g(k)).sum() };
            for (k, v) in sums { let w = want(k); let r = (v as f64 / tokens as f64) / w; if w > 0.0 || v > 0 { println!("  {tokens} {k} {:.6} {}", r, if (r-1.0).abs() > 1e-3 { "OFF" } else { "" }); } }
        }
        let storage = Storage::whole(8, 2, 1, 0);
        for part in &spec.parts {
            let mut sum = 0;
            for o in &part.operations { if matches!(o, Operation::Add {..}) { break; } if !matches!(o, Operation::Norm { width, .. } if *width == spec.width) { sum += o.left(Kind::F, MicroBatch { sequences: 1, tokens: 4096 }, &storage, None); } }
            if part.name != "head" { println!("  kept {} {}", part.name, sum / 4096); }
        }
    }
}
