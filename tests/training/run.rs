//! The executor against PyTorch's losses, against itself bit by bit, and when devices die or hang.

use crate::support::{self, golden, golden_losses, golden_settings};
use pipesim::internals::activation::Keep;
use pipesim::internals::dsl;
use pipesim::internals::exec::{Plan, Session, StepRecord};
use pipesim::internals::experiment::{Backend, Training, TrainingConfig};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::mesh::Mesh;
use pipesim::internals::model::{AdamW, Parameters, Quantity, Tokenizer, Tokens};
use pipesim::internals::model_spec::MicroBatch;
use pipesim::internals::ranks::Ranks;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub fn graph(name: &str, p: u32, m: u32, v: Option<u32>) -> Option<Arc<TaskGraph>> {
    support::graph(name, p, m, v).ok().map(Arc::new)
}

/// The golden model: 4 blocks, 8 sequences of 32 tokens a step in `m` micro-batches.
pub fn training(m: u32, adamw: AdamW, clip: Option<f32>, repeat_batch: bool) -> Training {
    Training {
        parameters: Parameters::read(&golden("gpt2/model.bin")).unwrap(),
        tokens: Tokens::read(&golden("gpt2/tokens.bin"), Tokenizer::Bytes).unwrap(),
        training_config: TrainingConfig { adamw, clip, repeat_batch, ..TrainingConfig::default() },
        micro_batch: MicroBatch { sequences: (8 / m) as usize, tokens: 32 },
        timeout: Duration::from_secs(30),
        ranks: Ranks::alone(),
        backend: Backend::default(),
    }
}

pub fn adamw(beta2: f32, weight_decay: f32) -> AdamW {
    AdamW { learning_rate: 1e-3, beta1: 0.9, beta2, epsilon: 1e-8, weight_decay }
}

pub fn train(training: &Training, session: &mut Session, m: u32, steps: usize) -> Vec<StepRecord> {
    let step = |step| session.step(&training.batch(step, m).unwrap(), Some(training.update(step))).unwrap();
    (0..steps).map(step).collect()
}

pub fn losses(records: &[StepRecord]) -> Vec<f64> {
    records.iter().map(|record| record.loss.unwrap()).collect()
}

/// All schedules of whole micro-batches that exist for p devices and m micro-batches and need at most 4 stages.
pub fn schedules(p: u32, m: u32) -> Vec<Arc<TaskGraph>> {
    let open = |name: &str| ["interleaved-1f1b", "looped-bfs", "interleaved-zb", "group-interleaved"].contains(&name);
    let all = dsl::names_of_whole()
        .into_iter()
        .filter_map(|name| graph(name, p, m, open(name).then_some(if p <= 2 { 2 } else { 1 })));
    all.filter(|graph| graph.schedule().placement.stages() <= 4).collect()
}

/// The losses of a setting of PyTorch's, by its number, on these numbers of devices.
fn check(setting: usize, m: u32, devices: RangeInclusive<u32>) {
    let (key, adamw, clip) = golden_settings()[setting];
    let theirs = golden_losses(key);
    let training = training(m, adamw, clip.map(|clip| clip as f32), !key.starts_with('C'));
    let mut count = 0;
    for p in devices {
        for graph in schedules(p, m) {
            let ours = losses(&train(&training, &mut training.session(&graph).unwrap(), m, 10));
            for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let name = &graph.schedule().name;
                assert!((ours - theirs).abs() < 1e-4, "{key} {name} p={p} m={m} step {step}: {ours}, PyTorch {theirs}");
            }
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} runs");
}

/// The runs below leave no schedule out.
#[test]
fn every_name_is_among_the_runs() {
    let run: BTreeSet<String> =
        (1..=4).flat_map(|p| schedules(p, 8)).map(|graph| graph.schedule().name.clone()).collect();
    let missing: Vec<&str> = dsl::names_of_whole().into_iter().filter(|name| !run.contains(*name)).collect();
    assert!(missing.is_empty(), "no run of {missing:?}");
}

#[test]
fn losses_of_setting_a_are_pytorchs_under_every_schedule() {
    [4, 8].into_iter().for_each(|m| check(0, m, 1..=4));
}

#[test]
fn losses_of_setting_b_are_pytorchs_under_every_schedule() {
    check(1, 8, 2..=2);
    check(1, 2, 3..=4);
}

#[test]
fn losses_of_setting_c_are_pytorchs_under_every_schedule() {
    check(2, 8, 3..=3);
    check(2, 1, 4..=4);
}

/// Losses and final parameters as bits.
fn bits(training: &Training, graph: &Arc<TaskGraph>, m: u32) -> (Vec<u64>, Vec<u32>) {
    let mut session = training.session(graph).unwrap();
    let records = train(training, &mut session, m, 3);
    (losses(&records).iter().map(|x| x.to_bits()).collect(), values(training, &mut session))
}

/// All parameters as bits.
pub fn values(training: &Training, session: &mut Session) -> Vec<u32> {
    let parameters = Arc::new(Mutex::new(Parameters::zeros(training.config()).unwrap()));
    let into = parameters.clone();
    session.call(move |_, device| device.export(&mut into.lock().unwrap(), Quantity::Values)).unwrap();
    let parameters = parameters.lock().unwrap();
    parameters.tensors.iter().flatten().map(|x| x.to_bits()).collect()
}

/// Losses and parameters, as bits, after one step and three that follow each other at once.
fn bits_of_row(training: &Training, graph: &Arc<TaskGraph>, m: u32) -> (Vec<u64>, Vec<u32>) {
    let mut session = training.session(graph).unwrap();
    let step = |step| (training.batch(step, m).unwrap(), Some(training.update(step)));
    let (batch, update) = step(0);
    let first = session.step(&batch, update).unwrap();
    let row = session.row(&(1..4).map(step).collect::<Vec<_>>()).unwrap();
    let ends: Vec<u64> = row.following.iter().map(|following| following.end_ns).collect();
    assert!(ends.len() == 2 && row.iteration_ns() < ends[0] && ends[0] < ends[1], "{ends:?}");
    assert_eq!((row.period_ns(), first.period_ns()), (Some((ends[1] - row.iteration_ns()) / 2), None));
    let losses = first.losses().chain(row.losses()).map(f64::to_bits).collect();
    (losses, values(training, &mut session))
}

#[test]
fn steps_without_a_barrier_between_train_the_same_bits() {
    for (clip, most) in [(None, 4), (Some(0.5), 2)] {
        let training = training(4, adamw(0.95, 0.01), clip, false);
        for graph in (1..=most).flat_map(|p| schedules(p, 4)) {
            let mut session = training.session(&graph).unwrap();
            let one_by_one = losses(&train(&training, &mut session, 4, 4));
            let wanted = (one_by_one.iter().map(|x| x.to_bits()).collect(), values(&training, &mut session));
            let name = &graph.schedule().name;
            assert_eq!(bits_of_row(&training, &graph, 4), wanted, "{name} p={}", graph.schedule().devices());
        }
    }
}

#[test]
fn every_schedule_gives_the_same_bits() {
    for clip in [None, Some(0.5)] {
        let training = training(4, adamw(0.95, 0.01), clip, false);
        let reference = bits(&training, &graph("gpipe", 1, 4, None).unwrap(), 4);
        for p in 1..=4 {
            // Looped BFS accumulates micro-batches in reverse, two directions accumulate each their own: other sums.
            let same_order = |graph: &Arc<TaskGraph>| {
                graph.schedule().name != "looped-bfs" && graph.schedule().placement.directions() == 1
            };
            for graph in schedules(p, 4).into_iter().filter(same_order) {
                let found = bits(&training, &graph, 4);
                assert!(found == reference, "{} on {p} devices, clip {clip:?}", graph.schedule().name);
            }
        }
    }
}

#[test]
fn both_copies_of_a_stage_stay_the_same_bits() {
    for clip in [None, Some(0.5)] {
        let training = training(8, adamw(0.95, 0.01), clip, false);
        for p in [2, 4] {
            let graph = graph("dualpipe", p, 8, None).unwrap();
            let mut session = training.session(&graph).unwrap();
            train(&training, &mut session, 8, 3);
            let zeros = || Mutex::new(Parameters::zeros(training.config()).unwrap());
            let held: Arc<Vec<Mutex<Parameters>>> = Arc::new((0..p).map(|_| zeros()).collect());
            let into = held.clone();
            session
                .call(move |number, device| device.export(&mut into[number as usize].lock().unwrap(), Quantity::Values))
                .unwrap();
            // device r and p-1-r hold the same two stages
            for r in 0..p / 2 {
                let [one, other] = [r, p - 1 - r].map(|device| held[device as usize].lock().unwrap().clone());
                assert!(one.tensors.iter().flatten().any(|x| *x != 0.0));
                assert!(one == other, "dualpipe on {p} devices: {r} and {} differ", p - 1 - r);
            }
        }
    }
}

#[test]
fn warm_up_leaves_no_trace() {
    let training = training(4, adamw(0.95, 0.01), Some(1.0), false);
    let graph = graph("zb-v", 2, 4, None).unwrap();
    let mut cold = training.session(&graph).unwrap();
    let mut warm = training.session(&graph).unwrap();
    training.warm_up(&mut warm, &training.batch(2, 4).unwrap(), 3).unwrap();
    assert_eq!(losses(&train(&training, &mut warm, 4, 3)), losses(&train(&training, &mut cold, 4, 3)));
}

/// A step begins when the last device has come: no op begins before, and none is cut off there.
#[test]
fn ops_take_time_from_the_steps_beginning_on() {
    let training = training(8, adamw(0.999, 0.0), None, false);
    let graph = graph("1f1b", 4, 8, None).unwrap();
    let mut session = training.session(&graph).unwrap();
    for record in train(&training, &mut session, 8, 6) {
        for (device, ops) in record.devices.iter().enumerate().map(|(device, record)| (device, &record.ops)) {
            assert!(ops.iter().all(|op| op.end > op.start), "device {device}: an op took no time: {:?}", ops[0]);
        }
        assert!(record.devices[0].ops[0].end <= record.devices[1].ops[0].start, "device 1 waits for device 0");
    }
}

#[test]
fn records_hold_every_op_once_in_order_and_never_overlap() {
    let training = training(8, adamw(0.999, 0.0), None, false);
    let graph = graph("zb-v", 2, 8, None).unwrap();
    let record = &train(&training, &mut training.session(&graph).unwrap(), 8, 1)[0];
    for (device, ops) in record.devices.iter().enumerate() {
        let indices: Vec<usize> = ops.ops.iter().map(|op| op.index).collect();
        assert_eq!(indices, graph.schedule().range(device as u32).collect::<Vec<_>>());
        for pair in ops.ops.windows(2) {
            assert!(pair[0].end <= pair[0].put_end && pair[0].put_end <= pair[1].turn && pair[1].turn <= pair[1].start);
        }
    }
    let ends: BTreeMap<usize, u64> = record.devices.iter().flat_map(|d| &d.ops).map(|op| (op.index, op.end)).collect();
    for op in record.devices.iter().flat_map(|d| &d.ops) {
        if let Some(up) = graph.upstream(op.index) {
            assert!(ends[&up] <= op.start, "{} starts before its input is there", graph.op(op.index));
        }
    }
    let timeline = record.timeline(&graph, 1.0);
    assert_eq!(timeline.ops().count(), graph.len());
    let peaks: Vec<f64> = timeline.metrics().per_device.iter().map(|d| d.peak_activations).collect();
    assert_eq!(
        peaks,
        [graph.schedule().peak_activations(0, Keep::ALL), graph.schedule().peak_activations(1, Keep::ALL)]
    );
}

#[test]
fn slots_are_reused_only_by_descendants_of_their_last_reader() {
    for name in dsl::names_of_whole() {
        for (p, m) in [(2, 4), (3, 6), (4, 8)] {
            let Some(graph) = graph(name, p, m, None) else { continue };
            let plan = Plan::new(graph.clone(), Mesh::default(), None);
            let mut slots: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (reader, input) in plan.inputs.iter().enumerate() {
                let Some(port) = input else { continue };
                let writer = graph.upstream(reader).unwrap();
                assert_eq!(plan.outputs[writer], *input, "both sides name the same place");
                slots.entry((port.channel, port.slot)).or_default().push((port.turn, writer, reader));
            }
            for uses in slots.values_mut() {
                uses.sort_unstable();
                for pair in uses.windows(2) {
                    let (reader, writer) = (pair[0].2, pair[1].1);
                    let path = petgraph::algo::has_path_connecting(&*graph, reader, writer, None);
                    let [writer, reader] = [writer, reader].map(|index| graph.op(index));
                    assert!(path, "{name} p={p} m={m}: {writer} may overwrite what {reader} reads");
                }
            }
        }
    }
    let one = Plan::new(graph("naive", 4, 8, None).unwrap(), Mesh::default(), None);
    assert!(one.slots.iter().all(|&slots| slots == 1), "one micro-batch in flight needs one slot a channel");
}

/// What a step is told that ends by this fault.
fn told_of(fault: &str, timeout: Duration) -> String {
    let mut training = training(4, adamw(0.999, 0.0), None, false);
    (training.training_config.fault, training.timeout) = (Some(fault.parse().unwrap()), timeout);
    let mut session = training.session(&graph("1f1b", 2, 4, None).unwrap()).unwrap();
    session.step(&training.batch(0, 4).unwrap(), Some(training.update(0))).unwrap_err().to_string()
}

#[test]
fn a_dead_device_ends_the_run_and_is_named() {
    let error = told_of("die@1:3", Duration::from_secs(30));
    assert!(error.contains("device 1 died") && error.contains("injected fault at op number 3"), "{error}");
    assert!(error.contains("device 1 at op number 3 (1B1)"), "{error}");
}

#[test]
fn a_hang_is_ended_by_the_watchdog_with_who_waits_for_whom() {
    let error = told_of("hang@1:1", Duration::from_millis(300));
    assert!(error.contains("(0B0) waits for 1B0, at which device 1 is itself stuck, since"), "{error}");
    assert!(error.contains("device 1 at op number 1 (1B0)\n"), "{error}");
}
