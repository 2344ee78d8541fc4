//! File formats by ending. A new format is a file in this folder that makes the bytes, and a row in [`FORMATS`].

use crate::{Report, WriteError};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

type Bytes = fn(&Report) -> Result<Vec<u8>, WriteError>;

/// How a format shows timelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineRendering {
    /// Still picture.
    Still,
    /// Page, as wide as its window.
    Page,
    /// Not at all: for programs.
    Not,
}

/// Endings of file names, how timelines are drawn there, and what makes the bytes.
pub const FORMATS: &[(&str, TimelineRendering, Bytes)] = &[
    #[cfg(not(feature = "pictures"))]
    (".svg", TimelineRendering::Still, |report| Ok(report.svg().into_bytes())),
    #[cfg(feature = "pictures")]
    (".svg", TimelineRendering::Still, |report| match report.is_plotted() {
        true => report.plots().svg().map(String::into_bytes),
        false => Ok(report.svg().into_bytes()),
    }),
    #[cfg(feature = "pictures")]
    (".png", TimelineRendering::Still, |report| if report.is_plotted() { report.plots().png() } else { report.png() }),
    #[cfg(feature = "pictures")]
    (".pdf", TimelineRendering::Still, |report| if report.is_plotted() { report.plots().pdf() } else { report.pdf() }),
    (".html", TimelineRendering::Page, |report| Ok(report.html().into_bytes())),
    (".json", TimelineRendering::Not, |report| Ok(crate::timelines(report).into_bytes())),
    (".csv", TimelineRendering::Not, |report| Ok(report.csv().into_bytes())),
    (".tex", TimelineRendering::Not, |report| Ok(report.latex().into_bytes())),
    (".trace.json", TimelineRendering::Not, |report| Ok(report.trace().into_bytes())),
    #[cfg(feature = "pictures")]
    (".trace.json.gz", TimelineRendering::Not, crate::trace_gz),
];

pub fn endings() -> Vec<&'static str> {
    FORMATS.iter().map(|(ending, ..)| *ending).collect()
}

/// Where a report is written, and as what.
#[derive(Clone, Debug)]
pub struct Output {
    pub path: PathBuf,
    pub shape: OutputKind,
}

#[derive(Clone, Copy, Debug)]
pub enum OutputKind {
    /// Nothing: `-` is stdout, to which a command prints anyway.
    Stdout,
    File(TimelineRendering, Bytes),
    Folder,
}

impl Output {
    /// Interprets a name: a file if its ending is known, a report folder if it has none or ends in `/`, stdout for `-`.
    pub fn named(name: impl AsRef<OsStr>) -> Result<Output, WriteError> {
        let (name, path) = (name.as_ref().to_string_lossy(), PathBuf::from(name.as_ref()));
        let place = |shape| Ok(Output { path, shape });
        if name == "-" {
            return place(OutputKind::Stdout);
        }
        if is_folder(&name) {
            return place(OutputKind::Folder);
        }
        let fitting = FORMATS.iter().filter(|(ending, ..)| ends_with(&name, ending) && !is_bare(&name));
        match (fitting.max_by_key(|(ending, ..)| ending.len()), ending(&name)) {
            (Some((_, drawn, bytes)), _) => place(OutputKind::File(*drawn, *bytes)),
            (None, None) => place(OutputKind::Folder),
            (None, Some(_)) => Err(WriteError::Name(format!(
                "expected a name that ends in {}, or one without an ending for a report folder, found '{name}'; \
                 for a folder of this very name write {name}/",
                endings().join(" ")
            ))),
        }
    }

    /// Whether the name ends in `ending`, in any case.
    pub fn ends_in(&self, ending: &str) -> bool {
        ends_with(&self.path.to_string_lossy(), ending)
    }

    /// Interprets a name for verbs that write one kind of file: it has one of these endings or none; `None` for `-`.
    pub fn of_one_file(path: &Path, known: &[&str]) -> Result<Option<PathBuf>, WriteError> {
        let name = path.to_string_lossy();
        if name == "-" {
            return Ok(None);
        }
        let fits =
            !is_folder(&name) && (ending(&name).is_none() || known.iter().any(|ending| ends_with(&name, ending)));
        if fits {
            return Ok(Some(path.to_path_buf()));
        }
        let known = known.join(" or ");
        Err(WriteError::Name(format!(
            "expected the name of a file that ends in {known}, found '{name}'; use such a name, or - for stdout"
        )))
    }
}

fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// Whether a name can only name a folder.
fn is_folder(name: &str) -> bool {
    !name.is_empty() && matches!(last(name), "" | "." | "..")
}

/// Whether a file name has this ending, in any case, after at least one character.
fn ends_with(name: &str, ending: &str) -> bool {
    let name = last(name).to_lowercase();
    name.len() > ending.len() && name.ends_with(ending)
}

/// Whether a file name is nothing but a known ending.
fn is_bare(name: &str) -> bool {
    FORMATS.iter().any(|(ending, ..)| last(name).eq_ignore_ascii_case(ending))
}

/// Returns a file name's ending: from its last dot on, except for a leading dot. A name that is only a known ending, or
/// empty, is an ending itself.
fn ending(name: &str) -> Option<&str> {
    let name = last(name);
    if name.is_empty() || is_bare(name) {
        return Some(name);
    }
    name.rfind('.').filter(|&dot| dot > 0).map(|dot| &name[dot..])
}
