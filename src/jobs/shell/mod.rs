//! Launch scripts of training jobs, read as bash reads them, without running anything.

mod arithmetic;
mod builtin;
mod command;
mod condition;
mod declare;
mod evaluate;
mod expand;
mod grammar;
mod launch;
mod parameter;
mod pattern;
mod scheduler;
mod state;
mod syntax;
mod text;

use crate::error::JobError;
use crate::source::{SourceFile, Sources};
use state::{Shell, Stop};

pub use command::{Command, Word};
pub use launch::launch;

/// Longest script that is read, in bytes.
const LONGEST: usize = 4 << 20;

/// What was found in a script.
struct Script {
    commands: Vec<Command>,
    absent: Vec<String>,
    problem: Option<JobError>,
}

/// Returns all programs that the first file would run, in order.
///
/// # Errors
/// There is no file, it is no shell script, or it does more than is read.
pub fn commands(sources: &Sources) -> Result<Vec<Command>, JobError> {
    let script = read(sources)?;
    match script.problem {
        Some(problem) if script.commands.is_empty() => Err(problem),
        _ => Ok(script.commands),
    }
}

/// Returns the words of a text, as a shell splits it.
///
/// # Errors
/// A quote without an end, or more than is read.
pub fn words(text: &str) -> Result<Vec<String>, JobError> {
    let file = SourceFile { name: "arguments".to_string(), text: format!("words {text}") };
    let found = commands(&Sources { files: vec![file], ..Sources::default() })?;
    let words = found.into_iter().next().map(|command| command.words).unwrap_or_default();
    Ok(words.into_iter().skip(1).map(|word| word.text).collect())
}

fn read(sources: &Sources) -> Result<Script, JobError> {
    let wrong = |place: &str, why: String| JobError::File { place: place.to_string(), why };
    let first =
        sources.files.first().ok_or_else(|| wrong("job", "expected a file, found none; name one".to_string()))?;
    let size: usize = sources.files.iter().map(|file| file.text.len()).sum();
    if size > LONGEST {
        return Err(wrong(
            &first.name,
            format!("expected files of at most {LONGEST} bytes, found {size}; shorten them"),
        ));
    }
    let mut shell = Shell::new(sources);
    let text = state::clean(&first.text);
    shell.read_header(&text);
    match shell.run_file(&first.name, &text) {
        Err(Stop::Limit(why)) => Err(wrong(&first.name, why)),
        _ => Ok(Script { commands: shell.commands, absent: shell.absent, problem: shell.problem }),
    }
}
