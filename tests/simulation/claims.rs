//! Measurements that came before: a GPT-2 124M on two GPUs, six layers each, GPipe with a flush, T = 1024, in float32
//! without TF32; mean step times by size of the micro-batches and of the batch.

use crate::support::root;
use pipesim::costs::{Analytic, LinkCost, Mesh, PartCost, Platform, StepRates};
use pipesim::models::{BLOCK, EMBEDDING, HEAD, Operation, Part, hardware, model_spec, stack, transformer_named};
use pipesim::{CostFile, Costs, MicroBatch, ParallelConfig, Selection};
use std::collections::BTreeMap;

/// Sequences a micro-batch, then sequences a batch with the measured milliseconds.
const MEASURED: [(u32, &[(u32, f64)]); 6] = [
    (1, &[(2, 117.578955), (4, 202.620924), (8, 372.874213), (16, 713.737319), (32, 1394.489319)]),
    (2, &[(2, 127.162709), (4, 202.390204), (8, 352.727625), (16, 653.796149), (32, 1255.238888)]),
    (4, &[(4, 247.298421), (8, 396.670453), (16, 695.353873), (32, 1292.737245)]),
    (8, &[(8, 477.794576), (16, 767.653765), (32, 1350.200574)]),
    (16, &[(16, 926.767443), (32, 1497.243534)]),
    (32, &[(32, 1813.539005)]),
];

/// The four constants, fitted to these twenty times. The rate of products on all multiprocessors: 96 % of an A100's 19.5 TFLOP/s in
/// float32.
const FLOPS_PER_NS: f64 = 18_756.0;
/// Bytes per ns of the operations between products: half of an A100's bandwidth.
const BYTES_PER_NS: f64 = 797.8;
/// Launches and waits of a forward and its backward.
const PASS_NS: u64 = 3_101_000;
/// The token embedding's exchange, the optimizer and barriers, once a step.
const STEP_NS: u64 = 4_080_000;

const TOKENS: usize = 1024;
/// An A100's multiprocessors: a product's tiles are computed in waves of so many.
const MULTIPROCESSORS: usize = 108;
/// llm.c's own forward kernel has tiles of 128 x 128 outputs; cuBLAS's kernels half of that.
const OWN_TILE: [usize; 2] = [128, 128];
const CUBLAS_TILE: [usize; 2] = [128, 64];

/// ns of `count` products of (rows, inner) and (inner, columns): whole waves of tiles.
fn product([rows, columns, inner]: [usize; 3], count: usize, tile: [usize; 2]) -> f64 {
    let tiles = rows.div_ceil(tile[0]) * columns.div_ceil(tile[1]) * count;
    let computed = tiles.next_multiple_of(MULTIPROCESSORS) * tile[0] * tile[1];
    2.0 * computed as f64 * inner as f64 / FLOPS_PER_NS
}

/// ns of one part in F, I and W for micro-batches of so many sequences, by its operations. Bytes are what llm.c's kernels read and
/// write.
fn part(part: &Part, sequences: usize) -> [f64; 3] {
    let n = sequences * TOKENS;
    let mut of = [0.0; 3];
    let mut add = |products: [f64; 3], elements: [usize; 2]| {
        (0..3).for_each(|kind| of[kind] += products[kind]);
        (0..2).for_each(|kind| of[kind] += 4.0 * elements[kind] as f64 / BYTES_PER_NS);
    };
    for operation in &part.operations {
        match *operation {
            Operation::Product { inputs, outputs, .. } => {
                let [own, cublas] = [OWN_TILE, CUBLAS_TILE];
                let times = [
                    product([n, outputs, inputs], 1, own),
                    product([n, inputs, outputs], 1, cublas),
                    product([outputs, inputs, n], 1, cublas),
                ];
                add(times, [0, n * outputs]); // the bias's gradient
            }
            Operation::Attention { heads, size, .. } => {
                let count = sequences * heads;
                let two = product([TOKENS, TOKENS, size], count, CUBLAS_TILE)
                    + product([TOKENS, size, TOKENS], count, CUBLAS_TILE);
                let four = 4.0 * product([TOKENS, size, TOKENS], count, CUBLAS_TILE);
                let (hidden, scores) = (n * heads * size, count * TOKENS * TOKENS);
                // softmax; heads apart and together again
                add([two, four, 0.0], [2 * scores + 8 * hidden, 3 * scores + 8 * hidden]);
            }
            Operation::Norm { width, .. } if part.name == BLOCK => add([0.0; 3], [2 * n * width, 4 * n * width]),
            Operation::Add { width } => add([0.0; 3], [3 * n * width, 3 * n * width]),
            Operation::Activate { inputs, .. } => add([0.0; 3], [2 * n * inputs, 3 * n * inputs]),
            Operation::Classify { width, vocabulary } => {
                let v = vocabulary.next_multiple_of(128);
                let times = [
                    product([n, v, width], 1, OWN_TILE),
                    product([n, width, v], 1, CUBLAS_TILE),
                    product([v, width, n], 1, CUBLAS_TILE),
                ];
                add(times, [2 * n * v, 0]);
            }
            _ => {}
        }
    }
    of
}

/// The costs of these GPUs by part, the given size of micro-batches first.
fn costs(first: u32) -> CostFile {
    let spec = model_spec("gpt2").unwrap();
    let sizes =
        [first].into_iter().chain(MEASURED.map(|(size, _)| size).into_iter().filter(move |&size| size != first));
    let atoms = sizes.flat_map(|sequences| {
        let parts = spec.parts.iter().map(|found| (found.name, part(found, sequences as usize))).collect::<Vec<_>>();
        parts.into_iter().flat_map(move |(name, times)| {
            ["F", "I", "W"].into_iter().zip(times).map(move |(kind, ns)| PartCost {
                part: name.to_string(),
                kind: kind.to_string(),
                sequences,
                tokens: TOKENS as u32,
                slice: None,
                duration_ns: ns.round() as u64,
                samples: 1,
            })
        })
    });
    let provenance = [
        ("machine", "two GPUs, A100 by their figures; one-sided puts over NVLink"),
        ("model", "GPT-2 124M in float32 without TF32, T = 1024"),
        ("source", "four constants, fitted to 20 step times of an earlier program; tests/simulation/claims.rs"),
    ];
    CostFile {
        schema_version: 1,
        provenance: provenance.map(|(key, value)| (key.to_string(), value.to_string())).into(),
        layers: 12,
        mesh: Mesh::default(),
        tied: true,
        parts: atoms.collect(),
        op_overhead_ns: BTreeMap::from(["F", "I", "W"].map(|kind| (kind.to_string(), PASS_NS / 3))),
        gap_ns: 0,
        link: LinkCost {
            bytes: (first as usize * TOKENS * 768 * 4) as u64,
            beside_compute: true,
            ..LinkCost::default()
        },
        step: StepRates { optimizer_embedding_ns: STEP_NS, ..StepRates::default() },
        keep: spec.keep(MicroBatch { sequences: 1, tokens: TOKENS }, &pipesim::models::Storage::whole(4, 4, 128, 1)),
        stages: Vec::new(),
        speeds: Vec::new(),
        contention: None,
    }
}

/// The makespan in ms of so many micro-batches on two GPUs.
fn makespan(selection: Selection, schedule: &str, costs: &Costs) -> (f64, Option<Vec<usize>>) {
    let resolved = selection.resolve(schedule, costs).unwrap();
    let layers = resolved.balance.as_ref().map(|found| found.layers.clone());
    assert!(resolved.balance.as_ref().is_none_or(|found| found.is_optimal));
    (resolved.predict().unwrap().metrics().makespan, layers)
}

#[test]
fn four_constants_give_twenty_step_times() {
    let (mut errors, mut count) = (Vec::new(), 0);
    for (sequences, times) in MEASURED {
        let costs = Costs::measured(costs(sequences), None);
        for &(batch, measured) in times {
            let (pipeline, _) = makespan(Selection::new(2, batch / sequences), "gpipe", &costs);
            let error = (pipeline + STEP_NS as f64 / 1e6) / measured - 1.0;
            println!("M = {sequences}, B = {batch}: {measured} ms, {:+.2} %", 100.0 * error);
            errors.push(error.abs());
            count += 1;
        }
    }
    let (most, mean) = (errors.iter().copied().fold(0.0, f64::max), errors.iter().sum::<f64>() / f64::from(count));
    println!("mean {:.2} %, most {:.2} %", 100.0 * mean, 100.0 * most);
    assert_eq!(count, 20);
    assert!(most <= 0.01 && mean <= 0.008, "{mean} {most}");
}

/// Six layers on each GPU leave one idle half of the time: the head weighs four and a half layers. Eight and four is best, and no
/// other split beats it.
#[test]
fn eight_and_four_is_best() {
    for (sequences, microbatches) in [(2, 4), (2, 16), (4, 8), (1, 32)] {
        let costs = Costs::measured(costs(sequences), None);
        for schedule in ["gpipe", "1f1b", "zb-h1"] {
            let selection = Selection::new(2, microbatches);
            let (even, _) = makespan(selection.clone(), schedule, &costs);
            let (best, layers) = makespan(Selection { balance: true, ..selection.clone() }, schedule, &costs);
            assert_eq!(layers.unwrap(), [8, 4], "{schedule} {sequences} x {microbatches}");
            let every = (0..=12).map(|first| {
                let split = costs.with_layers(vec![first, 12 - first]);
                makespan(selection.clone(), schedule, &split).0
            });
            let least = every.fold(f64::INFINITY, f64::min);
            assert!(best == least && best < 0.9 * even, "{schedule}: {best} {least} {even}");
        }
    }
}

/// The file that the documentation uses is these costs, micro-batches of two sequences first.
#[test]
fn the_example_is_these_costs() {
    let path = root().join("examples/gpt2-two-gpus.json");
    let text = serde_json::to_string_pretty(&costs(2)).unwrap() + "\n";
    if std::env::var_os("PIPESIM_WRITE_EXAMPLE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert!([EMBEDDING, BLOCK, HEAD].iter().all(|part| text.contains(part)));
}

/// The plan for eight GPUs, two for each of four stages, 220,384,256 parameters: 72.7 % of the time is work where all stages are
/// equal, and that is what p = 4, m = 8 gives. Its head weighs more than a stage of two layers.
#[test]
fn the_plan_for_eight_gpus() {
    let unit = Selection::new(4, 8).resolve("1f1b", &Costs::default()).unwrap().predict().unwrap().metrics().efficiency;
    assert!((unit - 8.0 / 11.0).abs() < 1e-12);
    let layout = ParallelConfig { pp: 4, tp: 2, micro: 8, micro_batch_size: 4, ..ParallelConfig::default() };
    let machine = Platform { hardware: hardware("a100-sxm-80gb").unwrap(), stack: stack("megatron-core").unwrap() };
    let analytic = Analytic::new(transformer_named("gpt-512m-plan").unwrap(), machine, layout).unwrap();
    assert_eq!((analytic.spec.parameters(), analytic.layout.gpus()), (220_384_256, 8));
    let costs = Costs::Analytic(Box::new(analytic));
    let figures = |schedule: &str, balance: bool| {
        let resolved = Selection { balance, ..Selection::new(4, 8) }.resolve(schedule, &costs).unwrap();
        let layers = resolved.balance.as_ref().map(|found| (found.layers.clone(), found.is_optimal));
        let metrics = resolved.predict().unwrap().prediction.metrics;
        println!("{schedule} {layers:?}: {} ms, {:.1} %", metrics.makespan, 100.0 * metrics.efficiency);
        (metrics.makespan, metrics.efficiency, layers)
    };
    let (equal, efficiency, _) = figures("1f1b", false);
    assert!(efficiency < 0.5, "{efficiency}");
    let (balanced, better, layers) = figures("1f1b", true);
    let (layers, is_optimal) = layers.unwrap();
    assert!(is_optimal && layers[3] < 2 && balanced < equal && better > efficiency, "{layers:?} {balanced} {equal}");
    let (zero_bubble, best, _) = figures("zb-v", true);
    assert!(zero_bubble < balanced && best > better, "{zero_bubble} {best}");
}
