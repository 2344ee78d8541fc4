//! Steps on hardware, for all schedules and random tables: parts sum to the step, and better numbers are never slower.

use crate::support::Dice;
use pipesim::costs::{Analytic, Estimate, Platform, StepTime};
use pipesim::models::Attention;
use pipesim::models::{Field, STACKS, Stage, hardware, hardware_names, stack, transformer_named};
use pipesim::simulation::predict;
use pipesim::{
    Costs, Hardware, Overlap, ParallelConfig, Placement, Precision, Recompute, Selection, Setup, Stack, StepEstimate,
    TaskGraph, Zero,
};

fn analytic(hardware: Hardware, layout: ParallelConfig) -> Analytic {
    let machine = Platform { hardware, stack: stack(&layout.stack).unwrap() };
    Analytic::new(transformer_named("llama-3-8b").unwrap(), machine, layout).unwrap()
}

/// Every embedded schedule of whole micro-batches; models on hardware have no others.
fn schedules() -> Vec<String> {
    pipesim::schedules::names_of_whole().into_iter().map(str::to_string).collect()
}

fn sum(time: &StepTime) -> f64 {
    let StepTime { compute, tensor_parallel_exposed, expert_parallel_exposed, pipeline_bubble, .. } = *time;
    let compute = compute + time.imbalance;
    let exposed = [tensor_parallel_exposed, expert_parallel_exposed, time.data_parallel_exposed];
    let parts = [[compute, pipeline_bubble, time.optimizer, time.other].as_slice(), &exposed].concat();
    assert!(parts.iter().all(|&part| part >= 0.0), "{time:?}");
    parts.iter().sum()
}

/// For every schedule and meaning of overlapped pairs, an iteration is the sum of its parts and contains its pipeline, and the
/// busiest device's compute time follows from the schedule.
#[test]
fn iterations_are_sums_that_hold_their_pipelines() {
    let mut tried = 0;
    let schedules = schedules();
    let pairs = ["dualpipe", "dualpipe-v"].iter().flat_map(|name| {
        // Pairs on streams need experts.
        let all = Overlap::ALL.into_iter().filter(|&overlap| overlap != Overlap::Streams);
        all.map(move |overlap| (*name, overlap))
    });
    for (schedule, overlap) in schedules.iter().map(|name| (name.as_str(), Overlap::Atomic)).chain(pairs) {
        let chunks = if ["group-interleaved", "interleaved-overlap", "kimi-k2"].contains(&schedule) { 2 } else { 1 };
        let layout = ParallelConfig { pp: 4, micro: 8, sequence: 4096, chunks, ..ParallelConfig::default() };
        let analytic = analytic(hardware("h100-sxm").unwrap(), layout);
        let selection = Selection { overlap, ..analytic.selection() };
        let resolved = selection.resolve(schedule, &Costs::Analytic(Box::new(analytic.clone()))).unwrap();
        let predicted = resolved.predict().unwrap();
        let forecast = StepEstimate::new(&analytic, &predicted).unwrap();
        let (time, metrics) = (&forecast.time_s, predicted.metrics());
        let said = format!("{schedule} {overlap:?}: {time:?} {metrics:?}");
        assert!((sum(time) / forecast.iteration_s - 1.0).abs() < 1e-12, "{said}");
        assert!(forecast.iteration_s >= metrics.makespan / 1e3, "{said}");
        // one pipeline without tensor parallelism: its kernels are all that keeps a device busy
        let [average, busiest] = time.work();
        assert!((busiest * 1e3 / metrics.ideal - 1.0).abs() < 1e-9, "{said}");
        let pipeline = busiest + time.pipeline_bubble;
        // the bubble is an average device's idle time: imbalance and waiting
        let idle = time.imbalance + time.pipeline_bubble;
        assert!((idle * 1e3 - metrics.bubble * metrics.makespan).abs() < 1e-9 * metrics.makespan, "{said}");
        assert!((average * 1e3 / (metrics.efficiency * metrics.makespan) - 1.0).abs() < 1e-9, "{said}");
        assert!((pipeline * 1e3 / metrics.makespan - 1.0).abs() < 1e-9, "{said}");
        assert!(forecast.mfu < 0.655, "{said}");
        tried += 1;
    }
    assert!(tried >= 24 + 8, "{tried}");
}

/// If steps overlap, an iteration is the time between the ends of two steps: at least the longest span of a device.
#[test]
fn overlapping_steps_last_their_longest_span() {
    for schedule in ["zb-h1", "zb-v", "dualpipe", "1f1b"] {
        let layout = ParallelConfig { pp: 4, micro: 8, stack: "megatron-zb".to_string(), ..ParallelConfig::default() };
        let analytic = analytic(hardware("a100-sxm-80gb").unwrap(), layout);
        let resolved = analytic.resolve(schedule).unwrap();
        let predicted = resolved.predict().unwrap();
        let forecast = StepEstimate::new(&analytic, &predicted).unwrap();
        assert!(sum(&forecast.time_s) * 1e3 >= predicted.metrics().span, "{schedule}");
    }
}

/// Both replicas of a bidirectional stage are synchronized after a step: each device adds the other's gradients to its own,
/// within the node or over the network, and hides no more of that than of other exchanges of gradients.
#[test]
fn copies_of_stages_add_up_their_gradients() {
    let step = |schedule: &str, data: u32, change: fn(&mut Hardware)| {
        let mut machine = hardware("h100-sxm").unwrap();
        change(&mut machine);
        let layout = ParallelConfig { pp: 4, micro: 8, sequence: 4096, dp: data, ..ParallelConfig::default() };
        let analytic = analytic(machine, layout);
        (analytic.estimate(schedule).unwrap().time_s.data_parallel_exposed, analytic)
    };
    let (alone, _) = step("1f1b", 1, |_| ());
    assert_eq!(alone, 0.0);
    let (found, analytic) = step("dualpipe", 1, |_| ());
    // the first and the last quarter of the model are the largest two on one device
    let parameters = (analytic.spec.parameters() - 16 * per_layer(&analytic)) as f64;
    let (hardware, stack) = (&analytic.machine.hardware, &analytic.machine.stack);
    let bytes = 4.0 * parameters;
    let pieces = (bytes / (stack.bucket_mbytes * 1e6)).ceil();
    let seconds = pieces * hardware.link_latency_us * 1e-6
        + bytes / (hardware.link_gbytes_per_s * 1e9 * hardware.link_efficiency);
    assert!((found / (seconds * stack.data_exposed) - 1.0).abs() < 1e-9, "{found} {seconds}");
    for schedule in ["dualpipe", "chimera"] {
        let one = step(schedule, 1, |_| ()).0;
        let slow = step(schedule, 1, |machine| machine.gpus_per_node = 1.0).0;
        assert!(slow > 5.0 * one, "{schedule}: over the network {slow}, in a node {one}");
        assert!(step(schedule, 4, |_| ()).0 > one, "{schedule}: besides the exchange between pipelines");
    }
}

/// Each rank adds up the gradients of its own experts only.
#[test]
fn copies_of_stages_add_up_the_experts_of_a_rank() {
    let exposed = |ep: u32| {
        let layout = ParallelConfig { pp: 4, micro: 8, dp: 8, ep, sequence: 4096, ..ParallelConfig::default() };
        let known = stack(&layout.stack).unwrap();
        // nothing is hidden, and gradients of pipelines are exchanged in no time
        let machine = Platform {
            hardware: Hardware { gpus_per_node: 8.0, link_gbytes_per_s: 1e6, ..hardware("h100-sxm").unwrap() },
            stack: Stack { data_exposed: 1.0, ..known },
        };
        let analytic = Analytic::new(transformer_named("qwen3-30b-a3b").unwrap(), machine, layout).unwrap();
        analytic.estimate("dualpipe").unwrap().time_s.data_parallel_exposed
    };
    // the first and the last quarter of the model: embedding, head, and half of the layers, with 128 experts of 3 products
    let experts = 128.0 * 3.0 * 2048.0 * 768.0 * 48.0;
    let ends = 2.0 * 151_936.0 * 2048.0;
    let rest = ends + (30_532_122_624.0 - experts - ends) / 2.0;
    let expected = (experts / 2.0 / 8.0 + rest) / (experts / 2.0 + rest);
    let found = exposed(8) / exposed(1);
    assert!((found / expected - 1.0).abs() < 0.03, "{found} {expected}");
}

fn per_layer(analytic: &Analytic) -> u128 {
    analytic.spec.parts.iter().find(|part| part.name == "block").unwrap().elements()
}

/// Fields of which more is better, and of which less is better.
const MORE: &[&str] = &[
    "dispatch_link_efficiency",
    "dispatch_network_efficiency",
    "alltoall_network_efficiency",
    "grouped_efficiency",
    "bf16_tflops",
    "fp32_tflops",
    "fp8_tflops",
    "fp4_tflops",
    "memory_gib",
    "memory_gbytes_per_s",
    "link_gbytes_per_s",
    "network_gbps_per_gpu",
    "power_watts",
    "product_gflops_per_watt",
    "product_fp32_ratio",
    "product_fp8_ratio",
    "product_fp4_ratio",
    "product_peak_share",
    "zeros_speedup",
    "unaligned_efficiency",
    "flash_share",
    "flash2_share",
    "flash1_share",
    "flash_peak_share",
    "flash_backward_share",
    "memory_efficiency",
    "operation_share",
    "link_efficiency",
    "network_efficiency",
    "host_gbytes_per_s",
    "host_efficiency",
];
const LESS: &[&str] = &[
    "dispatch_interference",
    "multiprocessors",
    "product_tile",
    "product_wave_loss",
    "product_depth",
    "product_rows",
    "narrow_depth",
    "kernel_us",
    "network_congestion",
    "link_latency_us",
    "network_latency_us",
    "dispatch_network_us",
    "gpus_per_host_link",
];

/// Fields for which neither holds: within a node a message has more bandwidth than in the network, but a longer latency; a price takes no
/// time; a collective that was not measured, 0, is a ring.
const NEITHER: &[&str] =
    &["gpus_per_node", "dollars_per_gpu_hour", "reduce_latency_us", "reduce_gbytes_per_s", "exchange_gbytes_per_s"];

fn field(name: &str) -> &'static Field {
    Hardware::FIELDS.iter().find(|field| field.name == name).unwrap()
}

/// A factor between 1 and `most`, uniform in its logarithm.
fn factor(dice: &mut Dice, most: f64) -> f64 {
    most.powf(dice.below(1 << 20) as f64 / f64::from(1 << 20))
}

/// Multiplies the field by `factor`, within its bounds.
fn scale(hardware: &mut Hardware, name: &str, factor: f64) {
    let (bounds, value) = (field(name), hardware.field_mut(name).unwrap());
    *value = (*value * factor).min(bounds.most);
    if bounds.is_count {
        *value = value.round().max(1.0);
    }
}

fn pick<T: Clone>(dice: &mut Dice, of: &[T]) -> T {
    of[dice.below(of.len())].clone()
}

fn random_layout(dice: &mut Dice) -> ParallelConfig {
    let tensor = pick(dice, &[1, 1, 2, 4, 8]);
    ParallelConfig {
        pp: 4,
        micro: 8,
        tp: tensor,
        dp: pick(dice, &[1, 2, 16]),
        cp: pick(dice, &[1, 1, 2]),
        micro_batch_size: pick(dice, &[1, 2]),
        sequence: pick(dice, &[1024, 4096, 8192]),
        precision: pick(dice, Precision::ALL),
        recompute: pick(dice, Recompute::ALL),
        zero: pick(dice, Zero::ALL),
        sequence_parallel: tensor > 1 && dice.below(2) == 0,
        attention: pick(dice, &[None, Some(Attention::Flash)]),
        stack: pick(dice, &STACKS).to_string(),
        ..ParallelConfig::default()
    }
}

/// FLOPs that publications count and kernels skip: scores behind the causal mask, half of 4 in the forward and, with
/// recomputation, 3 of 8 in the backward.
fn skipped(analytic: &Analytic) -> f64 {
    let (model, layout) = (&analytic.model, &analytic.layout);
    let tokens = f64::from(layout.sequence);
    let scores = (model.layers * model.heads * model.head_size) as f64 * tokens * tokens;
    if analytic.attention() == Attention::Plain { 0.0 } else { 5.0 * scores * layout.batch() as f64 }
}

/// Number of the schedules below that end with one whole backward of their last micro-batch on every device.
const WHOLE: usize = 2;

/// Over 10,000 random tables, each an embedded machine with every number up to 4 times more or less: no step is faster than its
/// precision's peak, and none gets slower if one number improves.
#[test]
fn better_machines_are_never_slower_nor_faster_than_their_peak() {
    let names = [
        "1f1b",
        "gpipe",
        "interleaved-1f1b",
        "dualpipe",
        "zb-h1",
        "zb-v",
        "1f1b-offload",
        "pipeoffload",
        "1f1b-recompute",
    ];
    let graphs: Vec<TaskGraph> =
        names.iter().map(|name| Selection::new(4, 8).resolve(name, &Costs::default()).unwrap().graph).collect();
    let bases: Vec<Hardware> = hardware_names().map(|name| hardware(name).unwrap()).collect();
    let step = |hardware: &Hardware, layout: &ParallelConfig, graph: &TaskGraph| {
        let analytic = analytic(hardware.clone(), layout.clone());
        let placement: &Placement = &graph.schedule().placement;
        let stages: Vec<Stage> = analytic.stages(placement.stages()).unwrap();
        let table = analytic.table_of(placement, &stages, graph.schedule().slices()).unwrap();
        let predicted = predict(graph, &table, &Setup::default()).unwrap();
        let split = graph.schedule().splits_backward();
        let iteration = analytic.step(placement, &stages, predicted.devices(), split).unwrap().iteration();
        let per_second = |flops: f64| flops / iteration / layout.gpus() as f64;
        (iteration, per_second(analytic.model_flops()), per_second(skipped(&analytic)))
    };
    let mut dice = Dice(5);
    let mut tried = 0;
    while tried < 10_000 {
        let mut machine = pick(&mut dice, &bases);
        let of_kernels = dice.below(2) == 0;
        let is_kernels = |name: &str| ["flash_peak_share", "flash_backward_share"].contains(&name);
        for field in Hardware::FIELDS.iter().filter(|field| of_kernels || !is_kernels(field.name)) {
            let factor = factor(&mut dice, 16.0) / 4.0;
            scale(&mut machine, field.name, factor);
        }
        let (mut layout, which) = (random_layout(&mut dice), dice.below(graphs.len()));
        let graph = &graphs[which];
        if which >= WHOLE {
            // the last micro-batch's backward, which hides an exchange of gradients, does not end these devices' work
            (layout.dp, layout.cp) = (1, 1);
        }
        let Some(peak) = machine.peak(layout.precision) else { continue };
        let (iteration, flops, skipped) = step(&machine, &layout, graph);
        assert!(flops - skipped <= peak, "{} of {peak}: {machine:?} {layout:?}", flops / peak);
        let known_kernels = !of_kernels && machine.flash_peak_share < 1.0;
        assert!(!known_kernels || flops <= peak, "{} of {peak}: {machine:?} {layout:?}", flops / peak);
        let (name, factor) = match dice.below(MORE.len() + LESS.len()) {
            more if more < MORE.len() => (MORE[more], factor(&mut dice, 10.0)),
            less => (LESS[less - MORE.len()], 1.0 / factor(&mut dice, 10.0)),
        };
        let mut better = machine.clone();
        scale(&mut better, name, factor);
        let (then, ..) = step(&better, &layout, graph);
        assert!(
            then <= iteration * (1.0 + 1e-9),
            "{} with {name} times {factor}: {then} s instead of {iteration} s; {machine:?} {layout:?}",
            graph.schedule().name
        );
        tried += 1;
    }
    assert_eq!(MORE.len() + LESS.len() + NEITHER.len(), Hardware::FIELDS.len());
}
