//! A file that is written piece by piece, and appears under its name when it is complete.

use crate::report::file::folder::{followed, placed};
use crate::report::file::unfinished::{Unfinished, parent};
use crate::report::{Entry, SpanRows, WriteError};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file under way; dropped without [`FileStream::finish`], it leaves nothing behind. Pipes and device files are written directly.
pub struct FileStream {
    path: PathBuf,
    target: PathBuf,
    out: BufWriter<File>,
    unfinished: Option<Unfinished>,
}

impl FileStream {
    /// Begins the file that will be called `path`.
    ///
    /// # Errors
    /// No file can be written there.
    pub fn begin(path: &Path) -> Result<FileStream, WriteError> {
        let target = followed(path);
        let begin = || match fs::metadata(&target) {
            Ok(found) if !found.is_file() => Ok((File::options().write(true).open(&target)?, None)),
            _ => {
                let unfinished = Unfinished::file(parent(&target))?;
                Ok((unfinished.handle()?, Some(unfinished)))
            }
        };
        let (file, unfinished) = placed("write", path, begin())?;
        Ok(FileStream { path: path.to_path_buf(), target, out: BufWriter::new(file), unfinished })
    }

    pub fn write(&mut self, text: &str) -> Result<(), WriteError> {
        placed("write", &self.path, self.out.write_all(text.as_bytes()))
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
            unfinished.rename(&target)
        };
        placed("write", &path, finish())
    }
}

/// Files with a line per span, written entry by entry.
#[derive(Default)]
pub struct SpanFiles {
    files: Vec<FileStream>,
    rows: Option<SpanRows>,
}

impl SpanFiles {
    /// Begins the files; `are_cut`: some schedule has slices, which have a column.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn begin<'a>(paths: impl Iterator<Item = &'a Path>, are_cut: bool) -> Result<SpanFiles, WriteError> {
        let (rows, mut files) = (SpanRows { are_cut }, Vec::new());
        for path in paths {
            let mut file = FileStream::begin(path)?;
            file.write(&rows.header())?;
            files.push(file);
        }
        Ok(SpanFiles { files, rows: Some(rows) })
    }

    pub fn are_none(&self) -> bool {
        self.files.is_empty()
    }

    /// Appends the lines of an entry. Returns false, and writes nothing, if it has slices but the files have no column for them.
    pub fn write(&mut self, entry: &Entry) -> Result<bool, WriteError> {
        let Some(rows) = self.rows else { return Ok(true) };
        if !rows.are_cut && entry.panels().any(|panel| panel.timeline.slices.len() > 1) {
            return Ok(false);
        }
        let mut text = String::new();
        rows.write(entry, &mut text);
        self.files.iter_mut().try_for_each(|file| file.write(&text)).map(|()| true)
    }

    /// Gives the files their names, and tells `written` each.
    pub fn finish(self, mut written: impl FnMut(&Path)) -> Result<(), WriteError> {
        self.files.into_iter().try_for_each(|file| {
            let path = file.path.clone();
            file.finish().map(|()| written(&path))
        })
    }
}
