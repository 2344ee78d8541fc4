//! Validation: forwards alone, counted, with the bits of a training step.

use crate::llama::Case;
use crate::mesh::{on_mesh, shared};
use crate::run::{graph, schedules, values};
use crate::slices::{SEQ1F1B, SEQ1F1B_OFFLOAD, SEQ1F1B_ZB, written};
use crate::support::{Dice, random_rows, valid_schedule};
use pipesim::Placement;
use pipesim::internals::exec::{DeviceRecord, Session, StepRecord};
use pipesim::internals::experiment::{Training, TrainingConfig};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::mesh::Mesh;
use pipesim::internals::op::{Kind, Op};
use pipesim::internals::ranks::Ranks;
use std::sync::{Arc, Mutex};

/// The records of all workers of a step.
fn workers(record: &StepRecord) -> Vec<&Vec<DeviceRecord>> {
    let others = record.copies.iter().flat_map(|copies| copies.others.iter().map(|(_, devices)| devices));
    [&record.devices].into_iter().chain(others).collect()
}

/// What ops held on each worker in the last step.
fn held(session: &mut Session) -> Vec<(u32, Vec<(Op, i64)>)> {
    let all: Arc<Mutex<Vec<_>>> = Arc::default();
    let into = all.clone();
    let note = move |worker, state: &mut dyn pipesim::training::State| {
        into.lock().unwrap().push((worker, state.held_changes()));
        Ok(())
    };
    session.call(note).unwrap();
    let mut all = std::mem::take(&mut *all.lock().unwrap());
    all.sort();
    all
}

/// Trains two steps with validations between them, by forwards and by whole steps: the same losses and parameters, bit by bit. A
/// validation runs each forward of the schedule once, in the order of its device, and no other op.
fn check(training: &Training, graph: &Arc<TaskGraph>, m: u32, what: &str) {
    let [mut forwards, mut whole] = [(); 2].map(|()| training.session(graph).unwrap());
    let held_out = training.batch(7, m).unwrap();
    let schedule = graph.schedule();
    for step in 0..2 {
        let before = held(&mut forwards);
        for _ in 0..=step {
            let record = forwards.evaluate(&held_out).unwrap();
            let expected = whole.step(&held_out, None).unwrap().loss.unwrap();
            assert_eq!(record.loss.unwrap().to_bits(), expected.to_bits(), "{what} after {step} steps");
            for devices in workers(&record) {
                for (device, record) in devices.iter().enumerate() {
                    let ran: Vec<Op> = record.ops.iter().map(|op| graph.op(op.index).alone()).collect();
                    let program = schedule.program(device as u32).iter().map(|op| op.alone());
                    assert_eq!(ran, program.filter(|op| op.kind() == Kind::F).collect::<Vec<Op>>(), "{what}");
                    assert!(
                        record.timings.iter().all(|(_, timing)| timing.kind == Kind::F),
                        "{what}: parts of forwards alone"
                    );
                    assert!(record.steps.is_empty() && record.host_copies.is_empty(), "{what}: nothing after forwards");
                }
            }
        }
        assert_eq!(held(&mut forwards), before, "{what}: nothing is held for backwards");
        let (batch, update) = (training.batch(step, m).unwrap(), Some(training.update(step)));
        let [ours, theirs] = [&mut forwards, &mut whole].map(|session| session.step(&batch, update).unwrap());
        assert_eq!(ours.loss.unwrap().to_bits(), theirs.loss.unwrap().to_bits(), "{what}: step {step}");
    }
    assert!(values(training, &mut forwards) == values(training, &mut whole), "{what}: parameters");
}

/// A GPT-2 of next to nothing, with this many blocks, trained on sequences of `tokens` tokens.
fn tiny(blocks: u32, tokens: usize, mesh: Mesh, m: u32) -> Training {
    let config = TrainingConfig {
        blocks: Some(blocks as usize),
        heads: Some(2),
        channels: Some(4),
        max_sequence: Some(8),
        sequence_tokens: Some(tokens),
        mesh,
        ..TrainingConfig::default()
    };
    config.training(m, &Ranks::alone()).unwrap()
}

#[test]
fn validation_is_forwards_with_the_bits_of_a_step_under_every_schedule() {
    let m = 4;
    let training = tiny(4, 8, Mesh::default(), m);
    for graph in [2, 4].into_iter().flat_map(|p| schedules(p, m)) {
        check(&training, &graph, m, &graph.schedule().name);
    }
    let texts = ["seq1f1b", "seq1f1b-zb", "terapipe", SEQ1F1B, SEQ1F1B_ZB, SEQ1F1B_OFFLOAD];
    for text in texts {
        check(&training, &written(text, "slices=3", 2, m), m, text);
    }
    check(&training, &written("pipeoffload", "offloaded=0", 2, m), m, "pipeoffload");
}

#[test]
fn validation_is_forwards_with_the_bits_of_a_step_on_every_mesh() {
    for mesh in [Mesh::new(1, 2), Mesh::new(2, 1), Mesh::new(2, 2), shared(2, 2), shared(1, 2)] {
        for (name, options, p) in [("zb-v", "", 2), ("dualpipe", "", 2), ("seq1f1b", "slices=2", 2)] {
            let graph = written(name, options, p, 4);
            check(&tiny(4, 8, mesh, 4), &graph, 4, &format!("{name} {mesh}"));
        }
        for case in Case::all() {
            let [batch, _, _] = case.sizes();
            let fits = case.config.check_tensor_ranks(mesh.tensor as usize).is_ok();
            if fits && batch.is_multiple_of(mesh.data as usize) {
                let setting = case.expected["settings"].as_object().unwrap().keys().next().unwrap().clone();
                let training = on_mesh(case.training(&setting, 1), mesh, 1, batch);
                let p = case.config.layers.min(2) as u32;
                check(&training, &graph("1f1b", p, 1, None).unwrap(), 1, &format!("Llama {} {mesh}", case.name));
            }
        }
    }
}

#[test]
fn validation_is_forwards_with_the_bits_of_a_step_under_random_schedules() {
    let mut dice = Dice(5);
    for case in 0..200 {
        let p = 1 + dice.below(3) as u32;
        let placement = match dice.below(5) {
            0 => Placement::linear(p),
            1 => Placement::looped("loop", p, 2),
            2 => Placement::zigzag("V", p, 2),
            3 => Placement::bidirectional(2, 1).unwrap(),
            _ => {
                let mut order: Vec<u32> = (0..2 * p).map(|place| place % p).collect();
                (1..order.len()).for_each(|i| order.swap(i, dice.below(i + 1)));
                Placement::new("any", p, order).unwrap()
            }
        };
        let m = 1 + dice.below(5) as u32;
        let split: Vec<bool> = (0..placement.stages()).map(|_| dice.below(2) == 0).collect();
        let (pairs, splits) = (dice.below(2) == 0, |stage: u32, _: u32| split[stage as usize]);
        let rows = random_rows(&placement, m, (u32::MAX, pairs), splits, &mut |n| dice.below(n)).unwrap();
        let graph = Arc::new(TaskGraph::new(valid_schedule(&placement, m, &rows)).unwrap());
        let mesh = [Mesh::default(), Mesh::default(), Mesh::new(2, 1), Mesh::new(1, 2)][dice.below(4)];
        let training = tiny(placement.stages(), 2 + dice.below(4), mesh, m);
        check(&training, &graph, m, &format!("case {case}, {mesh}"));
    }
}
