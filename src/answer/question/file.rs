//! A question as a file: TOML with one key per setting, those with their default left out.

use super::settings::{Question, VERSION};
use crate::resolve::{Error, usage};
use pipesim_language::{Budget, MAX_CHUNKS};
use pipesim_schedule::nearest::{hint, nearest};
use pipesim_schedule::sanitize::sanitize;
use serde_json::{Map, Value};

impl Question {
    /// Returns all settings with their values.
    fn map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }

    /// Returns the settings that have not their default, and the `required` ones, each with its value.
    pub fn settings(&self, required: &[&str]) -> impl Iterator<Item = (String, Value)> {
        let usual = Question::default().map();
        self.map()
            .into_iter()
            .filter(move |(name, value)| usual.get(name) != Some(value) || required.contains(&&**name))
    }

    /// Reads a question.
    ///
    /// # Errors
    /// No TOML, another version, an unknown key, or a value that the key cannot have.
    pub fn from_toml(text: &str) -> Result<Question, Error> {
        let wrong = |error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            usage(format!(
                "{}{}",
                line.map_or_else(String::new, |line| format!("line {line}: ")),
                error.message().trim()
            ))
        };
        let table: toml::Table = text.parse().map_err(wrong)?;
        let known = Question::default().map();
        if let Some((key, value)) = table.iter().find(|(key, _)| !known.contains_key(*key)) {
            let is_alike = |usual: &Value| usual.is_boolean() == value.is_bool();
            let alike: Vec<&str> = known.iter().filter(|(_, usual)| is_alike(usual)).map(|(name, _)| &**name).collect();
            let near = hint(&nearest(key, &alike));
            let (key, names) = (sanitize(key), known.keys().cloned().collect::<Vec<_>>().join(", "));
            return Err(usage(format!("no setting is called '{key}'{near}; known are {names}")));
        }
        match table.get("version").and_then(toml::Value::as_integer) {
            Some(version) if version == i64::from(VERSION) => {}
            Some(version) => {
                return Err(usage(format!(
                    "expected version = {VERSION}, found {version}; a newer program may read it"
                )));
            }
            None => return Err(usage(format!("expected version = {VERSION}, found none; add it"))),
        }
        toml::from_str(text).map_err(wrong)
    }

    /// Writes the question, so that [`Question::from_toml`] reads the same.
    ///
    /// # Errors
    /// A number that is too large for TOML.
    pub fn to_toml(&self) -> Result<String, Error> {
        let mut text = format!("version = {VERSION}\n");
        for (name, value) in self.settings(&[]) {
            // lists, numbers and texts are written alike in JSON and TOML, but for one control character
            let value = match value {
                Value::Array(list) if list.len() == 1 => list[0].to_string(),
                value => value.to_string(),
            };
            text += &format!("{name} = {}\n", value.replace('\u{7f}', "\\u007f"));
        }
        match Question::from_toml(&text) {
            Ok(read) if read == *self => Ok(text),
            Ok(_) => Err(usage("expected a question that a file can hold, found another one after reading it")),
            Err(error) => Err(usage(format!("expected a question that a file can hold: {error}"))),
        }
    }

    /// Rejects numbers out of range, and settings that contradict each other.
    ///
    /// # Errors
    /// The first of them.
    pub(super) fn check(&self) -> Result<(), Error> {
        let most = |list: &[u32]| list.iter().copied().max().map_or(1, u64::from);
        let least = |list: &[u32]| list.iter().copied().min().map_or(1, u64::from);
        let lists = [
            ("stages", &self.stages, 1 << 20),
            ("micro", &self.micro, (1 << 31) - 1),
            ("tp", &self.tp, 1 << 27),
            ("dp", &self.dp, 1 << 27),
            ("micro-batch-size", &self.micro_batch_size, 1 << 27),
        ];
        let lists = lists.map(|(name, list, limit)| [(name, least(list), limit), (name, most(list), limit)]);
        let options = [
            ("only", self.only, u32::MAX),
            ("chunks", self.chunks, MAX_CHUNKS),
            ("effort", self.effort, 1000),
            ("batch", self.batch, 1 << 27),
            ("seq", Some(self.seq), 1 << 27),
            ("cp", Some(self.cp), 1 << 27),
            ("rounds", Some(self.rounds), 1 << 20),
            ("slots", self.slots, u32::MAX),
            ("cores", self.cores, u32::MAX),
            ("host-link-devices", self.host_link_devices, u32::MAX),
            ("max-active-stages", self.max_active_stages, 1 << 20),
            ("samples", Some(self.samples), 10_000_000),
        ];
        let options = options.map(|(name, value, limit)| (name, u64::from(value.unwrap_or(1)), u64::from(limit)));
        let all = lists.into_iter().flatten().chain(options).chain([("max-ops", self.max_ops, Budget::MAX_OPS)]);
        for (name, value, limit) in all {
            if !(1..=limit).contains(&value) {
                return Err(usage(format!("expected `{name}` between 1 and {limit}, found {value}; correct it")));
            }
        }
        let factors = self.contention.iter().chain(&self.link_contention).chain(&self.overlap_slowdown);
        if let Some(factor) = factors.copied().find(|factor| !(1.0..=1000.0).contains(factor)) {
            return Err(usage(format!("expected factors between 1 and 1000, found {factor}; correct it")));
        }
        if let Some(sigma) = self.jitter.filter(|sigma| !(0.001..=1.0).contains(sigma)) {
            return Err(usage(format!("expected `jitter` between 0.001 and 1, found {sigma}; correct it")));
        }
        if self.stages.is_empty() || self.tp.is_empty() || self.dp.is_empty() {
            return Err(usage("expected a number for `stages`, `tp` and `dp`, found none; give one each"));
        }
        let given = self.costs.as_ref().map(|_| "costs").or(self.profile.as_ref().map(|_| "profile"));
        let is_of_models = !self.slow_link.is_empty() || !self.packed.is_empty() || self.lora.is_some();
        Err(usage(match (given, &self.hardware, &self.model) {
            (Some(one), Some(_), _) => {
                return Err(usage(format!("`{one}` and `hardware` both say what ops cost; leave one of the two out")));
            }
            _ if self.costs.is_some() && self.profile.is_some() => {
                "`costs` and `profile` both say what ops cost; leave one of the two out"
            }
            (_, Some(_), None) => "`hardware` needs a model; give `model`, too",
            (_, None, _) if is_of_models => {
                "`slow-link`, `packed` and `lora` need a model on hardware; give `model` and `hardware`, too"
            }
            (_, None, Some(_)) => "`model` needs hardware; give `hardware`, too",
            (_, None, None) if self.micro.is_empty() => "expected a number of micro-batches, found none; give `micro`",
            (_, Some(_), _) if self.micro.is_empty() && self.batch.is_none() => {
                "expected `micro` or `batch`, found none; give one of them"
            }
            _ => return Ok(()),
        }))
    }
}
