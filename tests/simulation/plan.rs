//! `plan` against predicting every layout, one by one, through the public API.

use crate::support::Dice;
use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::Attention;
use pipesim::models::{IntervalClass, hardware, model_names, stack, transformer_named};
use pipesim::plans::{
    Fixed, Journal, LayoutOutcome, Objective, Preference, Question, RESOLUTION, Search, Silent, fronts, heat_map, plan,
};
use pipesim::{Host, ParallelConfig, Recompute, Selection, Zero};
use std::collections::{BTreeMap, BTreeSet};

const STACK: &str = "megatron-core";

fn machine(name: &str, gib: f64, stack_name: &str) -> Platform {
    let mut machine = Platform { hardware: hardware(name).unwrap(), stack: stack(stack_name).unwrap() };
    machine.hardware.memory_gib = gib;
    machine
}

fn question(model: &str, gpus: u32, gib: f64, batch: u32) -> Question {
    Question::new(transformer_named(model).unwrap(), machine("a100-sxm-80gb", gib, STACK), gpus, batch, 1024)
}

fn divisors(number: u32) -> Vec<u32> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}

/// The time of a layout as `predict` gives it, if the layout exists and fits.
fn predicted(question: &Question, layout: &ParallelConfig, schedule: &str) -> Option<f64> {
    let costs = Analytic::new(question.model, question.machine.clone(), layout.clone()).ok()?;
    let estimate = costs.estimate(schedule).ok()?;
    (estimate.memory.fullest().total <= question.bytes()).then_some(estimate.iteration_s)
}

/// All layouts of Megatron-Core with the default split of layers, written down without the search's own lists.
fn every_layout(question: &Question) -> Vec<(ParallelConfig, &'static str)> {
    let cuda_graph = question.fixed.cuda_graph[0];
    let (gpus, batch) = (question.gpus[0], question.batch);
    let layers = question.model.layers as u32;
    let mut all = Vec::new();
    for tp in divisors(gpus) {
        for cp in divisors(gpus / tp) {
            for pp in divisors(gpus / tp / cp) {
                let dp = gpus / tp / cp / pp;
                if !batch.is_multiple_of(dp) {
                    continue;
                }
                for size in divisors(batch / dp) {
                    let micro = batch / dp / size;
                    let mut shapes = vec![("1f1b", 1)];
                    let even = |items: u32, v: u32| items.is_multiple_of(pp * v);
                    let chunks = (2..=layers).filter(|&v| even(layers, v) || !even(layers, 1) && even(layers + 2, v));
                    shapes
                        .extend(chunks.filter(|_| pp > 1 && micro.is_multiple_of(pp)).map(|v| ("interleaved-1f1b", v)));
                    for (schedule, chunks) in shapes {
                        let parts = ["none", "layernorm", "layernorm,mlp", "full"].map(|what| what.parse().unwrap());
                        for recompute in
                            parts.into_iter().chain((1..(layers + 2).div_ceil(pp * chunks)).map(Recompute::Block))
                        {
                            for zero in [Zero::None, Zero::Optimizer] {
                                for sequence_parallel in [false, true] {
                                    let layout = ParallelConfig {
                                        tp,
                                        cp,
                                        pp,
                                        dp,
                                        chunks,
                                        micro_batch_size: size,
                                        micro,
                                        recompute,
                                        zero,
                                        sequence_parallel,
                                        sequence: question.sequence,
                                        cuda_graph,
                                        ..ParallelConfig::default()
                                    };
                                    // Megatron-LM cuts each sequence, not all tokens of a micro-batch
                                    let [whole, local] = [question.sequence, question.sequence / cp];
                                    if cp > 1 && !whole.is_multiple_of(2 * cp)
                                        || sequence_parallel && !local.is_multiple_of(tp)
                                    {
                                        continue;
                                    }
                                    let same = zero != Zero::None && dp * cp == 1 || sequence_parallel && tp == 1;
                                    // the replicas of a node may share states, too
                                    let (node, whole) = (question.machine.hardware.gpus_per_node as u32 / tp, dp * cp);
                                    let groups = zero != Zero::None && node > 1 && node < whole && whole % node == 0;
                                    let shards = [None, Some(node).filter(|_| groups && node % cp == 0)];
                                    let shards = &shards[..if shards[1].is_some() { 2 } else { 1 }];
                                    let of =
                                        |&shard: &Option<u32>| (ParallelConfig { shard, ..layout.clone() }, schedule);
                                    all.extend(shards.iter().filter(|_| !same).map(of));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// The best plans are those that predicting everything finds, for memory that is plenty, scarce, and very scarce.
#[test]
fn the_search_finds_what_predicting_every_layout_finds() {
    let cases = [
        ("gpt2-medium", 4, 80.0, 8, 8.0, "none"),
        ("gpt2-medium", 4, 9.0, 8, 8.0, "full"),
        ("gpt2", 6, 4.5, 12, 8.0, "none"),
        ("gpt2", 8, 80.0, 8, 2.0, "full"),
    ];
    for (model, gpus, gib, batch, node, graph) in cases {
        let mut question = question(model, gpus, gib, batch);
        question.fixed.cuda_graph = vec![graph.parse().unwrap()];
        question.machine.hardware.gpus_per_node = node;
        question.keep = 5;
        let plans = plan(&question, BTreeMap::new(), &Silent).unwrap();
        let every = every_layout(&question).into_iter();
        let mut every: Vec<(ParallelConfig, &str, f64)> = every
            .filter_map(|(layout, name)| {
                let time = predicted(&question, &layout, name)?;
                Some((layout, name, time))
            })
            .collect();
        // some layers are recomputed only where a layout does not fit without
        let named = |layout: &ParallelConfig, name: &str| {
            let ParallelConfig { tp, cp, pp, chunks, micro_batch_size, zero, sequence_parallel, .. } = *layout;
            (tp, cp, pp, chunks, micro_batch_size, zero, sequence_parallel, name.to_string())
        };
        let fitting = every.iter().filter(|(layout, ..)| layout.recompute == Recompute::None);
        let fitting: BTreeSet<_> = fitting.map(|(layout, name, _)| named(layout, name)).collect();
        every.retain(|(layout, name, _)| {
            !matches!(layout.recompute, Recompute::Block(_)) || !fitting.contains(&named(layout, name))
        });
        // of layouts that differ only in virtual stages, in cp and the size of micro-batches, or in recomputed parts, the best is shown
        let kind = |layout: &ParallelConfig, schedule: &str| {
            let ParallelConfig { tp, pp, micro, recompute, zero, sequence_parallel, .. } = *layout;
            (tp, pp, micro, recompute.is_of_layers(), zero, sequence_parallel, schedule.to_string())
        };
        let mut best = BTreeMap::new();
        for (layout, schedule, time) in &every {
            let known = best.entry(kind(layout, schedule)).or_insert(*time);
            *known = known.min(*time);
        }
        let mut all: Vec<f64> = best.into_values().collect();
        all.sort_by(f64::total_cmp);
        // plan 1 is the simplest within the resolution of predictions; the others follow by their times. Splits that move layers are the
        // search's own; they are predicted one by one
        let (first, others) = plans.plans.split_first().unwrap();
        let usual: Vec<f64> =
            others.iter().filter(|plan| plan.layout.layers.is_none()).map(|plan| plan.estimate.iteration_s).collect();
        assert!(!usual.is_empty(), "{model}");
        let own = first.estimate.iteration_s;
        let mut expected = all.clone();
        if let Some(at) = expected.iter().position(|&time| time == own) {
            expected.remove(at);
        }
        assert_eq!(usual, expected[..usual.len()], "{model} on {gpus} GPUs with {gib} GiB");
        let key = |layout: &ParallelConfig| {
            let ParallelConfig { tp, cp, pp, micro_batch_size, recompute, .. } = *layout;
            Preference::new(micro_batch_size, recompute != Recompute::None, tp * cp, pp)
        };
        // what published steps are like comes first unless its interval ends later than that of the fastest
        let outside = |layout: &ParallelConfig| {
            let costs = Analytic::new(question.model, question.machine.clone(), layout.clone()).unwrap();
            costs.hull_point(1).outside(&[]).len()
        };
        let asked = outside(&ParallelConfig { sequence: question.sequence, ..ParallelConfig::default() });
        let ways = |layout: &ParallelConfig| outside(layout) - asked;
        let end =
            |ways: usize, time: f64| time * IntervalClass { outside: ways, ..IntervalClass::default() }.factors()[1];
        let shown = plans.plans.iter().map(|plan| (plan.estimate.iteration_s, ways(&plan.layout)));
        let (fastest, most) = shown.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        assert!(fastest <= all[0]);
        let (mut best, mut least) = (fastest, most);
        for (layout, _, time) in &every {
            let own = ways(layout);
            if own < most && end(own, *time) <= end(most, fastest) && (own < least || own == least && *time < best) {
                (best, least) = (*time, own);
            }
        }
        assert!(own <= best * (1.0 + RESOLUTION) && ways(&first.layout) <= least, "{own} {best}");
        let near = every.iter().filter(|(layout, _, time)| *time <= best * (1.0 + RESOLUTION) && ways(layout) <= least);
        let simplest = near.map(|(layout, ..)| key(layout)).min().unwrap();
        // unless only a less simple one leaves room for what predictions of memory err by
        let leaves_room = first.memory_bytes() <= question.safe_bytes();
        assert!(key(&first.layout) <= simplest || leaves_room, "{}", first.layout);
        for found in &plans.plans {
            let own = predicted(&question, &found.layout, &found.schedule).expect("a plan fits");
            assert_eq!(own, found.estimate.iteration_s, "{}", found.layout);
            assert!(found.memory_bytes() <= question.bytes());
        }
        let counted: u64 = plans.ruled_out.values().sum::<u64>() + plans.plans.len() as u64;
        assert_eq!(counted, plans.considered);
    }
}

/// One core, in the reverse order.
#[derive(Debug)]
struct Backwards;

impl Host for Backwards {
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).rev().for_each(work);
    }
}

#[test]
fn the_answer_is_the_same_on_any_number_of_cores_and_from_a_journal() {
    let question = question("gpt2-xl", 8, 20.0, 32);
    let search = Search::new(&question).unwrap();
    let plans = search.plans(&Silent).unwrap();
    let alone = Question { host: &Backwards, ..question.clone() };
    let other = plan(&alone, BTreeMap::new(), &Silent).unwrap();
    let times = |plans: &pipesim::plans::Plans| -> Vec<(f64, String)> {
        plans
            .plans
            .iter()
            .map(|plan| (plan.estimate.iteration_s, format!("{} {:?}", plan.schedule, plan.layout)))
            .collect()
    };
    assert_eq!(times(&plans), times(&other));
    assert_eq!((plans.evaluated, &plans.ruled_out), (other.evaluated, &other.ruled_out));
    // half of what was found out, and a line that was cut off
    let known: Vec<(u32, LayoutOutcome)> = search.outcomes().into_iter().collect();
    let lines: Vec<String> =
        known.iter().take(known.len() / 2).map(|(number, one)| Journal::line(*number, *one)).collect();
    let text = format!("{}\n{}\n17 123", Journal::head(&question), lines.join("\n"));
    let journal = Journal::read(&question, &text).unwrap();
    assert_eq!(journal.outcomes.len(), lines.len());
    let resumed = plan(&question, journal.outcomes, &Silent).unwrap();
    assert_eq!(times(&plans), times(&resumed));
    assert!(Journal::read(&self::question("gpt2-xl", 8, 21.0, 32), &text).is_err(), "another question");
    assert!(Journal::read(&question, &format!("{}\nnonsense\n", Journal::head(&question))).is_err());
}

/// A front never gets slower with more memory; a heat map's best cell is the best plan; fixed values are kept.
#[test]
fn fronts_and_maps_agree_with_the_answer() {
    let mut question = question("gpt2-large", 8, 12.0, 32);
    question.gpus = vec![8, 4, 16];
    let search = Search::new(&question).unwrap();
    let best = |gpus: u32| {
        let one = Question { gpus: vec![gpus], ..question.clone() };
        let plans = plan(&one, BTreeMap::new(), &Silent).unwrap().plans;
        plans.iter().map(|plan| plan.estimate.iteration_s).fold(f64::INFINITY, f64::min)
    };
    // only the layers of the best layouts are moved one by one
    let near = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 0.01, "{one} {other}");
    let front = fronts(&search, &Silent);
    let points: Vec<(u64, f64)> =
        front.memory.iter().map(|plan| (plan.memory_bytes(), plan.estimate.iteration_s)).collect();
    assert!(
        points.len() > 1 && points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1),
        "{points:?}"
    );
    near(points.last().unwrap().1, best(8));
    assert_eq!(front.gpus.iter().map(|plan| plan.layout.gpus()).collect::<Vec<_>>(), [4, 8, 16]);
    near(front.gpus[0].estimate.iteration_s, best(4));
    let cells = heat_map(&search, &Silent);
    let fastest = cells.iter().map(|plan| plan.estimate.iteration_s).fold(f64::INFINITY, f64::min);
    near(fastest, best(8));
    let per_gpu = Question { objective: Objective::TokensPerGpu, ..question.clone() };
    let plans = plan(&per_gpu, BTreeMap::new(), &Silent).unwrap().plans;
    let most = plans.iter().map(|plan| plan.estimate.tokens_per_second_per_gpu).fold(0.0, f64::max);
    let each = front.gpus.iter().map(|plan| plan.estimate.tokens_per_second_per_gpu).fold(0.0, f64::max);
    near(most, each);
    let fixed = Question { fixed: Fixed::parse("tp=2,pp=2,recompute=full,zero=1").unwrap(), gpus: vec![8], ..question };
    for plan in plan(&fixed, BTreeMap::new(), &Silent).unwrap().plans {
        let ParallelConfig { tp, pp, dp, cp, recompute, zero, .. } = plan.layout;
        assert_eq!((tp, pp, dp * cp, recompute, zero), (2, 2, 2, Recompute::Full, Zero::Optimizer));
    }
}

/// A plan says what `predict` says: for layouts drawn from all that questions allow, the whole estimate is the same.
#[test]
fn plans_of_a_thousand_layouts_are_their_predictions() {
    let all = ["1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v", "looped-bfs", "zb-v-greedy"];
    let (mut dice, mut compared) = (Dice(45), 0);
    for (model, hardware_name, stack_name, gpus, batch, sequence) in [
        ("llama-3-8b", "h100-sxm", "megatron-core", 16, 64, 4096),
        ("llama-3-8b", "gb200", "torchtitan", 8, 24, 8192),
        ("gpt-3-175b", "a100-sxm-80gb", "megatron-lm", 32, 32, 2048),
        ("gpt2-xl", "a100-sxm-80gb", "megatron-deepspeed", 12, 48, 1024),
        ("qwen3-30b-a3b", "h100-sxm", "megatron-core", 16, 32, 2048),
        ("mixtral-8x7b", "h100-sxm", "torchtitan", 16, 32, 4096),
    ] {
        let machine = Platform { hardware: hardware(hardware_name).unwrap(), stack: stack(stack_name).unwrap() };
        let sizes = transformer_named(model).unwrap();
        let mut question = Question::new(sizes, machine, gpus, batch, sequence);
        question.schedules = all.map(str::to_string).to_vec();
        let search = Search::new(&question).unwrap();
        let candidates = &search.space.candidates;
        let mut here = 0;
        while here < 170 {
            let Some(plan) = search.plan(&candidates[dice.below(candidates.len())]) else { continue };
            let costs = Analytic::new(question.model, question.machine.clone(), plan.layout.clone()).unwrap();
            let chunks = plan.names_chunks.then_some(plan.layout.chunks);
            let selection = Selection { chunks, ..Selection::new(plan.layout.pp, plan.layout.micro) };
            let alone = selection.estimate(&plan.schedule, &costs).unwrap();
            assert_eq!(plan.estimate, alone, "{} {}", plan.schedule, plan.layout);
            here += 1;
        }
        compared += here;
    }
    assert!(compared >= 1000, "{compared}");
}

/// The lower bound holds for every schedule, whether or not it splits the backward or runs both ways.
#[test]
fn bounds_are_below_what_is_predicted() {
    let asked = [
        ("gpt2-xl", "megatron-core"),
        ("llama-2-7b", "megatron-zb"), // the fork has no tied embeddings
        ("gpt2-xl", "torchtitan"),
        ("qwen3-30b-a3b", "megatron-core"),
    ];
    for (model, stack_name) in asked {
        let names = [
            "gpipe",
            "1f1b",
            "interleaved-1f1b",
            "looped-bfs",
            "zb-h1",
            "zb-v",
            "dualpipe",
            "dualpipe-v",
            "chimera",
            "interleaved-zb",
        ];
        let sizes = transformer_named(model).unwrap();
        let mut question = Question::new(sizes, machine("h100-sxm", 1000.0, stack_name), 8, 16, 1024);
        question.schedules = names.map(str::to_string).to_vec();
        question.fixed = Fixed::parse("tp=1,tp=2,cp=1,recompute=none,micro-batch-size=1,micro-batch-size=2").unwrap();
        let search = Search::new(&question).unwrap();
        let mut compared = 0;
        for candidate in &search.space.candidates {
            let Some(found) = search.plan(candidate) else { continue };
            compared += 1;
            let time = found.estimate.iteration_s;
            assert!(candidate.bound <= time, "{} {stack_name}: {} > {time}", found.layout, candidate.bound);
            assert!(
                candidate.bound > 0.4 * time,
                "{} {stack_name}: {} is far below {time}",
                found.layout,
                candidate.bound
            );
        }
        assert!(compared > 50, "{stack_name}: {compared}");
    }
}

#[test]
fn models_have_an_answer_or_a_reason() {
    // one in four, with models of every family
    for name in model_names().step_by(4) {
        let sizes = transformer_named(&name).unwrap();
        let question = Question::new(sizes, machine("h100-sxm", 160.0, STACK), 8, 8, 256);
        match plan(&question, BTreeMap::new(), &Silent) {
            Ok(plans) => assert!(!plans.plans.is_empty(), "{name}"),
            Err(error) => assert!(error.to_string().contains("found"), "{name}: {error}"),
        }
    }
}

/// What is recomputed depends on the model's parts, the attention kernels, and what the software can do.
#[test]
fn recomputed_parts_are_those_of_model_and_software() {
    let searched_with = |model: &str, stack_name: &str, fix: &str, attention: Option<Attention>| {
        let sizes = transformer_named(model).unwrap();
        let mut question = Question::new(sizes, machine("h100-sxm", 80.0, stack_name), 8, 8, 1024);
        question.fixed = Fixed::parse(fix).unwrap();
        question.attention = attention;
        question.check().unwrap();
        let groups = Search::new(&question).unwrap().space.groups;
        let all: BTreeSet<String> = groups.iter().map(|group| group.recompute.to_string()).collect();
        all.into_iter().collect::<Vec<_>>().join(" ")
    };
    let searched = |model: &str, stack_name: &str, fix: &str| searched_with(model, stack_name, fix, None);
    // block:0 stands for the fewest layers of each stage that have to be recomputed
    assert_eq!(searched("llama-3-8b", "megatron-core", "pp=1"), "block:0 full layernorm layernorm,mlp none");
    assert_eq!(searched("llama-3-8b", "megatron-lm", "pp=1"), "block:0 full none");
    let plain = searched_with("llama-3-8b", "megatron-lm", "pp=1", Some(Attention::Plain));
    assert_eq!(plain, "block:0 full none selective");
    assert_eq!(searched("llama-3-8b", "torchtitan", "pp=1"), "full none selective");
    let mixture = "block:0 full layernorm,moe moe_act moe_act,layernorm none";
    assert_eq!(searched("qwen3-30b-a3b", "megatron-core", "pp=1,ep=8"), mixture);
    let latent =
        "block:0 full mla_up_proj mla_up_proj,layernorm,mlp,moe mla_up_proj,moe_act mla_up_proj,moe_act,layernorm none";
    assert_eq!(searched("deepseek-v3", "megatron-core", "pp=1,ep=8"), latent);
    let given = "pp=1,recompute=moe_act,layernorm,recompute=none,recompute=none";
    assert_eq!(searched("qwen3-30b-a3b", "torchtitan", given), "moe_act,layernorm none");
}
