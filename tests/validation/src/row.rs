//! A table of published, measured steps: model, hardware, layout, software, and the time of an iteration.

use crate::mixture::{MixtureFields, Recomputed};
use anyhow::{Context, Result};
use pipesim::costs::{Analytic, Platform};
use pipesim::models::Attention;
use pipesim::models::{
    Activation, ActivationFunction, Biases, Rotary, Style, TransformerConfig, hardware, micro_batches,
    read_huggingface, read_shape, stack,
};
use pipesim::{Hardware, ParallelConfig, Stack};
use serde::Deserialize;
use serde_json::Value;

/// One measured step.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// Identifier in the table.
    pub id: String,
    /// The publication.
    pub family: String,
    /// Publication, model, precision and GPU.
    pub group: String,
    /// Weight in averages: below 1 for near-duplicates.
    #[serde(default = "one")]
    pub weight: f64,
    /// The model.
    pub model: Model,
    /// Tokens per sequence.
    pub seq: u32,
    /// Name of the hardware.
    pub gpu: String,
    /// Total number of GPUs.
    pub gpus: u64,
    /// GPUs per node.
    pub gpus_per_node: f64,
    /// Bandwidth between nodes, in Gbit/s per GPU and direction.
    pub network_gbps_per_gpu: f64,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Devices per pipeline.
    pub pp: u32,
    /// Context-parallel ranks.
    pub cp: u32,
    /// Pipelines.
    pub dp: u32,
    /// Whether sequence parallelism is on.
    #[serde(default)]
    pub sequence_parallel: bool,
    /// Stages per device.
    pub chunks: u32,
    /// Name of the schedule; `none` without pipeline parallelism.
    pub schedule: String,
    /// Sequences per micro-batch.
    pub micro_batch_size: u32,
    /// Sequences per step.
    pub batch: u32,
    /// Precision of matrix products.
    pub precision: String,
    /// Activation recomputation.
    pub recompute: Option<Recomputed>,
    /// The ZeRO stage.
    pub zero: Option<u32>,
    /// Whether attention runs in FlashAttention kernels.
    pub flash_attention: Option<bool>,
    /// Training software.
    pub stack: String,
    /// Time of one iteration, in seconds.
    pub iteration_s: f64,
    /// Experts; the defaults for dense models.
    #[serde(flatten)]
    pub mixture: MixtureFields,
    /// Sizes of a mixture of experts; `None` for dense models.
    #[serde(skip)]
    pub experts: Option<TransformerConfig>,
}

fn one() -> f64 {
    1.0
}

/// A row's model.
#[derive(Clone, Debug, Deserialize)]
pub struct Model {
    /// Name of the model.
    pub name: String,
    /// Name of the published model of which this one has fewer layers.
    #[serde(default)]
    pub base: Option<String>,
    /// `gpt`: LayerNorm and biases; `llama`: RMSNorm, no biases.
    pub arch: String,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Width of the MLP; 0 for mixtures, which have other keys.
    #[serde(default)]
    pub ffn: usize,
    /// Whether the MLP is gated.
    #[serde(default)]
    pub gated_mlp: bool,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Whether the head shares the weights of the embedding.
    pub tied: Option<bool>,
    /// Kind of position encoding.
    pub pos: Option<String>,
    /// The MLP's activation: `gelu`, `silu`, `squared_relu`.
    pub act: Option<String>,
}

impl Model {
    fn config(&self, sequence: u32) -> TransformerConfig {
        let learned = self.arch == "gpt" && self.pos.as_deref().is_none_or(|pos| pos == "learned");
        TransformerConfig {
            style: if self.arch == "llama" { Style::Llama } else { Style::Gpt },
            biases: if self.arch == "llama" { Biases::NONE } else { Biases::ALL },
            embedding_norm: false,
            vocabulary: self.vocab,
            vocabulary_multiple: 1,
            positions: if learned { sequence as usize } else { 0 },
            rotary: (self.arch == "llama" || self.pos.as_deref() == Some("rope")).then_some(Rotary::new(10_000.0)),
            layers: self.layers,
            heads: self.heads,
            groups: self.kv_heads,
            head_size: self.hidden / self.heads.max(1),
            channels: self.hidden,
            mlp: self.ffn,
            activation: if self.gated_mlp { Activation::Gated } else { Activation::Plain },
            function: match self.act.as_deref() {
                Some("squared_relu") => ActivationFunction::SquaredRelu,
                _ => ActivationFunction::Other,
            },
            norm_epsilon: 1e-5,
            tied: self.tied.unwrap_or(true),
            ..TransformerConfig::gpt(self.vocab, 0, self.layers, self.heads, self.hidden)
        }
    }
}

/// Reads a table in JSON. Returns its rows, and a message for each row that cannot be read.
///
/// # Errors
/// The text is not a JSON list.
pub fn read(text: &str) -> Result<(Vec<Row>, Vec<String>)> {
    let values: Vec<Value> = serde_json::from_str(text).context("expected a list of measured steps")?;
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for (number, value) in values.into_iter().enumerate() {
        let id = value["id"].as_str().map_or_else(String::new, |id| format!(" ({id})"));
        if value["quality"] == "C" {
            continue; // the table says that something decisive is not known
        }
        let row = match value["model"]["config"].is_object() {
            true => described(value),
            false => {
                let is_mixture = value["model"]["moe"] == true;
                let sizes = is_mixture.then(|| value["model"].to_string());
                let row = serde_path_to_error::deserialize::<_, Row>(value).map_err(|error| error.to_string());
                row.and_then(|row| row.with_experts(sizes))
            }
        };
        match row.and_then(Row::checked) {
            Ok(row) => rows.push(row),
            Err(fault) => faults.push(format!("row {}{id}: {fault}", number + 1)),
        }
    }
    Ok((rows, faults))
}

/// Reads a row whose model is a Hugging Face configuration, with `mtp_layers` of its prediction layers.
fn described(mut value: Value) -> Result<Row, String> {
    let model = &mut value["model"];
    let config = read_huggingface(&model["config"].to_string()).map_err(|error| format!("model: {error}"))?.config;
    let sizes = TransformerConfig { prediction_layers: model["mtp_layers"].as_u64().unwrap_or(0) as usize, ..config };
    let keys = [
        ("layers", sizes.layers),
        ("hidden", sizes.channels),
        ("heads", sizes.heads),
        ("kv_heads", sizes.groups),
        ("vocab", sizes.vocabulary),
    ];
    keys.into_iter().for_each(|(key, size)| model[key] = Value::from(size));
    model["arch"] = Value::from("llama");
    let row = serde_path_to_error::deserialize::<_, Row>(value).map_err(|error| error.to_string())?;
    let stack = row.mixture.stack().map_or(row.stack.clone(), str::to_string);
    Ok(Row { experts: Some(sizes), stack, ..row })
}

impl Row {
    /// Reads the sizes of a mixture of experts.
    fn with_experts(self, sizes: Option<String>) -> Result<Row, String> {
        let read = |sizes: String| read_shape(&sizes, self.seq as usize).map_err(|error| format!("model: {error}"));
        let stack = self.mixture.stack().filter(|_| sizes.is_some()).map_or(self.stack.clone(), str::to_string);
        Ok(Row { experts: sizes.map(read).transpose()?, stack, ..self })
    }

    /// Rejects a row with a number that must be positive and is not.
    fn checked(self) -> Result<Row, String> {
        let positive = [
            ("weight", self.weight),
            ("gpus_per_node", self.gpus_per_node),
            ("network_gbps_per_gpu", self.network_gbps_per_gpu),
            ("iteration_s", self.iteration_s),
            ("gpus", self.gpus as f64),
            ("rounds", f64::from(self.mixture.rounds)),
            ("model.ffn", if self.experts.is_some() { 1.0 } else { self.model.ffn as f64 }),
        ];
        match positive.into_iter().find(|(_, number)| *number <= 0.0) {
            Some((name, found)) => Err(format!("{name}: expected a positive number, found {found}")),
            None => Ok(self),
        }
    }

    /// Returns the hardware and software, with what the row itself says about the network.
    ///
    /// # Errors
    /// Unknown hardware or software.
    pub fn machine(&self) -> Result<Platform> {
        let hardware = Hardware {
            gpus_per_node: self.gpus_per_node,
            network_gbps_per_gpu: self.network_gbps_per_gpu,
            ..hardware(&self.gpu)?
        };
        Ok(Platform { hardware, stack: self.software(stack(&self.stack)?) })
    }

    /// Returns the software with what the row says about it. Recipes of Moonlight and DeepSeek-V3 keep AdamW's moments in 16 bits
    /// (`exp_avg_dtype`). Dense rows keep the gradients of Megatron-Core in fp32: 16 bits made errors on left-out machines larger.
    pub fn software(&self, stack: Stack) -> Stack {
        let has_short_moments = self.stack == "megatron-bridge"
            && matches!(self.model.base.as_deref(), Some("moonlight-16b-a3b" | "deepseek-v3"));
        Stack {
            moment_bytes: if has_short_moments { 4.0 } else { stack.moment_bytes },
            hardware_queues: if self.mixture.has_one_queue() { 1.0 } else { stack.hardware_queues },
            ..stack
        }
    }

    /// Returns the layout.
    ///
    /// # Errors
    /// A batch that is not a multiple of the micro-batches, or unknown names.
    pub fn layout(&self) -> Result<ParallelConfig> {
        let mixture = &self.mixture;
        let batch = self.batch / mixture.rounds;
        let (size, micro) = micro_batches(Some(batch), self.dp, Some(self.micro_batch_size), None)?;
        let recompute = self.recompute.as_ref().map_or("none".to_string(), Recomputed::name);
        let (stages, chunks) = mixture.stages(self.pp, self.chunks)?;
        let defaults = if self.experts.is_some() { mixture.experts() } else { ParallelConfig::default() };
        Ok(ParallelConfig {
            layout: stages,
            pp: self.pp,
            chunks,
            tp: self.tp,
            cp: self.cp,
            dp: self.dp,
            micro_batch_size: size,
            micro,
            sequence: self.seq,
            precision: self.precision.parse()?,
            recompute: recompute.parse()?,
            zero: self.zero.unwrap_or(0).to_string().parse()?,
            sequence_parallel: self.sequence_parallel,
            attention: self.flash_attention.map(|flash| if flash { Attention::Flash } else { Attention::Plain }),
            stack: self.stack.clone(),
            ..defaults
        })
    }

    /// Returns the sizes of the model.
    pub fn sizes(&self) -> TransformerConfig {
        self.experts.unwrap_or_else(|| self.model.config(self.seq))
    }

    /// Returns the analytic costs of the model on the hardware.
    ///
    /// # Errors
    /// As [`Row::machine`] and [`Row::layout`], or a layout that the model does not allow.
    pub fn costs(&self) -> Result<Analytic> {
        Ok(Analytic::new(self.sizes(), self.machine()?, self.layout()?)?)
    }

    /// Returns whether linear layers have fewer than 16 bits.
    pub fn is_narrow(&self) -> bool {
        matches!(self.precision.as_str(), "fp8" | "mxfp8" | "nvfp4")
    }

    /// Returns the name of the schedule; 1F1B for a single device.
    pub fn schedule(&self) -> &str {
        if self.schedule == "none" { "1f1b" } else { &self.schedule }
    }
}
