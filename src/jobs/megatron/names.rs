//! Names of arguments: those of options, and those under which Megatron keeps and prints their values.

use super::options::is_none;
use crate::setting::{Setting, Settings, is_false};
use crate::vocabulary;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The file jobs/names/megatron.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    /// By the name of a value: that of its option, where it is another one.
    options: BTreeMap<String, String>,
    /// By the name of a value that is true by default: the flag that makes it false.
    off: BTreeMap<String, String>,
    /// By the name of a value: its default, as it is printed; none where it is `None` or `False`.
    defaults: BTreeMap<String, String>,
    /// Values that follow from others.
    derived: Vec<String>,
    /// By dialect: its own names of options.
    dialects: BTreeMap<String, Own>,
    /// What Megatron's parser takes.
    parser: Parser,
}

/// What Megatron's parser takes after options that are read: one value, or something else.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parser {
    /// Options without a value.
    pub(super) flags: Vec<String>,
    /// Options of one value or more.
    pub(super) lists: Vec<String>,
    /// Options of a whole number.
    pub(super) numbers: Vec<String>,
    /// By option: all values that it takes, also those of older versions.
    pub(super) choices: BTreeMap<String, Vec<String>>,
}

/// Names and defaults of a dialect.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// By its own name of an option: Megatron's.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// Options that it adds, which come before those of the job: `use-distributed-optimizer`, `seq-length 1024`.
    #[serde(default)]
    defaults: Vec<String>,
}

static NAMES: LazyLock<Names> =
    LazyLock::new(|| toml::from_str(vocabulary::text("megatron-names")).expect("a test reads every file of jobs/"));

/// What Megatron's parser takes.
pub(super) static PARSER: LazyLock<Parser> = LazyLock::new(|| NAMES.parser.clone());

/// Returns printed values as options: those that are not defaults.
pub(super) fn of_values(settings: &Settings) -> Settings {
    let names = &*NAMES;
    let is_given = |setting: &Setting| {
        let value = listed(&setting.values).join(" ");
        let default = names.defaults.get(&setting.name);
        !names.derived.contains(&setting.name) && default.is_none_or(|default| *default != value)
    };
    let given = settings.0.iter().filter(|setting| is_given(setting));
    Settings(given.filter_map(|setting| named(names, setting)).collect())
}

/// Returns a value as an option; `None` if it is none or switched off.
pub(super) fn of_value(setting: &Setting) -> Option<Setting> {
    named(&NAMES, setting)
}

fn named(names: &Names, setting: &Setting) -> Option<Setting> {
    let values = listed(&setting.values);
    let first = values.first().map_or("", String::as_str);
    let as_flag = |name: &str| Some(Setting { name: name.to_string(), values: Vec::new(), ..setting.clone() });
    if let Some(flag) = names.off.get(&setting.name) {
        return if is_false(first) && !is_none(first) { as_flag(flag) } else { None };
    }
    let name = names.options.get(&setting.name).cloned().unwrap_or_else(|| setting.name.replace('_', "-"));
    match first {
        _ if !setting.unresolved.is_empty() => Some(Setting { name, values, ..setting.clone() }),
        "False" | "false" => None,
        "True" | "true" => as_flag(&name),
        value if is_none(value) => None,
        _ => Some(Setting { name, values, ..setting.clone() }),
    }
}

/// Returns the values of a list that Python printed: `['a', 'b']`.
fn listed(values: &[String]) -> Vec<String> {
    let text = values.join(" ");
    let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else { return values.to_vec() };
    let is_text = inner.contains('\'') || inner.chars().all(|c| c.is_ascii_digit() || ", ".contains(c));
    if !is_text && !inner.chars().any(|c| c == ',') {
        return vec![inner.to_string()];
    }
    inner.split(',').map(|one| one.trim().trim_matches('\'').to_string()).filter(|one| !one.is_empty()).collect()
}

/// Returns the options that a dialect adds.
pub(super) fn defaults(dialect: &str) -> Vec<Setting> {
    let option = |text: &String| {
        let mut words = text.split_whitespace().map(str::to_string);
        Setting { name: words.next().unwrap_or_default(), values: words.collect(), ..Setting::default() }
    };
    NAMES.dialects.get(dialect).into_iter().flat_map(|own| &own.defaults).map(option).collect()
}

/// Returns options with Megatron's names instead of a dialect's, after the dialect's defaults.
pub(super) fn renamed(dialect: &str, given: &Settings) -> Settings {
    let own = NAMES.dialects.get(dialect);
    let mut all = defaults(dialect);
    for setting in &given.0 {
        let known = own.and_then(|own| own.names.get(&setting.name.replace('-', "_")));
        all.push(Setting { name: known.unwrap_or(&setting.name).clone(), ..setting.clone() });
    }
    Settings(all)
}
