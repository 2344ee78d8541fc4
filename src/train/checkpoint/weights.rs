//! A model's parameters in safetensors files (<https://github.com/huggingface/safetensors>) with Hugging Face's names.

use super::names::{self, StoredTensor, stored_tensors};
use crate::model::Parameters;
use anyhow::{Context, Result, bail, ensure};
use memmap2::Mmap;
use pipesim_models::model_spec::transformer::Config;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, View};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Name of a folder's file of weights.
pub const WEIGHTS: &str = "model.safetensors";
/// Name of a folder's list of several files of weights.
const INDEX: &str = "model.safetensors.index.json";

/// Largest index that is read, in bytes.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// Reads the weights of a model from Hugging Face's folder: from one file or from several with an index.
///
/// # Errors
/// There are no weights, or a tensor is missing, unknown, or of another shape or type; it is named.
pub fn read_folder(folder: &Path, config: &Config) -> Result<Parameters> {
    let whole = folder.join(WEIGHTS);
    if whole.is_file() {
        return read(&[whole], config);
    }
    let index = folder.join(INDEX);
    if !index.is_file() {
        bail!(
            "expected {WEIGHTS} or {INDEX} in {}, found neither: fetch the weights, or give {} for random ones",
            folder.display(),
            folder.join("config.json").display()
        );
    }
    read_index(&index, folder, config).with_context(|| format!("reading {}", index.display()))
}

/// The files that hold each tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn read_index(index: &Path, folder: &Path, config: &Config) -> Result<Parameters> {
    let length = index.metadata()?.len();
    ensure!(length <= MOST_INDEX_BYTES, "expected an index of at most 64 MiB, found {length} bytes: fetch it again");
    let text = std::fs::read_to_string(index)?;
    let Index { weight_map } = serde_json::from_str(&text).context("expected a 'weight_map': fetch the file again")?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    for name in &names {
        let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name.as_str());
        ensure!(is_plain, "expected names of files in the same folder, found '{name}': fetch the index again");
    }
    read(&names.into_iter().map(|name| folder.join(name)).collect::<Vec<_>>(), config)
}

/// Whether elements of a tensor, by its number, are to be read.
type IsWanted<'a> = &'a dyn Fn(usize, &Range<usize>) -> bool;

/// Reads parameters from `files`, which together hold each tensor of the model once.
///
/// # Errors
/// As [`read_folder`].
pub fn read(files: &[PathBuf], config: &Config) -> Result<Parameters> {
    read_some(files, config, &|_, _| true)
}

/// As [`read`], but elements for which `is_wanted` is false stay 0, without memory of their own.
///
/// # Errors
/// As [`read_folder`].
pub fn read_some(files: &[PathBuf], config: &Config, is_wanted: IsWanted<'_>) -> Result<Parameters> {
    let mapped = files.iter().map(|file| map(file)).collect::<Result<Vec<Mmap>>>()?;
    let mut found: BTreeMap<String, TensorView<'_>> = BTreeMap::new();
    for (bytes, file) in mapped.iter().zip(files) {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| {
            anyhow::anyhow!("expected a safetensors file at {}, found {error}: fetch it again", file.display())
        })?;
        for (name, view) in tensors.iter() {
            let twice = found.insert(name.to_string(), view).is_some();
            ensure!(
                !twice,
                "expected each tensor once, found '{name}' in {} again: fetch the files again",
                file.display()
            );
        }
    }
    fill(&mut found, config, is_wanted)
        .with_context(|| format!("reading {}", files.first().map_or("".into(), |file| file.display().to_string())))
}

fn map(path: &Path) -> Result<Mmap> {
    let open = || {
        let file = File::open(path)?;
        // SAFETY: the map is only read, and what is read is checked; who changes the file meanwhile changes what is read.
        unsafe { Mmap::map(&file) }
    };
    open().with_context(|| format!("opening {}: check the path", path.display()))
}

/// Moves the tensors `found` into a model's parameters.
fn fill(found: &mut BTreeMap<String, TensorView<'_>>, config: &Config, is_wanted: IsWanted<'_>) -> Result<Parameters> {
    let mut parameters = Parameters::zeros(config)?;
    let mut missing = Vec::new();
    for stored in stored_tensors(config)? {
        let short = names::without_head(&stored.name);
        match found.remove(&stored.name).or_else(|| found.remove(short?)) {
            Some(_) if !is_wanted(stored.tensor, &stored.range) => {}
            Some(view) => copy(&view, &stored, &mut parameters.tensors[stored.tensor][stored.range.clone()])?,
            None => missing.push(stored.name),
        }
    }
    if let Some(first) = missing.first() {
        bail!(
            "expected a tensor '{first}', found none ({} missing in all): use the weights that belong to this config.json",
            missing.len()
        );
    }
    if let Some(head) = found.remove(names::HEAD_WEIGHT) {
        check_tied(&head, config, &parameters, is_wanted)?;
    }
    found.retain(|name, _| !names::is_buffer(name));
    if let Some(first) = found.keys().next() {
        bail!(
            "expected no tensor '{first}' in this model, found one ({} unknown in all): use the weights that belong to this \
             config.json",
            found.len()
        );
    }
    Ok(parameters)
}

/// Checks a head that is stored although it shares the embedding.
fn check_tied(head: &TensorView<'_>, config: &Config, parameters: &Parameters, is_wanted: IsWanted<'_>) -> Result<()> {
    let stored = stored_tensors(config)?.into_iter().find(|stored| stored.name == names::embedding(config));
    let stored = stored.context("expected a token embedding")?;
    if !is_wanted(stored.tensor, &stored.range) {
        return Ok(());
    }
    let stored = StoredTensor { name: names::HEAD_WEIGHT.to_string(), ..stored };
    let embedding = &parameters.tensors[stored.tensor][stored.range.clone()];
    let mut values = vec![0.0; embedding.len()];
    copy(head, &stored, &mut values)?;
    let is_same = values.iter().zip(embedding).all(|(one, other)| one.to_bits() == other.to_bits());
    ensure!(
        is_same,
        "expected '{}' to be the embedding, since tie_word_embeddings is true, found other values: set it to false in config.json",
        names::HEAD_WEIGHT
    );
    Ok(())
}

/// Converts a tensor to float32 in the model's order.
fn copy(view: &TensorView<'_>, stored: &StoredTensor, into: &mut [f32]) -> Result<()> {
    let (name, shape) = (&stored.name, &stored.shape);
    ensure!(
        view.shape() == shape,
        "expected '{name}' of shape {shape:?}, found {:?}: use the weights that belong to this config.json",
        view.shape()
    );
    let data = view.data();
    let words = || data.as_chunks::<2>().0.iter().copied();
    match view.dtype() {
        Dtype::F32 => place(stored, into, data.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes))),
        Dtype::BF16 => place(stored, into, words().map(|bytes| half::bf16::from_le_bytes(bytes).to_f32())),
        Dtype::F16 => place(stored, into, words().map(|bytes| half::f16::from_le_bytes(bytes).to_f32())),
        other => bail!("expected '{name}' in F32, BF16 or F16, found {other:?}: convert the weights"),
    }
}

fn place(stored: &StoredTensor, into: &mut [f32], values: impl Iterator<Item = f32>) -> Result<()> {
    let mut other = None;
    for (index, value) in values.enumerate() {
        other = other.or_else(|| (!value.is_finite()).then_some((index, value)));
        into[stored.place(index)] = value;
    }
    match other {
        None => Ok(()),
        Some((index, value)) => bail!(
            "expected finite numbers in '{}', found {value} as number {index} from 0: use weights from before they diverged",
            stored.name
        ),
    }
}

/// A tensor of the model as Hugging Face stores it, in float32.
struct WrittenTensor<'a> {
    stored: &'a StoredTensor,
    values: &'a [f32],
}

impl View for WrittenTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.stored.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if !self.stored.transposed && cfg!(target_endian = "little") {
            return Cow::Borrowed(bytemuck::cast_slice(self.values));
        }
        let values = (0..self.values.len()).flat_map(|index| self.values[self.stored.place(index)].to_le_bytes());
        Cow::Owned(values.collect())
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes parameters, or anything else of their shapes, as one file in float32. The file is complete or absent, but not yet on
/// the disk.
///
/// # Errors
/// The file cannot be written, or Hugging Face has no such model.
pub fn write(path: &Path, parameters: &Parameters) -> Result<()> {
    let stored = stored_tensors(&parameters.config)?;
    let tensors = stored.iter().map(|stored| {
        let values = &parameters.tensors[stored.tensor][stored.range.clone()];
        (stored.name.as_str(), WrittenTensor { stored, values })
    });
    let metadata = [("format".to_string(), "pt".to_string())]; // as transformers expects
    safetensors::serialize_to_file(tensors, Some(metadata.into_iter().collect()), path)
        .map_err(|error| match error {
            safetensors::SafeTensorError::IoError(error) => anyhow::Error::from(error),
            error => anyhow::anyhow!("{error}"),
        })
        .with_context(|| format!("writing {}", path.display()))
}
