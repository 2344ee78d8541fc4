//! Where costs come from, and the table that they make for one schedule.

use super::Error;
use crate::anatomy::Stage;
use crate::cost::analytic::Analytic;
use crate::cost::{CostError, CostFile, CostTable, GivenCosts, Slow, StepCosts};
use crate::ending::Ending;
use crate::memory::Ledger;
use crate::placement::Placement;

/// A source of costs.
#[derive(Clone, Debug)]
pub enum Costs {
    /// Costs of a device's whole share of layers, in units.
    Given {
        /// The costs.
        costs: GivenCosts,
        /// Devices that run slower than that.
        slow: Slow,
    },
    /// Costs that were measured, in ms.
    Measured(Measured),
    /// Costs from first principles, in ms.
    Analytic(Box<Analytic>),
}

impl Default for Costs {
    /// Unit costs.
    fn default() -> Costs {
        Costs::given(GivenCosts::default())
    }
}

/// What decides the order of ops that float, in the caller's own errors: the costs on a placement, for the schedule of a name.
pub type Pricing<'a, E> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, E>;

/// A cost file, and the model that it is asked about.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The file.
    pub file: CostFile,
    /// Blocks of each stage, in model order; evenly where none are given.
    pub layers: Option<Vec<usize>>,
    /// Sequences in a micro-batch, and tokens in a sequence.
    pub size: (u32, u32),
    /// Whether gradients are clipped.
    pub clip: bool,
}

impl Costs {
    /// The same costs on every device.
    pub fn given(costs: GivenCosts) -> Costs {
        Costs::Given { costs, slow: Slow::new() }
    }

    /// The costs of a file at its own micro-batch size.
    pub fn measured(file: CostFile, layers: Option<Vec<usize>>) -> Costs {
        Costs::Measured(Measured { layers, ..Measured::of(file) })
    }

    /// The least and the most sequences of micro-batches that were measured.
    pub fn measured_sequences(&self) -> Option<(u32, u32)> {
        let Costs::Measured(Measured { file, size, .. }) = self else { return None };
        let sequences = || file.parts.iter().filter(|part| part.tokens == size.1).map(|part| part.sequences);
        Some((sequences().min()?, sequences().max()?))
    }

    /// The same for micro-batches of so many sequences, where they were measured.
    pub fn with_sequences(self, sequences: u32) -> Costs {
        match self {
            Costs::Measured(Measured { file, layers, size, clip }) => Costs::Measured(Measured {
                file: file.at_sequences(sequences),
                layers,
                size: (sequences, size.1),
                clip,
            }),
            other => other,
        }
    }

    /// What ops and step ops of the schedule called `name` cost on `placement`.
    ///
    /// # Errors
    /// A model that does not split into so many stages, a slow device that does not exist, a part that was not measured, costs
    /// that overflow the clock.
    pub fn table(&self, name: &str, placement: &Placement, microbatches: u32) -> Result<(CostTable, StepCosts), Error> {
        match self {
            Costs::Given { costs, slow } => {
                let named = |error: CostError| CostError(format!("{name}: {error}"));
                let table = costs.table(placement, microbatches, slow).map_err(named)?;
                Ok((table, StepCosts::default()))
            }
            Costs::Measured(measured) => measured.table(name, placement, microbatches),
            Costs::Analytic(analytic) => {
                let stages = self.stages(name, placement)?;
                let after = analytic.after_ns(placement, &stages);
                let steps =
                    StepCosts::new(Ending::optimizers(placement.devices()), |node| (after[node.device as usize], 0));
                // An iteration has more to it: the forecast says what.
                Ok((analytic.table(placement, &stages)?, StepCosts { is_whole: false, ..steps }))
            }
        }
    }

    /// What each stage on `placement` holds.
    ///
    /// # Errors
    /// Costs without a model's parts, or a model that does not split so.
    pub fn stages(&self, name: &str, placement: &Placement) -> Result<Vec<Stage>, Error> {
        match self {
            Costs::Given { .. } => Err(Error::Usage(
                "--balance splits a model's layers, and --costs are those of whole devices; give --profile or --model"
                    .to_string(),
            )),
            Costs::Measured(measured) => measured.stages(name, placement),
            Costs::Analytic(analytic) => {
                let named = |error: CostError| Error::Usage(format!("{name}: {error}"));
                analytic.stages(placement.stages()).map_err(named)
            }
        }
    }

    /// What ops of these stages cost on `placement`.
    ///
    /// # Errors
    /// As [`Costs::table`].
    pub fn of_stages(&self, placement: &Placement, stages: &[Stage]) -> Result<CostTable, Error> {
        match self {
            Costs::Given { costs, slow } => Ok(costs.table(placement, 1, slow)?),
            Costs::Measured(Measured { file, size, .. }) => Ok(file.table(placement, stages, *size)?),
            Costs::Analytic(analytic) => Ok(analytic.table(placement, stages)?),
        }
    }

    /// The same costs where stages have these layers.
    pub fn with_layers(&self, layers: Vec<usize>) -> Costs {
        match self.clone() {
            Costs::Measured(measured) => Costs::Measured(Measured { layers: Some(layers), ..measured }),
            Costs::Analytic(mut analytic) => {
                analytic.layout.layers = Some(layers);
                Costs::Analytic(analytic)
            }
            given => given,
        }
    }

    /// The book of what memory devices take, and the bytes that each has, where that is known.
    pub fn ledger(&self) -> Option<(Ledger, u64)> {
        match self {
            Costs::Analytic(analytic) => Some((analytic.ledger(), analytic.machine.hardware.memory_bytes())),
            _ => None,
        }
    }

    /// The model on hardware that they are of, if they are.
    pub fn analytic(&self) -> Option<&Analytic> {
        match self {
            Costs::Analytic(analytic) => Some(analytic),
            _ => None,
        }
    }

    /// The costs that decide orders: [`Costs::table`] without step ops, in the caller's own errors.
    pub fn of_orders<E: From<Error>>(&self, microbatches: u32) -> impl Fn(&str, &Placement) -> Result<CostTable, E> {
        move |name, placement| Ok(self.table(name, placement, microbatches)?.0)
    }
}

impl Measured {
    /// A file at its own micro-batch size, its blocks split evenly; gradients are clipped where their norm was measured.
    pub fn of(file: CostFile) -> Measured {
        Measured { size: file.size(), clip: file.step.norm_block_ns > 0, file, layers: None }
    }

    fn stages(&self, name: &str, placement: &Placement) -> Result<Vec<Stage>, Error> {
        let stages = self.file.outline().split(placement.stages() as usize, self.layers.as_deref());
        stages.map_err(|e| Error::Split(format!("{name}: {e}")))
    }

    fn table(&self, name: &str, placement: &Placement, microbatches: u32) -> Result<(CostTable, StepCosts), Error> {
        let Measured { file, size, clip, .. } = self;
        let stages = self.stages(name, placement)?;
        let table = file.table(placement, &stages, *size)?;
        table.check_clock(placement, microbatches)?;
        Ok((table, file.step_costs(placement, &stages, *clip)))
    }
}

/// Costs for a schedule that is itself to be measured for costs.
pub fn unknown_costs(name: &str, _: &Placement) -> Result<CostTable, Error> {
    Err(Error::Usage(format!(
        "costs decide the order of {name}, but none are known before it is measured; calibrate on a schedule of fixed order, such as 1f1b"
    )))
}
