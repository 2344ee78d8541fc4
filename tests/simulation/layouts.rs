//! Layouts, hardware files, memory peaks and the balance of layers.

use pipesim::costs::{GpuGroup, Platform, ProductShape};
use pipesim::internals::balance::{Problem, SplitTime, balance};
use pipesim::internals::hardware::toml;
use pipesim::internals::memory::{Peak, peak};
use pipesim::models::{
    HardwareError, STACKS, SavedActivations, TransformerConfig, Window, hardware, hardware_file, hardware_names,
    micro_batches, stack, stack_file, transformer_named,
};
use pipesim::{Hardware, Op, ParallelConfig, Precision, Stack};

fn hardware_text(text: &str) -> Result<Hardware, HardwareError> {
    hardware_file("mine.toml", text, &|path| match path {
        "a.toml" => Ok("base = \"b.toml\"".to_string()),
        "b.toml" => Ok("base = \"a.toml\"".to_string()),
        path => Err(HardwareError::File(format!("no {path}"))),
    })
}

#[test]
fn embedded_hardware_and_software_are_complete() {
    for name in hardware_names() {
        let found = hardware(name).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.peak(Precision::Bf16).is_some(), "{name}");
    }
    for name in STACKS {
        stack(name).unwrap_or_else(|error| panic!("{error}"));
        assert!(std::path::Path::new(&format!("{}/hardware/stacks/{name}.toml", env!("CARGO_MANIFEST_DIR"))).exists());
    }
    assert_eq!(hardware("h200-sxm").unwrap().bf16_tflops, 989.0);
    assert_eq!(hardware("a100-sxm-40gb").unwrap().memory_bytes(), 40 << 30);
}

#[test]
fn a_hardware_file_changes_numbers_of_its_base() {
    let mine = hardware_text("base = \"h100-sxm\"\ngpus_per_node = 4\nnetwork_gbps_per_gpu = 200.5 # slower").unwrap();
    assert_eq!((mine.gpus_per_node, mine.network_gbps_per_gpu, mine.memory_gib), (4.0, 200.5, 80.0));
}

#[test]
fn invalid_hardware_files_are_rejected_in_one_line() {
    let cases = [
        ("base = \"a.toml\"", "a circle: mine.toml → a.toml → b.toml → a.toml"),
        ("base = \"h1000\"", "no hardware is called 'h1000'; known: a100-sxm-80gb"),
        ("base = 3", "in quotes, found integer"),
        ("base = \"h100-sxm\"\ntflops = 3", "found 'tflops'"),
        ("base = \"h100-sxm\"\nmemory_gib = -1", "memory_gib to be above 0 (memory, GiB), found -1"),
        ("base = \"h100-sxm\"\nmemory_gib = nan", "found NaN"),
        ("base = \"h100-sxm\"\nmemory_gib = inf", "above 0 (memory, GiB), found inf"),
        ("base = \"h100-sxm\"\nmemory_gib = 1e300", "at most 1e6 (memory, GiB), found 1e300"),
        ("base = \"h100-sxm\"\npower_watts = 1e15", "power_watts to be at most 100000 (power limit"),
        ("base = \"h100-sxm\"\nmemory_efficiency = 70", "memory_efficiency to be at most 1 (share"),
        ("base = \"h100-sxm\"\ngpus_per_node = 0.5", "a whole number, at least 1"),
        ("base = \"h100-sxm\"\nmemory_gib = \"80\"", "to be a number"),
        ("memory_gib = 80", "a value for bf16_tflops, found none"),
        ("base = \"h100-sxm\"\nmemory_gib 80", "on line 2"),
    ];
    for (text, expected) in cases {
        let error = hardware_text(text).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
}

fn stack_text(text: &str) -> Result<Stack, HardwareError> {
    stack_file("mine.toml", text, &|path| match path {
        "a.toml" => Ok("base = \"b.toml\"".to_string()),
        "b.toml" => Ok("base = \"a.toml\"".to_string()),
        path => Err(HardwareError::File(format!("no {path}"))),
    })
}

/// A file of training software has a base, words for facts, and the schedules of its base or its own.
#[test]
fn a_software_file_changes_facts_of_its_base() {
    let mine =
        stack_text("base = \"megatron-core\"\nlogits = \"whole\"\ndropout = false\nhost_layer_ms = 1.5").unwrap();
    let base = stack("megatron-core").unwrap();
    assert!(mine.has_whole_logits() && !base.has_whole_logits());
    assert_eq!((mine.host_layer_ms, mine.dropout, base.dropout), (1.5, 0.0, 1.0));
    assert_eq!((mine.tensor_exposed, mine.schedules()), (base.tensor_exposed, base.schedules()));
    let own = stack_text("base = \"megatron-core\"\nschedules = [\"gpipe\"]").unwrap();
    assert_eq!(own.schedules(), Some(vec!["gpipe"]));
    assert_eq!(stack("jax").unwrap().schedules(), None);
}

#[test]
fn invalid_software_files_are_rejected_in_one_line() {
    let cases = [
        ("base = \"a.toml\"", "a circle: mine.toml → a.toml → b.toml → a.toml"),
        ("base = \"megatron\"", "no training software is called 'megatron'"),
        ("base = \"h100-sxm\"", "no training software is called 'h100-sxm'"),
        ("base = \"fsdp\"\nbf16_tflops = 3", "found 'bf16_tflops'"),
        ("base = \"fsdp\"\nlogits = \"some\"", "expected logits to be one of vocabulary-parallel, whole (what"),
        ("base = \"fsdp\"\nlogits = true", "found true"),
        ("base = \"fsdp\"\ndropout = 1", "expected dropout to be one of false, true"),
        ("base = \"fsdp\"\nflash_kernels = \"flash-3\"", "flash-1, flash-2, best"),
        ("base = \"fsdp\"\ntensor_exposed = 2", "tensor_exposed to be at most 1"),
        ("base = \"fsdp\"\nschedules = [\"zb\"]", "found 'zb'"),
        ("base = \"fsdp\"\nschedules = \"1f1b\"", "expected schedules to be a list of names"),
        ("logits = \"whole\"", "expected a value for"),
    ];
    for (text, expected) in cases {
        let error = stack_text(text).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
}

#[test]
fn a_written_hardware_file_reads_back() {
    let numbers = [("bf16_tflops", 0.123456), ("link_latency_us", 0.0), ("gpus_per_node", 4.0), ("memory_gib", 1e-7)];
    let text = toml("cpu", &["a line\nor two".to_string()], &numbers);
    let read = hardware_file("mine.toml", &text, &|path| Err(HardwareError::File(path.to_string()))).unwrap();
    let mut expected = hardware("cpu").unwrap();
    expected.name = "mine.toml".to_string();
    expected.chip = "mine.toml".to_string();
    for (name, number) in
        [("bf16_tflops", 0.1235), ("link_latency_us", 0.0), ("gpus_per_node", 4.0), ("memory_gib", 1e-7)]
    {
        *expected.field_mut(name).unwrap() = number;
    }
    assert_eq!(read, expected);
}

#[test]
fn a_batch_is_split_into_whole_micro_batches() {
    assert_eq!(micro_batches(Some(128), 2, Some(1), None).unwrap(), (1, 64));
    assert_eq!(micro_batches(Some(128), 2, None, Some(16)).unwrap(), (4, 16));
    assert_eq!(micro_batches(Some(128), 2, Some(4), Some(16)).unwrap(), (4, 16));
    assert_eq!(micro_batches(None, 2, Some(4), Some(16)).unwrap(), (4, 16));
    for (size, micro) in [(Some(3), None), (None, Some(3)), (Some(4), Some(8))] {
        let error = micro_batches(Some(128), 2, size, micro).unwrap_err().to_string();
        assert!(error.contains("found 128") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn products_of_sizes_do_not_overflow() {
    for (batch, data, size, micro) in [
        (65_536, 65_536, Some(65_537), None),
        (128, 65_536, Some(65_536), None),
        (128, 65_536, None, Some(65_536)),
        (1 << 27, 1 << 27, Some(1 << 27), Some(1 << 27)),
        (1, u32::MAX, Some(u32::MAX), Some(u32::MAX)),
    ] {
        let error = micro_batches(Some(batch), data, size, micro).unwrap_err().to_string();
        assert!(error.contains(&format!("found {batch}")), "{error}");
    }
}

#[test]
fn invalid_layouts_are_rejected_in_one_line() {
    let model = transformer_named("llama-3-70b").unwrap();
    let refused = |layout: ParallelConfig| layout.validate(&model).unwrap_err().to_string();
    assert!(refused(ParallelConfig { tp: 3, ..ParallelConfig::default() }).contains("64 heads"));
    assert!(refused(ParallelConfig { cp: 3, ..ParallelConfig::default() }).contains("`cp` 3"));
    assert!(refused(ParallelConfig { dp: 0, ..ParallelConfig::default() }).contains("`dp` between 1"));
    let wraps = ParallelConfig { pp: 1 << 16, chunks: 1 << 16, ..ParallelConfig::default() };
    assert!(refused(wraps).contains("at most 82 stages"));
    let most = ParallelConfig {
        dp: 1 << 20,
        micro_batch_size: 1 << 20,
        micro: 1 << 24,
        sequence: 1 << 27,
        ..ParallelConfig::default()
    };
    assert_eq!(most.tokens(), u64::MAX);
    let gpt2 = transformer_named("gpt2").unwrap();
    let long = |sequence| ParallelConfig { sequence, ..ParallelConfig::default() };
    assert_eq!(long(1024).validate(&gpt2), Ok(()));
    assert!(long(4096).validate(&gpt2).unwrap_err().to_string().contains("`sequence` to be at most 1024"));
    let window = Some(Window { tokens: 4096, is_chunked: false });
    assert_eq!(long(8192).validate(&TransformerConfig { window, ..model }), Ok(()));
    assert!(refused(ParallelConfig { pp: 83, ..ParallelConfig::default() }).contains("at most 82 stages"));
    let fits = ParallelConfig { tp: 8, pp: 4, chunks: 5, dp: 2, sequence: 8192, ..ParallelConfig::default() };
    assert_eq!((fits.validate(&model), fits.gpus(), fits.stages()), (Ok(()), 64, 20));
    assert!("fp9".parse::<Precision>().unwrap_err().to_string().contains("bf16, fp16"));
}

#[test]
fn memory_peaks_in_the_last_forward_or_in_a_backward() {
    let ops = |text: &str| -> Vec<Op> { text.split(' ').map(|op| op.parse().unwrap()).collect() };
    let left = [SavedActivations { forward: 10, input: 7, in_forward: 1, in_backward: 4, in_weights: 0, at_end: 30 }];
    assert_eq!(peak(&ops("0F0 0F1 0B0 0B1"), &left), Peak { held: 10, others: 10, running: 30 });
    let left = [SavedActivations { at_end: 0, ..left[0] }];
    assert_eq!(peak(&ops("0F0 0F1 0B0 0B1"), &left), Peak { held: 20, others: 10, running: 4 });
    // each I leaves 7 for a W at the end
    assert_eq!(peak(&ops("0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2"), &left), Peak { held: 24, others: 14, running: 4 });
    assert_eq!(peak(&ops("0F0 0B0 1F0 1B0"), &left), Peak { held: 10, others: 0, running: 4 });
}

/// Every split of `layers` into `stages`.
fn all(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let tails =
        |first: usize| all(layers - first, stages - 1).into_iter().map(move |tail| [vec![first], tail].concat());
    (0..=layers).flat_map(tails).collect()
}

/// 1F1B's makespan for large m, with an embedding, and a head of four and a half layers.
fn step(layers: &[usize]) -> Option<SplitTime> {
    let last = layers.len() - 1;
    let cost =
        |stage: usize| 10 * layers[stage] as u64 + if stage == 0 { 2 } else { 0 } + if stage == last { 45 } else { 0 };
    let costs = (0..layers.len()).map(cost);
    let time = costs.clone().sum::<u64>() + 7 * costs.max().unwrap_or(0);
    Some(SplitTime { time, least: time })
}

#[test]
fn the_optimal_split_is_the_best_of_all() {
    for (layers, stages, limit) in [(12, 2, 99), (12, 3, 99), (13, 4, 4), (9, 5, 3), (4, 1, 9)] {
        let fits = |layers: &[usize]| layers.iter().all(|&count| count <= limit);
        let start = (0..stages).map(|stage| layers / stages + usize::from(stage < layers % stages)).collect();
        let problem = Problem { layers, start, step: &step, fits: &fits, budget: 100_000 };
        let found = balance(&problem).unwrap();
        assert!(found.is_optimal && found.layers.iter().sum::<usize>() == layers, "{found:?}");
        let inner = |layers: &&Vec<usize>| !layers.get(1..stages - 1).unwrap_or_default().contains(&0);
        let every = all(layers, stages);
        let best = every
            .iter()
            .filter(inner)
            .filter(|layers| fits(layers))
            .filter_map(|layers| step(layers))
            .map(|step| step.time)
            .min();
        assert_eq!(Some(found.step), best, "{layers} {stages}");
    }
}

#[test]
fn without_memory_there_is_no_split_and_without_budget_no_proof() {
    let problem =
        |budget| Problem { layers: 12, start: vec![6, 6], step: &step, fits: &|layers| layers[1] < 6, budget };
    let found = balance(&problem(1000)).unwrap();
    assert_eq!((found.layers, found.before), (vec![8, 4], Some((12 * 10 + 47 + 7 * 105, false))));
    assert!(!balance(&problem(3)).is_some_and(|found| found.is_optimal));
    assert_eq!(balance(&Problem { fits: &|_| false, ..problem(1000) }), None);
}

/// A product, an operation and collectives of a file with round numbers take what a hand computation says.
#[test]
fn measured_products_and_collectives_take_the_times_of_their_file() {
    let text = "base = \"cpu\"\nbf16_tflops = 0.1\nfp32_tflops = 0.1\npower_watts = 100\nproduct_gflops_per_watt = 1\nproduct_depth = 0\n\
                product_rows = 32\nkernel_us = 0\nmemory_gbytes_per_s = 100\nmemory_efficiency = 1\noperation_share = 0.5\n\
                reduce_latency_us = 10\nreduce_gbytes_per_s = 2\nexchange_gbytes_per_s = 4\nlink_latency_us = 0\n\
                gpus_per_node = 2\nproduct_wave_loss = 0\n";
    let hardware = hardware_file("mine.toml", text, &|path| panic!("{path}")).unwrap();
    let machine = Platform { hardware, stack: stack("pipesim").unwrap() };
    // 32 rows: as long again as 2 · 32 · 640 · 640 operations at 100 GFLOP/s
    let took = machine.product(ProductShape::new(32.0, 640.0, 640.0), Precision::Fp32);
    assert!((took / (2.0 * 26_214_400e-11) - 1.0).abs() < 1e-9, "{took}");
    let equal = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    equal(machine.traffic(1e9), 0.01);
    equal(machine.operation(1e9), 0.02);
    // of two ranks: latency and once the bytes
    equal(machine.reduce(GpuGroup::new(2, 1, 2.0), 2e6), 10e-6 + 1e-3);
    equal(machine.reduce_in(GpuGroup::new(2, 1, 2.0), 4e6, 1.0), 1e-3);
}
