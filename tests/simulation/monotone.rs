//! Better hardware is never slower: larger nodes, more bandwidth, higher peaks, less latency.

use crate::support::Dice;
use pipesim::costs::{Analytic, Platform};
use pipesim::models::Dispatcher;
use pipesim::models::{hardware, hardware_names, stack, transformer_named};
use pipesim::{Costs, Hardware, ParallelConfig, Recompute, Selection, StepEstimate, Zero};

const MODELS: [&str; 5] = ["llama-3-8b", "llama-3-70b", "gpt-3-1.3b", "mixtral-8x7b", "qwen3-30b-a3b"];

/// A model and a layout by chance; `None` if they do not fit each other.
fn random(dice: &mut Dice) -> Option<(Analytic, &'static str)> {
    let model = MODELS[dice.below(MODELS.len())];
    let name = hardware_names().nth(dice.below(hardware_names().count())).unwrap();
    let two_to = |dice: &mut Dice, most: usize| 1 << dice.below(most + 1);
    let zero = [Zero::None, Zero::Optimizer, Zero::Gradients, Zero::Weights][dice.below(4)];
    let recompute = [Recompute::None, Recompute::Selective, Recompute::Full][dice.below(3)];
    let tp = two_to(dice, 3);
    let layout = ParallelConfig {
        pp: two_to(dice, 2),
        micro: two_to(dice, 3),
        dp: two_to(dice, 4),
        cp: two_to(dice, 1),
        micro_batch_size: two_to(dice, 1),
        sequence: 512 << dice.below(3),
        sequence_parallel: tp > 1 && dice.below(2) == 0,
        zero,
        recompute,
        tp,
        ..ParallelConfig::default()
    };
    let layout = match model {
        "mixtral-8x7b" | "qwen3-30b-a3b" => {
            let dispatcher = [Dispatcher::AllToAll, Dispatcher::DeepEp, Dispatcher::HybridEp][dice.below(3)];
            ParallelConfig { ep: two_to(dice, 3), dispatcher, ..layout }
        }
        _ => layout,
    };
    let schedule = if layout.pp > 1 && dice.below(2) == 0 { "gpipe" } else { "1f1b" };
    let machine = Platform { hardware: hardware(name).unwrap(), stack: stack("megatron-core").unwrap() };
    Some((Analytic::new(transformer_named(model).unwrap(), machine, layout).ok()?, schedule))
}

/// The seconds of an iteration on other hardware.
fn seconds(costs: &Analytic, schedule: &str, hardware: &Hardware) -> f64 {
    let machine = Platform { hardware: hardware.clone(), ..Platform::clone(&costs.machine) };
    let costs = Analytic::new(costs.model, machine, costs.layout.clone()).unwrap();
    let selection = Selection::new(costs.layout.pp, costs.layout.micro);
    let resolved = selection.resolve(schedule, &Costs::Analytic(Box::new(costs.clone()))).unwrap();
    StepEstimate::new(&costs, &resolved.predict().unwrap()).unwrap().iteration_s
}

/// Checks that `better` hardware is not slower. Ops last whole nanoseconds, which a step adds up.
#[track_caller]
fn is_not_slower(what: &str, (costs, schedule): (&Analytic, &str), worse: &Hardware, better: &Hardware) {
    let [worse, better] = [worse, better].map(|hardware| seconds(costs, schedule, hardware));
    let rounding = 1e-9 * 20.0 * f64::from(costs.layout.micro + costs.layout.pp);
    assert!(
        better <= worse + rounding,
        "{what} of {}: {better} instead of {worse} s, {schedule} {:?}",
        costs.machine.hardware.name,
        costs.layout
    );
}

#[test]
fn larger_nodes_are_never_slower() {
    let (dice, mut layouts) = (&mut Dice(30), 0);
    while layouts < 400 {
        let Some((costs, schedule)) = random(dice) else { continue };
        let usual = &costs.machine.hardware;
        let of = |gpus: f64| Hardware { gpus_per_node: gpus, ..usual.clone() };
        let gpus = f64::from(1 << dice.below(7));
        is_not_slower("twice the GPUs per node", (&costs, schedule), &of(gpus), &of(2.0 * gpus));
        let gpus = usual.gpus_per_node;
        is_not_slower("twice its GPUs per node", (&costs, schedule), usual, &of(2.0 * gpus));
        layouts += 1;
    }
}

/// All-reduces measured within a node, as `pipesim profile` writes them, do not make a group slower that a larger node holds.
#[test]
fn larger_nodes_with_measured_exchanges_are_never_slower() {
    let (dice, mut layouts) = (&mut Dice(31), 0);
    while layouts < 200 {
        let Some((costs, schedule)) = random(dice) else { continue };
        let usual = &costs.machine.hardware;
        let speed = usual.link_gbytes_per_s * (0.1 + dice.below(10) as f64 / 10.0);
        let of = |gpus: f64| Hardware {
            gpus_per_node: gpus,
            reduce_gbytes_per_s: speed,
            exchange_gbytes_per_s: speed / 2.0,
            reduce_latency_us: 30.0,
            ..usual.clone()
        };
        let gpus = f64::from(1 << dice.below(5));
        is_not_slower("twice the GPUs per node", (&costs, schedule), &of(gpus), &of(2.0 * gpus));
        layouts += 1;
    }
}

#[test]
fn faster_parts_are_never_slower() {
    let faster = "bf16_tflops memory_gbytes_per_s link_gbytes_per_s network_gbps_per_gpu power_watts link_efficiency \
                  network_efficiency memory_efficiency product_peak_share flash_share grouped_efficiency \
                  dispatch_link_efficiency dispatch_network_efficiency alltoall_network_efficiency";
    let slower = "link_latency_us network_latency_us kernel_us dispatch_network_us network_congestion";
    let (dice, mut layouts) = (&mut Dice(32), 0);
    let fields: Vec<(&str, bool)> =
        faster.split_whitespace().map(|name| (name, true)).chain(slower.split(' ').map(|name| (name, false))).collect();
    while layouts < 400 {
        let Some((costs, schedule)) = random(dice) else { continue };
        let (name, is_faster) = fields[layouts % fields.len()];
        let mut other = costs.machine.hardware.clone();
        let factor = 1.1 + dice.below(30) as f64 / 10.0;
        *other.field_mut(name).unwrap() *= factor;
        let usual = &costs.machine.hardware;
        let (worse, better) = if is_faster { (usual, &other) } else { (&other, usual) };
        is_not_slower(&format!("{factor} times {name}"), (&costs, schedule), worse, better);
        layouts += 1;
    }
}
