//! A program that a script would run.

use std::collections::BTreeMap;

/// A word of a command, after expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Its text; what is set elsewhere is empty.
    pub text: String,
    /// Variables, positional parameters (`1`, `2`, ...) and command substitutions (`$(nvidia-smi -L)`) that it depends on and that the
    /// job does not say.
    pub unresolved: Vec<String>,
    /// Where it stands, as `FILE:LINE`.
    pub place: String,
}

/// A program that a script would run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its name and arguments.
    pub words: Vec<Word>,
    /// Exported variables, and those that are set before the command.
    pub environment: BTreeMap<String, String>,
    /// Where it stands, as `FILE:LINE`.
    pub place: String,
    /// Launchers in front of the shell that runs it: `srun -l` of `srun -l bash -c '...'`.
    pub within: Vec<Word>,
}
