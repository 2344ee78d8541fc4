//! Which of cuBLASLt's algorithms products take. A process has one table: all devices, sessions and links take the same algorithm for
//! the same product on the same kind of GPU, so their bits are equal.

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest number of algorithms that are timed per product.
pub const MOST_CANDIDATES: usize = 8;

/// Rule by which a product takes its algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Rule {
    /// The first one that the library proposes.
    #[default]
    First,
    /// The fastest of [`MOST_CANDIDATES`], timed when ops warm up.
    Timed,
    /// The algorithm that an earlier run recorded for the product: see [`record`].
    Recorded(BTreeMap<String, Choice>),
}

/// The algorithm of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Hash of the library's description of the algorithm, in 16 hexadecimal digits.
    pub algorithm: String,
    /// Its number among the candidates, and their times, for people.
    pub why: String,
}

struct Table {
    rule: Rule,
    /// By product.
    chosen: BTreeMap<String, Choice>,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: Mutex<Table> = Mutex::new(Table { rule: Rule::First, chosen: BTreeMap::new() });
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets products of modules that are created from now on take the algorithms of this record, or without one the fastest, timed when ops
/// warm up.
///
/// # Errors
/// The record is malformed.
pub fn choose_by(record: Option<&str>) -> Result<()> {
    let rule = record.map_or(Ok(Rule::Timed), |record| parse(record).map(Rule::Recorded))?;
    table().rule = rule;
    Ok(())
}

/// Returns whether products take the library's first proposal.
pub fn takes_first() -> bool {
    table().rule == Rule::First
}

/// Returns whether this process times algorithms.
pub fn are_timed() -> bool {
    table().rule == Rule::Timed
}

/// Returns what was chosen for a product, if anything.
///
/// # Errors
/// The record lacks the product.
pub(crate) fn chosen(product: &str) -> Result<Option<Choice>> {
    let mut table = table();
    if let Rule::Recorded(record) = &table.rule {
        let Some(choice) = record.get(product).cloned() else {
            bail!(
                "expected an algorithm of the product {product} in the record of `products`, found none: record a run of this model, these \
                 sizes and this GPU with `products` timed"
            );
        };
        table.chosen.insert(product.to_string(), choice);
    }
    Ok(table.chosen.get(product).cloned())
}

pub(crate) fn choose(product: String, choice: Choice) {
    table().chosen.insert(product, choice);
}

/// Takes over what other ranks chose; of several, the lowest rank's. `ranks` are records by rank.
///
/// # Errors
/// A record is malformed.
pub fn adopt<'a>(ranks: impl DoubleEndedIterator<Item = &'a str>) -> Result<()> {
    for record in ranks.rev() {
        let record = parse(record)?;
        let mut table = table();
        for (product, choice) in record {
            match table.chosen.get(&product) {
                Some(own) if own.algorithm == choice.algorithm => {}
                _ => drop(table.chosen.insert(product, choice)),
            }
        }
    }
    Ok(())
}

/// Returns the number of chosen algorithms, and how many of them are not the library's first proposals.
pub fn counts() -> (usize, usize) {
    let table = table();
    let others = table.chosen.values().filter(|choice| !choice.why.starts_with(FIRST_NUMBER));
    (table.chosen.len(), others.count())
}

/// How [`Choice::why`] begins for the library's first proposal.
const FIRST_NUMBER: &str = "number 1 ";

/// Returns all choices as text: for each product the algorithm, the product, and in brackets why, joined by `; `.
pub fn record() -> String {
    let table = table();
    let each = table.chosen.iter().map(|(product, choice)| format!("{} {product} ({})", choice.algorithm, choice.why));
    each.collect::<Vec<_>>().join("; ")
}

/// Reads the text of [`record`].
///
/// # Errors
/// It is malformed: the error names the part.
fn parse(text: &str) -> Result<BTreeMap<String, Choice>> {
    let mut record = BTreeMap::new();
    for part in text.split("; ").filter(|part| !part.is_empty()) {
        let fields = part.split_once(' ').and_then(|(algorithm, rest)| {
            let (product, why) = rest.strip_suffix(')')?.rsplit_once(" (")?;
            let is_hash = algorithm.len() == 16 && algorithm.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_hash.then(|| (product.to_string(), Choice { algorithm: algorithm.to_string(), why: why.to_string() }))
        });
        let Some((product, choice)) = fields else {
            bail!("expected 16 hexadecimal digits, a product and (a reason), found {part:?}: take an unchanged report");
        };
        record.insert(product, choice);
    }
    Ok(record)
}
