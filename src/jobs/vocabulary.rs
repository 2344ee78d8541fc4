//! What each option of a framework means for a step: the files of `jobs/`.

use crate::job::{Job, NotModelled, Unknown};
use crate::setting::{Settings, same_name};
use pipesim_schedule::nearest::nearest;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Name and text of each file of `jobs/`.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/jobs.rs"));

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
#[derive(Debug, Default, Deserialize)]
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

/// Returns the text of a file of `jobs/`.
pub(crate) fn text(name: &str) -> &'static str {
    FILES.iter().find(|(known, _)| *known == name).expect("a name of a file in jobs/").1
}

impl Vocabulary {
    /// Returns the vocabulary of a file of `jobs/`.
    pub fn of(framework: &str) -> Vocabulary {
        toml::from_str(text(framework)).expect("a test reads every file of jobs/")
    }

    /// Returns several vocabularies as one; what an earlier one says of a name holds.
    pub fn of_all(frameworks: &[&str]) -> Vocabulary {
        let mut all = Vocabulary::default();
        for framework in frameworks {
            let mut more = Vocabulary::of(framework);
            let is_new = |name: &String| all.known(name, &[]).is_none();
            more.reads.retain(is_new);
            more.ignored.retain(is_new);
            more.changes.retain(|name, _| is_new(name));
            more.unless.retain(|name, _| more.changes.contains_key(name));
            all.reads.extend(more.reads);
            all.ignored.extend(more.ignored);
            all.changes.extend(more.changes);
            all.unless.extend(more.unless);
        }
        all
    }

    /// Returns what an option means with these values.
    pub fn meaning(&self, name: &str, values: &[String]) -> Meaning<'_> {
        self.known(name, values).unwrap_or_else(|| {
            let plain = self.ignored.iter().filter(|name| !name.contains('*'));
            let known: Vec<&str> =
                self.reads.iter().chain(plain).chain(self.changes.keys()).map(String::as_str).collect();
            Meaning::Unknown(nearest(name, &known).into_iter().next())
        })
    }

    /// Whether a name has the dashes and underscores of the framework's own.
    pub(crate) fn writes(&self, name: &str) -> bool {
        let names = self.reads.iter().chain(&self.ignored).chain(self.changes.keys());
        let fits = |known: &String| known == name || known.contains('*') && matches(known, name);
        names.into_iter().any(fits)
    }

    /// Returns what an option of the framework means; `None` if it has no such option.
    fn known(&self, name: &str, values: &[String]) -> Option<Meaning<'_>> {
        if self.reads.iter().any(|known| same_name(known, name)) {
            return Some(Meaning::Read);
        }
        if let Some((known, changes)) = self.changes.iter().find(|(known, _)| same_name(known, name)) {
            let plain =
                self.unless.get(known).is_some_and(|plain| values.first().is_some_and(|value| plain.contains(value)));
            return Some(if plain { Meaning::Ignored } else { Meaning::Changes(changes) });
        }
        self.ignored.iter().any(|pattern| matches(pattern, name)).then_some(Meaning::Ignored)
    }
}

impl Job {
    /// Sorts options by what they mean for a step. `dashes` stand before each name, as the job writes it.
    pub fn sort(&mut self, vocabulary: &Vocabulary, settings: &Settings, dashes: &str) {
        for (place, setting) in settings.0.iter().enumerate() {
            if settings.0[place + 1..].iter().any(|later| same_name(&later.name, &setting.name)) {
                continue;
            }
            let words = [&[format!("{dashes}{}", setting.name)], setting.values.as_slice()].concat();
            let option = words.join(" ");
            let is_off = setting.values.len() == 1 && ["false", "False"].contains(&setting.values[0].as_str());
            match vocabulary.meaning(&setting.name, &setting.values) {
                Meaning::Read => {}
                Meaning::Changes(_) if is_off => self.ignored.push(option),
                Meaning::Ignored => self.ignored.push(option),
                Meaning::Changes(changes) => {
                    self.not_modelled.push(NotModelled { option, changes: changes.to_string() });
                }
                Meaning::Unknown(nearest) => self.unknown.push(Unknown {
                    option: words[0].clone(),
                    nearest: nearest.map(|name| format!("{dashes}{name}")),
                    place: setting.place.clone(),
                }),
            }
        }
    }
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
