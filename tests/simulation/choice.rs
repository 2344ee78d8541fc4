//! The choices of `auto` and `--balance`, against requests by name.

use crate::support::Dice;
use pipesim::costs::{Analytic, Platform};
use pipesim::models::{STACKS, hardware, stack, transformer_named};
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

    /// Compares `auto` with every embedded name, with its default chunks and with 2, 3 and 4.
    fn check(&self, number: usize) {
        let what = format!("question {number}: {:?}", self.selection);
        let names = schedules::names_of_whole().into_iter().flat_map(|name| {
            [name.to_string()].into_iter().chain([2, 3, 4].map(|chunks| format!("{name}:v={chunks}")))
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
    for number in 0..questions(10) {
        let ask = if number % 2 == 0 { abstract_question } else { hardware_question };
        ask(&mut dice).check(number);
    }
}

/// The balanced split on the event engine: its makespan is what a prediction gives, and never longer than before.
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
        let Some(without) = question.makespan(name, false) else { continue };
        let found = Selection { balance: true, ..question.selection.clone() }.resolve(name, &question.costs).unwrap();
        let balance = found.balance.clone().unwrap();
        let makespan = found.predict().unwrap().metrics().makespan;
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        let what = format!("{number}: {name} {:?}: {balance:?}, {without}, {makespan}", question.selection);
        assert!(close(balance.makespan_before, without) && close(balance.makespan, makespan), "{what}");
        assert!(makespan <= without * (1.0 + 1e-9), "{what}");
        gained += usize::from(makespan < without);
    }
    assert!(gained > 0, "no split gained anything");
}

impl Question {
    fn makespan(&self, name: &str, balance: bool) -> Option<f64> {
        let resolved = Selection { balance, ..self.selection.clone() }.resolve(name, &self.costs).ok()?;
        Some(resolved.predict().ok()?.metrics().makespan)
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
