//! `explain`: its sentences come first, and what they promise is what the change gives when it is asked for.

use crate::cli::{json, pipesim};
use serde_json::Value;

fn explained(arguments: &str) -> Vec<Value> {
    let found = json(&format!("explain -q --format json {arguments}"));
    found["explanations"].as_array().unwrap().clone()
}

fn predicted(arguments: &str) -> Value {
    json(&format!("predict -q --format json {arguments}"))["predictions"][0].clone()
}

fn changes(explained: &Value, what: &str) -> Vec<Value> {
    let all = explained["advice"]["changes"].as_array().unwrap();
    all.iter().filter(|change| change["what"] == what).cloned().collect()
}

fn near(one: &Value, other: &Value) -> bool {
    (one.as_f64().unwrap() - other.as_f64().unwrap()).abs() < 1e-9
}

#[test]
fn what_trying_gives_is_what_it_gives() {
    let costs = "--costs F=1,I=1,W=1,comm=0.1";
    for e in explained(&format!("-p 4 -m 8 -s 1f1b,gpipe {costs}")) {
        let schedules = changes(&e, "schedule");
        assert!(schedules.len() > 15, "{schedules:?}");
        for change in &schedules {
            let alone = predicted(&format!("-p 4 -m 8 -s {} {costs}", change["change"].as_str().unwrap()));
            assert!(near(&change["makespan"], &alone["makespan"]), "{change} {alone}");
            let peaks = alone["per_device"].as_array().unwrap().iter().map(|d| d["peak_activations"].as_f64().unwrap());
            assert_eq!(change["peak_activations"].as_f64().unwrap(), peaks.fold(0.0, f64::max), "{change}");
        }
        let best = schedules.windows(2).all(|pair| pair[0]["saves"].as_f64() >= pair[1]["saves"].as_f64());
        assert!(best, "the best first");
        let name = e["schedule"].as_str().unwrap();
        for change in changes(&e, "micro") {
            let line = format!("-p 4 -s {name} {costs} {}", change["change"].as_str().unwrap());
            let (alone, m) = (predicted(&line), change["microbatches"].as_f64().unwrap());
            assert!(near(&change["makespan"], &alone["makespan"]), "{change}");
            let saves = 1.0 - change["makespan"].as_f64().unwrap() / m / (e["makespan"].as_f64().unwrap() / 8.0);
            assert!((change["saves"].as_f64().unwrap() - saves).abs() < 1e-9, "{change}");
        }
        // on a fixed order, free links are links that take nothing
        let free = predicted(&format!("-p 4 -m 8 -s {name}"));
        assert!(near(&changes(&e, "links")[0]["makespan"], &free["makespan"]));
    }
    // equal stages are those whose costs are the average; one of four is 1.4 times as slow here
    let slow = explained("-p 4 -m 8 -s 1f1b --slow 2=1.4")[0].clone();
    let even = predicted("-p 4 -m 8 -s 1f1b --costs F=1.1,I=1.1,W=1.1");
    assert!(near(&changes(&slow, "stages")[0]["makespan"], &even["makespan"]));
    // 1F1B with its backwards split in 1F1B's memory is ZB-H1: (p - 1)(F + I - W) beside the work (Qi et al., 2401.10241 table 2)
    let split = changes(&explained("-p 4 -m 8 -s 1f1b")[0], "split")[0].clone();
    assert_eq!((&split["makespan"], &split["peak_activations"]), (&27.0.into(), &4.0.into()));
    let unequal = changes(&explained("-p 4 -m 12 -s 1f1b --costs F=10,I=12,W=7")[0], "split")[0].clone();
    assert_eq!(unequal["makespan"].as_f64(), Some(12.0 * 29.0 + 3.0 * 15.0));
}

#[test]
fn a_cap_bounds_what_is_offered() {
    let capped = explained("-p 4 -m 8 -s gpipe --memory-cap 3")[0].clone();
    assert_eq!(capped["advice"]["limit"], 3.0);
    let sentences: Vec<&str> = capped["sentences"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    let within = sentences.iter().find(|text| text.starts_with("Within --memory-cap 3")).unwrap();
    for change in changes(&capped, "schedule") {
        let named = within.contains(&format!("`{}`", change["change"].as_str().unwrap()));
        assert!(!named || change["peak_activations"].as_f64().unwrap() <= 3.0, "{within} {change}");
    }
    // costs of a stage make a model of twice the stages another one: nothing to compare
    let per_stage = explained("-p 4 -m 8 -s 1f1b --costs F=1,I=1,W=1 --costs-per stage")[0].clone();
    let names = changes(&per_stage, "schedule");
    assert!(!names.is_empty() && names.iter().all(|change| !change["change"].as_str().unwrap().contains("v=")));
}

#[test]
fn sentences_come_first_and_there_is_one_table_of_each_kind() {
    for line in [
        "-p 4 -m 8",
        "-p 4 -m 8 -s 1f1b,zb-h1 --costs F=1,I=1,W=1,comm=0.1 --memory-cap 4",
        "-p 1 -m 1 -s naive",
        "-p 40 -m 40 -s 1f1b,gpipe",
        "-p 2 -m 4 -s dualpipe-v,auto --slow 1=2",
    ] {
        let (code, out, err) = pipesim(&format!("explain -q {line}"));
        assert_eq!(code, 0, "{line}: {err}");
        let (sentences, tables) = out.split_once("Why devices idle").unwrap();
        for block in sentences.split("\n\n").filter(|block| block.contains("(bubble ")) {
            assert!(block.lines().count() <= 7, "a name and at most six lines: {block}");
        }
        for caption in
            ["Lower bounds of the makespan", "What 1 % less", "A critical path of each", "Activations that devices"]
        {
            assert_eq!(tables.matches(caption).count(), 1, "{line}: {caption}");
        }
        for term in ["fill:", "drain:", "dependence:", "imbalance:", "order:", "head + work + tail:", "0F3 is"] {
            assert!(tables.contains(term), "{line}: {term} is not defined where it stands");
        }
        let memory = if line.contains("--memory-cap") { "memory cap:" } else { "own peak:" };
        assert!(tables.contains(memory), "{line}");
        assert!(tables.lines().count() < 150, "{line}: {} lines", tables.lines().count());
    }
    let (_, markdown, _) = pipesim("explain -q -p 4 -m 8 -s 1f1b --format md");
    assert!(markdown.starts_with("**1f1b**\n\n- 33 units: an average device works 24 and idles 9"), "{markdown}");
    let (_, out, _) = pipesim("explain -q -p 4 -m 8 -s 1f1b,zb-v --costs F=1,I=1,W=1,comm=0.1");
    for part in [
        "1 % faster devices 1 and 2 save 0.26 % each",
        "More than 4 activations would not help",
        "free links would save",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}
