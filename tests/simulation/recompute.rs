//! Recomputed layers: the first ones of each stage, groups of them, or every k-th; and backwards that PyTorch's autograd splits.

use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::{STACKS, hardware, stack, transformer_named};
use pipesim::{ParallelConfig, Recompute, StepEstimate, Zero};

/// Models of equal layers, of a mixture with dense layers before it, with layers that predict further tokens, and of two kinds of layers by
/// turns; each with numbers of stages that fit it.
const MODELS: [(&str, u32); 5] =
    [("gpt2-xl", 4), ("llama-3-8b", 4), ("deepseek-v2-lite", 2), ("deepseek-v3", 4), ("gpt-oss-20b", 2)];

fn costs(model: &str, layout: ParallelConfig) -> Analytic {
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack(&layout.stack).unwrap() };
    Analytic::new(transformer_named(model).unwrap(), machine, layout).unwrap()
}

fn layout(pp: u32, chunks: u32, stack: &str, recompute: Recompute) -> ParallelConfig {
    let stack = stack.to_string();
    ParallelConfig {
        pp,
        chunks,
        micro: 2 * pp,
        sequence: 1024,
        zero: Zero::Optimizer,
        recompute,
        stack,
        ..Default::default()
    }
}

/// Schedules with their stages per device.
const SCHEDULES: [(&str, u32); 6] =
    [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 3), ("zb-h1", 1), ("zb-v", 2)];

/// Every model and schedule with some training software.
fn each(mut tried: impl FnMut(&str, &dyn Fn(Recompute) -> Option<StepEstimate>)) {
    for (number, ((model, pp), (schedule, chunks))) in
        MODELS.into_iter().flat_map(|model| SCHEDULES.map(|schedule| (model, schedule))).enumerate()
    {
        let software = STACKS[number % STACKS.len()];
        let of = |recompute| {
            let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack(software).unwrap() };
            let layout = layout(pp, chunks, software, recompute);
            Analytic::new(transformer_named(model).unwrap(), machine, layout).unwrap().estimate(schedule).ok()
        };
        tried(&format!("{model} {schedule} {chunks} {software}"), &of);
    }
}

#[test]
fn the_ends_are_nothing_and_everything() {
    let mut compared = 0;
    each(|what, of| {
        let mut same = |one: Recompute, other: Recompute| {
            let (one, other) = (of(one), of(other));
            assert_eq!(one.is_some(), other.is_some(), "{what}");
            let (Some(one), Some(other)) = (one, other) else { return };
            assert_eq!(one.time_s, other.time_s, "{what}");
            assert_eq!(one.memory, other.memory, "{what}");
            compared += 1;
        };
        same(Recompute::Block(0), Recompute::None);
        same(Recompute::Every(1 << 16), Recompute::None);
        same(Recompute::Uniform(1), Recompute::Full);
        // Megatron keeps layers that predict further tokens
        if !what.starts_with("deepseek-v3") {
            same(Recompute::Block(1 << 16), Recompute::Full);
            same(Recompute::Every(1), Recompute::Full);
        }
    });
    assert!(compared > 80, "{compared}");
}

/// With each further layer a step takes longer and saves less; a larger group saves less, and needs more while it runs backward.
#[test]
fn each_layer_takes_time_and_gives_memory() {
    let mut compared = 0;
    each(|what, of| {
        // autograd's split backwards keep what they recompute
        let is_split = what.contains(" zb-") && ["torchtitan", "automodel"].iter().any(|name| what.ends_with(name));
        let mut before = of(Recompute::None);
        for layers in 1..=8 {
            let Some((less, more)) = before.take().zip(of(Recompute::Block(layers))) else { break };
            assert!(less.iteration_s <= more.iteration_s, "{what}: block:{layers}");
            let held = |one: &StepEstimate| one.memory.per_device.iter().map(|device| device.total).collect::<Vec<_>>();
            let gives = held(&less).iter().zip(held(&more)).all(|(less, more)| *less >= more);
            assert!(gives || is_split, "{what}: block:{layers} {:?} {:?}", held(&less), held(&more));
            compared += 1;
            before = Some(more);
        }
        let (Some(one), Some(two)) = (of(Recompute::Full), of(Recompute::Uniform(2))) else { return };
        assert_eq!(one.time_s, two.time_s, "{what}");
        let saved = |one: &StepEstimate| one.memory.per_device.iter().map(|device| device.activations).sum::<u64>();
        assert!(saved(&two) < saved(&one) || what.contains("llm.c"), "{what}");
    });
    assert!(compared > 100, "{compared}");
}

/// Megatron recomputes the first layers of each stage: of DeepSeek-V3's first stage its three dense layers first.
#[test]
fn the_first_layers_of_a_stage_count_as_what_they_are() {
    let of = |recompute| costs("deepseek-v3", layout(4, 1, "megatron-core", recompute));
    let [none, full] = [of(Recompute::None), of(Recompute::Full)];
    let again = |part: &str| full.part(part).unwrap().input.total() - none.part(part).unwrap().input.total();
    let (dense, mixture) = (again("block"), again("mixture"));
    assert!(dense > 0.0 && mixture > 0.0 && (dense - mixture).abs() > 1e-6);
    let stages = none.stages(4).unwrap();
    for layers in 0..8_u32 {
        let some = of(Recompute::Block(layers));
        for (number, stage) in stages.iter().enumerate() {
            let added = some.passes(stage).input.total() - none.passes(stage).input.total();
            let of_dense = if number == 0 { layers.min(3) } else { 0 };
            let expected = f64::from(of_dense) * dense + f64::from(layers - of_dense) * mixture;
            assert!((added - expected).abs() < 1e-9, "block:{layers} of stage {number}: {added} {expected}");
        }
    }
}

/// The closed form of Korthikanti et al., arXiv 2205.05198, section 4: a GPT's layer saves 34 sbh + 5 as²b, a recomputed one 2 sbh; with
/// groups of n layers there is one input per group, and n layers are whole while one of them runs backward.
#[test]
fn saved_inputs_follow_closed_forms() {
    let (s, h, a) = (1024_u64, 1600_u64, 25_u64);
    let of = |recompute| {
        let layout = ParallelConfig {
            attention: Some(pipesim::models::Attention::Plain),
            ..layout(4, 1, "megatron-lm", recompute)
        };
        let costs = costs("gpt2-xl", layout);
        costs.memory_model().left(&costs.stages(4).unwrap()[1])
    };
    let (layers, input) = (12, 2 * s * h);
    // and 16 bytes per token for the statistics of two norms
    let whole = 34 * s * h + 5 * a * s * s + 16 * s;
    assert_eq!(of(Recompute::None).forward, layers * whole);
    for n in 0..=12 {
        assert_eq!(of(Recompute::Block(n)).forward, u64::from(n) * input + (layers - u64::from(n)) * whole);
    }
    let full = of(Recompute::Full);
    for n in 1..=13_u64 {
        let some = of(Recompute::Uniform(n as u32));
        assert_eq!(some.forward, layers.div_ceil(n) * input, "uniform:{n}");
        let live = n.min(layers) - 1;
        assert_eq!(some.in_backward, full.in_backward + live * whole, "uniform:{n}");
    }
}

/// Counted with PyTorch 2.15 on CPUs: two checkpointed layers of Llama's (two norms; products for q, k, v, o, gate, up, down), run by
/// `stage_backward_input` and `stage_backward_weight` of torch.distributed.pipelining. The input's pass runs each layer's forward once more,
/// 26 products instead of 14, as it stops before the last one of each layer; the weights' pass runs it once per module with weights, 18 times,
/// with 122 products instead of 14. Afterwards the gradients of the modules' outputs are held, 11 times the layer's input; without
/// checkpoints also all that the forward saved.
#[test]
fn a_backward_that_autograd_splits_recomputes_once_per_module() {
    let of = |stack: &str, recompute| costs("llama-2-7b", layout(4, 1, stack, recompute));
    let titan = of("torchtitan", Recompute::Full);
    let block = titan.spec.parts.iter().find(|part| part.name == "block").unwrap();
    assert_eq!(2 * block.modules(), 18);
    let plain = of("torchtitan", Recompute::None).part("block").unwrap();
    let passes = titan.part("block").unwrap();
    let once = passes.input.compute - plain.input.compute;
    let again = passes.split_weights().compute - plain.weights.compute;
    assert!((again / once - 9.0).abs() < 1e-9, "{again} {once}");
    assert_eq!(plain.split_weights(), plain.weights);
    // whole backwards and Megatron's deferred products recompute once
    assert!((passes.backward.compute - plain.backward.compute - once).abs() < 1e-12);
    let fork = of("megatron-zb", Recompute::Full).part("block").unwrap();
    assert_eq!(fork.split_weights(), fork.weights);
    // held from I until W, in inputs of a layer of 4,096 channels whose MLP has 11,008
    let input = 2 * 1024 * 4096;
    let held = |recompute| {
        let costs = of("torchtitan", recompute);
        let stage = costs.stages(4).unwrap().remove(1);
        let left = costs.memory_model().left(&stage);
        (left.input as f64 / input as f64 / 8.0, left.forward as f64 / input as f64 / 8.0)
    };
    let gradients = 2.0 + 4.0 + 2.0 * 11_008.0 / 4096.0 + 1.0;
    for recompute in [Recompute::None, Recompute::Full] {
        let (input, forward) = held(recompute);
        assert!((input - forward - gradients).abs() < 1e-9, "{recompute}: {input} {forward}");
    }
}

/// Llama-3 8B on 8 GPUs as pytorch/torchtitan#773 measured it: without checkpoints the interleaved zero bubble is faster than interleaved
/// 1F1B (339 and 304 tokens/s); with full checkpoints it is slower, and takes more memory (405B on 512 GPUs: 13 and 128
/// tokens/s, 90 and 73 GiB).
#[test]
fn a_zero_bubble_with_checkpoints_is_slower_in_pytorch() {
    let of = |schedule: &str, recompute| {
        let layout = ParallelConfig { micro: 16, sequence: 512, ..layout(8, 2, "torchtitan", recompute) };
        let estimate = costs("llama-3-8b", layout).estimate(schedule).unwrap();
        (estimate.iteration_s, estimate.memory.fullest().total)
    };
    let [zero, usual] = ["interleaved-zb", "interleaved-1f1b"].map(|schedule| of(schedule, Recompute::None));
    assert!(zero.0 < usual.0, "{zero:?} {usual:?}");
    let [zero, usual] = ["interleaved-zb", "interleaved-1f1b"].map(|schedule| of(schedule, Recompute::Full));
    assert!(zero.0 > 1.2 * usual.0 && zero.1 > usual.1, "{zero:?} {usual:?}");
}

#[test]
fn layers_are_named_as_numbers() {
    let text = |text: &str| text.parse::<Recompute>().map(|what| what.to_string());
    for (given, read) in [
        ("block:5", "block:5"),
        ("block:0", "none"),
        ("uniform:1", "full"),
        ("every:1", "full"),
        ("uniform:3", "uniform:3"),
        ("every:2", "every:2"),
    ] {
        assert_eq!(text(given).as_deref(), Ok(read));
    }
    for wrong in ["block", "block:", "block:-1", "uniform:0", "every:0", "blocks:3", "block:99999999999"] {
        assert!(text(wrong).unwrap_err().to_string().contains("block:"), "{wrong}");
    }
}
