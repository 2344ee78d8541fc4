//! Random neighbours of the fastest plans of large questions: none is faster within the same memory.

use crate::questions::asked;
use crate::support::Dice;
use pipesim::costs::Platform;
use pipesim::models::{CudaGraph, Dispatcher, hardware, stack, transformer_named};
use pipesim::plans::{Question, Risk, Silent, plan};
use pipesim::questions::{MemoryCap, answer};
use pipesim::schedules::Files;
use pipesim::{ParallelConfig, Zero};
use std::collections::BTreeMap;

/// Model, hardware, GPUs, batch and sequence.
const LARGE: [(&str, &str, u32, u32, u32); 6] = [
    ("llama-3-8b", "h100-sxm", 32, 256, 8192),
    ("qwen3-30b-a3b", "h100-sxm", 32, 256, 4096),
    ("llama-3-70b", "h100-sxm", 64, 128, 8192),
    ("deepseek-v2-lite", "h100-sxm", 16, 256, 4096),
    ("qwen3-14b", "rtx-4090", 32, 128, 4096),
    ("gpt-oss-120b", "b300", 32, 256, 4096),
];

/// Changes one thing of a layout, or two that belong together; `None` if it cannot be changed like that.
fn changed(mut layout: ParallelConfig, batch: u32, layers: usize, dice: &mut Dice) -> Option<ParallelConfig> {
    let stages = layout.pp * layout.chunks;
    match dice.below(10) {
        0 | 1 => {
            let degrees = [&mut layout.tp, &mut layout.pp, &mut layout.dp, &mut layout.cp];
            let (from, to) = (dice.below(4), dice.below(4));
            if from == to || !degrees[from].is_multiple_of(2) {
                return None;
            }
            *degrees[from] /= 2;
            *degrees[to] *= 2;
        }
        2 => layout.micro_batch_size *= 2,
        3 => layout.micro_batch_size = layout.micro_batch_size.checked_div(2).filter(|size| *size > 0)?,
        4 => {
            let all = [
                "none",
                "full",
                "block:1",
                "block:2",
                "block:4",
                "mlp",
                "layernorm",
                "layernorm,mlp",
                "moe_act",
                "moe",
            ];
            layout.recompute = all[dice.below(all.len())].parse().unwrap();
        }
        5 => layout.zero = if layout.zero == Zero::None { Zero::Optimizer } else { Zero::None },
        6 => layout.chunks = 1 + dice.below(10) as u32,
        7 => {
            let mut split = layout.layers.clone().filter(|split| split.len() > 1)?;
            for _ in 0..1 + dice.below(3) {
                let (from, to) = (dice.below(split.len()), dice.below(split.len()));
                split[from] = split[from].checked_sub(1)?;
                split[to] += 1;
            }
            layout.layers = Some(split);
        }
        8 if layout.ep > 1 => {
            layout.dispatcher = Dispatcher::ALL[dice.below(3)];
            layout.cuda_graph = [CudaGraph::None, CudaGraph::Partial][dice.below(2)];
            layout.moe_overlap = dice.below(2) == 0;
            layout.delay_wgrad = layout.moe_overlap && dice.below(2) == 0;
        }
        8 => layout.cuda_graph = if layout.cuda_graph == CudaGraph::None { CudaGraph::Full } else { CudaGraph::None },
        _ if layout.ep > 1 && dice.below(2) == 0 => layout.ep /= 2,
        _ => layout.ep *= 2,
    }
    layout.sequence_parallel &= layout.tp > 1;
    layout.sequence_parallel |= layout.tp > 1 && dice.below(4) > 0;
    let each = layout.dp * layout.micro_batch_size;
    layout.micro = Some(batch / each).filter(|_| batch.is_multiple_of(each)).filter(|micro| *micro > 0)?;
    if layout.pp * layout.chunks != stages {
        layout.layers = None;
    }
    (layout.pp as usize * layout.chunks as usize <= layers + 2).then_some(layout)
}

/// With `PIPESIM_PLANS`, there are twice as many of each question.
#[test]
fn no_neighbour_beats_the_fastest_plan() {
    let given = std::env::var("PIPESIM_PLANS").ok().and_then(|text| text.parse::<usize>().ok());
    let (number, questions) = given.map_or((40, 2), |given| (2 * given, LARGE.len()));
    let (mut dice, mut wrong, mut compared) = (Dice(50), Vec::new(), 0);
    for (model, machine, gpus, batch, sequence) in &LARGE[..questions] {
        let config = transformer_named(model).unwrap();
        let platform = Platform { hardware: hardware(machine).unwrap(), stack: stack("megatron-core").unwrap() };
        let question = Question { risk: Risk::Even, ..Question::new(config, platform, *gpus, *batch, *sequence) };
        let mut best = plan(&question, BTreeMap::new(), &Silent).unwrap().plans.swap_remove(0);
        best.layout.layers = Some(best.estimate.layers.clone());
        let (mut tried, mut least) = (0, (best.estimate.iteration_s, String::new()));
        while tried < number {
            let mut layout = Some(best.layout.clone());
            for _ in 0..1 + dice.below(3) {
                layout = layout.and_then(|layout| changed(layout, *batch, config.layers, &mut dice));
            }
            let Some(layout) = layout else { continue };
            tried += 1;
            let schedule = match (layout.moe_overlap, layout.chunks) {
                (true, _) => "interleaved-overlap",
                (false, 1) => "1f1b",
                (false, _) => "interleaved-1f1b",
            };
            let names_chunks = layout.moe_overlap || layout.chunks > 1;
            let mut asked = asked(&layout, schedule, names_chunks, model, machine);
            asked.memory_cap = Some(MemoryCap::Bytes(question.bytes()));
            let Ok(found) = answer(&asked, &Files) else { continue };
            let Some(one) = found.predictions.into_iter().next() else { continue };
            let Some(estimate) = one.estimate.filter(|estimate| estimate.memory.fits) else { continue };
            compared += 1;
            let accepts = one.framework.is_none_or(|verdict| verdict.accepts);
            if accepts && estimate.iteration_s < least.0 {
                least = (estimate.iteration_s, format!("{schedule} {layout:?}"));
            }
        }
        if least.0 < best.estimate.iteration_s / 1.001 {
            let own = best.estimate.iteration_s;
            wrong.push(format!("{model}: {own} of {:?}, {} of {}", best.layout, least.0, least.1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared * 8 > number * questions, "{compared}");
    println!("neighbours predicted: {compared} of {}", number * questions);
}
