//! What the names of a framework's configuration mean: the files of `jobs/readings/`.

use crate::config::document::Document;
use crate::error::{JobError, Missing};
use crate::job::Job;
use crate::reading::Reading;
use crate::setting::Settings;
use crate::vocabulary::{Meaning, Vocabulary};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const FILES: [(&str, &str); 4] = [
    ("bridge", include_str!("../../../jobs/readings/bridge.toml")),
    ("deepspeed", include_str!("../../../jobs/readings/deepspeed.toml")),
    ("nanotron", include_str!("../../../jobs/readings/nanotron.toml")),
    ("torchtitan", include_str!("../../../jobs/readings/torchtitan.toml")),
];
/// Fields of [`Reading`] that may be 0.
const MAY_BE_ZERO: [&str; 2] = ["mtp_layers", "zero"];

/// Value that Hugging Face's Trainer fills in.
const AUTO: &str = "auto";

/// What the names of a framework's configuration mean.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Framework {
    /// Older names, and today's.
    renamed: BTreeMap<String, String>,
    /// Values of names that the configuration leaves out.
    defaults: Map<String, Value>,
    /// By field of [`Reading`]: names, of which the first that has a value counts.
    fields: BTreeMap<String, Vec<String>>,
    /// By key of a shape file: names.
    shape: BTreeMap<String, Vec<String>>,
    /// Names that matter only if another one has a value, or has not: `name=value`, `name!=value`; `*` ends a start.
    only_with: BTreeMap<String, Vec<String>>,
    /// Sizes by model and flavor: fields of [`Reading`], and under `shape` further keys of a shape file.
    pub(crate) models: BTreeMap<String, BTreeMap<String, Map<String, Value>>>,
    /// Registered configurations: by module and name their values, and under `model` their model and flavor.
    pub(crate) configurations: BTreeMap<String, BTreeMap<String, Map<String, Value>>>,
}

impl Framework {
    /// Returns the file of a framework.
    pub(crate) fn of(name: &str) -> Framework {
        let (_, text) =
            FILES.iter().find(|(known, _)| *known == name).expect("a framework with a file in jobs/readings/");
        toml::from_str(text).expect("a test reads every file of jobs/readings/")
    }

    /// Begins a job: names are today's, defaults are filled in, and every field of a plain name is read.
    ///
    /// # Errors
    /// A value is not of its field's type.
    pub(crate) fn begin(&self, framework: &str, document: &mut Document) -> Result<Job, JobError> {
        for (old, new) in &self.renamed {
            document.rename(old, new);
        }
        for (name, value) in &self.defaults {
            document.fill(name, value);
        }
        let mut job = Job { framework: framework.to_string(), files: vec![document.name.clone()], ..Job::default() };
        for (field, names) in &self.fields {
            if let Some(name) = names.iter().find(|name| document.get(name).is_some_and(|value| value != AUTO)) {
                set(&mut job.reading, field, document, name)?;
            }
        }
        for (key, names) in &self.shape {
            if let Some(value) = names.iter().find_map(|name| document.get(name)) {
                job.shape.insert(key.clone(), value.clone());
            }
        }
        Ok(job)
    }

    /// Takes the sizes of a model that the framework has by name; whether it has it.
    pub(crate) fn model(&self, job: &mut Job, name: &str, flavor: &str) -> bool {
        let Some(sizes) = self.models.get(name).and_then(|flavors| flavors.get(flavor)) else {
            return false;
        };
        for (field, value) in sizes {
            match value {
                Value::Object(shape) if field == "shape" => job.shape.extend(shape.clone()),
                value => {
                    let all = serde_json::to_value(&job.reading).ok().and_then(|all| with(all, field, value.clone()));
                    job.reading = all.unwrap_or(std::mem::take(&mut job.reading));
                }
            }
        }
        true
    }

    /// Sorts all values of a configuration by what they mean for a step.
    pub(crate) fn sort(&self, vocabulary: &str, document: &Document, job: &mut Job) {
        let vocabulary = Vocabulary::of(vocabulary);
        let mut sorted = Settings::default();
        for (name, mut setting) in document.settings() {
            if matches!(vocabulary.meaning(&setting.name, &setting.values), Meaning::Unknown(_)) {
                setting.name = name.clone();
            }
            match self.matters(&name, document) {
                true => sorted.0.push(setting),
                false => job.ignored.push(format!("{} {}", setting.name, setting.values.join(" "))),
            }
        }
        job.sort(&vocabulary, &sorted, "");
    }

    /// Whether the other values that a name needs are there.
    fn matters(&self, name: &str, document: &Document) -> bool {
        let is_meant =
            |known: &str| known == name || known.strip_suffix('*').is_some_and(|start| name.starts_with(start));
        let Some((_, conditions)) = self.only_with.iter().find(|(known, _)| is_meant(known)) else {
            return true;
        };
        conditions.iter().any(|condition| {
            let (other, value) = condition.split_once('=').unwrap_or((condition, "true"));
            let is = |name| match document.get(name) {
                Some(Value::Array(list)) => list.iter().any(|one| one.to_string().contains(value)),
                _ => document.text(name).is_some_and(|text| text == value),
            };
            other.strip_suffix('!').map_or_else(|| is(other), |other| !is(other))
        })
    }
}

/// Returns a reading with another value of a field, if that is of its type.
fn with(mut all: Value, field: &str, value: Value) -> Option<Reading> {
    all.as_object_mut()?.insert(field.to_string(), value);
    serde_json::from_value(all).ok()
}

/// Sets a field of a reading to the value of a name.
fn set(reading: &mut Reading, field: &str, document: &Document, name: &str) -> Result<(), JobError> {
    let Some(mut value) = document.get(name).cloned() else { return Ok(()) };
    if let Some(number) = value.as_str().and_then(|text| text.parse::<i64>().ok()) {
        value = Value::from(number);
    }
    let all = serde_json::to_value(&*reading).unwrap_or_default();
    let is_zero = value.as_u64() == Some(0) && !MAY_BE_ZERO.contains(&field);
    match with(all, field, value).filter(|_| !is_zero) {
        Some(changed) => *reading = changed,
        None => {
            let all = serde_json::to_value(Reading::default()).unwrap_or_default();
            let expected = match () {
                () if with(all.clone(), field, Value::Bool(true)).is_some() => "true or false",
                () if with(all, field, Value::from("text")).is_some() => "a text",
                () => "a whole number of at least 1",
            };
            return Err(document.wrong(name, expected));
        }
    }
    Ok(())
}

/// Fills in what follows from the number of GPUs, degrees and batch sizes; `passes` is the number of passes that are accumulated.
///
/// # Errors
/// The degrees do not fit the number of GPUs.
pub(crate) fn follow(job: &mut Job, gpus: Option<u32>, passes: Option<u32>) -> Result<(), JobError> {
    let reading = &mut job.reading;
    reading.world = reading.world.or(gpus);
    let size = [reading.tp, reading.pp, reading.cp].iter().flatten().try_fold(1u32, |all, &one| all.checked_mul(one));
    let place = || job.files.first().map_or_else(|| "job:1".to_string(), |file| format!("{file}:1"));
    let Some(size) = size else {
        return Err(JobError::File {
            place: place(),
            why: "expected tp · pp · cp below 2^32, found more; correct them".to_string(),
        });
    };
    match (reading.world, reading.dp) {
        (Some(world), None) if world % size != 0 => {
            let why = format!(
                "expected a multiple of tp · pp · cp = {size} GPUs, found {world}; change the number of GPUs or a degree"
            );
            return Err(JobError::File { place: place(), why });
        }
        (Some(world), None) => reading.dp = Some(world / size),
        (Some(world), Some(dp)) if Some(world) != dp.checked_mul(size) => {
            let why = format!(
                "expected dp · tp · pp · cp = {} GPUs, found {world}; correct one",
                u64::from(dp) * u64::from(size)
            );
            return Err(JobError::File { place: place(), why });
        }
        (None, Some(dp)) => reading.world = dp.checked_mul(size),
        _ => {}
    }
    if let (None, Some(micro), Some(batch), Some(passes)) =
        (reading.dp, reading.micro_batch, reading.global_batch, passes)
    {
        reading.dp = micro.checked_mul(passes).filter(|all| batch % all == 0).map(|all| batch / all);
        reading.world = reading.dp.and_then(|dp| dp.checked_mul(size));
    }
    let per_micro = reading.dp.zip(reading.micro_batch).and_then(|(dp, micro)| dp.checked_mul(micro));
    match (reading.global_batch, per_micro) {
        (None, Some(one)) => {
            reading.num_microbatches = reading.num_microbatches.or(passes);
            reading.global_batch = reading.num_microbatches.and_then(|count| one.checked_mul(count));
        }
        (Some(batch), Some(one)) => reading.num_microbatches = (batch % one == 0).then_some(batch / one),
        (_, None) => reading.num_microbatches = reading.num_microbatches.or(passes),
    }
    Ok(())
}

/// Returns the error of a file that the job refers to and that is not there.
pub(crate) fn missing(path: &str) -> JobError {
    JobError::Missing(vec![Missing::File { path: path.to_string() }])
}
