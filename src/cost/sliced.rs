//! Costs of slices: attention grows with the keys before a slice, everything else with its length.

use super::{CostError, CostTable, Decimal, OpTime};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::slices::Slices;

/// Shares of costs and of activations that slices and recomputes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceCosts {
    /// Share of attention in F.
    pub attention: Decimal,
    /// Share of attention in I. W has none.
    pub attention_input: Decimal,
    /// Share of an activation that F keeps if its unit is recomputed: the stage's input, with slices also keys and values.
    pub stub: Decimal,
    /// Share of keys and values in an activation.
    pub kv: Decimal,
    /// Share of F that R takes.
    pub recompute: Decimal,
}

impl Default for SliceCosts {
    /// No attention: a slice takes its share of the tokens. R takes as long as F, which keeps nothing if it is recomputed.
    fn default() -> SliceCosts {
        let [attention, attention_input, stub, kv] = [Decimal::whole(0); 4];
        SliceCosts { attention, attention_input, stub, kv, recompute: Decimal::whole(1) }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Largest clock that sums of slices may reach, below that of [`GivenCosts::table`](super::GivenCosts::table).
const MOST: u128 = 1 << 61;

impl SliceCosts {
    /// Returns the share of a whole op's time that slice `slice` takes, as numerator by `kind` of F, I and W; the denominator is
    /// [`SliceCosts::denominator`]. With the share a of attention, of slices of lengths l after a length P of t tokens:
    /// (1 - a) l / t + a l (l + 2 P) / t^2.
    fn numerator(&self, kind: Kind, slices: &Slices, slice: usize) -> u128 {
        let scale = self.scale();
        let attention = match kind {
            Kind::F => self.attention,
            Kind::I => self.attention_input,
            _ => Decimal::whole(0),
        };
        let attention = attention.times_ten_to(scale).unwrap_or(0);
        let [length, before, total] = [slices.length(slice), slices.before(slice), slices.total()].map(u128::from);
        let rest = 10_u128.pow(scale).saturating_sub(attention);
        rest * length * total + attention * length * (length + 2 * before)
    }

    fn denominator(&self, slices: &Slices) -> u128 {
        10_u128.pow(self.scale()) * u128::from(slices.total()).pow(2)
    }

    /// Decimals of the shares; more are cut off.
    fn scale(&self) -> u32 {
        self.attention.scale().max(self.attention_input.scale()).min(9)
    }
}

impl CostTable {
    /// Returns the costs with other shares; R takes its share of F.
    pub fn with_slice_costs(self, slice_costs: SliceCosts) -> CostTable {
        let keep = self.keep.with_stub(slice_costs.stub.to_f64()).with_kv(slice_costs.kv.to_f64());
        CostTable { keep, slice_costs, ..self }
    }

    /// Returns the costs of each of `slices`, from those of whole micro-batches. Ticks become finer, so that they are exact unless that
    /// would overflow the clock. Messages take as long as before, one per slice.
    ///
    /// # Errors
    /// An overflow of the clock.
    pub fn sliced(self, placement: &Placement, slices: &Slices, microbatches: u32) -> Result<CostTable, CostError> {
        if !slices.is_cut() {
            return Ok(self);
        }
        if !self.pauses.is_empty() || self.stride > 0 {
            return Err(CostError("costs are cut into slices once, before sums of gradients begin".to_string()));
        }
        let shares = self.slice_costs;
        let denominator = shares.denominator(slices);
        let numerators = |kind: Kind| (0..slices.count() as usize).map(move |q| shares.numerator(kind, slices, q));
        let common = [Kind::F, Kind::I, Kind::W].into_iter().flat_map(numerators).fold(denominator, gcd);
        let exact = denominator / common;
        let lasts = |time: &OpTime| [time.duration, time.after, time.arrival].map(u128::from).iter().sum::<u128>();
        let longest = self.times.iter().map(lasts).max().unwrap_or(0).max(1);
        let ops = 8 * u128::from(placement.stages()) * u128::from(microbatches.max(1)) * u128::from(slices.count());
        let most = MOST / ops.saturating_mul(longest);
        if most == 0 {
            return Err(CostError(
                "these costs times the number of ops overflow the clock; give smaller or rounder numbers, or fewer slices"
                    .to_string(),
            ));
        }
        let finer = exact.min(most).min(u128::from(u32::MAX)) as u32;
        let table = self.finer(finer);
        let part = |ticks: u64, kind: Kind, slice: usize| {
            let share = shares.numerator(kind, slices, slice);
            let (whole, rest) = (u128::from(ticks) / denominator, u128::from(ticks) % denominator);
            (whole * share + (rest * share + denominator / 2) / denominator) as u64
        };
        let (slots, whole) = (placement.slots(), |op: Op| table.times[op.slot()].duration);
        let mut times = vec![OpTime::default(); slots * slices.count() as usize];
        for op in placement.op_kinds() {
            for slice in 0..slices.count() as usize {
                let of = |kind: Kind| part(whole(op.of_kind(kind)), kind, slice);
                let duration = match op.kind() {
                    // A whole backward has the attention of its I.
                    Kind::B => {
                        let halves = whole(op.of_kind(Kind::I)) + whole(op.of_kind(Kind::W));
                        let sum = of(Kind::I) + of(Kind::W);
                        match whole(op).checked_sub(halves) {
                            Some(more) => sum + part(more, Kind::W, slice),
                            None => sum.saturating_sub(part(halves - whole(op), Kind::W, slice)),
                        }
                    }
                    kind => of(kind),
                };
                times[slice * slots + op.slot()] = OpTime { duration, ..table.times[op.slot()] };
            }
        }
        Ok(CostTable { times, stride: slots, ..table })
    }
}
