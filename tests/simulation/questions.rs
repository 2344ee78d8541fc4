//! One question, one answer: `plan`, the crate's functions and files of questions give the same numbers.

use crate::support::Dice;
use pipesim::costs::{Estimate, Platform};
use pipesim::models::{ModelPrediction, hardware, model_costs, stack, transformer_named};
use pipesim::plans::{self, Candidate, Limits, Search, Silent, Space, plan};
use pipesim::questions::{MemoryCap, Question, answer};
use pipesim::schedules::Files;
use pipesim::{ParallelConfig, Precision, StepEstimate};
use std::collections::BTreeMap;

const MODELS: [&str; 6] = ["gpt2-xl", "llama-3-8b", "llama-3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"];
const HARDWARE: [&str; 4] = ["h100-sxm", "a100-sxm-80gb", "gb200", "h200-sxm"];
const STACKS: [&str; 5] = ["megatron-core", "megatron-bridge", "megatron-zb", "torchtitan", "fsdp"];
const PRECISIONS: [Precision; 3] = [Precision::Bf16, Precision::Fp16, Precision::Fp8];
/// Memory of a GPU, so that all fits.
const PLENTY: u64 = 1 << 44;
/// Most ops of a schedule.
const MOST_OPS: u32 = 4096;

fn pick<T: Copy>(dice: &mut Dice, of: &[T]) -> T {
    of[dice.below(of.len())]
}

/// A question of `plan`, with the names of its model and hardware.
fn random_question(dice: &mut Dice) -> (plans::Question, &'static str, &'static str) {
    let (model, machine) = (pick(dice, &MODELS), pick(dice, &HARDWARE));
    let mut platform = Platform { hardware: hardware(machine).unwrap(), stack: stack(pick(dice, &STACKS)).unwrap() };
    platform.hardware.memory_gib = PLENTY as f64 / f64::from(1 << 30);
    let (gpus, batch) = (pick(dice, &[4, 8, 16, 24]), pick(dice, &[8, 16, 48]));
    let sequence = pick(dice, &[512, 1024]);
    let question = plans::Question::new(transformer_named(model).unwrap(), platform, gpus, batch, sequence);
    let precision = pick(dice, &PRECISIONS);
    (plans::Question { precision, memory_limit: Some(PLENTY), keep: 3, ..question }, model, machine)
}

/// The question of `predict` about a layout.
pub fn asked(layout: &ParallelConfig, schedule: &str, names_chunks: bool, model: &str, machine: &str) -> Question {
    Question {
        schedule: vec![schedule.to_string()],
        stages: vec![layout.pp],
        micro: vec![layout.micro],
        chunks: names_chunks.then_some(layout.chunks),
        memory_cap: Some(MemoryCap::Bytes(PLENTY)),
        layers: layout.layers.clone().unwrap_or_default(),
        model: Some(model.to_string()),
        hardware: Some(machine.to_string()),
        stack: layout.stack.clone(),
        tp: vec![layout.tp],
        dp: vec![layout.dp],
        cp: layout.cp,
        micro_batch_size: vec![layout.micro_batch_size],
        seq: layout.sequence,
        precision: layout.precision,
        recompute: layout.recompute,
        zero: layout.zero,
        shard: layout.shard,
        sequence_parallel: layout.sequence_parallel,
        attention: layout.attention,
        ep: layout.ep,
        etp: Some(layout.etp),
        dispatcher: layout.dispatcher,
        cuda_graph: layout.cuda_graph,
        moe_overlap: layout.moe_overlap,
        delay_wgrad: layout.delay_wgrad,
        ..Question::default()
    }
}

fn estimate(question: &Question) -> StepEstimate {
    let answer = answer(question, &Files).unwrap_or_else(|error| panic!("{question:?}: {error}"));
    answer.predictions.into_iter().next().unwrap().estimate.unwrap()
}

/// `PIPESIM_QUESTIONS` is the number of layouts.
#[test]
fn plan_predicts_what_predict_does() {
    let number = std::env::var("PIPESIM_QUESTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let (mut dice, mut compared, mut schedules) = (Dice(45), 0, BTreeMap::<String, usize>::new());
    while compared < number {
        let (planned, model, machine) = random_question(&mut dice);
        let Ok(search) = Search::new(&planned) else { continue };
        let small =
            |candidate: &&Candidate| 2 * candidate.micro * search.space.shape(candidate).placement.stages() <= MOST_OPS;
        let all: Vec<Candidate> = search.space.candidates.iter().filter(small).copied().collect();
        for _ in 0..all.len().min(40) {
            let one = all[dice.below(all.len())];
            let is_one = move |_: &Space, candidate: &Candidate| *candidate == one;
            let found = search.best(&Limits { keep: 1, bytes: PLENTY, allows: &is_one }, &Silent);
            let Some(&(time, _)) = found.best.first() else { continue };
            let (layout, shape) = (search.costs(&one).unwrap().layout, search.space.shape(&one));
            let predicted = estimate(&asked(&layout, &shape.schedule, shape.names_chunks, model, machine));
            let what = || format!("{} of {model} on {machine}, {}: {layout}, {layout:?}", shape.schedule, layout.stack);
            assert_eq!(predicted.iteration_s, time, "{}", what());
            *schedules.entry(shape.schedule.clone()).or_default() += 1;
            compared += 1;
        }
        // the whole estimate of the best
        for best in plan(&planned, BTreeMap::new(), &Silent).map_or_else(|_| Vec::new(), |plans| plans.plans) {
            let predicted = estimate(&asked(&best.layout, &best.schedule, best.names_chunks, model, machine));
            let [one, other] = [&predicted, &best.estimate].map(|one| serde_json::to_string(one).unwrap());
            assert_eq!(one, other, "{} of {model} on {machine}: {:?}", best.schedule, best.layout);
        }
    }
    assert!(schedules.len() >= 3, "{schedules:?}");
}

/// The crate's own functions give the answer's numbers, with the change that makes a layout fit.
#[test]
fn functions_of_the_crate_give_the_answer() {
    for (schedule, tp, dp) in [("1f1b", 2, 1), ("zb-v", 1, 2), ("interleaved-1f1b:v=2", 4, 1), ("auto", 1, 1)] {
        let layout = ParallelConfig { tp, dp, pp: 4, micro: 8, sequence: 8192, ..ParallelConfig::default() };
        let question = asked(&layout, schedule, false, "llama-3-8b", "h100-sxm");
        let found = estimate(&Question { memory_cap: None, ..question });
        let costs = model_costs("llama-3-8b", "h100-sxm", layout).unwrap();
        let selection = costs.selection();
        let other = ModelPrediction::new(costs, schedule, &selection).unwrap().estimate;
        assert_eq!(found, other, "{schedule}");
    }
    let question =
        Question { schedule: vec!["zb-v".to_string()], stages: vec![4], micro: vec![8], ..Question::default() };
    let found = answer(&question, &Files).unwrap().predictions.remove(0);
    assert_eq!(found.figures, pipesim::predict("zb-v", 4, 8).unwrap());
}

/// `auto` with FSDP's collectives and with measured costs is the best by what `predict` says of each name.
#[test]
fn auto_is_priced_as_a_prediction() {
    let base = Question {
        schedule: vec!["auto".to_string()],
        stages: vec![4],
        micro: vec![8],
        costs: Some("F=1,B=2,unshard=3,reduce=1".to_string()),
        max_active_stages: Some(1),
        ..Question::default()
    };
    let makespan = |name: &str| {
        let answer = answer(&Question { schedule: vec![name.to_string()], ..base.clone() }, &Files).ok()?;
        answer.predictions.first().map(|one| one.figures.metrics.makespan)
    };
    let least = pipesim::schedules::names_of_whole().into_iter().filter_map(makespan).fold(f64::INFINITY, f64::min);
    let auto = makespan("auto").unwrap();
    assert!(auto <= least, "auto takes {auto}, a name {least}");
}

#[test]
fn questions_are_written_and_read() {
    let question = Question {
        schedule: vec!["1f1b".to_string(), "interleaved-1f1b:v=2,group=4".to_string()],
        stages: vec![4, 8],
        micro: vec![8],
        costs: Some("F=18.5ms,comm=300us".to_string()),
        straggler: vec!["2=1.3".to_string()],
        transfer: "0.3".parse().ok(),
        contention: vec![1.0, 1.08],
        memory_cap: Some(MemoryCap::Units(2.5)),
        ..Question::default()
    };
    let text = question.to_toml().unwrap();
    assert_eq!(Question::from_toml(&text).unwrap(), question, "{text}");
    assert!(text.contains("\nmicro = 8\n") && text.contains("\nstages = [4,8]\n"), "{text}");
    for (text, expected) in [
        ("version = 1\nstaegs = 4\n", "no setting is called 'staegs' (did you mean stages?)"),
        ("version = 1\nsequ = 8192\n", "(did you mean seq?)"),
        ("version = 1\nsequence = true\n", "(did you mean sequence-parallel?)"),
        ("stages = 4\n", "expected version = 1, found none; add it"),
        ("version = 2\n", "expected version = 1, found 2"),
        ("version = 1\nstages = \"four\"\n", "line 2"),
        ("version = 1\nprecision = \"bf32\"\n", "expected the precision to be one of"),
        ("version = \n", "line 1"),
    ] {
        let error = Question::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (question, expected) in [
        (Question { micro: Vec::new(), ..question.clone() }, "number of micro-batches"),
        (Question { stages: vec![0], ..question.clone() }, "stages"),
        (Question { model: Some("gpt2".to_string()), ..question.clone() }, "hardware"),
    ] {
        let error = answer(&question, &Files).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
