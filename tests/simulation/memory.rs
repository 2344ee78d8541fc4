//! Memory in bytes: closed forms of papers, llm.c's allocations, published measurements, and properties of any layout.

use crate::support::{Dice, golden_list, root};
use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::internals::memory::peak;
use pipesim::models::Attention;
use pipesim::models::{
    DeviceMemory, Memory, MemoryModel, STACKS, SavedActivations, TransformerConfig, hardware, stack, transformer_named,
};
use pipesim::{Costs, ModelPrediction, ParallelConfig, Precision, Recompute, Selection, Stack, TaskGraph, Zero};
use pipesim_validation::{Errors, Row, layouts, read};
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the graph of a named schedule; open orders use the zero-bubble paper's costs.
fn graph(name: &str, p: u32, m: u32, chunks: Option<u32>) -> TaskGraph {
    let costs = Costs::given("F=18.5,I=18.1,W=9.3,comm=0.6,keep=0.5".parse().unwrap());
    Selection { chunks, ..Selection::new(p, m) }.resolve(name, &costs).unwrap().graph
}

/// Returns the chunks, if the schedule leaves them open.
fn chunks(schedule: &str, layout: &ParallelConfig) -> Option<u32> {
    (schedule == "interleaved-1f1b").then_some(layout.chunks)
}

const GIB: f64 = (1u64 << 30) as f64;

fn model(name: &str) -> TransformerConfig {
    transformer_named(name).unwrap_or_else(|| panic!("no model {name}"))
}

/// Returns the memory of `model` under `layout` and `schedule`, with layers split evenly or by the layout.
fn taken(model: &TransformerConfig, layout: &ParallelConfig, schedule: &str) -> Memory {
    let graph = graph(schedule, layout.pp, layout.micro, chunks(schedule, layout));
    let stages = model.spec().split(layout.stages() as usize, layout.layers.as_deref()).unwrap();
    let memory_model = MemoryModel::new(model, layout, &stack(&layout.stack).unwrap());
    memory_model.memory(hardware("h100-sxm").unwrap().memory_bytes(), &stages, graph.schedule())
}

/// Transformer Engine's layers save their inputs in 8 bits. Per token and layer of a gated model that are a byte less for the inputs of
/// the first products of attention and MLP, h each, and of the last product of the MLP, f; attention's output, h, is saved in 8 bits for
/// the product after it and in 16 bits for its own backward, so it takes a byte more.
#[test]
fn products_save_their_inputs_in_eight_bits() {
    let config = model("llama-3-8b");
    let saved = |stack: &str, precision| {
        let layout =
            ParallelConfig { precision, sequence: 4096, stack: stack.to_string(), ..ParallelConfig::default() };
        taken(&config, &layout, "1f1b").per_device[0].activations
    };
    for (stack, bytes) in [("megatron-core", config.channels + config.mlp), ("torchtitan", 0)] {
        let [wide, narrow] = [Precision::Bf16, Precision::Fp8].map(|precision| saved(stack, precision));
        assert_eq!(wide - narrow, 4096 * (config.layers * bytes) as u64, "{stack}");
    }
}

/// llm.c's own sum, and those of its two-GPU pipeline: 7,858 MiB, 5,079.5 and 5,067.6 MiB at B = 4, T = 1024.
#[test]
fn gpt2_as_llm_c_allocates_it() {
    let one = ParallelConfig {
        micro_batch_size: 4,
        precision: Precision::Fp32,
        stack: "llm.c".to_string(),
        ..ParallelConfig::default()
    };
    let totals = |layout: &ParallelConfig| -> Vec<u64> {
        taken(&model("gpt2"), layout, "gpipe").per_device.iter().map(|device| device.total).collect()
    };
    let (b, t, c, heads, layers, vp) = (4_u64, 1024, 768, 12, 12, 50304);
    let floats = 4 * 124_475_904
        + layers * b * t * (18 * c + 4 + heads * t)
        + 2 * b * t * c
        + 3 * b * t
        + b * t * (3 * c).max(heads * t).max(vp)
        + b * t * 5 * c
        + b * heads * t * t;
    assert_eq!(totals(&one), [4 * floats]);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    assert_eq!(mib(4 * floats).round(), 7858.0);
    let two = totals(&ParallelConfig { pp: 2, ..one });
    let rounded: Vec<f64> = two.iter().map(|&bytes| (mib(bytes) * 10.0).round() / 10.0).collect();
    assert_eq!(rounded, [5079.5, 5067.6]);
    // parameters; the final norm's statistics and the losses, which are with the head
    assert_eq!(two[0] - two[1], 16 * (81_947_136 - 81_162_240) - 4 * 3 * b * t);
}

/// 16 bytes per parameter, sharded by ZeRO (arXiv 1910.02054); Megatron's 18, and 6 + 12/d with the distributed optimizer.
#[test]
fn states_take_what_the_papers_say() {
    let all = [Zero::None, Zero::Optimizer, Zero::Gradients, Zero::Weights];
    for name in ["llama-3-8b", "llama-3-70b", "llama-3-405b", "gpt2"] {
        let (model, d) = (model(name), 64);
        let psi = u64::try_from(model.spec().elements()).unwrap();
        let states = |stack: &str, precision, zero| {
            let layout =
                ParallelConfig { dp: d, stack: stack.to_string(), precision, zero, ..ParallelConfig::default() };
            let DeviceMemory { weights, gradients, optimizer, .. } = taken(&model, &layout, "1f1b").per_device[0];
            weights + gradients + optimizer
        };
        let share = |bytes: u64| bytes * psi.div_ceil(u64::from(d));
        let paper = [16 * psi, 4 * psi + share(12), 2 * psi + share(14), share(16)];
        assert_eq!(all.map(|zero| states("megatron-deepspeed", Precision::Fp16, zero)), paper, "{name}");
        let megatron = [18 * psi, 6 * psi + share(12)];
        assert_eq!([all[0], all[1]].map(|zero| states("megatron-core", Precision::Bf16, zero)), megatron, "{name}");
        assert_eq!(states("torchtitan", Precision::Bf16, Zero::Weights), share(16), "{name}");
    }
    // to the last parameter, on any device
    let published = [("gpt2", 124_475_904), ("llama-3-8b", 8_030_261_248), ("llama-3-70b", 70_553_706_496)];
    for (name, parameters) in published.into_iter().chain([("llama-3-405b", 405_853_388_800_u64)]) {
        let weights = |layout: ParallelConfig| {
            let memory = taken(&model(name), &layout, "1f1b");
            memory.per_device.iter().map(|device| device.weights).sum::<u64>()
        };
        assert_eq!(weights(ParallelConfig::default()), 2 * parameters, "{name}");
        if name != "gpt2" {
            // gpt2's tied embedding is stored on both ends
            assert_eq!(
                weights(ParallelConfig { pp: 2, micro: 4, ..ParallelConfig::default() }),
                2 * parameters,
                "{name}"
            );
        }
    }
    assert_eq!(model("gpt2").spec().parameters(), 124_439_808);
}

/// Korthikanti et al. (arXiv 2205.05198), table 2: activation bytes per layer.
#[test]
fn activations_are_korthikantis() {
    let gpt = TransformerConfig::gpt(51_200, 0, 8, 32, 4096);
    let (s, b, h, a, t) = (2048_u64, 2, 4096, 32, 8);
    let of = |layers: usize, layout: &ParallelConfig| {
        let model = TransformerConfig { layers, ..gpt };
        taken(&model, layout, "1f1b").per_device[0].activations
    };
    let layer = |layout: &ParallelConfig| of(8, layout) - of(7, layout);
    let plain = ParallelConfig {
        micro_batch_size: b as u32,
        sequence: s as u32,
        attention: Some(Attention::Plain),
        stack: "megatron-lm".to_string(),
        ..ParallelConfig::default()
    };
    let sbh = s * b * h;
    // the paper omits the statistics of the LayerNorms, 16 bytes per token
    let statistics = 16 * s * b;
    assert_eq!(layer(&plain), 34 * sbh + 5 * a * s * s * b + statistics);
    let tensor = ParallelConfig { tp: t as u32, ..plain.clone() };
    assert_eq!(layer(&tensor), 10 * sbh + 24 * sbh / t + 5 * a * s * s * b / t + statistics);
    let sequence = ParallelConfig { sequence_parallel: true, ..tensor.clone() };
    assert_eq!(layer(&sequence), (34 * sbh + 5 * a * s * s * b + statistics) / t);
    let sums = 4 * a * s * b / t; // one number a row of scores
    let selective = ParallelConfig { recompute: Recompute::Selective, ..sequence.clone() };
    assert_eq!(layer(&selective), (34 * sbh + statistics) / t + sums);
    assert_eq!(layer(&ParallelConfig { attention: Some(Attention::Flash), ..sequence.clone() }), layer(&selective));
    assert_eq!(layer(&ParallelConfig { recompute: Recompute::Full, ..tensor }), 2 * sbh);
}

/// In flight: GPipe keeps m micro-batches, 1F1B min(m, p - i); I frees what W does not need (Qi et al., arXiv 2401.10241).
#[test]
fn activations_follow_the_schedule() {
    let gpt = TransformerConfig::gpt(51_200, 0, 8, 32, 4096);
    let layout = ParallelConfig { pp: 4, micro: 8, stack: "megatron-lm".to_string(), ..ParallelConfig::default() };
    let held = |schedule: &str| -> Vec<u64> {
        let memory = taken(&gpt, &layout, schedule);
        memory.per_device.iter().map(|device| device.activations).collect()
    };
    let (gpipe, one) = (held("gpipe"), held("1f1b"));
    assert_eq!(gpipe[1] % 8, 0);
    assert_eq!(one[1..3], [gpipe[1] / 8 * 3, gpipe[1] / 8 * 2]);
    // in zb-h1 W's are delayed: device i holds p - i whole micro-batches, and what W needs of i
    let zero_bubble = held("zb-h1");
    assert!(zero_bubble[1] > one[1] && zero_bubble[1] < one[1] + gpipe[1] / 8, "{zero_bubble:?} {one:?}");
}

/// Returns the published rows, each with its JSON.
fn published() -> Vec<(Row, Value)> {
    let values = golden_list("throughputs/measured.json");
    read(&Value::from(values.clone()).to_string()).unwrap().0.into_iter().zip(values).collect()
}

/// Every published row with a memory figure. BLOOM's figures are the driver's, including memory outside of the allocator; the
/// others are the allocator's.
#[test]
fn measured_memory_is_predicted() {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut known: BTreeMap<String, Memory> = BTreeMap::new();
    for (row, found) in published().iter().filter(|(_, found)| !found["memory_gb"].is_null()) {
        let mut analytic = row.costs().unwrap();
        // a pipeline holds most when it is full: 2p micro-batches are enough, or p for schedules with half the memory
        let full = if row.schedule() == "v-half" { 1 } else { 2 };
        analytic.layout.micro = analytic.layout.micro.min(full * analytic.layout.pp);
        let (layout, schedule) = (analytic.layout.clone(), row.schedule());
        let memory = known.entry(format!("{:?}{layout:?}{schedule}", row.sizes())).or_insert_with(|| {
            let graph = graph(schedule, layout.pp, layout.micro, chunks(schedule, &layout));
            let stages = analytic.stages(graph.schedule().placement.stages()).unwrap();
            analytic.memory_model().memory(analytic.machine.hardware.memory_bytes(), &stages, graph.schedule())
        });
        let family = found["family"].as_str().unwrap();
        let bytes = if family == "BLOOM" { memory.fullest().total } else { memory.fullest().allocated };
        let measured = found["memory_gb"].as_f64().unwrap_or_default();
        let error = bytes as f64 / GIB / measured - 1.0;
        println!(
            "{} {schedule} {layout}: measured {measured}, predicted {:.2}, {:+.1} % {:?}",
            found["id"],
            bytes as f64 / GIB,
            100.0 * error,
            memory.fullest()
        );
        errors.entry(family.to_string()).or_default().push(error);
    }
    let mean = |errors: &[f64]| errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
    for (family, errors) in &errors {
        let bias = errors.iter().sum::<f64>() / errors.len() as f64;
        println!(
            "{family}: {} rows, mean error {:.1} %, bias {:+.1} %",
            errors.len(),
            100.0 * mean(errors),
            100.0 * bias
        );
    }
    let all: Vec<f64> = errors.values().flatten().copied().collect();
    println!("all: {} rows, mean error {:.2} %", all.len(), 100.0 * mean(&all));
    assert_eq!(all.len(), 134);
    assert!(mean(&all) <= 0.10);
}

/// The half of a published grid whose licence forbids copying it here: run where it is present. Whole logits, unfused norms and
/// lost memory are in the stacks; nothing is fitted to single runs.
#[test]
fn layouts_that_ran_out_of_memory_are_found() {
    let Ok(text) = std::fs::read_to_string(root().join("../shared/golden/layouts/rows.json")) else { return };
    let runs = layouts::predict(layouts::read(&text).unwrap());
    let score = layouts::OutOfMemoryScore::of(&runs);
    assert!(score.recall() >= 0.95 && score.precision() >= 0.9, "{score:?}");
    let errors: Vec<(f64, f64)> = runs.iter().filter_map(|run| Some((run.error()?, 1.0))).collect();
    let errors = Errors::of(&errors);
    assert!(errors.rows > 150 && errors.mean < 0.1, "{errors:?}");
}

/// Facts of software change memory as PyTorch's autograd says: bytes per element and per logit.
#[test]
fn software_decides_what_is_saved() {
    let model = TransformerConfig { vocabulary_multiple: 1, ..model("llama-2-13b") };
    let layout = ParallelConfig { tp: 4, sequence: 2048, ..ParallelConfig::default() };
    let held = |change: &dyn Fn(&mut Stack)| {
        let mut software = stack("scaling").unwrap();
        change(&mut software);
        let memory_model = MemoryModel::new(&model, &layout, &software);
        memory_model.left(&model.spec().split(1, None).unwrap()[0]).forward
    };
    let (tokens, width, vocabulary) = (2048, 5120, 32_000);
    let whole = held(&|_| ());
    let shared = held(&|stack| stack.logits = 0.0);
    assert_eq!(whole - shared, tokens * vocabulary * 6 * 3 / 4);
    // two norms per layer and the last one
    let unfused = held(&|stack| stack.norm_saved_bytes = 6.0);
    assert_eq!(unfused - whole, tokens * width * 6 * (2 * 40 + 1));
    let fused = held(&|stack| stack.keeps_gate = 0.0);
    assert_eq!(whole - fused, 40 * tokens * 13_824 * 2 / 4);
}

/// Properties of any layout: categories sum to the total; more ZeRO or tensor parallelism never takes more memory; recomputation
/// never saves more activations.
#[test]
fn more_sharing_never_takes_more() {
    let base = ParallelConfig { pp: 4, micro: 8, tp: 2, dp: 4, sequence: 2048, ..ParallelConfig::default() };
    let zeros = [Zero::None, Zero::Optimizer, Zero::Gradients, Zero::Weights];
    let recomputed = [Recompute::None, Recompute::Selective, Recompute::Full];
    let mut tried = 0;
    for name in ["gpt2-large", "llama-3-8b", "gpt-3-175b"] {
        let model = model(name);
        for stack in STACKS {
            for (schedule, precision) in
                [("1f1b", Precision::Bf16), ("zb-h1", Precision::Fp16), ("zb-v", Precision::Fp8)]
            {
                let layout = ParallelConfig {
                    chunks: if schedule == "zb-v" { 2 } else { 1 },
                    stack: stack.to_string(),
                    precision,
                    ..base.clone()
                };
                let totals = |layout: &ParallelConfig| -> Vec<u64> {
                    let memory = taken(&model, layout, schedule);
                    for device in &memory.per_device {
                        let DeviceMemory { weights, gradients, optimizer, activations, buffers, total, .. } = *device;
                        assert_eq!(weights + gradients + optimizer + activations + buffers, total);
                        assert!(device.allocated <= total);
                    }
                    assert_eq!(memory.fits, memory.fullest().total <= memory.capacity_bytes);
                    memory.per_device.iter().map(|device| device.total).collect()
                };
                let never_more = |less: &ParallelConfig, more: &ParallelConfig| {
                    let (less, more) = (totals(less), totals(more));
                    assert!(
                        less.iter().zip(&more).all(|(less, more)| less <= more),
                        "{name} {stack} {schedule}: {less:?}, {more:?}"
                    );
                };
                for two in zeros.windows(2) {
                    let of = |zero| ParallelConfig { zero, ..layout.clone() };
                    never_more(&of(two[1]), &of(two[0]));
                    tried += 1;
                }
                for (tensor, sequence_parallel) in [(1, false), (2, false), (2, true), (4, true)] {
                    if model.heads.is_multiple_of(2 * tensor as usize) {
                        let of = |tensor| ParallelConfig { tp: tensor, sequence_parallel, ..layout.clone() };
                        never_more(&of(2 * tensor), &of(tensor));
                        tried += 1;
                    }
                }
                // what is held at most; at the peak of all memory, which is another moment, it may be less
                let held = |recompute| -> Vec<u64> {
                    let layout = ParallelConfig { recompute, ..layout.clone() };
                    let graph = graph(schedule, layout.pp, layout.micro, chunks(schedule, &layout));
                    let stages = model.spec().split(layout.stages() as usize, None).unwrap();
                    let memory_model = MemoryModel::new(&model, &layout, &pipesim::models::stack(stack).unwrap());
                    let saved = |stage| SavedActivations {
                        in_forward: 0,
                        in_backward: 0,
                        in_weights: 0,
                        at_end: 0,
                        ..memory_model.left(stage)
                    };
                    let left: Vec<SavedActivations> = stages.iter().map(saved).collect();
                    (0..layout.pp).map(|device| peak(graph.schedule().program(device), &left).held).collect()
                };
                for two in recomputed.windows(2).filter(|_| stack != "llm.c") {
                    let (more, less) = (held(two[0]), held(two[1]));
                    assert!(
                        less.iter().zip(&more).all(|(less, more)| less <= more),
                        "{name} {stack} {schedule}: {less:?}, {more:?}"
                    );
                }
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

/// nanotron's authors report that a 3.57B model does not fit on one H100 without tensor parallelism, and measured it with.
#[test]
fn what_ran_out_of_memory_does_not_fit() {
    let fits = |row: &Row, layout: &ParallelConfig| {
        let machine = row.machine().unwrap();
        let (memory_model, stages) =
            (MemoryModel::new(&row.sizes(), layout, &machine.stack), row.sizes().spec().split(1, None).unwrap());
        memory_model.memory(machine.hardware.memory_bytes(), &stages, graph("1f1b", 1, 1, None).schedule()).fits
    };
    let mut found = 0;
    for (row, _) in published().iter().filter(|(_, row)| row["notes"].as_str().unwrap().contains("TP=1 OOMs")) {
        let layout = row.layout().unwrap();
        assert!(fits(row, &layout), "{layout}");
        assert!(!fits(row, &ParallelConfig { tp: 1, micro_batch_size: 1, sequence_parallel: false, ..layout }));
        found += 1;
    }
    assert_eq!(found, 3);
}

/// The suggestion is the smallest change that fits: no single change fits if two are suggested, and the fastest among several
/// wins.
#[test]
fn the_smallest_change_makes_it_fit() {
    // of a framework that has all ZeRO stages
    let machine = |name: &str| {
        let stack = Stack { framework: None, ..stack("megatron-core").unwrap() };
        Platform { hardware: hardware(name).unwrap(), stack }
    };
    let misfit = |analytic: &Analytic| {
        let predicted = ModelPrediction::new(analytic.clone(), "1f1b", &analytic.selection()).unwrap();
        predicted.estimate.misfit
    };
    let asked = |layout: ParallelConfig| {
        let analytic = Analytic::new(model("llama-3-8b"), machine("h100-sxm"), layout).unwrap();
        (misfit(&analytic), analytic)
    };
    let layout = ParallelConfig { dp: 8, micro: 8, sequence: 8192, ..ParallelConfig::default() };
    let (found, analytic) = asked(layout.clone());
    let found = found.unwrap();
    assert!(
        found.to_string().starts_with("1f1b does not fit: device 0 takes 184.1 GiB of 80.0 GiB (weights 15.0 GiB"),
        "{found}"
    );
    let remedy = found.remedy.unwrap();
    assert_eq!((remedy.change.as_slice(), remedy.gpus), (&[("zero", "2".to_string())][..], 8));
    let of_megatron = Platform { stack: stack("megatron-core").unwrap(), ..Platform::clone(&analytic.machine) };
    let of_megatron = misfit(&Analytic::new(analytic.model, of_megatron, layout.clone()).unwrap()).unwrap();
    let changes = of_megatron.remedy.unwrap().change;
    assert!(changes.iter().all(|(setting, value)| *setting != "zero" || value == "1"), "it has no more: {changes:?}");
    let (none, _) = asked(ParallelConfig { zero: Zero::Gradients, ..layout.clone() });
    assert_eq!(none, None);
    // one change fewer is not enough
    let (still, _) = asked(ParallelConfig { zero: Zero::Optimizer, ..layout.clone() });
    assert!(still.is_some());
    let small = analytic.with_memory(48 << 30);
    let remedy = misfit(&small).unwrap().remedy.unwrap();
    assert!(remedy.bytes <= 48 << 30 && remedy.change.len() <= 3, "{remedy:?}");
    assert_eq!(small.with_memory(1 << 30).estimate("1f1b").unwrap().memory.capacity_bytes, 1 << 30);
}

/// Searches evaluate few moments per device. Their peak is that of the whole program.
#[test]
fn moments_have_the_peak_of_the_whole_program() {
    let mut tried = 0;
    for name in pipesim::schedules::names_of_whole() {
        let fixed = Selection::new(4, 12).order(name).ok().and_then(|found| found.order.fixed());
        let Some(schedule) = fixed.filter(|schedule| !schedule.is_beyond_microbatches()) else { continue };
        for (size, software) in
            [("llama-3-8b", "megatron-core"), ("qwen3-30b-a3b", "torchtitan"), ("gpt2-large", "llm.c")]
        {
            let chunks = schedule.placement.chunks();
            let layout =
                ParallelConfig { pp: 4, chunks, micro: 12, dp: 2, sequence: 1024, ..ParallelConfig::default() };
            let (model, software) = (model(size), stack(software).unwrap());
            let Ok(stages) = model.spec().split(schedule.placement.stages() as usize, None) else { continue };
            let memory_model = MemoryModel::new(&model, &layout, &software);
            let whole = memory_model.memory(u64::MAX, &stages, &schedule);
            let whole: Vec<u64> = whole.per_device.iter().map(|device| device.total).collect();
            let moments = schedule.moments();
            assert_eq!(memory_model.totals(&stages, &moments).collect::<Vec<_>>(), whole, "{name} {size}");
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}

/// Searches rule layouts out by what their memory is at least: never more than what a device takes, or all devices together, whatever the
/// schedule, the split and the layout.
#[test]
fn bounds_of_memory_hold() {
    let (mut dice, mut tried, mut share) = (Dice(7), 0, 0.0);
    for name in pipesim::schedules::names_of_whole() {
        let fixed = Selection::new(4, 12).order(name).ok().and_then(|found| found.order.fixed());
        let Some(schedule) = fixed.filter(|schedule| !schedule.is_beyond_microbatches()) else { continue };
        let (stages, moments) = (schedule.placement.stages() as usize, schedule.moments());
        for (size, software) in [
            ("llama-3-8b", "megatron-core"),
            ("qwen3-30b-a3b", "megatron-core"),
            ("deepseek-v2-lite", "torchtitan"),
            ("llama-3-8b", "scaling"),
            ("gpt2-large", "llm.c"),
        ] {
            let (model, software) = (model(size), stack(software).unwrap());
            let is_mixture = model.experts.is_some();
            let layout = ParallelConfig {
                pp: 4,
                chunks: schedule.placement.chunks(),
                micro: 12,
                dp: [1, 2, 8][dice.below(3)],
                tp: [1, 2][dice.below(2)],
                micro_batch_size: [1, 4][dice.below(2)],
                sequence: 1024,
                sequence_parallel: is_mixture,
                zero: [Zero::None, Zero::Optimizer][dice.below(2)],
                recompute: [Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block(1)][dice.below(4)],
                ..ParallelConfig::default()
            };
            let mut layers = vec![1; stages];
            (stages..model.layers).for_each(|_| layers[dice.below(stages)] += 1);
            let spec = model.spec();
            let Ok(split) = spec.split(stages, Some(&layers)) else { continue };
            let memory_model = MemoryModel::of_spec(&model, &spec, &layout, &software);
            let used: Vec<u64> = memory_model.totals(&split, &moments).collect();
            // layouts that recompute some layers are bounded as if they recomputed all
            let whole = layout.recompute.is_of_layers().then_some(Recompute::Full);
            let bounded = ParallelConfig { recompute: whole.unwrap_or(layout.recompute), ..layout.clone() };
            let least =
                MemoryModel::of_spec(&model, &spec, &bounded, &software).least_of_splits(&spec.items().unwrap());
            let [most, mean] = least.of(&moments, &layers);
            let fullest = used.iter().copied().max().unwrap();
            let of_any = least.of_any(&schedule.placement);
            assert!(most <= fullest && of_any <= fullest, "{name} {size} {layout:?}: {most} {of_any} {used:?}");
            assert!(mean <= used.iter().sum::<u64>() / used.len() as u64, "{name} {size} {layout:?}: {mean} {used:?}");
            (tried, share) = (tried + 1, share + most as f64 / fullest as f64);
        }
    }
    assert!(tried > 60 && share / f64::from(tried) > 0.5, "{tried}: {share}");
}
