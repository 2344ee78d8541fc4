//! Measured hardware description of this machine: a device is a core, and a link is memory that cores share.

use super::system::{cores, free_memory_bytes, processor};
use crate::hardware;
use crate::model::{Rates, rates};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Assumed power limit of a core; only its product with the speed per watt matters.
const WATTS: f64 = 100.0;
/// Timed round trips per message size; the fastest counts.
const MESSAGES: usize = 32;

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
        samples.into_iter().min().unwrap_or(1).max(1) as f64 * 1e-9
    };
    let elements = 1 << 20;
    let latency = one_way(0) / 2.0;
    let rest = (one_way(elements) - 2.0 * latency).max(1e-9);
    (latency, (4 * elements) as f64 / rest)
}

/// Measures this machine for some seconds and returns its hardware file, based on `cpu`.
pub fn measured_hardware() -> String {
    let Rates { product, thin, copy, between, attention: [forward, backward] } = rates();
    let (latency, link) = link();
    // The inner length of a product at which its overhead equals its computation, from the size that shows it most.
    let depth =
        thin.iter().map(|&(inner, reached)| inner as f64 * (product / reached - 1.0).max(0.0)).fold(0.0, f64::max);
    // On a noisy machine a part may be faster than the whole.
    let share = |part: f64, whole: f64| (part / whole).clamp(1e-3, 1.0);
    let memory = copy.max(between);
    let tflops = product * 1e-12;
    let mut numbers = vec![
        ("bf16_tflops", tflops),
        ("fp32_tflops", tflops),
        ("product_gflops_per_watt", product * 1e-9 / WATTS),
        ("power_watts", WATTS),
        ("product_depth", depth),
        ("memory_gbytes_per_s", memory * 1e-9),
        ("memory_efficiency", share(between, memory)),
        ("flash_share", share(forward, product)),
        ("flash2_share", share(forward, product)),
        ("flash1_share", share(forward, product)),
        ("flash_backward_share", share(backward, forward)),
        ("link_gbytes_per_s", link * 1e-9),
        ("link_efficiency", 1.0),
        ("link_latency_us", latency * 1e6),
        ("gpus_per_node", f64::from(cores())),
    ];
    if let Some(bytes) = free_memory_bytes().filter(|&bytes| bytes > 0) {
        numbers.push(("memory_gib", bytes as f64 / f64::from(1 << 30) / f64::from(cores())));
    }
    let head = [
        format!("A core of this machine ({}), measured by pipesim profile --hardware.", processor()),
        "Use it with predict --hardware THIS.toml --precision fp32 --stack pipesim: a device is a core.".to_string(),
    ];
    hardware::toml("cpu", &head, &numbers)
}
