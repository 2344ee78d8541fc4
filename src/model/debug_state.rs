//! llm.c's debug state: one batch with the logits, the loss and the gradients that PyTorch computed for it.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Config;
use super::parameters::{HEADER_WORDS, check_length, open, read_floats};

const MAGIC: i32 = 20240327;
const VERSION: i32 = 2;

/// One batch and what PyTorch made of it.
#[derive(Clone, Debug)]
pub struct DebugState {
    /// Sequences, B.
    pub batch: usize,
    /// Tokens a sequence, T.
    pub tokens: usize,
    /// Token ids (B, T).
    pub inputs: Vec<u32>,
    /// Token ids (B, T).
    pub targets: Vec<u32>,
    /// (B, T, V)
    pub logits: Vec<f32>,
    /// Mean over all tokens.
    pub loss: f32,
    /// Gradients of the parameters, in llm.c's order and shapes.
    pub gradients: [Vec<f32>; 16],
}

impl DebugState {
    /// Reads the debug state of a model of these sizes.
    pub fn read(path: &Path, config: &Config) -> Result<DebugState> {
        read(path, config).with_context(|| format!("reading the debug state {}", path.display()))
    }
}

fn read(path: &Path, config: &Config) -> Result<DebugState> {
    config.validate()?;
    let (mut reader, header, length) = open(path)?;
    ensure!(
        header[0] == MAGIC,
        "expected a debug state of llm.c, which starts with {MAGIC}, found {}: pass a file such as gpt2_124M_debug_state.bin",
        header[0]
    );
    ensure!(
        header[1] == VERSION,
        "expected version {VERSION}, found {}: write it again with llm.c's train_gpt2.py",
        header[1]
    );
    let [batch, tokens] = [header[2], header[3]].map(|size| usize::try_from(size).unwrap_or(0));
    ensure!(
        batch > 0 && (1..=config.max_sequence).contains(&tokens),
        "expected at least 1 sequence of 1 to {} tokens, found {} of {}: use the debug state of this model",
        config.max_sequence,
        header[2],
        header[3]
    );
    let n = batch as u128 * tokens as u128;
    let elements = 2 * n + n * config.vocabulary as u128 + 1 + config.parameter_count() as u128;
    check_length(length, 4 * (HEADER_WORDS as u128 + elements))?;
    let n = batch * tokens;
    let inputs = read_tokens(&mut reader, n, config)?;
    let targets = read_tokens(&mut reader, n, config)?;
    let mut logits = vec![0.0; n * config.vocabulary];
    read_floats(&mut reader, &mut logits)?;
    let mut loss = [0.0];
    read_floats(&mut reader, &mut loss)?;
    let mut gradients = config.tensor_lengths().map(|length| vec![0.0; length]);
    for gradient in &mut gradients {
        read_floats(&mut reader, gradient)?;
    }
    Ok(DebugState { batch, tokens, inputs, targets, logits, loss: loss[0], gradients })
}

fn read_tokens(reader: &mut impl Read, count: usize, config: &Config) -> Result<Vec<u32>> {
    let mut bytes = vec![0; 4 * count];
    reader.read_exact(&mut bytes)?;
    let tokens: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let beyond = tokens.iter().find(|&&token| token as usize >= config.vocabulary);
    ensure!(
        beyond.is_none(),
        "expected token ids below the vocabulary's {}, found {beyond:?}: use the debug state of this model",
        config.vocabulary
    );
    Ok(tokens)
}
