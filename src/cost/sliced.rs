//! Costs of the ops of slices, from those of whole micro-batches.

use super::{CostError, CostTable, OpTime, SliceCosts};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::slices::Slices;

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Largest clock that sums of slices may reach, below that of [`GivenCosts::table`](super::GivenCosts::table).
const MOST: u128 = 1 << 61;

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
        // A copy takes as long as its slice.
        let of_slice = |slice: usize| table.copies.iter().map(move |&copy| (copy, slice));
        let copies = (0..slices.count() as usize).flat_map(of_slice);
        let copies = copies.map(|(copy, slice)| copy.map(|ticks| part(ticks, Kind::W, slice))).collect();
        Ok(CostTable { times, copies, stride: slots, ..table })
    }
}
