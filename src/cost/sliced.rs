//! Costs of the ops of slices, from the costs of whole micro-batches.

use super::error::TOO_LONG;
use super::share::wide_gcd;
use super::{CostError, CostTable, Decimal, Extras, OpTime, SliceCosts};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use pipesim_schedule::slices::Slices;

/// Largest clock that sums of slices may reach, below the limit of [`GivenCosts::table`](super::GivenCosts::table).
const MOST: u128 = 1 << 61;

/// Returns `share / of` of `ticks`, rounded; `of` is below 2^110.
fn part_of(ticks: u64, share: u128, of: u128) -> u64 {
    // 16 bits at a time, whose products fit
    let digits = ticks.to_be_bytes();
    let step = |(quotient, rest): (u128, u128), pair: &[u8]| {
        let next = (rest << 16) + u128::from(u16::from_be_bytes([pair[0], pair[1]])) * share;
        ((quotient << 16) + next / of, next % of)
    };
    let (quotient, rest) = digits.chunks(2).fold((0, 0), step);
    (quotient + u128::from(2 * rest >= of)) as u64
}

impl CostTable {
    /// Returns the costs with other shares; R takes its share of F, exactly if these ticks divide it.
    pub fn with_slice_costs(self, slice_costs: SliceCosts) -> CostTable {
        let keep = self.keep.with_stub(slice_costs.stub.to_f64()).with_kv(slice_costs.kv.to_f64());
        CostTable { keep, extras: Extras { slice_costs, ..self.extras }, ..self }
    }

    /// Returns the costs in ticks so fine that every R takes a whole number of them, unless that would overflow the clock.
    pub(super) fn with_whole_recomputes(self, placement: &Placement, microbatches: u32) -> CostTable {
        const FINE: u128 = 1_000_000_000_000;
        let share = self.extras.slice_costs.recompute;
        let forwards = placement.op_kinds().filter(|op| op.kind() == Kind::F).map(|op| self.of(op).duration);
        let exact = share.parts() / forwards.map(u128::from).fold(share.parts(), wide_gcd);
        let ops = 8 * u128::from(placement.stages()) * u128::from(microbatches.max(1));
        // the digits of a long share were rounded before; it needs no exact tick
        let most = if share.is_short() { MOST / ops } else { FINE } / self.longest();
        let finer = if exact <= most.min(u32::MAX.into()) { exact } else { tens_up_to(most) };
        self.finer(finer as u32)
    }

    /// Returns the longest time of an op with all that follows it, in ticks; at least 1.
    pub fn longest(&self) -> u128 {
        let lasts = |time: &OpTime| [time.duration, time.after, time.arrival].map(u128::from).iter().sum::<u128>();
        self.times.iter().map(lasts).max().unwrap_or(0).max(1)
    }

    /// Returns the costs of each of `slices`, from the costs of whole micro-batches. Ticks become finer, so that costs are exact unless that
    /// would overflow the clock. Messages take as long as before, one per slice.
    ///
    /// # Errors
    /// An overflow of the clock.
    pub fn sliced(self, placement: &Placement, slices: &Slices, microbatches: u32) -> Result<CostTable, CostError> {
        if !slices.is_cut() {
            return Ok(self);
        }
        if !self.extras.pauses.is_empty() || self.stride > 0 {
            return Err(CostError::Given("costs are cut into slices once, before sums of gradients begin".to_string()));
        }
        let shares = self.extras.slice_costs;
        let denominator = shares.denominator(slices);
        let exact = self.whole_parts(slices);
        let ops = 8 * u128::from(placement.stages()) * u128::from(microbatches.max(1)) * u128::from(slices.count());
        let most = MOST / ops.saturating_mul(self.longest());
        if most == 0 {
            return Err(CostError::Overflow(format!("{TOO_LONG}, or fewer slices")));
        }
        let finer = if exact <= most.min(u32::MAX.into()) { exact } else { tens_up_to(most) };
        let table = self.finer(finer as u32);
        let part =
            |ticks: u64, kind: Kind, slice: usize| part_of(ticks, shares.numerator(kind, slices, slice), denominator);
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
        let of_slice = |slice: usize| table.extras.copies.iter().map(move |&copy| (copy, slice));
        let copies = (0..slices.count() as usize).flat_map(of_slice);
        let copies = copies.map(|(copy, slice)| copy.map(|ticks| part(ticks, Kind::W, slice))).collect();
        Ok(CostTable { times, stride: slots, extras: Extras { copies, ..table.extras }, ..table })
    }

    /// Returns into how many parts a tick has to be cut for every op of a slice to take a whole number of them.
    fn whole_parts(&self, slices: &Slices) -> u128 {
        let (shares, recompute) = (self.extras.slice_costs, self.extras.slice_costs.recompute);
        let ticks = self.times.iter().map(|time| time.duration).chain(self.extras.copies.iter().flatten().copied());
        let ticks = ticks.map(u128::from).fold(0, wide_gcd);
        let parts = |of: u128, kinds: &[Kind], times: Decimal| {
            let [of, times] = [of.checked_mul(times.parts())?, times.numerator()];
            let numerators = kinds
                .iter()
                .flat_map(|&kind| (0..slices.count() as usize).map(move |slice| shares.numerator(kind, slices, slice)));
            let common = numerators.map(|share| share.checked_mul(times)).try_fold(of, |a, b| Some(wide_gcd(a, b?)))?;
            Some(of / common / wide_gcd(of / common, ticks))
        };
        let whole = parts(shares.denominator(slices), &[Kind::F, Kind::I, Kind::W], Decimal::whole(1));
        let again = parts(shares.denominator(slices), &[Kind::F], recompute);
        let all = whole.zip(again).and_then(|(whole, again)| (whole / wide_gcd(whole, again)).checked_mul(again));
        all.unwrap_or(u128::MAX)
    }
}

/// Returns the largest power of ten up to `most` that a finer tick may have; at least 1.
fn tens_up_to(most: u128) -> u128 {
    (0..=9).map(|power| 10_u128.pow(power)).take_while(|&ten| ten <= most).last().unwrap_or(1)
}
