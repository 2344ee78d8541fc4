//! Costs given for each stage, as they are written: `F=18.5:18.5:24ms` or `F=18.5/18.5/24ms`.

use super::depth::even;
use super::{CostError, Decimal, TimeUnit};
use crate::placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// Times that were given for each stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenStages {
    /// By stage: F, I, W, B.
    pub times: Vec<[Decimal; 4]>,
    /// Layers of these stages, if known.
    pub layers: Option<Vec<usize>>,
}

impl GivenStages {
    /// Returns the longest time of each kind.
    pub fn longest(&self) -> [Decimal; 4] {
        let longer = |one: Decimal, other: Decimal| if other.to_f64() > one.to_f64() { other } else { one };
        [0, 1, 2, 3].map(|kind| self.times.iter().map(|times| times[kind]).fold(Decimal::whole(0), longer))
    }

    /// Returns the sizes of the given stages and of those of `placement`, which have `layers`, in equal pieces of the model.
    pub fn sizes(&self, placement: &Placement, layers: Option<Vec<usize>>) -> [Vec<u64>; 2] {
        let pieces = |layers: &[usize]| layers.iter().map(|&count| count as u64).collect();
        match (&self.layers, layers) {
            (Some(own), Some(new)) => [pieces(own), pieces(&new)],
            _ => even(self.times.len(), placement.stages() as usize),
        }
    }
}

/// Returns the numbers of one cost: several, one per stage, are separated by `:` or `/`. Between colons `4/3` is a fraction; without
/// colons, a unit and longer lists, too.
pub(super) fn values(text: &str, has_lists: bool) -> Result<(Vec<Decimal>, Option<TimeUnit>), CostError> {
    let number = text.trim_end_matches(|c: char| c.is_alphabetic() || c == 'µ').trim_end();
    let unit = text[number.len()..].trim();
    let has_colons = text.contains(':');
    let is_list = match text.matches('/').count() {
        _ if has_colons => true,
        0 => false,
        1 => has_lists || !unit.is_empty(),
        _ => true,
    };
    if !is_list {
        let (number, unit) = TimeUnit::read(text)?;
        return Ok((vec![number], unit));
    }
    let mut all = Vec::new();
    let mut found = None;
    for (at, part) in text.split(if has_colons { ':' } else { '/' }).rev().enumerate() {
        let (number, own) = TimeUnit::read(part.trim())?;
        if at == 0 {
            found = own;
        } else if own.is_some() && own != found {
            return Err(CostError(format!(
                "expected one unit for all stages, after the last as in F=18.5:18.5:24ms, found '{text}'"
            )));
        }
        all.push(number);
    }
    all.reverse();
    Ok((all, found))
}

/// Returns the value of a stage; a single one is that of every stage.
pub(super) fn nth(numbers: &[Decimal], stage: usize) -> Decimal {
    let zero = Decimal::whole(0);
    numbers.get(if numbers.len() == 1 { 0 } else { stage }).copied().unwrap_or(zero)
}

/// Returns the number of stages for which times are given; `None` if there is one value for all.
pub(super) fn count_of_all(
    given: &BTreeMap<&str, (Vec<Decimal>, Option<TimeUnit>)>,
) -> Result<Option<usize>, CostError> {
    let lists = || given.iter().filter(|(_, (numbers, _))| numbers.len() > 1);
    if let Some((key, _)) = lists().find(|(key, _)| !["F", "I", "W", "B"].contains(*key)) {
        return Err(CostError(format!("{key} is the same for all stages; give one number")));
    }
    let counts: BTreeSet<usize> = lists().map(|(_, (numbers, _))| numbers.len()).collect();
    match counts.len() {
        0 => Ok(None),
        1 => Ok(counts.first().copied()),
        _ => {
            let found = lists().map(|(key, (numbers, _))| format!("{} for {key}", numbers.len())).collect::<Vec<_>>();
            Err(CostError(format!(
                "expected as many stages for every kind, found {}; give one value per stage",
                found.join(", ")
            )))
        }
    }
}
