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
    pub assumed: Vec<String>,
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
            return Ok(known.map(|(setting, _)| JobModel { setting, assumed: Vec::new() }));
        }
        let mut keys = self.keys();
        let alike = self.model.as_deref().and_then(built_in).or_else(|| self.built_in_alike());
        let mut assumed = Vec::new();
        let is = |key: &str, value: Value| keys.get(key) == Some(&value);
        if is("attention", "mla".into()) && is("bias", true.into()) {
            keys.insert("bias".to_string(), false.into());
            assumed.push("products without biases, which are not modelled with latent attention".to_string());
        }
        if !keys.contains_key("vocab") {
            let (vocabulary, of) = match &alike {
                Some((name, model)) => (model.vocabulary, format!("that of {name}")),
                None => (USUAL_VOCABULARY as usize, "that of Llama 3".to_string()),
            };
            keys.insert("vocab".to_string(), vocabulary.into());
            assumed.push(format!("the vocabulary, which its tokenizer says: {vocabulary} entries, {of}"));
        }
        let text = Value::Object(keys).to_string();
        let model = shape::read(&text, self.reading.seq.unwrap_or(0) as usize).map_err(|error| error.to_string())?;
        let seq = self.reading.seq.unwrap_or(0) as usize;
        let fits = |known: &Config| (known.positions == 0 || known.positions >= seq) && costs_alike(known, &model);
        let all = names().filter(|name| transformer_named(name).is_some_and(|known| fits(&known)));
        let same = self.most_likely(all.map(|name| (name.clone(), name)));
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
        let is_alike = |model: &Config| {
            let experts = model.experts.map_or(0, |experts| experts.count);
            same(model.layers, read.layers)
                && same(model.channels, read.hidden)
                && same(model.heads, read.heads)
                && same(model.groups, read.kv_heads)
                && same(model.mlp, read.ffn.filter(|_| read.experts.is_none()))
                && experts == read.experts.unwrap_or(0) as usize
        };
        let all = names().filter_map(|name| Some((name.clone(), (transformer_named(&name)?, name))));
        let alike = all.filter(|(_, (model, _))| is_alike(model));
        self.most_likely(alike).map(|(model, name)| (name, model))
    }

    /// Returns what belongs to the name that the job speaks of most clearly, in names of files, tokenizers and runs; of the last one, if it
    /// speaks of none.
    fn most_likely<T>(&self, named: impl Iterator<Item = (String, T)>) -> Option<T> {
        let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        let spoken = plain(&[self.files.join(" "), self.ignored.join(" ")].concat());
        let family = |name: &str| name.rsplit_once('-').map_or_else(|| plain(name), |(family, _)| plain(family));
        let length = |name: &str| if spoken.contains(&family(name)) { family(name).len() } else { 0 };
        named.max_by_key(|(name, _)| length(name)).map(|(_, of)| of)
    }
}

/// Finds a built-in model by its name, also as `OWNER/NAME` or a path, or with the endings of published checkpoints.
pub(crate) fn built_in(name: &str) -> Option<(String, Config)> {
    let last = of_hub(name).unwrap_or_else(|| name.rsplit('/').next().unwrap_or(name));
    let endings = ["", "-base", "-instruct", "-hf", "-chat", "-it", "-pt", "-thinking"];
    let plain = last.to_lowercase().replace("meta-", "");
    let plain = plain.trim_end_matches("-fp8").trim_end_matches("-2507");
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
