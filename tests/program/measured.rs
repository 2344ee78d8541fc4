//! Measured runs on the command line: `explain RUN.json`, `profile --from`, costs per stage.

use crate::cli::{json, pipesim};
use crate::support::{Dice, root};
use pipesim::costs::Slow;
use pipesim::{Costs, Selection};
use serde_json::Value;

fn run() -> String {
    root().join("examples/slow-stage.json").display().to_string()
}

fn explained(arguments: &str) -> Value {
    json(&format!("explain -q --format json {} {arguments}", run()))["explanations"][0].clone()
}

fn predicted(arguments: &str) -> Value {
    json(&format!("predict -q --format json {arguments}"))["predictions"][0].clone()
}

/// Runs a command line that is refused, and returns what it says.
fn refused(line: &str) -> String {
    let (code, _, err) = pipesim(line);
    assert_eq!(code, 2, "{line}: {err}");
    err
}

#[test]
fn the_first_sentence_names_the_culprit() {
    let found = explained("");
    let first = found["sentences"][0].as_str().unwrap();
    assert!(first.starts_with("Stage 1 (device 1) is 9") && first.contains("everybody waits for it"), "{first}");
    assert_eq!(found["findings"][0]["what"], "slow-stage");
    let time = |name: &str| found["idle"]["total"][name].as_f64().unwrap_or(0.0);
    let causes = ["fill", "drain", "dependence", "communication", "imbalance", "memory", "order", "host", "straggler"];
    let sum: f64 = causes.map(time).iter().sum();
    let whole = 4.0 * found["makespan"].as_f64().unwrap();
    assert!((sum - time("idle")).abs() < 1e-9 && (sum / whole - found["bubble"].as_f64().unwrap()).abs() < 1e-9);
    let makespan = found["predicted_makespan"].as_f64().unwrap();
    assert!(
        (makespan / found["makespan"].as_f64().unwrap() - 1.0 - found["fit"]["makespan_error"].as_f64().unwrap()).abs()
            < 1e-9
    );
    // With layers, moving some of stage 1's is what to do.
    let with_layers = explained("--layers 8,16,8,8");
    let first = with_layers["sentences"][0].as_str().unwrap();
    assert!(first.contains("of its 16 layers would save"), "{first}");
}

#[test]
fn costs_of_a_run_predict_it_and_others() {
    let folder = tempfile::tempdir().unwrap();
    let costs = folder.path().join("costs.json").display().to_string();
    let (code, _, err) = pipesim(&format!("profile --from {} -o {costs}", run()));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("replayed op by op +0.0 %"), "{err}");
    let own = predicted(&format!("-p 4 -m 8 -s 1f1b --profile {costs}"));
    let error = own["makespan"].as_f64().unwrap() / explained("")["makespan"].as_f64().unwrap() - 1.0;
    assert!(error.abs() < 0.02, "{error}");
    for schedule in ["zb-v", "auto", "interleaved-1f1b:v=4"] {
        assert!(predicted(&format!("-p 4 -m 8 -s {schedule} --profile {costs}"))["makespan"].as_f64().unwrap() > 150.0);
    }
    let why = refused(&format!("predict -p 4 -m 8 -s 1f1b --profile {costs} --micro-batch-size 2"));
    assert!(why.contains("leave it out"), "{why}");
    let why = refused(&format!("predict -p 4 -m 8 -s 1f1b --profile {costs} --balance"));
    assert!(why.contains("--layers"), "{why}");
    assert!(refused(&format!("profile --from {} --steps 3", run())).contains("--steps"));
}

#[test]
fn costs_per_stage() {
    let makespan = |arguments: &str| predicted(&format!("-p 4 -m 8 -s 1f1b {arguments}"))["makespan"].as_f64().unwrap();
    // Equal stages are costs per stage.
    assert_eq!(makespan("--costs F=2/2/2/2,B=6"), makespan("--costs F=2,B=6"));
    // One stage of twice the time is a straggler of factor 2.
    assert_eq!(makespan("--costs F=1/2/1/1,I=1/2/1/1,W=1/2/1/1"), makespan("--straggler 1=2"));
    assert_eq!(
        makespan("--costs F=1/2/1/1ms,B=2/4/2/2ms --straggler 1=1.5"),
        makespan("--costs F=1/3/1/1ms,B=2/6/2/2ms")
    );
    // Two stages need a unit, as 4/3 is a fraction.
    let two = |costs: &str| predicted(&format!("-p 2 -m 1 -s gpipe --costs {costs}"))["makespan"].as_f64().unwrap();
    assert_eq!(two("F=4/3ms,B=2ms"), 4.0 + 3.0 + 2.0 + 2.0);
    assert_eq!(two("F=4/2,B=2"), 2.0 + 2.0 + 2.0 + 2.0);
    // Between colons there is no doubt.
    assert_eq!(two("F=4:2,B=2"), 4.0 + 2.0 + 2.0 + 2.0);
    assert_eq!(two("F=4/2:3,B=1/2"), 2.0 + 3.0 + 0.5 + 0.5);
    // Another number of stages cuts the model by depth; the work stays.
    let v = predicted("-p 4 -m 1 -s interleaved-1f1b:v=2 --costs F=1/2/1/1,B=2/4/2/2");
    assert_eq!(v["makespan"].as_f64(), Some(15.0), "one micro-batch goes through all of it");
    let (_, text, _) = pipesim("predict -p 4 -m 8 -s 1f1b --costs F=1/2/1/1,B=2 -q");
    assert!(text.contains("I = W = B/2"), "{text}");
    for (line, why) in [
        ("--costs F=1/2/1/1,B=2/3/4", "4 for F"),
        ("--costs F=1/2/1/1,comm=1/2/3", "same for all stages"),
        ("--costs F=1/2us/1/1ms,B=2ms", "one unit"),
        ("--costs F=1:2us:1:1ms,B=2ms", "one unit"),
        ("--costs F=1:2:,B=2", "expected a number"),
        ("--costs F=1:2/1/1,B=2", "expected a number"),
        ("--costs F=1:2,comm=1:2", "same for all stages"),
        ("--costs F=1/2/1/1 --costs-per layer --layers 8", "--costs-per layer"),
        ("--costs F=1/2/1/1 --balance", "--layers"),
        ("--costs F=1/2/1 --layers 1,2,3", "one value per stage"),
    ] {
        let found = refused(&format!("predict -p 4 -m 8 -s 1f1b {line}"));
        assert!(found.contains(why), "{line}: {found}");
    }
}

/// The makespan of GPipe, by what its ops wait for: `costs` has F and B of each stage.
fn gpipe(costs: &[[u64; 2]], m: usize) -> u64 {
    let p = costs.len();
    let (mut forward, mut backward) = (vec![vec![0; m]; p], vec![vec![0; m]; p]);
    for stage in 0..p {
        for i in 0..m {
            let above = if stage > 0 { forward[stage - 1][i] } else { 0 };
            let before = if i > 0 { forward[stage][i - 1] } else { 0 };
            forward[stage][i] = above.max(before) + costs[stage][0];
        }
    }
    for stage in (0..p).rev() {
        for i in 0..m {
            let below = if stage + 1 < p { backward[stage + 1][i] } else { 0 };
            let before = if i > 0 { backward[stage][i - 1] } else { forward[stage][m - 1] };
            backward[stage][i] = below.max(before).max(forward[stage][i]) + costs[stage][1];
        }
    }
    backward[0][m - 1]
}

#[test]
fn lists_of_costs_are_those_of_each_stage() {
    let mut dice = Dice(27);
    for number in 0..300 {
        let (p, m) = (2 + dice.below(4), 1 + dice.below(5));
        let costs: Vec<[u64; 2]> = (0..p).map(|_| [0; 2].map(|_| 1 + dice.below(40) as u64)).collect();
        // quarters, as decimals, fractions or both; some in a unit
        let quarter = |n: u64, dice: &mut Dice| {
            if dice.below(2) == 0 { format!("{n}/4") } else { format!("{}", n as f64 / 4.0) }
        };
        let unit = ["", "ms"][dice.below(2)];
        let list = |kind: usize, dice: &mut Dice| {
            let each: Vec<String> = costs.iter().map(|stage| quarter(stage[kind], dice)).collect();
            each.join(":") + unit
        };
        let text = format!("F={},B={}", list(0, &mut dice), list(1, &mut dice));
        let given = Costs::Given { costs: Box::new(text.parse().unwrap()), slow: Slow::new() };
        let resolved = Selection::new(p as u32, m as u32).resolve("gpipe", &given).unwrap();
        let makespan = resolved.predict().unwrap().metrics().makespan;
        assert_eq!(4.0 * makespan, gpipe(&costs, m) as f64, "{number}: p = {p}, m = {m}, {text}");
    }
    // fractions between colons do not make lists of other costs
    for (list, one) in [("F=1/3:1/3,I=1/7,W=1/11", "F=1/3,I=1/7,W=1/11"), ("F=1/2:1/2,comm=1/2", "F=1/2,comm=1/2")] {
        let [list, one] = [list, one].map(|costs| predicted(&format!("-p 2 -m 3 -s 1f1b --costs {costs}")));
        let [list, one] = [list, one].map(|found| found["makespan"].as_f64().unwrap());
        assert!((list - one).abs() < 1e-9 * one, "{list} {one}");
    }
}

#[test]
fn given_stages_are_balanced() {
    let stages = "--costs F=1/2/1/1,B=2/4/2/2 --layers 8,16,8,8";
    let found = predicted(&format!("-p 4 -m 8 -s 1f1b {stages} --balance"));
    assert_eq!(found["balance"]["layers_before"], serde_json::json!([8, 16, 8, 8]));
    assert_eq!(found["balance"]["layers"], serde_json::json!([10, 10, 10, 10]), "all layers cost the same");
    // 40 equal layers, ten a device: F = 1.25.
    assert_eq!(found["makespan"].as_f64(), Some(1.25 * 33.0));
    let explained = json(&format!("explain -q --format json -p 4 -m 8 -s 1f1b {stages}"))["explanations"][0].clone();
    let changes = explained["advice"]["changes"].as_array().unwrap();
    let split = changes.iter().find(|change| change["what"] == "balance").unwrap();
    // here --layers says what the costs were measured with
    assert_eq!((&split["change"], split["makespan"].as_f64()), (&"--balance".into(), Some(1.25 * 33.0)));
}

#[test]
fn files_of_stage_times() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let csv = write("a.csv", "stage,layers,F_ms,B_ms\n0,8,18.5,37\n1,8,18.5,37\n2,8,18.5,37\n3,8,24,48\n");
    let toml =
        write("a.toml", "unit = \"ms\"\nF = [18.5, 18.5, 18.5, 24]\nB = [37, 37, 37, 48]\nlayers = [8, 8, 8, 8]\n");
    let makespan = |costs: &str| predicted(&format!("-p 4 -m 8 -s 1f1b --costs {costs}"))["makespan"].clone();
    let text = makespan("F=18.5/18.5/18.5/24ms,B=37/37/37/48ms");
    assert_eq!((makespan(&csv), makespan(&toml)), (text.clone(), text));
    // Two rows are no fraction.
    let two = ["F,B\n1,2\n2,4\n", "F = [1, 2]\nB = [2, 4]\n"];
    let two = [("two.csv", two[0]), ("two.toml", two[1])].map(|(name, text)| {
        predicted(&format!("-p 2 -m 4 -s 1f1b --costs {}", write(name, text)))["makespan"].as_f64()
    });
    assert_eq!(two, [Some(27.0); 2], "four times the slow stage, and F and B of the other before and after");
    assert_eq!(
        predicted(&format!("-p 4 -m 8 -s 1f1b --costs {csv} --balance"))["balance"]["layers_before"],
        serde_json::json!([8, 8, 8, 8])
    );
    for (name, text, why) in [
        ("b.csv", "stage,F_ms,B_us\n0,1,2\n", "one unit"),
        ("c.csv", "stage,F_ms,x\n0,1,2\n", "'x'"),
        ("d.csv", "stage,F\n0,1\n2,1\n", "stage 1"),
        ("e.csv", "", "header"),
        ("i.csv", "stage,F_ms,B_ms\n", "found only the header; add the rows"),
        ("j.csv", "stage,F_ms,B_ms,F_ms\n0,1,2,3\n", "expected one column 'F', found two; leave one of them out"),
        ("f.toml", "G = 1\n", "'G'"),
        ("g.toml", "F = \"a\"\n", "number"),
        ("h.toml", "F = [1, 2\n", "TOML"),
    ] {
        let found = refused(&format!("predict -p 4 -m 8 -s 1f1b --costs {}", write(name, text)));
        assert!(found.contains(why), "{name}: {found}");
    }
}

#[test]
fn what_a_run_does_not_take_is_refused() {
    for (options, why) in
        [("-s 1f1b", "--schedule"), ("-p 4 -m 8", "--stages"), ("--costs F=1", "--costs"), ("--balance", "--balance")]
    {
        let found = refused(&format!("explain {} {options}", run()));
        assert!(found.contains(why), "{options}: {found}");
    }
    assert!(refused("explain").contains("--stages"));
    assert!(refused("explain -p 4").contains("--micro"));
    assert_eq!(pipesim(&format!("explain {} -q --fail-if bubble>10%", run())).0, 4);
}

#[test]
fn a_model_on_hardware_is_explained() {
    let line = "--model llama-3-70b --hardware h100-sxm --stages 4 --tp 8 --batch 16 --seq 8192 -s 1f1b";
    let (found, expected) = (json(&format!("explain -q --format json {line}")), predicted(line));
    assert_eq!(found["explanations"][0]["makespan"], expected["makespan"]);
    assert_eq!(found["explanations"][0]["microbatches"], 16);
}

#[test]
fn traces_are_imported_and_explained_in_one_step() {
    let traces = root().join("tests/golden/kineto/slow_stage1_1f1b_p4_m8");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json").display().to_string();
    let (code, _, err) = pipesim(&format!("import {} -q -o {file}", traces.display()));
    assert_eq!(code, 0, "{err}");
    let of = |what: &str| json(&format!("explain -q --format json {what}"))["explanations"][0]["sentences"].clone();
    let expected = of(&file);
    assert_eq!(of(&traces.display().to_string()), expected);
    let files = (0..4).map(|rank| traces.join(format!("rank{rank}_trace.json.gz")).display().to_string());
    assert_eq!(of(&files.collect::<Vec<_>>().join(" ")), expected);
    let copy = folder.path().join("copy.json").display().to_string();
    std::fs::copy(&file, &copy).unwrap();
    assert!(refused(&format!("explain {file} {copy}")).contains("import it alone"));
}

#[test]
fn steps_are_chosen_by_number() {
    let traces = root().join("tests/golden/kineto/slow_stage1_1f1b_p4_m8").display().to_string();
    let shown = |steps: &str| pipesim(&format!("import {traces} --format md {steps}")).1;
    for both in ["", "--steps 3..4", "--steps 0..99"] {
        assert!(shown(both).contains("step 4 is shown, one of 2 (279.30 ms to 284.98 ms)"), "{}", shown(both));
    }
    assert_eq!(shown("--steps 3").lines().nth(4), shown("--step 3").lines().nth(4));
    assert!(!shown("--steps 3").contains("one of"));
    assert!(refused(&format!("import {traces} --steps 900..901")).contains("correct --steps"));
    assert!(refused(&format!("import {traces} --steps 8..3")).contains("3..8"));
}
