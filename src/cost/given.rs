//! Costs given on the command line: `F=1,I=1,W=1,B=2,comm=0.1,keep=1`, exact to the tick.

use super::share::Shares;
use super::stage_list::{GivenStages, count_of_all, nth, values};
use super::{
    CollectiveCosts, CostError, CostTable, Decimal, OpTime, Per, SliceCosts, Summary, TimeUnit, VocabularyCosts,
};
use crate::model_spec::{StageLayout, StagePieces};
use crate::op::Kind;
use crate::placement::Placement;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Slowdown factors by device: `2=1.3`.
pub type Slow = BTreeMap<u32, Decimal>;

/// Costs such as `F=18.5,I=18.1,W=9.3,B=27.4,comm=0.6,keep=0.4`, in any order: durations of a forward, the halves of a backward
/// and a whole backward for a device's whole share of layers, the latency between devices, and the fraction of an activation
/// kept from I to W. If B is given, I and W default to its halves, or to the rest of it; otherwise B is I + W, and missing ones
/// of F, I and W equal the others. A value per stage, in stage order, is separated by `:` or `/`: `F=18.5/18.5/18.5/24ms`; then all times are
/// of stages. Of two values without a unit, `1:2` is a list and `1/2` a fraction. Defaults: keep 1, comm 0. `unshard` and `reduce` are the times in which
/// collectives gather the parameters of a device's whole share of layers and reduce their gradients. Times have no unit, or each has one (`F=18.5ms,comm=300us`); the
/// largest is used for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCosts {
    /// F, I, W, and B (default: I + W).
    pub(super) durations: [Decimal; 4],
    pub(super) comm: Decimal,
    /// A copy of a micro-batch's activations between a device and the host.
    pub(super) copy: Decimal,
    /// S, S_rest, IF, IB and barrier, of a vocabulary that all devices share.
    pub(super) vocabulary: [Decimal; 5],
    pub(super) keep: Decimal,
    /// Gathering the parameters of a device's whole share of layers, and reducing their gradients.
    pub(super) collectives: Option<[Decimal; 2]>,
    pub(super) unit: Option<TimeUnit>,
    /// Assumptions about F, I and W that were not given.
    pub(super) assumed: Vec<&'static str>,
    pub(super) per: Per,
    pub(super) layers: Option<Vec<usize>>,
    /// What each stage holds; replaces `layers`.
    pub(super) layout: Option<StageLayout>,
    /// What the embedding, a layer that predicts further tokens, and the head cost, in decoder layers.
    pub(super) pieces: Option<[Decimal; 3]>,
    /// Times of each stage instead of `durations`.
    pub(super) stages: Option<GivenStages>,
    /// Shares that slices and recomputes need.
    pub(super) slices: SliceCosts,
}

/// Keys of durations.
const TIMES: [&str; 13] =
    ["F", "I", "W", "B", "comm", "copy", "S", "S_rest", "IF", "IB", "barrier", "unshard", "reduce"];
/// Keys of shares, which have no unit and are at most 1.
const SHARES: [&str; 6] = ["keep", "attention", "attention_I", "stub", "kv", "recompute"];

impl Default for GivenCosts {
    /// Unit costs: F = I = W = 1, B = 2, comm = 0, keep = 1.
    fn default() -> GivenCosts {
        let one = Decimal::whole(1);
        GivenCosts {
            durations: [one, one, one, Decimal::whole(2)],
            comm: Decimal::whole(0),
            copy: Decimal::whole(0),
            vocabulary: [Decimal::whole(0); 5],
            keep: one,
            collectives: None,
            unit: None,
            assumed: Vec::new(),
            per: Per::Device,
            layers: None,
            layout: None,
            pieces: None,
            stages: None,
            slices: SliceCosts::default(),
        }
    }
}

impl FromStr for GivenCosts {
    type Err = CostError;

    fn from_str(text: &str) -> Result<GivenCosts, CostError> {
        let mut given: BTreeMap<&str, (Vec<Decimal>, Option<TimeUnit>)> = BTreeMap::new();
        // between colons a slash is that of a fraction
        let has_lists = text.split(',').any(|pair| !pair.contains(':') && pair.matches('/').count() > 1);
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| CostError(format!("expected key=number, as in F=1,I=1,W=1, found '{pair}'")))?;
            let key = key.trim();
            if !TIMES.contains(&key) && !has_no_unit(key) {
                let pieces = PIECES.map(|(piece, _)| piece);
                let known = [&TIMES[..], &SHARES, &pieces].concat().join(", ");
                return Err(CostError(format!("no cost is called '{key}'; known: {known}")));
            }
            if given.insert(key, values(value.trim(), has_lists)?).is_some() {
                return Err(CostError(format!("'{key}' is given twice")));
            }
        }
        if let Some((key, _)) = given.iter().find(|(key, (_, unit))| has_no_unit(key) && unit.is_some()) {
            return Err(CostError(format!("{key} is a share, not a time; leave its unit out")));
        }
        let count = count_of_all(&given)?;
        let unit = unit_of_all(&given)?;
        let costs = GivenCosts::default();
        let get = |key: &str, stage: usize, default: Decimal| match (given.get(key), unit) {
            (Some((numbers, Some(own))), Some(unit)) => unit.of(nth(numbers, stage), *own),
            (found, _) => found.map_or(default, |(numbers, _)| nth(numbers, stage)),
        };
        let of_stage = |stage: usize| {
            let known = ["F", "I", "W", "B"].map(|key| given.contains_key(key).then(|| get(key, stage, costs.keep)));
            Times::completed(known)
        };
        let get = |key: &str, default: Decimal| get(key, 0, default);
        let Times { durations, mut assumed } = of_stage(0)?;
        let stages =
            count.map(|count| (0..count).map(|stage| Ok(of_stage(stage)?.durations)).collect::<Result<_, CostError>>());
        let stages = stages.transpose()?.map(|times| GivenStages { times, layers: None });
        let known = ["F", "I", "W", "B"].map(|key| given.get(key));
        if unit.is_none() && known.iter().all(Option::is_none) {
            assumed.clear(); // the same unit costs as without --costs
        }
        let share = |key: &str, default: Decimal| match get(key, default) {
            share if share.to_f64() > 1.0 => {
                Err(CostError(format!("{key} is a share between 0 and 1, found {}", share.to_f64())))
            }
            share => Ok(share),
        };
        let keep = share("keep", costs.keep)?;
        let attention = share("attention", costs.slices.attention)?;
        let slices = SliceCosts {
            attention,
            attention_input: share("attention_I", attention)?,
            stub: share("stub", costs.slices.stub)?,
            kv: share("kv", costs.slices.kv)?,
            recompute: share("recompute", costs.slices.recompute)?,
        };
        let durations = stages.as_ref().map_or(durations, GivenStages::longest);
        let has_collectives = COLLECTIVES.iter().any(|key| given.contains_key(key));
        let collectives = has_collectives.then(|| COLLECTIVES.map(|key| get(key, Decimal::whole(0))));
        let [comm, copy] = [get("comm", costs.comm), get("copy", costs.copy)];
        let has_pieces = PIECES.iter().any(|(key, _)| given.contains_key(key));
        let pieces = has_pieces.then(|| PIECES.map(|(key, usual)| get(key, Decimal::whole(usual))));
        let vocabulary = VOCABULARY.map(|key| get(key, Decimal::whole(0)));
        Ok(GivenCosts {
            durations,
            comm,
            copy,
            vocabulary,
            keep,
            collectives,
            unit,
            assumed,
            stages,
            slices,
            pieces,
            ..costs
        })
    }
}

/// The keys of what a layout places besides decoder layers, with their defaults.
const PIECES: [(&str, u32); 3] = [("embedding", 0), ("mtp", 1), ("loss", 0)];

/// The keys of what a shared vocabulary costs.
const VOCABULARY: [&str; 5] = ["S", "S_rest", "IF", "IB", "barrier"];

/// The keys of collectives.
const COLLECTIVES: [&str; 2] = ["unshard", "reduce"];

/// Whether a cost is a number without a unit.
fn has_no_unit(key: &str) -> bool {
    SHARES.contains(&key) || PIECES.iter().any(|(piece, _)| *piece == key)
}

/// Returns ` (assumed: I = W = B/2)`, or an empty string without assumptions.
pub fn assumed_in_words(rules: &[&str]) -> String {
    if rules.is_empty() { String::new() } else { format!(" (assumed: {})", rules.join(", ")) }
}

/// F, I, W and B with the assumptions about missing ones.
struct Times {
    durations: [Decimal; 4],
    assumed: Vec<&'static str>,
}

impl Times {
    /// Completes the given ones of F, I, W and B; each set of missing ones has one rule.
    fn completed([f, i, w, b]: [Option<Decimal>; 4]) -> Result<Times, CostError> {
        let one = Decimal::whole(1);
        let rest = |half: Decimal, name: &str, b: Decimal| {
            b.minus(half).ok_or_else(|| {
                let (b, half) = (b.to_f64(), half.to_f64());
                CostError(format!("expected B, a whole backward, to last as long as {name} or longer, found B={b} and {name}={half}; raise B, or give I and W"))
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
        let durations = [f.unwrap_or(i), i, w, b.unwrap_or_else(|| i.plus(w))];
        Ok(Times { durations, assumed: halves.into_iter().chain(forward).collect() })
    }
}

/// Returns the largest unit of all times; `None` if there are no units. A time of 0 needs no unit.
fn unit_of_all(given: &BTreeMap<&str, (Vec<Decimal>, Option<TimeUnit>)>) -> Result<Option<TimeUnit>, CostError> {
    let most = |numbers: &[Decimal]| numbers.iter().map(|number| number.to_f64()).fold(0.0, f64::max);
    let times = || given.iter().filter(|(key, (numbers, _))| !has_no_unit(key) && most(numbers) > 0.0);
    let unit = given.values().filter_map(|(_, unit)| *unit).max();
    match (unit, times().find(|(_, (_, unit))| unit.is_none())) {
        (Some(unit), Some((key, (numbers, _)))) => Err(CostError(format!(
            "expected a unit after every time or after none, found {key}={} without one; write {key}={0}{} if that is meant",
            most(numbers),
            unit.name()
        ))),
        _ => Ok(unit),
    }
}

impl GivenCosts {
    /// Returns the costs with another reference.
    pub fn per(self, per: Per) -> GivenCosts {
        GivenCosts { per, ..self }
    }

    pub fn unit(&self) -> Option<TimeUnit> {
        self.unit
    }

    /// Describes the costs in one line, as they were given.
    pub fn described(&self) -> String {
        let unit = self.unit.map_or_else(String::new, |unit| format!(" in {}", unit.name()));
        let [f, i, w, b] = [0, 1, 2, 3].map(|kind| self.written(kind));
        let (comm, keep) = (self.comm.to_f64(), self.keep.to_f64());
        let of = if self.is_per_stage() { Per::Stage.name() } else { self.per.name() };
        let (more, assumed) = (self.unusual(), assumed_in_words(&self.assumed));
        format!("costs per {of}{unit}: F = {f}, I = {i}, W = {w}, B = {b}, comm = {comm}, keep = {keep}{more}{assumed}")
    }

    /// Describes the other costs, those that have not their default: `, attention = 0.4`.
    fn unusual(&self) -> String {
        let SliceCosts { attention, attention_input, stub, kv, recompute } = self.slices;
        let shares = [attention, attention_input, stub, kv, recompute];
        let names = SHARES[1..].iter().zip(shares).map(|(&name, share)| (name, share, u32::from(name == "recompute")));
        let times = [("copy", self.copy, 0)].into_iter();
        let times = times.chain(VOCABULARY.into_iter().zip(self.vocabulary).map(|(name, time)| (name, time, 0)));
        let gathers =
            COLLECTIVES.into_iter().zip(self.collectives.into_iter().flatten()).map(|(name, time)| (name, time, 0));
        let pieces = PIECES.into_iter().zip(self.pieces.into_iter().flatten());
        let pieces = pieces.map(|((name, usual), layers)| (name, layers, usual));
        let all = times.chain(gathers).chain(names).chain(pieces);
        let unusual = all.filter(|(_, value, usual)| *value != Decimal::whole(*usual));
        unusual.map(|(name, value, _)| format!(", {name} = {}", value.to_f64())).collect()
    }

    /// Describes the assumptions and the resulting costs; `None` without assumptions.
    pub fn assumption(&self) -> Option<String> {
        let [f, i, w, b] = [0, 1, 2, 3].map(|kind| self.written(kind));
        let (rules, unit) = (self.assumed.join(", "), self.unit.map_or("", TimeUnit::name));
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        (!rules.is_empty()).then(|| {
            format!("costs: --costs leaves some out, so {rules} is assumed: F = {f}, I = {i}, W = {w}, B = {b}{unit}")
        })
    }

    /// Returns the assumptions about F, I and W, such as `I = W = B/2`.
    pub fn assumed(&self) -> &[&'static str] {
        &self.assumed
    }

    /// Returns the table for `placement`. The tick divides every stage's share of each cost; costs with more than 12 decimals
    /// are rounded to a tick that is small compared with the longest op.
    ///
    /// # Errors
    /// A device of `slow` does not exist, layers do not fit the stages, or `microbatches` ops of these costs overflow the clock.
    pub fn table(&self, placement: &Placement, microbatches: u32, slow: &Slow) -> Result<CostTable, CostError> {
        let table = self.table_of_whole(placement, microbatches, slow)?;
        Ok(table.with_slice_costs(self.slices).with_whole_recomputes(placement, microbatches))
    }

    /// Returns the table without shares of slices.
    fn table_of_whole(&self, placement: &Placement, microbatches: u32, slow: &Slow) -> Result<CostTable, CostError> {
        if let Some(device) = slow.keys().find(|&&device| device >= placement.devices()) {
            return Err(CostError(format!(
                "--straggler names device {device}, but there are devices 0 to {}",
                placement.devices() - 1
            )));
        }
        if let (Some(_), Some(layout)) = (&self.stages, &self.layout) {
            return Err(CostError(format!(
                "--costs are given for each stage, and --layout {layout} says what stages hold; leave --layout out"
            )));
        }
        if let Some(given) = &self.stages {
            return self.staged_table(given, placement, microbatches, slow);
        }
        let one = Decimal::whole(1);
        let of = |kind: usize, device: u32| self.durations[kind].times(*slow.get(&device).unwrap_or(&one));
        let all: Vec<Decimal> =
            (0..placement.devices()).flat_map(|device| [0, 1, 2, 3].map(|kind| of(kind, device))).collect();
        let all = [all, self.collectives.into_iter().flatten().collect()].concat();
        // at most one gather per op
        let per_micro_batch = if self.collectives.is_some() { 8 } else { 4 };
        let ops = per_micro_batch * u128::from(placement.stages()) * u128::from(microbatches);
        let scale_of = |shares: &Shares| {
            self.scale(slow, |scale| {
                let longest =
                    all.iter().map(|cost| cost.times_ten_to(scale)).try_fold(0, |most, cost| Some(cost?.max(most)))?;
                let longest = longest.checked_mul(shares.largest().into())?;
                let comm = self.comm.times_ten_to(scale)?.checked_mul(shares.whole.into())?;
                let copy = self.copy.times_ten_to(scale)?.checked_mul(shares.largest().into())?;
                let shared =
                    self.vocabulary.iter().try_fold(0_u128, |sum, cost| sum.checked_add(cost.times_ten_to(scale)?));
                let copy = copy.checked_add(shared?.checked_mul(shares.whole.into())?)?;
                (longest.checked_add(comm)?.checked_add(copy)?.checked_mul(ops)? < 1 << 63).then_some(longest)
            })
        };
        let found = match &self.layout {
            Some(layout) => self.arranged(layout, placement, scale_of)?,
            None => {
                let shares = Shares::new(placement, self.per, self.layers.as_deref())?;
                scale_of(&shares).map(|scale| (shares, scale))
            }
        };
        let Some((shares, scale)) = found else {
            return Err(CostError(
                "these costs times the number of ops overflow the clock; give smaller or rounder numbers".to_string(),
            ));
        };
        let ticks = |cost: Decimal| cost.times_ten_to(scale).unwrap_or(0) as u64; // checked above
        let units = (
            10_f64.powi(scale as i32) * shares.whole as f64,
            self.unit.map_or("unit", TimeUnit::name),
            self.unit_ns(placement.devices(), microbatches, slow, shares.of_device)?,
        );
        let table = CostTable::new(placement, units, self.of_device(shares.of_device), |op| OpTime {
            duration: ticks(of(op.kind() as usize, placement.device_of(op))) * shares.parts[op.stage() as usize],
            after: 0,
            arrival: ticks(self.comm) * shares.whole,
        });
        let table = table.with_copies(shares.parts.iter().map(|part| [ticks(self.copy) * part; 2]).collect());
        let table = self.with_vocabulary(table, |time| ticks(time) * shares.whole);
        let collectives = self.collectives_of(|time| shares.parts.iter().map(|part| ticks(time) * part).collect());
        Ok(CostTable { assumed: self.assumed.clone(), collectives, ..table })
    }

    /// Returns the costs of a model of which each stage holds what `layout` says.
    pub fn with_layout(self, layout: Option<StageLayout>) -> GivenCosts {
        GivenCosts { layout, ..self }
    }

    /// Whether it is given what embedding, prediction layers or head cost.
    pub fn has_pieces(&self) -> bool {
        self.pieces.is_some()
    }

    /// Returns the shares of stages that hold what `layout` says, in parts of a decoder layer, and the scale that `scale` finds for them;
    /// `None` if there is none. What embedding, prediction layers and head cost is rounded only beyond 6 decimals, and only if the clock
    /// does not hold them.
    fn arranged(
        &self,
        layout: &StageLayout,
        placement: &Placement,
        scale: impl Fn(&Shares) -> Option<u32>,
    ) -> Result<Option<(Shares, u32)>, CostError> {
        let pieces = self.pieces.unwrap_or(PIECES.map(|(_, usual)| Decimal::whole(usual)));
        if pieces.iter().any(|piece| piece.to_f64() > 1e6) {
            return Err(CostError(
                "embedding, mtp and loss are at most 1000000 decoder layers each; give less".to_string(),
            ));
        }
        let most = pieces.iter().map(|piece| piece.scale()).max().unwrap_or(0);
        for decimals in (most.min(6)..=most.min(12)).rev() {
            let [embedding, prediction, head] = pieces.map(|piece| piece.times_ten_to(decimals).unwrap_or(0));
            let layer = 10_u128.pow(decimals);
            let weight = |stage: &StagePieces| {
                let ends = u128::from(stage.embedding) * embedding + u128::from(stage.head) * head;
                ends + layer * stage.layers as u128 + prediction * stage.predictions as u128
            };
            let weights = layout.stages.iter().map(weight).collect();
            if let Some(shares) = Shares::weighted(placement, self.per, weights, layer)?
                && let Some(scale) = scale(&shares)
            {
                return Ok(Some((shares, scale)));
            }
        }
        Ok(None)
    }

    /// Whether times of collectives are given.
    pub fn has_collectives(&self) -> bool {
        self.collectives.is_some()
    }

    /// Returns the costs of collectives; `ticks` are those of each stage.
    pub(super) fn collectives_of(&self, ticks: impl Fn(Decimal) -> Vec<u64>) -> Option<CollectiveCosts> {
        self.collectives
            .map(|[gather, reduction]| CollectiveCosts { gathers: ticks(gather), reductions: ticks(reduction) })
    }

    /// Returns `table` with the costs of a vocabulary that all devices share.
    pub(super) fn with_vocabulary(&self, table: CostTable, ticks: impl Fn(Decimal) -> u64) -> CostTable {
        let [forward, rest, embed, gradient, barrier] = self.vocabulary.map(ticks);
        CostTable { vocabulary: VocabularyCosts { forward, rest, embed: [embed, gradient], barrier }, ..table }
    }

    /// Returns the nanoseconds of a timeline per unit. Without a unit of time it is 10^9, or a power of ten that keeps very long
    /// or very short steps in the range of a timeline; it is the same for all placements.
    pub(super) fn unit_ns(
        &self,
        devices: u32,
        microbatches: u32,
        slow: &Slow,
        of_device: f64,
    ) -> Result<u64, CostError> {
        const LONGEST: f64 = (1_u64 << 50) as f64;
        const SHORTEST: f64 = 1e9;
        let slowest = slow.values().map(|factor| factor.to_f64()).fold(1.0, f64::max);
        let ops: f64 =
            self.durations.iter().map(|duration| duration.to_f64()).sum::<f64>() * slowest * of_device.min(1e6);
        let messages = 16.0 * (self.comm.to_f64() + self.copy.to_f64());
        let most = (ops + messages) * f64::from(devices) * f64::from(microbatches.max(1));
        if let Some(unit) = self.unit {
            if most * unit.ns() as f64 > 8.0 * LONGEST {
                return Err(CostError(format!(
                    "these costs times the number of ops exceed the 104 days that a timeline can hold; give them in less than {}",
                    unit.name()
                )));
            }
            return Ok(unit.ns());
        }
        let mut unit: u64 = 1_000_000_000;
        while unit > 1 && most * unit as f64 > LONGEST {
            unit /= 10;
        }
        while unit < 1_000_000_000_000_000_000 && most > 0.0 && most * (unit as f64) < SHORTEST {
            unit *= 10;
        }
        Ok(unit)
    }

    /// Returns the number of decimals of a tick: enough for short numbers, and more for longer ones as long as ops last less
    /// than 10^12 ticks. `longest` returns the ticks of the longest op; `None` on overflow.
    pub(super) fn scale(&self, slow: &Slow, longest: impl Fn(u32) -> Option<u128>) -> Option<u32> {
        const FINE: u128 = 1_000_000_000_000;
        let all = || {
            let others = self.vocabulary.iter().chain(self.collectives.iter().flatten());
            let stages = self.stages.iter().flat_map(|given| given.times.iter().flatten());
            self.durations.iter().chain(stages).chain([&self.comm, &self.copy]).chain(others)
        };
        let most = |of: &mut dyn Iterator<Item = &Decimal>| of.map(|number| number.scale()).max().unwrap_or(0);
        let short = |number: &&Decimal| number.is_short();
        let exact = most(&mut all().filter(short)) + most(&mut slow.values().filter(short));
        let finest = most(&mut all()) + most(&mut slow.values());
        let fine = |&scale: &u32| longest(scale).is_some_and(|longest| longest < FINE);
        (exact + 1..=finest).rev().find(fine).or_else(|| longest(exact).map(|_| exact))
    }

    pub fn summary(&self) -> Summary {
        self.of_device(1.0)
    }

    /// Returns the costs of an average device, which are `of_device` times the given ones.
    fn of_device(&self, of_device: f64) -> Summary {
        let of = |kind: Kind| self.durations[kind as usize].to_f64() * of_device;
        let (comm, keep) = (self.comm.to_f64(), self.keep.to_f64());
        Summary { F: of(Kind::F), I: of(Kind::I), W: of(Kind::W), B: of(Kind::B), comm, keep }
    }
}
