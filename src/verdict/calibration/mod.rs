//! Predictions corrected by measured steps of the same cluster.
//!
//! Layouts whose steps spend their time alike err alike: ln(measured / predicted) is modelled as a Gaussian process over the shares of
//! a step's parts ([`StepTime`](pipesim_cost::analytic::StepTime)). A layout like a measured one gets nearly its factor, one unlike all of
//! them keeps its prediction. The [`Prior`] says how fast likeness fades; it was chosen on published steps.

mod cells;
mod first;
mod gaussian;
mod layouts;
mod plans;
mod prior;
mod process;
mod runs;

pub use first::{Doubt, FirstTry, first_tries};
pub use layouts::{is_log, logged_run};
pub use plans::{SEARCHED, corrected_plans};
pub use prior::{LeftOutError, Prior};
pub use process::{Corrected, Correction, MeasuredLayout, StepCalibration};
pub use runs::{MEASURED, measured_runs};
