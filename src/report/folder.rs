//! Files: written whole or not at all.

use super::csv::source_name;
use super::json::file_names;
use super::{Report, WriteError, format_of, html, json, svg, trace_gz};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

impl Report {
    /// Writes the report: a file where the ending is one that is known (`.svg`, `.png`, `.html`, ..), else a folder. Returns the files' paths.
    ///
    /// # Errors
    /// A place that cannot be written; of a file nothing is left behind then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Vec<PathBuf>, WriteError> {
        let path = path.as_ref();
        let Some(bytes) = format_of(path) else { return folder(self, path) };
        write_atomic(path, &bytes(self)?)?;
        Ok(vec![path.to_path_buf()])
    }
}

/// Writes `bytes` to `path`: first under another name in the same folder, then renamed, so that a reader sees the old file
/// or the new one and nothing between. Pipes and device files are written directly. After an error nothing is left behind.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    write(path, bytes).map_err(|cause| unplaced(format!("write {}", path.display()), &cause))
}

fn unplaced(what: String, cause: &std::io::Error) -> WriteError {
    WriteError::Place { what, cause: cause.to_string() }
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    match fs::metadata(&target) {
        Ok(found) if found.is_dir() => return Err(std::io::Error::other("a folder of this name is there")),
        Ok(found) if !found.is_file() => return fs::write(&target, bytes),
        _ => {}
    }
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!(".pipesim-{}-{count}.tmp", std::process::id()));
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        if let Ok(old) = fs::metadata(&target) {
            fs::set_permissions(&temporary, old.permissions())?;
        }
        fs::rename(&temporary, &target)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Writes a report folder: `index.html`, `timeline.svg`, `report.json`, `trace.json.gz` and each timeline as
/// `NAME-predicted.json` or `NAME-measured.json`. Returns the files' paths.
pub fn folder(report: &Report, path: &Path) -> Result<Vec<PathBuf>, WriteError> {
    fs::create_dir_all(path).map_err(|cause| unplaced(format!("make the folder {}", path.display()), &cause))?;
    let mut written = Vec::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<(), WriteError> {
        let file = path.join(name);
        write_atomic(&file, bytes)?;
        written.push(file);
        Ok(())
    };
    for (entry, name) in report.entries.iter().zip(file_names(report)) {
        for panel in entry.panels() {
            let text = format!("{}\n", serde_json::json!(panel.timeline));
            write(&format!("{name}-{}.json", source_name(panel.timeline.source)), text.as_bytes())?;
        }
    }
    write("timeline.svg", svg(report).as_bytes())?;
    write("trace.json.gz", &trace_gz(report)?)?;
    write("report.json", json(report).as_bytes())?;
    write("index.html", html(report).as_bytes())?;
    Ok(written)
}
