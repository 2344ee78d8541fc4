//! Predictions against what others measured and published: the rows of a table, their predictions, errors and a page.

pub mod calibration;
mod errors;
pub mod fit;
mod fitted;
pub mod layouts;
pub mod left_out;
mod matched;
mod mixture;
pub mod originals;
mod page;
mod prediction;
pub mod regions;
pub mod regret;
mod row;

pub use errors::{Errors, errors, is_narrow, pairs, quantile, rule_of_thumb};
pub use fitted::{FITTED, Fitted, MIXTURE_FITTED};
pub use matched::{MatchedPair, matched};
pub use mixture::{MixtureFields, Recomputed};
pub use page::write;
pub use prediction::{Orders, RowPrediction, orders, predict, step};
pub use row::{Model, Row, read};
