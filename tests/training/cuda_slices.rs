//! Slices of sequences, recomputing and offloading on GPUs: against PyTorch's numbers, one device's, the memory model, and bit by bit.

use super::mesh::{GPUS, Workers, on_gpus};
use super::*;
use crate::llama::Case;
use crate::run::{adamw, graph, training};
use crate::slices::{SEQ1F1B, SEQ1F1B_OFFLOAD, SEQ1F1B_ZB, offloaded, outcome, written};
use pipesim::internals::mesh::Mesh;
use pipesim::internals::model::SliceOps;

/// The links within a process.
const LINKS: [&str; 3] = ["copy", "local", "nccl"];

/// Loss and gradients of the whole model on one GPU, by slices of `slices` tokens, where slices of even micro-batches are
/// recomputed, and the others go to the host.
fn by_slices(
    parameters: &Parameters,
    (inputs, targets): Batch,
    [sequences, tokens, microbatches]: [usize; 3],
    slices: &[usize],
    precision: Precision,
) -> (f32, Parameters) {
    let layers = parameters.config.spec().split(1, None).unwrap();
    let n = slices.len() as u32;
    let units: Vec<Op> = (0..microbatches as u32 * n).map(|unit| Op::of_unit(Kind::F, 0, unit, n)).collect();
    let again = |op: &Op| op.microbatch().is_multiple_of(2);
    let recomputed: Vec<Op> = units.iter().copied().filter(again).map(|op| op.of_kind(Kind::R)).collect();
    let sizes = [sequences / microbatches, tokens, microbatches];
    let ops = SliceOps { slices, recomputed: &recomputed, has_copies: true };
    let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
    let alone: Box<dyn DeviceCollective> = Box::new(AloneOnDevice);
    let stages = [(0, layers[0].clone())];
    let mut module = StageModule::on_gpu_rank(&gpu, parameters, &stages, sizes, ops, precision, alone).unwrap();
    let mut program = Vec::new();
    for &op in &units {
        program.push(op);
        program.extend((!again(&op)).then(|| op.of_kind(Kind::O)));
    }
    for op in units.iter().rev() {
        let kinds: &[Kind] = if again(op) { &[Kind::R, Kind::B] } else { &[Kind::L, Kind::I, Kind::W] };
        program.extend(kinds.iter().map(|&kind| op.of_kind(kind)));
    }
    module.reserve(program.iter().copied()).unwrap();
    let (before, mut marks) = (gpu.memory().unwrap(), EventTimer::new(&gpu));
    module.begin(inputs, targets).unwrap();
    let mut ends = BTreeMap::new();
    for &op in &program {
        if op.kind().is_compute() {
            module.run(op, None, None, &mut marks).unwrap();
            continue;
        }
        let after: Vec<_> = ends.get(&op.of_kind(Kind::O)).into_iter().cloned().collect();
        let [_, end] = module.enqueue_copy(op, &after).unwrap();
        if op.kind() == Kind::L {
            gpu.compute.wait(&end).unwrap();
        }
        ends.insert(op, end);
    }
    let losses = module.losses().unwrap();
    assert!(on_gpu() || gpu.memory().unwrap() == before, "a step allocates nothing");
    assert_eq!(module.held_bytes(), 0, "all that was kept has been used");
    let mut gradients = Parameters::zeros(&parameters.config).unwrap();
    module.export(&mut gradients, Quantity::Gradients).unwrap();
    (losses.iter().sum::<f32>() / microbatches as f32, gradients)
}

#[test]
fn gradients_by_slices_are_pytorchs() {
    child("slices::gradients_by_slices_are_pytorchs", &[("EMULATOR_PINNED_ONLY", "1")], || {
        let state = debug_state();
        let sizes = [state.batch, state.tokens, 2];
        for slices in [&[16, 16][..], &[20, 1, 8, 3]] {
            let batch = (&state.inputs[..], &state.targets[..]);
            let (loss, found) = by_slices(&checkpoint(), batch, sizes, slices, Precision::F32);
            assert!((loss - state.loss).abs() < 1e-5, "loss {loss}, PyTorch's {}", state.loss);
            for ((name, found), expected) in TENSOR_NAMES.iter().zip(&found.tensors).zip(&state.gradients) {
                let distance = relative_distance(found, expected);
                assert!(distance < 1e-5, "{slices:?}: {name} differs by {distance:e}");
            }
        }
        // grouped queries and rotary positions
        let case = Case::all().into_iter().min_by_key(|case| case.config.vocabulary).unwrap();
        let [batch, micro, seq] = case.sizes();
        let (inputs, targets) = case.tokens().batch(0, batch, seq).unwrap();
        let (_, cpu) = on_one_device(&case.parameters(), (&inputs, &targets), [batch, seq, micro]);
        for (precision, tolerance) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
            let slices = [seq / 3, seq / 2, seq - seq / 3 - seq / 2];
            let sizes = [batch, seq, micro];
            let (_, found) = by_slices(&case.parameters(), (&inputs, &targets), sizes, &slices, precision);
            for (number, (found, cpu)) in found.tensors.iter().zip(&cpu.tensors).enumerate() {
                let distance = relative_distance(found, cpu);
                assert!(distance < tolerance, "{precision:?}: tensor {number} differs by {distance:e}");
            }
        }
    });
}

#[test]
fn schedules_with_the_same_slices_train_the_same_bits_and_one_devices_losses() {
    let name = "slices::schedules_with_the_same_slices_train_the_same_bits_and_one_devices_losses";
    child(name, GPUS, || {
        let m = 2;
        let on = |p, link| on_gpus(training(m, adamw(0.95, 0.01), Some(0.5), false), p, Workers::Gpus, link, false);
        let whole = outcome(&on(1, "copy"), &graph("gpipe", 1, m, None).unwrap(), m);
        for slices in [2, 3] {
            let options = format!("slices={slices}");
            let reference = outcome(&on(1, "copy"), &written("seq1f1b", &options, 1, m), m);
            for (bits, whole) in reference.0.iter().zip(&whole.0) {
                let (loss, whole) = (f64::from_bits(*bits), f64::from_bits(*whole));
                assert!((loss - whole).abs() < 1e-5, "{slices} slices: {loss}, one device's {whole}");
            }
            let texts = ["seq1f1b", "seq1f1b-zb", SEQ1F1B, SEQ1F1B_ZB];
            for (text, link) in texts.into_iter().flat_map(|text| LINKS.map(|link| (text, link))) {
                let found = outcome(&on(2, link), &written(text, &options, 2, m), m);
                assert!((&found.0, &found.1) == (&reference.0, &reference.1), "{text} {options} over {link} differs");
            }
        }
    });
}

#[test]
fn recomputing_changes_no_bit_and_lowers_the_peak() {
    child("slices::recomputing_changes_no_bit_and_lowers_the_peak", GPUS, || {
        let (m, p) = (4, 2);
        let peak = |held: &Vec<u64>| held.iter().copied().max().unwrap() as f64;
        for link in LINKS {
            let training = on_gpus(training(m, adamw(0.95, 0.01), None, false), p, Workers::Gpus, link, false);
            let plain = outcome(&training, &graph("1f1b", p, m, None).unwrap(), m);
            let again = outcome(&training, &written("1f1b-recompute", "", p, m), m);
            assert!((&plain.0, &plain.1) == (&again.0, &again.1), "recomputing changes no bit over {link}");
            let both = outcome(&training, &written(SEQ1F1B, "slices=4", p, m), m);
            let (plain, again, both) = (peak(&plain.2), peak(&again.2), peak(&both.2));
            assert!(again < 0.65 * plain && both < 0.5 * plain, "{link}: {plain} {again} {both}");
        }
    });
}

/// Delays reveal copies and ops that do not wait for each other.
#[test]
fn offloading_changes_no_bit_and_lowers_the_peak() {
    let variables = [GPUS, &[("EMULATOR_JITTER", "7")]].concat();
    child("slices::offloading_changes_no_bit_and_lowers_the_peak", &variables, || {
        let m = 8;
        let on = |p, link| on_gpus(training(m, adamw(0.95, 0.01), None, false), p, Workers::Gpus, link, false);
        let cases = [
            ("1f1b-offload ahead=1", "1f1b", "", 4),
            ("pipeoffload", "pipeoffload offloaded=0", "", 2),
            (SEQ1F1B_OFFLOAD, "seq1f1b", "slices=4", 2),
        ];
        for (text, plain, options, p) in cases {
            let plain = offloaded(&on(p, "copy"), &written(plain, options, p, m), m);
            // over NCCL its devices would wait for one another in a circle
            let links = &LINKS[..if text == "pipeoffload" { 2 } else { 3 }];
            for link in links {
                let found = offloaded(&on(p, link), &written(text, options, p, m), m);
                assert!((&found.0, &found.1) == (&plain.0, &plain.1), "{text} on {p} devices over {link} differs");
                let (held, without) = (found.2[0], plain.2[0]);
                assert!(held < without, "{text}, {link}: device 0 holds {held} bytes, without copies {without}");
            }
        }
    });
}

#[test]
fn tensor_ranks_and_replicas_run_slices_and_recompute() {
    child("slices::tensor_ranks_and_replicas_run_slices_and_recompute", GPUS, || {
        let m = 2;
        for (tensor, data, shares_rows) in [(2, 1, true), (2, 2, false)] {
            let mut training = training(1, adamw(0.95, 0.0), None, false);
            training.training_config.mesh = Mesh { sequence_parallel: shares_rows, ..Mesh::new(tensor, data) };
            training.micro_batch.sequences = 8 / (m * data) as usize;
            let training = on_gpus(training, 2, Workers::Gpus, "copy", false);
            let whole = outcome(&training, &graph("1f1b", 2, m, None).unwrap(), m).0;
            let found = outcome(&training, &written(SEQ1F1B, "slices=2", 2, m), m).0;
            for (found, whole) in found.iter().zip(&whole).map(|(a, b)| (f64::from_bits(*a), f64::from_bits(*b))) {
                assert!((found - whole).abs() < 1e-5, "{tensor} x {data}: {found}, whole {whole}");
            }
        }
    });
}
