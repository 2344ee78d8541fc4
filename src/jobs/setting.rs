//! Options of a job, as it writes them.

/// An option with its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Its name without leading dashes, as written: `tensor-model-parallel-size`, `model.seq_length`.
    pub name: String,
    /// Its values; none for a flag.
    pub values: Vec<String>,
    /// Where it stands, as `FILE:LINE`.
    pub place: String,
    /// Variables and parameters in its values that the job does not say.
    pub unresolved: Vec<String>,
}

/// Options in the order of the job; of several with one name the last holds. `-` and `_` in names are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub Vec<Setting>);

impl Settings {
    /// Returns the setting that holds for a name.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.iter().rev().find(|setting| same_name(&setting.name, name))
    }

    /// Returns the first value of a name; none for a flag.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.get(name)?.values.first().map(String::as_str)
    }

    /// Whether a flag is given: without a value, or with one that is not false.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|setting| !setting.values.first().is_some_and(|value| is_false(value)))
    }
}

/// Whether a value switches a flag off.
pub(crate) fn is_false(value: &str) -> bool {
    matches!(value.to_lowercase().as_str(), "false" | "0" | "no" | "off" | "none" | "null")
}

/// Whether two names are one option's.
pub(crate) fn same_name(one: &str, other: &str) -> bool {
    let plain = |c: u8| if c == b'_' { b'-' } else { c };
    one.len() == other.len() && one.bytes().map(plain).eq(other.bytes().map(plain))
}
