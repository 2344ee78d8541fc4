//! A version of a framework: its schedules, what it objects to, and its options.

use super::error::Error;
use super::expression::{Expression, Program, Source};
use super::facts::Facts;
use super::file::{FILES, FrameworkFile, Head};
use super::printer;
use pipesim_schedule::schedule::Schedule;
use serde::Serialize;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::{LazyLock, OnceLock};

pub use super::file::ObjectionKind;

/// Why a framework does not train a layout as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// Name of the rule.
    pub rule: String,
    pub kind: ObjectionKind,
    /// The framework's error, or what it lacks or does instead.
    pub error: String,
    /// One thing to do; may be empty.
    pub remedy: String,
    /// File and line of the framework that say so; may be empty.
    pub source: String,
}

struct Rule {
    name: String,
    kind: ObjectionKind,
    source: String,
    /// Whether the rule is broken.
    broken: Expression,
    error: Expression,
    remedy: Expression,
}

/// An option, a variable of the environment, or a note.
struct Entry {
    name: String,
    when: Expression,
    /// `None`: the name alone.
    value: Option<Expression>,
}

/// One version of a framework.
pub struct Framework {
    file: FrameworkFile,
    program: Program,
    split: Option<Expression>,
    rules: Vec<Rule>,
    options: Vec<Entry>,
    environment: Vec<Entry>,
    notes: Vec<Entry>,
}

/// An embedded file, read when it is first needed.
struct Embedded {
    head: Head,
    file: &'static str,
    text: &'static str,
    framework: OnceLock<Result<Framework, Error>>,
}

/// All files, by framework, the newest version first.
static EMBEDDED: LazyLock<Result<Vec<Embedded>, Error>> = LazyLock::new(|| {
    let embedded = |&(file, text): &(&'static str, &'static str)| {
        Ok(Embedded { head: Head::read(file, text, &text_of)?, file, text, framework: OnceLock::new() })
    };
    let mut all = FILES.iter().map(embedded).collect::<Result<Vec<_>, Error>>()?;
    let key =
        |one: &Embedded| (one.head.framework.clone(), Reverse(one.head.released.clone()), one.head.version.clone());
    all.sort_by_key(key);
    Ok(all)
});

fn text_of(file: &str) -> Option<String> {
    FILES.iter().find(|(known, _)| *known == file).map(|(_, text)| text.to_string())
}

impl Embedded {
    fn get(&'static self) -> Result<&'static Framework, Error> {
        let framework = self.framework.get_or_init(|| Framework::read(self.file, self.text, &text_of));
        framework.as_ref().map_err(Clone::clone)
    }
}

fn embedded() -> Result<&'static [Embedded], Error> {
    EMBEDDED.as_deref().map_err(Clone::clone)
}

/// Returns all versions of all frameworks, by name, newest first.
///
/// # Errors
/// A file that cannot be read.
pub fn frameworks() -> Result<Vec<&'static Framework>, Error> {
    embedded()?.iter().map(Embedded::get).collect()
}

/// Returns the name for `plan --to` of each framework whose options are known, with the framework's own name.
///
/// # Errors
/// A file that cannot be read.
pub fn targets() -> Result<Vec<(&'static str, &'static str)>, Error> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for Embedded { head, .. } in embedded()? {
        if let Some(target) = head.target.as_deref().filter(|target| !found.iter().any(|(known, _)| known == target)) {
            found.push((target, &head.framework));
        }
    }
    Ok(found)
}

impl Framework {
    /// Reads a file; `others` returns the text of a base by its name.
    ///
    /// # Errors
    /// A file that is not in the format, or expressions that are not.
    pub fn read(name: &str, text: &str, others: &dyn Fn(&str) -> Option<String>) -> Result<Framework, Error> {
        let file = FrameworkFile::read(name, text, others)?;
        let mut source = Source::default();
        let split = file.split.as_ref().map(|split| source.add(split));
        let rules = file.rules.iter().map(|rule| Rule {
            name: rule.name.clone(),
            kind: rule.kind,
            source: rule.source.clone(),
            broken: source.add(&format!("({}) and not ({})", rule.when, rule.expect)),
            error: source.add_template(&rule.error),
            remedy: source.add_template(&rule.remedy),
        });
        let rules = rules.collect();
        let options = file.options.iter().map(|entry| Entry {
            name: entry.name.clone(),
            when: source.add(&entry.when),
            value: entry.value.as_ref().map(|value| source.add(value)),
        });
        let options = options.collect();
        let environment = file.environment.iter().map(|entry| Entry {
            name: entry.name.clone(),
            when: source.add(&entry.when),
            value: Some(source.add(&entry.value)),
        });
        let environment = environment.collect();
        let notes = file.notes.iter().map(|entry| Entry {
            name: String::new(),
            when: source.add(&entry.when),
            value: Some(source.add_template(&entry.text)),
        });
        let notes = notes.collect();
        Ok(Framework { program: source.compile(name)?, file, split, rules, options, environment, notes })
    }

    /// Returns a version of a framework, or its newest.
    ///
    /// # Errors
    /// No such framework or version.
    pub fn find(name: &str, version: Option<&str>) -> Result<&'static Framework, Error> {
        let all = embedded()?;
        let is = |head: &Head| head.framework == name || head.target.as_deref() == Some(name);
        let of: Vec<&Embedded> = all.iter().filter(|one| is(&one.head)).collect();
        let Some(newest) = of.first() else {
            let mut known: Vec<&str> = all.iter().map(|one| one.head.framework.as_str()).collect();
            known.dedup();
            return Err(Error::Name { name: name.to_string(), known: known.join(", ") });
        };
        let Some(version) = version else { return newest.get() };
        match of.iter().find(|one| one.head.version == version) {
            Some(found) => found.get(),
            None => {
                let known = of.iter().map(|one| one.head.version.as_str()).collect::<Vec<_>>().join(", ");
                let title = newest.get()?.title().to_string();
                Err(Error::Version { title, version: version.to_string(), known })
            }
        }
    }

    /// Returns its name, as in `megatron-core`.
    pub fn name(&self) -> &str {
        &self.file.framework
    }

    /// Returns what texts call it, as in Megatron-LM.
    pub fn title(&self) -> &str {
        &self.file.title
    }

    /// Returns its version.
    pub fn version(&self) -> &str {
        &self.file.version
    }

    /// Returns the date of its version, as in 2026-08-22.
    pub fn released(&self) -> &str {
        &self.file.released
    }

    /// Returns repository and commit of the sources that rules name.
    pub fn source(&self) -> &str {
        &self.file.source
    }

    /// Returns its name for `plan --to`, if its options are known.
    pub fn target(&self) -> Option<&str> {
        self.file.target.as_deref()
    }

    /// Returns the delivery of its pipeline, if it has one that is known.
    pub fn delivery(&self) -> Option<&str> {
        self.file.delivery.as_deref()
    }

    /// Returns the format of schedule files that it loads.
    pub fn csv(&self) -> Option<&str> {
        self.file.csv.as_deref()
    }

    /// Returns the stacks, tables of costs, that run it.
    pub fn stacks(&self) -> &[String] {
        &self.file.stacks
    }

    /// Returns the built-in schedules that it has, each with its own name of them.
    pub fn schedules(&self) -> impl Iterator<Item = (&str, &str)> {
        self.file.schedules.iter().map(|(name, own)| (name.as_str(), own.as_str()))
    }

    /// Returns defaults that matter.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &str)> {
        self.file.defaults.iter().map(|(name, own)| (name.as_str(), own.as_str()))
    }

    /// Returns the objection to a built-in schedule that it lacks, with what has it.
    pub fn lacks(&self, schedule: &str) -> Option<Objection> {
        if schedule.is_empty() || self.file.schedules.contains_key(schedule) {
            return None;
        }
        let own: Vec<&str> = self.file.schedules.keys().map(String::as_str).collect();
        let remedy = match self.file.needs.get(schedule) {
            Some(needs) => format!("it needs {needs}"),
            None if own.is_empty() => "use one device per pipeline".to_string(),
            None => format!("choose among {}", own.join(", ")),
        };
        let error = format!("{} has no {schedule}", self.title());
        Some(Objection {
            rule: "schedule".to_string(),
            kind: ObjectionKind::Missing,
            error,
            remedy,
            source: String::new(),
        })
    }

    /// Returns why it does not train what is known of a layout as it is; nothing if it does.
    ///
    /// # Errors
    /// A rule that cannot be evaluated.
    pub fn objections(&self, facts: &Facts) -> Result<Vec<Objection>, Error> {
        let mut found: Vec<Objection> = self.lacks(facts.text("schedule")).into_iter().collect();
        self.program.evaluate(self.with_split(facts)?.as_ref(), |value| {
            for rule in &self.rules {
                if value(rule.broken)? != Some(Json::Bool(true)) {
                    continue;
                }
                let mut text =
                    |expression| Ok(value(expression)?.as_ref().and_then(Json::as_str).unwrap_or_default().to_string());
                let (error, remedy) = (text(rule.error)?, text(rule.remedy)?);
                let source = rule.source.clone();
                found.push(Objection { rule: rule.name.clone(), kind: rule.kind, error, remedy, source });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the layers of each stage as it splits them by itself; `None` if it takes any split, or if facts are missing.
    ///
    /// # Errors
    /// An expression that cannot be evaluated.
    pub fn split(&self, facts: &Facts) -> Result<Option<Vec<usize>>, Error> {
        Ok(self.with_split(facts)?.get("split").and_then(|split| serde_json::from_value(split.clone()).ok()))
    }

    fn with_split<'a>(&self, facts: &'a Facts) -> Result<Cow<'a, Facts>, Error> {
        let Some(split) = self.split else { return Ok(Cow::Borrowed(facts)) };
        let Some(layers) = self.program.evaluate(facts, |value| value(split))? else { return Ok(Cow::Borrowed(facts)) };
        let mut facts = facts.clone();
        facts.set("split", layers);
        Ok(Cow::Owned(facts))
    }

    /// Returns whether it refuses a layout or does something else; with `expresses`, also whether it has no way to express it.
    ///
    /// # Errors
    /// A rule that cannot be evaluated.
    pub fn refuses(&self, facts: &Facts, expresses: bool) -> Result<bool, Error> {
        if expresses && self.lacks(facts.text("schedule")).is_some() {
            return Ok(true);
        }
        let counts = |kind| match kind {
            ObjectionKind::Refused | ObjectionKind::Silent => true,
            ObjectionKind::Missing => expresses,
            ObjectionKind::Needs => false,
        };
        self.program.evaluate(self.with_split(facts)?.as_ref(), |value| {
            for rule in self.rules.iter().filter(|rule| counts(rule.kind)) {
                if value(rule.broken)? == Some(Json::Bool(true)) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Returns the options that train a layout, to paste.
    ///
    /// # Errors
    /// An option that cannot be evaluated.
    pub fn options(&self, facts: &Facts) -> Result<String, Error> {
        Ok(printer::print(self.file.form, &self.entries(&self.options, facts)?))
    }

    /// Returns what must be said next to the options: variables of the environment, and what they cannot express.
    ///
    /// # Errors
    /// A note that cannot be evaluated.
    pub fn notes(&self, facts: &Facts) -> Result<Vec<String>, Error> {
        let set = self.entries(&self.environment, facts)?;
        let set = set.iter().map(|(name, value)| format!("set {name}={}", printer::word(value)));
        let notes = self.entries(&self.notes, facts)?;
        Ok(set.chain(notes.iter().map(|(_, text)| printer::word(text))).collect())
    }

    /// Returns what to do so that it loads a schedule file in `format`, one of PyTorch's, or why it cannot; nothing if it loads no files.
    ///
    /// # Errors
    /// A rule or note that cannot be evaluated.
    pub fn loading(&self, schedule: &Schedule, format: &str) -> Result<Vec<String>, Error> {
        let mut facts = Facts::default();
        facts.add_schedule(schedule, None);
        let usual = self.notes(&facts)?;
        let objections = self.objections(facts.set("csv", format))?;
        let mut texts = if objections.is_empty() { self.notes(&facts)? } else { Vec::new() };
        texts.retain(|text| !usual.contains(text));
        texts.extend(objections.into_iter().map(|one| format!("{}; {}", one.error, one.remedy)));
        Ok(texts.iter().map(|text| format!("{} {}: {text}", self.title(), self.version())).collect())
    }

    /// Returns the entries that apply, with their values.
    fn entries(&self, entries: &[Entry], facts: &Facts) -> Result<Vec<(String, Json)>, Error> {
        self.program.evaluate(facts, |value| {
            let mut found = Vec::new();
            for entry in entries {
                if value(entry.when)? != Some(Json::Bool(true)) {
                    continue;
                }
                let own = entry.value.map(&mut *value).transpose()?;
                match own {
                    None => found.push((entry.name.clone(), Json::Null)),
                    Some(own) => found.extend(own.map(|own| (entry.name.clone(), own))),
                }
            }
            Ok(found)
        })
    }
}
