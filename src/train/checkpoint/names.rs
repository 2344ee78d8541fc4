//! Hugging Face's names of the tensors of GPT-2 and Llama, and the place of each in a model's own tensors.

use anyhow::{Context, Result, ensure};
use pipesim_models::model_spec::Tensor;
use pipesim_models::model_spec::transformer::{Config, Style};
use std::ops::Range;

/// A tensor of Hugging Face's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Hugging Face's name.
    pub name: String,
    /// Shape in the file.
    pub shape: Vec<usize>,
    /// Number of the model's tensor that holds it, in the order of [`pipesim_models::model_spec::ModelSpec::tensors`].
    pub tensor: usize,
    /// Its elements in that tensor.
    pub range: Range<usize>,
    /// Whether the file has (inputs, outputs) where the model has (outputs, inputs).
    pub transposed: bool,
}

impl StoredTensor {
    /// Returns the index in the model's part of the tensor of element `index` of the file's tensor.
    pub fn place(&self, index: usize) -> usize {
        match (self.transposed, self.shape.as_slice()) {
            (true, &[inputs, outputs]) => index % outputs * inputs + index / outputs,
            _ => index,
        }
    }
}

/// A tensor of the model's description, the names of the tensors of Hugging Face that its rows hold one after the other, and whether
/// these are transposed. `{}` is the number of the layer.
type Row = (&'static str, &'static [&'static str], bool);

/// `GPT2LMHeadModel`, whose products are `Conv1D`: weights are (inputs, outputs).
const GPT2: [Row; 17] = [
    ("wte", &["transformer.wte.weight"], false),
    ("wpe", &["transformer.wpe.weight"], false),
    ("ln1w", &["transformer.h.{}.ln_1.weight"], false),
    ("ln1b", &["transformer.h.{}.ln_1.bias"], false),
    ("qkvw", &["transformer.h.{}.attn.c_attn.weight"], true),
    ("qkvb", &["transformer.h.{}.attn.c_attn.bias"], false),
    ("attprojw", &["transformer.h.{}.attn.c_proj.weight"], true),
    ("attprojb", &["transformer.h.{}.attn.c_proj.bias"], false),
    ("ln2w", &["transformer.h.{}.ln_2.weight"], false),
    ("ln2b", &["transformer.h.{}.ln_2.bias"], false),
    ("fcw", &["transformer.h.{}.mlp.c_fc.weight"], true),
    ("fcb", &["transformer.h.{}.mlp.c_fc.bias"], false),
    ("fcprojw", &["transformer.h.{}.mlp.c_proj.weight"], true),
    ("fcprojb", &["transformer.h.{}.mlp.c_proj.bias"], false),
    ("lnfw", &["transformer.ln_f.weight"], false),
    ("lnfb", &["transformer.ln_f.bias"], false),
    ("logits", &["lm_head.weight"], false),
];

/// `LlamaForCausalLM` and its relatives.
const LLAMA: [Row; 13] = [
    ("tok_embeddings", &["model.embed_tokens.weight"], false),
    ("attention_norm", &["model.layers.{}.input_layernorm.weight"], false),
    (
        "wqkv",
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
        ],
        false,
    ),
    (
        "bqkv",
        &[
            "model.layers.{}.self_attn.q_proj.bias",
            "model.layers.{}.self_attn.k_proj.bias",
            "model.layers.{}.self_attn.v_proj.bias",
        ],
        false,
    ),
    ("wo", &["model.layers.{}.self_attn.o_proj.weight"], false),
    ("bo", &["model.layers.{}.self_attn.o_proj.bias"], false),
    ("ffn_norm", &["model.layers.{}.post_attention_layernorm.weight"], false),
    ("w13", &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"], false),
    ("b13", &["model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.up_proj.bias"], false),
    ("w2", &["model.layers.{}.mlp.down_proj.weight"], false),
    ("b2", &["model.layers.{}.mlp.down_proj.bias"], false),
    ("norm", &["model.norm.weight"], false),
    ("output", &["lm_head.weight"], false),
];

/// Endings of buffers that files of older versions of `transformers` contain; they hold no parameters.
const BUFFERS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// Returns whether the tensor of this name holds no parameters.
pub fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|ending| name.ends_with(ending))
}

/// Returns the name in files of the model without its head: without the first part, `transformer.` or `model.`.
pub fn without_head(name: &str) -> Option<&str> {
    ["transformer.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Name of the head's weight, which is no tensor of its own in a tied model.
pub const HEAD_WEIGHT: &str = "lm_head.weight";

/// Name of the token embedding.
pub fn embedding(config: &Config) -> &'static str {
    match config.style {
        Style::Gpt => GPT2[0].1[0],
        Style::Llama => LLAMA[0].1[0],
    }
}

/// Returns the tensors of Hugging Face's files for a model, without the padding rows of its vocabulary.
///
/// # Errors
/// Hugging Face's GPT-2 or Llama has no such tensor.
pub fn stored_tensors(config: &Config) -> Result<Vec<StoredTensor>> {
    let spec = config.spec();
    let mut stored = Vec::new();
    for (number, (count, tensor)) in spec.tensors().enumerate() {
        let (names, transposed) = names(config, tensor)?;
        let row: usize = tensor.shape[1..].iter().product();
        let own = tensor.shape[0] - tensor.padding;
        let parts = rows(config, names.len(), own)
            .with_context(|| format!("expected {} tensors in '{}', found {own} rows", names.len(), tensor.name))?;
        for layer in 0..count {
            let mut first = layer * tensor.elements() as usize;
            for (name, &rows) in names.iter().zip(&parts) {
                let mut shape: Vec<usize> = [rows].into_iter().chain(tensor.shape[1..].iter().copied()).collect();
                if transposed {
                    shape.reverse();
                }
                let (name, range) = (name.replace("{}", &layer.to_string()), first..first + rows * row);
                first = range.end;
                stored.push(StoredTensor { name, shape, tensor: number, range, transposed });
            }
        }
    }
    Ok(stored)
}

fn names(config: &Config, tensor: &Tensor) -> Result<(&'static [&'static str], bool)> {
    let (table, model) = match config.style {
        Style::Gpt => (&GPT2[..], "GPT-2"),
        Style::Llama => (&LLAMA[..], "Llama"),
    };
    let row = table.iter().find(|(name, ..)| *name == tensor.name);
    let &(_, names, transposed) = row.with_context(|| {
        format!(
            "expected a model that Hugging Face's {model} can hold, found the tensor '{}': use another model",
            tensor.name
        )
    })?;
    Ok((names, transposed))
}

/// The rows of each of `count` tensors that are stored as one: queries, keys and values; gate and up.
fn rows(config: &Config, count: usize, own: usize) -> Result<Vec<usize>> {
    let Config { heads, groups, head_size, mlp, .. } = *config;
    let rows = match count {
        1 => vec![own],
        2 => vec![mlp; 2],
        _ => vec![heads * head_size, groups * head_size, groups * head_size],
    };
    ensure!(rows.iter().sum::<usize>() == own, "found {rows:?} rows: use a model with a gated MLP");
    Ok(rows)
}
