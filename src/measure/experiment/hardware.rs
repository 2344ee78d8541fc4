//! Measured hardware description of this machine: a device is a core, and a link is memory that cores share.

use super::training::settings;
use cpu_kernels::linear;
use pipesim_answer::resolve::{Costs, Error as ResolveError, Selection};
use pipesim_exec::ranks::Ranks;
use pipesim_exec::{Shared, Sizes, TensorGroup};
use pipesim_models::hardware;
use pipesim_schedule::mesh::Mesh;
use pipesim_system::{cores, free_memory_bytes, processor};
use pipesim_train::compute::Collective as _;
use pipesim_train::model::{Rates, rates};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Assumed power limit of a core; only its product with the speed per watt matters.
const WATTS: f64 = 100.0;
/// Timed round trips per message size; the median counts.
const MESSAGES: usize = 32;

/// Width of a hidden state.
const WIDTH: usize = 512;

/// Measures messages between two threads: latency in seconds of an empty one, and bytes per second of a large one, which is copied
/// on arrival.
fn link() -> (f64, f64) {
    let one_way = |elements: usize| -> f64 {
        let ((there, arrives), (back, returns)) = (sync_channel::<Vec<f32>>(1), sync_channel::<Vec<f32>>(1));
        let samples: Vec<u64> = std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut own = vec![0.0; elements];
                for message in arrives {
                    own.copy_from_slice(&message);
                    if back.send(message).is_err() {
                        break;
                    }
                }
            });
            let mut message = vec![1.0; elements];
            let mut samples = Vec::new();
            for _ in 0..MESSAGES {
                let start = Instant::now();
                let Some(returned) = there.send(message).ok().and_then(|()| returns.recv().ok()) else { break };
                samples.push(start.elapsed().as_nanos() as u64);
                message = returned;
            }
            drop(there);
            samples
        });
        median(samples)
    };
    let elements = 1 << 20;
    let latency = one_way(0) / 2.0;
    let rest = (one_way(elements) - 2.0 * latency).max(1e-9);
    (latency, (4 * elements) as f64 / rest)
}

/// Measures all-reduces among the tensor ranks of two cores: latency in seconds, and bytes per second, from a small and a large
/// hidden state. Each follows a product, as in training, so that ranks do not meet at once; the product's own time is subtracted.
/// `None` on one core, or if no memory can be shared.
fn reduce() -> Option<(f64, f64)> {
    if cores() < 2 {
        return None;
    }
    let mesh = Mesh::new(2, 1);
    let selection = Selection::new(1, 1);
    let costs = Costs::default();
    let graph = selection.graph("1f1b", &costs.of_orders::<ResolveError>(1)).ok()?.graph;
    let settings = settings(mesh, 1, Duration::from_secs(20));
    let shared = Arc::new(Shared::new(Arc::new(graph), &Sizes::default(), &settings, Ranks::alone()).ok()?);
    let (small, large) = (8 * WIDTH, 256 * WIDTH);
    let work = |mut member: TensorGroup| -> Option<[f64; 2]> {
        let weight = vec![0.25; WIDTH * WIDTH];
        let mut each = |elements: usize| -> Option<f64> {
            let (input, mut data) = (vec![0.5; elements], vec![0.0; elements]);
            let (mut alone, mut both) = (Vec::new(), Vec::new());
            for _ in 0..MESSAGES {
                let start = Instant::now();
                linear::forward_without_bias(black_box(&mut data), black_box(&input), &weight, WIDTH);
                alone.push(start.elapsed().as_nanos() as u64);
                member.all_reduce(&mut data).ok()?;
                both.push(start.elapsed().as_nanos() as u64);
            }
            Some((median(both) - median(alone)).max(1e-9))
        };
        Some([each(small)?, each(large)?])
    };
    let [few, many] = std::thread::scope(|scope| {
        let other = TensorGroup::new(1, &shared);
        scope.spawn(move || work(other));
        work(TensorGroup::new(0, &shared))
    })?;
    let rate = (4 * (large - small)) as f64 / (many - few).max(1e-9);
    Some(((few - (4 * small) as f64 / rate).max(0.0), rate))
}

/// The median of nanoseconds, in seconds.
fn median(mut samples: Vec<u64>) -> f64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or(1).max(1) as f64 * 1e-9
}

/// Measures this machine for some seconds and returns its hardware file, based on `cpu`.
pub fn measured_hardware() -> String {
    let Rates { product, update, between, attention: [forward, backward], exchange } = rates(cores());
    let (latency, link) = link();
    // On a noisy machine a part may be faster than the whole.
    let share = |part: f64, whole: f64| (part / whole).clamp(1e-3, 1.0);
    let tflops = product.speed * 1e-12;
    let mut numbers = vec![
        ("bf16_tflops", tflops),
        ("fp32_tflops", tflops),
        ("product_gflops_per_watt", product.speed * 1e-9 / WATTS),
        ("power_watts", WATTS),
        ("product_depth", product.depth),
        ("product_rows", product.rows),
        ("memory_gbytes_per_s", update * 1e-9),
        ("memory_efficiency", 1.0),
        ("operation_share", (between / update).clamp(1e-3, 10.0)),
        ("flash_share", share(forward, product.speed)),
        ("flash2_share", share(forward, product.speed)),
        ("flash1_share", share(forward, product.speed)),
        ("flash_backward_share", share(backward, forward)),
        ("link_gbytes_per_s", link * 1e-9),
        ("link_efficiency", 1.0),
        ("link_latency_us", latency * 1e6),
        ("exchange_gbytes_per_s", exchange * 1e-9),
        ("gpus_per_node", f64::from(cores())),
    ];
    if let Some((latency, rate)) = reduce() {
        numbers.push(("reduce_latency_us", latency * 1e6));
        numbers.push(("reduce_gbytes_per_s", rate * 1e-9));
    }
    if let Some(bytes) = free_memory_bytes().filter(|&bytes| bytes > 0) {
        numbers.push(("memory_gib", bytes as f64 / f64::from(1 << 30) / f64::from(cores())));
    }
    let head = [
        format!("A core of this machine ({}), measured by pipesim profile `hardware`.", processor()),
        "Use it with predict `hardware` THIS.toml `precision` fp32 `stack` pipesim: a device is a core.".to_string(),
    ];
    hardware::toml("cpu", &head, &numbers)
}
