//! Hybrid sharding: states that groups of replicas share, and what its limits are.

use pipesim::costs::{Analytic, Platform};
use pipesim::models::{TransformerConfig, hardware, stack, transformer_named};
use pipesim::{ParallelConfig, Selection, StepEstimate, Zero};

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
