//! Folders that one program at a time writes to, from its start to its end.

use crate::report::WriteError;
use crate::report::file::folder::{MissingFolders, resolved};
use crate::report::file::unfinished;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A folder that is locked until this is dropped. It is made if it is missing, and removed if nothing was written to it.
#[derive(Debug)]
pub struct ClaimedFolder {
    path: PathBuf,
    // Dropped first: no other program can lock the folder before it is removed.
    _made: MissingFolders,
    _lock: Option<File>,
}

impl ClaimedFolder {
    /// Claims the folder at `path`.
    ///
    /// # Errors
    /// It cannot be made or written to, or another program has claimed it.
    pub fn new(path: &Path) -> Result<ClaimedFolder, WriteError> {
        claim(path).map_err(|cause| WriteError::Place {
            what: format!("write to the folder {}", path.display()),
            cause: cause.to_string(),
        })
    }

    /// The folder, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn claim(path: &Path) -> io::Result<ClaimedFolder> {
    let target = resolved(path);
    let made = MissingFolders::make(&target)?;
    if !fs::metadata(&target)?.is_dir() {
        return Err(io::Error::other("it is a file"));
    }
    let lock = unfinished::try_lock(&target)?;
    unfinished::probe(&target)?;
    Ok(ClaimedFolder { path: path.to_path_buf(), _made: made, _lock: lock })
}
