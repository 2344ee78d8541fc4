//! Pipelines of several workers per device: against PyTorch's losses, against one device's gradients, and bit by bit.

use crate::llama::Case;
use crate::pipeline::on_one_device;
use crate::run::{adamw, graph, losses, schedules, train, training};
use crate::support::{Dice, golden_losses, golden_settings, numbers};
use pipesim::Delivery;
use pipesim::internals::compute::Collective;
use pipesim::internals::exec::{Settings, Shared, Sizes, TensorGroup};
use pipesim::internals::experiment::{Training, most_saved, state_bytes};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::mesh::{Coordinate, Mesh};
use pipesim::internals::model::{Cpu, Parameters, Quantity, StageModule};
use pipesim::internals::ranks::Ranks;
use pipesim::internals::schedule::Schedule;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The training on `mesh`, each replica with `m` micro-batches of the same step.
pub fn on_mesh(mut training: Training, mesh: Mesh, m: u32, sequences: usize) -> Training {
    training.training_config.mesh = mesh;
    training.micro_batch.sequences = sequences / (m * mesh.data) as usize;
    training
}

/// The mesh as it is, and with all that its workers can share.
pub fn variants(mesh: Mesh) -> Vec<Mesh> {
    let shared = Mesh { sequence_parallel: mesh.tensor > 1, zero: mesh.data > 1, ..mesh };
    [mesh, shared].into_iter().take(if shared == mesh { 1 } else { 2 }).collect()
}

/// The mesh with everything shared, even where nobody has the same parameters.
pub fn shared(tensor: u32, data: u32) -> Mesh {
    Mesh { sequence_parallel: tensor > 1, zero: true, ..Mesh::new(tensor, data) }
}

/// Whether `schedule` accumulates micro-batches in order: two directions accumulate each their own, looped BFS in reverse.
pub fn is_in_order(schedule: &Schedule) -> bool {
    schedule.name != "looped-bfs" && schedule.placement.directions() == 1
}

#[track_caller]
pub fn assert_losses(ours: &[f64], theirs: &[f64], what: &str) {
    for (step, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert!((ours - theirs).abs() < 1e-4, "{what}, step {step}: {ours}, PyTorch {theirs}");
    }
}

/// The values of every worker, by worker, as bits.
pub fn values_by_worker(
    training: &Training,
    graph: &TaskGraph,
    session: &mut pipesim::internals::exec::Session,
) -> Vec<Vec<u32>> {
    let world = training.mesh().world(graph.schedule().devices());
    let zeros = || Mutex::new(Parameters::zeros(training.config()).unwrap());
    let held: Arc<Vec<Mutex<Parameters>>> = Arc::new((0..world).map(|_| zeros()).collect());
    let into = held.clone();
    let export = move |worker: u32, state: &mut dyn pipesim::training::State| {
        state.export(&mut into[worker as usize].lock().unwrap(), Quantity::Values)
    };
    session.call(export).unwrap();
    let bits = |all: &Mutex<Parameters>| all.lock().unwrap().tensors.iter().flatten().map(|x| x.to_bits()).collect();
    held.iter().map(bits).collect()
}

/// Ten steps of the golden model on `mesh` under each of `graphs`.
fn check_losses(mesh: Mesh, m: u32, setting: usize, graphs: &[Arc<TaskGraph>]) {
    let (key, adamw, clip) = golden_settings()[setting];
    let of_setting = training(1, adamw, clip.map(|clip| clip as f32), !key.starts_with('C'));
    let training = on_mesh(of_setting, mesh, m, 8);
    for graph in graphs {
        let ours = losses(&train(&training, &mut training.session(graph).unwrap(), m, 10));
        let (schedule, p) = (&graph.schedule().name, graph.schedule().devices());
        assert_losses(&ours, &golden_losses(key), &format!("{key} {schedule} p={p} m={m} {mesh}"));
    }
}

#[test]
fn replicas_train_to_pytorchs_losses_under_every_schedule() {
    let graphs: Vec<_> = [2, 4].into_iter().flat_map(|p| schedules(p, 4)).collect();
    assert!(graphs.len() >= 15);
    check_losses(Mesh::new(1, 2), 4, 1, &graphs);
    check_losses(shared(1, 2), 4, 1, &schedules(2, 4));
}

#[test]
fn tensor_ranks_train_to_pytorchs_losses_under_every_schedule() {
    check_losses(Mesh::new(2, 1), 4, 1, &schedules(2, 4));
    check_losses(shared(2, 1), 4, 2, &schedules(2, 4));
}

/// Every mesh of up to eight workers, under a schedule with full backwards or one with split ones.
#[test]
fn every_mesh_trains_to_pytorchs_losses() {
    for (number, (tensor, data, p)) in meshes().into_iter().enumerate() {
        let graphs: Vec<_> = ["1f1b", "zb-h1"].iter().filter_map(|name| graph(name, p, 2, None)).collect();
        for (variant, mesh) in variants(Mesh::new(tensor, data)).into_iter().enumerate() {
            check_losses(mesh, 2, (number + variant) % 3, &graphs[(number + variant) % graphs.len()..][..1]);
        }
    }
}

/// T, D and p of every mesh of up to eight workers, but for a single replica and rank.
fn meshes() -> Vec<(u32, u32, u32)> {
    let mut all = Vec::new();
    for tensor in [1, 2, 4] {
        for data in [1, 2, 4] {
            all.extend([1, 2, 4].map(|p| (tensor, data, p)));
        }
    }
    all.retain(|&(tensor, data, p)| tensor * data > 1 && tensor * data * p <= 8);
    all
}

#[test]
fn llama_trains_to_pytorchs_losses_on_every_mesh() {
    let mut count = 0;
    for case in Case::all() {
        let [batch, _, _] = case.sizes();
        let settings = case.expected["settings"].as_object().unwrap();
        for (number, (tensor, data, p)) in meshes().into_iter().enumerate() {
            let fits = case.config.check_tensor_ranks(tensor as usize).is_ok() && batch.is_multiple_of(data as usize);
            if !fits || p > case.config.layers as u32 {
                continue;
            }
            let setting = settings.keys().nth(number % settings.len()).unwrap();
            let graph = graph("1f1b", p, 1, None).unwrap();
            for mesh in variants(Mesh::new(tensor, data)) {
                let training = on_mesh(case.training(setting, 1), mesh, 1, batch);
                let ours = losses(&train(&training, &mut training.session(&graph).unwrap(), 1, 10));
                let what = format!("{} {setting} p={p} {mesh}", case.name);
                assert_losses(&ours, &numbers(&case.expected[setting]), &what);
                count += 1;
            }
        }
    }
    assert!(count >= 12, "only {count} runs");
}

/// What every replica holds after three steps, by schedule.
#[test]
fn every_schedule_gives_all_replicas_the_same_bits() {
    let cases = [
        (None, Mesh::new(1, 2), 4),
        (Some(0.5), Mesh::new(1, 4), 2),
        (Some(0.5), Mesh::new(2, 2), 2),
        (Some(0.5), shared(2, 2), 2),
        (Some(0.5), shared(1, 4), 2),
    ];
    for (clip, mesh, m) in cases {
        let training = on_mesh(training(1, adamw(0.95, 0.01), clip, false), mesh, m, 8);
        let mut reference: Option<(Vec<u64>, Vec<u32>)> = None;
        for graph in [1, 2].into_iter().flat_map(|p| schedules(p, m)) {
            let what = format!("{} p={} {mesh} clip {clip:?}", graph.schedule().name, graph.schedule().devices());
            let mut session = training.session(&graph).unwrap();
            let losses: Vec<u64> =
                losses(&train(&training, &mut session, m, 3)).into_iter().map(f64::to_bits).collect();
            let held = values_by_worker(&training, &graph, &mut session);
            let mut by_replica: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for (worker, values) in held.into_iter().enumerate() {
                let all =
                    by_replica.entry(mesh.coordinate(worker as u32).data).or_insert_with(|| vec![0; values.len()]);
                all.iter_mut().zip(values).filter(|(_, value)| *value != 0).for_each(|(all, value)| *all = value);
            }
            let values = by_replica.remove(&0).unwrap();
            assert!(by_replica.values().all(|other| *other == values), "{what}: replicas differ");
            if is_in_order(graph.schedule()) {
                let reference = reference.get_or_insert_with(|| (losses.clone(), values.clone()));
                assert!(*reference == (losses, values), "{what}: differs from the first schedule");
            }
        }
    }
}

/// After one step of AdamW, the first moment is a tenth of the gradient.
#[test]
fn gradients_on_a_mesh_are_one_devices() {
    let cases = [
        ("1f1b", 2, Mesh::new(1, 2), 2),
        ("zb-v", 2, Mesh::new(2, 2), 2),
        ("dualpipe", 2, Mesh::new(2, 2), 4),
        ("1f1b", 4, Mesh::new(1, 4), 2),
        ("1f1b", 4, Mesh::new(2, 1), 2),
        ("gpipe", 1, Mesh::new(4, 2), 2),
        ("1f1b", 2, shared(1, 2), 2),
        ("interleaved-1f1b", 2, shared(1, 2), 2),
        ("zb-v", 2, shared(2, 2), 2),
        ("dualpipe", 2, shared(2, 2), 4),
        ("dualpipe", 2, shared(1, 1), 4),
        ("1f1b", 4, shared(2, 1), 2),
        ("gpipe", 1, shared(4, 2), 2),
    ];
    for (name, p, mesh, m) in cases {
        let single = training(1, adamw(0.95, 0.01), None, false);
        let batch = single.batch(0, 1).unwrap();
        let (loss, expected) = on_one_device(&single.parameters, (&batch.inputs, &batch.targets), [8, 32, 8]);

        let training = on_mesh(single, mesh, m, 8);
        let chunks = (name == "interleaved-1f1b").then_some(2);
        let mut session = training.session(&graph(name, p, m, chunks).unwrap()).unwrap();
        let record = session.step(&training.batch(0, m).unwrap(), Some(training.update(0))).unwrap();
        assert!((record.loss.unwrap() - f64::from(loss)).abs() < 1e-5, "{name}: {:?}, one device {loss}", record.loss);
        let found = Arc::new(Mutex::new(Parameters::zeros(training.config()).unwrap()));
        let into = found.clone();
        session.call(move |_, state| state.export(&mut into.lock().unwrap(), Quantity::FirstMoments)).unwrap();
        let found = found.lock().unwrap();
        for (number, (found, expected)) in found.tensors.iter().zip(&expected.tensors).enumerate() {
            let largest = found.iter().zip(expected).map(|(a, b)| (10.0 * a - b).abs()).fold(0.0, f32::max);
            assert!(largest < 1e-4, "{name} p={p} {mesh}, tensor {number}: off by {largest}");
        }
    }
}

/// Without clipping, a replica that updates a slice computes what it would have computed of everything; with it, the norm is summed in
/// another order.
#[test]
fn sharing_the_optimizer_changes_no_bit() {
    for (name, tensor, data) in [("1f1b", 1, 2), ("zb-v", 2, 2), ("dualpipe", 1, 1), ("interleaved-1f1b", 1, 4)] {
        let graph =
            graph(name, 2, 2 * if name == "dualpipe" { 2 } else { 1 }, (name == "interleaved-1f1b").then_some(2));
        let graph = graph.unwrap();
        let m = graph.schedule().microbatches;
        let [plain, zero] = [false, true].map(|zero| {
            let mesh = Mesh { zero, ..Mesh::new(tensor, data) };
            let training = on_mesh(training(1, adamw(0.95, 0.01), None, false), mesh, m, 8);
            let mut session = training.session(&graph).unwrap();
            let losses: Vec<u64> =
                losses(&train(&training, &mut session, m, 3)).into_iter().map(f64::to_bits).collect();
            (losses, values_by_worker(&training, &graph, &mut session))
        });
        assert!(plain == zero, "{name}");
    }
}

#[test]
fn workers_hold_what_the_memory_model_says() {
    let meshes =
        [Mesh::new(1, 2), Mesh::new(2, 1), Mesh::new(4, 2), shared(1, 2), shared(1, 4), shared(2, 1), shared(4, 2)];
    let runs = meshes.into_iter().flat_map(|mesh| [("1f1b", mesh), ("zb-v", mesh)]).chain([("dualpipe", shared(2, 1))]);
    let mut states = BTreeMap::new();
    for (name, mesh) in runs {
        let (p, m) = (2, if mesh.data > 2 { 2 } else { 4 });
        let training = on_mesh(training(1, adamw(0.95, 0.0), None, false), mesh, m, 8);
        let graph = graph(name, p, m, None).unwrap();
        let stages = training.stages(&graph).unwrap();
        let mut session = training.session(&graph).unwrap();
        train(&training, &mut session, m, 1);
        let held = Arc::new(Mutex::new(BTreeMap::new()));
        let into = held.clone();
        session
            .call(move |worker, state| {
                let peak = state.peak_held_bytes() as u64;
                let module = state.as_any().unwrap().downcast_mut::<StageModule<Cpu>>().unwrap();
                into.lock().unwrap().insert(worker, (peak, module.state_bytes() as u64));
                Ok(())
            })
            .unwrap();
        let predicted: BTreeMap<u32, (u64, u64)> = (0..mesh.world(p))
            .map(|worker| {
                let peak = most_saved(&training, &graph, mesh.device(worker), &stages).unwrap();
                (worker, (peak, state_bytes(&training, &graph, worker, &stages)))
            })
            .collect();
        assert_eq!(*held.lock().unwrap(), predicted, "{name} {mesh}");
        states.insert((name, mesh.tensor, mesh.data, mesh.zero), predicted);
    }
    // Of 16 bytes per parameter, 8 are moments: a half of them is left with two replicas, a quarter with four.
    let largest = |name, data, zero| states[&(name, 4, data, zero)].values().map(|&(_, bytes)| bytes).max().unwrap();
    let ratio = largest("1f1b", 2, true) as f64 / largest("1f1b", 2, false) as f64;
    assert!((0.74..0.77).contains(&ratio), "{ratio}");
    let peaks = |zero| states[&("1f1b", 4, 2, zero)].values().map(|&(peak, _)| peak).max().unwrap();
    assert!(peaks(true) < peaks(false), "ranks that share rows hold fewer");
}

/// A group's memory, without a model.
fn group(size: u32) -> Vec<TensorGroup> {
    let graph = graph("1f1b", 1, 1, None).unwrap();
    let settings = Settings {
        pin: false,
        spin: Duration::from_micros(5),
        timeout: Duration::from_secs(20),
        delivery: Delivery::OneSided,
        mesh: Mesh::new(size, 1),
    };
    let shared = Arc::new(Shared::new(graph, &Sizes::default(), &settings, Ranks::alone()).unwrap());
    (0..size).map(|worker| TensorGroup::new(worker, &shared)).collect()
}

/// Calls `work` for each member on a thread of its own; returns what they return.
fn together<T: Send>(members: Vec<TensorGroup>, work: impl Fn(&mut TensorGroup) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |mut member: TensorGroup| scope.spawn(move || work(&mut member));
        let threads: Vec<_> = members.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn data(rank: usize, call: usize, length: usize) -> Vec<f32> {
    let mut dice = Dice((rank * 1000 + call) as u64);
    (0..length).map(|_| dice.below(1 << 20) as f32 / 1024.0 - 300.0).collect()
}

/// Members that come late in turn, at random, get sums in the order of members, whatever the length.
#[test]
fn collective_calls_sum_in_the_order_of_members() {
    let lengths = [1, 7, 64, 1000, 65_536, 65_537, 200_001, 0];
    for size in [2, 3, 4] {
        let found = together(group(size), |member| {
            let (size, rank) = (member.size(), member.rank());
            let mut dice = Dice(77 + rank as u64);
            let mut all = Vec::new();
            for (call, length) in lengths.iter().cycle().take(64).copied().enumerate() {
                if dice.below(4) == 0 {
                    std::thread::sleep(Duration::from_micros(dice.below(500) as u64));
                }
                let own = data(rank, call, length * if call % 4 == 2 { size } else { 1 });
                let mut sum = own.clone();
                match call % 4 {
                    0 => member.all_reduce(&mut sum).unwrap(),
                    1 => member.all_reduce_max(&mut sum).unwrap(),
                    2 => {
                        sum = vec![0.0; length];
                        member.reduce_scatter(&own, &mut sum).unwrap();
                    }
                    _ => {
                        sum = vec![0.0; length * size];
                        member.all_gather(&own, &mut sum).unwrap();
                    }
                }
                all.push(sum);
            }
            all
        });
        for (call, length) in lengths.iter().cycle().take(64).copied().enumerate() {
            let ranks = 0..size as usize;
            let parts: Vec<Vec<f32>> = ranks
                .clone()
                .map(|rank| data(rank, call, length * if call % 4 == 2 { size as usize } else { 1 }))
                .collect();
            let fold = |join: fn(f32, f32) -> f32| -> Vec<f32> {
                (0..parts[0].len()).map(|i| parts.iter().map(|part| part[i]).reduce(join).unwrap()).collect()
            };
            for rank in ranks {
                let expected = match call % 4 {
                    0 => fold(|a, b| a + b),
                    1 => fold(f32::max),
                    2 => fold(|a, b| a + b)[rank * length..(rank + 1) * length].to_vec(),
                    _ => parts.concat(),
                };
                assert!(found[rank][call] == expected, "call {call} of length {length} on member {rank} of {size}");
            }
        }
    }
}

/// All interleavings of `members` that pass `pieces` pieces through `slots` slots each, as `exec::collective` does: a member writes
/// its slot, raises its signal, waits for each other's signal, and reads each other's slot. Returns whether every read finds the
/// piece that it is for, and whether all members end.
fn every_interleaving_is_sound(members: usize, pieces: usize, slots: usize) -> bool {
    let steps = 2 + 2 * (members - 1);
    let end = pieces * steps;
    // By member: its step. Contents of slots and signals follow from it.
    let written = |step: usize, slot: usize| {
        let begun = step / steps + usize::from(!step.is_multiple_of(steps));
        (0..begun).rev().find(|piece| piece % slots == slot)
    };
    let signal = |step: usize| step / steps + usize::from(step % steps > 1);
    let (mut seen, mut open) = (std::collections::BTreeSet::new(), vec![vec![0; members]]);
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let mut moves = 0;
        for (member, &step) in state.iter().enumerate().filter(|(_, step)| **step < end) {
            let (piece, within) = (step / steps, step % steps);
            let other = |number: usize| (member + 1 + number) % members;
            if (2..members + 1).contains(&within) && signal(state[other(within - 2)]) <= piece {
                continue; // it waits
            }
            if within > members && written(state[other(within - members - 1)], piece % slots) != Some(piece) {
                return false;
            }
            let mut next = state.clone();
            next[member] += 1;
            open.push(next);
            moves += 1;
        }
        if moves == 0 && state.iter().any(|&step| step < end) {
            return false;
        }
    }
    true
}

#[test]
fn two_slots_and_one_signal_are_enough_for_collective_calls() {
    for members in 2..=4 {
        assert!(every_interleaving_is_sound(members, 4, 2), "{members} members");
        assert!(!every_interleaving_is_sound(members, 4, 1), "one slot would be overwritten");
    }
}

#[test]
fn workers_are_in_megatrons_order() {
    let mesh = Mesh::new(2, 3);
    let mut number = 0;
    for device in 0..4 {
        for data in 0..3 {
            for tensor in 0..2 {
                let at = Coordinate { device, data, tensor };
                assert_eq!(mesh.worker(at), number);
                assert_eq!(mesh.coordinate(number), at);
                assert_eq!(mesh.worker_of(mesh.device(number), mesh.copy(number)), number);
                assert_eq!((mesh.replica_of(mesh.copy(number)), mesh.tensor_of(mesh.copy(number))), (data, tensor));
                assert!(mesh.tensor_group(number).contains(&number));
                number += 1;
            }
        }
    }
    assert_eq!(mesh.world(4), number);
    assert_eq!(mesh.tensor_group(9), 8..10);
}

#[test]
fn a_mesh_is_named_without_the_degrees_that_it_lacks() {
    let mesh = Mesh::new(2, 2);
    assert_eq!(mesh.in_words(2), "2 stages x 2 replicas x 2 tensor ranks = 8 workers");
    assert_eq!(Mesh::new(1, 2).in_words(1), "1 stage x 2 replicas = 2 workers");
    assert_eq!(mesh.name(5), "device 1, replica 0, tensor rank 1");
    assert_eq!(Mesh::default().name(5), "device 5");
}
