//! The model that a job trains: a built-in one that it names or describes, or a shape file's text.

use crate::job::Job;
use pipesim_models::model_spec::transformer::{ActivationFunction, Config};
use pipesim_models::model_spec::{names, of_hub, shape, transformer_named};
use serde_json::{Map, Value};

/// Entries of a vocabulary that neither the job nor a built-in model of its sizes says: that of Llama 3.
const USUAL_VOCABULARY: u32 = 128_256;

/// The model of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobModel {
    /// Name of a built-in model, or the text of a shape file.
    pub setting: String,
    /// What the job does not say, and what is taken instead.
    pub assumed: Option<String>,
}

impl Job {
    /// Returns the model that a job trains; `None` if it says nothing of it.
    ///
    /// # Errors
    /// Sizes that no model has, or parts that are not modelled.
    pub fn trained_model(&self) -> Result<Option<JobModel>, String> {
        if self.reading.layers.is_none() || self.reading.hidden.is_none() {
            let Some(name) = &self.model else { return Ok(None) };
            let known = built_in(name);
            return Ok(known.map(|(setting, _)| JobModel { setting, assumed: None }));
        }
        let mut keys = self.keys();
        let alike = self.model.as_deref().and_then(built_in).or_else(|| self.built_in_alike());
        let mut assumed = None;
        if !keys.contains_key("vocab") {
            let (vocabulary, of) = match &alike {
                Some((name, model)) => (model.vocabulary, format!("that of {name}")),
                None => (USUAL_VOCABULARY as usize, "that of Llama 3".to_string()),
            };
            keys.insert("vocab".to_string(), vocabulary.into());
            assumed = Some(format!("the vocabulary, which its tokenizer says: {vocabulary} entries, {of}"));
        }
        let text = Value::Object(keys).to_string();
        let model = shape::read(&text, self.reading.seq.unwrap_or(0) as usize).map_err(|error| error.to_string())?;
        let same = names().find(|name| transformer_named(name).is_some_and(|known| costs_alike(&known, &model)));
        Ok(Some(JobModel { setting: same.unwrap_or(text), assumed }))
    }

    /// Returns the keys of a shape file.
    fn keys(&self) -> Map<String, Value> {
        let read = &self.reading;
        let mut keys = Map::new();
        keys.insert("arch".to_string(), "llama".into());
        let sizes = [
            ("layers", read.layers),
            ("hidden", read.hidden),
            ("heads", read.heads),
            ("kv_heads", read.kv_heads),
            ("ffn", read.ffn),
            ("vocab", read.vocab),
            ("experts", read.experts),
            ("top_k", read.top_k),
            ("moe_ffn", read.moe_ffn),
            ("mtp_layers", read.mtp_layers),
        ];
        keys.extend(sizes.into_iter().filter_map(|(key, size)| Some((key.to_string(), size?.into()))));
        let flags = [("gated_mlp", read.gated), ("tied", read.tied)];
        keys.extend(flags.into_iter().filter_map(|(key, flag)| Some((key.to_string(), flag?.into()))));
        keys.extend(self.shape.clone());
        if keys.get("attention").is_some_and(|kind| kind == "mla") {
            keys.remove("kv_heads");
        }
        keys
    }

    /// Returns the built-in model with the same sizes, its vocabulary aside.
    fn built_in_alike(&self) -> Option<(String, Config)> {
        let read = &self.reading;
        let same = |size: usize, of: Option<u32>| of.is_none_or(|of| of as usize == size);
        names().filter_map(|name| Some((transformer_named(&name)?, name))).map(|(model, name)| (name, model)).find(
            |(_, model)| {
                let experts = model.experts.map_or(0, |experts| experts.count);
                same(model.layers, read.layers)
                    && same(model.channels, read.hidden)
                    && same(model.heads, read.heads)
                    && same(model.groups, read.kv_heads)
                    && same(model.mlp, read.ffn.filter(|_| read.experts.is_none()))
                    && experts == read.experts.unwrap_or(0) as usize
            },
        )
    }
}

/// Finds a built-in model by its name, also as `OWNER/NAME` or with the endings of published checkpoints.
fn built_in(name: &str) -> Option<(String, Config)> {
    let last = of_hub(name).unwrap_or(name);
    let endings = ["", "-base", "-instruct", "-hf", "-chat", "-it", "-pt"];
    let plain = last.to_lowercase().replace("meta-", "");
    let candidates = endings.iter().filter_map(|ending| plain.strip_suffix(ending));
    candidates.filter_map(|name| Some((name.to_string(), transformer_named(name)?))).next()
}

/// Whether two models have the same products and tensors: rotary positions, epsilons and padding aside.
fn costs_alike(one: &Config, other: &Config) -> bool {
    let plain = |model: &Config| Config {
        rotary: None,
        norm_epsilon: 0.0,
        vocabulary_multiple: 1,
        positions: 0,
        function: match model.function {
            ActivationFunction::SquaredRelu => ActivationFunction::SquaredRelu,
            _ => ActivationFunction::Other,
        },
        ..*model
    };
    plain(one) == plain(other)
}
