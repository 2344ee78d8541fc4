//! The whole model's parameters, and llm.c's checkpoint file that holds them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use pipesim_models::model_spec::transformer::Config;
use pipesim_models::model_spec::{Initial, gpt2};

const MAGIC: i32 = 20240326;
const FLOAT32: i32 = 3;
const BFLOAT16: i32 = 5;

/// Words of every llm.c header, 32 bits each.
const HEADER_WORDS: usize = 256;

/// All parameters of a model in float32, or anything else of their shapes, such as their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The model's sizes.
    pub config: Config,
    /// The tensors of the model's description, [`ModelSpec::tensors`](pipesim_models::model_spec::ModelSpec::tensors): row-major, the
    /// layers of a tensor one after the other, a tied one once. Of a GPT-2 they are llm.c's: wte (Vp, C), wpe (maxT, C), ln1w
    /// (L, C), ln1b (L, C), qkvw (L, 3C, C), qkvb (L, 3C), attprojw (L, C, C), attprojb (L, C), ln2w (L, C), ln2b (L, C), fcw
    /// (L, 4C, C), fcb (L, 4C), fcprojw (L, C, 4C), fcprojb (L, C), lnfw (C), lnfb (C).
    pub tensors: Vec<Vec<f32>>,
}

/// A tensor of [`Parameters`], or one layer's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorPart {
    /// Number of the tensor.
    pub tensor: usize,
    /// Number of the layer; `None` for the whole tensor.
    pub layer: Option<usize>,
}

impl Parameters {
    /// All zeros.
    pub fn zeros(config: &Config) -> Result<Parameters> {
        config.validate()?;
        Ok(Parameters { config: *config, tensors: config.tensor_lengths().into_iter().map(|n| vec![0.0; n]).collect() })
    }

    /// The initialisation that the model's spec describes, tensor by tensor. The same seed gives the same parameters.
    pub fn random(config: &Config, seed: u64) -> Result<Parameters> {
        let mut parameters = Parameters::zeros(config)?;
        let mut normal = Normal::new(seed);
        for ((_, tensor), values) in config.spec().tensors().zip(&mut parameters.tensors) {
            let own = values.len() - tensor.padding_elements() as usize;
            match tensor.initial {
                Initial::Normal(deviation) => normal.fill(&mut values[..own], deviation),
                Initial::One => values.fill(1.0),
                Initial::Zero => {}
            }
        }
        Ok(parameters)
    }

    /// Checks that all numbers are finite.
    ///
    /// # Errors
    /// One is not; its tensor is named.
    pub fn check_finite(&self) -> Result<()> {
        for ((_, tensor), values) in self.config.spec().tensors().zip(&self.tensors) {
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                bail!("expected finite numbers in the tensor '{}', found {value}", tensor.name);
            }
        }
        Ok(())
    }

    /// One tensor, or one layer's part of it.
    pub(crate) fn part(&self, tensor: usize, layer: Option<usize>) -> &[f32] {
        &self.tensors[tensor][self.range(tensor, layer)]
    }

    /// One tensor, or one layer's part of it.
    pub(crate) fn part_mut(&mut self, tensor: usize, layer: Option<usize>) -> &mut [f32] {
        let range = self.range(tensor, layer);
        &mut self.tensors[tensor][range]
    }

    /// The elements of a part in its tensor.
    pub fn range(&self, tensor: usize, layer: Option<usize>) -> Range<usize> {
        let whole = self.tensors[tensor].len();
        let length = whole / self.config.layers;
        layer.map_or(0..whole, |layer| layer * length..(layer + 1) * length)
    }

    /// The sizes of the model in llm.c's checkpoint, without its parameters.
    pub fn read_config(path: &Path) -> Result<Config> {
        read_header(path)
            .map(|(_, sizes, _)| sizes.transformer())
            .with_context(|| format!("reading the checkpoint {}", path.display()))
    }

    /// Reads llm.c's checkpoint, version 3 (float32) or 5 (bfloat16).
    pub fn read(path: &Path) -> Result<Parameters> {
        read(path).with_context(|| format!("reading the checkpoint {}", path.display()))
    }
}

/// Normally distributed numbers by Box and Muller's transform, from a generator that is the same everywhere.
struct Normal {
    generator: ChaCha8Rng,
}

impl Normal {
    fn new(seed: u64) -> Normal {
        Normal { generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    fn fill(&mut self, values: &mut [f32], deviation: f64) {
        // 1 to 2^32, over 2^32: never 0, whose logarithm is infinite
        let mut uniform = || (f64::from(self.generator.next_u32()) + 1.0) / 4_294_967_296.0;
        for pair in values.chunks_mut(2) {
            let radius = deviation * (-2.0 * uniform().ln()).sqrt();
            let (sine, cosine) = (std::f64::consts::TAU * uniform()).sin_cos();
            pair[0] = (radius * cosine) as f32;
            if let Some(second) = pair.get_mut(1) {
                *second = (radius * sine) as f32;
            }
        }
    }
}

/// Opens a file and reads llm.c's header. Returns the file's length in bytes too.
fn open(path: &Path) -> Result<(BufReader<File>, [i32; HEADER_WORDS], u64)> {
    let file = File::open(path).context("cannot open it: check the path")?;
    let length = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut bytes = [0; HEADER_WORDS * 4];
    ensure!(
        length >= bytes.len() as u64,
        "expected a header of 1024 bytes, found a file of {length}: use a complete file"
    );
    reader.read_exact(&mut bytes)?;
    let mut header = [0; HEADER_WORDS];
    for (word, bytes) in header.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = i32::from_le_bytes(*bytes);
    }
    Ok((reader, header, length))
}

/// Fills `values` from little-endian float32.
fn read_floats(reader: &mut impl Read, values: &mut [f32]) -> Result<()> {
    reader.read_exact(bytemuck::cast_slice_mut(values))?;
    if cfg!(target_endian = "big") {
        values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits().swap_bytes()));
    }
    Ok(())
}

/// Compares a file's length with what its header says.
fn check_length(found: u64, expected: u128) -> Result<()> {
    match u128::from(found).cmp(&expected) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => {
            bail!("expected {expected} bytes by its header, found {found}: the file is cut short, fetch it again")
        }
        std::cmp::Ordering::Greater => bail!(
            "expected {expected} bytes by its header, found {found}: bytes follow the end, use the file as it was written"
        ),
    }
}

/// Reads a checkpoint's header, and whether the file is as long as it says. Returns whether it holds float32, too.
fn read_header(path: &Path) -> Result<(BufReader<File>, gpt2::Config, bool)> {
    let (reader, header, length) = open(path)?;
    ensure!(
        header[0] == MAGIC,
        "expected a checkpoint of llm.c, which starts with {MAGIC}, found {}: pass a model file such as gpt2_124M.bin",
        header[0]
    );
    let version = header[1];
    ensure!(
        version == FLOAT32 || version == BFLOAT16,
        "expected version {FLOAT32} (float32) or {BFLOAT16} (bfloat16), found {version}: write it again with llm.c's train_gpt2.py"
    );
    let size = |word: usize, name: &str| {
        usize::try_from(header[word]).with_context(|| {
            format!("expected a positive {name} in the header, found {}: use an undamaged file", header[word])
        })
    };
    let config = gpt2::Config {
        max_sequence: size(2, "max_sequence")?,
        vocabulary: size(3, "vocabulary")?,
        layers: size(4, "layers")?,
        heads: size(5, "heads")?,
        channels: size(6, "channels")?,
    };
    config.validate().context("the header's sizes")?;
    ensure!(
        size(7, "padded vocabulary")? == config.padded_vocabulary(),
        "expected a vocabulary of {} padded to {}, found {}: pad it to a multiple of 128 when writing the file",
        config.vocabulary,
        config.padded_vocabulary(),
        header[7]
    );
    let width = if version == FLOAT32 { 4 } else { 2 };
    check_length(length, HEADER_WORDS as u128 * 4 + config.parameter_count() as u128 * width)?;
    Ok((reader, config, version == FLOAT32))
}

fn read(path: &Path) -> Result<Parameters> {
    let (mut reader, config, is_float32) = read_header(path)?;
    // the file has as many bytes as the header says: what is allocated now is bounded by twice its length
    let mut parameters = Parameters::zeros(&config.transformer())?;
    for tensor in &mut parameters.tensors {
        if is_float32 {
            read_floats(&mut reader, tensor)?;
        } else {
            let mut bytes = [0; 4096];
            for values in tensor.chunks_mut(bytes.len() / 2) {
                reader.read_exact(&mut bytes[..2 * values.len()])?;
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
        }
    }
    Ok(parameters)
}
