//! What ranks hold of the optimizer: hybrid sharding and its limits, states on the host, and what fits.

use pipesim::costs::{Analytic, Platform};
use pipesim::models::{Attention, TransformerConfig, hardware, stack, transformer_named};
use pipesim::{ParallelConfig, Precision, Selection, StepEstimate, Zero};

/// Returns the estimate of a step.
fn predicted(name: &str, model: TransformerConfig, layout: &ParallelConfig) -> StepEstimate {
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack(name).unwrap() };
    let costs = Analytic::new(model, machine, layout.clone()).unwrap();
    Selection::new(layout.pp, layout.micro).estimate("1f1b", &costs).unwrap()
}

/// Dense and of experts, with and without tensor-parallel ranks and a pipeline.
fn layouts() -> Vec<(&'static str, ParallelConfig)> {
    let layout = |tp, pp, cp, dp, ep| ParallelConfig {
        tp,
        pp,
        cp,
        dp,
        ep,
        micro: 2 * pp,
        sequence: 4096,
        sequence_parallel: tp > 1,
        ..ParallelConfig::default()
    };
    vec![
        ("llama-3-8b", layout(1, 1, 1, 64, 1)),
        ("llama-3-8b", layout(2, 2, 2, 16, 1)),
        ("llama-3-8b", layout(8, 4, 1, 8, 1)),
        ("qwen3-30b-a3b", layout(1, 1, 1, 64, 8)),
        ("qwen3-30b-a3b", layout(2, 2, 2, 16, 4)),
    ]
}

const SOFTWARE: [&str; 5] = ["megatron-core", "megatron-bridge", "torchtitan", "fsdp", "automodel"];

#[test]
fn one_group_is_no_group_and_groups_of_one_shard_nothing() {
    for ((model, layout), zero) in
        layouts().into_iter().flat_map(|one| Zero::ALL[1..].iter().map(move |z| (one.clone(), *z)))
    {
        let model = transformer_named(model).unwrap();
        for name in SOFTWARE {
            let of = |zero, shard| predicted(name, model, &ParallelConfig { zero, shard, ..layout.clone() });
            let all = layout.dp * layout.cp;
            let [whole, one] = [of(zero, None), of(zero, Some(all))];
            assert_eq!((whole.memory, whole.time_s), (one.memory, one.time_s), "{name} {layout:?}");
            // experts need a replica in each group
            let alone = ParallelConfig { zero, shard: Some(1), ..layout.clone() };
            if zero != Zero::Optimizer || alone.validate(&model).is_err() {
                continue;
            }
            let [without, alone] = [of(Zero::None, None), of(zero, Some(1))];
            assert_eq!(without.memory, alone.memory, "{name} {layout:?}");
            let [own, other] = [without.iteration_s, alone.iteration_s];
            // experts that a dense model does not have take the latency of their replicas
            assert!((own - other).abs() < 5e-4 * own, "{name} {layout:?}: {own} {other}");
        }
    }
}

#[test]
fn more_ranks_that_share_states_take_less_memory() {
    for ((model, layout), zero) in
        layouts().into_iter().flat_map(|one| Zero::ALL[1..].iter().map(move |z| (one.clone(), *z)))
    {
        let model = transformer_named(model).unwrap();
        for name in SOFTWARE {
            let mut last = u64::MAX;
            for shard in (0..7).map(|power| 1 << power).filter(|shard| (layout.dp * layout.cp) % shard == 0) {
                let layout = ParallelConfig { zero, shard: Some(shard), ..layout.clone() };
                if layout.validate(&model).is_err() {
                    continue;
                }
                let total = predicted(name, model, &layout).memory.fullest().total;
                assert!(total <= last, "{name} {layout:?}: {total} {last}");
                last = total;
            }
        }
    }
}

/// As Megatron (`parallel_state.py`) and torchtitan (`parallel_dims.py`) refuse them.
#[test]
fn groups_that_cannot_be_are_refused() {
    let why = |name: &str, layout: ParallelConfig| {
        layout.validate(&transformer_named(name).unwrap()).unwrap_err().to_string()
    };
    let base = ParallelConfig { dp: 16, cp: 2, sequence: 4096, zero: Zero::Weights, ..ParallelConfig::default() };
    let shard = |shard: u32| ParallelConfig { shard: Some(shard), ..base.clone() };
    assert!(why("llama-3-8b", shard(3)).contains("divide the 32 replicas"));
    assert!(why("llama-3-8b", shard(0)).contains("divide the 32 replicas"));
    assert!(why("llama-3-8b", ParallelConfig { zero: Zero::None, ..shard(8) }).contains("`zero` 1, 2 or 3"));
    // 32 GPUs hold 16 parts of the experts twice: two groups at most
    let experts = |layout: ParallelConfig| ParallelConfig { ep: 16, ..layout };
    assert!(why("qwen3-30b-a3b", experts(shard(8))).contains("the 2 replicas of an expert"));
    assert!(experts(shard(16)).validate(&transformer_named("qwen3-30b-a3b").unwrap()).is_ok());
}

/// Qwen3-30B-A3B on 16 H100, tp 2, pp 2 and ep 4: what a step takes longer and how much less a GPU holds if the host keeps a share of the
/// optimizer's states, and if it updates while it copies (NVIDIA-NeMo/Megatron-Bridge, its page CPU Offloading, and its
/// skills/nemo-mbridge-perf-cpu-offloading/card.yaml).
#[test]
fn states_on_the_host_take_what_megatron_bridge_measures() {
    let model = transformer_named("qwen3-30b-a3b").unwrap();
    let layout = |optimizer_offload, overlap_optimizer_offload| ParallelConfig {
        tp: 2,
        pp: 2,
        dp: 4,
        ep: 4,
        micro: 2,
        sequence: 4096,
        sequence_parallel: true,
        zero: Zero::Optimizer,
        optimizer_offload,
        overlap_optimizer_offload,
        ..ParallelConfig::default()
    };
    let without = predicted("megatron-bridge", model, &layout(0.0, false));
    let measured = [
        (0.25, false, 875.0, 3.8),
        (0.5, false, 1488.0, 7.6),
        (0.75, false, 2191.0, 11.6),
        (1.0, false, 3193.0, 15.3),
        (1.0, true, 2881.0, 15.3),
    ];
    for (share, overlaps, longer_ms, less_gb) in measured {
        let with = predicted("megatron-bridge", model, &layout(share, overlaps));
        let longer = 1e3 * (with.iteration_s - without.iteration_s);
        assert!((longer / longer_ms - 1.0).abs() < 0.15, "{share} {overlaps}: {longer} {longer_ms} ms");
        let [before, after] = [&without, &with].map(|one| one.memory.fullest().optimizer as f64);
        let less = 1e-9 * (before - after);
        assert!((less / less_gb - 1.0).abs() < 0.03, "{share}: {less} {less_gb} GB");
    }
    // Megatron-LM moves the fp32 weights, too: --optimizer-cpu-offload needs --use-precision-aware-optimizer
    assert_eq!(predicted("megatron-core", model, &layout(1.0, false)).memory.fullest().optimizer, 0);
    for share in [-0.1, 1.1, f64::NAN] {
        assert!(layout(share, false).validate(&model).unwrap_err().to_string().contains("between 0 and 1"));
    }
    assert!(layout(0.0, true).validate(&model).unwrap_err().to_string().contains("`optimizer-offload` moves"));
}

/// GPT-3 in fp16 on 64 A800 of 80 GB: it ran (DeepLink-org/AIChipBenchmark, llm/GPT3). Without replicas there is nothing to flatten for an exchange.
#[test]
fn gpt_3_in_half_precision_fits_on_a800s() {
    let machine =
        Platform { hardware: hardware("a800-sxm-80gb").unwrap(), stack: stack("megatron-deepspeed").unwrap() };
    let layout = ParallelConfig {
        tp: 8,
        pp: 8,
        micro: 16,
        sequence: 2048,
        precision: Precision::Fp16,
        attention: Some(Attention::Flash),
        ..ParallelConfig::default()
    };
    let costs = Analytic::new(transformer_named("gpt-3-175b").unwrap(), machine, layout).unwrap();
    let memory = Selection::new(8, 16).estimate("1f1b", &costs).unwrap().memory;
    assert!(memory.fits, "{:?}", memory.fullest());
}
