//! Schedules under a layout of a model on hardware: estimate of the step, and lower bounds of memory.

use super::machine::refused;
use super::{Costs, Error, Resolved, Selection};
use crate::cost::analytic::Analytic;
use crate::memory::Memory;
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::{Programs, Schedule};
use crate::sim;
use crate::step_estimate::StepEstimate;

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
    /// Returns the estimate of the step, if its costs are those of `analytic`.
    ///
    /// # Errors
    /// The machine cannot run the schedule.
    pub fn estimate(&self, analytic: &Analytic) -> Result<StepEstimate, Error> {
        if self.graph.schedule().has_copies() {
            let named = |error| refused(error, self.graph.schedule());
            return Ok(StepEstimate::new(&analytic.as_resolved(self), &self.predict().map_err(named)?)?);
        }
        let step = sim::typical_step_on(&self.graph, &self.costs, self.setup.machine.as_ref())
            .map_err(|error| refused(error, self.graph.schedule()))?;
        Ok(StepEstimate::of(&analytic.as_resolved(self), self.graph.schedule(), &step.devices)?)
    }
}

impl Analytic {
    /// Returns the selection for this layout, without a limit on memory.
    pub fn selection(&self) -> Selection {
        let chunks = (self.layout.chunks > 1).then_some(self.layout.chunks);
        let fsdp = self.layout.fsdp.clone();
        Selection { chunks, fsdp, ..Selection::new(self.layout.pp, self.layout.micro) }
    }

    /// Returns the schedule `schedule` under this layout, with its costs.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn resolve(&self, schedule: &str) -> Result<Resolved, Error> {
        self.selection().resolve(schedule, &Costs::Analytic(Box::new(self.clone())))
    }

    /// Returns the estimate under the schedule `schedule`.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn estimate(&self, schedule: &str) -> Result<StepEstimate, Error> {
        self.resolve(schedule)?.estimate(self)
    }

    /// Returns the costs with this memory capacity per device.
    pub fn with_memory(&self, bytes: u64) -> Analytic {
        let mut analytic = self.clone();
        analytic.machine.hardware.memory_gib = bytes as f64 / f64::from(1 << 30);
        analytic
    }

    /// Returns the activation units that fit on every device, with one stage per device; `None` if the layout cannot be split
    /// that way or less than one fits.
    pub fn room(&self) -> Option<f64> {
        let (stages, bytes) = (self.stages(self.layout.pp).ok()?, self.machine.hardware.memory_bytes());
        let memory_model = self.memory_model();
        let room = stages.iter().map(|stage| memory_model.room(bytes, stage)).fold(f64::INFINITY, f64::min);
        (room >= 1.0).then_some(room)
    }

    /// Returns the costs with the layers that `resolved` found.
    pub fn as_resolved(&self, resolved: &Resolved) -> Analytic {
        let mut analytic = self.clone();
        if let Some(found) = &resolved.balance {
            analytic.layout.layers = Some(found.layers.clone());
        }
        analytic
    }

    /// Returns a lower bound of the memory of any order on `placement`: that of one micro-batch at a time. `None` if the model
    /// cannot be split into its stages.
    pub fn least_memory(&self, placement: &Placement) -> Option<Memory> {
        let one = |device: u32| {
            let mut stages: Vec<u32> =
                placement.held_by(device).iter().filter(|c| c.direction == 0).map(|c| c.stage).collect();
            stages.sort_unstable();
            let forward = stages.iter().map(|&stage| Op::new(Kind::F, stage, 0));
            forward.chain(stages.iter().rev().map(|&stage| Op::new(Kind::B, stage, 0))).collect::<Vec<_>>()
        };
        let programs = Programs::from_iter((0..placement.devices()).map(one));
        let schedule = Schedule::new("one micro-batch", placement.clone(), 1, programs);
        let stages = self.stages(placement.stages()).ok()?;
        Some(self.memory_model().memory(self.machine.hardware.memory_bytes(), &stages, &schedule))
    }
}
