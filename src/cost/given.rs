//! Costs given on the command line: `F=1,I=1,W=1,B=2,comm=0.1,keep=1`, exact to the tick.

use super::error::TOO_LONG;
use super::share::{StageShares, counted};
use super::{
    CollectiveCosts, CostError, CostTable, Decimal, Extras, OpTime, Per, SliceCosts, Summary, TickUnits, TimeUnit,
    VocabularyCosts,
};
use pipesim_models::model_spec::{StageLayout, StagePieces};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use std::collections::BTreeMap;

/// Keys of times besides F, I, W and B.
pub(super) const TIMES: [&str; 9] = ["comm", "copy", "S", "S_rest", "IF", "IB", "barrier", "unshard", "reduce"];

/// Keys of shares, which have no unit and are at most 1.
pub(super) const SHARES: [&str; 6] = ["keep", "attention", "attention_I", "stub", "kv", "recompute"];

/// Keys of what a layout places besides decoder layers, in these.
pub(super) const PIECES: [&str; 3] = ["embedding", "mtp", "loss"];

/// Returns the value of a key that is not given.
fn usual(key: &str) -> Decimal {
    Decimal::whole(["keep", "recompute", "mtp"].contains(&key).into())
}

/// Slowdown factors by device: `2=1.3`.
pub type Slow = BTreeMap<u32, Decimal>;

/// Reads a device and the factor by which it is slower, as in `2=1.3`.
///
/// # Errors
/// Another text, or a factor that is none.
pub fn straggler(text: &str) -> Result<(u32, Decimal), String> {
    let (device, factor) =
        text.split_once('=').ok_or_else(|| format!("expected DEVICE=FACTOR, found '{text}'; write it as in 2=1.3"))?;
    let device: u32 = device.trim().parse().map_err(|_| format!("expected a device number, found '{device}'"))?;
    if factor.trim_end().ends_with('%') {
        return Err(format!("expected a factor, found '{factor}'; 30 % slower is {device}=1.3"));
    }
    let factor: Decimal = factor.trim().parse().map_err(|e: CostError| e.to_string())?;
    if factor.to_f64() <= 0.0 {
        return Err("the factor must be above 0".to_string());
    }
    Ok((device, factor))
}

/// Reads slow devices, each as [`straggler`] does.
///
/// # Errors
/// The first text that is none, or a device twice.
pub fn slow_devices(texts: &[String]) -> Result<Slow, String> {
    let slow = texts.iter().map(|text| straggler(text)).collect::<Result<Slow, String>>()?;
    if slow.len() < texts.len() { Err("it names a device twice; give each once".to_string()) } else { Ok(slow) }
}

/// Costs such as `F=18.5,I=18.1,W=9.3,B=27.4,comm=0.6,keep=0.4`, in any order: durations of a forward, the halves of a backward
/// and a whole backward for a device's whole share of layers, the latency between devices, and the fraction of an activation
/// kept from I to W. If B is given, I and W default to its halves, or to the rest of it; otherwise B is I + W, and missing ones
/// of F, I and W equal the others. A value per stage, in stage order, is separated by `:` or `/`: `F=18.5/18.5/18.5/24ms`; then all times are
/// of stages. Of two values without a unit, `1:2` is a list and `1/2` a fraction. Defaults: keep 1, comm 0. `unshard` and `reduce` are the times in which
/// collectives gather the parameters of a device's whole share of layers and reduce their gradients. Times have no unit, or each has one (`F=18.5ms,comm=300us`); the
/// largest is used for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCosts {
    /// F, I, W, and B (default: I + W). Several entries are one per stage.
    pub(super) times: Vec<[Decimal; 4]>,
    /// The other costs that are given, by key.
    pub(super) others: BTreeMap<&'static str, Decimal>,
    pub(super) unit: Option<TimeUnit>,
    /// Assumptions about F, I and W that were not given.
    pub(super) assumed: Vec<&'static str>,
    pub(super) per: Per,
    pub(super) layers: Option<Vec<usize>>,
    /// Layers of the stages whose times are given, if known.
    pub(super) own_layers: Option<Vec<usize>>,
    /// Whether these are the layers that were asked for.
    pub(super) layers_are_own: bool,
    /// What each stage holds; replaces `layers`.
    pub(super) layout: Option<StageLayout>,
}

impl Default for GivenCosts {
    /// Unit costs: F = I = W = 1, B = 2, comm = 0, keep = 1.
    fn default() -> GivenCosts {
        GivenCosts {
            times: vec![[1, 1, 1, 2].map(Decimal::whole)],
            others: BTreeMap::new(),
            unit: None,
            assumed: Vec::new(),
            per: Per::Device,
            layers: None,
            own_layers: None,
            layers_are_own: false,
            layout: None,
        }
    }
}

/// Returns ` (assumed: I = W = B/2)`, or an empty string without assumptions.
pub fn assumed_in_words(rules: &[&str]) -> String {
    if rules.is_empty() { String::new() } else { format!(" (assumed: {})", rules.join(", ")) }
}

/// What of given costs a placement's ops take.
pub(super) struct Cut {
    /// Decimals of a given number that one of its parts has.
    pub scale: u32,
    /// Number of parts, which are ticks.
    pub whole: u64,
    /// By stage: its parts of what is given for a share of the layers.
    pub parts: Vec<u64>,
    pub summary: Summary,
    pub unit_ns: u64,
}

impl GivenCosts {
    /// Returns the costs with another reference.
    pub fn per(self, per: Per) -> GivenCosts {
        GivenCosts { per, ..self }
    }

    /// Returns the unit of the times; `None` for abstract units.
    pub fn unit(&self) -> Option<TimeUnit> {
        self.unit
    }

    /// Returns the cost with this key.
    pub(super) fn of(&self, key: &str) -> Decimal {
        self.others.get(key).copied().unwrap_or_else(|| usual(key))
    }

    /// Returns all times besides F, I, W and B.
    pub(super) fn other_times(&self) -> impl Iterator<Item = Decimal> {
        TIMES.iter().map(|key| self.of(key))
    }

    /// Returns the longest time of each kind.
    fn longest(&self) -> [Decimal; 4] {
        let longer = |one: Decimal, other: Decimal| if other.to_f64() > one.to_f64() { other } else { one };
        [0, 1, 2, 3].map(|kind| self.times.iter().map(|times| times[kind]).fold(Decimal::whole(0), longer))
    }

    /// Describes the costs in one line, as they were given.
    pub fn described(&self) -> String {
        let unit = self.unit.map_or_else(String::new, |unit| format!(" in {}", unit.name()));
        let of = if self.is_per_stage() { Per::Stage.name() } else { self.per.name() };
        let (comm, keep) = (self.of("comm").to_f64(), self.of("keep").to_f64());
        let others = [&TIMES[1..], &SHARES[1..], &PIECES].concat().into_iter().filter(|key| self.of(key) != usual(key));
        let others: String = others.map(|key| format!(", {key} = {}", self.of(key).to_f64())).collect();
        let (times, assumed) = (self.times_in_words(), assumed_in_words(&self.assumed));
        format!("costs per {of}{unit}: {times}, comm = {comm}, keep = {keep}{others}{assumed}")
    }

    /// Describes the assumptions and the resulting costs; `None` without assumptions.
    pub fn assumption(&self) -> Option<String> {
        let unit = self.unit.map_or_else(String::new, |unit| format!(" {}", unit.name()));
        let (rules, times) = (self.assumed.join(", "), self.times_in_words());
        (!rules.is_empty()).then(|| format!("costs: `costs` leaves some out, so {rules} is assumed: {times}{unit}"))
    }

    /// Returns the times as they are written: `F = 18.5:18.5:24, I = ..`, with one number if all stages have the same.
    fn times_in_words(&self) -> String {
        let of_kind = |kind: Kind| {
            let mut all: Vec<String> =
                self.times.iter().map(|times| times[kind as usize].to_f64().to_string()).collect();
            if all.iter().all(|time| *time == all[0]) {
                all.truncate(1);
            }
            format!("{} = {}", kind.letter(), all.join(":"))
        };
        Kind::COSTED.map(of_kind).join(", ")
    }

    /// Returns the assumptions about F, I and W, such as `I = W = B/2`.
    pub fn assumed(&self) -> &[&'static str] {
        &self.assumed
    }

    /// Returns the table for `placement`. The tick divides every stage's share of each cost; costs with more than 12 decimals
    /// are rounded to a tick that is small compared with the longest op.
    ///
    /// # Errors
    /// A slow device that does not exist, costs per layer without the number of layers, layers or stages with times that
    /// do not fit the stages, or `microbatches` ops of these costs overflow the clock.
    pub fn table(&self, placement: &Placement, microbatches: u32, slow: &Slow) -> Result<CostTable, CostError> {
        if let Some(device) = slow.keys().find(|&&device| device >= placement.devices()) {
            return Err(CostError::Given(format!(
                "`straggler` names device {device}, but there are devices 0 to {}",
                placement.devices() - 1
            )));
        }
        let table = if self.is_per_stage() {
            self.table_of_stages(placement, microbatches, slow)?
        } else {
            self.table_of_shares(placement, microbatches, slow)?
        };
        let slice_costs = SliceCosts {
            attention: self.of("attention"),
            attention_input: self.of("attention_I"),
            stub: self.of("stub"),
            kv: self.of("kv"),
            recompute: self.of("recompute"),
        };
        Ok(table.with_slice_costs(slice_costs).with_whole_recomputes(placement, microbatches))
    }

    /// Returns the table of stages that share the given costs.
    fn table_of_shares(&self, placement: &Placement, microbatches: u32, slow: &Slow) -> Result<CostTable, CostError> {
        let one = Decimal::whole(1);
        let of = |kind: Kind, device: u32| self.times[0][kind as usize].times(*slow.get(&device).unwrap_or(&one));
        let shared = || ["unshard", "reduce"].map(|key| self.of(key));
        let all: Vec<Decimal> = (0..placement.devices())
            .flat_map(|device| Kind::COSTED.map(|kind| of(kind, device)))
            .chain(shared())
            .collect();
        // at most one gather per op
        let per_micro_batch = if self.has_collectives() { 8 } else { 4 };
        let ops = per_micro_batch * u128::from(placement.stages()) * u128::from(microbatches);
        let scale_of = |shares: &StageShares| {
            self.scale(slow, |scale| {
                let ticks = |key: &str| self.of(key).times_ten_to(scale);
                let longest =
                    all.iter().map(|cost| cost.times_ten_to(scale)).try_fold(0, |most, cost| Some(cost?.max(most)))?;
                let longest = longest.checked_mul(shares.largest().into())?;
                let copy = ticks("copy")?.checked_mul(shares.largest().into())?;
                let unshared = ["comm", "S", "S_rest", "IF", "IB", "barrier"];
                let unshared = unshared.iter().try_fold(0_u128, |sum, key| sum.checked_add(ticks(key)?))?;
                let unshared = unshared.checked_mul(shares.whole.into())?;
                let step = longest.checked_add(unshared)?.checked_add(copy)?.checked_mul(ops)?;
                (step < 1 << 63).then_some(longest)
            })
        };
        let (shares, scale) =
            self.shares(placement, scale_of)?.ok_or_else(|| CostError::Overflow(TOO_LONG.to_string()))?;
        let StageShares { parts, whole, of_device } = shares;
        let cut = Cut {
            scale,
            whole,
            summary: self.of_device(of_device),
            unit_ns: self.unit_ns(placement.devices(), microbatches, slow, of_device)?,
            parts,
        };
        Ok(self.table_of(placement, &cut, |op| {
            let ticks = of(op.kind(), placement.device_of(op)).times_ten_to(scale).unwrap_or(0) as u64; // checked above
            ticks * cut.parts[op.stage() as usize]
        }))
    }

    /// Returns the table of ops that take `duration`; everything else costs what `cut` says.
    pub(super) fn table_of(&self, placement: &Placement, cut: &Cut, duration: impl Fn(Op) -> u64) -> CostTable {
        let &Cut { scale, whole, summary, unit_ns, .. } = cut;
        let ticks = |key: &str| self.of(key).times_ten_to(scale).unwrap_or(0) as u64;
        let whole_of = |key: &str| ticks(key) * whole;
        let parts_of = |key: &str| cut.parts.iter().map(|part| ticks(key) * part).collect::<Vec<u64>>();
        let ticks_per_unit = 10_f64.powi(scale as i32) * whole as f64;
        let units = TickUnits { ticks_per_unit, time_unit: self.unit.map_or("unit", TimeUnit::name), unit_ns };
        let arrival = whole_of("comm");
        let table =
            CostTable::new(placement, units, summary, |op| OpTime { duration: duration(op), after: 0, arrival });
        let collectives = || CollectiveCosts { gathers: parts_of("unshard"), reductions: parts_of("reduce") };
        let extras = Extras {
            copies: parts_of("copy").into_iter().map(|part| [part; 2]).collect(),
            collectives: self.has_collectives().then(collectives),
            vocabulary: VocabularyCosts {
                forward: whole_of("S"),
                rest: whole_of("S_rest"),
                embed: [whole_of("IF"), whole_of("IB")],
                barrier: whole_of("barrier"),
            },
            ..Extras::default()
        };
        CostTable { assumed: self.assumed.clone(), extras, ..table }
    }

    /// Returns the costs of a model whose stages hold what `layout` specifies.
    pub fn with_layout(self, layout: Option<StageLayout>) -> GivenCosts {
        GivenCosts { layout, ..self }
    }

    /// Whether it is given what embedding, prediction layers or head cost.
    pub fn has_pieces(&self) -> bool {
        PIECES.iter().any(|key| self.others.contains_key(key))
    }

    /// Whether times of collectives are given.
    pub fn has_collectives(&self) -> bool {
        ["unshard", "reduce"].iter().any(|key| self.others.contains_key(key))
    }

    /// Returns the shares of the stages on `placement`, and the scale that `scale` finds for them; `None` if there is none. What embedding,
    /// prediction layers and head cost is rounded only beyond 6 decimals, and only if the clock does not hold them.
    fn shares(
        &self,
        placement: &Placement,
        scale: impl Fn(&StageShares) -> Option<u32>,
    ) -> Result<Option<(StageShares, u32)>, CostError> {
        let scaled = |shares: StageShares| scale(&shares).map(|scale| (shares, scale));
        let stages = placement.stages() as usize;
        let Some(layout) = &self.layout else {
            if self.per == Per::Layer && self.layers.is_none() {
                return Err(CostError::Given(
                    "costs per layer need the number of layers; give it as `layers` 32".to_string(),
                ));
            }
            let layers = self.layers.as_ref().map(|layers| counted(layers, stages)).transpose()?;
            let weights = layers.map_or(vec![1; stages], |layers| layers.into_iter().map(u128::from).collect());
            return Ok(StageShares::new(placement, self.per, &weights, 1).and_then(scaled));
        };
        let found = layout.stages.len();
        if found != stages {
            return Err(CostError::Given(format!(
                "expected the {found} stages of `layout`, found a schedule with {stages}; take one with as many stages per device"
            )));
        }
        let pieces = PIECES.map(|key| self.of(key));
        if pieces.iter().any(|piece| piece.to_f64() > 1e6) {
            return Err(CostError::Given(
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
            let weights: Vec<u128> = layout.stages.iter().map(weight).collect();
            if weights.iter().all(|&weight| weight == 0) {
                return Err(CostError::Given(
                    "`layout`: expected a stage that costs something, found none; add a 't'".to_string(),
                ));
            }
            if let Some(found) = StageShares::new(placement, self.per, &weights, layer).and_then(scaled) {
                return Ok(Some(found));
            }
        }
        Ok(None)
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
            self.longest().iter().map(|duration| duration.to_f64()).sum::<f64>() * slowest * of_device.min(1e6);
        let messages = 16.0 * (self.of("comm").to_f64() + self.of("copy").to_f64());
        let most = (ops + messages) * f64::from(devices) * f64::from(microbatches.max(1));
        if let Some(unit) = self.unit {
            if most * unit.ns() as f64 > 8.0 * LONGEST {
                return Err(CostError::Given(format!(
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
        let all = || self.times.iter().flatten().copied().chain(self.other_times());
        let factors = || slow.values().copied();
        let most = |of: &mut dyn Iterator<Item = Decimal>| of.map(Decimal::scale).max().unwrap_or(0);
        let short = |number: &Decimal| number.is_short();
        let exact = most(&mut all().filter(short)) + most(&mut factors().filter(short));
        let finest = most(&mut all()) + most(&mut factors());
        let fine = |&scale: &u32| longest(scale).is_some_and(|longest| longest < FINE);
        (exact + 1..=finest).rev().find(fine).or_else(|| longest(exact).map(|_| exact))
    }

    /// Returns the costs of a device's whole share of layers, in time units.
    pub fn summary(&self) -> Summary {
        self.of_device(1.0)
    }

    /// Returns the costs of an average device, which are `of_device` times the given ones.
    fn of_device(&self, of_device: f64) -> Summary {
        let longest = self.longest();
        let of = |kind: Kind| longest[kind as usize].to_f64() * of_device;
        Summary::new(of, self.of("comm").to_f64(), self.of("keep").to_f64())
    }
}
