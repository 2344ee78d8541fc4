//! The command that starts a training program.

use crate::error::Missing;
use crate::setting::Settings;
use std::collections::BTreeMap;

/// The command that starts a training program, after expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The program: a script (`pretrain_gpt.py`), a module (`torchtitan.train`) or a command with its verb (`megatron pt`).
    pub program: String,
    /// Its options; arguments without a name are not here.
    pub settings: Settings,
    /// Arguments without a name, such as `model.seq_length=4096` of Megatron-Bridge.
    pub words: Vec<String>,
    /// World size: processes per node times nodes, as the launcher is told; `None` if the command does not say.
    pub world: Option<u32>,
    /// Environment variables that the script sets.
    pub environment: BTreeMap<String, String>,
    /// Other commands that start a training: those after the first.
    pub others: usize,
    /// Files that the script reads and that are not there.
    pub absent: Vec<String>,
    /// What the launcher's own options take from elsewhere.
    pub missing: Vec<Missing>,
}
