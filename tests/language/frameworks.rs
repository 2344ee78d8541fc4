//! What frameworks refuse: the rules of `frameworks/*.toml` against tables of what the real programs said (`tests/frameworks/*.py`).

use crate::support::root;
use pipesim::internals::frameworks::{Facts, Framework, ObjectionKind};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;

/// Returns the tables of a framework by version: facts that rows share, and rows.
fn tables(name: &str) -> Map<String, Value> {
    let text = fs::read_to_string(root().join(format!("tests/frameworks/{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn facts_of(common: &Value, row: &Value) -> Facts {
    let mut facts = Facts::default();
    for (name, value) in [common, &row["facts"]].into_iter().filter_map(Value::as_object).flatten() {
        facts.set(name, value.clone());
    }
    facts
}

/// Asserts that the rules say of each row what the real program said, with its error, and that they print what it was given.
fn check(name: &str) {
    for (version, table) in tables(name) {
        let framework = Framework::find(name, Some(&version)).unwrap();
        for (number, row) in table["rows"].as_array().unwrap().iter().enumerate() {
            let place = format!("{name} {version}, row {number}: {row}");
            let facts = facts_of(&table["common"], row);
            let objections = framework.objections(&facts).unwrap();
            let mut kinds: BTreeSet<&str> = objections
                .iter()
                .filter_map(|one| match one.kind {
                    ObjectionKind::Refused => Some("refused"),
                    ObjectionKind::Silent => Some("silent"),
                    _ => None,
                })
                .collect();
            if kinds.contains("refused") {
                kinds.remove("silent");
            }
            let verdict = row["verdict"].as_str().unwrap();
            assert_eq!(kinds.first().copied().unwrap_or("accepted"), verdict, "{place}: {objections:?}");
            if verdict == "refused" {
                let error = row["error"].as_str().unwrap();
                assert!(objections.iter().any(|one| error.contains(&one.error)), "{place}: {objections:?}");
            }
            let given = ["arguments", "toml"].iter().find_map(|form| row["given"][form].as_str());
            if let Some(given) = given {
                assert_eq!(framework.options(&facts).unwrap(), given, "{place}");
            }
        }
    }
}

#[test]
fn torchtitan_says_what_the_rules_say() {
    check("torchtitan");
}

#[test]
fn pytorch_says_what_the_rules_say() {
    check("pytorch");
}

#[test]
fn megatron_bridge_says_what_the_rules_say() {
    check("megatron-bridge");
}

#[test]
fn deepspeed_says_what_the_rules_say() {
    check("deepspeed");
    check("megatron-deepspeed");
}

#[test]
fn nanotron_says_what_the_rules_say() {
    check("nanotron");
}
