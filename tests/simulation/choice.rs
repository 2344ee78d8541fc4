//! The choices of `auto` and `--balance`, against requests by name.

use crate::support::Dice;
use pipesim::costs::{Analytic, Platform};
use pipesim::models::{STACKS, TransformerConfig, hardware, stack, transformer_named};
use pipesim::schedules::{PlatformOptions, Variant};
use pipesim::simulation::Scope;
use pipesim::{Costs, ParallelConfig, Recompute, Selection, StepEstimate, Zero, schedules};
use pipesim_validation::read;

/// Number of random questions: `usually`, unless `PIPESIM_QUESTIONS` is set.
fn questions(usually: usize) -> usize {
    std::env::var("PIPESIM_QUESTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(usually)
}

/// A request and its costs.
struct Question {
    selection: Selection,
    costs: Costs,
}

/// Result of one schedule.
#[derive(Debug)]
struct Answer {
    name: String,
    /// Iteration time on hardware in s, otherwise the makespan.
    time: f64,
    /// Whether it keeps the cap on activations.
    keeps: bool,
    /// Whether it also fits into memory.
    fits: bool,
    /// Bytes of the fullest device, on hardware.
    bytes: u64,
}

fn pick<'a, T: ?Sized>(dice: &mut Dice, of: &[&'a T]) -> &'a T {
    of[dice.below(of.len())]
}

fn machine(dice: &mut Dice) -> PlatformOptions {
    let mut machine = PlatformOptions::default();
    let decimal = |dice: &mut Dice| pick(dice, &["0.05", "0.3", "1"]).parse().ok();
    match dice.below(7) {
        0 => machine.transfer = decimal(dice),
        1 => {
            machine.transfer = decimal(dice);
            machine.scope = Scope::Egress;
            machine.link_contention = vec![1000, 1500];
        }
        2 => machine.slots = Some(1 + dice.below(3) as u32),
        3 => machine.overlap_slowdown = Some(1200),
        4 => machine.cores = Some(2),
        5 => machine.delivery = pick(dice, &["batched", "channel", "buffered(1)", "megatron", "pytorch"]).parse().ok(),
        _ => {}
    }
    machine
}

/// A random request: unit or given costs, with or without a cap on activations.
fn abstract_question(dice: &mut Dice) -> Question {
    let (p, m) = (1 + dice.below(5) as u32, 1 + dice.below(9) as u32);
    let costs = pick(dice, &["F=1,I=1,W=1", "F=1,I=1.1,W=0.6,comm=0.1", "F=18.5ms,I=18.1ms,W=9.3ms,comm=1ms,keep=0.5"]);
    let memory_cap = (dice.below(2) == 0).then(|| 1.0 + dice.below(12) as f64 / 2.0);
    let selection = Selection { memory_cap, machine: machine(dice), ..Selection::new(p, m) };
    Question { selection, costs: Costs::given(costs.parse().unwrap()) }
}

/// A random layout of a model on hardware with limited memory.
fn hardware_question(dice: &mut Dice) -> Question {
    let layout = ParallelConfig {
        pp: [2, 4][dice.below(2)],
        tp: [1, 2][dice.below(2)],
        dp: [1, 2][dice.below(2)],
        micro: 2 + dice.below(9) as u32,
        sequence: 4096,
        sequence_parallel: dice.below(2) == 0,
        zero: [Zero::None, Zero::Optimizer][dice.below(2)],
        recompute: [Recompute::None, Recompute::Full][dice.below(2)],
        stack: pick(dice, &["megatron-core", "megatron-zb", "torchtitan"]).to_string(),
        ..ParallelConfig::default()
    };
    let machine_of = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack(&layout.stack).unwrap() };
    let model = transformer_named(pick(dice, &["llama-3-8b", "mpt-7b"])).unwrap();
    let analytic = Analytic::new(model, machine_of, layout).unwrap();
    let analytic = analytic.with_memory((8 + dice.below(90) as u64) << 30);
    let memory_cap = (dice.below(4) == 0).then(|| 1.0 + dice.below(6) as f64);
    let selection = Selection { memory_cap, machine: machine(dice), ..Selection::new(1, 1) };
    Question { selection: selection.under(&analytic), costs: Costs::Analytic(Box::new(analytic)) }
}

impl Question {
    /// Returns what `predict` prints for `name`; `None` if it does not exist or run.
    fn answer(&self, name: &str) -> Option<Answer> {
        let resolved = self.selection.resolve(name, &self.costs).ok()?;
        let predicted = resolved.predict().ok()?;
        let peak = predicted.metrics().peak_activations();
        let keeps = self.selection.memory_cap.is_none_or(|cap| peak <= cap + 1e-9);
        let name = resolved.graph.schedule().name.clone();
        let Costs::Analytic(analytic) = &self.costs else {
            return Some(Answer { name, time: predicted.metrics().makespan, keeps, fits: keeps, bytes: 0 });
        };
        let forecast = StepEstimate::new(analytic, &predicted).unwrap();
        let (fits, bytes) = (keeps && forecast.memory.fits, forecast.memory.fullest().total);
        Some(Answer { name, time: forecast.iteration_s, keeps, fits, bytes })
    }

    /// Compares `auto` with every embedded name, with its default chunks and others, and with other values of its options.
    fn check(&self, number: usize) {
        let what = format!("question {number}: {:?}", self.selection);
        let chunks: &[u32] = if matches!(self.costs, Costs::Analytic(_)) { &[2, 3, 4, 7, 8] } else { &[2, 3, 4] };
        let half = self.selection.devices.div_ceil(2);
        let options = chunks.iter().map(|v| format!("v={v}")).chain([
            "waves=2".to_string(),
            format!("group={half}"),
            format!("group={half},v=3"),
        ]);
        let options: Vec<String> = options.collect();
        let names = schedules::names_of_whole().into_iter().flat_map(|name| {
            [name.to_string()].into_iter().chain(options.iter().map(move |options| format!("{name}:{options}")))
        });
        let named: Vec<Answer> = names.filter_map(|name| self.answer(&name)).collect();
        let least = named.iter().filter(|one| one.fits).map(|one| one.time).fold(f64::INFINITY, f64::min);
        let Some(auto) = self.answer("auto") else {
            return assert!(least.is_infinite(), "{what}: auto finds none, but {named:?}");
        };
        if least.is_finite() {
            assert!(auto.fits && auto.time <= least * (1.0 + 1e-9), "{what}: {auto:?} is beaten: {least}, {named:?}");
        } else {
            let smaller = named.iter().find(|one| one.keeps && one.bytes < auto.bytes);
            assert!(smaller.is_none(), "{what}: {auto:?} is not the smallest: {smaller:?}");
        }
        let inner = auto.name.strip_prefix("auto (").and_then(|name| name.strip_suffix(')')).unwrap();
        let again = self.answer(inner).unwrap_or_else(|| panic!("{what}: {inner} cannot be asked for"));
        assert_eq!((again.time, again.bytes), (auto.time, auto.bytes), "{what}: {inner}");
    }
}

#[test]
fn auto_is_never_beaten_by_a_name() {
    let mut dice = Dice(24);
    for number in 0..questions(6) {
        let ask = if number % 2 == 0 { abstract_question } else { hardware_question };
        ask(&mut dice).check(number);
    }
}

/// The balanced split on the event engine: its figures are what a prediction gives, and its iteration is never longer than before.
#[test]
fn balance_is_of_the_machine_asked_for() {
    let mut dice = Dice(4);
    let mut gained = 0;
    for number in 0..questions(20) / 2 {
        let Question { selection, costs } = hardware_question(&mut dice);
        let Costs::Analytic(analytic) = costs else { continue };
        let question = Question {
            selection: Selection { memory_cap: None, room: None, ..selection },
            costs: Costs::Analytic(Box::new(analytic.with_memory(1 << 40))),
        };
        let name = ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "gpipe", "zb-2p"][dice.below(6)];
        let Some(without) = question.times(name, false) else { continue };
        let found = Selection { balance: true, ..question.selection.clone() }.resolve(name, &question.costs).unwrap();
        let balance = found.balance.clone().unwrap();
        let with = question.times(name, true).unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        let what = format!("{number}: {name} {:?}: {balance:?}, {without:?}, {with:?}", question.selection);
        assert!(close(balance.makespan_before, without[0]) && close(balance.makespan, with[0]), "{what}");
        assert!(close(balance.iteration_before_s.unwrap(), without[1]), "{what}");
        assert!(close(balance.iteration_s.unwrap(), with[1]) && with[1] <= without[1] * (1.0 + 1e-9), "{what}");
        gained += usize::from(with[1] < without[1]);
    }
    assert!(gained > 0, "no split gained anything");
}

impl Question {
    /// Returns the makespan and the iteration in seconds of a schedule, with balanced layers or with those asked for.
    fn times(&self, name: &str, balance: bool) -> Option<[f64; 2]> {
        let resolved = Selection { balance, ..self.selection.clone() }.resolve(name, &self.costs).ok()?;
        let layers = resolved.balance.as_ref().map(|found| found.layers.clone());
        let costs = layers.map_or_else(|| self.costs.clone(), |layers| self.costs.with_layers(layers));
        let Costs::Analytic(analytic) = costs else { return None };
        let predicted = resolved.predict().ok()?;
        let iteration_s = StepEstimate::new(&analytic, &predicted).ok()?.iteration_s;
        Some([predicted.metrics().makespan, iteration_s])
    }
}

/// Returns all ways to put `layers` layers on stages, of which only the first and the last may be empty.
fn splits(layers: usize, stages: usize, first: bool) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let with =
        |own: usize| splits(layers - own, stages - 1, false).into_iter().map(move |rest| [vec![own], rest].concat());
    (usize::from(!first)..=layers).flat_map(with).collect()
}

/// No split of all has a shorter iteration than the balanced one: with exchanges that are hidden or not, steps that overlap, stages
/// that share devices, layers with experts, and little memory. Of orders that follow from costs, the balanced split may be 1 % longer.
#[test]
fn no_split_has_a_shorter_iteration_than_the_balanced_one() {
    let dense = TransformerConfig::gpt(128_000, 0, 8, 16, 2048);
    let mixture = TransformerConfig { layers: 8, ..transformer_named("qwen3-30b-a3b").unwrap() };
    let mut by_makespan = 0;
    let questions = [
        ("1f1b", 2, "megatron-core", 8, 1, dense),
        ("1f1b", 3, "megatron-core", 64, 2, dense),
        ("gpipe", 3, "torchtitan", 64, 1, dense),
        ("zb-h1", 3, "megatron-zb", 8, 1, dense),
        ("zb-h1", 4, "megatron-zb", 64, 1, dense),
        ("interleaved-1f1b", 2, "megatron-core", 64, 1, dense),
        ("dualpipe-v", 2, "megatron-core", 8, 1, dense),
        ("chimera", 2, "megatron-core", 64, 1, dense),
        ("zb-v-greedy", 2, "megatron-zb", 8, 4, dense),
        ("1f1b", 3, "megatron-core", 8, 16, mixture),
    ];
    for (name, pp, software, dp, gib, model) in questions {
        let plain = Selection::new(pp, 4).order(name).unwrap();
        let chunks = plain.order.placement().chunks();
        let layout =
            ParallelConfig { pp, dp, micro: 4, sequence: 2048, zero: Zero::Optimizer, ..ParallelConfig::default() };
        let hardware = pipesim::Hardware { network_gbps_per_gpu: 20.0, ..hardware("h100-sxm").unwrap() };
        let analytic = Analytic::new(model, Platform { hardware, stack: stack(software).unwrap() }, layout).unwrap();
        let analytic = analytic.with_memory(gib << 34);
        let question =
            Question { selection: Selection::new(pp, 4), costs: Costs::Analytic(Box::new(analytic.clone())) };
        let found = Selection { balance: true, ..question.selection.clone() }.resolve(name, &question.costs).unwrap();
        let balance = found.balance.unwrap();
        let all = splits(8, (pp * chunks) as usize, true).into_iter().filter_map(|layers| {
            let costs = question.costs.with_layers(layers.clone());
            let Costs::Analytic(own) = &costs else { return None };
            let resolved = question.selection.resolve(name, &costs).ok()?;
            let predicted = resolved.predict().ok()?;
            let estimate = StepEstimate::new(own, &predicted).ok()?;
            estimate.memory.fits.then_some((estimate.iteration_s, predicted.metrics().makespan))
        });
        let all: Vec<(f64, f64)> = all.collect();
        let least = all.iter().map(|one| one.0).fold(f64::INFINITY, f64::min);
        let found = balance.iteration_s.unwrap();
        let longer = if name == "zb-v-greedy" { 0.01 } else { 1e-9 };
        assert!((-1e-9..longer).contains(&(found / least - 1.0)), "{name} {pp} {software} {dp}: {balance:?}, {least}");
        let shortest = all.iter().map(|one| one.1).fold(f64::INFINITY, f64::min);
        by_makespan += usize::from(balance.makespan > shortest * (1.0 + 1e-9));
    }
    assert!(by_makespan > 0, "the shortest makespan always has the shortest iteration");
}

/// With `--balance`, `auto` is not slower than the balanced choice that it makes without.
#[test]
fn auto_balances_before_it_chooses() {
    let mut dice = Dice(31);
    let mut other = 0;
    for number in 0..questions(3) {
        let question = hardware_question(&mut dice);
        let selection = Selection { memory_cap: None, machine: PlatformOptions::default(), ..question.selection };
        let question = Question { selection, ..question };
        let Some(plain) = question.answer("auto") else { continue };
        let inner = plain.name.strip_prefix("auto (").and_then(|name| name.strip_suffix(')')).unwrap();
        let (Some(first), Some(found)) = (question.times(inner, true), question.times("auto", true)) else { continue };
        assert!(
            found[1] <= first[1] * (1.0 + 1e-9),
            "{number}: {:?}: {found:?}, {inner} {first:?}",
            question.selection
        );
        other += usize::from(found[1] < first[1]);
    }
    assert!(other > 0, "the choice never changes");
}

/// With `--balance`, no schedule by name is faster than what `auto` chooses.
#[test]
fn auto_is_not_slower_than_balanced_names() {
    let layout = ParallelConfig { pp: 4, tp: 2, dp: 4, micro: 16, sequence: 8192, ..ParallelConfig::default() };
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack("megatron-core").unwrap() };
    let analytic = Analytic::new(transformer_named("llama-3-8b").unwrap(), machine, layout).unwrap();
    let selection = Selection::new(1, 1).under(&analytic);
    let question = Question { selection, costs: Costs::Analytic(Box::new(analytic)) };
    let auto = question.times("auto", true).unwrap()[1];
    for name in
        ["1f1b", "zb-h1", "zb-2p", "zb-v", "zb-v-greedy", "dualpipe-v", "interleaved-1f1b", "interleaved-zb:v=3"]
    {
        let named = question.times(name, true).unwrap()[1];
        assert!(auto <= named * (1.0 + 1e-9), "auto takes {auto} s, and {name} {named} s");
    }
}

/// The table of software and schedules names existing ones, and contains every published pipeline.
#[test]
fn published_pipelines_are_among_what_their_software_implements() {
    let names = schedules::names();
    for stack in STACKS.map(|name| stack(name).unwrap()) {
        let known = stack.schedules().unwrap_or_default();
        assert!(known.iter().all(|name| names.contains(name)), "{}: {known:?}", stack.name);
    }
    let text = std::fs::read_to_string(crate::support::root().join("tests/golden/throughputs/measured.json")).unwrap();
    let mut pipelines = 0;
    for row in read(&text).unwrap().0.iter().filter(|row| row.pp > 1) {
        let software = stack(&row.stack).unwrap();
        let known = software.schedules();
        assert!(known.is_none_or(|known| known.contains(&row.schedule())), "{}: {}", row.stack, row.schedule());
        pipelines += 1;
    }
    assert!(pipelines > 100);
    assert!(!stack("megatron-core").unwrap().schedules().unwrap().contains(&"zb-v"));
}

#[test]
fn names_have_options_and_lists_have_names() {
    let parsed = |text: &str| Variant::parse(text).map(|v| v.to_string()).map_err(|e| e.to_string());
    for (text, shown) in [
        ("zb-v", "zb-v"),
        ("interleaved-1f1b:v=4", "interleaved-1f1b:v=4"),
        ("group-interleaved: v = 4 , group=2", "group-interleaved:group=2,v=4"),
        ("./mine.star:late=True", "./mine.star:late=True"),
        ("a:b/mine.star", "a:b/mine.star"),
        ("a:v=2/mine.star", "a:v=2/mine.star"),
    ] {
        assert_eq!(parsed(text).as_deref(), Ok(shown), "{text}");
    }
    for text in ["zb-v:", "zb-v:4", "interleaved-1f1b:v=", "interleaved-1f1b:v=2,v=4", "x:v=2,,w=1", "x:=2"] {
        let refused = parsed(text).unwrap_err();
        assert!(refused.contains("interleaved-1f1b:v=4"), "{refused}");
    }
    let list = |text: &str| Variant::list(text).join(" | ");
    assert_eq!(list("1f1b,a:v=4,group=8,zb-v,b=c.star"), "1f1b | a:v=4,group=8 | zb-v | b=c.star");
    assert_eq!(list("a:v=1,a:v=2"), "a:v=1 | a:v=2");
    assert_eq!(list("a,v=2"), "a | v=2");
}
