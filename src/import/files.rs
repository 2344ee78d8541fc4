//! Files of traces: folders, patterns, compression, and what a file is.

use super::error::ImportError;
use super::timers;
use flate2::read::MultiGzDecoder;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the files that `paths` name: those in folders, and those that match a pattern.
///
/// # Errors
/// A path names nothing.
pub fn expanded(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ImportError> {
    let mut files = Vec::new();
    for path in paths {
        let shown = path.display();
        if path.is_dir() {
            let found = in_folder(path)
                .map_err(|error| ImportError::new(format!("cannot read the folder {shown}: {error}")))?;
            if found.is_empty() {
                return Err(ImportError::new(format!(
                    "expected traces (.json, .json.gz, .jsonl, .sqlite, .nsys-rep) in the folder {shown}, found none; name the files"
                )));
            }
            files.extend(found);
        } else if path.exists() {
            files.push(path.clone());
        } else {
            let pattern = path.to_string_lossy();
            let found = glob::glob(&pattern)
                .map_err(|error| ImportError::new(format!("cannot read {shown}: {error}; correct the pattern")))?;
            let found: Vec<PathBuf> = found.flatten().filter(|path| path.is_file()).collect();
            if found.is_empty() {
                return Err(ImportError::new(format!(
                    "expected a file, folder or pattern, found nothing at {shown}; correct it"
                )));
            }
            files.extend(found);
        }
    }
    // The same file twice is no second rank.
    let mut different: Vec<PathBuf> = Vec::new();
    for file in files {
        if !different.contains(&file) {
            different.push(file);
        }
    }
    Ok(different)
}

/// Returns the traces of a folder by name, numbers in their order.
fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        // a report whose export is there is read from that
        let is_report = is_report(&path) && !path.with_extension("sqlite").exists();
        let is_trace =
            is_report || [".json", ".json.gz", ".jsonl", ".sqlite"].iter().any(|ending| name.ends_with(ending));
        if is_trace && path.is_file() && !is_other(&path) {
            found.push(path);
        }
    }
    found.sort_by_key(|path| (super::pipeline::rank_of_name(&path.to_string_lossy()), path.clone()));
    Ok(found)
}

/// Whether a file of a folder is no trace: it is small enough to see, and has no events. Damaged files are traces to name.
fn is_other(path: &Path) -> bool {
    let name = path.to_string_lossy().to_ascii_lowercase();
    if [".gz", ".sqlite", "rep"].iter().any(|ending| name.ends_with(ending))
        || super::pipeline::rank_of_name(&name).is_some()
    {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let mut start = Vec::new();
    let _ = file.take(1 << 20).read_to_end(&mut start);
    !["traceEvents", "NvtxEvent"].iter().any(|key| start.windows(key.len()).any(|part| part == key.as_bytes()))
}

/// Counts the bytes that were read of all files.
pub struct Progress<'a> {
    done: Cell<u64>,
    all: u64,
    tell: &'a dyn Fn(u64, u64),
}

impl<'a> Progress<'a> {
    pub fn new(files: &[PathBuf], tell: &'a dyn Fn(u64, u64)) -> Progress<'a> {
        let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |data| data.len());
        Progress { done: Cell::new(0), all: files.iter().map(size).sum(), tell }
    }
}

/// A file that counts.
struct Counted<'a> {
    file: File,
    progress: &'a Progress<'a>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        let done = self.progress.done.get() + count as u64;
        self.progress.done.set(done);
        (self.progress.tell)(done, self.progress.all);
        Ok(count)
    }
}

/// What a file contains.
pub enum Content<'a> {
    /// A trace of PyTorch's profiler.
    Trace(Box<dyn BufRead + 'a>),
    /// Nsight Systems' JSON.
    Nsight(Box<dyn BufRead + 'a>),
    /// Nsight Systems' SQLite database.
    Database(PathBuf),
    /// pipesim's own timelines.
    Timelines(String),
    /// A table of op times.
    Table(String),
    /// Megatron-LM's log with timers.
    Log(String),
    /// A rank's file of `pipesim.record`.
    Record(String),
}

/// Tables and timelines are read as a whole, up to this size.
const MOST_TEXT: u64 = 1 << 30;
const BUFFER: usize = 1 << 18;

/// Opens a file and finds out what it is.
///
/// # Errors
/// It cannot be read, or is of a format that is not read.
pub fn open<'a>(path: &Path, progress: &'a Progress<'a>) -> Result<Content<'a>, ImportError> {
    let shown = path.display();
    let failed = |error: io::Error| ImportError::new(format!("cannot read {shown}: {error}"));
    let file = File::open(path).map_err(failed)?;
    if is_report(path) {
        return exported(path).map(Content::Database);
    }
    let mut raw = BufReader::with_capacity(BUFFER, Counted { file, progress });
    let is_packed = raw.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
    let mut reader: Box<dyn BufRead + 'a> =
        if is_packed { Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(raw))) } else { Box::new(raw) };
    let start = match reader.fill_buf() {
        Ok(start) => start,
        Err(error) if is_packed => return Err(failed(error)),
        Err(error) => return Err(failed(error)),
    };
    let has = |key: &str| start.windows(key.len()).any(|part| part == key.as_bytes());
    if has("SQLite format 3") || start.starts_with(b"SQLite") {
        return match is_packed {
            false => Ok(Content::Database(path.to_path_buf())),
            true => Err(ImportError::new(format!(
                "expected a SQLite database that is not compressed, found {shown}; run gunzip on it first"
            ))),
        };
    }
    let mut visible = start.iter().filter(|byte| !byte.is_ascii_whitespace() && !matches!(byte, 0xef | 0xbb | 0xbf));
    let first = visible.next();
    // A line of a log may begin with a time or a rank in brackets.
    let is_line = first == Some(&b'[') && visible.next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match first.filter(|_| !is_line) {
        Some(b'{' | b'[') if has("\"NvtxEvent\"") || has("\"TraceProcessEvent\"") || has("\"CudaEvent\"") => {
            Ok(Content::Nsight(reader))
        }
        Some(b'{') if has("{\"pipesim_record\"") => Ok(Content::Record(text(reader, path)?)),
        Some(b'{') if has("\"schema_version\"") && !has("\"traceEvents\"") => {
            Ok(Content::Timelines(text(reader, path)?))
        }
        Some(b'{' | b'[') => Ok(Content::Trace(reader)),
        None if !is_line => {
            Err(ImportError::new(format!("expected a trace, found the empty file {shown}; record it again")))
        }
        _ => {
            let text = text(reader, path)?;
            Ok(if timers::is_log(&text) { Content::Log(text) } else { Content::Table(text) })
        }
    }
}

/// Whether a file is Nsight Systems' own report, which only nsys reads.
fn is_report(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ["nsys-rep", "qdrep"].iter().any(|known| ending == *known))
}

/// Returns the SQLite database next to a report, or lets nsys write it.
fn exported(report: &Path) -> Result<PathBuf, ImportError> {
    let database = report.with_extension("sqlite");
    if database.is_file() {
        return Ok(database);
    }
    let run = Command::new("nsys").args(["export", "--type", "sqlite", "--output"]).arg(&database).arg(report).output();
    let why = match run {
        Ok(done) if done.status.success() && database.is_file() => return Ok(database),
        Ok(done) => {
            let text = String::from_utf8_lossy(&done.stderr);
            format!("nsys failed ({}) {}", done.status, text.lines().next().unwrap_or_default())
        }
        Err(_) => "nsys is not installed here".to_string(),
    };
    Err(ImportError::new(format!(
        "expected a report that nsys can export, but {why}; where it is installed, run: nsys export --type sqlite {}, and give the .sqlite file",
        pipesim_schedule::sanitize::shell_quoted(&report.display().to_string())
    )))
}

fn text(reader: impl Read, path: &Path) -> Result<String, ImportError> {
    let shown = path.display();
    let mut text = String::new();
    let read = reader.take(MOST_TEXT).read_to_string(&mut text);
    read.map_err(|error| {
        ImportError::new(format!("expected JSON or a table of op times in {shown}, found {error}; name a trace"))
    })?;
    Ok(text)
}
