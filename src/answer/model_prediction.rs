//! A model on hardware: the time and memory of its training step under one schedule.

use crate::explanation::StepExplanation;
use crate::resolve::{Costs, Error, Resolved, Selection, usage};
use crate::step_estimate::StepEstimate;
use crate::suggestion::FitRequest;
use pipesim_cost::analytic::{Analytic, Platform};
use pipesim_models::hardware;
use pipesim_models::layout::ParallelConfig;
use pipesim_models::model_spec;

/// The predicted training step of a model on hardware.
#[derive(Debug)]
pub struct ModelPrediction {
    /// Iteration time, throughput, MFU and memory; and where it does not fit, the smallest change that makes it fit.
    pub estimate: StepEstimate,
    /// The task graph with its costs, to simulate, check or draw.
    pub resolved: Resolved,
    /// The costs of the model's parts on the hardware.
    pub costs: Analytic,
    selection: Selection,
    schedule: String,
}

impl ModelPrediction {
    /// Predicts the step of the schedule called `schedule` with these costs. Ignores the numbers of devices and micro-batches of `selection`:
    /// the layout sets them.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn new(costs: Analytic, schedule: &str, selection: &Selection) -> Result<ModelPrediction, Error> {
        let selection = selection.under(&costs);
        let resolved = selection.resolve(schedule, &Costs::Analytic(Box::new(costs.clone())))?;
        let request = FitRequest { name: schedule, selection: &selection, analytic: &costs, micro_given: true };
        let estimate = request.checked(&resolved.graph, resolved.estimate(&costs)?);
        Ok(ModelPrediction { estimate, resolved, costs, selection, schedule: schedule.to_string() })
    }

    /// Returns whether every device's memory suffices.
    pub fn fits(&self) -> bool {
        self.estimate.memory.fits
    }

    /// Explains the step: idle time by cause, the critical path, and changes that would shorten it.
    ///
    /// # Errors
    /// As [`Selection::explain`].
    pub fn explain(&self) -> Result<StepExplanation, Error> {
        self.selection.explain(&self.schedule, &Costs::Analytic(Box::new(self.costs.clone())))
    }
}

/// Returns the costs of the model called `model` (see `pipesim hardware`) on the GPUs called `hardware` under `layout`.
///
/// # Errors
/// No such model or hardware, or a layout that does not suit them.
pub fn model_costs(model: &str, hardware: &str, layout: ParallelConfig) -> Result<Analytic, Error> {
    let sizes = model_spec::transformer_named(model).ok_or_else(|| usage(model_spec::unknown(model)))?;
    let machine = Platform {
        hardware: hardware::hardware(hardware).map_err(usage)?,
        stack: hardware::stack(&layout.stack).map_err(usage)?,
    };
    Ok(Analytic::new(sizes, machine, layout)?)
}
