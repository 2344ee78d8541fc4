//! What each option of a framework means for a step: the files of `jobs/`.

use crate::job::{Job, NotModelled, Unknown};
use crate::setting::{Setting, Settings, same_name};
use pipesim_schedule::nearest::nearest;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Name and text of each file of `jobs/`.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/jobs.rs"));

/// Returns the text of a file of `jobs/`.
pub(crate) fn file(name: &str) -> &'static str {
    FILES.iter().find(|(file, _)| *file == name).expect("a name of a file in jobs/").1
}

/// What an option means for the time and the memory of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// It is read.
    Read,
    /// It changes neither.
    Ignored,
    /// It changes what is not modelled.
    Changes(&'a str),
    /// It is not in the framework, whose nearest name this is.
    Unknown(Option<&'a str>),
}

/// The options of a framework.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    /// Names that are read.
    pub reads: Vec<String>,
    /// Names without effect on a step; `*` stands for any text.
    pub ignored: Vec<String>,
    /// By name: what an option would change that is not modelled.
    pub changes: BTreeMap<String, String>,
    /// By name: values with which an option of `changes` changes nothing.
    #[serde(default)]
    pub unless: BTreeMap<String, Vec<String>>,
}

impl Vocabulary {
    /// Returns the vocabulary of a file of `jobs/`.
    pub fn of(framework: &str) -> Vocabulary {
        toml::from_str(file(framework)).expect("a test reads every file of jobs/")
    }

    /// Sorts options by what they mean into `ignored`, `not_modelled` and `unknown` of a job. Of several with one name the last counts.
    pub fn sort(&self, settings: &Settings, job: &mut Job) {
        for setting in &settings.0 {
            if settings.get(&setting.name).is_some_and(|last| !std::ptr::eq(last, setting)) {
                continue;
            }
            match self.meaning(&setting.name, &setting.values) {
                Meaning::Read => {}
                Meaning::Ignored => job.ignored.push(written(setting)),
                Meaning::Changes(changes) => {
                    job.not_modelled.push(NotModelled { option: written(setting), changes: changes.to_string() });
                }
                Meaning::Unknown(nearest) => job.unknown.push(Unknown {
                    option: written(setting),
                    nearest: nearest.map(str::to_string),
                    place: setting.place.clone(),
                }),
            }
        }
    }

    /// Returns what an option means with these values.
    pub fn meaning(&self, name: &str, values: &[String]) -> Meaning<'_> {
        if self.reads.iter().any(|known| same_name(known, name)) {
            return Meaning::Read;
        }
        if let Some((known, changes)) = self.changes.iter().find(|(known, _)| same_name(known, name)) {
            let plain =
                self.unless.get(known).is_some_and(|plain| values.first().is_some_and(|value| plain.contains(value)));
            return if plain { Meaning::Ignored } else { Meaning::Changes(changes) };
        }
        if self.ignored.iter().any(|pattern| matches(pattern, name)) {
            return Meaning::Ignored;
        }
        let plain = self.ignored.iter().filter(|name| !name.contains('*'));
        let known: Vec<&str> = self.reads.iter().chain(plain).chain(self.changes.keys()).map(String::as_str).collect();
        Meaning::Unknown(nearest(name, &known).into_iter().next())
    }
}

/// Returns an option with its values, as the job writes it.
fn written(setting: &Setting) -> String {
    let parts: Vec<&str> = std::iter::once(&setting.name).chain(&setting.values).map(String::as_str).collect();
    parts.join(" ")
}

/// Whether a name fits a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => same_name(pattern, name),
        Some((start, end)) => {
            name.len() >= start.len() + end.len()
                && name.is_char_boundary(start.len())
                && name.is_char_boundary(name.len() - end.len())
                && same_name(&name[..start.len()], start)
                && same_name(&name[name.len() - end.len()..], end)
        }
    }
}
