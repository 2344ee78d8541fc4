//! Slices of sequences, recomputing and offloading, executed: against PyTorch's numbers, one device's, the memory model, and bit by bit.

use crate::llama::Case;
use crate::run::{adamw, graph, losses, train, training, values};
use crate::support::{Dice, checkpoint, costs_of, debug_state, golden_losses, golden_settings, relative_distance};
use pipesim::internals::compute::{Alone, Collective};
use pipesim::internals::experiment::{Training, most_saved, saved_changes};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::mesh::Mesh;
use pipesim::internals::model::{Parameters, Quantity, StageModule, Stopwatch};
use pipesim::internals::op::{Kind, Op};
use pipesim::internals::timeline::Queue;
use pipesim::simulation::OpTimes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Seq1F1B with every unit recomputed before its backward.
pub const SEQ1F1B: &str = "
def device(r, p, m, slices = 4):
    units = m * slices
    warmup = min(p - 1 - r + slices - 1, units)
    return warmup * F + (units - warmup) * (F + R + B) + warmup * (R + B)
";

/// Seq1F1B-ZB with every unit recomputed before its backward.
pub const SEQ1F1B_ZB: &str = "
def device(r, p, m, slices = 4):
    units = m * slices
    warmup = min(p - 1 - r + slices - 1, units)
    late = min(units, p - 1 + slices - 1 - warmup)
    ops = [(F if warmup + k < units else 0 * F) + R + I + (W if k >= late else 0 * W) for k in range(units)]
    return warmup * F + concat(ops) + late * W
";

/// The graph of a schedule's text, or of a known one's name, with options such as `slices=3`.
pub fn written(text: &str, options: &str, p: u32, m: u32) -> Arc<TaskGraph> {
    if !text.contains("def") {
        return graph(format!("{text} {options}").trim(), p, m, None).expect("a schedule");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schedule.star");
    std::fs::write(&file, text).unwrap();
    graph(format!("{} {options}", file.display()).trim(), p, m, None).expect("a schedule")
}

/// Losses and parameters as bits after three steps, and the peak bytes that each worker held, which are as predicted.
pub fn outcome(training: &Training, graph: &Arc<TaskGraph>, m: u32) -> (Vec<u64>, Vec<u32>, Vec<u64>) {
    let mut session = training.session(graph).unwrap();
    let losses = losses(&train(training, &mut session, m, 3));
    let (mesh, stages) = (training.mesh(), training.stages(graph).unwrap());
    let held = Arc::new(Mutex::new(BTreeMap::new()));
    let into = held.clone();
    session
        .call(move |worker, state| {
            into.lock().unwrap().insert(worker, state.peak_held_bytes() as u64);
            Ok(())
        })
        .unwrap();
    let held: Vec<u64> = held.lock().unwrap().values().copied().collect();
    let workers = 0..mesh.world(graph.schedule().devices());
    let predicted: Vec<u64> =
        workers.map(|worker| most_saved(training, graph, mesh.device(worker), &stages).unwrap()).collect();
    assert_eq!(held, predicted, "{mesh}: held and predicted");
    (losses.into_iter().map(f64::to_bits).collect(), values(training, &mut session), held)
}

#[test]
fn schedules_with_the_same_slices_train_the_same_bits_and_one_devices_losses() {
    let (m, training) = (2, training(2, adamw(0.95, 0.01), Some(0.5), false));
    let whole = outcome(&training, &graph("gpipe", 1, m, None).unwrap(), m);
    for slices in [2, 3, 4] {
        let options = format!("slices={slices}");
        let reference = outcome(&training, &written("seq1f1b", &options, 1, m), m);
        // TeraPipe sums gradients from the last micro-batch to the first: other bits
        let terapipe = outcome(&training, &written("terapipe", &options, 2, m), m);
        for (bits, whole) in [&reference.0, &terapipe.0].into_iter().flat_map(|losses| losses.iter().zip(&whole.0)) {
            let (loss, whole) = (f64::from_bits(*bits), f64::from_bits(*whole));
            assert!((loss - whole).abs() < 1e-5, "{slices} slices: {loss}, one device's {whole}");
        }
        let texts = ["seq1f1b", "seq1f1b-zb", SEQ1F1B, SEQ1F1B_ZB];
        for (p, text) in [1, 2, 4].into_iter().flat_map(|p| texts.map(|text| (p, text))) {
            let found = outcome(&training, &written(text, &options, p, m), m);
            assert!((&found.0, &found.1) == (&reference.0, &reference.1), "{text} {options} p={p} differs");
        }
    }
    assert_eq!(training.slices(&written("terapipe", "slices=3", 1, m)).unwrap(), [10, 11, 11]);
}

#[test]
fn recomputing_changes_no_bit_and_lowers_the_peak() {
    let (m, p) = (4, 2);
    let training = training(m, adamw(0.95, 0.01), None, false);
    let peak = |held: &Vec<u64>| held.iter().copied().max().unwrap();
    let plain = outcome(&training, &graph("1f1b", p, m, None).unwrap(), m);
    let again = outcome(&training, &written("1f1b-recompute", "", p, m), m);
    assert!((&plain.0, &plain.1) == (&again.0, &again.1), "recomputing changes no bit");
    let [whole, sliced, both] = [("", "gpipe"), ("slices=4", "seq1f1b"), ("slices=4", SEQ1F1B)]
        .map(|(options, text)| peak(&outcome(&training, &written(text, options, p, m), m).2));
    // Device 0 of 1F1B holds two micro-batches, with recomputing one and a stub; Seq1F1B holds 1 + 1/4.
    let (plain, again) = (peak(&plain.2) as f64, peak(&again.2) as f64);
    assert!(whole as f64 > 1.9 * plain && again < 0.6 * plain, "{whole} {plain} {again}");
    assert!((sliced as f64) < 0.75 * plain && (both as f64) < 0.5 * plain, "{plain} {sliced} {both}");
}

/// The changes of a step by worker, in order.
type Changes = BTreeMap<u32, Vec<(Op, i64)>>;

/// The most that changes in this order hold.
fn most(changes: &[(Op, i64)]) -> i64 {
    let held = changes.iter().scan(0, |held, (_, bytes)| {
        *held += bytes;
        Some(*held)
    });
    held.max().unwrap_or(0)
}

/// Losses and parameters as bits after four steps of a schedule with copies, and the least peak of each worker over the steps: copies may be late on
/// a busy machine. Checks that bytes change as predicted, and that the timeline has the copies, each where its waits allow.
pub fn offloaded(training: &Training, graph: &Arc<TaskGraph>, m: u32) -> (Vec<u64>, Vec<u32>, Vec<i64>) {
    let mut session = training.session(graph).unwrap();
    let (stages, devices) = (training.stages(graph).unwrap(), graph.schedule().devices());
    let (mut bits, mut least) = (Vec::new(), vec![i64::MAX; devices as usize]);
    for step in 0..4 {
        let record = session.step(&training.batch(step, m).unwrap(), Some(training.update(step))).unwrap();
        bits.push(record.loss.unwrap().to_bits());
        let found: Arc<Mutex<Changes>> = Arc::default();
        let into = found.clone();
        session
            .call(move |worker, state| {
                into.lock().unwrap().insert(worker, state.held_changes());
                assert!(state.peak_held_bytes() as i64 >= most(&state.held_changes()));
                Ok(())
            })
            .unwrap();
        for (&device, changes) in &*found.lock().unwrap() {
            let mut by_op: BTreeMap<Op, Vec<i64>> = BTreeMap::new();
            changes.iter().for_each(|&(op, bytes)| by_op.entry(op).or_default().push(bytes));
            assert_eq!(by_op, saved_changes(training, graph, device, &stages).unwrap(), "device {device}");
            assert!(most(changes) as u64 <= most_saved(training, graph, device, &stages).unwrap());
            assert_eq!(changes.iter().map(|(_, bytes)| bytes).sum::<i64>(), 0, "all that was kept has been used");
            least[device as usize] = least[device as usize].min(most(changes));
        }
        let timeline = record.timeline(graph, training.keep());
        let spans: BTreeMap<Op, _> = timeline.spans.iter().filter_map(|span| Some((span.copy_op()?, span))).collect();
        let ops: BTreeMap<Op, _> = timeline.ops().collect();
        let copies: BTreeSet<Op> =
            graph.schedule().ops().iter().copied().filter(|op| !op.kind().is_compute()).collect();
        assert_eq!(spans.keys().copied().collect::<BTreeSet<Op>>(), copies);
        for (index, op) in graph.schedule().ops().iter().map(|op| op.alone()).enumerate() {
            let own = spans.get(&op).unwrap_or_else(|| &ops[&op]);
            for other in graph.waits(index).iter().map(|wait| graph.op(wait.op as usize).alone()) {
                let other = spans.get(&other).unwrap_or_else(|| &ops[&other]);
                assert!(other.end_ns <= own.start_ns, "{op} began before {} had ended", other.op);
            }
        }
        assert!(timeline.spans.iter().all(|span| (span.queue == Queue::Copy) == span.copy_op().is_some()));
    }
    (bits, values(training, &mut session), least)
}

/// Seq1F1B whose slices but the last go to the host.
pub const SEQ1F1B_OFFLOAD: &str = "
def device(r, p, m, slices = 4):
    units = m * slices
    warmup = min(p - 1 - r + slices - 1, units)
    return offload(warmup * F + (units - warmup) * (F + B) + warmup * B, least = 2)
";

#[test]
fn offloading_changes_no_bit_and_lowers_the_peak() {
    let m = 8;
    let training = training(m, adamw(0.95, 0.01), None, false);
    let one = outcome(&training, &graph("gpipe", 1, m, None).unwrap(), m).0;
    let cases = [
        ("1f1b-offload ahead=1", "1f1b", "", 4),
        ("pipeoffload", "pipeoffload offloaded=0", "", 2),
        (SEQ1F1B_OFFLOAD, "seq1f1b", "slices=4", 2),
    ];
    for (text, plain, options, p) in cases {
        let plain = offloaded(&training, &written(plain, options, p, m), m);
        let found = offloaded(&training, &written(text, options, p, m), m);
        assert!((&found.0, &found.1) == (&plain.0, &plain.1), "{text} on {p} devices differs");
        let losses = found.0.iter().map(|&bits| f64::from_bits(bits));
        for (ours, one) in losses.zip(one.iter().map(|&bits| f64::from_bits(bits))) {
            assert!((ours - one).abs() < 1e-5, "{text}: {ours}, one device {one}");
        }
        // Slices leave copies of keys and values, and too little time on a busy machine.
        let (held, without) = (found.2[0], plain.2[0]);
        assert!(held < without || !options.is_empty(), "{text}: device 0 holds {held} bytes, without copies {without}");
    }
    // Replicas sum gradients between ops.
    let mut shared = crate::run::training(1, adamw(0.95, 0.01), None, false);
    shared.training_config.mesh = Mesh { zero: true, ..Mesh::new(2, 2) };
    shared.micro_batch.sequences = 1;
    let found = losses(&train(&shared, &mut shared.session(&written("pipeoffload", "", 2, 4)).unwrap(), 4, 3));
    for (ours, one) in found.into_iter().zip(one.iter().map(|&bits| f64::from_bits(bits))) {
        assert!((ours - one).abs() < 1e-5, "replicas: {ours}, one device {one}");
    }
}

/// The most that `device` holds if its ops and copies run at the simulated times of random costs.
fn most_simulated(graph: &TaskGraph, changes: &BTreeMap<Op, Vec<i64>>, device: u32, costs: &str) -> i64 {
    let costs = costs_of(graph, costs);
    let times = OpTimes::swept(graph, &costs);
    let mut all = Vec::new();
    for index in graph.schedule().range(device) {
        let op = graph.op(index).alone();
        let halves: &[Kind] = if op.kind() == Kind::B { &[Kind::I, Kind::W] } else { &[op.kind()] };
        for &bytes in halves.iter().flat_map(|&kind| &changes[&op.of_kind(kind)]) {
            all.push((if bytes > 0 { times.start[index] } else { times.end[index] }, bytes));
        }
    }
    all.sort_unstable();
    most(&all.into_iter().map(|(_, bytes)| (Op::new(Kind::F, 0, 0), bytes)).collect::<Vec<_>>())
}

/// B3 waits until all four offloads have ended, so the next four forwards find room. Then the same without copies.
const LAST_FIRST: [&str; 2] = [
    "def device(r, p, m):\n    back = L(0) + B(0) + L(1) + B(1) + L(2) + B(2)\n    return 4 * (F + O) + L(3) + B(3) + 4 * F + B(4) + B(5) + B(6) + B(7) + back\n",
    "def device(r, p, m):\n    return 4 * F + B(3) + 4 * F + B(4) + B(5) + B(6) + B(7) + B(0) + B(1) + B(2)\n",
];

/// Offloads count as returned once they must have ended, and not before: no copy is too slow or too fast for the bound.
#[test]
fn the_bound_on_what_is_held_credits_offloads() {
    let training = training(8, adamw(0.95, 0.01), None, false);
    let mut dice = Dice(3);
    let [last_first, plain] = LAST_FIRST;
    let cases = [
        ("1f1b-offload ahead=1", "1f1b", 4, false),
        ("pipeoffload offloaded=2", "pipeoffload offloaded=0", 2, false),
        (last_first, plain, 1, true),
    ];
    for (text, plain, p, is_credited) in cases {
        let (graph, plain) = (written(text, "", p, 8), written(plain, "", p, 8));
        let stages = training.stages(&graph).unwrap();
        for device in 0..p {
            let changes = saved_changes(&training, &graph, device, &stages).unwrap();
            let bound = most_saved(&training, &graph, device, &stages).unwrap() as i64;
            let without = most_saved(&training, &plain, device, &stages).unwrap() as i64;
            assert!(bound <= without, "{text}, device {device}: {bound} bytes, without copies {without}");
            // elsewhere all forwards before the first backward may run before a copy ends
            assert!(!is_credited || 7 * bound < 5 * without, "{bound} bytes, without copies {without}");
            for _ in 0..50 {
                let [f, b, copy] = [1 + dice.below(9), 1 + dice.below(9), 1 + dice.below(40)];
                let costs = format!("F={f},B={b},copy={}", copy as f64 / 10.0);
                let held = most_simulated(&graph, &changes, device, &costs);
                assert!(held <= bound, "{text}, device {device}, {costs}: holds {held} of {bound} bytes");
            }
        }
    }
}

#[test]
fn tensor_ranks_and_replicas_run_slices_and_recompute() {
    let m = 2;
    for (tensor, data, shares_rows) in [(2, 1, false), (2, 2, true), (1, 2, false)] {
        let mut training = training(1, adamw(0.95, 0.0), None, false);
        training.training_config.mesh = Mesh { sequence_parallel: shares_rows, ..Mesh::new(tensor, data) };
        training.micro_batch.sequences = 8 / (m * data) as usize;
        let whole = outcome(&training, &graph("1f1b", 2, m, None).unwrap(), m).0;
        for (text, options) in [("seq1f1b", "slices=2"), (SEQ1F1B, "slices=4")] {
            let found = outcome(&training, &written(text, options, 2, m), m).0;
            if !shares_rows && tensor == 1 {
                training.training_config.mesh.zero = true;
                let shared = outcome(&training, &written(text, options, 2, m), m).0;
                training.training_config.mesh.zero = false;
                assert!(found == shared, "{options}: --zero 1 changes no bit");
            }
            for (found, whole) in found.iter().zip(&whole).map(|(a, b)| (f64::from_bits(*a), f64::from_bits(*b))) {
                assert!((found - whole).abs() < 1e-5, "{tensor} x {data} {options}: {found}, whole {whole}");
            }
        }
    }
}

/// Loss and gradients of the whole model on one CPU, by slices of `slices` tokens, where slices of even micro-batches are recomputed.
fn by_slices(
    parameters: &Parameters,
    (inputs, targets): (&[u32], &[u32]),
    [sequences, tokens, microbatches]: [usize; 3],
    slices: &[usize],
) -> (f32, Parameters) {
    let layers = parameters.config.spec().split(1, None).unwrap();
    let (sizes, n) = ([sequences / microbatches, tokens, microbatches], slices.len() as u32);
    let ranks = Box::new(Alone) as Box<dyn Collective>;
    let mut module = StageModule::on_cpu_slices(parameters, &[(0, layers[0].clone())], sizes, slices, ranks).unwrap();
    let units: Vec<Op> = (0..microbatches as u32 * n).map(|unit| Op::of_unit(Kind::F, 0, unit, n)).collect();
    let again = |op: &Op| op.microbatch().is_multiple_of(2);
    module.recompute(units.iter().copied().filter(again)).unwrap();
    module.begin(inputs, targets).unwrap();
    let mut run = |op: Op| module.run(op, None, None, &mut Stopwatch::default()).unwrap();
    units.iter().for_each(|&op| run(op));
    for op in units.iter().rev() {
        let kinds: &[Kind] = if again(op) { &[Kind::R, Kind::B] } else { &[Kind::I, Kind::W] };
        kinds.iter().for_each(|&kind| run(op.of_kind(kind)));
    }
    assert_eq!(module.held_bytes(), 0, "all that was kept has been used");
    let mut gradients = Parameters::zeros(&parameters.config).unwrap();
    module.export(&mut gradients, Quantity::Gradients).unwrap();
    (module.losses().unwrap().iter().sum::<f32>() / microbatches as f32, gradients)
}

#[test]
fn gradients_by_slices_are_pytorchs() {
    let state = debug_state();
    for slices in [&[16, 16][..], &[10, 11, 11], &[20, 1, 8, 3]] {
        let sizes = [state.batch, state.tokens, 2];
        let (loss, found) = by_slices(&checkpoint(), (&state.inputs, &state.targets), sizes, slices);
        assert!((loss - state.loss).abs() < 1e-5, "loss {loss}, PyTorch's {}", state.loss);
        for (tensor, (found, expected)) in found.tensors.iter().zip(&state.gradients).enumerate() {
            let distance = relative_distance(found, expected);
            assert!(distance < 1e-5, "{slices:?}: tensor {tensor} differs by {distance:e}");
        }
    }
    for case in Case::all() {
        let [batch, micro, seq] = case.sizes();
        let (inputs, targets) = case.tokens().batch(0, batch, seq).unwrap();
        for slices in [&[seq / 2, seq - seq / 2][..], &[seq / 3, seq / 2, seq - seq / 3 - seq / 2]] {
            let (loss, found) = by_slices(&case.parameters(), (&inputs, &targets), [batch, seq, micro], slices);
            case.check_gradients(loss, &found);
        }
    }
}

#[test]
fn ten_steps_by_slices_give_pytorchs_losses() {
    let (key, adamw, clip) = golden_settings()[2];
    let training = training(2, adamw, clip.map(|clip| clip as f32), !key.starts_with('C'));
    let graph = written(SEQ1F1B, "slices=3", 4, 2);
    let ours = losses(&train(&training, &mut training.session(&graph).unwrap(), 2, 10));
    for (step, (ours, theirs)) in ours.iter().zip(golden_losses(key)).enumerate() {
        assert!((ours - theirs).abs() < 1e-4, "step {step}: {ours}, PyTorch's {theirs}");
    }
}

#[test]
fn what_is_not_executed_is_refused_by_name() {
    let training = training(2, adamw(0.95, 0.0), None, false);
    let refusal = |graph: &TaskGraph| training.stages(graph).unwrap_err().to_string();
    let vocabulary = written("1f1b-vocab", "", 2, 2);
    assert!(refusal(&vocabulary).contains("cannot run passes of a shared vocabulary"), "{}", refusal(&vocabulary));
    let short = written("terapipe", "slices=40", 2, 2);
    assert!(refusal(&short).contains("40 slices, found sequences of 32 tokens"), "{}", refusal(&short));
    let mut module = {
        let layers = checkpoint().config.spec().split(1, None).unwrap();
        let ranks = Box::new(Alone) as Box<dyn Collective>;
        StageModule::on_cpu_slices(&checkpoint(), &[(0, layers[0].clone())], [1, 32, 1], &[16, 16], ranks).unwrap()
    };
    module.recompute([Op::new(Kind::R, 0, 0).on_slice(0)]).unwrap();
    module.begin(&[1; 32], &[1; 32]).unwrap();
    let mut run = |op: &str| module.run(op.parse().unwrap(), None, None, &mut Stopwatch::default());
    let mut refused = |op: &str, why: &str| {
        let error = format!("{:#}", run(op).unwrap_err());
        assert!(error.contains(why), "{op}: {error}");
    };
    refused("0F0", "expected one of 2 slices");
    refused("0F0.1", "forwards of the slices before it");
    refused("0R0.0", "kept only its input");
    refused("0B0.2", "expected one of 2 slices");
    run("0F0.0").unwrap();
    let error = format!("{:#}", run("0B0.0").unwrap_err());
    assert!(error.contains("run R first"), "{error}");
    run("0F0.1").unwrap();
    let [offload, reload] = [Kind::O, Kind::L].map(|kind| Op::new(kind, 0, 0).on_slice(1));
    let error = module.copy(reload).err().expect("no OFFLOAD yet").to_string();
    assert!(error.contains("run OFFLOAD before 0RELOAD0.1"), "{error}");
    let away = module.copy(offload).unwrap();
    let back = module.copy(reload).unwrap();
    let early = format!("{:#}", back().unwrap_err());
    assert!(early.contains("expected an activation on the host"), "{early}");
    away().unwrap();
    let error = module.run("0B0.1".parse().unwrap(), None, None, &mut Stopwatch::default()).unwrap_err();
    assert!(format!("{error:#}").contains("run RELOAD first"), "{error:#}");
    module.copy(reload).unwrap()().unwrap();
    module.run("0B0.1".parse().unwrap(), None, None, &mut Stopwatch::default()).unwrap();
}
