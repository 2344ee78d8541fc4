//! The machine that this process runs on: its processor, the memory that is free, and files that appear only when they are complete.
//!
//! In: paths and bytes. Out: numbers of the machine, and files that are whole or not there.
//!
//! ```
//! assert_eq!(pipesim_system::in_words(3 << 30), "3.0 GiB");
//! assert!(pipesim_system::cores() >= 1);
//! ```

pub mod unfinished;

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Name of the processor.
pub fn processor() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "unknown processor".to_string(), |(_, name)| name.trim().to_string())
}

/// Returns the bytes of memory that are free for this process: the least of the machine's, of its address space's (`ulimit -v`) and
/// of its control groups'. `None` if the system does not tell.
pub fn free_memory_bytes() -> Option<u64> {
    let available = kibibytes("/proc/meminfo", "MemAvailable:");
    let space = limit("Max address space").zip(kibibytes("/proc/self/status", "VmSize:"));
    let space = space.map(|(most, used)| most.saturating_sub(used));
    available.into_iter().chain(space).chain(group_memory_bytes()).min()
}

/// Returns the number of threads that this process may still start, and the name of the limit; `None` if the system does not tell.
pub fn free_threads() -> Option<(u64, &'static str)> {
    let number = |path: &str| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // A thread has four mappings: its stack, its signal stack, and a guard page for each.
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

/// Formats bytes, as in `3.2 GiB` and `12 MiB`.
pub fn in_words(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 { format!("{mebibytes:.0} MiB") } else { format!("{:.1} GiB", mebibytes / 1024.0) }
}

/// Reads a line of a system file that is in KiB there, as bytes.
fn kibibytes(path: &str, name: &str) -> Option<u64> {
    let text = read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A soft limit of this process; `None` if it is unlimited.
fn limit(name: &str) -> Option<u64> {
    let text = read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether this process runs as root, whom the limit on processes does not bind.
fn is_root() -> bool {
    let text = read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_some_and(|line| line.split_whitespace().nth(1) == Some("0"))
}

/// Memory that is left of this process's control groups; cached files count as free.
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

/// The number in a file; `None` if the file says that there is no limit.
fn figure(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// The folders of this process's control groups of `controller`, versions 1 and 2, up to their roots.
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

static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// Sets the commit that the program was built from. A program calls it once, at its start; libraries are not rebuilt for each commit.
pub fn set_commit(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

/// Returns the commit that the program was built from; `unknown` if it was not set.
pub fn commit() -> &'static str {
    COMMIT.get().copied().unwrap_or("unknown")
}

/// Program, machine, operating system, date, and the commit that the program was built from.
pub fn provenance() -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    let mut add = |key: &str, value: String| map.insert(key.to_string(), value);
    add("program", format!("pipesim {}", env!("CARGO_PKG_VERSION")));
    add("machine", format!("{}, {} cores", processor(), cores()));
    add("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    add("date", date());
    if commit() != "unknown" {
        add("commit", commit().to_string());
    }
    map
}

/// Today, UTC, as year-month-day (Howard Hinnant's civil-from-days).
fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
