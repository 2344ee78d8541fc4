//! Where the CUDA libraries are: looked for in one order of places, opened once, kept for the life of the process.
//!
//! The program links none of them. Each is opened by its full path with `RTLD_NOW | RTLD_GLOBAL` and never closed, so that
//! whoever opens it later by its soname (`libnvrtc.so.13`) gets the same one. The places, in order:
//!
//! 1. `$PIPESIM_CUDA_PATH`: folders parted by colons; also `lib64`, `lib` and `nvidia/*/lib` below each;
//! 2. the loader's own: `LD_LIBRARY_PATH`, ldconfig's cache;
//! 3. `lib64` and `lib` of `$CUDA_HOME` and `$CUDA_PATH`, then `/usr/local/cuda/lib64`;
//! 4. wheels: `nvidia/*/lib` in the site-packages of `$VIRTUAL_ENV` and `$CONDA_PREFIX`, then of the `python3` on the PATH,
//!    which is asked once and only when all else failed.
//!
//! The driver comes with no toolkit and no wheel: it is looked for in 1, 2 and the places of containers.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A library that the program can use.
#[derive(Debug)]
pub struct Wanted {
    /// What people call it.
    pub name: &'static str,
    /// Its sonames, the preferred first.
    pub sonames: &'static [&'static str],
    /// How the names of files begin that must be opened before it, from the same folder, where they are there.
    pub before: &'static [&'static str],
    /// Folders of its own, besides those that all share. Where there are any, toolkit and wheels are not searched.
    pub folders: &'static [&'static str],
    /// What to do where it is missing.
    pub fix: &'static str,
}

/// The driver.
pub static DRIVER: Wanted = Wanted {
    name: "the NVIDIA driver",
    sonames: &["libcuda.so.1"],
    before: &[],
    folders: &["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"],
    fix: "install the NVIDIA driver, 570 or newer (in a container: start it with --gpus all)",
};

/// The run-time compiler. Its builtins are opened first: that of CUDA 13 does not look beside itself for them.
pub static NVRTC: Wanted = Wanted {
    name: "NVRTC",
    sonames: &["libnvrtc.so.13", "libnvrtc.so.12"],
    before: &["libnvrtc-builtins.so."],
    folders: &[],
    fix: "pip install nvidia-cuda-nvrtc",
};

/// Matrix products.
pub static CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    sonames: &["libcublasLt.so.13", "libcublasLt.so.12"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-cublas",
};

/// Two-sided messages between GPUs.
pub static NCCL: Wanted =
    Wanted { name: "NCCL", sonames: &["libnccl.so.2"], before: &[], folders: &[], fix: "pip install nvidia-nccl-cu13" };

/// One-sided messages between GPUs.
pub static NVSHMEM: Wanted = Wanted {
    name: "NVSHMEM",
    sonames: &["libnvshmem_host.so.3"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-nvshmem-cu13",
};

/// Named ranges for profilers.
pub static NVTX: Wanted = Wanted {
    name: "NVTX",
    sonames: &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
    before: &[],
    folders: &[],
    fix: "pip install nvidia-nvtx",
};

/// A library that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What people call it.
    pub name: &'static str,
    /// Its file; the bare soname where the loader found it and the system does not say where.
    pub path: PathBuf,
}

impl Found {
    /// A second handle to it, or the loader's words.
    pub fn reopen(&self) -> Result<ManuallyDrop<Library>, String> {
        // SAFETY: the library is open already and is never closed: no initialiser and no finaliser runs.
        let library = unsafe { Library::open(Some(&self.path), RTLD_NOW | RTLD_GLOBAL) };
        library.map(ManuallyDrop::new).map_err(|error| error.to_string())
    }
}

/// A library that could not be opened: what was looked for, where, and the one thing to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// What people call it.
    pub name: &'static str,
    /// The files looked for, any of which would do.
    pub files: &'static [&'static str],
    /// The places searched, in order, in words.
    pub places: Vec<String>,
    /// Files that are there and could not be opened, with the loader's reason.
    pub broken: Vec<String>,
    /// What to do.
    pub fix: String,
}

impl Missing {
    /// What was found instead, in words.
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

/// Opens a library, or says where it is when it was opened before.
///
/// # Errors
/// It is in none of the places, or whatever is there cannot be opened. The search is made again at the next call.
pub fn open(wanted: &Wanted) -> Result<Found, Missing> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = opened.get(wanted.name) {
        return Ok(found.clone());
    }
    let found = search(wanted)?;
    opened.insert(wanted.name, found.clone());
    Ok(found)
}

/// Whether any library was opened. Libraries take themselves down at the exit of the process, whatever threads do then.
pub fn is_any_open() -> bool {
    // whoever has the lock is opening one
    OPENED.try_lock().map_or(true, |opened| !opened.is_empty())
}

/// Whether something of NVIDIA's is here, so that people may expect GPUs: its driver, a toolkit, or wheels in the environment.
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
    let mut search = Search { wanted, places: Vec::new(), broken: Vec::new() };
    search.run().ok_or_else(|| {
        let fix = match search.broken.first() {
            Some(_) => format!("put a working one first with PIPESIM_CUDA_PATH=FOLDER, or {}", wanted.fix),
            None if wanted.folders.is_empty() => {
                format!("{}, or name the folder that holds it in PIPESIM_CUDA_PATH", wanted.fix)
            }
            None => wanted.fix.to_string(),
        };
        let Search { places, broken, .. } = search;
        Missing { name: wanted.name, files: wanted.sonames, places, broken, fix }
    })
}

/// One search, with what it saw so far.
struct Search<'a> {
    wanted: &'a Wanted,
    places: Vec<String>,
    broken: Vec<String>,
}

impl Search<'_> {
    fn run(&mut self) -> Option<Found> {
        let given = variable("PIPESIM_CUDA_PATH");
        let told = given.as_ref().map_or("not set".into(), |given| given.to_string_lossy());
        self.places.push(format!("$PIPESIM_CUDA_PATH ({told})"));
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
        self.wanted.sonames.iter().find_map(|soname| {
            let path = std::path::absolute(folder.join(soname)).ok().filter(|path| path.is_file())?;
            for prefix in self.wanted.before {
                // Best effort: where it does not open, the library itself says so when it needs it.
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
        self.wanted.sonames.iter().find_map(|soname| match load(OsStr::new(soname)) {
            Ok(()) => Some(Found { name: self.wanted.name, path: mapped(soname).unwrap_or_else(|| soname.into()) }),
            Err(reason) => {
                // The loader's words for "not there" begin with the file's own name; a missing dependency's with its.
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
    // SAFETY: opening runs the library's initialisers. Those of NVIDIA's libraries register themselves and nothing else;
    // the handle is never closed, so no finaliser runs while code of ours may still call into it.
    match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => Err(reason(&error)),
    }
}

/// The loader's own words.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The file behind a soname that is loaded, from the list of this process's mappings. It may be named by its full version
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

/// The folders that one entry of `$PIPESIM_CUDA_PATH` stands for.
fn below_given(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_path_buf(), folder.join("lib64"), folder.join("lib")];
    folders.extend(wheels(folder));
    folders
}

/// `nvidia/*/lib` below a site-packages folder, that of CUDA 13 first.
fn wheels(site: &Path) -> Vec<PathBuf> {
    let mut folders = subfolders(&site.join("nvidia"), |_| true);
    folders.sort_by_key(|folder| !folder.ends_with("cu13"));
    folders.into_iter().map(|folder| folder.join("lib")).collect()
}

fn subfolders(folder: &Path, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let paths = entries(folder);
    paths.into_iter().filter(|path| path.is_dir() && file_name(path).is_some_and(&keep)).collect()
}

/// The files of a folder whose names begin with `prefix`.
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

/// How long python3 may take to name its site-packages.
const PYTHON_LIMIT: Duration = Duration::from_secs(5);

const PYTHON_SITES: &str = "import site, sys
print('\\n'.join(p for p in sys.path + [site.getusersitepackages()] if p))";

/// The module folders of the `python3` on the PATH; asked once.
fn python_sites() -> Result<&'static [PathBuf], &'static str> {
    static SITES: OnceLock<Result<Vec<PathBuf>, String>> = OnceLock::new();
    let sites = SITES.get_or_init(|| {
        let mut python = Command::new("python3");
        python.args(["-c", PYTHON_SITES]).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
        let child = python.spawn().map_err(|_| "no python3 on the PATH".to_string())?;
        let text = output(child, PYTHON_LIMIT)?;
        Ok(text.lines().map(PathBuf::from).collect())
    });
    sites.as_deref().map_err(String::as_str)
}

/// How a child ended; none where it took longer than `limit` and was killed.
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

/// What a child prints, unless it takes longer than `limit` or fails.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_the_loader_finds_is_opened_with_its_path_and_remembered() {
        let mathematics =
            Wanted { name: "libm", sonames: &["libm.so.6"], before: &[], folders: &["/nowhere"], fix: "" };
        let found = open(&mathematics).expect("every machine with a C library has it");
        assert!(found.path.is_absolute() && found.path.is_file(), "{found:?}");
        assert_eq!(open(&mathematics).unwrap(), found);
    }

    #[test]
    fn a_missing_library_says_what_was_looked_for_where_and_what_to_do() {
        let absent = Wanted {
            name: "absent",
            sonames: &["libabsent-a.so.1", "libabsent-b.so.1"],
            before: &[],
            folders: &["/nowhere"],
            fix: "install it",
        };
        let missing = open(&absent).expect_err("there is no such library");
        let text = missing.to_string();
        for part in ["libabsent-a.so.1 or libabsent-b.so.1", "$PIPESIM_CUDA_PATH", "the loader's paths", "/nowhere"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with("; install it"), "{text}");
        assert!(missing.broken.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_file_that_is_no_library_is_told_apart_from_one_that_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("libempty.so.1"), "no library").expect("a file");
        let path: &'static str = folder.path().display().to_string().leak();
        let folders: &'static [&'static str] = vec![path].leak();
        let empty = Wanted { name: "empty", sonames: &["libempty.so.1"], before: &[], folders, fix: "install it" };
        let missing = open(&empty).expect_err("it is no library");
        assert_eq!(missing.broken.len(), 1, "{missing:?}");
        assert!(missing.to_string().contains("found one that cannot be opened"), "{missing}");
    }

    #[test]
    fn a_child_that_gives_no_answer_is_ended() {
        let child = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().expect("sleep is everywhere");
        let begin = Instant::now();
        let error = output(child, Duration::from_millis(30)).expect_err("it sleeps");
        assert!(error.contains("no answer"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}
