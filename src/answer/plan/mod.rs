//! The best layouts of a model on a number of GPUs.
//!
//! [`space`](Space) lists the layouts, each with a lower bound of its iteration time. [`Search`] predicts them in the order of
//! their bounds until no other can be among the best, so the result equals predicting all of them. Work is limited by counts, not
//! by time, and done in batches whose sizes depend on counts alone, so answer and counts are the same on any number of cores.

mod answer;
mod asked;
mod check;
mod flags;
mod group_costs;
mod journal;
mod moved;
mod nearby;
mod orders;
#[cfg(feature = "pictures")]
mod pictures;
mod question;
mod reason;
mod reasons;
mod report;
mod room;
mod search;
mod shapes;
mod space;
mod stacks;

pub use crate::question::{Objective, Risk};
pub use answer::{Plan, Plans, RESOLUTION, mark_ties, plan};
pub use flags::{Names, PlanFlags, Target, flags};
pub use journal::{Journal, LayoutOutcome};
pub use nearby::{Front, NearbyPlan, Stops, Variation, fronts, heat_map, sensitivities};
pub use pipesim_models::layout::Preference;
pub use question::{Fixed, MEMORY_ERROR, Question, RESERVE};
pub use reason::{PlanError, Reason, Remedy};
pub use reasons::why;
pub use report::PlanReport;
pub use search::{FoundLayouts, Limits, Observer, Search, Silent};
pub use shapes::PlanShape;
pub use space::{Candidate, PlanGroup, Space};
