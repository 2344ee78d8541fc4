//! Predictions held against what others measured and published.

mod errors;
mod held;
mod page;
mod row;

pub use errors::{Errors, by, errors, is_narrow, pairs, rule_of_thumb};
pub use held::{Held, Orders, hold, orders, step};
pub use page::{html, json, markdown, scatter};
pub use row::{Model, Row, read};
