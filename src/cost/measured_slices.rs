//! Measured costs of slices, or derived ones from those of whole micro-batches and the model's operations.

use super::{CostError, CostFile, CostTable, PartCost, Summary};
use crate::model_spec::{MicroBatch, ModelSpec, Part, Stage};
use crate::op::Kind;
use crate::placement::Placement;
use crate::schedule::Schedule;

/// Returns the share of attention in the FLOPs of a part, which grows with the square of the tokens.
fn attention(part: &Part, kind: Kind, tokens: usize) -> f64 {
    let flops = |tokens| part.flops(kind, MicroBatch { sequences: 1, tokens }) as f64;
    let (once, twice) = (flops(tokens), flops(2 * tokens));
    if once > 0.0 { ((twice - 2.0 * once) / 2.0 / once).clamp(0.0, 1.0) } else { 0.0 }
}

impl CostFile {
    /// Returns the file with the costs of slices of these lengths. A slice that was not measured takes its share of a micro-batch's
    /// time: by its tokens, and in attention by the pairs of tokens.
    pub fn at_slices(&self, spec: &ModelSpec, micro: MicroBatch, slices: &[usize]) -> CostFile {
        let mut costs = self.clone();
        let size = (micro.sequences as u32, micro.tokens as u32);
        for part in &spec.parts {
            for kind in [Kind::F, Kind::I, Kind::W, Kind::O, Kind::L] {
                let Ok(whole) = self.part(part.name, kind, size, None) else { continue };
                let share = attention(part, kind, micro.tokens);
                for slice in slice_bounds(slices) {
                    if self.part(part.name, kind, size, Some(slice)).is_ok() {
                        continue;
                    }
                    let [before, length] = slice.map(|tokens| f64::from(tokens) / micro.tokens as f64);
                    let of = (1.0 - share) * length + share * length * (length + 2.0 * before);
                    costs.parts.push(PartCost {
                        part: part.name.to_string(),
                        kind: kind.letter().to_string(),
                        sequences: size.0,
                        tokens: size.1,
                        slice: Some(slice),
                        duration_ns: (whole as f64 * of).round() as u64,
                        samples: 0,
                    });
                }
            }
        }
        costs
    }

    /// Returns the cost table of stages whose micro-batches are cut into slices of these numbers of tokens; of whole ones if there is one
    /// slice.
    ///
    /// # Errors
    /// See [`CostFile::table`].
    pub fn sliced_table(
        &self,
        placement: &Placement,
        stages: &[Stage],
        size: (u32, u32),
        slices: &[usize],
    ) -> Result<CostTable, CostError> {
        if slices.len() < 2 {
            return self.table(placement, stages, size);
        }
        let of = |slice| self.table_of((placement, stages), size, Some(slice));
        let tables = slice_bounds(slices).map(of).collect::<Result<Vec<_>, CostError>>()?;
        let sum = |of: fn(&Summary) -> f64| tables.iter().map(|table| of(&table.summary)).sum::<f64>();
        let (f, i, w, b) = (sum(|s| s.F), sum(|s| s.I), sum(|s| s.W), sum(|s| s.B));
        let whole = self.table(placement, stages, size)?;
        let summary = Summary { F: f, I: i, W: w, B: b, ..whole.summary };
        let copies = tables.iter().flat_map(|table| table.copies.iter().copied()).collect();
        let times = tables.into_iter().flat_map(|table| table.times).collect();
        Ok(CostTable { summary, times, copies, stride: placement.slots(), puts: None, ..whole })
    }
}

impl CostFile {
    /// Checks that times of copies to the host are known if `schedule` has some.
    ///
    /// # Errors
    /// They were not measured.
    pub fn require_copies(&self, schedule: &Schedule) -> Result<(), CostError> {
        let letter = Kind::O.letter().to_string();
        if !schedule.has_copies() || self.parts.iter().any(|part| part.kind == letter) {
            return Ok(());
        }
        Err(CostError(format!(
            "{name}: the cost file has no times of copies to the host; measure them with `pipesim profile -s {name}`",
            name = schedule.name
        )))
    }

    /// Returns the times of copies of each stage to the host and from it, in ns; none if they were not measured.
    pub(super) fn copies(&self, stages: &[Stage], size: (u32, u32), slice: Option<[u32; 2]>) -> Vec<[u64; 2]> {
        let of_part = |part: &str, kind| self.part(part, kind, size, slice).ok();
        let of_stage = |stage: &Stage, kind| {
            let parts = stage.counts().filter(|&(_, count)| count > 0);
            parts.map(|(part, count)| Some(count as u64 * of_part(part, kind)?)).sum::<Option<u64>>()
        };
        let both = stages.iter().map(|stage| Some([of_stage(stage, Kind::O)?, of_stage(stage, Kind::L)?]));
        both.collect::<Option<Vec<_>>>().unwrap_or_default()
    }
}

/// Returns the first token and the number of tokens of each slice.
pub fn slice_bounds(slices: &[usize]) -> impl Iterator<Item = [u32; 2]> {
    slices.iter().scan(0, |first, &length| {
        let slice = [*first, length as u32];
        *first += length as u32;
        Some(slice)
    })
}
