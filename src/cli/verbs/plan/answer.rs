//! What is shown of a plan's answer.

use crate::plan::{Names, Plans, Search};

/// An answer with everything that is shown of it.
pub struct Answer<'a> {
    pub search: &'a Search<'a>,
    pub plans: &'a Plans,
    pub names: Names,
    pub why: Option<[String; 2]>,
}
