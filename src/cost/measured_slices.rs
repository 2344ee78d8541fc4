//! Measured costs of slices, and costs of sizes and slices that were not measured, from others and the model's operations.

use super::{CostError, CostFile, CostTable, PartCost};
use pipesim_models::model_spec::{MicroBatch, ModelSpec, Part, Stage};
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::Schedule;

/// Returns the share of attention in the FLOPs of a part, which grows with the square of the tokens.
fn attention(part: &Part, kind: Kind, tokens: usize) -> f64 {
    let flops = |tokens| part.flops(kind, MicroBatch { sequences: 1, tokens }) as f64;
    let (once, twice) = (flops(tokens), flops(2 * tokens));
    if once > 0.0 { ((twice - 2.0 * once) / 2.0 / once).clamp(0.0, 1.0) } else { 0.0 }
}

impl CostFile {
    /// Returns the file with the parts of `spec` at another micro-batch size. Sizes that were not measured are scaled by
    /// FLOPs (by tokens if there are none), or interpolated between two measured sizes.
    pub fn at_size(&self, spec: &ModelSpec, micro: MicroBatch) -> CostFile {
        let parts: Vec<&str> = spec.parts.iter().map(|part| part.name).collect();
        let work = |name: &str, kind: Kind, micro: MicroBatch| {
            let part = spec.parts.iter().find(|part| part.name == name)?;
            Some(Some(part.flops(kind, micro)).filter(|&flops| flops > 0).unwrap_or(micro.rows() as u128) as f64)
        };
        let MicroBatch { sequences, tokens } = self.size();
        let own = (sequences as u128 * tokens as u128).max(1);
        let bytes = u128::from(self.link.bytes) * micro.rows() as u128 / own;
        self.at(micro, bytes.min(u128::from(u64::MAX)) as u64, &parts, work)
    }

    /// Returns the file at another number of sequences of the same length: scaled by sequences, or interpolated between two
    /// measured numbers.
    pub fn at_sequences(&self, sequences: u32) -> CostFile {
        let own = self.size();
        let mut parts: Vec<&str> = Vec::new();
        for part in &self.parts {
            if !parts.contains(&part.part.as_str()) {
                parts.push(&part.part);
            }
        }
        let bytes = u128::from(self.link.bytes) * u128::from(sequences) / own.sequences.max(1) as u128;
        let work = |_: &str, _, size: MicroBatch| (size.tokens == own.tokens).then_some(size.sequences as f64);
        let size = MicroBatch { sequences: sequences as usize, ..own };
        self.at(size, bytes.min(u128::from(u64::MAX)) as u64, &parts, work)
    }

    /// Returns the file with these parts at another size and messages of `bytes`. Time is proportional to `work`; `None`
    /// excludes a measurement.
    fn at(
        &self,
        size: MicroBatch,
        bytes: u64,
        parts: &[&str],
        work: impl Fn(&str, Kind, MicroBatch) -> Option<f64>,
    ) -> CostFile {
        let mut costs = self.clone();
        for &name in parts {
            for kind in [Kind::F, Kind::I, Kind::W, Kind::O, Kind::L] {
                let letter = kind.letter().to_string();
                let Some(work_here) = work(name, kind, size).filter(|_| self.part(name, kind, size, None).is_err())
                else {
                    continue;
                };
                let of = |c: &&PartCost| c.part == name && c.kind == letter && c.slice.is_none();
                let point = |c: &PartCost| Some((work(name, kind, c.size())?, c.duration_ns as f64));
                let known: Vec<(f64, f64)> = self.parts.iter().filter(of).filter_map(point).collect();
                costs.parts.extend(along(known, work_here).map(|ns| PartCost::derived(name, kind, size, None, ns)));
            }
        }
        costs.link.put_ns = (self.link.put_ns as f64 * bytes as f64 / self.link.bytes.max(1) as f64).round() as u64;
        costs.link.bytes = bytes;
        costs
    }

    /// Returns the file with the costs of slices of these lengths. A slice that was not measured takes its share of a micro-batch's
    /// time: by its tokens, and in attention by the pairs of tokens.
    pub fn at_slices(&self, spec: &ModelSpec, micro: MicroBatch, slices: &[usize]) -> CostFile {
        let mut costs = self.clone();
        for part in &spec.parts {
            for kind in [Kind::F, Kind::I, Kind::W, Kind::O, Kind::L] {
                let Ok(whole) = self.part(part.name, kind, micro, None) else { continue };
                let share = attention(part, kind, micro.tokens);
                for slice in slice_bounds(slices) {
                    if self.part(part.name, kind, micro, Some(slice)).is_ok() {
                        continue;
                    }
                    let [before, length] = slice.map(|tokens| f64::from(tokens) / micro.tokens as f64);
                    let of = (1.0 - share) * length + share * length * (length + 2.0 * before);
                    costs.parts.push(PartCost::derived(part.name, kind, micro, Some(slice), whole as f64 * of));
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
        size: MicroBatch,
        slices: &[usize],
    ) -> Result<CostTable, CostError> {
        if slices.len() < 2 {
            return self.table(placement, stages, size);
        }
        let of = |slice| self.table_of(placement, stages, size, Some(slice));
        let tables = slice_bounds(slices).map(of).collect::<Result<Vec<_>, CostError>>()?;
        let mut table = CostTable::of_slices(self.table(placement, stages, size)?, tables, placement);
        table.effects.puts = None;
        Ok(table)
    }

    /// Checks that times of copies to the host are known if `schedule` has some.
    ///
    /// # Errors
    /// They were not measured.
    pub fn require_copies(&self, schedule: &Schedule) -> Result<(), CostError> {
        let letter = Kind::O.letter().to_string();
        if !schedule.has_copies() || self.parts.iter().any(|part| part.kind == letter) {
            return Ok(());
        }
        Err(CostError::File(format!(
            "{name}: the cost file has no times of copies to the host; measure them with `pipesim profile -s {name}`",
            name = schedule.name
        )))
    }

    /// Returns the times of copies of each stage to the host and from it, in ns; none if they were not measured.
    pub(super) fn copies(&self, stages: &[Stage], size: MicroBatch, slice: Option<[u32; 2]>) -> Vec<[u64; 2]> {
        let of = |stage: &Stage, kind| self.parts_of(stage, kind, size, slice).ok();
        let both = stages.iter().map(|stage| Some([of(stage, Kind::O)?, of(stage, Kind::L)?]));
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

/// Returns the value at `x` on the line through the two nearest points, or in proportion to a single one; `None` without points.
fn along(mut known: Vec<(f64, f64)>, x: f64) -> Option<f64> {
    let far = |size: f64| libm::log(size / x).abs();
    known.sort_by(|a, b| far(a.0).total_cmp(&far(b.0)));
    match known[..] {
        [] => None,
        [(x0, y0), (x1, y1), ..] if x0 != x1 => Some((y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(0.0)),
        [(x0, y0), ..] => Some(y0 * x / x0),
    }
}
