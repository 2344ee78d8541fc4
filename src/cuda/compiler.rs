//! The kernels' machine code for a device: ready-made, from the cache on disk, or compiled now.
//!
//! In this order:
//! 1. `$PIPESIM_KERNELS/sm_90_bf16.cubin` (architecture, precision), for machines without NVRTC;
//! 2. the cache, `$PIPESIM_CACHE`, else `$XDG_CACHE_HOME/pipesim`, else `~/.cache/pipesim`, by a hash of all that the code
//!    depends on;
//! 3. NVRTC, which makes machine code (CUBIN); for an architecture that it does not know, text (PTX) that the driver
//!    compiles. What was made goes to the cache.

use super::api::compiler::{CompileError, Image, Nvrtc};
use super::kernel::{self, Precision};
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::Hasher;
#[allow(deprecated)] // the only hash of the standard library whose function is fixed for good
use std::hash::SipHasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Machine code, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// CUBIN, or PTX that ends with a zero.
    pub image: Vec<u8>,
    /// Where it came from.
    pub origin: Origin,
}

/// Where code came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A ready-made file.
    File(PathBuf),
    /// The cache.
    Cache(PathBuf),
    /// Compiled now.
    Compiled,
}

/// Architectures that PTX is made for, the newest first, when NVRTC does not know the device's own.
const PTX_TARGETS: [u32; 2] = [90, 80];

/// The kernels for devices of this compute capability. Within a process they are made once.
///
/// # Errors
/// There is no ready-made code and no NVRTC, or it does not compile: the error carries the compiler's words.
pub fn kernels(precision: Precision, capability: (u32, u32)) -> Result<Arc<Code>> {
    type Made = BTreeMap<(Precision, (u32, u32)), Arc<Code>>;
    static MADE: Mutex<Made> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = made.get(&(precision, capability)) {
        return Ok(code.clone());
    }
    let code = Arc::new(make(precision, capability)?);
    made.insert((precision, capability), code.clone());
    Ok(code)
}

fn make(precision: Precision, capability: (u32, u32)) -> Result<Code> {
    let architecture = capability.0 * 10 + capability.1;
    if let Some(folder) = variable("PIPESIM_KERNELS") {
        let path = folder.join(file_name(precision, architecture));
        let image = fs::read(&path).with_context(|| {
            format!(
                "expected ready-made kernels in {} since PIPESIM_KERNELS is set, found no such file that can be read: put it \
                 there, or unset PIPESIM_KERNELS",
                path.display()
            )
        })?;
        return Ok(Code { image, origin: Origin::File(path) });
    }
    let compiler =
        Nvrtc::load().context("compiling the kernels; ready-made ones do too: name their folder in PIPESIM_KERNELS")?;
    compile(&compiler, &kernel::text(precision), precision, architecture)
        .with_context(|| format!("compiling the kernels ({}) for sm_{architecture}", &precision.suffix()[1..]))
}

/// Name of a file with ready-made kernels, such as `sm_90_bf16.cubin`.
pub fn file_name(precision: Precision, architecture: u32) -> String {
    format!("sm_{architecture}{}.cubin", precision.suffix())
}

/// The kernels' language. Multiplications and additions may be fused, divisions and roots are exact: the compiler's defaults.
const STANDARD: &str = "--std=c++17";

fn compile(compiler: &Nvrtc, text: &str, precision: Precision, architecture: u32) -> Result<Code> {
    let version = compiler.version()?;
    let native = (format!("--gpu-architecture=sm_{architecture}"), Image::Cubin);
    let older = PTX_TARGETS.into_iter().filter(|&target| target <= architecture);
    let older = older.map(|target| (format!("--gpu-architecture=compute_{target}"), Image::Ptx));
    let mut refusal = None;
    for (target, image) in std::iter::once(native).chain(older) {
        // the text defines the macro too, as empty, which is no contradiction
        let macros = (precision == Precision::Bf16).then(|| "--define-macro=PIPESIM_BF16=".to_string());
        let options: Vec<String> = [target, STANDARD.to_string()].into_iter().chain(macros).collect();
        let key = key(text, &options, version);
        let path = cache_folder().map(|folder| folder.join(format!("sm_{architecture}{}-{key}", precision.suffix())));
        // a file that is missing, unreadable or cut short is only a miss
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
            // an architecture that the compiler does not know: try an older one
            Err(error @ CompileError::Refused { code: INVALID_OPTION, .. }) => refusal = refusal.or(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refusal.map_or_else(|| anyhow::anyhow!("expected a target to compile for, found none"), Into::into))
}

/// `NVRTC_ERROR_INVALID_OPTION`.
const INVALID_OPTION: u32 = 5;

/// What the code depends on, as 32 digits.
fn key(text: &str, options: &[String], version: (i32, i32)) -> String {
    [0_u8, 1].map(|half| digest(half, &[text, &options.join(" "), &format!("{version:?}")])).concat()
}

/// 64 bits of a hash that is the same everywhere, in 16 digits; another for each `half`.
#[allow(deprecated)] // as above
fn digest(half: u8, parts: &[&str]) -> String {
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
fn read_cached(path: &Path) -> Option<Vec<u8>> {
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
fn write_cached(path: &Path, code: &[u8]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_siphash_and_tells_parts_apart() {
        // SipHash-2-4 of nothing under a zero key, from the reference implementation's kind of vectors: stable for good
        #[allow(deprecated)]
        let empty = SipHasher::new_with_keys(0, 0).finish();
        assert_eq!(empty, 0x1e92_4b9d_7377_00d7);
        assert_ne!(digest(0, &["ab", "c"]), digest(0, &["a", "bc"]));
        assert_ne!(digest(0, &["a"]), digest(1, &["a"]));
    }

    #[test]
    fn a_damaged_cache_is_a_miss() {
        let folder = env::temp_dir().join(format!("pipesim-cache-{}", std::process::id()));
        let path = folder.join("sm_90_f32-0");
        assert_eq!(read_cached(&path), None);
        write_cached(&path, b"code");
        assert_eq!(read_cached(&path).as_deref(), Some(&b"code"[..]));
        let mut bytes = fs::read(&path).unwrap();
        bytes.pop();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read_cached(&path), None);
        fs::write(&path, &bytes[..3]).unwrap();
        assert_eq!(read_cached(&path), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
