//! A table of published, measured steps: what was trained, on what, how it was laid out, and how long an iteration took.

use crate::anatomy::transformer::{Activation, Biases, Config, Style};
use crate::cost::CostError;
use crate::cost::analytic::{Analytic, Machine};
use crate::hardware::{Hardware, hardware, stack};
use crate::layout::{Attention, Layout, Precision, Recompute, Zero, micro_batches};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

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

/// The rows of a table in JSON, and what is wrong with those that cannot be read.
///
/// # Errors
/// No list in JSON.
pub fn read(text: &str) -> Result<(Vec<Row>, Vec<String>), CostError> {
    let rows: Vec<Value> = serde_json::from_str(text)
        .map_err(|error| CostError(format!("expected a list of measured steps, found otherwise: {error}")))?;
    let (mut read, mut faults) = (Vec::new(), Vec::new());
    for (number, value) in rows.into_iter().enumerate() {
        let id = value["id"].as_str().map_or_else(String::new, |id| format!(" ({id})"));
        match serde_json::from_value::<Row>(value.clone()) {
            Ok(row) => match row.fault() {
                None => read.push(row),
                Some(fault) => faults.push(format!("row {}{id}: {fault}", number + 1)),
            },
            Err(error) => {
                let fault = fault::<Row>(&value).unwrap_or_else(|| error.to_string());
                faults.push(format!("row {}{id}: {fault}", number + 1));
            }
        }
    }
    Ok((read, faults))
}

/// The first field of `value` that is not as `T` has it: one that is wrong even alone, else one that is missing.
fn fault<T: DeserializeOwned>(value: &Value) -> Option<String> {
    let Value::Object(fields) = value else { return Some(format!("expected an object, found {value}")) };
    let alone = |name: &str, value: &Value| serde_json::from_value::<T>(serde_json::json!({ name: value })).err();
    for (name, value) in fields {
        if let ("model", Value::Object(_)) = (name.as_str(), value) {
            match fault::<Model>(value) {
                Some(fault) => return Some(format!("model.{fault}")),
                None => continue,
            }
        }
        let Some(error) = alone(name, value).map(|error| error.to_string()) else { continue };
        if error.starts_with("missing field") {
            continue;
        }
        let wanted = error.rsplit_once("expected ").map_or("u32", |(_, wanted)| wanted);
        let wanted = match wanted {
            "f64" => "a number",
            "u32" | "u64" | "usize" => "a whole number, not negative",
            "a string" => "a text",
            "a boolean" => "true or false",
            "struct Model" => "an object",
            other => other,
        };
        return Some(format!("{name}: expected {wanted}, found {value}"));
    }
    let error = serde_json::from_value::<T>(value.clone()).err()?.to_string();
    let missing = error.strip_prefix("missing field `")?.split('`').next()?;
    Some(format!("{missing} is missing"))
}

impl Row {
    /// The first number that nothing can be predicted or judged from.
    fn fault(&self) -> Option<String> {
        let above_0 = [
            ("weight", self.weight),
            ("gpus_per_node", self.gpus_per_node),
            ("network_gbps_per_gpu", self.network_gbps_per_gpu),
            ("iteration_s", self.iteration_s),
            ("gpus", self.gpus as f64),
        ];
        let (name, found) = above_0.into_iter().find(|(_, number)| *number <= 0.0)?;
        Some(format!("{name}: expected more than 0, found {found}"))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_cannot_be_read_are_named_with_their_field_and_the_others_are_kept() {
        let good = serde_json::json!({
            "id": "a-1", "family": "f", "group": "g",
            "model": {"name": "m", "arch": "gpt", "layers": 2, "hidden": 64, "ffn": 256, "heads": 2, "kv_heads": 2, "vocab": 257},
            "seq": 64, "gpu": "h100-sxm", "gpus": 1, "gpus_per_node": 8, "network_gbps_per_gpu": 400, "tp": 1, "pp": 1, "cp": 1, "dp": 1,
            "chunks": 1, "schedule": "none", "micro_batch_size": 1, "batch": 1, "precision": "bf16", "stack": "pipesim",
            "iteration_s": 1.5
        });
        assert_eq!(
            read(&serde_json::json!([good]).to_string()).map(|(rows, faults)| (rows.len(), faults)).unwrap(),
            (1, vec![])
        );
        for (field, value, wanted) in [
            ("iteration_s", "null", "iteration_s: expected a number, found null"),
            ("iteration_s", "0", "iteration_s: expected more than 0, found 0"),
            ("iteration_s", "\"3\"", "iteration_s: expected a number, found \"3\""),
            ("tp", "-1", "tp: expected a whole number, not negative, found -1"),
            ("gpu", "7", "gpu: expected a text, found 7"),
            ("model", "null", "model: expected an object, found null"),
            ("model/heads", "null", "model.heads: expected a whole number, not negative, found null"),
            ("model/arch", "", "model.arch is missing"),
            ("gpus", "", "gpus is missing"),
        ] {
            let mut bad = good.clone();
            let (object, name) = field.rsplit_once('/').unwrap_or(("", field));
            let object = if object.is_empty() { &mut bad } else { &mut bad[object] };
            match value {
                "" => drop(object.as_object_mut().unwrap().remove(name)),
                value => object[name] = serde_json::from_str(value).unwrap(),
            }
            bad["id"] = "b-2".into();
            let (rows, faults) = read(&serde_json::json!([good, bad]).to_string()).unwrap();
            assert_eq!((rows.len(), faults), (1, vec![format!("row 2 (b-2): {wanted}")]), "{field}");
        }
        assert!(read("{}").is_err());
    }
}
