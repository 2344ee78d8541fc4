//! A table of published, measured steps: what was trained, on what, how it was laid out, and how long an iteration took.

use crate::anatomy::transformer::{Activation, Biases, Config, Style};
use crate::cost::CostError;
use crate::cost::analytic::{Analytic, Machine};
use crate::hardware::{Hardware, hardware, stack};
use crate::layout::{Attention, Layout, Precision, Recompute, Zero, micro_batches};
use serde::Deserialize;

/// One measured step.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// Its name in the table.
    pub id: String,
    /// The publication.
    pub family: String,
    /// Publication, model, precision and GPU.
    pub group: String,
    /// How much it counts: less than 1 where rows are near-duplicates.
    #[serde(default = "one")]
    pub weight: f64,
    /// The model.
    pub model: Model,
    /// Tokens of a sequence.
    pub seq: u32,
    /// The hardware's name.
    pub gpu: String,
    /// GPUs in all.
    pub gpus: u64,
    /// GPUs of a node.
    pub gpus_per_node: f64,
    /// Bandwidth between nodes, Gbit/s a GPU and direction.
    pub network_gbps_per_gpu: f64,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Devices of a pipeline.
    pub pp: u32,
    /// Context-parallel ranks.
    pub cp: u32,
    /// Pipelines.
    pub dp: u32,
    /// Whether sequence parallelism is on.
    #[serde(default)]
    pub sequence_parallel: bool,
    /// Stages a device.
    pub chunks: u32,
    /// The schedule's name; `none` where there is no pipeline.
    pub schedule: String,
    /// Sequences of a micro-batch.
    pub micro_batch_size: u32,
    /// Sequences of a step.
    pub batch: u32,
    /// What products are computed in.
    pub precision: String,
    /// What the backward computes again.
    pub recompute: Option<String>,
    /// The ZeRO stage.
    pub zero: Option<u32>,
    /// Whether attention is computed in tiles.
    pub flash_attention: Option<bool>,
    /// The software.
    pub stack: String,
    /// How long an iteration took.
    pub iteration_s: f64,
}

fn one() -> f64 {
    1.0
}

/// A row's model.
#[derive(Clone, Debug, Deserialize)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// `gpt`: LayerNorm and biases; `llama`: RMSNorm, none.
    pub arch: String,
    /// Blocks.
    pub layers: usize,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Width of the MLP.
    pub ffn: usize,
    /// Whether the MLP has a gate.
    #[serde(default)]
    pub gated_mlp: bool,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Token ids.
    pub vocab: usize,
    /// Whether the head's weights are the embedding's.
    pub tied: Option<bool>,
    /// How positions are told.
    pub pos: Option<String>,
}

impl Model {
    fn config(&self, sequence: u32) -> Config {
        let learned = self.arch == "gpt" && self.pos.as_deref().is_none_or(|pos| pos == "learned");
        Config {
            style: if self.arch == "llama" { Style::Llama } else { Style::Gpt },
            biases: if self.arch == "llama" { Biases::NONE } else { Biases::ALL },
            embedding_norm: false,
            vocabulary: self.vocab,
            vocabulary_multiple: 1,
            positions: if learned { sequence as usize } else { 0 },
            rotary: self.arch == "llama" || self.pos.as_deref() == Some("rope"),
            layers: self.layers,
            heads: self.heads,
            groups: self.kv_heads,
            head_size: self.hidden / self.heads.max(1),
            channels: self.hidden,
            mlp: self.ffn,
            activation: if self.gated_mlp { Activation::Gated } else { Activation::Plain },
            tied: self.tied.unwrap_or(true),
            window: None,
            projected: None,
        }
    }
}

/// The rows of a table in JSON.
///
/// # Errors
/// No JSON, or rows without what a prediction needs.
pub fn read(text: &str) -> Result<Vec<Row>, CostError> {
    serde_json::from_str(text)
        .map_err(|error| CostError(format!("expected a list of measured steps, found otherwise: {error}")))
}

impl Row {
    /// The machine, as far as the row says something of it.
    ///
    /// # Errors
    /// Unknown hardware or software.
    pub fn machine(&self) -> Result<Machine, CostError> {
        let known = hardware(&self.gpu).map_err(|error| CostError(error.to_string()))?;
        let hardware =
            Hardware { gpus_per_node: self.gpus_per_node, network_gbps_per_gpu: self.network_gbps_per_gpu, ..known };
        let stack = stack(&self.stack).map_err(|error| CostError(error.to_string()))?;
        Ok(Machine { hardware, stack })
    }

    /// The layout.
    ///
    /// # Errors
    /// A batch that does not fall into micro-batches, unknown names.
    pub fn layout(&self) -> Result<Layout, CostError> {
        let wrong = |error: crate::layout::LayoutError| CostError(error.to_string());
        let (size, micro) =
            micro_batches(Some(self.batch), self.dp, Some(self.micro_batch_size), None).map_err(wrong)?;
        Ok(Layout {
            devices: self.pp,
            chunks: self.chunks,
            tensor: self.tp,
            context: self.cp,
            data: self.dp,
            micro_batch_size: size,
            micro,
            sequence: self.seq,
            precision: self.precision.parse::<Precision>().map_err(wrong)?,
            recompute: self.recompute.as_deref().unwrap_or("none").parse::<Recompute>().map_err(wrong)?,
            zero: self.zero.unwrap_or(0).to_string().parse::<Zero>().map_err(wrong)?,
            sequence_parallel: self.sequence_parallel,
            attention: self.flash_attention.map(|flash| if flash { Attention::Flash } else { Attention::Plain }),
            stack: self.stack.clone(),
            layers: None,
        })
    }

    /// The model's sizes.
    pub fn sizes(&self) -> Config {
        self.model.config(self.seq)
    }

    /// The costs of its model there.
    ///
    /// # Errors
    /// As [`Row::machine`] and [`Row::layout`], and layouts that cannot be.
    pub fn costs(&self) -> Result<Analytic, CostError> {
        Analytic::new(self.sizes(), self.machine()?, self.layout()?)
    }

    /// The schedule's name; one device alone runs 1F1B.
    pub fn schedule(&self) -> &str {
        if self.schedule == "none" { "1f1b" } else { &self.schedule }
    }
}
