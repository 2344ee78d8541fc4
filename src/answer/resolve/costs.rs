//! Sources of costs, and the table that they make for one schedule.

use super::{Error, usage};
use pipesim_cost::analytic::Analytic;
use pipesim_cost::{CostError, CostFile, CostTable, GivenCosts, Slow, StepCosts};
use pipesim_models::model_spec::{MicroBatch, Stage, StageLayout};
use pipesim_schedule::epilogue::StepEpilogue;
use pipesim_schedule::placement::Placement;
use pipesim_schedule::slices::Slices;

#[derive(Clone, Debug)]
pub enum Costs {
    /// Costs of a device's whole share of layers, in time units.
    Given {
        costs: Box<GivenCosts>,
        /// Slowdown factors by device.
        slow: Slow,
    },
    /// Measured costs, in ms.
    Measured(Measured),
    /// Analytic costs of a model on hardware, in ms.
    Analytic(Box<Analytic>),
}

impl Default for Costs {
    /// Unit costs.
    fn default() -> Costs {
        Costs::given(GivenCosts::default())
    }
}

/// Callback for costs that decide an order: the costs of the schedule with this name on a placement, with the caller's error
/// type.
pub type Pricing<'a, E> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, E>;

/// A cost file and the requested model.
#[derive(Clone, Debug)]
pub struct Measured {
    pub file: Box<CostFile>,
    /// Blocks per stage, in model order; `None`: split evenly.
    pub layers: Option<Vec<usize>>,
    /// What each stage holds; replaces `layers`.
    pub layout: Option<StageLayout>,
    pub size: MicroBatch,
    pub clip: bool,
}

impl Costs {
    /// Returns the same costs on every device.
    pub fn given(costs: GivenCosts) -> Costs {
        Costs::Given { costs: Box::new(costs), slow: Slow::new() }
    }

    /// Returns the costs of a file at its own micro-batch size.
    ///
    /// If the file has stages with an unknown number of layers, `layers` are theirs if there are as many; otherwise the measured stages
    /// have equal shares of them.
    pub fn measured(file: CostFile, layers: Option<Vec<usize>>) -> Costs {
        let (file, layers) = match layers {
            Some(layers) if file.is_staged() && file.stage_layers().is_none() => {
                let is_own = layers.len() == file.stages.len();
                let own = if is_own { layers.clone() } else { vec![layers.iter().sum()] };
                // Layers of the measured stages themselves say nothing about other stages.
                (file.clone().with_stage_layers(&own).unwrap_or(file), Some(layers).filter(|_| !is_own))
            }
            layers => (file, layers),
        };
        Costs::Measured(Measured { layers, ..Measured::of(file) })
    }

    /// Returns the costs of a model whose stages hold what `layout` says.
    pub fn with_layout(self, layout: Option<StageLayout>) -> Costs {
        match self {
            Costs::Given { costs, slow } => Costs::Given { costs: Box::new(costs.with_layout(layout)), slow },
            Costs::Measured(measured) => Costs::Measured(Measured { layout, ..measured }),
            Costs::Analytic(mut analytic) => {
                analytic.layout.layout = layout;
                Costs::Analytic(analytic)
            }
        }
    }

    /// Whether they are measured times of whole stages.
    pub fn is_staged(&self) -> bool {
        matches!(self, Costs::Measured(Measured { file, .. }) if file.is_staged())
    }

    /// Returns the minimum and maximum number of sequences per micro-batch that were measured.
    pub fn measured_sequences(&self) -> Option<(u32, u32)> {
        let Costs::Measured(Measured { file, size, .. }) = self else { return None };
        let sequences =
            || file.parts.iter().filter(|part| part.size().tokens == size.tokens).map(|part| part.sequences);
        Some((sequences().min()?, sequences().max()?))
    }

    /// Returns the costs at this number of sequences per micro-batch; only measured costs change.
    pub fn with_sequences(self, sequences: u32) -> Costs {
        match self {
            Costs::Measured(Measured { file, layers, layout, size, clip }) => Costs::Measured(Measured {
                file: Box::new(file.at_sequences(sequences)),
                layers,
                layout,
                size: MicroBatch { sequences: sequences as usize, ..size },
                clip,
            }),
            other => other,
        }
    }

    /// Returns the costs of ops and step ops of the schedule `name` on `placement`.
    ///
    /// # Errors
    /// A model that cannot be split into the stages, a slow device that does not exist, a part that was not measured, or an
    /// overflow of the clock.
    pub fn table(&self, name: &str, placement: &Placement, microbatches: u32) -> Result<(CostTable, StepCosts), Error> {
        match self {
            Costs::Given { costs, slow } => {
                let table = costs.table(placement, microbatches, slow).map_err(|error| error.of(name))?;
                Ok((table, StepCosts::default()))
            }
            Costs::Measured(measured) => measured.table(name, placement, microbatches),
            Costs::Analytic(_) => self.sliced_table(name, placement, &Slices::default(), microbatches),
        }
    }

    /// Returns [`Costs::table`] of slices of micro-batches.
    ///
    /// # Errors
    /// As [`Costs::table`], or a sequence that does not divide into the slices.
    pub fn sliced_table(
        &self,
        name: &str,
        placement: &Placement,
        slices: &Slices,
        microbatches: u32,
    ) -> Result<(CostTable, StepCosts), Error> {
        match self {
            Costs::Analytic(analytic) => {
                let stages = self.stages(name, placement)?;
                let named = |error: CostError| usage(format!("{name}: {error}"));
                let after = analytic.after_ns(placement, &stages, slices).map_err(named)?;
                let steps = StepCosts::new(StepEpilogue::optimizers(placement.devices()), |node| {
                    (after[node.device as usize], 0)
                });
                // The estimate of the step adds the rest of the iteration.
                let table = analytic.table_of(placement, &stages, slices)?;
                Ok((table, StepCosts { is_whole: false, ..steps }))
            }
            _ => {
                let (table, steps) = self.table(name, placement, microbatches)?;
                Ok((table.sliced(placement, slices, microbatches)?, steps))
            }
        }
    }

    /// Returns what each stage on `placement` holds.
    ///
    /// # Errors
    /// Costs without a model's parts, or a model that cannot be split into the stages.
    pub fn stages(&self, name: &str, placement: &Placement) -> Result<Vec<Stage>, Error> {
        match self {
            Costs::Given { costs, .. } => match costs.layers_on(placement).map_err(|error| error.of(name))? {
                Some(layers) => Ok(Stage::of_layers(&layers)),
                None => Err(usage(
                    "`balance` needs layers that it can move, and `costs` do not say how many there are; give `layers` 32, or one number \
                     per stage as the costs were measured",
                )),
            },
            Costs::Measured(Measured { file, layers: None, .. })
                if file.is_staged() && file.stage_layers().is_none() =>
            {
                Err(usage(
                    "`balance` needs the number of layers, which the cost file does not have; write it again with profile `from` and \
                     `layers`",
                ))
            }
            Costs::Measured(measured) => measured.stages(name, placement),
            Costs::Analytic(analytic) => {
                let named = |error: CostError| usage(format!("{name}: {error}"));
                analytic.stages(placement.stages()).map_err(named)
            }
        }
    }

    /// Returns stages with these numbers of layers, which need not be all.
    pub(super) fn first_layers(&self, layers: &[usize]) -> Vec<Stage> {
        self.analytic().map_or_else(|| Stage::of_layers(layers), |own| own.spec.outline().first_layers(layers))
    }

    /// Returns the costs of ops of these stages on `placement`.
    ///
    /// # Errors
    /// As [`Costs::table`].
    pub fn of_stages(&self, placement: &Placement, stages: &[Stage], slices: &Slices) -> Result<CostTable, Error> {
        match self {
            Costs::Given { costs, slow } => {
                let layers: Vec<usize> = stages.iter().map(|stage| stage.layers()).collect();
                let is_split = costs.layers_on(placement)?.is_some();
                let costs = GivenCosts::clone(costs);
                let costs = if is_split { costs.with_layers(Some(layers)) } else { costs };
                Ok(costs.table(placement, 1, slow)?)
            }
            Costs::Measured(Measured { file, size, .. }) => Ok(file.table(placement, stages, *size)?),
            Costs::Analytic(analytic) => Ok(analytic.table_of(placement, stages, slices)?),
        }
    }

    pub fn with_layers(&self, layers: Vec<usize>) -> Costs {
        match self.clone() {
            Costs::Measured(measured) => Costs::Measured(Measured { layers: Some(layers), ..measured }),
            Costs::Analytic(mut analytic) => {
                analytic.layout.layers = Some(layers);
                Costs::Analytic(analytic)
            }
            Costs::Given { costs, slow } => Costs::Given { costs: Box::new(costs.with_layers(Some(layers))), slow },
        }
    }

    /// Returns why pairs cannot run on streams under these costs.
    pub(super) fn without_sub_ops(&self) -> &'static str {
        match self {
            Costs::Given { .. } => {
                "`overlap` streams needs the times of sub-ops, which `costs` does not have; give a cost file whose stages have sub_ops as \
                 `profile`, or a mixture of experts as `model` with `hardware`"
            }
            Costs::Measured(_) => {
                "`overlap` streams needs the times of sub-ops, which the cost file of `profile` does not have; add sub_ops to each of its \
                 stages, or take `overlap` atomic"
            }
            Costs::Analytic(_) => {
                "`overlap` streams hides the communication of experts, and `model` sends no token to experts on other GPUs here; take a mixture \
                 of experts with `ep` above 1, or `overlap` atomic"
            }
        }
    }

    /// Returns the cost file, if these are measured.
    pub fn file(&self) -> Option<&CostFile> {
        match self {
            Costs::Measured(measured) => Some(&measured.file),
            _ => None,
        }
    }

    /// Returns the analytic costs, if these are.
    pub fn analytic(&self) -> Option<&Analytic> {
        match self {
            Costs::Analytic(analytic) => Some(analytic),
            _ => None,
        }
    }

    /// Returns [`Costs::table`] without step ops as a callback, with the caller's error type.
    pub fn of_orders<E: From<Error>>(&self, microbatches: u32) -> impl Fn(&str, &Placement) -> Result<CostTable, E> {
        move |name, placement| Ok(self.table(name, placement, microbatches)?.0)
    }
}

impl Measured {
    /// Returns the costs at the file's own micro-batch size, split evenly; gradients are clipped if the norm was measured.
    pub fn of(file: CostFile) -> Measured {
        Measured {
            size: file.size(),
            clip: file.step.norm_block_ns > 0,
            file: Box::new(file),
            layers: None,
            layout: None,
        }
    }

    fn stages(&self, name: &str, placement: &Placement) -> Result<Vec<Stage>, Error> {
        if let Some(layout) = &self.layout {
            return self.arranged(name, layout, placement);
        }
        if self.file.is_staged() && self.layers.is_none() {
            let count = placement.stages() as usize;
            let layers = match self.file.stage_layers() {
                Some(own) if own.len() == count => Some(own),
                Some(_) => None,
                None => Some(vec![1; count]), // equal shares of the model's depth
            };
            if let Some(layers) = layers {
                return Ok(Stage::of_layers(&layers));
            }
        }
        let stages = self.file.outline().split(placement.stages() as usize, self.layers.as_deref());
        stages.map_err(|e| Error::Split(format!("{name}: {e}")))
    }

    /// Returns the stages of --layout.
    fn arranged(&self, name: &str, layout: &StageLayout, placement: &Placement) -> Result<Vec<Stage>, Error> {
        let refused = |text: String| Err(usage(format!("{name}: {text}")));
        if self.file.is_staged() {
            return refused("`layout`: the cost file has the times of whole stages; leave `layout` out".to_string());
        }
        let (found, stages) = (placement.stages(), layout.stages.len());
        if stages != found as usize {
            return refused(format!(
                "expected the {stages} stages of `layout`, found a schedule with {found}; take one with as many stages per device"
            ));
        }
        let outline = self.file.outline();
        if let Err(error) = layout.check(placement.devices(), outline.layers(), 0) {
            return refused(format!("`layout`: {error}"));
        }
        outline.arranged(layout).map_err(|error| Error::Split(format!("{name}: {error}")))
    }

    fn table(&self, name: &str, placement: &Placement, microbatches: u32) -> Result<(CostTable, StepCosts), Error> {
        let Measured { file, size, clip, .. } = self;
        let stages = self.stages(name, placement)?;
        let table = file.table(placement, &stages, *size)?;
        table.check_clock(placement, microbatches)?;
        if file.is_staged() {
            return Ok((table, StepCosts::default()));
        }
        Ok((table, file.step_costs(placement, &stages, *clip)))
    }
}

/// Rejects a schedule whose order needs costs, if it is itself measured to find them.
pub fn unknown_costs(name: &str, _: &Placement) -> Result<CostTable, Error> {
    Err(usage(format!(
        "costs decide the order of {name}, but none are known before the measurement; calibrate on a schedule with a fixed order, such as 1f1b"
    )))
}
