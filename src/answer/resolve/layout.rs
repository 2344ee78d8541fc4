//! Schedules under a layout of a model on hardware: estimate of the step, and lower bounds of memory.

use super::machine::refused;
use super::{Costs, Error, Resolved, Selection};
use crate::step_estimate::StepEstimate;
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::schedule::Overlap;
use pipesim_sim::Prediction;

impl Selection {
    /// Returns the selection under the layout of `analytic`: its devices, micro-batches and memory.
    pub fn under(&self, analytic: &Analytic) -> Selection {
        let (devices, microbatches) = (analytic.layout.pp, analytic.layout.micro);
        let fsdp = analytic.layout.fsdp.clone();
        Selection { devices, microbatches, room: analytic.room(), fsdp, ..self.clone() }
    }

    /// Returns the estimate that `predict` prints for the schedule `name` under the layout of `analytic`.
    ///
    /// # Errors
    /// As [`Selection::resolve`], or the machine cannot run the schedule.
    pub fn estimate(&self, name: &str, analytic: &Analytic) -> Result<StepEstimate, Error> {
        self.under(analytic).resolve(name, &Costs::Analytic(Box::new(analytic.clone())))?.estimate(analytic)
    }
}

impl Resolved {
    /// Returns the estimate of the step, if its costs come from `analytic`.
    ///
    /// # Errors
    /// The machine cannot run the schedule.
    pub fn estimate(&self, analytic: &Analytic) -> Result<StepEstimate, Error> {
        if self.graph.schedule().has_copies() {
            let named = |error| refused(error, self.graph.schedule());
            return self.estimated(analytic, &self.predict().map_err(named)?);
        }
        Ok(StepEstimate::of(&analytic.as_resolved(self), self.graph.schedule(), &self.step()?.devices)?)
    }

    /// Returns the estimate of the step from its prediction.
    ///
    /// # Errors
    /// The layout cannot be split into the schedule's stages.
    pub fn estimated(&self, analytic: &Analytic, prediction: &Prediction<'_>) -> Result<StepEstimate, Error> {
        Ok(StepEstimate::new(&analytic.as_resolved(self), prediction)?)
    }
}

/// Analytic costs as a question to the schedules.
pub trait Estimate {
    /// Returns the selection for this layout, without a limit on memory.
    fn selection(&self) -> Selection;

    /// Returns the schedule `schedule` under this layout, with its costs.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    fn resolve(&self, schedule: &str) -> Result<Resolved, Error>;

    /// Returns the estimate under the schedule `schedule`.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    fn estimate(&self, schedule: &str) -> Result<StepEstimate, Error>;

    /// Returns the costs with the layers that `resolved` found.
    fn as_resolved(&self, resolved: &Resolved) -> Self;
}

impl Estimate for Analytic {
    fn selection(&self) -> Selection {
        let chunks = (self.layout.chunks > 1).then_some(self.layout.chunks);
        let fsdp = self.layout.fsdp.clone();
        let overlap = if self.layout.moe_overlap { Overlap::Streams } else { Overlap::default() };
        Selection { chunks, fsdp, overlap, ..Selection::new(self.layout.pp, self.layout.micro) }
    }

    fn resolve(&self, schedule: &str) -> Result<Resolved, Error> {
        self.selection().resolve(schedule, &Costs::Analytic(Box::new(self.clone())))
    }

    fn estimate(&self, schedule: &str) -> Result<StepEstimate, Error> {
        self.resolve(schedule)?.estimate(self)
    }

    fn as_resolved(&self, resolved: &Resolved) -> Analytic {
        let mut analytic = self.clone();
        if let Some(found) = &resolved.balance {
            analytic.layout.layers = Some(found.layers.clone());
        }
        analytic
    }
}
