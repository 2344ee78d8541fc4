//! Jobs are read as the frameworks' own parsers read them.

use std::path::{Path, PathBuf};

mod configurations;
mod forms;
mod logs;
mod megatron;
mod mutated;
mod shell;

/// Returns a path in the repository: these tests belong to two packages.
fn in_repository(path: &str) -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.map(|folder| folder.join(path)).find(|path| path.exists()).expect("a path in the repository")
}
