//! The table of costs given for each stage, exact to the tick.

use super::depth::{recut, scale, sizes};
use super::error::TOO_LONG;
use super::given::Cut;
use super::share::counted;
use super::{CostError, CostTable, Decimal, GivenCosts, Per, Slow, Summary, gcd};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use std::collections::BTreeMap;

impl GivenCosts {
    /// Returns the costs of a model with these layers per stage, or in total if there is one number. Costs per device or stage
    /// are for an average one.
    ///
    /// Given stages have these layers if there are as many; otherwise they have equal shares of them.
    pub fn with_layers(mut self, layers: Option<Vec<usize>>) -> GivenCosts {
        let count = self.times.len();
        let is_own = |layers: &Vec<usize>| layers.len() == count;
        let even = |all: usize| (0..count).map(|stage| all / count + usize::from(stage < all % count)).collect();
        self.layers = layers.clone();
        if self.is_per_stage() && self.own_layers.is_none() {
            let of = |layers: Vec<usize>| if is_own(&layers) { layers } else { even(layers.iter().sum()) };
            // Layers of the given stages themselves say nothing about other stages.
            self.layers = layers.clone().filter(|layers| !is_own(layers));
            self.own_layers = layers.map(of);
            self.layers_are_own = self.own_layers.is_some();
        }
        self
    }

    /// Returns the costs with these layers of the given stages.
    ///
    /// # Errors
    /// Other numbers of stages, or a stage without layers.
    pub fn with_own_layers(self, layers: Vec<usize>) -> Result<GivenCosts, CostError> {
        let found = layers.len();
        if self.times.len() != found || found < 2 {
            return Err(CostError::Stages(format!(
                "layers: expected as many as there are stages with times, found {found}; give both for each stage"
            )));
        }
        counted(&layers, found)?;
        Ok(GivenCosts { own_layers: Some(layers), ..self })
    }

    /// Whether [`GivenCosts::with_layers`] said how many layers the given stages have.
    pub fn layers_are_own(&self) -> bool {
        self.layers_are_own
    }

    /// Whether times are given for each stage.
    pub fn is_per_stage(&self) -> bool {
        self.times.len() > 1
    }

    /// Returns the layers per stage on `placement`; `None` if no number of layers is known.
    ///
    /// # Errors
    /// They do not fit the stages.
    pub fn layers_on(&self, placement: &Placement) -> Result<Option<Vec<usize>>, CostError> {
        let count = placement.stages() as usize;
        let layers = match (&self.layers, &self.own_layers) {
            (Some(layers), _) => layers.clone(),
            (None, Some(own)) if own.len() == count => own.clone(),
            (None, Some(own)) => vec![own.iter().sum()],
            (None, None) => return Ok(None),
        };
        counted(&layers, count).map(|counts| Some(counts.into_iter().map(|count| count as usize).collect()))
    }

    /// Returns the table of given stages on `placement`, whose stages may be others: see [`recut`].
    ///
    /// # Errors
    /// Layers do not fit the stages, costs that are not per stage, or an overflow of the clock.
    pub(super) fn table_of_stages(
        &self,
        placement: &Placement,
        microbatches: u32,
        slow: &Slow,
    ) -> Result<CostTable, CostError> {
        if let Some(layout) = &self.layout {
            return Err(CostError::Stages(format!(
                "`costs` are given for each stage, and `layout` {layout} says what stages hold; leave `layout` out"
            )));
        }
        if !matches!(self.per, Per::Device | Per::Stage) {
            return Err(CostError::Stages(format!(
                "`costs` are given for each stage; leave out `costs-per` {}",
                self.per.name()
            )));
        }
        let (given, stages) = (self.times.len(), placement.stages() as usize);
        if !given.is_multiple_of(stages) && !stages.is_multiple_of(given) {
            return Err(CostError::Stages(format!(
                "expected one value per stage, {stages} here, found {given} in `costs`; give as many, or a divisor or multiple of that"
            )));
        }
        let [own, new] = sizes(given, self.own_layers.as_deref(), stages, self.layers_on(placement)?.as_deref());
        let pieces = scale(&own).ok_or_else(|| CostError::Overflow(TOO_LONG.to_string()))?;
        let one = Decimal::whole(1);
        let chunks = u64::from(placement.chunks().max(1));
        let longest = |scale| self.longest_stages(slow, placement, microbatches, pieces * chunks, scale);
        // numbers that do not fit the clock with all their digits are long, and rounded
        let coarser = || (0..=Decimal::MOST_SCALE).rev().find(|&scale| longest(scale).is_some());
        let finest =
            self.scale(slow, longest).or_else(coarser).ok_or_else(|| CostError::Overflow(TOO_LONG.to_string()))?;
        let ticks = |time: Decimal| time.times_ten_to(finest).unwrap_or(0) as u64;
        // by a device that is slow, or none, and kind
        let mut cuts: BTreeMap<(Option<u32>, Kind), Vec<u64>> = BTreeMap::new();
        for device in slow.keys().copied().map(Some).chain([None]) {
            let factor = device.map_or(one, |device| slow[&device]);
            for kind in Kind::COSTED {
                let times: Vec<u64> =
                    self.times.iter().map(|times| ticks(times[kind as usize].times(factor))).collect();
                let cut = recut(&times, &own, &new).ok_or_else(|| {
                    let [own, new] = [&own, &new].map(|sizes| sizes.iter().sum::<u64>());
                    CostError::Stages(format!("`layers`: expected {own} layers, as the given stages have, found {new}"))
                })?;
                cuts.insert((device, kind), cut.times);
            }
        }
        let duration = |op: Op| {
            let device = Some(placement.device_of(op)).filter(|device| slow.contains_key(device));
            cuts[&(device, op.kind())][op.stage() as usize]
        };
        let ticks_per_unit = 10_f64.powi(finest as i32) * pieces as f64;
        let mean = |kind: Kind| {
            let sum = cuts[&(None, kind)].iter().map(|&ticks| ticks as f64).sum::<f64>();
            sum / ticks_per_unit / f64::from(placement.devices())
        };
        let of_device = f64::from(placement.stages()) / f64::from(placement.devices().max(1));
        let cut = Cut {
            scale: finest,
            whole: pieces,
            parts: vec![pieces; stages],
            summary: Summary::new(mean, self.of("comm").to_f64(), self.of("keep").to_f64()),
            unit_ns: self.unit_ns(placement.devices(), microbatches, slow, of_device)?,
        };
        // the time of a copy is per device; each stage takes its share
        let copy = ticks(self.of("copy")) * pieces;
        let parts = chunks / gcd(chunks, copy);
        let mut table = self.table_of(placement, &cut, duration).finer(parts as u32);
        table.extras.copies = vec![[copy / (chunks / parts); 2]; stages];
        Ok(table)
    }

    /// Returns the longest time of a stage in ticks of `pieces` times 10^`scale` per unit, and more; `None` if a step of them overflows the
    /// clock.
    fn longest_stages(
        &self,
        slow: &Slow,
        placement: &Placement,
        microbatches: u32,
        pieces: u64,
        scale: u32,
    ) -> Option<u128> {
        let slower = |one: Decimal, other: &Decimal| if other.to_f64() > one.to_f64() { *other } else { one };
        let slowest = slow.values().fold(Decimal::whole(1), slower);
        let add = |sum: u128, time: Decimal| sum.checked_add(time.times_ten_to(scale)?);
        // a new stage takes at most what all given ones take
        let all = self.times.iter().flatten().map(|time| time.times(slowest)).try_fold(0, add)?;
        let others = self.other_times().try_fold(0, add)?.checked_mul(4 * u128::from(placement.stages()))?;
        let step = all.checked_add(others)?.checked_mul(pieces.into())?;
        (step.checked_mul(2 * u128::from(microbatches.max(1)))? < 1 << 62).then_some(all * u128::from(pieces))
    }
}
