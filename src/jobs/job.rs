//! A training job, as it was read.

use crate::measurement::Measurement;
use crate::reading::Reading;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// An option that changes what is not modelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotModelled {
    /// The option with its values, as the job writes it.
    pub option: String,
    /// What it changes.
    pub changes: String,
}

/// An option that the framework does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// The option, as the job writes it.
    pub option: String,
    /// The nearest name that the framework has.
    pub nearest: Option<String>,
    /// Where it stands.
    pub place: String,
}

/// A training job, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Job {
    /// The framework, as a file of `frameworks/` calls it: `megatron-core`, `torchtitan`, `deepspeed`, ...
    pub framework: String,
    /// Its version, where the files show it, as a file of `frameworks/` calls it.
    pub framework_version: Option<String>,
    /// Files that were read.
    pub files: Vec<String>,
    /// What the job says.
    pub reading: Reading,
    /// Options without effect on a step.
    pub ignored: Vec<String>,
    /// Options whose effect is not modelled.
    pub not_modelled: Vec<NotModelled>,
    /// Options that the framework does not have.
    pub unknown: Vec<Unknown>,
    /// What the framework itself would refuse, in its own words.
    pub refused: Vec<String>,
    /// What the job does not say, and what is taken instead: one sentence each.
    pub assumed: Vec<String>,
    /// Training software, if the framework has several stacks: a name of hardware/stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// A model that the job names rather than describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Keys of a shape file (docs/src/models.md) that [`Reading`] has not: kind of attention, norms, positions, shared experts, ...
    #[serde(skip)]
    pub shape: Map<String, Value>,
    /// Further settings of a question in its own names and values: `moe-overlap` = `true`, `set` = `group=8`.
    #[serde(skip)]
    pub further: BTreeMap<String, String>,
    /// Keys of the reading that follow from the number of GPUs, which the job does not say; no part of what it says.
    #[serde(skip)]
    pub unsaid: Vec<&'static str>,
    /// What a log says about the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measurement>,
}

impl Job {
    /// Sets how many replicas share what ZeRO shards, if `groups` of them do.
    pub(crate) fn share(&mut self, groups: Option<u32>) {
        let replicas = self.reading.dp.and_then(|dp| dp.checked_mul(self.reading.cp.unwrap_or(1)));
        match replicas.zip(groups.filter(|&groups| groups > 1)) {
            Some((all, groups)) if all.is_multiple_of(groups) => {
                self.further.insert("shard".to_string(), (all / groups).to_string());
            }
            Some(_) => {
                let why = "Data parallel size should be divisible by partial DistOpt shard factor";
                self.refused.push(why.to_string());
            }
            None => {}
        }
    }

    /// Returns the job as JSON; in its reading, what the job does not say is null.
    pub fn to_json(&self) -> Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        for key in &self.unsaid {
            json["reading"][*key] = Value::Null;
        }
        json
    }
}
