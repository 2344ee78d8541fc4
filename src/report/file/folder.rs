//! Files and report folders, written whole or not at all.

use crate::file::csv::{memory_csv, source_name};
use crate::file::json::{figures, file_names};
use crate::{Output, OutputKind, Report, WriteError, trace_gz};
use pipesim_system::unfinished::{self, FileStream, Unfinished, followed, parent, placed};
#[cfg(unix)]
use rustix::fs::Access;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// A file of a report: name and content.
pub type NamedBytes = (String, Vec<u8>);

impl Report {
    /// Writes the report: a file if the ending is known (`.svg`, `.png`, `.html`, ..), a folder if the name has no
    /// ending or ends in `/`. Returns the files' paths.
    ///
    /// # Errors
    /// The ending is unknown or the path cannot be written; nothing is left behind.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Vec<PathBuf>, WriteError> {
        let place = Output::named(path.as_ref())?;
        if let OutputKind::Stdout = place.shape {
            return Err(WriteError::Name(
                "expected the name of a file or folder, found '-'; print the result of svg() instead".into(),
            ));
        }
        place.write(self, &[])
    }
}

impl Output {
    /// Fails before the work if the path cannot be written. Leaves nothing behind.
    pub fn try_out(&self) -> Result<(), WriteError> {
        match self.shape {
            OutputKind::Stdout => Ok(()),
            OutputKind::File(..) => try_file(&self.path),
            OutputKind::Folder => placed("make the folder", &self.path, beside_others(|| try_folder(&self.path))),
        }
    }

    /// Writes the report; `more` are further files of a folder. Returns the files' paths.
    pub fn write(&self, report: &Report, more: &[NamedBytes]) -> Result<Vec<PathBuf>, WriteError> {
        match self.shape {
            OutputKind::Stdout => Ok(Vec::new()),
            OutputKind::File(_, bytes) => write_atomic(&self.path, &bytes(report)?).map(|()| vec![self.path.clone()]),
            OutputKind::Folder => folder(report, &self.path, more),
        }
    }

    /// Whether two paths are the same, or one is a file of the report folder that the other is.
    pub fn meets(&self, other: &Output) -> bool {
        if let (OutputKind::Stdout, _) | (_, OutputKind::Stdout) = (self.shape, other.shape) {
            return matches!((self.shape, other.shape), (OutputKind::Stdout, OutputKind::Stdout));
        }
        let (a, b) = (resolved(&self.path), resolved(&other.path));
        let inside = |file: &Path, folder: &Path| file.parent() == Some(folder) && is_of_reports(&file_name(file));
        a == b || inside(&a, &b) || inside(&b, &a)
    }
}

/// Writes `bytes` to `path` so that a reader sees the old file or the new one. Pipes and device files are written
/// directly. After an error nothing is left behind.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let mut file = FileStream::begin(path)?;
    file.write(bytes)?;
    file.finish()
}

/// Fails if [`write_atomic`] would; leaves nothing behind.
pub fn try_file(path: &Path) -> Result<(), WriteError> {
    placed("write", path, try_write(path))
}

fn try_write(path: &Path) -> io::Result<()> {
    let target = followed(path);
    match fs::metadata(&target) {
        Ok(found) if found.is_dir() => return Err(io::Error::other("it is a folder")),
        Ok(found) => {
            #[cfg(unix)]
            rustix::fs::access(&target, Access::WRITE_OK)?;
            if !found.is_file() {
                return Ok(()); // to open a pipe would be to begin
            }
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) if !parent(&target).is_dir() => {
            return Err(io::Error::other(format!("there is no folder {}", parent(&target).display())));
        }
        Err(_) => {}
    }
    Unfinished::folder(parent(&target)).map(drop)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Resolves links and `..` as far as the path exists.
fn resolved(path: &Path) -> PathBuf {
    let mut found = fs::canonicalize(".").unwrap_or_default();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(found.pop()),
            Component::CurDir => {}
            part => found.push(part),
        }
        found = fs::canonicalize(&found).unwrap_or(found);
    }
    found
}

/// Writes a report folder: `index.html`, `timeline.svg`, `plots.svg`, `memory.csv`, `report.json`, `trace.json.gz`,
/// each timeline as `NAME-predicted.json` or `NAME-measured.json`, and `more`. Returns the files' paths.
pub fn folder(report: &Report, path: &Path, more: &[NamedBytes]) -> Result<Vec<PathBuf>, WriteError> {
    let mut files = Vec::new();
    for (entry, name) in report.entries.iter().zip(file_names(report)) {
        for (number, panel) in entry.panels().enumerate() {
            let text = format!("{}\n", serde_json::json!(panel.timeline));
            let source = source_name(panel.timeline.source);
            // a saved prediction in place of a measurement stands beside its replay
            let is_second =
                number > 0 && entry.predicted.as_ref().is_some_and(|own| own.timeline.source == panel.timeline.source);
            let name = if is_second { format!("{name}-saved-{source}.json") } else { format!("{name}-{source}.json") };
            files.push((name, text.into_bytes()));
        }
    }
    files.push(("timeline.svg".to_string(), report.svg().into_bytes()));
    let plots = report.plots();
    if !plots.plots.is_empty() {
        files.push(("plots.svg".to_string(), plots.svg()?.into_bytes()));
    }
    files.push(("memory.csv".to_string(), memory_csv(report).into_bytes()));
    files.push(("trace.json.gz".to_string(), trace_gz(report)?));
    files.extend_from_slice(more);
    files.push(("index.html".to_string(), report.html().into_bytes()));
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).chain([MANIFEST]).collect();
    let mut figures = figures(report);
    figures["files"] = serde_json::json!(names);
    files.push((MANIFEST.to_string(), format!("{figures:#}\n").into_bytes()));
    placed("make the folder", path, beside_others(|| put(path, &files)))?;
    Ok(files.iter().map(|(name, _)| path.join(name)).collect())
}

/// The file of a report folder that lists the others.
const MANIFEST: &str = "report.json";

/// The part of [`MANIFEST`] that is read.
#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "schema_version")]
    _version: u32,
    #[serde(rename = "schedules")]
    _schedules: Vec<serde::de::IgnoredAny>,
    files: Option<Vec<String>>,
}

/// Whether a report may have a file of this name.
fn is_of_reports(name: &str) -> bool {
    let known = [
        MANIFEST,
        "index.html",
        "timeline.svg",
        "plots.svg",
        "loss.svg",
        "memory.csv",
        "trace.json.gz",
        "accuracy.json",
        "accuracy.md",
    ];
    known.contains(&name)
        || ((name.ends_with("-predicted.json") || name.ends_with("-measured.json")) && !name.contains('/'))
}

/// Returns the files of the report in `folder`, in its order; all others belong to the user. `None` without a report.
fn report_files(folder: &Path) -> Option<Vec<String>> {
    let file = fs::File::open(folder.join(MANIFEST)).ok()?;
    let Manifest { files, .. } = serde_json::from_reader(BufReader::new(file)).ok()?;
    let is_there = |name: &String| is_of_reports(name) && fs::symlink_metadata(folder.join(name)).is_ok();
    // Older reports have no list.
    let all = || {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
    };
    Some(files.unwrap_or_else(|| all().into_iter().collect()).into_iter().filter(is_there).collect())
}

/// Returns the timelines of the report in `folder`, in its order; `None` if the folder holds no report.
pub fn timeline_files(folder: &Path) -> Option<Vec<PathBuf>> {
    let files = report_files(folder)?.into_iter().filter(|name| name.ends_with("ed.json"));
    Some(files.map(|name| folder.join(name)).collect())
}

/// Fails if a folder holds a file that a report would replace and no report wrote. Returns those that one wrote.
fn replaced_files(folder: &Path, mut replaces: impl FnMut(&str) -> bool) -> io::Result<BTreeSet<String>> {
    let owned: BTreeSet<String> = report_files(folder).unwrap_or_default().into_iter().collect();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if replaces(&name) && !owned.contains(&name) {
            return Err(io::Error::other(format!(
                "it holds {name}, which no report wrote and which would be overwritten"
            )));
        }
    }
    Ok(owned)
}

/// Missing folders that were created, a folder and its parents; those still empty on drop are removed.
#[derive(Debug)]
struct MissingFolders(Vec<PathBuf>);

impl MissingFolders {
    /// Makes a folder and its parents, as far as they are missing.
    fn make(folder: &Path) -> io::Result<MissingFolders> {
        let mut all = MissingFolders(Vec::new());
        let missing: Vec<&Path> = folder
            .ancestors()
            .take_while(|path| fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound))
            .collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made.map(|()| all.0.push(folder.to_path_buf()))?,
            }
        }
        Ok(all)
    }
}

impl Drop for MissingFolders {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Makes something in a folder, again if the folder is gone: another program removes the empty folders that it made.
fn beside_others<T>(make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..20 {
        match make() {
            Err(error) if error.kind() == ErrorKind::NotFound => std::thread::sleep(Duration::from_millis(1)),
            made => return made,
        }
    }
    make()
}

fn try_folder(path: &Path) -> io::Result<()> {
    let target = resolved(path);
    let _made = MissingFolders::make(&target)?;
    if !fs::metadata(&target)?.is_dir() {
        return Err(io::Error::other("it is a file; with -o - no report is written"));
    }
    // Names of timelines are known only later, so every possible name is checked.
    if replaced_files(&target, is_of_reports).is_err() {
        let _lock = unfinished::lock(&target)?; // another program may just be moving its files in
        replaced_files(&target, is_of_reports)?;
    }
    Unfinished::folder(&target).map(drop)
}

/// Writes these files to a folder. The user's files in it stay.
fn put(path: &Path, files: &[NamedBytes]) -> io::Result<()> {
    let target = resolved(path);
    let _made = MissingFolders::make(parent(&target))?;
    if !target.exists() {
        let new = Unfinished::folder(parent(&target))?;
        files.iter().try_for_each(|(name, bytes)| new.put(name, bytes))?;
        match new.rename(&target) {
            // Another program was faster.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
            done => return done,
        }
    }
    merge(&target, files)
}

/// Writes the files in `target`, then moves the old ones out and the new ones in, all or none.
fn merge(target: &Path, files: &[NamedBytes]) -> io::Result<()> {
    let aside = Unfinished::folder(target)?;
    files.iter().try_for_each(|(name, bytes)| aside.put(name, bytes))?;
    let _lock = unfinished::lock(target)?;
    let new: BTreeSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let old = replaced_files(target, |name| new.contains(name))?;
    let out = old.iter().map(|name| (target.join(name), aside.path().join(format!("old-{name}"))));
    let new = files.iter().map(|(name, _)| (aside.path().join(name), target.join(name)));
    aside.rename_all(&out.chain(new).collect::<Vec<_>>())
}

/// A folder that one program at a time writes to, locked until this is dropped. It is made if it is missing, and removed if nothing
/// was written to it.
#[derive(Debug)]
pub struct ClaimedFolder {
    // Dropped first: no other program can lock the folder before it is removed.
    _made: MissingFolders,
    _lock: Option<fs::File>,
}

impl ClaimedFolder {
    /// Claims the folder at `path`.
    ///
    /// # Errors
    /// It cannot be made or written to, or another program has claimed it.
    pub fn new(path: &Path) -> Result<ClaimedFolder, WriteError> {
        let claim = || {
            let target = resolved(path);
            let made = MissingFolders::make(&target)?;
            if !fs::metadata(&target)?.is_dir() {
                return Err(io::Error::other("it is a file"));
            }
            let lock = unfinished::try_lock(&target)?;
            unfinished::remove_left(&target)?;
            Unfinished::folder(&target)?;
            Ok(ClaimedFolder { _made: made, _lock: lock })
        };
        placed("write to the folder", path, beside_others(claim))
    }
}
