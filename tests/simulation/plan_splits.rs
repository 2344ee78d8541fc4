//! Layers that `plan` moves between stages, against every split that `predict` can price.

use crate::support::Dice;
use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::{CudaGraph, Dispatcher, StepOptions, hardware, stack, transformer_named};
use pipesim::plans::{Fixed, Question, Search, Silent, plan};
use pipesim::schedules::Placement;
use pipesim::{ParallelConfig, Zero};
use std::collections::BTreeMap;

/// All splits of `layers` layers over `stages` stages of which only the first and the last may be empty.
fn every_split(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    fn extend(left: usize, stage: usize, stages: usize, before: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        let least = usize::from(stage > 0 && stage + 1 < stages);
        let range = if stage + 1 == stages { left..left + 1 } else { least..left + 1 };
        for count in range {
            before.push(count);
            match stage + 1 == stages {
                true => all.push(before.clone()),
                false => extend(left - count, stage + 1, stages, before, all),
            }
            before.pop();
        }
    }
    let mut all = Vec::new();
    extend(layers, 0, stages, &mut Vec::new(), &mut all);
    all
}

fn divisors(number: u32) -> Vec<u32> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}

/// A small model on few GPUs, whose every layout can be priced.
fn small_question(dice: &mut Dice) -> Question {
    let (name, hardware_name) = [
        ("gpt2", "a100-sxm-80gb"),
        ("llama-3-8b", "h100-sxm"),
        ("qwen2.5-7b", "h200-sxm"),
        ("qwen3-30b-a3b", "h100-sxm"),
        ("deepseek-v2-lite", "h100-sxm"),
    ][dice.below(5)];
    let mut model = transformer_named(name).unwrap();
    model.layers = 3 + dice.below(5);
    let mut machine = Platform { hardware: hardware(hardware_name).unwrap(), stack: stack("megatron-core").unwrap() };
    if dice.below(3) == 0 {
        machine.hardware.memory_gib *= 0.25;
    }
    let gpus = [2, 4, 8][dice.below(3)];
    let mut question = Question::new(model, machine, gpus, gpus * (1 + dice.below(4) as u32), 1024);
    let options = match question.model.experts {
        None => ["ep=1,cuda-graph=none", "ep=1,cuda-graph=full", "ep=1"][dice.below(3)],
        Some(_) => ["ep=1", "ep=2,moe-overlap=off", "ep=2,moe-overlap=on"][dice.below(3)],
    };
    let fixed = format!("recompute=none,cp=1,zero=0,zero=1,pp=2,pp=4,{options}");
    question.fixed = Fixed::parse(&fixed).unwrap();
    question.keep = 100;
    question
}

/// All options that a question's layouts may have.
fn every_option(question: &Question) -> Vec<StepOptions> {
    let usual = StepOptions::default();
    let fixed = &question.fixed;
    let mut all = Vec::new();
    for &dispatcher in Dispatcher::ALL {
        for &cuda_graph in CudaGraph::ALL {
            for (moe_overlap, delay_wgrad) in [(false, false), (true, false), (true, true)] {
                let options = StepOptions { dispatcher, cuda_graph, moe_overlap, delay_wgrad };
                let is_sent = question.model.experts.is_some() && fixed.ep.contains(&2);
                let allowed = fixed.cuda_graph.is_empty() || fixed.cuda_graph.contains(&cuda_graph);
                let other = if question.model.experts.is_some() { CudaGraph::Full } else { CudaGraph::Partial };
                let is_overlap =
                    fixed.moe_overlap.is_empty() && !moe_overlap || fixed.moe_overlap.contains(&moe_overlap);
                let is_default = dispatcher == usual.dispatcher && !moe_overlap;
                if allowed && cuda_graph != other && is_overlap && (is_sent || is_default) {
                    all.push(options);
                }
            }
        }
    }
    all
}

/// What the splits and options of a layout share.
type Known = (u32, u32, u32, u32, u32, Zero, bool);

fn known(layout: &ParallelConfig) -> Known {
    let ParallelConfig { tp, pp, dp, chunks, micro, zero, sequence_parallel, .. } = *layout;
    (tp, pp, dp, chunks, micro, zero, sequence_parallel)
}

/// All layouts of the question without a split of the layers and without options.
fn every_layout(question: &Question) -> Vec<ParallelConfig> {
    let mut all = Vec::new();
    let (gpus, batch) = (question.gpus[0], question.batch);
    let is_mixture = question.model.experts.is_some();
    let least = if question.fixed.moe_overlap.contains(&true) { 2 } else { 1 };
    for tp in divisors(gpus) {
        for pp in divisors(gpus / tp).into_iter().filter(|pp| question.fixed.pp.contains(pp)) {
            let dp = gpus / tp / pp;
            for size in divisors(batch / dp).into_iter().filter(|_| batch.is_multiple_of(dp)) {
                let micro = batch / dp / size;
                let most = (question.model.layers as u32 + 2) / pp;
                for chunks in (least..=most).filter(|&chunks| chunks == 1 || micro.is_multiple_of(pp)) {
                    for (zero, sequence_parallel) in
                        [Zero::None, Zero::Optimizer].into_iter().flat_map(|zero| [(zero, false), (zero, true)])
                    {
                        // tokens are routed once, and tp 1 has nothing to share
                        let is_same = sequence_parallel && tp == 1 || zero != Zero::None && dp == 1;
                        if is_same || is_mixture && sequence_parallel != (tp > 1) {
                            continue;
                        }
                        all.push(ParallelConfig {
                            tp,
                            pp,
                            dp,
                            chunks,
                            zero,
                            micro,
                            sequence_parallel,
                            micro_batch_size: size,
                            sequence: question.sequence,
                            ep: question.fixed.ep.first().copied().unwrap_or(1),
                            ..ParallelConfig::default()
                        });
                    }
                }
            }
        }
    }
    all
}

/// The least time of each layout with any split of the layers and any options, of those that fit into `bytes`.
fn every_time(question: &Question, bytes: u64) -> BTreeMap<Known, (f64, ParallelConfig)> {
    let mut least = BTreeMap::new();
    for layout in every_layout(question) {
        let schedule = match (question.fixed.moe_overlap.contains(&true), layout.chunks) {
            (true, _) => "interleaved-overlap",
            (false, 1) => "1f1b",
            (false, _) => "interleaved-1f1b",
        };
        let splits = every_split(question.model.layers, (layout.pp * layout.chunks) as usize);
        for options in every_option(question) {
            let layout = layout.clone().with_options(options);
            let Ok(mut costs) = Analytic::new(question.model, question.machine.clone(), layout) else { continue };
            for layers in &splits {
                costs.layout.layers = Some(layers.clone());
                let Ok(estimate) = costs.estimate(schedule) else { continue };
                let time = estimate.iteration_s;
                let known = least.entry(known(&costs.layout)).or_insert((f64::INFINITY, costs.layout.clone()));
                if time < known.0 && estimate.memory.fullest().total <= bytes {
                    *known = (time, costs.layout.clone());
                }
            }
        }
    }
    least.retain(|_, (time, _)| time.is_finite());
    least
}

/// No split and no number of chunks beats the plans, and no bound is above the time of any split. `PIPESIM_PLANS` is the number of
/// questions.
#[test]
fn no_split_beats_the_plans() {
    let number = std::env::var("PIPESIM_PLANS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let (mut dice, mut compared, mut wrong) = (Dice(49), [0; 2], Vec::new());
    for _ in 0..number {
        let question = small_question(&mut dice);
        let every = every_time(&question, question.bytes());
        let Ok(search) = Search::new(&question) else { continue };
        for candidate in search.space.candidates.iter().filter(|candidate| search.space.shape(candidate).moves) {
            let layout = search.space.layout(&question, candidate);
            let Some((time, _)) = every.get(&known(&layout)) else { continue };
            if candidate.bound > *time {
                wrong.push(format!("{layout}: the bound {} is above {time}", candidate.bound));
            }
        }
        let Ok(found) = plan(&question, BTreeMap::new(), &Silent) else {
            assert!(every.is_empty(), "{:?}", question.model);
            continue;
        };
        let what =
            || format!("{} layers on {} GPUs, batch {}", question.model.layers, question.gpus[0], question.batch);
        let own = found.plans.iter().map(|plan| plan.estimate.iteration_s).fold(f64::INFINITY, f64::min);
        let best = every.values().min_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((best, layout)) = best {
            compared[0] += 1;
            if own > best * 1.001 {
                wrong.push(format!("{}: {own} instead of {best} of {layout:?}", what()));
            }
        }
        // plan 1 is the simplest of those that are close: nothing of its degrees is faster
        let first = &found.plans[0];
        let is_like = |layout: &ParallelConfig| {
            let of = |layout: &ParallelConfig| (layout.tp, layout.pp, layout.micro_batch_size);
            of(layout) == of(&first.layout)
        };
        let fastest_like = |bytes: u64| {
            let every = if bytes == question.bytes() { every.clone() } else { every_time(&question, bytes) };
            every.into_values().filter(|(_, layout)| is_like(layout)).min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let is_slower = |other: &(f64, ParallelConfig)| first.estimate.iteration_s > other.0 * 1.001;
        let mut like = fastest_like(question.bytes());
        compared[1] += usize::from(like.is_some());
        // plan 1 leaves the mean error of predicted memory if it can
        if like.as_ref().is_some_and(is_slower) && first.memory_bytes() <= question.safe_bytes() {
            like = fastest_like(question.safe_bytes());
        }
        if let Some((time, layout)) = like.filter(is_slower) {
            wrong.push(format!("{}: plan 1, {:?}, instead of {time} of {layout:?}", what(), first.layout));
        }
    }
    assert!(wrong.is_empty(), "{} wrong of {number}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared[0] * 2 > number && compared[1] * 3 > number, "{compared:?} of {number}");
    println!("plans compared with every layout: {compared:?} of {number}");
}

/// The busiest device of the lightest split is as light as that of any, of models whose layers are alike.
#[test]
fn the_lightest_split_is_lighter_than_all_others() {
    for name in ["llama-3-8b", "gpt2", "qwen3-30b-a3b"] {
        for layers in 4..9 {
            let mut model = transformer_named(name).unwrap();
            model.layers = layers;
            let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack("megatron-core").unwrap() };
            let layout = ParallelConfig { pp: 2, micro: 8, sequence: 1024, ..ParallelConfig::default() };
            let costs = Analytic::new(model, machine, layout).unwrap();
            for placement in [
                Placement::linear(2),
                Placement::linear(3),
                Placement::looped("looped", 2, 2),
                Placement::zigzag("v", 2, 2),
            ] {
                let count = placement.stages() as usize;
                let busiest = |split: &[usize]| {
                    let stages = costs.spec.split(count, Some(split)).unwrap();
                    let of = |stage: u32| {
                        let passes = costs.passes(&stages[stage as usize]);
                        passes.forward.total() + passes.backward.total()
                    };
                    let device = |device: u32| placement.stages_of(device).map(of).sum::<f64>();
                    (0..placement.devices()).map(device).fold(0.0, f64::max)
                };
                let most = vec![usize::MAX; placement.devices() as usize];
                let own = costs.split_times(false).lightest(&placement, &most).unwrap();
                let best = every_split(layers, count).iter().map(|split| busiest(split)).fold(f64::INFINITY, f64::min);
                assert!(busiest(&own) <= best * (1.0 + 1e-9), "{name}, {layers} layers, {placement:?}: {own:?}");
            }
        }
    }
}
