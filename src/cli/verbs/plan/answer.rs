//! The data of a plan's answer for tables and files.

use pipesim_answer::plan::{Names, Plans, Search};

/// An answer with everything that is shown.
pub struct Answer<'a> {
    pub search: &'a Search<'a>,
    pub plans: &'a Plans,
    pub names: Names,
    pub why: Option<[String; 2]>,
}
