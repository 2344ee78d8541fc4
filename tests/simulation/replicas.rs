//! Memory and traffic of data parallelism against an explicit placement: every rank of a small mesh, and the weights that it holds.

use crate::support::Dice;
use pipesim::costs::{Analytic, Platform};
use pipesim::models::{Biases, Experts, Stage, TransformerConfig, hardware, stack, transformer_named};
use pipesim::schedules::Fsdp;
use pipesim::{Costs, Hardware, ParallelConfig, Schedule, Selection, Stack, Zero};
use std::collections::{BTreeMap, BTreeSet};

/// GB/s of a link, and of a GPU's network.
const LINK: f64 = 1.0;
const NETWORK: f64 = 0.25;

/// Who holds a weight.
#[derive(Clone, Copy)]
enum Owner {
    /// Every rank of the stage holds all of it.
    All,
    /// Tensor-parallel ranks hold a part each.
    Tensor,
    /// The ranks of this expert, of which expert-tensor ranks hold a part each.
    Expert(usize),
}

struct Weight {
    elements: usize,
    owner: Owner,
    /// Layer, or none for embedding and head.
    layer: Option<usize>,
}

/// The weights of the model, written down from its sizes: layers, then the two ends.
fn weights(model: &TransformerConfig, layers: std::ops::Range<usize>, [is_first, is_last]: [bool; 2]) -> Vec<Weight> {
    let (h, heads, table) = (model.channels, model.heads * model.head_size, model.vocabulary * model.channels);
    let keys = model.groups * model.head_size;
    let mut all = Vec::new();
    for layer in layers {
        let mut add = |elements, owner| all.push(Weight { elements, owner, layer: Some(layer) });
        // two norms; queries, keys, values and the projection back
        [h, h].into_iter().for_each(|norm| add(norm, Owner::All));
        [h * heads, h * keys, h * keys, heads * h].into_iter().for_each(|product| add(product, Owner::Tensor));
        let is_mixture = |experts: &Experts| {
            layer >= experts.dense_first && (layer - experts.dense_first) % experts.every == experts.every - 1
        };
        match model.experts.filter(is_mixture) {
            None => add(3 * h * model.mlp, Owner::Tensor),
            Some(experts) => {
                add(h * experts.count, Owner::All);
                add(3 * h * experts.shared_width, Owner::Tensor);
                (0..experts.count).for_each(|expert| add(3 * h * experts.width, Owner::Expert(expert)));
            }
        }
    }
    let mut add = |is_there: bool, elements, owner| {
        all.extend(is_there.then_some(Weight { elements, owner, layer: None }));
    };
    add(is_first, table, Owner::Tensor);
    add(is_last && !(is_first && model.tied), table, Owner::Tensor);
    add(is_last, h, Owner::All);
    all
}

/// What a rank holds of a stage's weights: elements, the ranks that hold the same ones, and the weight's layer.
type Held = Vec<(f64, Vec<usize>, Option<usize>)>;

/// Places all weights of a stage on its ranks, whose numbers count tensor-parallel ranks first, then context- and data-parallel ones; of
/// experts, expert-tensor ranks first, then expert-parallel ones.
fn placed(weights: &[Weight], layout: &ParallelConfig, experts: usize) -> Vec<Held> {
    let [tp, cp, dp, ep, etp] = [layout.tp, layout.cp, layout.dp, layout.ep, layout.etp].map(|degree| degree as usize);
    let ranks = tp * cp * dp;
    let mut held: Vec<Held> = vec![Vec::new(); ranks];
    for Weight { elements, owner, layer } in weights {
        let mut holders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for rank in 0..ranks {
            let part = match *owner {
                Owner::All => Some(0),
                Owner::Tensor => Some(rank % tp),
                Owner::Expert(expert) => (rank / etp % ep == expert / (experts / ep)).then_some(rank % etp),
            };
            part.into_iter().for_each(|part| holders.entry(part).or_default().push(rank));
        }
        let parts = match owner {
            Owner::All => 1,
            Owner::Tensor => tp,
            Owner::Expert(_) => etp,
        };
        assert_eq!(holders.len(), parts);
        for (&rank, group) in holders.values().flat_map(|group| group.iter().map(move |rank| (rank, group))) {
            // norms and routers are on all tensor-parallel ranks, whose gradients are the same: only the others reduce them
            let group = match owner {
                Owner::All => group.iter().copied().filter(|other| other % tp == rank % tp).collect(),
                _ => group.clone(),
            };
            held[rank].push((*elements as f64 / parts as f64, group, *layer));
        }
    }
    held
}

/// Cuts each of the ranks that hold the same into `groups` of neighbours: first those that a rank shares states with, then those with the
/// same share, which is that part of the elements.
fn cut(held: &Held, rank: usize, groups: usize) -> [Held; 2] {
    let sharing = |(elements, all, layer): &(f64, Vec<usize>, Option<usize>)| {
        let (size, place) = (all.len() / groups, all.iter().position(|other| *other == rank).unwrap());
        let near = all[place / size * size..][..size].to_vec();
        let same = all.iter().copied().skip(place % size).step_by(size).collect();
        ((*elements, near, *layer), (elements / size as f64, same, *layer))
    };
    let (near, same) = held.iter().map(sharing).unzip();
    [near, same]
}

/// Seconds in which a ring over each group passes `bytes` per element `times` times, on nodes of `node` GPUs.
fn seconds(held: &Held, rank: usize, node: usize, (times, bytes): (f64, f64)) -> f64 {
    let of = |(elements, group, _): &(f64, Vec<usize>, Option<usize>)| {
        let (members, near) = (group.len(), group.iter().filter(|other| **other / node == rank / node).count());
        let speed = if near == members { LINK } else { LINK.min(NETWORK * near as f64) };
        times * (members as f64 - 1.0) / members as f64 * elements * bytes / (speed * 1e9)
    };
    held.iter().map(of).sum()
}

/// A machine whose collectives have no latency and hide nothing; its optimizer moves a byte per parameter at 1 GB/s.
fn platform(name: &str, node: usize) -> Platform {
    let hardware = Hardware {
        gpus_per_node: node as f64,
        link_gbytes_per_s: LINK,
        network_gbps_per_gpu: 8.0 * NETWORK,
        link_efficiency: 1.0,
        network_efficiency: 1.0,
        network_congestion: 0.0,
        link_latency_us: 0.0,
        network_latency_us: 0.0,
        exchange_gbytes_per_s: 0.0,
        memory_gbytes_per_s: 1.0,
        memory_efficiency: 1.0,
        ..hardware("h100-sxm").unwrap()
    };
    let known = stack(name).unwrap();
    let stack = Stack {
        data_exposed: 1.0,
        overlaps_chunks: 0.0,
        gather_exposed: 1.0,
        optimizer_bytes: 1.0,
        fragmentation: 0.0,
        ..known
    };
    Platform { hardware, stack }
}

fn pick<T: Copy>(dice: &mut Dice, choices: &[T]) -> T {
    choices[dice.below(choices.len())]
}

/// A small model and a mesh on which it is allowed.
fn case(dice: &mut Dice) -> Option<(TransformerConfig, ParallelConfig)> {
    let degree = |dice: &mut Dice| pick(dice, &[1, 2, 4]);
    let [tp, ep, etp] = [0; 3].map(|_| degree(dice));
    let [cp, dp] = [pick(dice, &[1, 1, 2, 4]), pick(dice, &[1, 1, 2, 4, 8])];
    let experts = Experts {
        shared_width: pick(dice, &[0, 64]),
        dense_first: dice.below(2),
        every: 1 + dice.below(2),
        ..Experts::new(pick(dice, &[4, 8, 12]), 2, 16 * (1 + dice.below(4)))
    };
    let is_mixture = dice.below(4) > 0;
    let pp = pick(dice, &[1, 2]);
    let zero = Zero::ALL[dice.below(4)];
    let model = TransformerConfig {
        biases: Biases::NONE,
        vocabulary: 64 * (1 + dice.below(8)),
        vocabulary_multiple: 1,
        layers: 2 * (1 + dice.below(3)),
        heads: 8,
        groups: pick(dice, &[4, 8]),
        head_size: 8,
        channels: 32 * (1 + dice.below(3)),
        mlp: 32 * (1 + dice.below(6)),
        experts: is_mixture.then_some(experts),
        // a table that one stage uses twice is gathered twice
        tied: dice.below(2) == 0 && (zero != Zero::Weights || pp > 1),
        ..transformer_named("mixtral-8x7b").unwrap()
    };
    let layout = ParallelConfig {
        pp,
        tp,
        cp,
        dp,
        ep: if is_mixture { ep } else { 1 },
        etp: if is_mixture { etp } else { 1 },
        micro: 2,
        sequence: 64,
        sequence_parallel: tp > 1,
        zero,
        shard: (zero != Zero::None && dice.below(2) == 0).then(|| pick(dice, &[1, 2, 4, 8])),
        ..ParallelConfig::default()
    };
    layout.validate(&model).is_ok().then_some((model, layout))
}

/// Bytes of a weight, its gradient and its optimizer's states, of a gradient as it is reduced, and of a weight as ZeRO-3 gathers it, by
/// what the software keeps: Megatron-Core 16-bit weights and fp32 gradients; torchtitan fp32 weights and gradients.
const BYTES: [(&str, [f64; 5]); 2] =
    [("megatron-core", [2.0, 4.0, 12.0, 4.0, 2.0]), ("torchtitan", [4.0, 4.0, 8.0, 4.0, 2.0])];

#[test]
fn memory_and_traffic_are_those_of_an_explicit_placement() {
    let mut dice = Dice(17);
    let (mut compared, mut of_stage, mut without_dense, mut alone, mut cut_up) = (0, [0; 4], 0, 0, [0; 4]);
    while compared < 400 {
        let Some((model, layout)) = case(&mut dice) else { continue };
        let ((name, [weight, gradient, states, reduced, gathered]), node) =
            (pick(&mut dice, &BYTES), pick(&mut dice, &[2, 4, 8, 1024]));
        let costs = Analytic::new(model, platform(name, node), layout.clone()).unwrap();
        let selection = Selection::new(layout.pp, layout.micro);
        let graph = selection.resolve("1f1b", &Costs::default()).unwrap().graph;
        let schedule: &Schedule = graph.schedule();
        let stages = costs.stages(layout.pp).unwrap();
        let memory = costs.memory_model().memory(u64::MAX, &stages, schedule);
        let after = costs.after_ns(&schedule.placement, &stages, schedule.slices()).unwrap();
        let mut first = 0;
        for (device, stage) in stages.iter().enumerate() {
            let layers = first..first + stage.layers();
            first = layers.end;
            let ends = [device == 0, device + 1 == stages.len()];
            let weights = weights(&model, layers, ends);
            let ranks = placed(&weights, &layout, model.experts.map_or(1, |experts| experts.count));
            let groups = layout.shard.map_or(1, |shard| (layout.dp * layout.cp / shard) as usize);
            // the links of a node and its network sum and gather at the same time
            let both = |within: f64, across: f64| match layout.shard {
                Some(shard) if (shard * layout.tp) as usize <= node => within.max(across),
                _ => within + across,
            };
            for (rank, held) in ranks.iter().enumerate() {
                let [near, same] = cut(held, rank, groups);
                let context = format!("{layout:?} {model:?} {name}, nodes of {node}: rank {rank} of stage {device}");
                // memory: what is sharded is divided among the ranks that hold the same
                let sharded: f64 = near.iter().map(|(elements, group, _)| elements / group.len() as f64).sum();
                let whole: f64 = held.iter().map(|(elements, ..)| elements).sum();
                let of = |bytes: f64, from: Zero| bytes * if layout.zero >= from { sharded } else { whole };
                let device = &memory.per_device[device];
                for (found, expected, each) in [
                    (device.weights, of(weight, Zero::Weights), weight),
                    (device.gradients, of(gradient, Zero::Gradients), gradient),
                    (device.optimizer, of(states, Zero::Optimizer), states),
                ] {
                    // elements that do not divide are rounded up, once without and once of experts
                    assert!((0.0..2.0 * each).contains(&(found as f64 - expected)), "{context}: {found} {expected}");
                }
                // traffic: per step up to ZeRO-2, per pass with ZeRO-3
                let time = |times, bytes| seconds(&near, rank, node, (times, bytes));
                let summed = seconds(&same, rank, node, (2.0, reduced));
                let updated = if layout.zero == Zero::None { whole } else { sharded };
                let exchange = match layout.zero {
                    Zero::None => time(2.0, reduced),
                    Zero::Optimizer | Zero::Gradients => time(1.0, reduced) + summed + time(1.0, 2.0),
                    Zero::Weights => 0.0,
                };
                let found = after[device.device as usize] as f64;
                assert!((found - 1e9 * exchange - updated).abs() < 1.0, "{context}: {found} ns, {exchange} s");
                let passes = costs.passes(stage);
                let [forward, weights, backward] = match layout.zero {
                    Zero::Weights => {
                        let parts: BTreeSet<Option<usize>> = near.iter().map(|(.., part)| *part).collect();
                        let within = |bytes: f64, part: &Option<usize>| {
                            let of = |held: &Held| held.iter().filter(|(.., own)| own == part).cloned().collect();
                            let [near, same]: [Held; 2] = [of(&near), of(&same)];
                            both(seconds(&near, rank, node, (1.0, bytes)), seconds(&same, rank, node, (2.0, reduced)))
                        };
                        let all = |bytes: f64| parts.iter().map(|part| within(bytes, part)).sum::<f64>();
                        [time(1.0, gathered), all(reduced), all(gathered + reduced)]
                    }
                    _ => [0.0; 3],
                };
                for (found, expected) in [
                    (passes.forward.data, forward),
                    (passes.input.data, forward),
                    (passes.weights.data, weights),
                    (passes.backward.data, backward),
                ] {
                    assert!((found - expected).abs() < 1e-9 * (1.0 + expected), "{context}: {found} s, {expected} s");
                }
            }
            if layout.zero == Zero::Weights {
                let [near, same] = cut(&ranks[0], 0, groups);
                check_gathered(&costs, &stages, schedule, device as u32, &near);
                // the same if whole stages are gathered between ops
                let fsdp = Some(Fsdp::default());
                let whole =
                    Analytic::new(model, costs.machine.clone(), ParallelConfig { fsdp, ..layout.clone() }).unwrap();
                let found = whole.table(&schedule.placement, &stages).unwrap().extras.collectives.unwrap();
                let ns = |seconds: f64| (1e9 * seconds).round() as u64;
                let time = |bytes| seconds(&near, 0, node, (1.0, bytes));
                let summed = both(time(reduced), seconds(&same, 0, node, (2.0, reduced)));
                assert!(found.gathers[device].abs_diff(ns(time(gathered))) < 2, "{layout:?}");
                assert!(found.reductions[device].abs_diff(ns(summed)) < 2, "{layout:?}");
            }
        }
        compared += 1;
        cut_up[layout.zero as usize] += usize::from(layout.shard.is_some_and(|shard| shard < layout.dp * layout.cp));
        of_stage[layout.zero as usize] += 1;
        without_dense += usize::from(layout.dp * layout.cp == 1 && model.experts.is_some() && layout.edp() > 1);
        alone += usize::from(layout.dp * layout.cp > 1 && model.experts.is_some() && layout.edp() == 1);
    }
    assert!(cut_up[1..].iter().all(|&count| count > 10), "{cut_up:?}");
    assert!(of_stage.iter().all(|&count| count > 50), "{of_stage:?}");
    assert!(without_dense >= 10 && alone >= 10, "only experts have replicas in {without_dense}, all others in {alone}");
}

/// What ZeRO-3 gathers beyond its shards: two layers, embedding and head in 16 bits, and the gradients of the larger, of what other
/// ranks hold, too; never more than the rank lacks.
fn check_gathered(costs: &Analytic, stages: &[Stage], schedule: &Schedule, device: u32, held: &Held) {
    let buffers = |zero: Zero| {
        let layout = ParallelConfig { zero, ..costs.layout.clone() };
        let costs = Analytic::new(costs.model, costs.machine.clone(), layout).unwrap();
        costs.memory_model().memory(u64::MAX, stages, schedule).per_device[device as usize]
    };
    let (without, with) = (buffers(Zero::Gradients), buffers(Zero::Weights));
    let mut parts: BTreeMap<Option<usize>, f64> = BTreeMap::new();
    for (elements, _, layer) in held.iter().filter(|(_, group, _)| group.len() > 1) {
        *parts.entry(*layer).or_default() += elements;
    }
    let ends = parts.remove(&None).unwrap_or(0.0);
    let layer = parts.into_values().fold(0.0, f64::max);
    let lacks = (without.weights - with.weights) as f64;
    let expected = (2.0 * (2.0 * layer + ends) + 2.0 * layer.max(ends)).min(lacks);
    let found = with.buffers as f64 - without.buffers as f64;
    assert!((found - expected).abs() < 1.0, "{:?}: {found} {expected}", costs.layout);
}
