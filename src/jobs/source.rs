//! What a job is read from.

use std::collections::BTreeMap;

/// A file of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path, as it was given.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What a job is read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The job's file, then further files that it needs.
    pub files: Vec<SourceFile>,
    /// Environment variables that it was started with.
    pub environment: BTreeMap<String, String>,
    /// Arguments that it was started with: positional parameters of a script, or overrides of a configuration.
    pub arguments: Vec<String>,
    /// Model whose sizes are taken if the job has none: a built-in one, given beside the files.
    pub model: Option<String>,
    /// Whether the files that are not there were looked for, so that a job does without them where it can.
    pub has_looked: bool,
    /// World size, if it is given beside the files.
    pub gpus: Option<u32>,
}

impl Sources {
    /// Returns the further file that a job calls `path`: the one with the longest end of the path in common, and at least its last part.
    pub fn find(&self, path: &str) -> Option<&SourceFile> {
        let parts = |path: &str| path.split('/').rev().map(str::to_string).collect::<Vec<_>>();
        let wanted = parts(path);
        let common = |file: &&SourceFile| parts(&file.name).iter().zip(&wanted).take_while(|(a, b)| a == b).count();
        self.files.iter().filter(|file| common(file) > 0).max_by_key(common)
    }
}
