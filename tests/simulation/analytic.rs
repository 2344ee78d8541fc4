//! Analytic step times: against published measurements, and properties that hold for any prediction.

use crate::support::golden_list;
use pipesim::costs::{Analytic, Estimate, GpuGroup, Platform, StepTime};
use pipesim::models::{hardware, stack, transformer_named};
use pipesim::{Hardware, ParallelConfig, Precision, Recompute, Stack, Zero};
use pipesim_validation::{FITTED, RowPrediction, errors, is_narrow, pairs, predict, read, rule_of_thumb};
use std::sync::LazyLock;

/// Predictions of published steps in fixed order. Searched orders take minutes; reports/published has them.
static PREDICTED: LazyLock<Vec<RowPrediction>> = LazyLock::new(|| {
    let rows = read(include_str!("../golden/throughputs/measured.json")).unwrap().0;
    let fixed = |schedule: &str| matches!(schedule, "none" | "1f1b" | "interleaved-1f1b" | "zb-v");
    predict(rows.into_iter().filter(|row| fixed(&row.schedule)).collect())
});

#[test]
fn published_steps_are_predicted_as_well_as_is_claimed() {
    assert_eq!(PREDICTED.iter().filter(|row| row.time.is_err()).count(), 0);
    let wide = errors(&PREDICTED, |row| !is_narrow(row));
    assert!(wide.mean < 0.055 && wide.median < 0.038 && wide.bias.abs() < 0.025, "{wide:?}");
    let narrow = errors(&PREDICTED, is_narrow);
    assert!(narrow.mean < 0.065 && narrow.bias.abs() < 0.03, "{narrow:?}");
    let pure = errors(&PREDICTED, |prediction| matches!(prediction.row.family.as_str(), "ZeroBubble" | "VocabPP"));
    assert!(pure.mean < 0.04, "the zero-bubble paper's own model errs by 5.9 % on 1F1B: {pure:?}");
    let thumb = rule_of_thumb(&PREDICTED, |row| !is_narrow(row));
    assert!(thumb.mean > 4.0 * wide.mean, "{thumb:?}");
    let (right, all) = pairs(&PREDICTED);
    assert!(all > 500 && right * 10 >= all * 9, "{right} of {all}");
    assert!(FITTED.len() < 25);
}

fn machine(name: &str, software: &str) -> Platform {
    Platform { hardware: hardware(name).unwrap(), stack: stack(software).unwrap() }
}

fn step(model: &str, machine: Platform, layout: ParallelConfig, schedule: &str) -> StepTime {
    let costs = Analytic::new(transformer_named(model).unwrap(), machine, layout).unwrap();
    costs.estimate(schedule).unwrap().time_s
}

fn layout() -> ParallelConfig {
    let (devices, tensor, data) = (4, 8, 2);
    ParallelConfig {
        pp: devices,
        tp: tensor,
        dp: data,
        micro: 16,
        sequence: 4096,
        sequence_parallel: true,
        zero: Zero::Optimizer,
        ..ParallelConfig::default()
    }
}

#[test]
fn the_parts_of_a_step_sum_to_it() {
    for schedule in ["1f1b", "gpipe", "zb-v", "interleaved-1f1b"] {
        let costs =
            Analytic::new(transformer_named("llama-3-70b").unwrap(), machine("h100-sxm", "megatron-core"), layout());
        let forecast = costs.unwrap().estimate(schedule).unwrap();
        assert!((forecast.time_s.iteration() - forecast.iteration_s).abs() < 1e-12 * forecast.iteration_s);
        let value = serde_json::to_value(&forecast).unwrap();
        let parts = value["time_s"].as_object().unwrap();
        let sum: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
        assert!((sum / forecast.iteration_s - 1.0).abs() < 1e-9 && parts.len() == 8);
        assert!(parts.values().all(|part| part.as_f64().unwrap() >= 0.0), "{parts:?}");
    }
}

#[test]
fn more_of_anything_is_never_slower() {
    let time = |hardware: Hardware, stack_name: &str, layout: ParallelConfig| {
        let machine = Platform { hardware, stack: stack(stack_name).unwrap() };
        step("llama-3-8b", machine, layout, "1f1b").iteration()
    };
    let base = hardware("a100-sxm-80gb").unwrap();
    let fsdp = ParallelConfig { pp: 1, tp: 1, dp: 64, zero: Zero::Weights, sequence_parallel: false, ..layout() };
    for (software, layout) in [("megatron-core", layout()), ("fsdp", fsdp)] {
        let before = time(base.clone(), software, layout.clone());
        for key in [
            "network_gbps_per_gpu",
            "link_gbytes_per_s",
            "memory_gbytes_per_s",
            "product_gflops_per_watt",
            "power_watts",
            "network_efficiency",
            "memory_efficiency",
            "gpus_per_node",
        ] {
            let mut better = base.clone();
            *better.field_mut(key).unwrap() *= 2.0;
            assert!(time(better, software, layout.clone()) <= before * (1.0 + 1e-9), "{software}: more {key}");
        }
    }
}

#[test]
fn tensor_parallel_time_is_that_of_several_ranks() {
    let one = step(
        "gpt-3-13b",
        machine("a100-sxm-80gb", "megatron-lm"),
        ParallelConfig { tp: 1, sequence: 2048, sequence_parallel: false, ..layout() },
        "1f1b",
    );
    assert_eq!(one.tensor_parallel_exposed, 0.0);
    let across = ParallelConfig { tp: 10, sequence: 2048, sequence_parallel: false, ..layout() };
    let within = ParallelConfig { tp: 8, sequence: 2048, sequence_parallel: false, ..layout() };
    let exposed =
        |layout| step("gpt-3-13b", machine("a100-sxm-80gb", "megatron-lm"), layout, "1f1b").tensor_parallel_exposed;
    assert!(exposed(across) > 1.2 * exposed(within), "nodes are further away than GPUs of one");
}

#[test]
fn more_pipelines_at_equal_micro_batches_cost_their_exchange_alone() {
    let of = |data| {
        step("llama-3-8b", machine("h100-sxm", "megatron-core"), ParallelConfig { dp: data, ..layout() }, "1f1b")
    };
    for data in [1, 2, 4, 8, 16] {
        let (fewer, more) = (of(data), of(2 * data));
        let rest = |time: &StepTime| time.iteration() - time.data_parallel_exposed - time.optimizer - time.other;
        assert!((rest(&more) / rest(&fewer) - 1.0).abs() < 1e-9, "{data}");
    }
}

#[test]
fn recomputing_costs_a_forward_and_fewer_bits_are_faster() {
    let of = |layout| step("llama-3-70b", machine("h100-sxm", "megatron-core"), layout, "1f1b");
    let none = of(layout());
    let full = of(ParallelConfig { recompute: Recompute::Full, ..layout() });
    let ratio = full.compute / none.compute;
    assert!((1.2..1.4).contains(&ratio), "{ratio}: 4/3 but for the head");
    let narrow = of(ParallelConfig { precision: Precision::Fp8, ..layout() });
    assert!((1.3..2.0).contains(&(none.compute / narrow.compute)), "only products of linear layers gain");
    let refused = Analytic::new(
        transformer_named("gpt2").unwrap(),
        machine("a100-sxm-80gb", "megatron-core"),
        ParallelConfig { precision: Precision::Fp8, ..ParallelConfig::default() },
    );
    assert!(refused.unwrap_err().to_string().contains("take `precision` bf16"));
}

/// Narayanan et al. 2021 (arXiv 2104.04473, table 2) measured 175 G parameters under DeepSpeed's ZeRO-3 on 768 and on 1536
/// A100s: twice the GPUs did not shorten the step.
#[test]
fn gathers_that_list_ranks_keep_zero_3_from_scaling() {
    let lasts = |software: &str, data: u32| {
        let layout = ParallelConfig {
            dp: data,
            micro_batch_size: 1536 / data,
            sequence: 2048,
            precision: Precision::Fp16,
            recompute: Recompute::Full,
            zero: Zero::Weights,
            stack: software.to_string(),
            ..ParallelConfig::default()
        };
        step("gpt-3-175b", machine("a100-sxm-80gb", software), layout, "1f1b").iteration()
    };
    let gain = |software: &str| lasts(software, 768) / lasts(software, 1536);
    assert!(gain("megatron-deepspeed") < 1.25, "{}", gain("megatron-deepspeed"));
    assert!(gain("fsdp") > 1.4, "{}", gain("fsdp"));
}

/// Nemotron-4 15B takes 2.74 and 2.78 s on 1024 and 2048 H100s with the same work per GPU (NVIDIA's dgxc-benchmarking):
/// Megatron's buckets grow with the number of data-parallel ranks, so latencies do not.
#[test]
fn buckets_grow_with_pipelines() {
    let exposed = |software: Platform, data: u32| {
        let layout = ParallelConfig { dp: data, tp: 2, sequence_parallel: true, zero: Zero::Optimizer, ..layout() };
        let layout = ParallelConfig { pp: 1, micro: 4, micro_batch_size: 2, ..layout };
        let time = step("llama-3-8b", software, layout, "1f1b");
        time.data_parallel_exposed / time.iteration()
    };
    let core = || machine("h100-sxm", "megatron-core");
    let grows = exposed(core(), 1024) - exposed(core(), 512);
    let mut fixed = core();
    fixed.stack.bucket_rank_mbytes = 0.0;
    let in_small_pieces = exposed(fixed.clone(), 1024) - exposed(fixed, 512);
    assert!((0.0..0.05).contains(&grows) && in_small_pieces > 2.0 * grows, "{grows} {in_small_pieces}");
}

/// Gradients take as many bytes in memory as in the exchange, and `keep` is that of the memory model.
#[test]
fn time_and_memory_have_one_source() {
    for (software, precision, bytes) in [
        ("megatron-core", Precision::Bf16, 4),
        ("megatron-core", Precision::Fp16, 2),
        ("megatron-core", Precision::Fp32, 4),
        ("megatron-deepspeed", Precision::Fp16, 2),
        ("fsdp", Precision::Bf16, 4),
    ] {
        let layout =
            ParallelConfig { precision, micro: 8, dp: 4, stack: software.to_string(), ..ParallelConfig::default() };
        let machine = machine("a100-sxm-80gb", software);
        assert_eq!(machine.stack.gradient(precision), f64::from(bytes), "{software} {precision}");
        let costs = Analytic::new(transformer_named("llama-3-8b").unwrap(), machine, layout).unwrap();
        let forecast = costs.estimate("1f1b").unwrap();
        let expected = forecast.parameters as u64 * bytes as u64;
        assert_eq!(forecast.memory.per_device[0].gradients, expected, "{software} {precision}");
        let resolved = costs.resolve("zb-h1").unwrap();
        let keep = costs.memory_model().keep(&costs.stages(1).unwrap());
        assert!((resolved.costs.keep.share() - keep).abs() < 1e-8 && (0.1..1.0).contains(&keep), "{keep}");
    }
}

/// Unknown ZeRO stages are rejected.
#[test]
fn published_rows_with_unknown_stages_of_zero_are_refused() {
    let row = |zero: u32| {
        let mut row = golden_list("throughputs/measured.json").remove(0);
        row["zero"] = zero.into();
        read(&serde_json::json!([row]).to_string()).unwrap().0.remove(0).layout()
    };
    assert!(row(3).is_ok());
    assert!(row(4).unwrap_err().to_string().contains("found '4'"));
}

/// Steps that the tables do not have. Torchtitan's 405B (pytorch/torchtitan#481, 109 tokens/s per GPU): 16 FSDP ranks of each of 8 tensor-parallel
/// slices, one per node. Primus's 70B on 64 MI325X (its article on projections, 1,174 tokens/s per GPU) recomputes 12 of 80 layers and runs four
/// micro-batches (user guide, Megatron-LM training).
#[test]
fn sharded_weights_are_gathered_next_to_computation() {
    let titan = ParallelConfig {
        tp: 8,
        dp: 16,
        micro_batch_size: 2,
        sequence: 8192,
        sequence_parallel: true,
        zero: Zero::Weights,
        recompute: Recompute::Full,
        ..ParallelConfig::default()
    };
    let found = step("llama-3-405b", machine("h100-sxm-96gb-500w", "torchtitan"), titan, "1f1b").iteration();
    assert!((found / 18.8 - 1.0).abs() < 0.05, "{found}");
    let primus = |recompute| {
        let layout = ParallelConfig {
            dp: 64,
            micro: 4,
            sequence: 8192,
            zero: Zero::Weights,
            recompute,
            ..ParallelConfig::default()
        };
        step("llama-3-70b", machine("mi325x", "megatron-core"), layout, "1f1b").iteration()
    };
    let found = primus(Recompute::None) * 68.0 / 80.0 + primus(Recompute::Full) * 12.0 / 80.0;
    assert!((found / (4.0 * 8192.0 / 1174.0) - 1.0).abs() < 0.06, "{found}");
}

/// Smallest number of GPUs that a tensor-parallel group has in a node, counted on an explicit placement.
#[test]
fn uneven_groups_are_as_slow_as_their_smallest_part() {
    for (ranks, gpus, node, in_node) in
        [(12, 96, 8, 4), (24, 4608, 8, 8), (6, 96, 8, 2), (12, 12, 8, 6), (8, 512, 72, 8), (16, 512, 72, 16)]
    {
        let used = (1..=node).rev().find(|used| gpus % used == 0).unwrap();
        let smallest = (0..gpus / ranks).flat_map(|group| {
            let members = group * ranks..(group + 1) * ranks;
            (0..gpus / used).map(move |node| members.clone().filter(|rank| rank / used == node).count())
        });
        assert_eq!(smallest.filter(|count| *count > 0).min(), Some(in_node), "{ranks} of {gpus}");
        let group = GpuGroup::tensor_parallel(ranks as u32, gpus as u64, node as f64);
        assert_eq!((group.in_node, group.crosses()), (in_node as f64, in_node < ranks), "{ranks} of {gpus}");
    }
}

/// User buffers, which hide tensor-parallel collectives, need NVLink between all ranks (TransformerEngine, userbuffers-host.cpp). Megatron-Bridge's
/// performance guide confines tensor parallelism to it, and its fastest published 405B on 512 H100 has tp 8, pp 8 and cp 2.
#[test]
fn tensor_parallelism_across_nodes_hides_nothing() {
    let layout = |tp, cp, dp, pp, chunks, micro| {
        let (sequence, sequence_parallel, zero) = (8192, true, Zero::Optimizer);
        ParallelConfig { tp, cp, dp, pp, chunks, micro, sequence, sequence_parallel, zero, ..ParallelConfig::default() }
    };
    let found = |layout| step("llama-3-405b", machine("h100-sxm", "megatron-core"), layout, "interleaved-1f1b");
    let [best, wide] = [layout(8, 2, 4, 8, 8, 64), layout(16, 1, 4, 8, 8, 64)].map(found);
    assert!(best.iteration() * 1.04 < wide.iteration(), "{} {}", best.iteration(), wide.iteration());
    let exposed = Stack { tensor_exposed: 1.0, ..stack("megatron-core").unwrap() };
    let shown = Platform { stack: exposed, ..machine("h100-sxm", "megatron-core") };
    assert_eq!(step("llama-3-405b", shown, layout(16, 1, 4, 8, 8, 64), "interleaved-1f1b"), wide);
}
