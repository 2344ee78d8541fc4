//! What the system tells of this machine, and what it leaves to this process.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// The processor's name.
pub(super) fn processor() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "unknown processor".to_string(), |(_, name)| name.trim().to_string())
}

/// Memory that is free for this process, where the system tells: of the machine's, of its address space (`ulimit -v`), of its
/// control groups', whichever is least.
pub fn free_memory_bytes() -> Option<u64> {
    let available = kibibytes("/proc/meminfo", "MemAvailable:");
    let space = limit("Max address space").zip(kibibytes("/proc/self/status", "VmSize:"));
    let space = space.map(|(most, used)| most.saturating_sub(used));
    available.into_iter().chain(space).chain(group_memory_bytes()).min()
}

/// Most memory that this process has had resident, in bytes, where the system tells.
pub(super) fn most_resident_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// Threads that this process may still start, where the system tells, and what limits them.
pub(super) fn free_threads() -> Option<(u64, &'static str)> {
    let number = |path: &str| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // A thread's stack, the stack for its signals and the guard of each are mappings of their own.
    let mappings = || {
        let used = read_to_string("/proc/self/maps").ok()?.lines().count() as u64;
        Some(number("/proc/sys/vm/max_map_count")?.saturating_sub(used) / 4)
    };
    let groups = [("pids", "pids.max", "pids.current")].into_iter().flat_map(|(controller, most, used)| {
        folders(controller)
            .into_iter()
            .filter_map(move |folder| Some(figure(&folder.join(most))?.saturating_sub(figure(&folder.join(used))?)))
    });
    let limits = [
        (mappings(), "vm.max_map_count"),
        (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
        (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
        (limit("Max processes").filter(|_| !is_root()), "ulimit -u"),
        (groups.min(), "the control group's pids.max"),
    ];
    limits.into_iter().filter_map(|(left, name)| Some((left?, name))).min_by_key(|&(left, _)| left)
}

/// `3.2 GiB`, `12 MiB`.
pub(super) fn in_words(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 { format!("{mebibytes:.0} MiB") } else { format!("{:.1} GiB", mebibytes / 1024.0) }
}

/// A line of a file of the system's, in KiB there, as bytes.
fn kibibytes(path: &str, name: &str) -> Option<u64> {
    let text = read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A soft limit of this process; none where there is none.
fn limit(name: &str) -> Option<u64> {
    let text = read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether limits on the number of processes do not hold for this one.
fn is_root() -> bool {
    let text = read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_some_and(|line| line.split_whitespace().nth(1) == Some("0"))
}

/// What this process's control groups leave of their memory; what they cache of files can be given back.
fn group_memory_bytes() -> Option<u64> {
    let names = [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")];
    let left = |folder: &PathBuf| {
        let (most, used) =
            names.iter().find_map(|(most, used)| figure(&folder.join(most)).zip(figure(&folder.join(used))))?;
        let text = read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached = text.lines().filter_map(|line| match line.split_once(' ')? {
            ("inactive_file" | "active_file", bytes) => bytes.parse::<u64>().ok(),
            _ => None,
        });
        Some(most.saturating_sub(used.saturating_sub(cached.sum())))
    };
    folders("memory").iter().filter_map(left).min()
}

/// The number in a file; none where it says that there is no limit.
fn figure(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// The folders of this process's control groups that govern `controller`, of both versions, up to their roots.
fn folders(controller: &str) -> Vec<PathBuf> {
    let text = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup").to_path_buf(),
            several if several.split(',').any(|one| one == controller) => Path::new("/sys/fs/cgroup").join(controller),
            _ => continue,
        };
        folders.extend(Path::new(path.trim_start_matches('/')).ancestors().map(|group| root.join(group)));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_is_free() {
        assert!(free_memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(free_threads().is_some_and(|(threads, limit)| threads > 1 && !limit.is_empty()));
        assert_eq!(limit("Max nonsense"), None);
    }
}
