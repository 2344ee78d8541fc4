//! Collective calls of GPUs, and meshes of them: losses and gradients against PyTorch's and one device's, bits across schedules.
//!
//! With a GPU each, groups call NCCL; slices of one GPU, which NCCL rejects, copy.

use super::{child, driver};
use crate::llama::Case;
use crate::mesh::{assert_losses, is_in_order, on_mesh, shared, values_by_worker, variants};
use crate::pipeline::on_one_device;
use crate::run::{adamw, graph, losses, train, training};
use crate::support::{golden_losses, golden_settings, numbers, on_gpu, skipped_on_gpu};
use pipesim::Delivery;
use pipesim::internals::compute::cuda::Cuda;
use pipesim::internals::exec::Gpus;
use pipesim::internals::exec::link::{LINKS, Transport};
use pipesim::internals::experiment::{Backend, Devices, Training, most_saved, state_bytes};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::mesh::Mesh;
use pipesim::internals::model::{Parameters, Quantity, StageModule};
use pipesim_gpu::nccl::{Join, Nccl, Numbers};
use pipesim_gpu::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How the workers of a mesh are GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Workers {
    /// A GPU each.
    Gpus,
    /// Slices of one GPU.
    Slices,
}

/// With as many hardware queues, and blocks of NCCL, as the program asks for.
pub(super) const GPUS: &[(&str, &str)] = &[
    ("EMULATOR_DEVICES", "8"),
    ("EMULATOR_PINNED_ONLY", "1"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("NCCL_MAX_CTAS", "8"),
];
const SLICES: &[(&str, &str)] = &[("EMULATOR_DEVICES", "1"), ("EMULATOR_MULTIPROCESSORS", "64")];

/// `training`, which has a mesh, with `p` pipeline devices of GPUs over `link`.
pub(super) fn on_gpus(training: Training, p: u32, workers: Workers, link: &str, bfloat16: bool) -> Training {
    let world = training.mesh().world(p);
    let slices = (workers == Workers::Slices).then_some(world);
    let gpus = Gpus::open(&training.ranks, world, slices, bfloat16).unwrap();
    let link = LINKS.iter().find(|kind| kind.name == link).unwrap();
    let delivery = link.delivery(true, &training.ranks, Delivery::OneSided).unwrap();
    Training { backend: Backend { devices: Devices::Cuda(gpus), transport: Transport { link, delivery } }, ..training }
}

/// The first steps' losses and the first gradient on `mesh` under `graph`, against PyTorch's and one CPU's.
fn check(mesh: Mesh, graph: &Arc<TaskGraph>, workers: Workers, link: &str, setting: usize) {
    let (m, p) = (graph.schedule().microbatches, graph.schedule().devices());
    let (key, adamw, clip) = golden_settings()[setting];
    let single = training(1, adamw, clip.map(|clip| clip as f32), !key.starts_with('C'));
    let batch = single.batch(0, 1).unwrap();
    let (_, expected) = on_one_device(&single.parameters, (&batch.inputs, &batch.targets), [8, 32, 8]);
    let training = on_gpus(on_mesh(single, mesh, m, 8), p, workers, link, false);
    let what = format!("{workers:?} {link} {mesh} p={p} {}", graph.schedule().name);
    let mut session = training.session(graph).unwrap();
    let first = session.step(&training.batch(0, m).unwrap(), Some(training.update(0))).unwrap();
    // After one step of AdamW, the first moment is a tenth of the gradient, which may be clipped.
    let found = Arc::new(Mutex::new(Parameters::zeros(training.config()).unwrap()));
    let into = found.clone();
    session.call(move |_, state| state.export(&mut into.lock().unwrap(), Quantity::FirstMoments)).unwrap();
    let norm = expected.tensors.iter().flatten().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let scale = clip.map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0)) as f32;
    for (number, (found, expected)) in found.lock().unwrap().tensors.iter().zip(&expected.tensors).enumerate() {
        let largest = found.iter().zip(expected).map(|(a, b)| (10.0 * a - scale * b).abs()).fold(0.0, f32::max);
        assert!(largest < 1e-4, "{what}: tensor {number} is off by {largest}");
    }
    let second = session.step(&training.batch(1, m).unwrap(), Some(training.update(1))).unwrap();
    assert_losses(&losses(&[first, second]), &golden_losses(key)[..2], &what);
}

/// T, D and p of at most two each.
fn meshes() -> impl Iterator<Item = (Mesh, u32)> {
    let of = |(tensor, data)| [1, 2].map(|p| (Mesh::new(tensor, data), p));
    [(1, 2), (2, 1), (2, 2)].into_iter().flat_map(of)
}

#[test]
fn gpus_with_nccl_train_to_pytorchs_losses_on_every_mesh() {
    child("mesh::gpus_with_nccl_train_to_pytorchs_losses_on_every_mesh", GPUS, || {
        if on_gpu() && driver().devices() < 8 {
            return;
        }
        for (number, (mesh, p)) in meshes().enumerate() {
            // without sharing here on two stages, by copies on one
            for mesh in variants(mesh).into_iter().filter(|other| p == 2 || *other != mesh) {
                check(mesh, &graph("1f1b", p, 2, None).unwrap(), Workers::Gpus, "copy", number % 3);
            }
        }
    });
}

/// The link by NCCL has communicators of its own; a bidirectional pipeline sums gradients over its directions and replicas.
#[test]
fn links_and_both_directions_train_on_a_mesh() {
    child("mesh::links_and_both_directions_train_on_a_mesh", GPUS, || {
        if skipped_on_gpu("eight GPUs") {
            return;
        }
        check(Mesh::new(2, 2), &graph("1f1b", 2, 2, None).unwrap(), Workers::Gpus, "nccl", 0);
        check(Mesh::new(2, 1), &graph("zb-h1", 2, 2, None).unwrap(), Workers::Gpus, "local", 1);
        for mesh in [Mesh::new(1, 2), Mesh::new(2, 1), shared(2, 1)] {
            check(mesh, &graph("dualpipe", 2, 4, None).unwrap(), Workers::Gpus, "copy", 1);
        }
    });
}

#[test]
fn slices_train_to_pytorchs_losses_on_every_mesh() {
    child("mesh::slices_train_to_pytorchs_losses_on_every_mesh", SLICES, || {
        for (number, (mesh, p)) in meshes().enumerate() {
            for mesh in variants(mesh).into_iter().filter(|other| p == 1 || *other != mesh) {
                check(mesh, &graph("zb-h1", p, 2, None).unwrap(), Workers::Slices, "copy", number % 3);
            }
        }
    });
}

/// Bits of three steps: losses, and what every replica holds.
fn outcome(training: &Training, graph: &Arc<TaskGraph>) -> (Vec<u64>, BTreeMap<u32, Vec<u32>>) {
    let (mesh, mut session) = (training.mesh(), training.session(graph).unwrap());
    let m = graph.schedule().microbatches;
    let losses = losses(&train(training, &mut session, m, 3)).into_iter().map(f64::to_bits).collect();
    let mut by_replica: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (worker, values) in values_by_worker(training, graph, &mut session).into_iter().enumerate() {
        let all = by_replica.entry(mesh.coordinate(worker as u32).data).or_insert_with(|| vec![0; values.len()]);
        all.iter_mut().zip(values).filter(|(_, value)| *value != 0).for_each(|(all, value)| *all = value);
    }
    (losses, by_replica)
}

/// Operations start late by random times, so that a missing wait shows.
#[test]
fn schedules_of_gpus_give_all_replicas_the_same_bits() {
    let variables = [GPUS, &[("EMULATOR_JITTER", "5")]].concat();
    child("mesh::schedules_of_gpus_give_all_replicas_the_same_bits", &variables, || {
        if skipped_on_gpu("operations that start late by random times; a GPU has its own times") {
            return;
        }
        let mesh = Mesh::new(2, 2);
        let training = on_mesh(training(1, adamw(0.95, 0.01), Some(0.5), false), mesh, 2, 8);
        let training = on_gpus(training, 2, Workers::Gpus, "copy", false);
        let mut reference = None;
        for name in ["1f1b", "zb-h2", "gpipe", "zb-v"] {
            let graph = graph(name, 2, 2, None).unwrap();
            let (losses, mut replicas) = outcome(&training, &graph);
            let values = replicas.remove(&0).unwrap();
            assert!(replicas.values().all(|other| *other == values), "{name}: replicas differ");
            assert!(is_in_order(graph.schedule()));
            let reference = reference.get_or_insert_with(|| (losses.clone(), values.clone()));
            assert!(*reference == (losses, values), "{name} differs from 1f1b");
        }
    });
}

#[test]
fn llama_trains_to_pytorchs_losses_on_gpus() {
    child("mesh::llama_trains_to_pytorchs_losses_on_gpus", GPUS, || {
        if on_gpu() && driver().devices() < 4 {
            return;
        }
        let mut count = 0;
        for case in Case::all() {
            let [batch, _, _] = case.sizes();
            for (tensor, data) in [(2, 1), (4, 1), (2, 2)] {
                let fits = case.config.check_tensor_ranks(tensor).is_ok() && batch.is_multiple_of(data);
                if !fits || case.config.vocabulary > 1 << 16 {
                    continue;
                }
                let setting = &case.settings()[count % case.settings().len()];
                for mesh in variants(Mesh::new(tensor as u32, data as u32)) {
                    let training = on_mesh(case.training(setting, 1), mesh, 1, batch);
                    let training = on_gpus(training, 1, Workers::Gpus, "copy", false);
                    let graph = graph("1f1b", 1, 1, None).unwrap();
                    let ours = losses(&train(&training, &mut training.session(&graph).unwrap(), 1, 2));
                    assert_losses(&ours, &numbers(&case.expected[setting])[..2], &format!("{} {mesh}", case.name));
                    count += 1;
                }
            }
        }
        assert!(count >= 6, "only {count} runs");
    });
}

/// What replicas share is exported whole: a CPU without a mesh goes on from it, and without clipping replicas that share the
/// optimizer have the bits of replicas that do not.
#[test]
fn shared_moments_are_whole_in_checkpoints() {
    child("mesh::shared_moments_are_whole_in_checkpoints", SLICES, || {
        let (key, adamw, _) = golden_settings()[0];
        let single = || training(1, adamw, None, !key.starts_with('C'));
        let run = |mesh| {
            let (mut all, graph) = (Vec::new(), graph("1f1b", 1, 2, None).unwrap());
            let training = on_gpus(on_mesh(single(), mesh, 2, 8), 1, Workers::Slices, "copy", false);
            let mut session = training.session(&graph).unwrap();
            train(&training, &mut session, 2, 2);
            for what in [Quantity::Values, Quantity::FirstMoments, Quantity::SecondMoments] {
                let found = Arc::new(Mutex::new(Parameters::zeros(training.config()).unwrap()));
                let into = found.clone();
                session.call(move |_, state| state.export(&mut into.lock().unwrap(), what)).unwrap();
                all.push((
                    what,
                    std::mem::replace(&mut *found.lock().unwrap(), Parameters::zeros(training.config()).unwrap()),
                ));
            }
            all
        };
        let zero = |tensor| Mesh { zero: true, ..Mesh::new(tensor, 2) };
        let saved = run(zero(2));
        assert!(saved == run(Mesh::new(2, 2)), "another bit than without sharing");
        let (training, graph) = (single(), graph("1f1b", 1, 1, None).unwrap());
        let mut session = training.session(&graph).unwrap();
        for (what, from) in saved {
            session.call(move |_, state| state.import(&from, what)).unwrap();
        }
        let third = session.step(&training.batch(2, 1).unwrap(), Some(training.update(2))).unwrap();
        assert_losses(&losses(&[third]), &golden_losses(key)[2..3], "a CPU after two steps of GPUs");
    });
}

#[test]
fn bfloat16_stays_close_on_a_mesh() {
    child("mesh::bfloat16_stays_close_on_a_mesh", SLICES, || {
        let (key, adamw, clip) = golden_settings()[1];
        let mesh = shared(2, 2);
        let training = on_mesh(training(1, adamw, clip.map(|clip| clip as f32), true), mesh, 2, 8);
        let training = on_gpus(training, 1, Workers::Slices, "copy", true);
        let graph = graph("1f1b", 1, 2, None).unwrap();
        let ours = losses(&train(&training, &mut training.session(&graph).unwrap(), 2, 3));
        for (ours, theirs) in ours.iter().zip(golden_losses(key)) {
            assert!((ours - theirs).abs() < 2e-2, "{ours}, PyTorch {theirs}");
        }
    });
}

/// What workers keep for backward passes is what the memory model says of a rank's share.
#[test]
fn gpus_hold_what_the_memory_model_says() {
    child("mesh::gpus_hold_what_the_memory_model_says", GPUS, || {
        if on_gpu() && driver().devices() < 4 {
            return;
        }
        for mesh in [Mesh::new(2, 1), shared(2, 2)] {
            let training = on_mesh(training(1, adamw(0.95, 0.0), None, false), mesh, 4 / mesh.data, 8);
            let training = on_gpus(training, 2, Workers::Gpus, "copy", false);
            let graph = graph("1f1b", 2, 4 / mesh.data, None).unwrap();
            let stages = training.stages(&graph).unwrap();
            let mut session = training.session(&graph).unwrap();
            train(&training, &mut session, 4 / mesh.data, 1);
            let held = Arc::new(Mutex::new(BTreeMap::new()));
            let into = held.clone();
            let record = move |worker: u32, state: &mut dyn pipesim::training::State| {
                let peak = state.peak_held_bytes() as u64;
                let module = state.as_any().unwrap().downcast_mut::<StageModule<Cuda>>().unwrap();
                into.lock().unwrap().insert(worker, (peak, module.state_bytes() as u64));
                Ok(())
            };
            session.call(record).unwrap();
            let predicted: BTreeMap<u32, (u64, u64)> = (0..mesh.world(2))
                .map(|worker| {
                    let peak = most_saved(&training, &graph, mesh.device(worker), &stages).unwrap();
                    (worker, (peak, state_bytes(&training, &graph, worker, &stages)))
                })
                .collect();
            assert_eq!(*held.lock().unwrap(), predicted, "{mesh}");
        }
    });
}

/// Threads that a library starts inherit the cores of the thread that calls it.
#[test]
fn threads_that_only_enqueue_are_not_pinned() {
    child("mesh::threads_that_only_enqueue_are_not_pinned", GPUS, || {
        let cores = || core_affinity::get_core_ids().map_or(0, |cores| cores.len());
        let (all, training) = (cores(), training(1, adamw(0.95, 0.0), None, false));
        let training = on_gpus(training, 1, Workers::Gpus, "copy", false);
        let mut session = training.session(&graph("1f1b", 1, 1, None).unwrap()).unwrap();
        session
            .call(move |_, _| {
                assert_eq!(cores(), all);
                Ok(())
            })
            .unwrap();
    });
}

/// Calls `work` as each of `ranks` ranks of a communicator, a GPU each, on threads; returns what they return.
fn together<T: Send>(ranks: u32, work: impl Fn(&Gpu, &Communicator, u32) -> T + Sync) -> Vec<T> {
    let library = Nccl::open().unwrap();
    let id = library.unique_id().unwrap();
    std::thread::scope(|scope| {
        let (library, work) = (&library, &work);
        let spawn = |rank| {
            scope.spawn(move || {
                let gpu = Gpu::whole(driver(), rank).unwrap();
                let channel = Communicator::join(library, gpu.context(), rank, ranks, id).unwrap();
                work(&gpu, &channel, rank)
            })
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn upload(gpu: &Gpu, values: &[f32]) -> Buffer {
    let buffer = Buffer::new(gpu.context(), size_of_val(values)).unwrap();
    let mut pinned = Pinned::new(gpu.context(), size_of_val(values)).unwrap();
    pinned.write(0, values);
    gpu.compute.upload(buffer.address(), &pinned, 0..size_of_val(values)).unwrap();
    gpu.compute.synchronize().unwrap();
    buffer
}

fn download(gpu: &Gpu, buffer: &Buffer) -> Vec<f32> {
    let (mut values, pinned) = (vec![0.0; buffer.bytes() / 4], Pinned::new(gpu.context(), buffer.bytes()).unwrap());
    gpu.compute.download(&pinned, 0..buffer.bytes(), buffer.address()).unwrap();
    gpu.compute.synchronize().unwrap();
    pinned.read(0, &mut values);
    values
}

/// Numbers of a rank whose sums are exact in any order.
fn data(rank: u32, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((i * 7 + rank as usize * 13) % 1000) as f32 - 300.0).collect()
}

#[test]
fn collective_calls_of_nccl_do_what_it_documents() {
    child("mesh::collective_calls_of_nccl_do_what_it_documents", GPUS, || {
        let ranks = 3;
        if on_gpu() && driver().devices() < ranks {
            return;
        }
        let precision = Precision::F32;
        for length in [1, 700, 200_001] {
            let found = together(ranks, |gpu, channel, rank| {
                let numbers =
                    |buffer: &Buffer| Numbers { address: buffer.address(), count: buffer.bytes() / 4, precision };
                let (sum, most) = (upload(gpu, &data(rank, length)), upload(gpu, &data(rank, length)));
                let whole = upload(gpu, &data(rank, length * ranks as usize));
                let (share, gathered) = (upload(gpu, &data(rank, length)), upload(gpu, &vec![0.0; 3 * length]));
                channel.all_reduce(numbers(&sum), Join::Sum, &gpu.compute).unwrap();
                channel.all_reduce(numbers(&most), Join::Largest, &gpu.compute).unwrap();
                channel.all_gather(numbers(&share), gathered.address(), &gpu.compute).unwrap();
                // in place: the rank's own piece of the larger buffer
                let own = whole.address().offset(rank as usize * length * 4);
                channel.reduce_scatter(numbers(&whole), own, &gpu.compute).unwrap();
                let scattered = download(gpu, &whole)[rank as usize * length..][..length].to_vec();
                channel.check().unwrap();
                [download(gpu, &sum), download(gpu, &most), download(gpu, &gathered), scattered]
            });
            let each = |length| (0..ranks).map(|rank| data(rank, length)).collect::<Vec<_>>();
            let fold = |parts: &[Vec<f32>], join: fn(f32, f32) -> f32| -> Vec<f32> {
                (0..parts[0].len()).map(|i| parts.iter().map(|part| part[i]).reduce(join).unwrap()).collect()
            };
            let scattered = fold(&each(length * ranks as usize), |a, b| a + b);
            for (rank, [sum, most, gathered, share]) in found.into_iter().enumerate() {
                assert!(sum == fold(&each(length), |a, b| a + b) && most == fold(&each(length), f32::max));
                assert!(gathered == each(length).concat() && share == scattered[rank * length..][..length]);
            }
        }
    });
}

/// In one group a rank may send to itself, so one GPU tells whether messages by NCCL arrive.
#[test]
fn a_rank_sends_to_itself_in_a_group() {
    child("mesh::a_rank_sends_to_itself_in_a_group", GPUS, || {
        for length in [1, 200_001, 3_000_000] {
            let sent = data(0, length);
            together(1, |gpu, channel, rank| {
                let (from, into) = (upload(gpu, &sent), upload(gpu, &vec![0.0; length]));
                let message = || {
                    channel.receive(into.address(), into.bytes(), rank)?;
                    channel.send(from.address(), from.bytes(), rank)
                };
                Nccl::open().unwrap().group(message).unwrap();
                channel.stream().synchronize().unwrap();
                channel.check().unwrap();
                assert!(download(gpu, &into) == sent, "{length}");
            });
        }
    });
}

/// The stand-in ends the process where ranks call in different orders, or with different counts or operations.
#[test]
fn ranks_that_call_differently_are_an_error_of_the_stand_in() {
    let name = "ranks_that_call_differently_are_an_error_of_the_stand_in";
    if skipped_on_gpu("NCCL would hang") {
        return;
    }
    const WRONG: &str = "PIPESIM_TEST_WRONG";
    if std::env::var(super::CHILD).is_err() {
        for (wrong, words) in [("count", "rank"), ("operation", "operation 2"), ("order", "ncclAllGather")] {
            let variables = [GPUS, &[(WRONG, wrong)]].concat();
            let told = std::panic::catch_unwind(|| child(&format!("mesh::{name}"), &variables, || {})).unwrap_err();
            let told = told.downcast_ref::<String>().unwrap();
            assert!(told.contains("collective call 1 of rank") && told.contains(words), "{wrong}: {told}");
        }
        return;
    }
    let wrong = std::env::var(WRONG).unwrap();
    together(2, |gpu, channel, rank| {
        let (buffer, other) = (upload(gpu, &[1.0; 64]), upload(gpu, &[1.0; 128]));
        let numbers = |count| Numbers { address: buffer.address(), count, precision: Precision::F32 };
        match &wrong[..] {
            "count" => channel.all_reduce(numbers(64 - rank as usize), Join::Sum, &gpu.compute),
            "operation" if rank == 0 => channel.all_reduce(numbers(64), Join::Largest, &gpu.compute),
            "order" if rank == 0 => channel.all_gather(numbers(64), other.address(), &gpu.compute),
            _ => channel.all_reduce(numbers(64), Join::Sum, &gpu.compute),
        }
        .unwrap();
        gpu.compute.synchronize().unwrap();
    });
}
