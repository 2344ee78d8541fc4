//! Training data: token ids in a row, and the batches that are cut from it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::text;

/// The formats of llm.c's token files: magic, version, bytes of an id.
const FORMATS: [(i32, i32, usize); 2] = [(20240520, 1, 2), (20240801, 7, 4)];
const HEADER_BYTES: usize = 1024;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tokenizer {
    /// Every byte is a token.
    #[default]
    Bytes,
    /// GPT-2's byte pair encoding.
    Gpt2,
}

impl Tokenizer {
    /// Returns the ids of a text.
    pub fn encode(self, text: &str) -> Vec<u32> {
        match self {
            Tokenizer::Bytes => text.bytes().map(u32::from).collect(),
            Tokenizer::Gpt2 => tiktoken_rs::r50k_base_singleton().encode_ordinary(text),
        }
    }

    /// Returns the text of ids, with a replacement character for what is no text.
    pub fn decode(self, ids: &[u32]) -> String {
        const END_OF_TEXT: &[u8] = b"<|endoftext|>";
        let mut bytes = Vec::new();
        for &id in ids {
            match (self, u8::try_from(id)) {
                (Tokenizer::Bytes, Ok(byte)) => bytes.push(byte),
                (Tokenizer::Bytes, Err(_)) | (Tokenizer::Gpt2, _) if id == self.end_of_text() => {
                    bytes.extend(END_OF_TEXT);
                }
                (Tokenizer::Gpt2, _) if id < self.end_of_text() => {
                    let tokenizer = tiktoken_rs::r50k_base_singleton();
                    tokenizer._decode_native_and_split(vec![id]).for_each(|part| bytes.extend(part));
                }
                _ => bytes.extend("\u{fffd}".as_bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id after all others.
    fn end_of_text(self) -> u32 {
        match self {
            Tokenizer::Bytes => 256,
            Tokenizer::Gpt2 => 50256,
        }
    }
}

/// Token ids in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// What a model's vocabulary must be at least: the largest id + 1.
    pub vocabulary_needed: usize,
    ids: Vec<u32>,
}

impl Tokens {
    /// Longest file that is read, in bytes: more than a training of these models sees.
    pub const MOST_BYTES: u64 = 4 << 30;

    /// Reads llm.c's token file of 16-bit ids (magic 20240520, version 1) or of 32-bit ids (20240801, version 7), or any other
    /// file as text. The tokenizer is for text only.
    pub fn read(path: &Path, tokenizer: Tokenizer) -> Result<Tokens> {
        let read = || {
            let bytes = read_all(path)?;
            let magic = bytes.first_chunk().map(|&word| i32::from_le_bytes(word));
            match magic {
                Some(20240326..=20240328 | 20240522) => bail!(
                    "expected a token file (magic {} or {}) or text, found another of llm.c's files: pass the data file",
                    FORMATS[0].0,
                    FORMATS[1].0
                ),
                Some(magic) if let Some(&(_, version, width)) = FORMATS.iter().find(|format| format.0 == magic) => {
                    from_token_file(&bytes, version, width)
                }
                _ => from_text(bytes, tokenizer),
            }
        };
        read().with_context(|| format!("reading the data {}", path.display()))
    }

    /// Whether the file holds tokens, not text.
    pub fn is_token_file(path: &Path) -> bool {
        let mut word = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut word));
        read.is_ok() && FORMATS.iter().any(|format| format.0 == i32::from_le_bytes(word))
    }

    /// A text that needs no file: some 300 kB of simple English made up from a fixed seed, as bytes, an end-of-text token
    /// (256) before every story.
    pub fn embedded() -> Tokens {
        Tokens::from_ids(text::stories())
    }

    fn from_ids(ids: Vec<u32>) -> Tokens {
        Tokens { vocabulary_needed: ids.iter().max().map_or(0, |&most| most as usize + 1), ids }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Removes the tokens from number `at` on, and returns them.
    ///
    /// # Panics
    /// There are fewer.
    pub fn split_off(&mut self, at: usize) -> Tokens {
        Tokens { vocabulary_needed: self.vocabulary_needed, ids: self.ids.split_off(at) }
    }

    /// CRC-32 of the ids, each as four bytes, the lowest first.
    pub fn crc32(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        let mut bytes = Vec::with_capacity(1 << 16);
        for ids in self.ids.chunks(1 << 14) {
            bytes.clear();
            bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            hasher.update(&bytes);
        }
        hasher.finalize()
    }

    /// Inputs and targets (B, T) of a training step, counted from 0. Batches are consecutive and unshuffled: batch k holds
    /// tokens k·B·T to k·B·T + B·T - 1, targets are one further. After floor((n - 1) / (B·T)) batches it starts again.
    pub fn batch(&self, step: usize, sequences: usize, tokens: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let length = sequences.checked_mul(tokens).filter(|&length| length > 0);
        let length = length.with_context(|| {
            format!("expected a batch of at least 1 token, found {sequences} sequences of {tokens}: choose other sizes")
        })?;
        let batches = self.ids.len().saturating_sub(1) / length;
        ensure!(
            batches > 0,
            "expected data of at least {length} + 1 tokens for a batch of {sequences} sequences of {tokens} tokens, \
             found {}: use longer data or a smaller batch",
            self.ids.len()
        );
        let start = step % batches * length;
        let inputs = &self.ids[start..start + length];
        Ok((inputs.to_vec(), self.ids[start + 1..start + 1 + length].to_vec()))
    }
}

/// Reads a file's bytes. The file may be longer than its metadata says, as system files are.
fn read_all(path: &Path) -> Result<Vec<u8>> {
    let what = "cannot read it: check the path";
    let file = File::open(path).context(what)?;
    let length = file.metadata().context(what)?.len();
    ensure!(length <= Tokens::MOST_BYTES, too_long());
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(Tokens::MOST_BYTES + 1).read_to_end(&mut bytes).context(what)?;
    ensure!(bytes.len() as u64 <= Tokens::MOST_BYTES, too_long());
    Ok(bytes)
}

fn too_long() -> String {
    let most = Tokens::MOST_BYTES >> 30;
    format!("expected at most {most} GiB of data, found more: use a part of it, as head -c 1G FILE writes")
}

/// Reads a token file of this version, with ids of `width` bytes.
fn from_token_file(bytes: &[u8], expected_version: i32, width: usize) -> Result<Tokens> {
    let word =
        |index: usize| bytes.get(4 * index..).and_then(<[u8]>::first_chunk).map(|&word| i32::from_le_bytes(word));
    let (Some(version), Some(count), Some(body)) = (word(1), word(2), bytes.get(HEADER_BYTES..)) else {
        bail!("expected a header of {HEADER_BYTES} bytes, found a file of {}: use a complete file", bytes.len());
    };
    ensure!(
        version == expected_version,
        "expected version {expected_version}, found {version}: write it again with llm.c's dev/data scripts"
    );
    let expected = HEADER_BYTES as i64 + width as i64 * i64::from(count);
    ensure!(
        count >= 0 && bytes.len() as i64 == expected,
        "expected {expected} bytes for the {count} tokens of its header, found {}: fetch the file again",
        bytes.len()
    );
    Ok(Tokens::from_ids(match width {
        2 => body.as_chunks::<2>().0.iter().map(|id| u32::from(u16::from_le_bytes(*id))).collect(),
        _ => body.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect(),
    }))
}

fn from_text(bytes: Vec<u8>, tokenizer: Tokenizer) -> Result<Tokens> {
    ensure!(!bytes.is_empty(), "expected a text, found an empty file: use one with text");
    match tokenizer {
        Tokenizer::Bytes => Ok(Tokens::from_ids(bytes.into_iter().map(u32::from).collect())),
        Tokenizer::Gpt2 => {
            let text = String::from_utf8(bytes).context("expected UTF-8 text: convert it, or read it as bytes")?;
            let ids = tiktoken_rs::r50k_base_singleton().encode_ordinary(&text);
            Ok(Tokens::from_ids(ids))
        }
    }
}
