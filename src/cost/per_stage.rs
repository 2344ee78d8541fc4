//! The table of costs given for each stage, exact to the tick.

use super::depth::{recut, scale};
use super::share::counted;
use super::stage_list::GivenStages;
use super::{CostError, CostTable, Decimal, GivenCosts, OpTime, Per, Slow, Summary, TimeUnit, gcd};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

impl GivenCosts {
    /// Returns the costs of a model with these layers per stage, or in total if there is one number. Costs per device or stage
    /// are those of an average one.
    ///
    /// Given stages have these layers if there are as many; otherwise they have equal shares of them.
    pub fn with_layers(self, layers: Option<Vec<usize>>) -> GivenCosts {
        let own = |given: GivenStages| {
            let count = given.times.len();
            let even = |all: usize| (0..count).map(|stage| all / count + usize::from(stage < all % count)).collect();
            let of =
                |layers: &Vec<usize>| if layers.len() == count { layers.clone() } else { even(layers.iter().sum()) };
            let layers = given.layers.clone().or_else(|| layers.as_ref().map(of));
            GivenStages { layers, ..given }
        };
        // Layers of the given stages themselves say nothing about other stages.
        let is_own =
            |given: &GivenStages| given.layers.is_none() && layers.as_ref().map(Vec::len) == Some(given.times.len());
        let kept = if self.stages.as_ref().is_some_and(is_own) { None } else { layers.clone() };
        GivenCosts { stages: self.stages.clone().map(own), layers: kept, ..self }
    }

    /// Returns the costs with these layers of the given stages.
    ///
    /// # Errors
    /// Other numbers of stages, or a stage without layers.
    pub fn with_own_layers(self, layers: Vec<usize>) -> Result<GivenCosts, CostError> {
        let found = layers.len();
        let Some(given) = self.stages.clone().filter(|given| given.times.len() == found && found > 1) else {
            return Err(CostError(format!(
                "layers: expected as many as there are stages with times, found {found}; give both for each stage"
            )));
        };
        counted(&layers, found)?;
        Ok(GivenCosts { stages: Some(GivenStages { layers: Some(layers), ..given }), ..self })
    }

    /// Whether times are given for each stage.
    pub fn is_per_stage(&self) -> bool {
        self.stages.is_some()
    }

    /// Returns the layers per stage on `placement`; `None` if no number of layers is known.
    ///
    /// # Errors
    /// They do not fit the stages.
    pub fn layers_on(&self, placement: &Placement) -> Result<Option<Vec<usize>>, CostError> {
        let count = placement.stages() as usize;
        let own = self.stages.as_ref().and_then(|given| given.layers.clone());
        let layers = match (&self.layers, own) {
            (Some(layers), _) => layers.clone(),
            (None, Some(own)) if own.len() == count => own,
            (None, Some(own)) => vec![own.iter().sum()],
            (None, None) => return Ok(None),
        };
        counted(&layers, count).map(|counts| Some(counts.into_iter().map(|count| count as usize).collect()))
    }

    /// Returns the times of a kind as they are written: `18.5:18.5:24`, or one number if all stages have the same.
    pub(super) fn written(&self, kind: usize) -> String {
        let one = [self.durations];
        let times = self.stages.as_ref().map_or(&one[..], |given| &given.times);
        let mut all: Vec<String> = times.iter().map(|times| times[kind].to_f64().to_string()).collect();
        if all.iter().all(|time| *time == all[0]) {
            all.truncate(1);
        }
        all.join(":")
    }

    /// Returns the table of given stages on `placement`, whose stages may be others: see [`recut`].
    ///
    /// # Errors
    /// Layers do not fit the stages, costs that are not per stage, or an overflow of the clock.
    pub(super) fn staged_table(
        &self,
        given: &GivenStages,
        placement: &Placement,
        microbatches: u32,
        slow: &Slow,
    ) -> Result<CostTable, CostError> {
        if !matches!(self.per, Per::Device | Per::Stage) {
            return Err(CostError(format!(
                "--costs are given for each stage; leave out --costs-per {}",
                self.per.name()
            )));
        }
        let overflow = || {
            CostError(
                "these costs times the number of ops overflow the clock; give smaller or rounder numbers".to_string(),
            )
        };
        let (given_stages, stages) = (given.times.len(), placement.stages() as usize);
        if !given_stages.is_multiple_of(stages) && !stages.is_multiple_of(given_stages) {
            return Err(CostError(format!(
                "expected one value per stage, {stages} here, found {given_stages} in --costs; give as many, or a divisor or multiple of that"
            )));
        }
        let [own, new] = given.sizes(placement, self.layers_on(placement)?);
        let pieces = scale(&own).ok_or_else(overflow)?;
        let one = Decimal::whole(1);
        let chunks = u64::from(placement.chunks().max(1));
        let longest = |scale| self.longest_stages(given, (placement, microbatches, slow), (pieces * chunks, scale));
        // numbers that do not fit the clock with all their digits are long, and rounded
        let coarser = || (0..=Decimal::MOST_SCALE).rev().find(|&scale| longest(scale).is_some());
        let finest = self.scale(slow, longest).or_else(coarser).ok_or_else(overflow)?;
        let ticks = |time: Decimal| time.times_ten_to(finest).unwrap_or(0) as u64;
        let on = |device: u32, kind: Kind| {
            let factor = *slow.get(&device).unwrap_or(&one);
            let times: Vec<u64> = given.times.iter().map(|times| ticks(times[kind as usize].times(factor))).collect();
            recut(&times, &own, &new).map(|cut| cut.times)
        };
        let mut cuts: BTreeMap<(u32, u8), Vec<u64>> = BTreeMap::new();
        let different: BTreeSet<u32> =
            (0..placement.devices()).filter(|device| slow.contains_key(device)).chain([u32::MAX]).collect();
        for device in different {
            for kind in Kind::COSTED {
                let [own, new] = [&own, &new].map(|sizes| sizes.iter().sum::<u64>());
                let unequal =
                    || CostError(format!("--layers: expected {own} layers, as the given stages have, found {new}"));
                cuts.insert((device, kind as u8), on(device, kind).ok_or_else(unequal)?);
            }
        }
        let duration = |op: Op| {
            let device = placement.device_of(op);
            let device = if slow.contains_key(&device) { device } else { u32::MAX };
            cuts[&(device, op.kind() as u8)][op.stage() as usize]
        };
        let ticks_per_unit = 10_f64.powi(finest as i32) * pieces as f64;
        let mean = |kind: Kind| {
            cuts[&(u32::MAX, kind as u8)].iter().map(|&ticks| ticks as f64).sum::<f64>()
                / ticks_per_unit
                / f64::from(placement.devices())
        };
        let summary = Summary {
            F: mean(Kind::F),
            I: mean(Kind::I),
            W: mean(Kind::W),
            B: mean(Kind::B),
            comm: self.comm.to_f64(),
            keep: self.keep.to_f64(),
        };
        let stages_per_device = f64::from(placement.stages()) / f64::from(placement.devices().max(1));
        let unit_ns = self.unit_ns(placement.devices(), microbatches, slow, stages_per_device)?;
        let units = (ticks_per_unit, self.unit().map_or("unit", TimeUnit::name), unit_ns);
        let table = CostTable::new(placement, units, summary, |op| OpTime {
            duration: duration(op),
            after: 0,
            arrival: ticks(self.comm) * pieces,
        });
        let table = self.with_vocabulary(table, |time| ticks(time) * pieces);
        let collectives = self.collectives_of(|time| vec![ticks(time) * pieces; stages]);
        // a copy is that of a device, of which a stage has its share
        let copy = ticks(self.copy) * pieces;
        let parts = chunks / gcd(chunks, copy);
        let table = CostTable { assumed: self.assumed.clone(), collectives, ..table }.finer(parts as u32);
        Ok(table.with_copies(vec![[copy / (chunks / parts); 2]; stages]))
    }

    /// Returns the longest time of a stage in ticks of `pieces` times 10^`scale` per unit, and more; `None` if a step of them overflows the
    /// clock.
    fn longest_stages(
        &self,
        given: &GivenStages,
        (placement, microbatches, slow): (&Placement, u32, &Slow),
        (pieces, scale): (u64, u32),
    ) -> Option<u128> {
        let slower = |one: Decimal, other: &Decimal| if other.to_f64() > one.to_f64() { *other } else { one };
        let slowest = slow.values().fold(Decimal::whole(1), slower);
        let add = |sum: u128, time: &Decimal| sum.checked_add(time.times_ten_to(scale)?);
        // a new stage takes at most what all given ones take
        let all: Vec<Decimal> = given.times.iter().flatten().map(|time| time.times(slowest)).collect();
        let all = all.iter().try_fold(0, add)?;
        let mut others =
            self.vocabulary.iter().chain(self.collectives.iter().flatten()).chain([&self.comm, &self.copy]);
        let others = others.try_fold(0, add)?.checked_mul(4 * u128::from(placement.stages()))?;
        let step = all.checked_add(others)?.checked_mul(pieces.into())?;
        (step.checked_mul(2 * u128::from(microbatches.max(1)))? < 1 << 62).then_some(all * u128::from(pieces))
    }
}
