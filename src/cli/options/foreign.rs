//! Names that other programs use for options, values and verbs, and what to write instead: `foreign.toml`.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Each table of the file: what to write or to know here, and the names, between blanks, that other programs have for it.
#[derive(Deserialize)]
pub struct Foreign {
    pub meanings: BTreeMap<String, String>,
    /// By verb: what an option is there, if it is something else.
    #[serde(rename = "meanings-of")]
    pub meanings_of: BTreeMap<String, BTreeMap<String, String>>,
    pub flags: BTreeMap<String, String>,
    pub notes: BTreeMap<String, String>,
    pub verbs: BTreeMap<String, String>,
    pub values: BTreeMap<String, BTreeMap<String, String>>,
}

pub static FOREIGN: LazyLock<Foreign> =
    LazyLock::new(|| toml::from_str(include_str!("foreign.toml")).expect("a test reads the file"));

/// Returns the key of the row with a name that `is_it`.
pub fn find(table: &BTreeMap<String, String>, is_it: impl Fn(&str) -> bool) -> Option<&str> {
    table.iter().find(|(_, names)| names.split(' ').any(&is_it)).map(|(here, _)| here.as_str())
}
