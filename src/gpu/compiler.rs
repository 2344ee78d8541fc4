//! The kernels' machine code, loaded on a device. Sources, in this order:
//! 1. `$PIPESIM_KERNELS/sm_90_bf16.cubin` (architecture, precision), for machines without NVRTC;
//! 2. the cache, `$PIPESIM_CACHE`, else `$XDG_CACHE_HOME/pipesim`, else `~/.cache/pipesim`, by a hash of everything that the code
//!    depends on;
//! 3. NVRTC, which generates machine code (CUBIN), or for an architecture that it does not know PTX, which the driver compiles.
//!    The result is cached.

use super::api::{Argument, CompileError, Context, FunctionHandle, Image, Nvrtc, Stream, Unsupported};
use super::driver::Facts;
use super::kernel::{self, Launch, Precision};
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::env;
use std::ffi::CString;
use std::fs;
use std::hash::Hasher;
#[allow(deprecated)] // the only hash of the standard library whose function is fixed for good
use std::hash::SipHasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Code of all kernels of one precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// CUBIN, or zero-terminated PTX.
    pub image: Vec<u8>,
    pub origin: Origin,
}

/// Source of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file of `$PIPESIM_KERNELS`.
    File(PathBuf),
    Cache(PathBuf),
    Compiled,
}

/// Architectures of PTX for a device that NVRTC does not know, newest first.
const PTX_TARGETS: [u32; 2] = [90, 80];

/// Returns the kernels for devices of this compute capability, and for heads of this size or of any. A process generates them once.
///
/// # Errors
/// There are no precompiled kernels and no NVRTC, or compilation fails: the error carries the compiler's messages.
pub fn kernels(precision: Precision, capability: (u32, u32), head_size: Option<usize>) -> Result<Arc<Code>> {
    type Made = BTreeMap<(Precision, (u32, u32), Option<usize>), Arc<Code>>;
    static MADE: Mutex<Made> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = made.get(&(precision, capability, head_size)) {
        return Ok(code.clone());
    }
    let code = Arc::new(make(precision, capability, head_size)?);
    made.insert((precision, capability, head_size), code.clone());
    Ok(code)
}

fn make(precision: Precision, capability: (u32, u32), head_size: Option<usize>) -> Result<Code> {
    let architecture = capability.0 * 10 + capability.1;
    if let Some(folder) = variable("PIPESIM_KERNELS") {
        let path = folder.join(file_name(precision, architecture));
        let image = fs::read(&path).with_context(|| {
            format!(
                "expected precompiled kernels in {} because PIPESIM_KERNELS is set, found no readable file: put it there, or unset \
                 PIPESIM_KERNELS",
                path.display()
            )
        })?;
        return Ok(Code { image, origin: Origin::File(path) });
    }
    let compiler = Nvrtc::load()
        .context("compiling the kernels; to use precompiled ones instead, set PIPESIM_KERNELS to their folder")?;
    compile(&compiler, &kernel::text(precision, head_size), precision, architecture)
        .with_context(|| format!("compiling the kernels ({}) for sm_{architecture}", &precision.suffix()[1..]))
}

/// Name of a file with precompiled kernels, such as `sm_90_bf16.cubin`.
pub fn file_name(precision: Precision, architecture: u32) -> String {
    format!("sm_{architecture}{}.cubin", precision.suffix())
}

/// Language of the kernels. By the compiler's defaults, multiplications and additions may be fused; divisions and roots are exact.
const STANDARD: &str = "--std=c++17";

fn compile(compiler: &Nvrtc, text: &str, precision: Precision, architecture: u32) -> Result<Code> {
    let version = compiler.version()?;
    let native = (format!("--gpu-architecture=sm_{architecture}"), Image::Cubin);
    let older = PTX_TARGETS.into_iter().filter(|&target| target <= architecture);
    let older = older.map(|target| (format!("--gpu-architecture=compute_{target}"), Image::Ptx));
    let mut refusal = None;
    for (target, image) in std::iter::once(native).chain(older) {
        // The text also defines the macro, as empty, which does not conflict.
        let macros = (precision == Precision::Bf16).then(|| "--define-macro=PIPESIM_BF16=".to_string());
        let options: Vec<String> = [target, STANDARD.to_string()].into_iter().chain(macros).collect();
        let key = key(text, &options, version);
        let path = cache_folder().map(|folder| folder.join(format!("sm_{architecture}{}-{key}", precision.suffix())));
        // A missing, unreadable or truncated file is a cache miss.
        if let Some(image) = path.as_deref().and_then(read_cached) {
            return Ok(Code { image, origin: path.map_or(Origin::Compiled, Origin::Cache) });
        }
        match compiler.compile(text, &options, image) {
            Ok(image) => {
                if let Some(path) = path {
                    write_cached(&path, &image);
                }
                return Ok(Code { image, origin: Origin::Compiled });
            }
            // The compiler does not know the architecture: try an older one.
            Err(error @ CompileError::Refused { code: INVALID_OPTION, .. }) => refusal = refusal.or(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refusal.map_or_else(|| anyhow::anyhow!("expected a target to compile for, found none"), Into::into))
}

/// `NVRTC_ERROR_INVALID_OPTION`.
const INVALID_OPTION: u32 = 5;

/// Returns a hash of everything that the code depends on, in 32 digits.
fn key(text: &str, options: &[String], version: (i32, i32)) -> String {
    [0_u8, 1].map(|half| digest(half, &[text, &options.join(" "), &format!("{version:?}")])).concat()
}

/// Returns 64 bits of a portable hash in 16 digits, different for each `half`.
#[allow(deprecated)] // as above
pub fn digest(half: u8, parts: &[&str]) -> String {
    let mut hasher = SipHasher::new_with_keys(u64::from(half), 0x7069_7065_7369_6d00);
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part.as_bytes());
    }
    format!("{:016x}", hasher.finish())
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cache_folder() -> Option<PathBuf> {
    variable("PIPESIM_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("pipesim")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache/pipesim")))
}

/// A cached file is the code behind a hash of it.
pub fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let code = bytes.split_off(bytes.len().min(CHECK_BYTES));
    (!code.is_empty() && bytes == check(&code)).then_some(code)
}

const CHECK_BYTES: usize = 16;

fn check(code: &[u8]) -> [u8; CHECK_BYTES] {
    #[allow(deprecated)] // as above
    let mut hasher = SipHasher::new_with_keys(2, 0x7069_7065_7369_6d00);
    hasher.write(code);
    let mut bytes = [0; CHECK_BYTES];
    bytes[..8].copy_from_slice(b"pipesim\0");
    bytes[8..].copy_from_slice(&hasher.finish().to_le_bytes());
    bytes
}

/// Writes under a temporary name and renames, so that no reader sees half of it. A cache that cannot be written is no
/// error.
pub fn write_cached(path: &Path, code: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let temporary = path.with_extension(format!("{}.partial", std::process::id()));
    let bytes = [&check(code)[..], code].concat();
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&temporary, bytes))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
}

/// Compiles a small kernel, and returns NVRTC's version.
///
/// # Errors
/// NVRTC is missing, or does not compile it.
pub fn try_compiler() -> Result<(i32, i32), CompileError> {
    let text = "extern \"C\" __global__ void twice(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2.0f; }";
    let compiler = Nvrtc::load()?;
    let version = compiler.version()?;
    let image = compiler.compile(text, &["--gpu-architecture=compute_80".to_string()], Image::Ptx)?;
    if image.len() < 2 { Err(CompileError::Broken("compiles to nothing".to_string())) } else { Ok(version) }
}

/// All kernels of one precision, loaded in one context.
pub struct Kernels {
    context: Arc<Context>,
    /// In the order of [`kernel::NAMES`].
    functions: [FunctionHandle; kernel::NAMES.len()],
    /// Largest dynamic shared memory that each function allows so far, in bytes.
    allowed: Mutex<[u32; kernel::NAMES.len()]>,
    shared_bytes: u32,
}

/// Kernels by context, precision and head size.
type Loaded = BTreeMap<(usize, Precision, Option<usize>), Arc<Kernels>>;

/// Loaded kernels, kept until the process ends, as their contexts are: loading a module can wait for the device.
static LOADED: Mutex<Loaded> = Mutex::new(BTreeMap::new());

impl Kernels {
    /// Returns the kernels of a context. The first call finds or compiles the code for the device and loads every kernel.
    ///
    /// # Errors
    /// There is no code for the device, or the driver rejects it.
    pub fn load(
        context: &Arc<Context>,
        facts: &Facts,
        precision: Precision,
        head_size: Option<usize>,
    ) -> Result<Arc<Kernels>> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (context.handle.raw().addr(), precision, head_size);
        if let Some(kernels) = loaded.get(&key) {
            return Ok(kernels.clone());
        }
        let kernels = Arc::new(Kernels::load_module(context, facts, precision, head_size)?);
        loaded.insert(key, kernels.clone());
        Ok(kernels)
    }

    fn load_module(
        context: &Arc<Context>,
        facts: &Facts,
        precision: Precision,
        head_size: Option<usize>,
    ) -> Result<Kernels> {
        let code = kernels(precision, facts.capability, head_size)?;
        context.make_current()?;
        let api = context.api;
        let module =
            api.load_module(&code.image).with_context(|| format!("loading the kernels of {:?}", code.origin))?;
        let function = |name: &str| -> Result<FunctionHandle> {
            let name = CString::new(format!("{name}{}", precision.suffix()))?;
            api.function(module, &name).with_context(|| {
                format!("expected a kernel {name:?} in the code of {:?}, found none: compile it again", code.origin)
            })
        };
        let mut functions = Vec::with_capacity(kernel::NAMES.len());
        for name in kernel::NAMES {
            functions.push(function(name)?);
        }
        let functions = functions.try_into().map_err(|_| anyhow::anyhow!("the table of kernels has another length"))?;
        let allowed = Mutex::new([kernel::DEFAULT_SHARED_BYTES; kernel::NAMES.len()]);
        Ok(Kernels { context: context.clone(), functions, allowed, shared_bytes: facts.shared_bytes })
    }

    /// Returns the index of the kernel of this name, without suffix. Panics if there is none.
    fn index(name: &str) -> usize {
        kernel::NAMES.binary_search(&name).unwrap_or_else(|_| panic!("no kernel is called {name}"))
    }

    /// Enqueues a kernel on `stream`. The arguments must match the kernel's, in order.
    pub fn launch(&self, stream: &Stream, name: &str, launch: Launch, arguments: &[Argument]) -> Result<()> {
        let launched = stream.launch(self.functions[Kernels::index(name)], launch, arguments);
        launched.with_context(|| format!("launching {name} as {launch:?}"))
    }

    /// Allows launches of a kernel with this much dynamic shared memory. The largest limit of all users stays.
    pub fn allow(&self, name: &str, launch: Launch) -> Result<()> {
        let (bytes, index) = (launch.shared_bytes, Kernels::index(name));
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= allowed[index] {
            return Ok(());
        }
        ensure!(
            bytes <= self.shared_bytes,
            Unsupported(format!(
                "expected {bytes} bytes of shared memory for {name}, found {} on this GPU: choose a model with smaller heads, or \
                 bfloat16",
                self.shared_bytes
            ))
        );
        self.context.make_current()?;
        self.context.api.allow_shared_bytes(self.functions[index], bytes)?;
        allowed[index] = bytes;
        Ok(())
    }
}
