//! Shares of costs that slices and recomputes take: attention grows with the keys before a slice, everything else with its length.

use super::decimal::Decimal;
use pipesim_schedule::op::Kind;
use pipesim_schedule::slices::Slices;

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

impl SliceCosts {
    /// Returns the share of a whole op's time that slice `slice` takes, as numerator by `kind` of F, I and W; the denominator is
    /// [`SliceCosts::denominator`]. With the share a of attention, of slices of lengths l after a length P of t tokens:
    /// (1 - a) l / t + a l (l + 2 P) / t^2.
    pub(super) fn numerator(&self, kind: Kind, slices: &Slices, slice: usize) -> u128 {
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

    pub(super) fn denominator(&self, slices: &Slices) -> u128 {
        10_u128.pow(self.scale()) * u128::from(slices.total()).pow(2)
    }

    /// Decimals of the shares; more are rounded.
    fn scale(&self) -> u32 {
        self.attention.scale().max(self.attention_input.scale()).min(15)
    }
}
