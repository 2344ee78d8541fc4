//! Predictions against what others measured and published: the rows of a table, their predictions, errors and a page.

mod errors;
pub mod fit;
mod fitted;
pub mod layouts;
pub mod left_out;
pub mod originals;
mod page;
mod prediction;
pub mod regret;
mod row;

pub use errors::{Errors, errors, is_narrow, pairs, quantile, rule_of_thumb};
pub use fitted::{FITTED, Fitted};
pub use page::write;
pub use prediction::{Orders, RowPrediction, orders, predict, step};
pub use row::{Model, Row, read};
