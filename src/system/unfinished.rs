//! Files and folders under way. They are in a temporary folder until they are complete, then get their name by one rename; errors and
//! signals remove them.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PREFIX: &str = ".pipesim-";
const SUFFIX: &str = ".tmp";

/// The temporary folders. Creating, moving or removing anything in them takes this lock.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all temporary folders before a signal ends the process; nothing is begun or finished after this.
pub fn remove_unfinished() {
    let live = live();
    live.iter().for_each(|path| drop(fs::remove_dir_all(path)));
    std::mem::forget(live);
}

/// Removes temporary folders that killed programs left in `folder`, which no other program may be writing to.
pub fn remove_left(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// A temporary folder, removed on drop unless renamed.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// Creates a temporary folder in `folder`.
    pub fn folder(folder: &Path) -> io::Result<Unfinished> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // WebAssembly has one process, without a number.
        let process = if cfg!(unix) { std::process::id() } else { 0 };
        let mut live = live();
        loop {
            let path = folder.join(format!("{PREFIX}{process}-{}{SUFFIX}", COUNT.fetch_add(1, Ordering::Relaxed)));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made?;
                    live.insert(path.clone());
                    return Ok(Unfinished { path });
                }
            }
        }
    }

    /// Returns the temporary folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file in it.
    fn create(&self, name: &str) -> io::Result<File> {
        let _live = live();
        File::create_new(self.path.join(name))
    }

    /// Writes a file in it.
    pub fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create(name)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Renames it to `target`, replacing an empty folder.
    pub fn rename(&self, target: &Path) -> io::Result<()> {
        self.rename_all(&[(self.path.clone(), target.to_path_buf())])
    }

    /// Renames all of these or none, uninterrupted by signals.
    pub fn rename_all(&self, moves: &[(PathBuf, PathBuf)]) -> io::Result<()> {
        let _live = live();
        for (done, (from, to)) in moves.iter().enumerate() {
            if let Err(error) = fs::rename(from, to) {
                moves[..done].iter().rev().for_each(|(from, to)| drop(fs::rename(to, from)));
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut live = live();
        live.remove(&self.path);
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum WriteError {
    /// The bytes of a file could not be produced; the report is not to blame.
    #[error("{0}")]
    Format(String),
    /// The name does not say what to write.
    #[error("{0}")]
    Name(String),
    /// The path cannot be written: what was tried and why it failed.
    #[error("expected to {what}, but could not; choose another place with -o: {cause}")]
    Place { what: String, cause: String },
}

/// Names what was tried in an error of the file system.
pub fn placed<T>(what: &str, path: &Path, result: io::Result<T>) -> Result<T, WriteError> {
    result.map_err(|cause| WriteError::Place { what: format!("{what} {}", path.display()), cause: cause.to_string() })
}

/// Follows links, including those to files that do not exist yet.
pub fn followed(path: &Path) -> PathBuf {
    let linked = || fs::read_link(path).map(|to| parent(path).join(to));
    fs::canonicalize(path).or_else(|_| linked()).unwrap_or_else(|_| path.to_path_buf())
}

/// Returns the folder that contains a path; `.` for a bare name.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks a folder against other programs that write a report to it, and waits for them; `None` if the file system has no locks.
pub fn lock(folder: &Path) -> io::Result<Option<File>> {
    for _ in 0..100 {
        match try_lock(folder) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(100)),
            locked => return locked,
        }
    }
    Err(io::Error::other("another program has been writing to it for 10 s"))
}

/// Locks a folder against other programs; `None` if the file system has no locks.
///
/// # Errors
/// `WouldBlock` if another program has locked it.
pub fn try_lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::open(folder)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::Error(_)) => Ok(None),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(ErrorKind::WouldBlock, "another program is writing to it")),
    }
}

/// A file under way; dropped without [`FileStream::finish`], it leaves nothing behind. Pipes and device files are written directly.
pub struct FileStream {
    /// Name that the file gets at the end.
    pub path: PathBuf,
    target: PathBuf,
    out: BufWriter<File>,
    unfinished: Option<Unfinished>,
}

impl FileStream {
    /// Name of the file in its temporary folder.
    const NAME: &str = "file";

    /// Begins the file that will be called `path`.
    ///
    /// # Errors
    /// No file can be written there.
    pub fn begin(path: &Path) -> Result<FileStream, WriteError> {
        let target = followed(path);
        let begin = || match fs::metadata(&target) {
            Ok(found) if found.is_dir() => Err(io::Error::other("it is a folder")),
            Ok(found) if !found.is_file() => Ok((File::options().write(true).open(&target)?, None)),
            _ => {
                let unfinished = Unfinished::folder(parent(&target))?;
                Ok((unfinished.create(FileStream::NAME)?, Some(unfinished)))
            }
        };
        let (file, unfinished) = placed("write", path, begin())?;
        Ok(FileStream { path: path.to_path_buf(), target, out: BufWriter::new(file), unfinished })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        placed("write", &self.path, self.out.write_all(bytes))
    }

    /// Gives the file its name; an existing one is replaced and keeps its permissions.
    pub fn finish(self) -> Result<(), WriteError> {
        let FileStream { path, target, mut out, unfinished } = self;
        let finish = || -> io::Result<()> {
            out.flush()?;
            let Some(unfinished) = unfinished else { return Ok(()) };
            if let Ok(old) = fs::metadata(&target) {
                out.get_ref().set_permissions(old.permissions())?;
            }
            out.get_ref().sync_all()?;
            unfinished.rename_all(&[(unfinished.path.join(FileStream::NAME), target)])
        };
        placed("write", &path, finish())
    }
}
