//! Numbers at the limits of floating point, in every field that is read: refused, or results that are finite.

use pipesim::costs::{Analytic, Platform};
use pipesim::models::{
    Field, HardwareError, ModelPrediction, hardware_file, read_huggingface, stack_file, transformer_named,
};
use pipesim::{CostFile, Costs, GivenCosts, Hardware, ParallelConfig, Precision, Selection, Stack, StepEstimate, Zero};
use serde_json::{Value, json};

/// The places of a JSON text in which nothing stands; a suggestion may be missing.
fn missing(value: &Value, place: &str) -> Vec<String> {
    match value {
        Value::Null if !place.ends_with("remedy") => vec![place.to_string()],
        Value::Array(all) => all.iter().flat_map(|value| missing(value, place)).collect(),
        Value::Object(all) => all.iter().flat_map(|(key, value)| missing(value, &format!("{place}.{key}"))).collect(),
        _ => Vec::new(),
    }
}

/// Three layouts that use links, network, experts, FSDP's collectives, copies to the host and narrow precisions.
fn layouts() -> [(&'static str, &'static str, ParallelConfig); 4] {
    let layout = ParallelConfig { pp: 2, micro: 4, dp: 4, tp: 2, ..ParallelConfig::default() };
    let experts = ParallelConfig { ep: 4, sequence_parallel: true, ..layout.clone() };
    let sharded = ParallelConfig { zero: Zero::Weights, cp: 2, precision: Precision::Fp8, ..layout.clone() };
    let single = ParallelConfig { dp: 16, tp: 1, precision: Precision::Fp32, ..layout.clone() };
    let copied = ParallelConfig { pp: 4, dp: 1, micro: 8, ..layout };
    [
        ("mixtral-8x7b", "1f1b", experts),
        ("llama-3-8b", "1f1b", sharded),
        ("llama-3-8b", "1f1b", single),
        ("llama-3-8b", "1f1b-offload", copied),
    ]
}

/// Predicts, and returns whether there is a prediction.
fn is_predicted(what: &str, hardware: &Hardware, stack: &Stack, case: usize) -> bool {
    let (model, schedule, layout) = layouts()[case].clone();
    let machine = Platform { hardware: hardware.clone(), stack: stack.clone() };
    let selection = Selection::new(layout.pp, layout.micro);
    let costs = Analytic::new(transformer_named(model).unwrap(), machine, layout).unwrap();
    let found = selection.resolve(schedule, &Costs::Analytic(Box::new(costs.clone())));
    let Ok(resolved) = found else { return false };
    let Ok(predicted) = resolved.predict() else { return false };
    let Ok(estimate) = StepEstimate::new(&costs, &predicted) else { return false };
    let both = json!([predicted.prediction, estimate]);
    assert!(missing(&both, "").is_empty(), "{what}: {:?}", missing(&both, ""));
    true
}

/// The numbers to try instead of one in a file.
const EXTREMES: [&str; 9] = ["5e-324", "1e-310", "1e-200", "1e-13", "1e-12", "1e-6", "1e3", "1e6", "1e308"];

#[test]
fn hardware_and_software_at_the_limits() {
    let none = |path: &str| Err(HardwareError::File(path.to_string()));
    let [mut read, mut predicted] = [0, 0];
    let usual = stack_file("mine.toml", "base = \"megatron-core\"", &none).unwrap();
    let h100 = hardware_file("mine.toml", "base = \"h100-sxm\"", &none).unwrap();
    for case in 0..layouts().len() {
        assert!(is_predicted("as it is", &h100, &usual, case), "{case}");
    }
    let mut try_all = |fields: &[Field], of: &dyn Fn(&str) -> Option<(Hardware, Stack)>| {
        for (field, extreme) in fields.iter().flat_map(|field| EXTREMES.map(|extreme| (field, extreme))) {
            if let Some((hardware, stack)) = of(&format!("{} = {extreme}", field.name)) {
                read += 1;
                for case in 0..layouts().len() {
                    let what = format!("{} = {extreme}, layout {case}", field.name);
                    predicted += usize::from(is_predicted(&what, &hardware, &stack, case));
                }
            }
        }
    };
    try_all(Hardware::FIELDS, &|line| {
        let text = format!("base = \"h100-sxm\"\n{line}");
        Some((hardware_file("mine.toml", &text, &none).ok()?, usual.clone()))
    });
    try_all(Stack::FIELDS, &|line| {
        let text = format!("base = \"megatron-core\"\n{line}");
        Some((h100.clone(), stack_file("mine.toml", &text, &none).ok()?))
    });
    assert!(read > 200 && predicted > 500, "{read} read, {predicted} predicted");
    for (key, value) in [("link_efficiency", "5e-324"), ("fp8_tflops", "1e-310"), ("kernel_us", "1e-200")] {
        let error = hardware_file("mine.toml", &format!("base = \"h100-sxm\"\n{key} = {value}"), &none).unwrap_err();
        assert!(error.to_string().contains("at least 1e-12"), "{error}");
    }
}

/// Every number of `file` replaced by each of `extremes`.
fn replaced(file: &Value, extremes: &[Value]) -> Vec<(String, Value)> {
    fn places(value: &Value, place: String, found: &mut Vec<String>) {
        match value {
            Value::Number(_) => found.push(place),
            Value::Array(all) => {
                (0..all.len().min(3)).for_each(|index| places(&all[index], format!("{place}/{index}"), found))
            }
            Value::Object(all) => all.iter().for_each(|(key, value)| places(value, format!("{place}/{key}"), found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    places(file, String::new(), &mut found);
    let mut all = Vec::new();
    for (place, extreme) in found.iter().flat_map(|place| extremes.iter().map(move |extreme| (place, extreme))) {
        let mut changed = file.clone();
        *changed.pointer_mut(place).unwrap() = extreme.clone();
        all.push((format!("{place} = {extreme}"), changed));
    }
    all
}

fn extremes() -> Vec<Value> {
    let floats = [5e-324, 1e-310, 1e-24, 1e308].map(|number: f64| json!(number));
    let whole = [0, 1, 1 << 31, 1 << 40, 1 << 62, u64::MAX].map(|number: u64| json!(number));
    [floats.to_vec(), whole.to_vec()].concat()
}

fn predicts(what: &str, schedule: &str, selection: &Selection, costs: &Costs) -> bool {
    let Ok(resolved) = selection.resolve(schedule, costs) else { return false };
    let Ok(predicted) = resolved.predict() else { return false };
    let figures = json!(predicted.prediction);
    assert!(missing(&figures, "").is_empty(), "{what}: {:?}", missing(&figures, ""));
    true
}

#[test]
fn measured_costs_at_the_limits() {
    let file: Value = serde_json::from_str(include_str!("../fuzz/seeds/costs/plain.json")).unwrap();
    let all = replaced(&file, &extremes());
    let of = |(what, text): &(String, Value)| {
        let Ok(file) = CostFile::from_json(&text.to_string()) else { return false };
        predicts(what, "1f1b", &Selection::new(2, 4), &Costs::measured(file, None))
    };
    let predicted = all.iter().filter(|one| of(one)).count();
    assert!(all.len() > 200 && predicted > 50, "{predicted} of {}", all.len());
}

#[test]
fn models_at_the_limits() {
    let text = include_str!("../../models/qwen3-30b-a3b.json");
    let all = replaced(&serde_json::from_str(text).unwrap(), &extremes());
    let layout = ParallelConfig { pp: 2, micro: 4, ep: 4, dp: 4, ..ParallelConfig::default() };
    let costs = pipesim::models::model_costs("llama-3-8b", "h100-sxm", ParallelConfig::default()).unwrap();
    let of = |(what, text): &(String, Value)| {
        let model = read_huggingface(&text.to_string()).ok()?.config;
        let costs = Analytic::new(model, costs.machine.clone(), layout.clone()).ok()?;
        let found = ModelPrediction::new(costs, "1f1b", &Selection::new(2, 4)).ok()?;
        let value = json!([found.resolved.predict().unwrap().prediction, found.estimate]);
        assert!(missing(&value, "").is_empty(), "{what}: {:?}", missing(&value, ""));
        Some(())
    };
    let predicted = all.iter().filter_map(of).count();
    assert!(all.len() > 150 && predicted > 50, "{predicted} of {}", all.len());
}

#[test]
fn given_costs_at_the_limits() {
    let keys = "F I W B comm copy S S_rest IF IB barrier keep attention attention_I stub kv recompute unshard reduce";
    let values = ["5e-324", "1e-310", "1e-24", "1e-12", "1e-6", "0", "1", "1e12", "999999999999999", "1e15", "1e308"];
    let schedules = ["1f1b", "1f1b-recompute", "zb-h1", "seq1f1b:slices=4", "1f1b-vocab", "1f1b-offload"];
    let [mut all, mut predicted] = [0, 0];
    for (key, value) in keys.split(' ').flat_map(|key| values.map(|value| (key, value))) {
        for schedule in schedules {
            all += 1;
            let text = format!("{key}={value}");
            let Ok(costs) = text.parse::<GivenCosts>() else { continue };
            let what = format!("{schedule} {text}");
            predicted += usize::from(predicts(&what, schedule, &Selection::new(4, 8), &Costs::given(costs)));
        }
    }
    assert!(all > 1000 && predicted > 500, "{predicted} of {all}");
}
