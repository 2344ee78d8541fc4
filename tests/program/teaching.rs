//! What teaches: formulas are what the simulation gives, the tour's commands give its figures, every word of a table is defined.

use crate::cli::{fails, json, pipesim};
use crate::support::root;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The value of a formula as people write it: + - * / //, parentheses, min(..), and nothing for times.
struct Formula<'a> {
    words: Vec<&'a str>,
    at: usize,
    known: &'a BTreeMap<&'a str, f64>,
}

fn value(text: &str, known: &BTreeMap<&str, f64>) -> f64 {
    let mut words = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let long = |is: fn(char) -> bool| rest.find(|c| !is(c)).unwrap_or(rest.len());
        let length = match first {
            c if c.is_ascii_alphabetic() => long(|c| c.is_ascii_alphanumeric()),
            c if c.is_ascii_digit() => long(|c| c.is_ascii_digit()),
            _ if rest.starts_with("//") => 2,
            _ => 1,
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    let mut formula = Formula { words, at: 0, known };
    let found = formula.sum();
    assert_eq!(formula.at, formula.words.len(), "{text}");
    found
}

impl<'a> Formula<'a> {
    fn next(&self) -> &'a str {
        self.words.get(self.at).copied().unwrap_or("")
    }

    fn took(&mut self, word: &str) -> bool {
        let took = self.next() == word;
        self.at += usize::from(took);
        took
    }

    fn sum(&mut self) -> f64 {
        let mut found = self.product();
        loop {
            if self.took("+") {
                found += self.product();
            } else if self.took("-") {
                found -= self.product();
            } else {
                return found;
            }
        }
    }

    fn product(&mut self) -> f64 {
        let mut found = self.atom();
        loop {
            if self.took("/") {
                found /= self.atom();
            } else if self.took("//") {
                found = (found / self.atom()).floor();
            } else if !["", "+", "-", ")", ","].contains(&self.next()) {
                found *= self.atom();
            } else {
                return found;
            }
        }
    }

    fn atom(&mut self) -> f64 {
        let word = self.next();
        self.at += 1;
        match word {
            "(" => {
                let found = self.sum();
                assert!(self.took(")"));
                found
            }
            "min" => {
                assert!(self.took("("));
                let mut found = self.sum();
                while self.took(",") {
                    found = found.min(self.sum());
                }
                assert!(self.took(")"));
                found
            }
            word => word.parse().ok().or_else(|| self.known.get(word).copied()).unwrap_or_else(|| panic!("{word}?")),
        }
    }
}

/// Each schedule that has a formula for its bubble, with its memory.
fn with_formulas() -> Vec<Value> {
    let list = json("schedules --json");
    list["schedules"].as_array().unwrap().iter().filter(|one| one["bubble"].is_string()).cloned().collect()
}

#[test]
fn formulas_of_bubbles_and_memory_are_what_the_simulation_gives() {
    let all = with_formulas();
    assert!(all.len() >= 13, "{all:?}");
    let mut compared = 0;
    for one in &all {
        let (name, bubble) = (one["name"].as_str().unwrap(), one["bubble"].as_str().unwrap());
        let (formula, condition) = bubble.split_once(", where ").unwrap_or((bubble, ""));
        // what is exposed has no formula: the rest is the least
        let (formula, is_least) = formula.split_once(" and what ").map_or((formula, false), |(least, _)| (least, true));
        let conditions: Vec<&str> = condition.split(" and ").filter(|text| !text.is_empty()).collect();
        let has_v = one["options"].as_array().unwrap().iter().any(|option| option.as_str().unwrap().starts_with("v ="));
        let slices =
            one["options"].as_array().unwrap().iter().find_map(|option| option.as_str()?.strip_prefix("slices = "));
        let slices: f64 = slices.map_or(1.0, |slices| slices.parse().unwrap());
        for (f, i, w) in [(1.0, 1.0, 1.0), (10.0, 12.0, 7.0), (4.0, 5.0, 4.0)] {
            if conditions.contains(&"F = I = W") && (f, i) != (i, w) {
                continue;
            }
            for v in if has_v { vec![2.0, 4.0] } else { vec![1.0] } {
                let variant = if has_v { format!("{name}:v={v}") } else { name.to_string() };
                let line = format!(
                    "predict -q --format json -p 2,4,8 -m 4,8,15,16,24,40 -s {variant} --costs F={f},I={i},W={w}"
                );
                for found in json(&line)["predictions"].as_array().unwrap() {
                    let [p, m] = ["devices", "microbatches"].map(|key| found[key].as_f64().unwrap());
                    let mut known =
                        BTreeMap::from([("p", p), ("m", m), ("v", v), ("F", f), ("I", i), ("W", w), ("B", i + w)]);
                    known.extend([("slices", slices), ("stub", 0.0), ("barriers", 1.0)]);
                    let holds = |condition: &&str| match condition.split_once(" >= ") {
                        Some((one, other)) => value(one, &known) >= value(other, &known),
                        None if *condition == "p divides m" => m % p == 0.0,
                        // they cost nothing here
                        None => ["F = I = W", "copies keep up"].contains(condition),
                    };
                    if !conditions.iter().all(holds) {
                        continue;
                    }
                    let excess = found["makespan"].as_f64().unwrap() - m * (f + i + w);
                    let told = value(formula, &known);
                    let is_it = if is_least { excess >= told - 1e-9 } else { (excess - told).abs() < 1e-9 };
                    assert!(is_it, "{variant} p={p} m={m}: {formula} = {told}, not {excess}");
                    compared += 1;
                    // what the order holds, where there are enough micro-batches to hold it
                    let memory = one["peak_activations"].as_str().unwrap();
                    let memory = memory.split([';']).next().unwrap();
                    let memory = memory.split_once(", and").map_or(memory, |(memory, _)| memory);
                    let (memory, is_most) =
                        memory.strip_prefix("at most ").map_or((memory, false), |most| (most, true));
                    if m < 4.0 * p || memory.contains(" and ") {
                        continue;
                    }
                    known.insert("group", p);
                    for device in found["per_device"].as_array().unwrap() {
                        known.insert("r", device["device"].as_f64().unwrap());
                        let (told, peak) = (value(memory, &known), device["peak_activations"].as_f64().unwrap());
                        // the zero-bubble authors state one figure for all devices: no device holds more
                        let is_exact = memory.contains('r') && !is_most;
                        let fits = if is_exact { (peak - told).abs() < 1e-9 } else { peak <= told + 1e-9 };
                        assert!(fits, "{variant} p={p} m={m} {device}: {memory} = {told}");
                    }
                }
            }
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn a_schedule_is_shown_with_picture_memory_bubble_and_paper() {
    let (code, out, _) = pipesim("schedules interleaved_1f1b");
    assert_eq!(code, 0);
    let text = include_str!("../../schedules/interleaved-1f1b.star");
    let card = out.strip_suffix(text).expect("the file's text is the end");
    assert!(card.lines().all(|line| line.starts_with('#')), "{card}");
    for part in [
        "# interleaved-1f1b:v=2  28.5 units, bubble 15.8 %",
        "# interleaved-1f1b:v=4  26.25 units",
        "# memory   (2 (p - 1 - r) + (v - 1) p + 1) / v   (here 5.5, 4.5, 3.5, 2.5 activations)",
        "# bubble   (p - 1) (F + B) / v, where m >= p   (here 4.5 of 28.5 units, 15.8 %)",
        "# paper    https://arxiv.org/abs/2104.04473",
        "# again    pipesim predict --stages 4 --micro 8 -s interleaved-1f1b:v=2",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    let list = json("schedules --json");
    for one in list["schedules"].as_array().unwrap() {
        let name = one["name"].as_str().unwrap();
        let (code, out, err) = pipesim(&format!("schedules {name}"));
        assert_eq!(code, 0, "{name}: {err}");
        let paper = one["paper"].as_str();
        assert!(paper.is_none_or(|paper| out.contains(paper)) && out.contains("# 3 "), "{name}: {out}");
    }
}

#[test]
fn the_tour_has_eight_screens_whose_commands_give_their_figures() {
    let (code, out, _) = pipesim("tour");
    assert_eq!(code, 0);
    let commands: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("$ pipesim ")).collect();
    let figures: Vec<&str> = out.lines().filter(|line| line.contains("; peak activations ")).collect();
    assert_eq!((commands.len(), figures.len(), out.matches(" of 8  ").count()), (8, 8, 8));
    assert!(commands[0].ends_with("-s naive") && commands[7].ends_with("-s zb-v"), "{commands:?}");
    for (command, figures) in commands.iter().zip(&figures) {
        let found = json(&format!("{command} -q --format json"))["predictions"][0].clone();
        let number = |key: &str| found[key].as_f64().unwrap();
        let peaks = found["per_device"].as_array().unwrap().iter().map(|d| d["peak_activations"].as_f64().unwrap());
        let wanted = format!(
            "{} units, {} per micro-batch; bubble {:.1} %, span bubble {:.1} %; peak activations {}",
            number("makespan"),
            format!("{:.3}", number("makespan") / number("microbatches")).trim_end_matches('0').trim_end_matches('.'),
            100.0 * number("bubble"),
            100.0 * number("span_bubble"),
            peaks.fold(0.0, f64::max)
        );
        assert_eq!(*figures, wanted);
    }
    let next: Vec<&str> =
        out.split_once("\nNext:\n").unwrap().1.lines().filter_map(|line| line.strip_prefix("  pipesim ")).collect();
    assert_eq!(next.len(), 3);
    for command in next.iter().filter(|command| **command != "explore") {
        let (code, out, told) = pipesim(command);
        assert_eq!(code, 0, "{command}: {told}");
        assert!(![out, told].iter().any(|text| text.contains("does not fit")), "{command}");
    }
    assert_eq!(pipesim("tour --all").1, out);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tour.html").display().to_string();
    assert_eq!(pipesim(&format!("tour -q -o {path}")).0, 0);
    let page = std::fs::read_to_string(&path).unwrap();
    assert_eq!((page.matches("<svg").count(), page.matches("<section>").count()), (8, 8));
    let links = page.replace("http://www.w3.org/", "");
    assert!(!links.contains("http") && !page.contains("<script") && !page.contains("src="), "it needs nothing else");
    for text in commands.iter().chain(&figures) {
        assert!(page.contains(text), "{text}");
    }
    fails("tour -o tour.pdf", 2, &[".html"]);
    assert!(pipesim("tour --ascii").1.is_ascii());
}

/// What a table's columns are called, from Markdown.
fn headers(markdown: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = markdown.lines().collect();
    let heads = lines.windows(2).filter(|pair| pair[1].starts_with("| :---")).map(|pair| pair[0]);
    heads.flat_map(|line| line.trim_matches('|').split(" | ").map(|name| name.trim().to_string())).collect()
}

#[test]
fn every_word_of_a_table_is_in_the_glossary() {
    let glossary = std::fs::read_to_string(root().join("docs/src/glossary.md")).unwrap();
    let defined: BTreeSet<String> = glossary
        .lines()
        .filter_map(|line| line.strip_prefix("| **")?.split_once("** |"))
        .flat_map(|(terms, _)| terms.split("**, **").map(str::to_lowercase))
        .collect();
    let mut words = BTreeSet::new();
    for line in [
        "predict -p 4 -m 8",
        "predict -p 4,8 -m 8 -s 1f1b,dualpipe --memory-cap 3",
        "predict -p 4 -m 8 -s 1f1b --jitter 0.1 --samples 10",
        "predict -p 4 -m 8 --model llama-3-8b --hardware h100-sxm -s 1f1b",
        "explain -p 4 -m 8 -s 1f1b",
        "explain -p 2 -m 2 -s zb-h1 --memory-cap 2 --exact",
        "run -p 2 -m 2 -s 1f1b --device timed --steps 1 -o -",
        "run -p 2 -m 2 -s 1f1b MODEL --steps 2 --back-to-back 2 --baseline -o -",
        "report accuracy MODEL --steps 5 -m 2 --calibrate-micro 2 -s 1f1b,gpipe --back-to-back 2 --transfer-to batch=2 -o -",
    ] {
        let line =
            line.replace("MODEL", "--device cpu --blocks 4 --heads 1 --channels 8 --vocabulary 257 --max-sequence 8");
        // a report is Markdown
        let format = if line.starts_with("report ") { "" } else { "--format md" };
        let (code, out, err) = pipesim(&format!("{line} -q {format}"));
        assert_eq!(code, 0, "{line}: {err}");
        words.extend(headers(&out));
    }
    // numbers of things, and places in a row
    let plain = [
        "", "schedule", "device", "most", "second", "third", "fourth", "fifth", "sixth", "p5", "p50", "p95", "p99",
        "mean", "1f1b",
    ];
    let missing: Vec<&String> = words
        .iter()
        .filter(|word| !plain.contains(&word.as_str()) && !defined.contains(&word.to_lowercase()))
        .collect();
    assert!(missing.is_empty(), "docs/src/glossary.md does not define {missing:?}");
}
