//! The table of families against `transformers`: parameters of a model of each, and without each key of its file.

use crate::support::{golden_json, root};
use pipesim::models::read_huggingface;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

fn counts(config: &Value) -> Result<[u64; 2], String> {
    let spec = read_huggingface(&config.to_string()).map_err(|why| why.to_string())?.config.spec();
    Ok([spec.parameters(), spec.active_parameters()].map(|count| count as u64))
}

fn pair(value: &Value) -> Option<[u64; 2]> {
    Some([value.get(0)?.as_u64()?, value.get(1)?.as_u64()?])
}

/// Returns a file without a key, `text_config.KEY` in the text model.
fn without(config: &Value, path: &str) -> Value {
    let mut config = config.clone();
    let place = match path.split_once('.') {
        Some((outer, _)) => &mut config[outer],
        None => &mut config,
    };
    place.as_object_mut().unwrap().remove(path.rsplit('.').next().unwrap());
    config
}

fn paths(config: &Map<String, Value>) -> Vec<String> {
    let text = config.get("text_config").and_then(Value::as_object);
    let inner = text.into_iter().flat_map(Map::keys).map(|key| format!("text_config.{key}"));
    config.keys().cloned().chain(inner).collect()
}

/// Without each key in turn, a file has the parameters that `transformers` gives it by its defaults, or is refused; it keeps its parameters if
/// `transformers` refuses the file. Returns what is
/// wrong, and the number of files that are read.
fn deletions(name: &str, config: &Value, whole: [u64; 2], changed: &Value) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let mut read = 0;
    for path in paths(config.as_object().unwrap()) {
        let expected = changed.get(&path).map_or(Some(whole), pair);
        match (counts(&without(config, &path)), expected) {
            (Ok(found), expected) if found == expected.unwrap_or(whole) => read += 1,
            (Ok(found), expected) => wrong.push(format!("{name} without {path}: {found:?} {expected:?}")),
            (Err(why), _) => {
                assert!(!why.contains('\n') && why.starts_with("expected "), "{name} without {path}: {why}")
            }
        }
    }
    (wrong, read)
}

/// Small models of each family, with sizes that are no defaults.
#[test]
fn small_models_of_each_family_have_the_parameters_that_transformers_counts() {
    let (mut wrong, mut read) = (Vec::new(), 0);
    let golden = golden_json("families.json");
    let models = golden["small"].as_object().unwrap();
    for (name, model) in models {
        let (config, whole) = (&model["config"], pair(&model["counts"]).unwrap());
        match counts(config) {
            Ok(found) if found == whole => {}
            found => wrong.push(format!("{name}: {found:?} {whole:?}")),
        }
        if let Some(full) = model["full_layers"].as_u64() {
            let read = read_huggingface(&config.to_string()).unwrap().config;
            let is_full = |layer: &usize| read.kind(*layer).attention.is_some_and(|own| own.window.is_none());
            let found = (0..read.layers).filter(is_full).count();
            assert_eq!(found as u64, full, "{name}: layers with full attention");
        }
        let (others, files) = deletions(name, config, whole, &model["without"]);
        wrong.extend(others);
        read += files;
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(models.len() >= 60 && read > 500, "{} {read}", models.len());
}

/// Every published file that is read.
#[test]
fn published_files_without_a_key_take_its_default_or_are_refused() {
    let (golden, published) = (golden_json("families.json"), golden_json("models.json"));
    let (mut wrong, mut read) = (Vec::new(), 0);
    for (name, model) in published.as_object().unwrap() {
        if counts(&model["config"]).is_err() {
            for path in paths(model["config"].as_object().unwrap()) {
                assert!(counts(&without(&model["config"], &path)).is_err(), "{name} without {path}");
            }
            continue;
        }
        let whole = ["parameters", "active_parameters"].map(|key| model[key].as_u64().unwrap());
        let (others, files) = deletions(name, &model["config"], whole, &golden["published"][name]);
        wrong.extend(others);
        read += files;
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(read > 400, "{read}");
}

/// Types of the table: names of its sections, or what their entry says.
fn types() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("models/families.toml")).unwrap();
    let mut types = BTreeSet::new();
    for section in text.split("\n[").filter(|section| !section.starts_with('[')) {
        let (name, entries) = section.split_once(']').unwrap();
        let line = entries.lines().find_map(|line| line.strip_prefix("types = "));
        match name.strip_prefix("families.") {
            Some(name) => types.extend(line.unwrap_or(name).trim_matches('"').split_whitespace().map(str::to_string)),
            None if name == "composites" => {
                let rows = entries.split("\n[[").next().unwrap().lines();
                types.extend(rows.filter_map(|row| Some(row.split_once(" = ")?.0.to_string())));
            }
            None => {}
        }
    }
    types
}

/// The book lists all types that are read.
#[test]
fn the_book_lists_every_family() {
    let page = std::fs::read_to_string(root().join("docs/src/models.md")).unwrap();
    let (_, list) = page.split_once("Supported values of `model_type` in a Hugging Face `config.json`: ").unwrap();
    let list = list.split("\n\n").next().unwrap();
    let listed: BTreeSet<String> = list.split('`').skip(1).step_by(2).map(str::to_string).collect();
    assert_eq!(listed, types());
}
