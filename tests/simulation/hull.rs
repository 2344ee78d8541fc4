//! The hull of the published steps: rows that others cover are inside, questions outside are told so, and have wider intervals.

use crate::support::root;
use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::{IntervalClass, STACKS, StepEstimate, hardware, hardware_names, stack, transformer_named};
use pipesim::questions::{Question, answer};
use pipesim::schedules::Files;
use pipesim::{ParallelConfig, Precision};
use pipesim_validation::left_out::KINDS;
use pipesim_validation::read;
use serde_json::Value;

fn estimate(text: &str) -> StepEstimate {
    let question = Question::from_toml(&format!("version = 1\n{}\n", text.replace("; ", "\n"))).unwrap();
    let found = answer(&question, &Files).unwrap_or_else(|error| panic!("{text}: {error}"));
    found.predictions.into_iter().next().unwrap().estimate.unwrap()
}

/// A row is inside on an axis exactly if a row of another group has as much of it, or the same name: by the table alone.
#[test]
fn rows_are_inside_where_another_group_is() {
    let above = [
        ("tp", "tensor-parallel ranks"),
        ("pp", "devices per pipeline"),
        ("chunks", "virtual stages per device"),
        ("micro_batch_size", "sequences per micro-batch"),
        ("gpus", "GPUs"),
        ("hidden", "a hidden size above"),
        ("seq", "tokens per sequence"),
    ];
    for kind in KINDS {
        let text = std::fs::read_to_string(root().join(kind.table)).unwrap();
        let values: Vec<Value> = serde_json::from_str(&text).unwrap();
        let values: Vec<&Value> = values.iter().filter(|row| row["quality"] != "C").collect();
        let rows = read(&text).unwrap().0;
        assert_eq!(values.len(), rows.len());
        let mut outside = 0;
        for (row, value) in rows.iter().zip(&values) {
            let said = row.costs().unwrap().hull_point(1).outside(&[]);
            outside += usize::from(!said.is_empty());
            let others = || values.iter().filter(|other| other["group"] != value["group"]);
            for (key, words) in above {
                let size = |row: &Value| row.get(key).or(row["model"].get(key)).unwrap().as_f64().unwrap();
                let is_covered = others().any(|other| size(other) >= size(value));
                let is_said =
                    said.iter().any(|why| why.contains(words) && !why.contains("has fewer") && !why.contains("shards"));
                assert_eq!(is_said, !is_covered, "{}: {key} {said:?}", row.id);
            }
            let is_covered = others().any(|other| other["gpu"] == value["gpu"]);
            assert_eq!(said.iter().any(|why| why.contains(" on ")), !is_covered, "{}: {said:?}", row.id);
            assert!(said.iter().all(|why| why.starts_with("only one group of published ")), "{}: {said:?}", row.id);
        }
        let share = outside as f64 / rows.len() as f64;
        println!("{}: {outside} of {} rows are outside", kind.name, rows.len());
        assert!(share < if kind.name == "dense" { 0.1 } else { 0.4 }, "{share}");
    }
}

/// Questions about what nobody has published, with the words that say so.
#[test]
fn questions_outside_are_told_so() {
    let folder = root().join("tests/golden/reports").display().to_string();
    let large = "model = \"llama-3-405b\"; hardware = \"h100-sxm\"; seq = 8192; sequence-parallel = true; zero = \"1\"";
    let gpt = "model = \"gpt-3-175b\"; hardware = \"a100-sxm-80gb\"; seq = 2048";
    let small = format!(
        "model = \"{folder}/swiss300m.json\"; hardware = \"{folder}/gh200.toml\"; stages = 1; dp = 32; batch = 256"
    );
    let mixture =
        "model = \"gpt-oss-120b\"; hardware = \"h100-sxm\"; stages = 1; dp = 64; ep = 64; batch = 512; seq = 4096";
    for (text, words) in [
        (
            format!("{large}; tp = 16; stages = 8; dp = 4; batch = 256; schedule = \"1f1b\""),
            "beyond one node with megatron-core",
        ),
        (
            format!("{gpt}; tp = 24; stages = 4; dp = 48; batch = 1536; schedule = \"1f1b\""),
            "more than 16 tensor-parallel ranks",
        ),
        (
            format!("{large}; tp = 8; stages = 4; dp = 1; chunks = 16; batch = 64; schedule = \"interleaved-1f1b\""),
            "virtual stages per device",
        ),
        (
            format!("{small}; micro-batch-size = 2; seq = 4096; zero = \"1\"; schedule = \"1f1b\""),
            "in embedding and head",
        ),
        (format!("{small}; micro-batch-size = 2; seq = 4096; zero = \"1\"; schedule = \"1f1b\""), "gh200.toml"),
        (format!("{mixture}; zero = \"3\"; stack = \"automodel\"; schedule = \"1f1b\""), "shards weights with ZeRO-3"),
        (
            format!("{large}; tp = 8; stages = 8; dp = 4; batch = 256; precision = \"fp32\"; schedule = \"1f1b\""),
            "is in fp32",
        ),
    ] {
        let found = estimate(&text);
        assert!(found.outside.iter().any(|why| why.contains(words)), "{text}: {:?}", found.outside);
        assert!(
            found.outside.iter().all(|why| why.starts_with("no published ") || why.starts_with("only one group of "))
        );
    }
    let usual = estimate(&format!("{large}; tp = 8; stages = 8; dp = 4; batch = 256; schedule = \"1f1b\""));
    assert_eq!(usual.outside, [""; 0]);
}

/// The less is known, the wider the interval; half of the runs are closer than nine tenths.
#[test]
fn intervals_widen_with_what_is_not_known() {
    for is_mixture in [false, true] {
        for is_narrow in [false, true] {
            for is_early in [false, true] {
                let of = |outside: usize| IntervalClass { is_narrow, is_mixture, is_early, outside };
                for outside in 0..5 {
                    let [[low, high], [middle_low, middle_high]] = [of(outside).factors(), of(outside).middle()];
                    assert!(low <= middle_low && middle_low <= 1.0 && 1.0 <= middle_high && middle_high <= high);
                    let [wide_low, wide_high] = of(outside + 1).factors();
                    assert!(wide_low <= low && high <= wide_high, "{:?}", of(outside));
                    let [_, early] = IntervalClass { is_early: true, ..of(outside) }.factors();
                    assert!(early >= high);
                }
                let [[_, inside], [_, far]] = [of(0).factors(), of(2).factors()];
                assert!(far > inside || is_mixture, "{:?}", of(0));
            }
        }
    }
}

/// Every machine with every software: a prediction is in its interval, and what is not published is told.
#[test]
fn every_machine_and_software_has_an_interval() {
    let mut known = 0;
    for machine in hardware_names() {
        for software in STACKS {
            for (model, ep) in [("llama-3-8b", 1), ("qwen3-30b-a3b", 4)] {
                for precision in [Precision::Bf16, Precision::Fp8] {
                    let layout = ParallelConfig {
                        pp: 2,
                        dp: 4,
                        ep,
                        micro: 4,
                        sequence: 4096,
                        precision,
                        ..ParallelConfig::default()
                    };
                    let platform = Platform { hardware: hardware(machine).unwrap(), stack: stack(software).unwrap() };
                    let model = transformer_named(model).unwrap();
                    let Ok(costs) = Analytic::new(model, platform, layout) else { continue };
                    let found = costs.estimate("1f1b").unwrap();
                    for [low, high] in [found.iteration_interval_s, found.iteration_interval_50_s] {
                        assert!(low <= found.iteration_s && found.iteration_s <= high, "{machine} {software}");
                    }
                    known += usize::from(found.outside.is_empty());
                    let is_said = |what: &str| found.outside.iter().any(|why| why.ends_with(what));
                    if ["mi300x", "l40s", "cpu"].contains(&machine) {
                        assert!(is_said(&format!(" on {machine}")), "{machine} {software}: {:?}", found.outside);
                    }
                    if software == "llm.c" {
                        assert!(is_said(" uses llm.c"), "{:?}", found.outside);
                    }
                }
            }
        }
    }
    assert!(known > 20, "{known}");
}
