//! Temporary files and folders. They become visible under their real name only when complete, and are removed on errors
//! and signals.
//!
//! A file has no name while it is written if the file system supports that. Named ones are locked while their program
//! lives: the leftovers of a killed program have no lock, and the next writer removes them.

#[cfg(unix)]
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::fs::MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PREFIX: &str = ".pipesim-";
const SUFFIX: &str = ".tmp";

/// Temporary names. Creating, moving or removing one takes this lock.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all temporary files before a signal ends the process; nothing is begun or finished after this.
pub fn remove_unfinished() {
    let live = live();
    live.iter().for_each(|path| remove(path));
    std::mem::forget(live);
}

/// Removes a file or folder as far as possible.
fn remove(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let _ = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// A locked temporary file or folder, removed on drop unless renamed.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    pub fn file(folder: &Path) -> io::Result<Unfinished> {
        Unfinished::new(folder, |path| fs::OpenOptions::new().write(true).create_new(true).open(path))
    }

    pub fn folder(folder: &Path) -> io::Result<Unfinished> {
        Unfinished::new(folder, |path| fs::create_dir(path).and_then(|()| File::open(path)))
    }

    fn new(folder: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<Unfinished> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        sweep(folder);
        let mut failure = io::Error::other("names for unfinished files are taken");
        for _ in 0..100 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{PREFIX}{}-{count}{SUFFIX}", id()));
            let mut live = live();
            let file = match make(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // another program removed it before it was opened
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
                    failure = error;
                    continue;
                }
                made => made?,
            };
            live.insert(path.clone());
            drop(live);
            let made = Unfinished { path, file };
            // Another program may have removed it before it was locked. Without locks nobody removes anything.
            if !matches!(made.file.try_lock(), Err(TryLockError::WouldBlock)) && is_at(&made.file, &made.path) {
                return Ok(made);
            }
        }
        Err(failure)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open file, to write it.
    pub fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    pub fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let live = live();
        let mut file = File::create_new(self.path.join(name))?;
        drop(live);
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Creates a folder in it, uninterrupted by signals: else it could appear while all is being removed.
    pub fn subfolder(&self, name: &str) -> io::Result<PathBuf> {
        let _live = live();
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Renames it to `target`, replacing a file or an empty folder.
    pub fn rename(&self, target: &Path) -> io::Result<()> {
        let mut live = live();
        fs::rename(&self.path, target)?;
        live.remove(&self.path);
        Ok(())
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
        if live.remove(&self.path) {
            remove(&self.path);
        }
    }
}

pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The number of this process; WebAssembly has only one.
fn id() -> u32 {
    if cfg!(unix) { std::process::id() } else { 0 }
}

/// Whether `path` still names this file or folder.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: &fs::Metadata| (found.dev(), found.ino());
    matches!((&file.metadata(), &fs::symlink_metadata(path)), (Ok(a), Ok(b)) if id(a) == id(b))
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Removes leftovers of killed programs from `folder`.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        if !ours || !entry.file_type().is_ok_and(|found| found.is_dir() || found.is_file()) {
            continue;
        }
        let path = entry.path();
        // Locked until it is removed: its program may just have made it, and be about to lock it.
        if let Ok(left) = File::open(&path)
            && left.try_lock().is_ok()
            && is_at(&left, &path)
        {
            remove(&path);
        }
    }
}

/// Locks a folder against other programs that write a report to it, and waits for them; `None` if the file system has no locks.
pub fn lock(folder: &Path) -> io::Result<Option<File>> {
    for _ in 0..100 {
        match try_lock(folder) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(100)),
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
        Ok(()) if is_at(&file, folder) => Ok(Some(file)),
        Err(TryLockError::Error(_)) => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::WouldBlock, "another program is writing to it")),
    }
}

/// Creates a file in `folder` without a name.
#[cfg(unix)]
fn nameless(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666))?);
    let _ = file.try_lock(); // for the instant in which it has a name that is not yet its own
    Ok(file)
}

/// Fails if no file can be created in `folder`; leaves nothing behind.
pub fn probe(folder: &Path) -> io::Result<()> {
    if nameless(folder).is_err() {
        Unfinished::file(folder)?;
    }
    Ok(())
}

/// Writes `bytes` to the file `target`, keeping the permissions of an existing one.
pub fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = parent(target);
    let permissions = fs::metadata(target).map(|old| old.permissions());
    let fill = |file: &File| {
        (&*file).write_all(bytes)?;
        permissions.iter().try_for_each(|old| file.set_permissions(old.clone()))?;
        file.sync_all()
    };
    // File systems without nameless files fail here; other errors are met again below.
    if let Ok(file) = nameless(folder)
        && fill(&file).is_ok()
        && let Ok(()) = link(&file, target)
    {
        return Ok(());
    }
    let file = Unfinished::file(folder)?;
    fill(&file.file)?;
    file.rename(target)
}

#[cfg(not(unix))]
fn nameless(_: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a nameless file the name `target`.
#[cfg(unix)]
fn link(file: &File, target: &Path) -> io::Result<()> {
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &Path| rustix::fs::linkat(CWD, &nameless, CWD, to, AtFlags::SYMLINK_FOLLOW);
    if fs::symlink_metadata(target).is_err() && link(target).is_ok() {
        return Ok(());
    }
    // Only a name can replace another one: it gets a temporary one first.
    let made = |path: &Path| link(path).map_err(io::Error::from).and_then(|()| file.try_clone());
    Unfinished::new(parent(target), made)?.rename(target)
}

#[cfg(not(unix))]
fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
