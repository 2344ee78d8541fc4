//! Printing: data to stdout, messages to stderr, as wide as the terminal.

pub mod colors;
pub mod progress;
pub mod signals;
#[cfg(feature = "training")]
pub mod stopping;
#[cfg(feature = "training")]
pub mod watcher;

use super::Failure;
use pipesim_report::{self as report, Report, visible};
use std::io::{ErrorKind, IsTerminal, Write};

/// Longest message in bytes.
const LONGEST_MESSAGE: usize = 16 << 10;

/// Prints to stdout. A reader that closed the pipe is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    write_stdout(text).map(drop)
}

/// Prints to stdout, and returns whether somebody reads.
fn write_stdout(text: &str) -> Result<bool, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::Failed(anyhow::anyhow!("cannot write to stdout: {e}"))),
        Ok(()) => Ok(true),
    }
}

/// Prints text with lines folded to the terminal's width.
pub fn print_folded(text: &str) -> Result<(), Failure> {
    print(&fold(text, 0))
}

/// Folds lines to `margin` columns less than the terminal's width.
pub fn fold(text: &str, margin: usize) -> String {
    report::folded(text, width().map(|width| width.saturating_sub(margin)))
}

/// Prints text from a file. On a terminal, control characters in it are shown, not obeyed.
pub fn print_text(text: &str) -> Result<(), Failure> {
    print_while_read(text).map(drop)
}

/// The same for a part of a text; returns whether somebody reads the rest.
pub fn print_while_read(text: &str) -> Result<bool, Failure> {
    if std::io::stdout().is_terminal() { write_stdout(&visible(text, usize::MAX)) } else { write_stdout(text) }
}

/// Prints a line to stderr, cut at 16 KiB and folded to its terminal, with control characters shown. A closed or full one is no failure.
pub fn eprint(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{}", report::folded(&visible(text, LONGEST_MESSAGE), columns_of(&stderr)));
}

/// Formats the tables of a report to the terminal's width; in pipes and files a row is a line.
pub fn table(report: &Report) -> String {
    report.table(width())
}

/// Wraps sentences to the terminal's width, each starting a line of its own after `indent` spaces.
pub fn wrap(sentences: &[String], indent: usize) -> String {
    let room = width().map(|width| width.saturating_sub(indent).max(20));
    let margin = " ".repeat(indent);
    let lines = sentences.iter().flat_map(|text| report::wrapped(text, room));
    lines.map(|line| format!("{margin}{line}")).collect::<Vec<_>>().join("\n") + "\n"
}

/// Replaces characters of our own output by similar ones in ASCII.
pub fn to_ascii(text: &str) -> String {
    let similar = |c| match c {
        '─' | '–' | '—' => '-',
        '═' => '=',
        '│' => '|',
        'µ' | 'μ' => 'u',
        '×' => 'x',
        '≈' => '~',
        c if c.is_ascii() => c, // escape sequences too
        _ => '.',
    };
    text.replace('±', "+/-").chars().map(similar).collect()
}

/// Returns the columns of stdout: COLUMNS if set, else the terminal's columns (80 if it does not say), `None` for pipes and files.
pub fn width() -> Option<usize> {
    let set = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    set.or_else(|| columns_of(&std::io::stdout()))
}

/// Returns the columns of a stream that is a terminal: 80 if it does not say.
#[cfg(unix)]
fn columns_of(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    let columns = || rustix::termios::tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
    stream.is_terminal().then(|| Some(columns()).filter(|columns| *columns > 0).unwrap_or(80))
}

#[cfg(not(unix))]
fn columns_of(stream: &impl IsTerminal) -> Option<usize> {
    stream.is_terminal().then_some(80)
}
