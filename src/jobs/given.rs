//! A job as a user gives it: files, standard input or a command, and what it was started with.

use crate::error::{JobError, Missing};
use crate::job::Job;
use crate::kind::{FileKind, read, read_log};
use crate::shell;
use crate::source::{SourceFile, Sources};
use pipesim_schedule::sanitize::shell_quoted;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Component, Path, PathBuf};

/// Largest file that is read as a whole, in bytes.
const MOST_BYTES: u64 = 16 << 20;
/// Length of the start by which a file's kind is known.
const HEAD: usize = 1 << 16;
/// Folders above a job's in which files that it reads are looked for.
const FOLDERS: usize = 5;

/// Most entries of a job's folder that are looked at.
const MOST_FOLDERS: usize = 1000;

/// A job as a user gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenJob {
    /// Path of its file; `-`: standard input; `None`: the command.
    pub file: Option<String>,
    /// Words of its command.
    pub command: Vec<String>,
    /// Paths of further files that it reads.
    pub further: Vec<String>,
    /// Variables that it was started with, as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Arguments that it was started with, as a shell takes them.
    pub arguments: Option<String>,
    /// Number of GPUs, if it is given beside the job.
    pub gpus: Option<u32>,
    /// Built-in model, if it is given beside the job.
    pub model: Option<String>,
}

fn wrong(place: &str, why: impl ToString) -> JobError {
    JobError::File { place: place.to_string(), why: why.to_string() }
}

impl GivenJob {
    /// Reads the job, and the files that it needs and that lie beside it.
    ///
    /// # Errors
    /// A file that cannot be read or is no job, or a job that says too little.
    pub fn read(&self) -> Result<Job, JobError> {
        let sources = self.sources()?;
        let Some(file) = &self.file else {
            let command: Vec<String> = self.command.iter().map(|word| shell_quoted(word)).collect();
            if command.is_empty() {
                return Err(wrong("`job`", "expected a file, or a command after --, found neither; give one"));
            }
            return complete("command", command.join(" "), sources);
        };
        let reader: Box<dyn Read> = match file.as_str() {
            "-" => Box::new(stdin()),
            path => Box::new(open(path)?),
        };
        let mut reader = BufReader::with_capacity(HEAD, reader);
        let head = reader.fill_buf().map_err(|error| wrong(file, error))?;
        let head = String::from_utf8_lossy(head).into_owned();
        if FileKind::of(file, &head) == FileKind::Log {
            return read_log(file, &mut reader, &sources);
        }
        complete(file, whole(file, reader)?, sources)
    }

    /// Returns what is given beside the first file.
    fn sources(&self) -> Result<Sources, JobError> {
        let mut sources = Sources { gpus: self.gpus, model: self.model.clone(), ..Sources::default() };
        for pair in &self.environment {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                wrong("`job-env`", format!("expected NAME=VALUE, found '{pair}'; write it as in TP=2"))
            })?;
            sources.environment.insert(name.to_string(), value.to_string());
        }
        if let Some(arguments) = &self.arguments {
            sources.arguments = shell::words(arguments)?;
        }
        for path in &self.further {
            sources.files.push(SourceFile { name: path.clone(), text: whole(path, open(path)?)? });
        }
        Ok(sources)
    }
}

fn open(path: &str) -> Result<File, JobError> {
    if Path::new(path).is_dir() {
        return Err(wrong(path, "expected a file of a job, found a folder; give a file in it"));
    }
    File::open(path).map_err(|error| wrong(path, format!("{error}; give the path of a job")))
}

/// Reads a file to its end.
fn whole(name: &str, reader: impl Read) -> Result<String, JobError> {
    let mut bytes = Vec::new();
    reader.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| wrong(name, error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(wrong(name, "expected a job of at most 16 MiB, found more; give the launch script, or a log"));
    }
    String::from_utf8(bytes)
        .map_err(|_| wrong(name, "expected text, found other bytes; give the launch script, or a log"))
}

/// Reads a job, adding files that it asks for and that lie beside it.
fn complete(name: &str, text: String, mut sources: Sources) -> Result<Job, JobError> {
    sources.files.insert(0, SourceFile { name: name.to_string(), text });
    loop {
        let missing = match read(&sources) {
            Err(JobError::Missing(missing)) => missing,
            found => return found,
        };
        let wanted = missing.iter().filter_map(|one| match one {
            Missing::File { path } => beside(Path::new(name), path),
            _ => None,
        });
        let found: Vec<SourceFile> = wanted.filter(|file| !sources.files.contains(file)).collect();
        if found.is_empty() && sources.has_looked {
            return Err(JobError::Missing(missing));
        }
        sources.has_looked = found.is_empty();
        sources.files.extend(found);
    }
}

/// Returns the file that a job calls `wanted`: in the job's folder, in one above, or in one inside of it.
fn beside(job: &Path, wanted: &str) -> Option<SourceFile> {
    let wanted = Path::new(wanted.trim_start_matches("./"));
    if wanted.is_absolute() || wanted.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let folders = job.ancestors().skip(1).take(FOLDERS).map(Path::to_path_buf).chain(inside(job.parent()?));
    let at = |folder: PathBuf| [Some(folder.join(wanted)), wanted.file_name().map(|name| folder.join(name))];
    let path = folders.flat_map(at).flatten().find(|path| path.is_file())?;
    let name = path.display().to_string();
    Some(SourceFile { text: whole(&name, open(&name).ok()?).ok()?, name })
}

/// Returns the folders inside of a folder, in order of their names.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = folder.read_dir().into_iter().flatten().take(MOST_FOLDERS);
    let mut folders: Vec<PathBuf> = entries.flatten().map(|one| one.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}
