//! Tables of the times of whole stages, from a cost file or [`StageTimes`].

use super::depth::{recut, sizes};
use super::pair::{PassTimes, SubOps};
use super::{CostError, CostFile, CostTable, OpTime, StageKindCost, Summary, TickUnits};
use pipesim_models::model_spec::layer_counts;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;

impl CostFile {
    /// Whether the costs are per stage, not per part of a model.
    pub fn is_staged(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Returns the layers of each measured stage, if they are known.
    pub fn stage_layers(&self) -> Option<Vec<usize>> {
        let all: Option<Vec<usize>> =
            self.stages.iter().map(|stage| stage.layers.map(|count| count as usize)).collect();
        all.filter(|layers| !layers.is_empty())
    }

    /// Returns the costs with these layers per measured stage, in model order; a single number is split as evenly as possible.
    ///
    /// # Errors
    /// Neither one number nor one per stage, or no layer in an inner stage.
    pub fn with_stage_layers(mut self, layers: &[usize]) -> Result<CostFile, CostError> {
        let all = layers.iter().sum();
        let explicit = (layers.len() > 1 || self.stages.len() == 1).then_some(layers);
        let counts = layer_counts(all, self.stages.len(), explicit)
            .map_err(|error| CostError::Stages(format!("`layers`: {error}")))?;
        for (stage, count) in self.stages.iter_mut().zip(&counts) {
            stage.layers = Some(*count as u32);
        }
        self.layers = all as u32;
        Ok(self)
    }

    /// Returns the table of stages with `layers` each on `placement`; without known layers, of stages of equal depth.
    pub(super) fn staged_table(&self, placement: &Placement, layers: &[usize]) -> Result<CostTable, CostError> {
        let stages = placement.stages() as usize;
        let [own, new] = sizes(self.stages.len(), self.stage_layers().as_deref(), stages, Some(layers));
        let sub_ops = self.has_sub_ops().then(|| self.sub_ops(layers)).transpose()?;
        let from_sub_ops = sub_ops.as_ref().filter(|_| self.stages.iter().all(|stage| stage.kinds.is_empty()));
        let cut = |kind: Kind| {
            if let Some(sub_ops) = from_sub_ops {
                return Ok(sub_ops.iter().map(|stage| stage.alone(kind)).collect());
            }
            let times: Vec<u64> = self.stages.iter().map(|stage| stage.duration(kind)).collect();
            let cut = recut(&times, &own, &new).ok_or_else(|| {
                let [own, new] = [&own, &new].map(|sizes| sizes.iter().sum::<u64>());
                CostError::Stages(format!(
                    "expected stages with {own} layers in total, as in the measured run, found {new}; change `layers`"
                ))
            })?;
            Ok::<Vec<u64>, CostError>(cut.times.into_iter().map(|time| (time + cut.scale / 2) / cut.scale).collect())
        };
        let durations = [cut(Kind::F)?, cut(Kind::I)?, cut(Kind::W)?, cut(Kind::B)?];
        let nearest = nearest(&own, &new);
        let p = f64::from(placement.devices());
        let mean = |kind: Kind| durations[kind as usize].iter().map(|&ns| ns as f64).sum::<f64>() / p / 1e6;
        let summary = Summary::new(mean, self.link.latency_ns as f64 / 1e6, self.keep);
        let table = CostTable::new(placement, TickUnits::MILLISECONDS, summary, |op: Op| {
            let stage = &self.stages[nearest[op.stage() as usize]];
            let of = |own: Kind, other: Kind, of: fn(&StageKindCost) -> Option<u64>| {
                stage.of(own).and_then(of).or_else(|| stage.of(other).and_then(of))
            };
            let (ends_as, sends_as) = match op.kind() {
                Kind::F => (Kind::F, Kind::F),
                Kind::I => (Kind::B, Kind::B),
                Kind::W => (Kind::B, Kind::W),
                _ => (Kind::W, Kind::I),
            };
            OpTime {
                duration: durations[op.kind() as usize][op.stage() as usize],
                after: of(op.kind(), ends_as, |cost| cost.gap_ns).unwrap_or(self.gap_ns),
                arrival: of(op.kind(), sends_as, |cost| cost.message_ns).unwrap_or(self.link.latency_ns),
            }
        });
        Ok(match sub_ops {
            Some(sub_ops) => table.with_sub_ops(placement, &sub_ops),
            None => table,
        })
    }

    /// Whether every stage has the times of its sub-ops.
    pub fn has_sub_ops(&self) -> bool {
        self.is_staged() && self.stages.iter().all(|stage| !stage.sub_ops.is_empty())
    }

    /// Returns the sub-ops of stages with these layers, in model order.
    ///
    /// # Errors
    /// Another number of layers in total.
    pub(super) fn sub_ops(&self, layers: &[usize]) -> Result<Vec<SubOps>, CostError> {
        let own: Vec<SubOps> = self.stages.iter().map(|stage| stage.sub_ops()).collect();
        let mut all = own.iter().flat_map(|stage| stage.layers.iter().copied());
        let found: usize = layers.iter().sum();
        let expected: usize = own.iter().map(|stage| stage.layers.len()).sum();
        if found != expected {
            return Err(CostError::Stages(format!(
                "expected stages with {expected} layers in total, as the cost file has, found {found}; change `layers`"
            )));
        }
        let last = layers.len().saturating_sub(1);
        let stage = |(stage, &count): (usize, &usize)| SubOps {
            layers: all.by_ref().take(count).collect(),
            first: if stage == 0 { own[0].first } else { PassTimes::default() },
            last: if stage == last { own[own.len() - 1].last } else { PassTimes::default() },
            delays_weights: true,
            has_one_queue: false,
        };
        Ok(layers.iter().enumerate().map(stage).collect())
    }
}

/// Returns, by new stage, the measured stage in which its middle is.
fn nearest(own: &[u64], new: &[u64]) -> Vec<usize> {
    let ends = |sizes: &[u64]| -> Vec<u64> {
        let mut end = 0;
        sizes.iter().map(|size| (end += size, end).1).collect()
    };
    let (own, new) = (ends(own), ends(new).into_iter().zip(new));
    let middle = |(end, size): (u64, &u64)| own.iter().position(|own| 2 * end - size < 2 * own);
    new.map(|new| middle(new).unwrap_or(own.len().saturating_sub(1))).collect()
}

/// Times of one stage's ops for one micro-batch, in milliseconds. A full backward takes `input + weights`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTimes {
    /// Forward.
    pub forward: f64,
    /// Backward for the input.
    pub input: f64,
    /// Backward for the weights.
    pub weights: f64,
}

impl StageTimes {
    fn of(self, kind: Kind) -> f64 {
        match kind {
            Kind::F => self.forward,
            Kind::I => self.input,
            Kind::W => self.weights,
            _ => self.input + self.weights,
        }
    }
}

impl CostTable {
    /// Makes a table from the times of each stage, in model order, and the milliseconds from the end of an op until another device has its
    /// output.
    ///
    /// # Panics
    /// `stages` has fewer entries than the placement has stages.
    pub fn from_stage_times(placement: &Placement, stages: &[StageTimes], transfer_ms: f64) -> CostTable {
        let ns = |ms: f64| (ms * 1e6).round().clamp(0.0, 1e15) as u64;
        let devices = f64::from(placement.devices());
        let mean = |kind| stages.iter().map(|stage| stage.of(kind)).sum::<f64>() / devices;
        CostTable::new(placement, TickUnits::MILLISECONDS, Summary::new(mean, transfer_ms, 1.0), |op: Op| OpTime {
            duration: ns(stages[op.stage() as usize].of(op.kind())),
            after: 0,
            arrival: if placement.leaves_device(op) { ns(transfer_ms) } else { 0 },
        })
    }
}
