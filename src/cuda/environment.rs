//! What NVIDIA's libraries read from the environment when they start, put there before them.

use std::env;

/// Hardware queues of a GPU. Streams are dealt to them, and what one stream waits for holds up all that share its queue: with
/// the driver's default of 8, three streams a slice collide from the third slice on. 32 is the most that there are.
const CONNECTIONS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

/// Thread blocks that a transfer of NCCL may take: few enough that the transfers of all communicators of a device find room on
/// its multiprocessors at the same time, whatever else runs there. One that found none could keep those from ending that wait for it.
const BLOCKS: (&str, &str) = ("NCCL_MAX_CTAS", "8");

/// Sets what the user has not set. To be called first in a program: where other threads may read the environment, nothing is set.
pub fn prepare() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).map(str::trim);
    if threads != Some("1") {
        return;
    }
    for (name, value) in [CONNECTIONS, BLOCKS].into_iter().filter(|(name, _)| env::var_os(name).is_none()) {
        // SAFETY: this is the only thread, so that nobody reads the environment meanwhile.
        unsafe { env::set_var(name, value) };
    }
}

/// Hardware queues that the driver deals streams to.
pub fn connections() -> usize {
    let asked = env::var(CONNECTIONS.0).ok().and_then(|text| text.trim().parse().ok());
    asked.filter(|count| (1..=32).contains(count)).unwrap_or(8)
}
