//! Folders of checkpoints: complete or absent, with lengths and checksums.

use super::weights;
use crate::model::Parameters;
use anyhow::{Context, Result, anyhow, ensure};
use pipesim_models::model_spec::transformer::Config;
use pipesim_schedule::nearest::either;
use pipesim_system::unfinished::Unfinished;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Name of the list of files, which is written last.
const MANIFEST: &str = "manifest.json";
/// Hugging Face's description of the model.
pub const CONFIG: &str = "config.json";
/// AdamW's first moments, stored like the weights.
pub const FIRST_MOMENTS: &str = "first_moments.safetensors";
/// AdamW's second moments, stored like the weights.
pub const SECOND_MOMENTS: &str = "second_moments.safetensors";
/// Position and settings of the run.
pub const STATE: &str = "training.json";

/// All files but the manifest.
const FILES: [&str; 5] = [CONFIG, weights::WEIGHTS, FIRST_MOMENTS, SECOND_MOMENTS, STATE];

/// Prefix of the names of checkpoints; the number of steps follows.
const PREFIX: &str = "step-";

/// Number of checkpoints of a run that are kept.
const KEPT: usize = 2;

/// Largest JSON file of a checkpoint, in bytes.
const MOST_JSON_BYTES: u64 = 64 << 20;

/// The files of a checkpoint.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointManifest {
    schema_version: u32,
    files: BTreeMap<String, FileSum>,
}

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSum {
    bytes: u64,
    /// CRC-32 (ISO 3309), in hexadecimal digits.
    crc32: String,
}

impl FileSum {
    fn of(path: &Path) -> Result<FileSum> {
        let mut file = File::open(path)?;
        let (mut hasher, mut bytes, mut buffer) = (crc32fast::Hasher::new(), 0, vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&buffer[..count]);
                    bytes += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(FileSum { bytes, crc32: format!("{:08x}", hasher.finalize()) })
    }
}

/// A checkpoint that is being written, under a temporary name.
pub struct Writer {
    folder: Unfinished,
    run: PathBuf,
}

impl Writer {
    /// Begins a checkpoint in the folder of a run.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn new(run: &Path) -> Result<Writer> {
        let folder = Unfinished::folder(run).with_context(|| format!("writing to {}", run.display()))?;
        Ok(Writer { folder, run: run.to_path_buf() })
    }

    /// Writes a file of JSON.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)? + "\n";
        self.folder.put(name, text.as_bytes()).with_context(|| format!("writing {name}"))
    }

    /// Writes a file of tensors.
    ///
    /// # Errors
    /// As [`Writer::json`].
    pub fn tensors(&self, name: &str, parameters: &Parameters) -> Result<()> {
        let path = self.folder.path().join(name);
        weights::write(&path, parameters)?;
        let file = File::open(&path)?;
        let permissions = fs::metadata(self.folder.path().join(CONFIG))?.permissions();
        file.set_permissions(permissions)?; // the library makes files that only their owner reads
        file.sync_all().with_context(|| format!("writing {name}"))
    }

    /// Completes the checkpoint after `step` steps, and removes all but the newest two. Returns its folder.
    ///
    /// # Errors
    /// As [`Writer::json`], or a file is missing.
    pub fn finish(self, step: u32) -> Result<PathBuf> {
        let sum = |name: &&str| {
            let sum = FileSum::of(&self.folder.path().join(name)).with_context(|| format!("reading {name} back"))?;
            Ok((name.to_string(), sum))
        };
        let files = FILES.iter().map(sum).collect::<Result<_>>()?;
        self.json(MANIFEST, &CheckpointManifest { schema_version: 1, files })?;
        File::open(self.folder.path())?.sync_all()?;
        let target = self.run.join(format!("{PREFIX}{step:06}"));
        if target.exists() {
            remove(&self.run, &target)?;
        }
        self.folder.rename(&target).with_context(|| format!("naming {}", target.display()))?;
        File::open(&self.run)?.sync_all()?;
        let old = all(&self.run)?;
        old.iter().rev().skip(KEPT).try_for_each(|(_, path)| remove(&self.run, path))?;
        Ok(target)
    }
}

/// Removes a checkpoint: first its name, then its files.
fn remove(run: &Path, checkpoint: &Path) -> Result<()> {
    let aside = Unfinished::folder(run)?;
    let moves = [(checkpoint.to_path_buf(), aside.path().join("old"))];
    aside.rename_all(&moves).with_context(|| format!("removing {}", checkpoint.display()))
}

/// Returns the checkpoints of a run with their numbers of steps, oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn all(run: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run).with_context(|| format!("reading {}", run.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let step = step_of(Path::new(&name)).filter(|_| entry.path().is_dir());
        found.extend(step.map(|step| (step, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// The number of steps in the name of a checkpoint.
fn step_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()
}

/// Why there is no checkpoint to go on from.
#[derive(Debug, thiserror::Error)]
pub enum NotFound {
    /// There is none at the path.
    #[error("{0}")]
    Absent(String),
    /// It is incomplete or damaged, or cannot be read.
    #[error("{0:#}")]
    Damaged(#[from] anyhow::Error),
}

/// Says that there is no checkpoint at `path`, and which there are.
fn absent(path: &Path) -> String {
    let run = path.parent().filter(|run| !run.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let others = step_of(path).and_then(|_| all(run).ok()).unwrap_or_default();
    let names: Vec<String> = others.iter().map(|(_, path)| path.display().to_string()).collect();
    match names.is_empty() {
        true => format!(
            "expected the folder of a training with checkpoints at {}, found none; check the path",
            path.display()
        ),
        false => format!(
            "expected a checkpoint at {}, found none; a run keeps its newest {KEPT}: go on from {}",
            path.display(),
            either(&names)
        ),
    }
}

/// A complete checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its folder, a model that Hugging Face's `transformers` loads.
    pub path: PathBuf,
    /// The folder of the run.
    pub run: PathBuf,
}

impl Checkpoint {
    /// Finds the checkpoint at `path`, or the newest one of the run at `path`, and checks its files.
    ///
    /// # Errors
    /// There is none, or it is incomplete or damaged.
    pub fn find(path: &Path) -> Result<Checkpoint, NotFound> {
        let found = if path.is_dir() && !path.join(MANIFEST).exists() { all(path)? } else { Vec::new() };
        if let Some(((_, newest), older)) = found.split_last() {
            let checkpoint = Checkpoint { path: newest.clone(), run: path.to_path_buf() };
            return Ok(checkpoint.checked(older.last().map(|(_, path)| path.as_path()))?);
        }
        if !(path.join(MANIFEST).exists() || path.is_dir() && step_of(path).is_some()) {
            return Err(NotFound::Absent(absent(path)));
        }
        let full = fs::canonicalize(path).with_context(|| format!("opening {}", path.display()))?;
        let run = full.parent().map(Path::to_path_buf).context("expected a checkpoint in the folder of a run")?;
        Ok(Checkpoint { path: path.to_path_buf(), run }.checked(None)?)
    }

    /// Checks all files against the manifest; `older` is a checkpoint to use instead.
    fn checked(self, older: Option<&Path>) -> Result<Checkpoint> {
        self.check().map_err(|why| {
            let remedy = older.map_or("start again".to_string(), |older| {
                format!("remove it, and go on from {}, the one before", older.display())
            });
            anyhow!("expected a complete checkpoint at {}, found {why:#}: {remedy}", self.path.display())
        })?;
        Ok(self)
    }

    fn check(&self) -> Result<()> {
        let manifest: CheckpointManifest = self.json(MANIFEST)?;
        ensure!(manifest.schema_version == 1, "schema version {} of {MANIFEST}", manifest.schema_version);
        ensure!(manifest.files.keys().len() == FILES.len(), "another list of files in {MANIFEST}");
        for name in FILES {
            let expected = manifest.files.get(name).with_context(|| format!("no {name} in {MANIFEST}"))?;
            let found = FileSum::of(&self.path.join(name)).with_context(|| format!("no readable {name}"))?;
            ensure!(found.bytes == expected.bytes, "{} bytes in {name} instead of {}", found.bytes, expected.bytes);
            ensure!(found == *expected, "a {name} whose checksum is {}, not {}", found.crc32, expected.crc32);
        }
        Ok(())
    }

    /// Reads a file of JSON.
    ///
    /// # Errors
    /// It is absent or something else.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let path = self.path.join(name);
        let length = fs::metadata(&path).with_context(|| format!("no readable {name}"))?.len();
        ensure!(length <= MOST_JSON_BYTES, "a {name} of {length} bytes");
        let text = fs::read_to_string(&path).with_context(|| format!("no readable {name}"))?;
        serde_json::from_str(&text).with_context(|| format!("another content of {name}"))
    }

    /// Reads the elements of a file of tensors for which `is_wanted` is true, by the tensor's number.
    ///
    /// # Errors
    /// As [`weights::read_some`].
    pub fn tensors(
        &self,
        name: &str,
        config: &Config,
        is_wanted: &dyn Fn(usize, &Range<usize>) -> bool,
    ) -> Result<Parameters> {
        weights::read_some(&[self.path.join(name)], config, is_wanted)
    }
}
