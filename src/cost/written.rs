//! Reads costs as they are written: `F=1,I=1,W=1,B=2,comm=0.1`, or per stage `F=18.5:18.5:24ms` or `F=18.5/18.5/24ms`.

use super::given::{PIECES, SHARES, TIMES};
use super::{CostError, Decimal, GivenCosts, TimeUnit};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Keys that may have a value per stage.
const KINDS: [&str; 4] = ["F", "I", "W", "B"];

/// A cost as it is written: a number, or one per stage, and their unit.
struct WrittenCost {
    numbers: Vec<Decimal>,
    unit: Option<TimeUnit>,
}

impl WrittenCost {
    /// Reads the numbers of one cost: several, one per stage, are separated by `:` or `/`. Between colons `4/3` is a fraction; without
    /// colons, a unit and longer lists, too.
    fn read(text: &str, has_lists: bool) -> Result<WrittenCost, CostError> {
        let number = text.trim_end_matches(|c: char| c.is_alphabetic() || c == 'µ').trim_end();
        let has_colons = text.contains(':');
        let is_list = match text.matches('/').count() {
            _ if has_colons => true,
            0 => false,
            1 => has_lists || !text[number.len()..].trim().is_empty(),
            _ => true,
        };
        if !is_list {
            let (number, unit) = TimeUnit::read(text)?;
            return Ok(WrittenCost { numbers: vec![number], unit });
        }
        let parts = text.split(if has_colons { ':' } else { '/' }).map(|part| TimeUnit::read(part.trim()));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let unit = parts.last().and_then(|&(_, unit)| unit);
        if parts.iter().any(|(_, own)| own.is_some() && *own != unit) {
            return Err(CostError::Given(format!(
                "expected one unit for all stages, after the last as in F=18.5:18.5:24ms, found '{text}'"
            )));
        }
        Ok(WrittenCost { numbers: parts.into_iter().map(|(number, _)| number).collect(), unit })
    }

    /// Returns the value of a stage in a unit; a single value applies to every stage.
    fn of_stage(&self, stage: usize, unit: Option<TimeUnit>) -> Decimal {
        let number = self.numbers.get(if self.numbers.len() == 1 { 0 } else { stage });
        let number = number.copied().unwrap_or(Decimal::whole(0));
        unit.zip(self.unit).map_or(number, |(unit, own)| unit.of(number, own))
    }

    fn largest(&self) -> f64 {
        self.numbers.iter().map(|number| number.to_f64()).fold(0.0, f64::max)
    }
}

type AllWritten<'a> = BTreeMap<&'a str, WrittenCost>;

impl FromStr for GivenCosts {
    type Err = CostError;

    fn from_str(text: &str) -> Result<GivenCosts, CostError> {
        let given = read(text)?;
        let (count, unit) = (stages_of_all(&given)?, unit_of_all(&given)?);
        let of_stage = |stage: usize| completed(KINDS.map(|key| Some(given.get(key)?.of_stage(stage, unit))));
        let times = (0..count).map(|stage| Ok(of_stage(stage)?.0)).collect::<Result<_, CostError>>()?;
        let mut assumed = of_stage(0)?.1;
        if unit.is_none() && !KINDS.iter().any(|kind| given.contains_key(kind)) {
            assumed.clear(); // the same unit costs as without `costs`
        }
        let others = [&TIMES[..], &SHARES, &PIECES].concat();
        let others = others.into_iter().filter_map(|key| Some((key, given.get(key)?.of_stage(0, unit))));
        let mut others: BTreeMap<&'static str, Decimal> = others.collect();
        if let Some(key) = SHARES.iter().find(|key| others.get(*key).is_some_and(|share| share.to_f64() > 1.0)) {
            return Err(CostError::Given(format!("{key} is a share between 0 and 1, found {}", others[key].to_f64())));
        }
        if let Some(&attention) = others.get("attention") {
            others.entry("attention_I").or_insert(attention);
        }
        Ok(GivenCosts { times, others, unit, assumed, ..GivenCosts::default() })
    }
}

/// Reads `key=number` pairs.
fn read(text: &str) -> Result<AllWritten<'_>, CostError> {
    let mut given = AllWritten::new();
    // a slash between colons is part of a fraction
    let has_lists = text.split(',').any(|pair| !pair.contains(':') && pair.matches('/').count() > 1);
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| CostError::Given(format!("expected key=number, as in F=1,I=1,W=1, found '{pair}'")))?;
        let (key, known) = (key.trim(), [&KINDS[..], &TIMES, &SHARES, &PIECES].concat());
        if !known.contains(&key) {
            return Err(CostError::Given(format!("no cost is called '{key}'; known: {}", known.join(", "))));
        }
        if given.insert(key, WrittenCost::read(value.trim(), has_lists)?).is_some() {
            return Err(CostError::Given(format!("'{key}' is given twice")));
        }
    }
    match given.iter().find(|(key, written)| has_no_unit(key) && written.unit.is_some()) {
        Some((key, _)) => Err(CostError::Given(format!("{key} is a share, not a time; leave its unit out"))),
        None => Ok(given),
    }
}

/// Whether a cost is a number without a unit.
fn has_no_unit(key: &str) -> bool {
    SHARES.contains(&key) || PIECES.contains(&key)
}

/// Returns the number of stages for which times are given; 1 if there is one value for all.
fn stages_of_all(given: &AllWritten) -> Result<usize, CostError> {
    let lists = || given.iter().filter(|(_, written)| written.numbers.len() > 1);
    if let Some((key, _)) = lists().find(|(key, _)| !KINDS.contains(key)) {
        return Err(CostError::Given(format!("{key} is the same for all stages; give one number")));
    }
    let counts: BTreeSet<usize> = lists().map(|(_, written)| written.numbers.len()).collect();
    if counts.len() > 1 {
        let found = lists().map(|(key, written)| format!("{} for {key}", written.numbers.len())).collect::<Vec<_>>();
        return Err(CostError::Given(format!(
            "expected as many stages for every kind, found {}; give one value per stage",
            found.join(", ")
        )));
    }
    Ok(counts.first().copied().unwrap_or(1))
}

/// Returns the largest unit of all times; `None` if there are no units. A time of 0 needs no unit.
fn unit_of_all(given: &AllWritten) -> Result<Option<TimeUnit>, CostError> {
    let mut times = given.iter().filter(|(key, written)| !has_no_unit(key) && written.largest() > 0.0);
    let unit = given.values().filter_map(|written| written.unit).max();
    match (unit, times.find(|(_, written)| written.unit.is_none())) {
        (Some(unit), Some((key, written))) => Err(CostError::Given(format!(
            "expected a unit after every time or after none, found {key}={} without one; write {key}={0}{} if that is meant",
            written.largest(),
            unit.name()
        ))),
        _ => Ok(unit),
    }
}

/// Completes the given ones of F, I, W and B, and names the assumptions: each set of missing ones has one rule.
fn completed([f, i, w, b]: [Option<Decimal>; 4]) -> Result<([Decimal; 4], Vec<&'static str>), CostError> {
    let one = Decimal::whole(1);
    let rest = |half: Decimal, name: &str, b: Decimal| {
        b.minus(half).ok_or_else(|| {
            let (b, half) = (b.to_f64(), half.to_f64());
            CostError::Given(format!("expected B, a whole backward, to last as long as {name} or longer, found B={b} and {name}={half}; raise B, or give I and W"))
        })
    };
    let (i, w, halves) = match (i, w, b) {
        (Some(i), Some(w), _) => (i, w, None),
        (Some(i), None, Some(b)) => (i, rest(i, "I", b)?, Some("W = B - I")),
        (None, Some(w), Some(b)) => (rest(w, "W", b)?, w, Some("I = B - W")),
        (None, None, Some(b)) => (b.half(), b.half(), Some("I = W = B/2")),
        (Some(i), None, None) => (i, i, Some("W = I")),
        (None, Some(w), None) => (w, w, Some("I = W")),
        (None, None, None) => match f {
            Some(f) => (f, f, Some("I = W = F")),
            None => (one, one, Some("F = I = W = 1")),
        },
    };
    let forward = (f.is_none() && halves != Some("F = I = W = 1")).then_some("F = I");
    let times = [f.unwrap_or(i), i, w, b.unwrap_or_else(|| i.plus(w))];
    Ok((times, halves.into_iter().chain(forward).collect()))
}
