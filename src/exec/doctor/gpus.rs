//! Probes of the driver and the GPUs: devices, slices, copies between GPUs.

use super::finding::{Asked, Finding};
use anyhow::{Error, Result};
use pipesim_gpu::{
    self, Buffer, ComputeMode, Driver, Facts, Fault, Gpu, LOWEST_CAPABILITY, Pinned, Unloadable, Unusable, library,
};
use std::time::Instant;

/// The oldest supported CUDA version of a driver: 12.8, driver 570.
const OLDEST_VERSION: u32 = 12_080;

const INSTALL_NEWER: &str = "install a newer NVIDIA driver, 570 or newer";

/// The driver, for a probe that depends on it: without one its finding is unknown.
fn open() -> Result<&'static Driver, Finding> {
    Driver::open().map_err(|unusable| match unusable {
        Unusable::Driver(Unloadable::TooOld(_)) => Finding::unknown("not probed: the driver is too old", INSTALL_NEWER),
        Unusable::Driver(_) => Finding::unknown("not probed: there is no driver", "install the NVIDIA driver first"),
        Unusable::Start(fault) => Finding::unknown(format!("not probed: {}", answer(&fault)), "fix the driver first"),
        Unusable::NoDevice | Unusable::Device(_) => {
            Finding::unknown("not probed: no GPU is visible", "see the probe devices")
        }
    })
}

fn answer(Fault { call, code, name, .. }: &Fault) -> String {
    format!("{call} returned {code} ({name})")
}

impl From<&Fault> for Finding {
    fn from(fault: &Fault) -> Finding {
        let fix = fault.fix().unwrap_or("look for NVRM lines in dmesg; restart the driver or the machine");
        Finding::broken(answer(fault), fix)
    }
}

impl From<Error> for Finding {
    fn from(error: Error) -> Finding {
        match error.chain().find_map(|cause| cause.downcast_ref::<Fault>()) {
            Some(fault) => fault.into(),
            None => Finding::broken(format!("{error:#}"), "choose another GPU with CUDA_VISIBLE_DEVICES"),
        }
    }
}

pub(super) fn driver() -> Asked {
    let path = library::open(&library::DRIVER)?.path;
    let version = pipesim_gpu::driver_version().map_err(|error| Finding::broken(error.to_string(), INSTALL_NEWER))?;
    // The version of the kernel module must match the library's.
    let module = std::fs::read_to_string("/sys/module/nvidia/version");
    let module = module.map(|text| format!(", module {}", text.trim())).unwrap_or_default();
    let found = format!("CUDA {}.{}{module}, {}", version / 1000, version % 1000 / 10, path.display());
    if version < OLDEST_VERSION {
        return Err(Finding::broken(format!("{found}; expected CUDA 12.8 or newer"), INSTALL_NEWER));
    }
    Ok(match Driver::open() {
        // Without a GPU the driver is still ok; the probe devices reports it.
        Ok(_) | Err(Unusable::NoDevice) => Finding::ok(found),
        Err(Unusable::Start(fault)) => {
            let finding = Finding::from(&fault);
            Finding { found: format!("{found}; {}", finding.found), ..finding }
        }
        Err(unusable) => Finding::broken(format!("{found}; {unusable}"), INSTALL_NEWER),
    })
}

pub(super) fn devices() -> Asked {
    let driver = match Driver::open() {
        Err(Unusable::Start(fault)) => return Err((&fault).into()),
        Err(Unusable::NoDevice) => {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").map(|v| format!(" (CUDA_VISIBLE_DEVICES='{v}')"));
            return Err(Finding::missing(
                format!("no GPU is visible{}", visible.unwrap_or_default()),
                "check that a GPU is present and CUDA_VISIBLE_DEVICES shows it (nvidia-smi lists them)",
            ));
        }
        _ => open()?,
    };
    let devices = (0..driver.devices()).map(|ordinal| device(driver, ordinal)).collect::<Result<Vec<_>>>()?;
    let found = devices.iter().map(|(_, _, words)| words.as_str()).collect::<Vec<_>>().join("; ");
    if devices.iter().all(|(facts, _, _)| facts.capability < LOWEST_CAPABILITY) {
        return Err(Finding::broken(found, "use a GPU of compute capability 8.0 (Ampere) or newer"));
    }
    Ok(match devices.iter().find(|(_, mode, _)| *mode == ComputeMode::Prohibited) {
        Some((Facts { ordinal, .. }, _, _)) => Finding::broken(
            format!("{found}; device {ordinal} is closed to programs"),
            format!("open it: nvidia-smi -i {ordinal} -c 0"),
        ),
        None => Finding::ok(found),
    })
}

fn device(driver: &'static Driver, ordinal: u32) -> Result<(Facts, ComputeMode, String)> {
    let (facts, mode) = (driver.facts(ordinal)?, driver.compute_mode(ordinal)?);
    let gibibytes = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    // Every run begins with a context: a GPU that refuses one is not usable.
    let free = match mode {
        ComputeMode::Prohibited => String::new(),
        _ => format!(" ({:.1} free)", gibibytes(driver.context(ordinal)?.memory()?.0)),
    };
    let Facts { name, memory_bytes, multiprocessors, capability: (major, minor), .. } = &facts;
    let exclusive = if mode == ComputeMode::Exclusive { ", one process only" } else { "" };
    let words = format!(
        "{ordinal}: {name}, {:.1} GiB{free}, {multiprocessors} multiprocessors, compute {major}.{minor}{exclusive}",
        gibibytes(*memory_bytes)
    );
    Ok((facts, mode, words))
}

pub(super) fn green_contexts() -> Asked {
    let driver = match Driver::open() {
        Err(Unusable::Driver(Unloadable::TooOld(lacking))) => {
            let found = format!("the driver has no {}", lacking.join(", "));
            return Err(Finding::missing(found, format!("{INSTALL_NEWER}, or do without `gpu-slices`")));
        }
        Err(Unusable::NoDevice) => {
            return Ok(Finding::ok("the driver has them; no GPU is visible that could be split"));
        }
        _ => open()?,
    };
    let slices = Gpu::slices(driver, 0, 2).map_err(|error| {
        Finding::broken(format!("{error:#}"), "do without `gpu-slices`; a MIG instance may be too small for two")
    })?;
    let each = slices.first().map_or(0, Gpu::multiprocessors);
    Ok(Finding::ok(format!("GPU 0 splits into 2 slices of {each} multiprocessors")))
}

/// Bytes of a copy between two GPUs.
pub const COPIED_BYTES: usize = 16 << 20;
const TIMES: u32 = 8;

/// With more pairs than this the row gives their range instead of each.
const MOST_LISTED: usize = 6;

/// Copies 16 MiB between each ordered pair of GPUs, compares every byte, and times the copies.
pub(super) fn peer_access() -> Asked {
    let driver = open()?;
    if driver.devices() < 2 {
        let fix = "nothing to do for one GPU; slices of it need no peer";
        return Err(Finding::unknown("one GPU: it has no peer", fix));
    }
    Ok(peer_finding(&copies(driver)?))
}

/// A copy of [`COPIED_BYTES`] bytes from one GPU to another.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Ordinal of the source.
    pub from: usize,
    /// Ordinal of the target.
    pub to: usize,
    /// Whether the first GPU accesses the second's memory directly; else the driver copies through the host.
    pub direct: bool,
    /// Number of bytes that arrived wrong.
    pub wrong: usize,
    pub gigabytes_per_second: f64,
}

impl std::fmt::Display for Copied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Copied { from, to, direct, wrong, gigabytes_per_second } = self;
        let way = if *direct { "direct" } else { "through the host" };
        write!(f, "{from} to {to} {way} {gigabytes_per_second:.1} GB/s")?;
        if *wrong > 0 { write!(f, ", {wrong} of {COPIED_BYTES} bytes wrong") } else { Ok(()) }
    }
}

fn copies(driver: &'static Driver) -> Result<Vec<Copied>> {
    let gpus = (0..driver.devices()).map(|ordinal| Gpu::whole(driver, ordinal)).collect::<Result<Vec<_>>>()?;
    let memory = |gpu: &Gpu| Ok((Buffer::new(gpu.context(), COPIED_BYTES)?, Pinned::new(gpu.context(), COPIED_BYTES)?));
    let mut memories = gpus.iter().map(memory).collect::<Result<Vec<_>>>()?;
    let apart = pipesim_gpu::enable_peers(driver, &gpus.iter().collect::<Vec<_>>())?;
    let sent = pattern();
    let inverse: Vec<u8> = sent.iter().map(|byte| !byte).collect();
    let mut copies = Vec::new();
    for (from, to) in (0..gpus.len()).flat_map(|from| (0..gpus.len()).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        // Every byte of the target differs from the source before the copy.
        for (number, bytes) in [(from, &sent), (to, &inverse)] {
            let (gpu, (buffer, pinned)) = (&gpus[number], &mut memories[number]);
            gpu.make_current()?;
            pinned.write(0, bytes);
            gpu.send.upload(buffer.address(), pinned, 0..COPIED_BYTES)?;
            gpu.send.synchronize()?;
        }
        let copy = |times: u32| -> Result<f64> {
            gpus[from].make_current()?;
            let begin = Instant::now();
            for _ in 0..times {
                let target = (memories[to].0.address(), &**gpus[to].context());
                let source = (memories[from].0.address(), &**gpus[from].context());
                gpus[from].send.copy_peer(target, source, COPIED_BYTES)?;
            }
            gpus[from].send.synchronize()?;
            Ok(begin.elapsed().as_secs_f64())
        };
        copy(1)?;
        let (buffer, pinned) = &memories[to];
        let mut received = vec![0; COPIED_BYTES];
        gpus[to].make_current()?;
        gpus[to].send.download(pinned, 0..COPIED_BYTES, buffer.address())?;
        gpus[to].send.synchronize()?;
        pinned.read(0, &mut received);
        let wrong = sent.iter().zip(&received).filter(|(sent, received)| sent != received).count();
        let gigabytes_per_second = COPIED_BYTES as f64 * f64::from(TIMES) / copy(TIMES)?.max(1e-9) / 1e9;
        copies.push(Copied { from, to, direct: !apart.contains(&(from, to)), wrong, gigabytes_per_second });
    }
    Ok(copies)
}

/// Bytes without repetition, so that a shifted copy is detected: SplitMix64 (Steele, Lea, Flood 2014).
pub fn pattern() -> Vec<u8> {
    let mut bytes = vec![0; COPIED_BYTES];
    let mut state = 0u64;
    for word in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes
}

/// Evaluates the copies between all pairs of GPUs.
pub fn peer_finding(copies: &[Copied]) -> Finding {
    let list = |copies: &[&Copied]| copies.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let wrong: Vec<&Copied> = copies.iter().filter(|copied| copied.wrong > 0).collect();
    if !wrong.is_empty() {
        return Finding::broken(
            list(&wrong),
            "switch off the IOMMU, or ACS on the PCIe bridges between these GPUs; until then use one of them (`gpu-slices`)",
        );
    }
    if copies.len() <= MOST_LISTED {
        return Finding::ok(list(&copies.iter().collect::<Vec<_>>()));
    }
    let speeds = copies.iter().map(|copied| copied.gigabytes_per_second);
    let (slowest, fastest) = (speeds.clone().fold(f64::INFINITY, f64::min), speeds.fold(0.0, f64::max));
    let direct = copies.iter().filter(|copied| copied.direct).count();
    Finding::ok(format!("{direct} of {} pairs direct, {slowest:.1} to {fastest:.1} GB/s", copies.len()))
}
