//! `explain`: its sentences come first, and each suggested change gives what it promises.

use crate::cli::{json, pipesim};
use crate::support::Dice;
use pipesim::costs::Slow;
use pipesim::simulation::{Advisor, Change, What};
use pipesim::{Costs, Selection};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

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
        // in a fixed order, free links are links without cost
        let free = predicted(&format!("-p 4 -m 8 -s {name}"));
        assert!(near(&changes(&e, "links")[0]["makespan"], &free["makespan"]));
    }
    // equal stages have the average costs; one of four is 1.4 times as slow here
    let slow = explained("-p 4 -m 8 -s 1f1b --straggler 2=1.4")[0].clone();
    let even = predicted("-p 4 -m 8 -s 1f1b --costs F=1.1,I=1.1,W=1.1");
    assert!(near(&changes(&slow, "stages")[0]["makespan"], &even["makespan"]));
    // 1F1B with split backwards in 1F1B's memory is ZB-H1: (p - 1)(F + I - W) in addition to the work (Qi et al., 2401.10241
    // table 2)
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
    let within = sentences.iter().find(|text| text.contains("Within --memory-cap 3, ")).unwrap();
    for change in changes(&capped, "schedule") {
        let named = within.contains(&format!("`{}`", change["change"].as_str().unwrap()));
        assert!(!named || change["peak_activations"].as_f64().unwrap() <= 3.0, "{within} {change}");
    }
    // costs per stage make a model with twice the stages a different one: nothing to compare
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
        "-p 2 -m 4 -s dualpipe-v,auto --straggler 1=2",
    ] {
        let (code, out, err) = pipesim(&format!("explain -q --tables {line}"));
        assert_eq!(code, 0, "{line}: {err}");
        let without = pipesim(&format!("explain -q {line}")).1;
        assert!(!without.contains("Why devices idle") && without.contains("(bubble "), "{line}: {without}");
        let schedules =
            line.split_once("-s ").map_or(4, |(_, names)| names.split(' ').next().unwrap().split(',').count());
        assert!(without.lines().count() <= 14 + 4 * schedules, "{line}: {without}");
        assert_eq!(without.contains(" is the shortest"), schedules > 1, "{line}: {without}");
        let (sentences, tables) = out.split_once("Why devices idle").unwrap();
        for block in sentences.split("\n\n").filter(|block| block.contains("(bubble ")) {
            assert!(block.lines().count() <= 7, "a name and at most six lines: {block}");
        }
        for caption in [
            "Lower bounds of the makespan",
            "How much of the makespan 1 % less",
            "A critical path of each",
            "Activations that devices",
        ] {
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
    assert!(markdown.starts_with("**1f1b**\n\n- 33 units: an average device works 24 and idles 9 units"), "{markdown}");
    let (_, out, _) = pipesim("explain -q -p 4 -m 8 -s 1f1b,zb-v --costs F=1,I=1,W=1,comm=0.1 --tables");
    for part in [
        "1 % faster devices 1 and 2 save 0.26 % each",
        "Holding more than 4 activations makes no tried schedule shorter",
        "free links would save",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

/// A saved prediction is explained into a folder: its own timeline, and the one of its costs.
#[test]
fn a_saved_prediction_is_explained_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (saved, report) = (folder.path().join("saved.json"), folder.path().join("report"));
    let (code, _, err) = pipesim(&format!("predict -q -p 2 -m 4 -s 1f1b --costs F=1ms -o {}", saved.display()));
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = pipesim(&format!("explain -q {} -o {}", saved.display(), report.display()));
    assert_eq!(code, 0, "{err}");
    for name in ["1f1b-predicted.json", "1f1b-saved-predicted.json"] {
        assert!(report.join(name).is_file(), "{name}");
    }
}

/// One request: a schedule, p, m and costs as a user gives them, some left out, with a slow device and messages.
struct Question {
    schedule: &'static str,
    selection: Selection,
    /// F, I, W, B and comm in full.
    times: [f64; 5],
    given: String,
    slow: Option<u32>,
}

const QUESTIONS: [&str; 15] = [
    "1f1b",
    "gpipe",
    "zb-h1",
    "zb-h2",
    "chimera",
    "hanayo",
    "zb-v",
    "zb-v-greedy",
    "1f1b-v",
    "interleaved-1f1b",
    "group-interleaved",
    "dualpipe",
    "v-half",
    "zb-2p",
    "v-zb",
];
const SLOWNESS: f64 = 1.3;

impl Question {
    fn drawn(schedule: &'static str, dice: &mut Dice) -> Question {
        let mut time = || (1 + dice.below(400)) as f64 / [1.0, 2.0, 10.0][dice.below(3)];
        let [f, i, w, b] = [time(), time(), time(), time()];
        let (times, mut given) = match dice.below(4) {
            0 => ([f, b / 2.0, b / 2.0, b], format!("F={f},B={b}")),
            1 => ([f, f, f, 2.0 * f], format!("F={f}")),
            2 => ([f, i, w, i + w + b], format!("F={f},I={i},W={w},B={}", i + w + b)),
            _ => ([f, i, w, i + w], format!("F={f},I={i},W={w}")),
        };
        let comm = [0.0, 0.3, 7.5][dice.below(3)];
        if comm > 0.0 {
            given += &format!(",comm={comm}");
        }
        let p = [2, 4][dice.below(2)];
        let selection = Selection::new(p, p * (1 + dice.below(2) as u32) + 2 * (dice.below(2) as u32));
        let slow = (dice.below(2) == 0).then(|| dice.below(p as usize) as u32);
        let [f, i, w, b] = times;
        Question { schedule, selection, times: [f, i, w, b, comm], given, slow }
    }

    fn slow(&self) -> Slow {
        self.slow.into_iter().map(|device| (device, SLOWNESS.to_string().parse().unwrap())).collect()
    }

    /// These costs written in full.
    fn costs([f, i, w, b, comm]: [f64; 5], slow: Slow) -> Costs {
        Costs::Given { costs: Box::new(format!("F={f},I={i},W={w},B={b},comm={comm}").parse().unwrap()), slow }
    }

    fn makespan(&self, name: &str, microbatches: u32, costs: &Costs) -> Option<f64> {
        let selection = Selection { microbatches, ..self.selection.clone() };
        let resolved = selection.resolve(name, costs).ok()?;
        Some(resolved.predict().unwrap().metrics().makespan)
    }

    /// Returns the makespan with 1 % less time of a part in the sensitivities; `None` for parts without an option.
    fn with_part_faster(&self, part: &str) -> Option<f64> {
        let (mut times, mut slow) = (self.times, self.slow());
        match (
            ["F", "I", "W", "B", "communication"].iter().position(|&name| name == part),
            part.strip_prefix("device "),
        ) {
            (Some(number), _) => times[number] *= 0.99,
            (_, Some(device)) => {
                let device = device.parse().unwrap();
                let factor = if self.slow == Some(device) { SLOWNESS * 0.99 } else { 0.99 };
                slow.insert(device, format!("{factor:.6}").parse().unwrap());
            }
            _ => return None,
        }
        self.makespan(self.schedule, self.selection.microbatches, &Question::costs(times, slow))
    }

    /// Returns the makespan of a change, requested by itself; `None` for changes without an option.
    fn with_change(&self, change: &Change) -> Option<f64> {
        let [f, i, w, b, comm] = self.times;
        let (m, p) = (self.selection.microbatches, f64::from(self.selection.devices));
        let full = Question::costs(self.times, self.slow());
        match &change.what {
            What::Schedule(name) => self.makespan(name, m, &full),
            What::Micro(_) => self.makespan(self.schedule, change.microbatches, &full),
            What::Links => self.makespan(self.schedule, m, &Question::costs([f, i, w, b, 0.0], self.slow())),
            What::Stages => {
                let average = (p - 1.0 + SLOWNESS) / p;
                let times = [f * average, i * average, w * average, b * average, comm];
                self.makespan(self.schedule, m, &Question::costs(times, Slow::new()))
            }
            What::Split | What::Layers(_) | What::Balance => None,
        }
    }
}

/// Every suggested change is predicted: requested by itself, with all costs written out, it gives the same.
#[test]
fn every_number_of_the_advice_is_a_prediction_of_its_own() {
    let (mut dice, mut compared, mut parts, mut held) = (Dice(24), BTreeMap::new(), 0, BTreeSet::new());
    for schedule in QUESTIONS.into_iter().cycle().take(75) {
        let question = Question::drawn(schedule, &mut dice);
        let Question { selection, given, slow, .. } = &question;
        let asked = format!("{schedule} p={} m={} {given} slow {slow:?}", selection.devices, selection.microbatches);
        let costs = Costs::Given { costs: Box::new(given.parse().unwrap()), slow: question.slow() };
        let Ok(resolved) = selection.resolve(schedule, &costs) else { continue };
        let predicted = resolved.predict().unwrap();
        let now = predicted.metrics().makespan;
        let full = Question::costs(question.times, question.slow());
        let close = |found: f64, expected: f64, what: &str| {
            assert!((found - expected).abs() <= 1e-7 * now, "{asked}: {what} {found}, by itself {expected}");
        };
        close(now, question.makespan(schedule, selection.microbatches, &full).unwrap(), "makespan");
        let mut advisor = Advisor::new(selection, &costs);
        for change in advisor.advise(schedule, &resolved, &predicted).changes {
            let Some(then) = question.with_change(&change) else { continue };
            close(change.makespan, then, &change.what.to_string());
            *compared.entry(change.what.kind()).or_insert(0) += 1;
        }
        let sensitivities = advisor.sensitivities(schedule, &predicted);
        if sensitivities.order_held_fixed {
            held.insert(schedule);
            continue;
        }
        for part in &sensitivities.list {
            let Some(then) = question.with_part_faster(&part.part) else { continue };
            close(part.percent * now / 100.0, now - then, &part.part);
            parts += 1;
        }
    }
    println!("{compared:?}, {parts} sensitivities");
    assert_eq!(
        held.into_iter().collect::<Vec<_>>(),
        ["1f1b-v", "v-half", "v-zb", "zb-2p", "zb-v-greedy"],
        "only searched orders are held fixed"
    );
    let enough = [("schedule", 1000), ("micro", 60), ("links", 30), ("stages", 20)];
    let all = enough.iter().all(|(what, least)| compared.get(*what) >= Some(least));
    assert!(all && parts >= 300, "{compared:?}, {parts}");
}

/// Options of a command with their values: a schedule with given costs, a model on hardware, a mixture, or a cost file.
fn drawn_options(dice: &mut Dice) -> BTreeMap<&'static str, String> {
    const SCHEDULES: [&str; 14] = [
        "1f1b",
        "gpipe",
        "zb-h1",
        "zb-h2",
        "chimera",
        "zb-v",
        "1f1b-v",
        "interleaved-1f1b",
        "dualpipe-v",
        "v-half",
        "looped-bfs",
        "interleaved-zb",
        "zb-v-greedy",
        "auto",
    ];
    let kind = dice.below(5);
    let p = if kind == 4 { 2 } else { [2, 4][dice.below(2)] };
    let m = p * (1 + dice.below(3));
    let numbers = [("--stages", p), ("--micro", m)].map(|(name, number)| (name, number.to_string()));
    let mut options = BTreeMap::from(numbers);
    let mut set = |name, value: &str| options.insert(name, value.to_string());
    set("--schedule", SCHEDULES[dice.below(SCHEDULES.len())]);
    let time = |dice: &mut Dice| (10 + dice.below(390)) as f64 / 10.0;
    match kind {
        0 => {
            let [f, i, w] = [(); 3].map(|()| time(dice));
            let comm = ["", ",comm=0.3", ",comm=7.5"][dice.below(3)];
            set("--costs", &format!("F={f},I={i},W={w}{comm}"));
            set("--layers", &(4 * p + 1).to_string());
        }
        1 => {
            let list = |each: &mut dyn FnMut() -> String| (0..p).map(|_| each()).collect::<Vec<_>>();
            let times = list(&mut || time(dice).to_string()).join(":");
            set("--costs", &format!("F={times},B=30"));
            set("--layers", &list(&mut || (3 + dice.below(3)).to_string()).join(","));
            if dice.below(3) == 0 {
                set("--straggler", "0=1.3");
            }
        }
        2 => {
            set("--model", "llama-3-8b");
            set("--hardware", ["h100-sxm", "a100-sxm-80gb"][dice.below(2)]);
            set("--seq", "4096");
            set("--tp", ["1", "2", "8"][dice.below(3)]);
            set("--dp", ["1", "2"][dice.below(2)]);
        }
        3 => {
            let mixture = [("--model", "qwen3-30b-a3b"), ("--hardware", "h100-sxm"), ("--seq", "2048")];
            mixture.into_iter().chain([("--dp", "8"), ("--ep", "8")]).for_each(|(name, value)| drop(set(name, value)));
        }
        _ => drop(set("--profile", &crate::support::root().join("examples/gpt2-two-gpus.json").display().to_string())),
    }
    if dice.below(4) == 0 {
        set("--memory-cap", &p.to_string());
    }
    if kind != 1 && dice.below(6) == 0 {
        set("--balance", "");
    }
    options
}

fn words(options: &BTreeMap<&str, String>) -> String {
    options.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(" ")
}

/// Compares the changes of one explanation with the commands that they mean, and returns their kinds.
fn compared_with_commands(options: &BTreeMap<&'static str, String>, dice: &mut Dice) -> Vec<&'static str> {
    let line = words(options);
    let (code, out, err) = pipesim(&format!("explain -q --format json {line}"));
    if code != 0 {
        assert!([2, 3].contains(&code), "{line}: {err}");
        return Vec::new();
    }
    let explained: Value = serde_json::from_str(&out).unwrap();
    let explained = &explained["explanations"][0];
    let mut tried = Vec::new();
    for what in ["schedule", "micro", "layers", "balance"] {
        let mut all = changes(explained, what);
        while all.len() > 3 {
            all.swap_remove(dice.below(all.len()));
        }
        tried.extend(all.into_iter().map(|change| (what, change)));
    }
    for (what, change) in &tried {
        let text = change["change"].as_str().unwrap();
        let mut changed = options.clone();
        if ["layers", "balance"].contains(what) {
            changed.remove("--balance");
        }
        match text.split_once(' ') {
            _ if *what == "schedule" => changed.insert("--schedule", text.to_string()),
            Some((_, value)) if *what == "micro" => changed.insert("--micro", value.to_string()),
            Some((_, value)) => changed.insert("--layers", value.to_string()),
            None => changed.insert("--balance", String::new()),
        };
        let line = words(&changed);
        let alone = predicted(&line);
        let makespan = alone["typical_speed"].get("makespan").unwrap_or(&alone["makespan"]);
        assert_eq!(&change["makespan"], makespan, "{change}: {line}");
        let peaks = alone["per_device"].as_array().unwrap().iter().map(|one| one["peak_activations"].as_f64().unwrap());
        assert_eq!(change["peak_activations"].as_f64(), peaks.reduce(f64::max), "{change}: {line}");
    }
    tried.into_iter().map(|(what, _)| what).collect()
}

/// The command with a suggested change predicts what the suggestion promises: the same number in JSON. `PIPESIM_EXPLANATIONS` is the number
/// of commands.
#[test]
fn every_change_is_the_prediction_of_the_command_with_that_change() {
    let number = std::env::var("PIPESIM_EXPLANATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let (mut dice, mut compared) = (Dice(45), BTreeMap::new());
    for _ in 0..number {
        let options = drawn_options(&mut dice);
        for what in compared_with_commands(&options, &mut dice) {
            *compared.entry(what).or_insert(0) += 1;
        }
    }
    println!("{compared:?}");
    let least = [("schedule", 2 * number), ("micro", number), ("layers", number / 8), ("balance", number / 8)];
    assert!(least.iter().all(|(what, least)| compared.get(what) >= Some(least)), "{compared:?}");
}

/// Returns the only sentence of each explanation that contains `part`.
fn sentence(arguments: &str, part: &str) -> String {
    let all = explained(arguments);
    let found = all.iter().flat_map(|e| e["sentences"].as_array().unwrap()).map(|s| s.as_str().unwrap());
    found
        .clone()
        .find(|text| text.contains(part))
        .unwrap_or_else(|| panic!("{part}: {:?}", found.collect::<Vec<_>>()))
        .into()
}

#[test]
fn sentences_agree_with_proofs_ties_and_tables() {
    // three devices wait equally for the slow fourth
    let slow = "-p 4 -m 16 -s 1f1b --costs F=18.5ms,I=15ms,W=12ms --straggler 3=1.3";
    assert!(sentence(slow, "Idle: ").contains("devices 0, 1 and 2 most of all, 354.9 ms each"));
    // V-Half is proven to be the best within its peaks: nothing can be saved, however far the bound
    let proven = sentence("-p 4 -m 8 -s v-half --exact 200000", "o order");
    assert!(proven.starts_with("No order of these ops is shorter if no device may hold more"), "{proven}");
    // one answer within the peaks and one without, each with its name, and both are those of the table
    let lists = "-p 4 -m 8 -s chimera --costs F=1,I=1,W=1,comm=0.2";
    let [e] = explained(lists).try_into().unwrap();
    let makespan = e["makespan"].as_f64().unwrap();
    let saves = |bounds: &str| format!("{:.1} %", 100.0 * (1.0 - e[bounds]["best"].as_f64().unwrap() / makespan));
    let [here, any] = ["bounds_at_own_peaks", "bounds"].map(saves);
    let expected = format!("saves at most {here} if no device may hold more, and at most {any} otherwise");
    assert!(here != any && sentence(lists, "Reordering").contains(&expected), "{expected}");
    let (_, out, _) = pipesim(&format!("explain -q --tables {lists}"));
    let row =
        out.lines().skip_while(|line| !line.contains("saves at most (own")).find(|line| line.starts_with("chimera"));
    assert!(row.is_some_and(|row| row.ends_with(&here) && row.contains(&any)), "{row:?}");
    // results for an order that a search would change are marked
    assert!(sentence("-p 4 -m 8 -s v-half", "1 % faster").contains("with the order held fixed"));
}

/// Assumptions about missing --costs appear in all text output, quiet or not, and in JSON; never in CSV.
#[test]
fn assumed_costs_are_said() {
    let costs = "-p 2 -m 4 -s 1f1b --costs F=18.5ms,B=27ms";
    for line in [
        format!("predict -q {costs}"),
        format!("explain -q {costs}"),
        format!("check {} -q", costs.replace("1f1b", "chimera")),
        format!("predict -q {costs} --format md"),
    ] {
        let (code, out, err) = pipesim(&line);
        assert_eq!(code, 0, "{err}");
        assert!(
            out.starts_with(
                "costs: --costs leaves some out, so I = W = B/2 is assumed: F = 18.5, I = 13.5, W = 13.5, B = 27 ms\n"
            ),
            "{line}: {out}"
        );
    }
    assert_eq!(predicted(costs)["costs_assumed"], serde_json::json!(["I = W = B/2"]));
    assert_eq!(explained(costs)[0]["costs_assumed"], serde_json::json!(["I = W = B/2"]));
    let (_, csv, _) = pipesim(&format!("predict -q {costs} --format csv"));
    assert!(csv.starts_with("schedule,") && csv.lines().count() == 2, "{csv}");
    let (_, out, _) = pipesim("predict -q -p 2 -m 4 -s 1f1b --costs F=1,I=1,W=1");
    assert!(!out.contains("assumed"), "{out}");
    assert!(predicted("-p 2 -m 4 -s 1f1b --costs F=1,I=1,W=1").get("costs_assumed").is_none());
    // the same as with the halves written out
    let makespan = |line: &str| predicted(line)["makespan"].clone();
    assert_eq!(
        makespan("-p 4 -m 16 -s zb-v --costs F=18.5,B=27"),
        makespan("-p 4 -m 16 -s zb-v --costs F=18.5,I=13.5,W=13.5")
    );
}

#[test]
fn slow_slices_are_not_called_slow_stages() {
    let told = |line: &str| {
        let (code, out, err) = pipesim(&format!("explain -q -p 4 -m 8 {line}"));
        assert_eq!(code, 0, "{err}");
        out
    };
    let (slices, stages) = ("imbalance (waiting for slices", "imbalance (waiting for slow stages)");
    // Attention makes later slices longer on all stages alike.
    let attention = told("-s seq1f1b:slices=4 --costs attention=0.5");
    assert!(attention.contains(slices) && !attention.contains(stages), "{attention}");
    // Equal slices, and one stage that is slower.
    let straggler = told("-s seq1f1b:slices=4 --straggler 2=1.4");
    assert!(straggler.contains(stages) && !straggler.contains(slices), "{straggler}");
    assert!(told("-s 1f1b --straggler 2=1.4").contains(stages));
}
