//! Finds the CUDA libraries, opens each once, and keeps it for the life of the process.
//!
//! The program links none of them. Each is opened by its full path with `RTLD_NOW | RTLD_GLOBAL` and never closed, so that
//! other code that opens it by its soname (`libnvrtc.so.13`) gets the same one. Places searched, in order:
//!
//! 1. `$PIPESIM_CUDA_PATH`: folders separated by colons; also `lib64`, `lib` and `nvidia/*/lib` below each;
//! 2. the loader's paths: `LD_LIBRARY_PATH`, ldconfig's cache;
//! 3. `lib64` and `lib` of `$CUDA_HOME` and `$CUDA_PATH`, then `/usr/local/cuda/lib64`;
//! 4. wheels: `nvidia/*/lib` in the site-packages of `$VIRTUAL_ENV` and `$CONDA_PREFIX`, then of the `python3` on the PATH,
//!    which is run once and only if everything else failed.
//!
//! The driver is in no toolkit and no wheel: it is searched in 1, 2 and the folders of containers.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A library to search.
#[derive(Debug)]
pub struct Wanted {
    /// Common name.
    pub name: &'static str,
    /// Sonames, preferred first.
    pub sonames: &'static [&'static str],
    /// Prefixes of files in the same folder that must be opened before it, if present.
    pub before: &'static [&'static str],
    /// Folders to search instead of toolkits and wheels, if any.
    pub folders: &'static [&'static str],
    /// What to do if it is missing.
    pub fix: &'static str,
    /// What to do with a driver of CUDA 12. Libraries of CUDA 13 need driver 580 and reject it.
    pub older_fix: Option<&'static str>,
}

impl Wanted {
    /// Returns the sonames that work with the driver: all, unless the driver is known to be of CUDA 12.
    fn usable(&self) -> &'static [&'static str] {
        let is_newer = |soname: &&&str| is_driver_older() && soname.ends_with(".so.13");
        &self.sonames[self.sonames.iter().take_while(is_newer).count()..]
    }

    /// Returns what to do if the library is missing, for this driver.
    pub fn fix(&self) -> &'static str {
        self.older_fix.filter(|_| is_driver_older()).unwrap_or(self.fix)
    }
}

/// The newest CUDA version that the driver supports, as 1000 major + 10 minor; 0 while unknown.
static DRIVER_VERSION: AtomicU32 = AtomicU32::new(0);

/// Sets the driver's version, by which libraries are chosen from now on.
pub(crate) fn note_driver(version: u32) {
    DRIVER_VERSION.store(version, Ordering::Relaxed);
}

fn is_driver_older() -> bool {
    (1..13_000).contains(&DRIVER_VERSION.load(Ordering::Relaxed))
}

pub static DRIVER: Wanted = Wanted {
    name: "the NVIDIA driver",
    sonames: &["libcuda.so.1"],
    before: &[],
    folders: &["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"],
    fix: "install the NVIDIA driver, 570 or newer (in a container: start it with --gpus all)",
    older_fix: None,
};

/// NVML, the library of nvidia-smi.
pub static MANAGEMENT: Wanted = Wanted {
    name: "the driver's management library",
    sonames: &["libnvidia-ml.so.1"],
    before: &[],
    folders: DRIVER.folders,
    fix: "install the driver's management library (libnvidia-ml.so.1; it comes with the driver's utilities)",
    older_fix: None,
};

/// The run-time compiler. Its builtins are opened first, because NVRTC 13 does not look in its own folder for them.
pub static NVRTC: Wanted = Wanted {
    name: "NVRTC",
    sonames: &["libnvrtc.so.13", "libnvrtc.so.12"],
    before: &["libnvrtc-builtins.so."],
    folders: &[],
    fix: "pip install nvidia-cuda-nvrtc",
    older_fix: Some("pip install nvidia-cuda-nvrtc-cu12"),
};

/// Matrix products.
pub static CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    sonames: &["libcublasLt.so.13", "libcublasLt.so.12"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-cublas",
    older_fix: Some("pip install nvidia-cublas-cu12"),
};

/// Fused attention.
pub static CUDNN: Wanted = Wanted {
    name: "cuDNN",
    sonames: &["libcudnn.so.9"],
    before: &[],
    folders: &[],
    fix: "pip install --upgrade nvidia-cudnn-cu13",
    older_fix: Some("pip install --upgrade nvidia-cudnn-cu12"),
};

/// Two-sided messages between GPUs.
pub static NCCL: Wanted = Wanted {
    name: "NCCL",
    sonames: &["libnccl.so.2"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-nccl-cu13",
    older_fix: Some("pip install nvidia-nccl-cu12"),
};

/// One-sided messages between GPUs.
pub static NVSHMEM: Wanted = Wanted {
    name: "NVSHMEM",
    sonames: &["libnvshmem_host.so.3"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-nvshmem-cu13",
    older_fix: Some("pip install nvidia-nvshmem-cu12"),
};

/// Named ranges for profilers.
pub static NVTX: Wanted = Wanted {
    name: "NVTX",
    sonames: &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-nvtx",
    older_fix: Some("pip install nvidia-nvtx-cu12"),
};

/// An open library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Common name.
    pub name: &'static str,
    /// Its file; only the soname if the loader found it and the path is unknown.
    pub path: PathBuf,
}

impl Found {
    /// Returns a second handle to it. The error is the loader's message.
    pub fn reopen(&self) -> Result<ManuallyDrop<Library>, String> {
        // SAFETY: the library is open already and is never closed: no initialiser and no finaliser runs.
        let library = unsafe { Library::open(Some(&self.path), RTLD_NOW | RTLD_GLOBAL) };
        library.map(ManuallyDrop::new).map_err(|error| error.to_string())
    }
}

/// A library that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// Common name.
    pub name: &'static str,
    /// Files searched for; any one is sufficient.
    pub files: &'static [&'static str],
    /// Places searched, in order.
    pub places: Vec<String>,
    /// Messages of the loader for files that exist but could not be opened.
    pub broken: Vec<String>,
    /// One thing to do.
    pub fix: String,
}

impl Missing {
    /// Describes what was found instead.
    pub fn found(&self) -> String {
        match self.broken.first() {
            None => format!("none in {}", self.places.join(", ")),
            Some(_) => format!("one that cannot be opened: {}", self.broken.join("; ")),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} ({}), found {}; {}", self.name, self.files.join(" or "), self.found(), self.fix)
    }
}

static OPENED: Mutex<BTreeMap<&'static str, Found>> = Mutex::new(BTreeMap::new());

/// Opens a library, or returns where it was found before.
///
/// # Errors
/// It is in none of the places, or cannot be opened. The next call searches again.
pub fn open(wanted: &Wanted) -> Result<Found, Missing> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = opened.get(wanted.name) {
        return Ok(found.clone());
    }
    let found = search(wanted)?;
    opened.insert(wanted.name, found.clone());
    Ok(found)
}

/// Whether any library was opened. Libraries unload at the exit of the process, even if threads still use them.
pub fn is_any_open() -> bool {
    // A held lock means that one is being opened.
    OPENED.try_lock().map_or(true, |opened| !opened.is_empty())
}

/// Whether this machine has a driver, toolkit or wheels of NVIDIA, so that users may expect GPUs.
pub fn is_likely() -> bool {
    let environments =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(|path| PathBuf::from(path).join("lib"));
    let is_python = |name: &str| name.starts_with("python3");
    let mut sites = environments.flat_map(|lib| subfolders(&lib, is_python)).map(|python| python.join("site-packages"));
    !files(Path::new("/dev"), "nvidia").is_empty()
        || ["PIPESIM_CUDA_PATH", "CUDA_HOME", "CUDA_PATH"].into_iter().any(|name| variable(name).is_some())
        || Path::new("/usr/local/cuda").exists()
        || sites.any(|site| !wheels(&site).is_empty())
        || open(&DRIVER).map_or_else(|missing| !missing.broken.is_empty(), |_| true)
}

fn search(wanted: &Wanted) -> Result<Found, Missing> {
    let mut search = LibrarySearch { wanted, places: Vec::new(), broken: Vec::new() };
    search.run().ok_or_else(|| {
        let fix = match search.broken.first() {
            Some(_) => format!("put a working one first with PIPESIM_CUDA_PATH=FOLDER, or {}", wanted.fix()),
            None if wanted.folders.is_empty() => {
                format!("{}, or name the folder that holds it in PIPESIM_CUDA_PATH", wanted.fix())
            }
            None => wanted.fix().to_string(),
        };
        let LibrarySearch { places, broken, .. } = search;
        Missing { name: wanted.name, files: wanted.usable(), places, broken, fix }
    })
}

/// A search in progress.
struct LibrarySearch<'a> {
    wanted: &'a Wanted,
    places: Vec<String>,
    broken: Vec<String>,
}

impl LibrarySearch<'_> {
    fn run(&mut self) -> Option<Found> {
        let given = variable("PIPESIM_CUDA_PATH");
        let value = given.as_ref().map_or("not set".into(), |given| given.to_string_lossy());
        self.places.push(format!("$PIPESIM_CUDA_PATH ({value})"));
        let given: Vec<PathBuf> = given.iter().flat_map(env::split_paths).collect();
        if let Some(found) = given.iter().flat_map(|folder| below_given(folder)).find_map(|f| self.in_folder(&f)) {
            return Some(found);
        }
        self.places.push("the loader's paths".to_string());
        if let Some(found) = self.by_soname() {
            return Some(found);
        }
        if !self.wanted.folders.is_empty() {
            return self.wanted.folders.iter().find_map(|folder| self.in_named(Path::new(folder)));
        }
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            let folder = variable(name).map(PathBuf::from);
            let found = folder.and_then(|folder| ["lib64", "lib"].iter().find_map(|l| self.in_named(&folder.join(l))));
            if found.is_some() {
                return found;
            }
        }
        self.in_named(Path::new("/usr/local/cuda/lib64")).or_else(|| self.in_wheels())
    }

    fn in_wheels(&mut self) -> Option<Found> {
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            let Some(folder) = variable(name).map(PathBuf::from) else { continue };
            self.places.push(format!("${name}"));
            let mut folders = vec![folder.join("lib")];
            for python in subfolders(&folder.join("lib"), |name| name.starts_with("python3")) {
                folders.extend(wheels(&python.join("site-packages")));
            }
            if let Some(found) = folders.iter().find_map(|folder| self.in_folder(folder)) {
                return Some(found);
            }
        }
        let sites = match python_sites() {
            Ok(sites) => sites,
            Err(reason) => {
                self.places.push(format!("site-packages ({reason})"));
                return None;
            }
        };
        self.places.push("site-packages of python3".to_string());
        sites.iter().flat_map(|site| wheels(site)).find_map(|folder| self.in_folder(&folder))
    }

    fn in_named(&mut self, folder: &Path) -> Option<Found> {
        self.places.push(folder.display().to_string());
        self.in_folder(folder)
    }

    fn in_folder(&mut self, folder: &Path) -> Option<Found> {
        self.wanted.usable().iter().find_map(|soname| {
            let path = std::path::absolute(folder.join(soname)).ok().filter(|path| path.is_file())?;
            for prefix in self.wanted.before {
                // If this fails, the library itself reports it when it needs the file.
                files(folder, prefix).iter().for_each(|file| drop(load(file.as_os_str())));
            }
            match load(path.as_os_str()) {
                Ok(()) => Some(Found { name: self.wanted.name, path }),
                Err(reason) => {
                    self.broken.push(reason);
                    None
                }
            }
        })
    }

    fn by_soname(&mut self) -> Option<Found> {
        self.wanted.usable().iter().find_map(|soname| match load(OsStr::new(soname)) {
            Ok(()) => Some(Found { name: self.wanted.name, path: mapped(soname).unwrap_or_else(|| soname.into()) }),
            Err(reason) => {
                // The loader's message begins with the name of the missing file, which may be a dependency.
                if !reason.starts_with(&format!("{soname}: cannot open shared object file")) {
                    self.broken.push(reason);
                }
                None
            }
        })
    }
}

/// Opens a library for good.
fn load(file: &OsStr) -> Result<(), String> {
    // SAFETY: opening runs the library's initialisers, which for NVIDIA's libraries only register the library; the handle is
    // never closed, so no finaliser runs while this program may still call it.
    match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => Err(reason(&error)),
    }
}

/// Returns the loader's message.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns the file of a loaded soname, from this process's mappings. Its name may have the full version
/// (`libcuda.so.1` is a link to `libcuda.so.580.65.06`).
fn mapped(soname: &str) -> Option<PathBuf> {
    let stem = soname.split_inclusive(".so").next()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])));
    let is_it = |path: &&Path| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(stem));
    paths.filter(is_it).map(Path::to_path_buf).next()
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the folders to search for an entry of `$PIPESIM_CUDA_PATH`.
fn below_given(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_path_buf(), folder.join("lib64"), folder.join("lib")];
    folders.extend(wheels(folder));
    folders
}

/// Returns `nvidia/*/lib` below a site-packages folder, CUDA 13's folder first.
fn wheels(site: &Path) -> Vec<PathBuf> {
    let mut folders = subfolders(&site.join("nvidia"), |_| true);
    folders.sort_by_key(|folder| !folder.ends_with("cu13"));
    folders.into_iter().map(|folder| folder.join("lib")).collect()
}

fn subfolders(folder: &Path, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let paths = entries(folder);
    paths.into_iter().filter(|path| path.is_dir() && file_name(path).is_some_and(&keep)).collect()
}

/// Returns the files of a folder whose names begin with `prefix`.
fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    entries(&folder).into_iter().filter(|path| file_name(path).is_some_and(|name| name.starts_with(prefix))).collect()
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Time limit for python3 to list its site-packages; from a cold disk it starts slowly.
const PYTHON_LIMIT: Duration = Duration::from_secs(30);

const PYTHON_SITES: &str = "import site, sys
print('\\n'.join(p for p in sys.path + [site.getusersitepackages()] if p))";

/// Returns the module folders of the `python3` on the PATH. Only an answer is remembered: after a failure the next library asks again,
/// when the disk may be warm.
fn python_sites() -> Result<&'static [PathBuf], String> {
    static SITES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    if let Some(sites) = SITES.get() {
        return Ok(sites);
    }
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON_SITES]).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let child = python.spawn().map_err(|_| "no python3 on the PATH".to_string())?;
    let text = output(child, PYTHON_LIMIT)?;
    Ok(SITES.get_or_init(|| text.lines().map(PathBuf::from).collect()))
}

/// Waits for a child process; returns `None` if it exceeded `limit` and was killed.
pub fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Returns the output of a child process, unless it fails or exceeds `limit`.
fn output(mut child: Child, limit: Duration) -> Result<String, String> {
    match ended(&mut child, limit) {
        Some(status) if status.success() => {}
        Some(status) => return Err(format!("python3 failed: {status}")),
        None => return Err(format!("python3 gave no answer within {} s", limit.as_secs())),
    }
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        std::io::Read::read_to_string(&mut stdout, &mut text).map_err(|error| format!("python3: {error}"))?;
    }
    Ok(text)
}

/// Hardware queues of a GPU, to which the driver assigns streams. A waiting stream blocks all streams of its queue: with the default
/// of 8 queues, streams collide from the third slice on. 32 is the maximum.
const CONNECTIONS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

/// Thread blocks per transfer of NCCL: few enough that transfers of all communicators of a device fit on its multiprocessors at the
/// same time. Otherwise one that does not fit could block those that wait for it.
const BLOCKS: (&str, &str) = ("NCCL_MAX_CTAS", "8");

/// Sets environment variables of NVIDIA's libraries, unless the user has set them. Call it first in a program: with more than one
/// thread, which may read the environment, it does nothing.
pub fn prepare() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).map(str::trim);
    if threads != Some("1") {
        return;
    }
    for (name, value) in [CONNECTIONS, BLOCKS].into_iter().filter(|(name, _)| env::var_os(name).is_none()) {
        // SAFETY: this is the only thread, so no other reads the environment meanwhile.
        unsafe { env::set_var(name, value) };
    }
}

/// Number of thread blocks per transfer of NCCL.
pub fn blocks() -> usize {
    let asked = env::var(BLOCKS.0).ok().and_then(|text| text.trim().parse().ok());
    asked.filter(|count| (1..=64).contains(count)).unwrap_or(32)
}

/// Number of hardware queues to which the driver assigns streams.
pub fn connections() -> usize {
    let asked = env::var(CONNECTIONS.0).ok().and_then(|text| text.trim().parse().ok());
    asked.filter(|count| (1..=32).contains(count)).unwrap_or(8)
}
