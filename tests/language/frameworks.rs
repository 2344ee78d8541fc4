//! The files of `frameworks/`: every expression can be evaluated, every rule has its source, and rules agree with the tables that the real
//! programs filled in.

use crate::support::{Dice, files, root};
use pipesim::internals::dsl;
use pipesim::internals::frameworks::{Facts, Framework, NAMES, ObjectionKind, frameworks};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::Table;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// One value of each fact, which fit together.
fn drawn(dice: &mut Dice) -> Facts {
    let mut one = |of: &[Value]| of[dice.below(of.len())].clone();
    let texts = |words: &str| words.split(' ').map(Value::from).collect::<Vec<_>>();
    let (bools, degrees) = ([json!(false), json!(true)], [1, 2, 4, 8].map(Value::from));
    let mut facts = Facts::default();
    let known: Vec<&str> = dsl::names();
    for (name, _) in NAMES {
        let value = match *name {
            "p" | "v" | "b" | "tp" | "cp" | "ep" | "etp" | "dp" | "edp" | "rounds" | "expert_groups" => one(&degrees),
            "m" | "group" | "batch" | "layers" => one(&[1, 2, 3, 4, 6, 8, 12, 16, 40, 61].map(Value::from)),
            "stages" | "world" | "shard" => continue,
            "schedule" => one(&known.iter().map(|name| json!(name)).chain([json!("")]).collect::<Vec<_>>()),
            "ops" => {
                one(&[json!([]), json!(["split-backward"]), json!(["recompute", "offload", "slices", "vocabulary"])])
            }
            "seq" => one(&[1, 128, 4096, 4097, 8200].map(Value::from)),
            "zero" => one(&[0, 1, 2, 3].map(Value::from)),
            "precision" => one(&texts("bf16 fp16 fp32 fp8 mxfp8 nvfp4")),
            "recompute" => one(&texts("none selective full parts every")),
            "recompute_method" => one(&[json!(""), json!("uniform"), json!("block")]),
            "recompute_layers" => one(&[0, 1, 2, 5].map(Value::from)),
            "recompute_modules" => {
                one(&[json!([]), json!(["core_attn"]), json!(["moe_act", "layernorm", "mla_up_proj", "mlp", "moe"])])
            }
            "attention" => one(&texts("flash plain")),
            "dispatcher" => one(&texts("alltoall deepep hybridep")),
            "routing" => one(&texts("balanced natural capacity")),
            "capacity_factor" => one(&[1.0, 1.25].map(Value::from)),
            "cuda_graph" => one(&texts("none partial full")),
            "norm" => one(&texts("rms layer")),
            "hybrid_pattern" => one(&[json!(""), json!("MEM*|E-M/*E")]),
            "csv" => one(&[json!(""), json!("compute_only"), json!("compute_comms")]),
            "placement" => one(&texts("linear loop v zigzag bidirectional")),
            "architecture" => one(&texts("ampere ada hopper blackwell cdna3 cdna4 cpu")),
            "hardware" => one(&texts("h100-sxm b200 mi300x")),
            "layout" | "layout_flat" => one(&[json!("Et|t|t|tL"), json!("Et*3|(t*4|)*2t*3L")]),
            "modules" => one(&[json!([]), json!([["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]])]),
            "stage_layers" | "layout_stages" => continue,
            "experts" | "moe_ffn" => one(&[0, 8, 64, 160].map(Value::from)),
            "top_k" | "shared_experts" | "dense_layers" | "prediction_layers" => one(&[0, 1, 3].map(Value::from)),
            "hidden" | "ffn" | "vocab" => one(&[64, 1000, 4096, 32001].map(Value::from)),
            "heads" | "kv_heads" | "head_dim" => one(&[1, 6, 8, 64, 128].map(Value::from)),
            "gpus_per_node" => one(&degrees),
            "model" => one(&texts("llama-3-8b mixtral-8x7b")),
            _ => one(&bools),
        };
        facts.set(name, value);
    }
    let number = |facts: &Facts, name: &str| facts.get(name).and_then(Value::as_u64).unwrap();
    let [p, v, tp, cp, dp] = ["p", "v", "tp", "cp", "dp"].map(|name| number(&facts, name));
    facts.set("stages", p * v).set("world", p * tp * cp * dp).set("shard", dp * cp);
    facts.set("stage_layers", (0..p * v).map(|stage| stage % 3).collect::<Vec<_>>());
    facts.set("layout_stages", (0..p * v).map(|stage| if stage == 0 { "Et" } else { "tt" }).collect::<Vec<_>>());
    facts
}

#[test]
fn every_expression_can_be_evaluated() {
    let mut dice = Dice(46);
    let all = frameworks().unwrap();
    for (number, framework) in all.iter().enumerate() {
        let file = format!("{} {}", framework.name(), framework.version());
        let first = all.iter().position(|one| one.name() == framework.name());
        let found = Framework::find(framework.name(), Some(framework.version())).unwrap();
        assert_eq!(found.source(), framework.source());
        let newest = Framework::find(framework.name(), None).unwrap();
        assert_eq!(newest.version() == framework.version(), first == Some(number), "{file}: the newest comes first");
        for _ in 0..200 {
            let facts = drawn(&mut dice);
            let missing: Vec<&str> =
                NAMES.iter().map(|(name, _)| *name).filter(|name| facts.get(name).is_none()).collect();
            assert!(missing.is_empty(), "no values for {missing:?}");
            framework.objections(&facts).unwrap_or_else(|error| panic!("{file}: {error}\n{facts:?}"));
            framework.options(&facts).unwrap_or_else(|error| panic!("{file}: {error}\n{facts:?}"));
            framework.notes(&facts).unwrap_or_else(|error| panic!("{file}: {error}\n{facts:?}"));
        }
    }
}

#[test]
fn every_rule_has_its_source_and_every_schedule_a_name() {
    let known = dsl::names();
    let mut rules = 0;
    for path in files(&root().join("frameworks"), "toml") {
        let file = path.file_stem().unwrap().to_str().unwrap().to_string();
        let table: Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let text = |entry: &toml::Value, key: &str| {
            entry.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_string()
        };
        let whole = toml::Value::Table(table.clone());
        assert_eq!(file, format!("{}-{}", text(&whole, "framework"), text(&whole, "version")), "name of the file");
        let (repository, commit) = text(&whole, "source").split_once('@').map(|(a, b)| (a.into(), b.into())).unwrap();
        let (repository, commit): (String, String) = (repository, commit);
        let is_commit = commit.len() == 40 && commit.chars().all(|letter| letter.is_ascii_hexdigit());
        assert!(repository.split('/').count() == 2 && is_commit, "{file}: expected OWNER/NAME@COMMIT as source");
        for list in ["schedules", "needs"] {
            let names = table.get(list).and_then(toml::Value::as_table).into_iter().flatten();
            names.for_each(|(name, _)| assert!(known.contains(&name.as_str()), "{file}: no schedule is called {name}"));
        }
        for rule in table.get("rules").and_then(toml::Value::as_array).into_iter().flatten() {
            let (name, source) = (text(rule, "name"), text(rule, "source"));
            let is_kebab =
                name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-');
            assert!(is_kebab && !name.is_empty(), "{file}: {name} is no name");
            let line = source.rsplit_once(':').and_then(|(_, line)| line.split('-').next()?.parse::<u32>().ok());
            let is_said = line.is_some_and(|line| line > 0) || text(rule, "kind") != "refused" && source.contains('/');
            assert!(is_said, "{file}: {name} names no source line: {source}");
            assert!(!text(rule, "error").is_empty() && !text(rule, "remedy").ends_with('.'), "{file}: {name}");
            rules += 1;
        }
    }
    assert!(rules > 40, "{rules}");
}

fn facts_of(common: &Map<String, Value>, row: &Value) -> Facts {
    let mut facts = Facts::default();
    facts.set("capacity_factor", 1.0).set("hybrid_pattern", ""); // of all tables
    for (name, value) in common.iter().chain(row["facts"].as_object().unwrap()) {
        facts.set(name, value.clone());
        assert!(facts.get(name).is_some(), "{name} is no fact");
    }
    // the programs were asked about states that all replicas share
    if facts.get("shard").is_none() {
        let number = |name: &str| facts.get(name).and_then(Value::as_u64).unwrap_or(1);
        let all = number("dp") * number("cp");
        facts.set("shard", all);
    }
    // ... and about all layers, each by itself
    if facts.get("recompute_method").is_none() {
        let is_full = facts.text("recompute") == "full";
        facts.set("recompute_method", if is_full { "uniform" } else { "" }).set("recompute_layers", u32::from(is_full));
    }
    facts
}

/// A text without differences of white space.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A version's answers to many layouts.
struct Answers {
    framework: &'static Framework,
    common: Map<String, Value>,
    rows: Vec<Value>,
}

/// The tables of a file: one with its framework and version, or one per version of the framework that the file is named after.
fn tables(path: &Path) -> Vec<Answers> {
    let stem = path.file_stem().unwrap().to_str().unwrap().to_string();
    let whole: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let one = |file: String, table: &Value| {
        let of = |one: &&Framework| format!("{}-{}", one.name(), one.version()) == file;
        let framework = frameworks().unwrap().into_iter().find(of).unwrap_or_else(|| panic!("{stem}: no {file}"));
        let common = ["common", "usual"].iter().find_map(|key| table[key].as_object()).cloned().unwrap_or_default();
        Answers { framework, common, rows: table["rows"].as_array().unwrap().clone() }
    };
    match (whole["framework"].as_str(), whole["version"].as_str()) {
        (Some(name), Some(version)) => vec![one(format!("{name}-{version}"), &whole)],
        (Some(file), None) => vec![one(file.to_string(), &whole)],
        _ => {
            whole.as_object().unwrap().iter().map(|(version, table)| one(format!("{stem}-{version}"), table)).collect()
        }
    }
}

/// The verdict of a row, and the error if it is refused.
fn verdict(row: &Value) -> (&str, String) {
    let (whole, own) = (&row["verdict"], row.get("verdict").and_then(Value::as_str));
    let verdict = own.unwrap_or(if whole["accepted"] == true { "accepted" } else { "refused" });
    (verdict, plain(row["error"].as_str().or(whole["error"].as_str()).unwrap_or_default()))
}

/// What the real programs refuse is refused, in their words, and nothing else; and what they were given is what is printed.
#[test]
fn rules_agree_with_the_real_programs() {
    let (mut count, mut refused, mut wrong) = (0, 0, Vec::new());
    for Answers { framework, common, rows } in
        files(&root().join("tests/frameworks"), "json").iter().flat_map(|path| tables(path))
    {
        for row in rows {
            count += 1;
            let facts = facts_of(&common, &row);
            let objections = framework.objections(&facts).unwrap();
            let of = |kind| objections.iter().filter(move |one| one.kind == kind).collect::<Vec<_>>();
            let (hard, silent) = (of(ObjectionKind::Refused), of(ObjectionKind::Silent));
            let (verdict, error) = verdict(&row);
            let agrees = match verdict {
                // a program whose verdict is an object was not asked what it does silently
                "accepted" => hard.is_empty() && (silent.is_empty() || row["verdict"].is_object()),
                "silent" => hard.is_empty() && !silent.is_empty(),
                "refused" => {
                    refused += 1;
                    hard.iter().any(|one| error.contains(plain(&one.error).trim_end_matches('.')))
                }
                other => panic!("{}: no verdict is called {other}", framework.name()),
            };
            let given = ["arguments", "toml"].iter().find_map(|form| row["given"][form].as_str());
            let printed = given.map(|_| framework.options(&facts).unwrap());
            if printed.as_deref() != given {
                wrong.push(format!("{} {}: {row}\n    {printed:?}", framework.name(), framework.version()));
            }
            if !agrees {
                wrong.push(format!("{} {}: {row}\n    {objections:?}", framework.name(), framework.version()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 300 && refused >= 100, "{count} rows, {refused} refused");
}

#[test]
fn the_page_lists_every_fact() {
    let page = read("docs/src/frameworks.md");
    let rows: BTreeSet<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    for (name, what) in NAMES {
        let row = format!("| `{name}` | {} |", what.replace('|', "\\|"));
        assert!(rows.contains(row.as_str()), "docs/src/frameworks.md lacks the row\n{row}");
    }
}

/// Which groups of micro-batches the real interleaved schedule of Megatron-LM refuses, in core 0.18 and later.
#[test]
fn megatron_refuses_groups_as_the_rules_say() {
    for version in ["0.18", "2026-08"] {
        let megatron = Framework::find("megatron-core", Some(version)).unwrap();
        for line in read("tests/frameworks/megatron-sends.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let mut facts = Facts::default();
            facts.set("schedule", "interleaved-1f1b");
            for (name, word) in ["p", "v", "m", "group"].iter().zip(&words) {
                facts.set(name, word.parse::<u32>().unwrap());
            }
            let objections = megatron.objections(&facts).unwrap();
            let is_refused = objections.iter().any(|one| one.kind == ObjectionKind::Refused);
            assert_eq!(is_refused, words[4] == "refused", "{version}: {line}: {objections:?}");
        }
    }
}
