//! Files with a line per span, written while entries are predicted.

use crate::{Entry, SpanRows, WriteError};
use pipesim_system::unfinished::FileStream;
use std::path::Path;

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
            file.write(rows.header().as_bytes())?;
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
        self.files.iter_mut().try_for_each(|file| file.write(text.as_bytes())).map(|()| true)
    }

    /// Gives the files their names, and tells `written` each.
    pub fn finish(self, mut written: impl FnMut(&Path)) -> Result<(), WriteError> {
        self.files.into_iter().try_for_each(|file| {
            let path = file.path.clone();
            file.finish().map(|()| written(&path))
        })
    }
}
