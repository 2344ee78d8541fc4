//! Files and folders that are being written: under names of their own beside their place, so that a reader sees the old one or
//! the new one and nothing between; gone where writing fails or the program is ended.
//!
//! A file has no name at all while it is written where the file system can do that. What has one is locked as long as its
//! program lives: what a killed one left behind is known by its lock, which is free, and removed by the next that writes there.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PREFIX: &str = ".pipesim-";
const SUFFIX: &str = ".tmp";

/// The names that are unfinished. Whatever makes, moves or removes one holds this.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what is unfinished, for a thread that ends the process on a signal: nothing is begun or finished after this.
pub fn remove_unfinished() {
    let live = live();
    live.iter().for_each(|path| remove(path));
    std::mem::forget(live);
}

/// Removes a file or a folder with what is in it; what it cannot remove stays.
fn remove(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let _ = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// A name that is unfinished, locked; removed when dropped, unless it was kept.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    /// A file in `folder`.
    pub(super) fn file(folder: &Path) -> io::Result<Unfinished> {
        Unfinished::new(folder, |path| fs::OpenOptions::new().write(true).create_new(true).open(path))
    }

    /// A folder in `folder`.
    pub(super) fn folder(folder: &Path) -> io::Result<Unfinished> {
        Unfinished::new(folder, |path| fs::create_dir(path).and_then(|()| File::open(path)))
    }

    fn new(folder: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<Unfinished> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        sweep(folder);
        let mut failure = io::Error::other("names for unfinished files are taken");
        for _ in 0..100 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{PREFIX}{}-{count}{SUFFIX}", std::process::id()));
            let mut live = live();
            let file = match make(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // another program has swept it away before it was opened
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
                    failure = error;
                    continue;
                }
                made => made?,
            };
            live.insert(path.clone());
            drop(live);
            let made = Unfinished { path, file };
            // Another program may have swept it away before it was locked; where locks cannot be had, nobody sweeps.
            if !matches!(made.file.try_lock(), Err(TryLockError::WouldBlock)) && is_at(&made.file, &made.path) {
                return Ok(made);
            }
        }
        Err(failure)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of the folder that this is.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let live = live();
        let mut file = File::create_new(self.path.join(name))?;
        drop(live);
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Gives it the name `target`, in place of what has it: an older file, or an empty folder.
    pub(super) fn rename(&self, target: &Path) -> io::Result<()> {
        let mut live = live();
        fs::rename(&self.path, target)?;
        live.remove(&self.path);
        Ok(())
    }

    /// Gives it the name `target` and has the folder that was there in its stead, which is removed with it: but for what is
    /// not `owned`, which goes on into the new one.
    pub(super) fn exchange(&self, target: &Path, owned: impl Fn(&str) -> bool) -> io::Result<()> {
        let _live = live();
        rustix::fs::renameat_with(CWD, &self.path, CWD, target, RenameFlags::EXCHANGE)?;
        for entry in fs::read_dir(&self.path)?.flatten().filter(|entry| !owned(&entry.file_name().to_string_lossy())) {
            fs::rename(entry.path(), target.join(entry.file_name()))?;
        }
        Ok(())
    }

    /// Renames all of these, or none, before a signal ends the program.
    pub(super) fn rename_all(&self, moves: &[(PathBuf, PathBuf)]) -> io::Result<()> {
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

/// The folder that a path is in.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether `path` is the name of this very file or folder.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: &fs::Metadata| (found.dev(), found.ino());
    matches!((&file.metadata(), &fs::symlink_metadata(path)), (Ok(a), Ok(b)) if id(a) == id(b))
}

/// Removes what programs that were killed left in `folder`.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        if !ours || !entry.file_type().is_ok_and(|found| found.is_dir() || found.is_file()) {
            continue;
        }
        let path = entry.path();
        if File::open(&path).is_ok_and(|left| left.try_lock().is_ok() && is_at(&left, &path)) {
            remove(&path);
        }
    }
}

/// Locks a folder against other programs that write a report to it, until what is returned is dropped; `None` where the file
/// system has no locks.
pub(super) fn lock(folder: &Path) -> io::Result<Option<File>> {
    for _ in 0..100 {
        let file = File::open(folder)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, folder) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    Err(io::Error::other("another program has been writing to it for 10 s"))
}

/// A file in `folder` that has no name.
fn nameless(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666))?);
    let _ = file.try_lock(); // for the instant in which it has a name that is not yet its own
    Ok(file)
}

/// Fails where `folder` takes no new file; leaves nothing behind.
pub(super) fn probe(folder: &Path) -> io::Result<()> {
    if nameless(folder).is_err() {
        Unfinished::file(folder)?;
    }
    Ok(())
}

/// Writes `bytes` to the file `target`, with the permissions of the one that is there.
pub(super) fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = parent(target);
    let permissions = fs::metadata(target).map(|old| old.permissions());
    let fill = |file: &File| {
        (&*file).write_all(bytes)?;
        permissions.iter().try_for_each(|old| file.set_permissions(old.clone()))?;
        file.sync_all()
    };
    // An error here is met again below, but for those of file systems that know only files with names.
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

/// Gives a nameless file the name `target`.
fn link(file: &File, target: &Path) -> io::Result<()> {
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &Path| rustix::fs::linkat(CWD, &nameless, CWD, to, AtFlags::SYMLINK_FOLLOW);
    if fs::symlink_metadata(target).is_err() && link(target).is_ok() {
        return Ok(());
    }
    // Only a name can take another's place: one that stands for an instant.
    let made = |path: &Path| link(path).map_err(io::Error::from).and_then(|()| file.try_clone());
    Unfinished::new(parent(target), made)?.rename(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_program_left_is_swept_and_what_a_living_one_writes_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let dead = folder.path().join(".pipesim-1-0.tmp");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("index.html"), "half").unwrap();
        fs::write(folder.path().join(".pipesim-1-1.tmp"), "half").unwrap();
        fs::write(folder.path().join(".pipesim-notes"), "mine").unwrap();
        let alive = Unfinished::folder(folder.path()).unwrap();
        let other = Unfinished::file(folder.path()).unwrap();
        assert!(alive.path().is_dir() && other.path().is_file() && !dead.exists());
        drop((alive, other));
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".pipesim-notes"]);
    }
}
