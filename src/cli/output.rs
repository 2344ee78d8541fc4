//! Prints a report to stdout and writes it to files.

use super::Failure;
use super::condition::{Judged, Scope, Verdict};
use super::options::{Color, DrawOptions, Format, JudgeOptions, PrintOptions, RemarkOptions, WriteOptions};
use crate::report::{self, Report};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Prints to stdout; a reader that went away is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(anyhow::anyhow!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// A line to stderr; one that is closed or full is no failure.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A value as JSON.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(format!("{}\n", serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?))
}

/// A list under its name, as JSON with a version.
pub fn versioned<T: Serialize>(name: &str, list: &[T]) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        list: BTreeMap<&'a str, &'a [T]>,
    }
    json(&Versioned { schema_version: 1, list: BTreeMap::from([(name, list)]) })
}

impl PrintOptions {
    /// Prints what was found in the shape that is asked for.
    pub fn show(
        &self,
        report: &Report,
        json: impl FnOnce() -> Result<String, Failure>,
        table: impl FnOnce() -> String,
        csv: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        print(&match self.format {
            Format::Json => json()?,
            Format::Table => self.plain(table()),
            Format::Md => self.plain(report::markdown(report)),
            Format::Csv => csv(),
        })
    }

    /// In ASCII where that is asked for.
    fn plain(&self, text: String) -> String {
        if self.ascii { text.chars().map(ascii).collect() } else { text }
    }
}

impl RemarkOptions {
    /// A remark for people, to stderr.
    pub fn remark(self, text: &str) {
        if !self.quiet {
            tell(text);
        }
    }
}

impl DrawOptions {
    fn colored(&self) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                std::io::stdout().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }

    /// The table and timelines for the terminal.
    pub fn terminal(&self, report: &Report) -> String {
        let width = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let width = width.or_else(terminal_width).unwrap_or(100);
        let drawn = report::terminal(report, width, self.print.ascii, self.colored());
        format!("{drawn}\n{}", report::table(report))
    }
}

impl WriteOptions {
    /// Fails now, not after the work, where a file cannot be written.
    pub fn check_writable(&self) -> Result<(), Failure> {
        for path in &self.output {
            if report::format_of(path).is_none() {
                if path.exists() && !path.is_dir() {
                    return Err(unwritable(path, "it is a file; a report needs a folder or a known file ending"));
                }
                continue;
            }
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !parent.is_dir() {
                return Err(unwritable(path, &format!("there is no folder {}", parent.display())));
            }
            if path.is_dir() {
                return Err(unwritable(path, "it is a folder"));
            }
        }
        Ok(())
    }

    /// Writes every `-o`.
    pub fn write(&self, report: &Report, remarks: RemarkOptions) -> Result<(), Failure> {
        for path in &self.output {
            report.save(path)?;
            remarks.remark(&format!("wrote {}", path.display()));
        }
        Ok(())
    }
}

impl JudgeOptions {
    /// Refuses, before there is any work, thresholds on what a command will not know.
    pub fn refuse(&self, scope: Scope) -> Result<(), Failure> {
        self.fail_if.iter().try_for_each(|condition| condition.refuse(scope)).map_err(Failure::Usage)
    }

    /// The thresholds that hold, a line for each schedule.
    ///
    /// # Errors
    /// One is on what none of them has.
    pub fn held(&self, found: &[Judged]) -> Result<Held, Failure> {
        let mut held = Vec::new();
        for condition in &self.fail_if {
            let mut known = false;
            for judged in found {
                let verdict = condition.found_in(judged).map_err(Failure::Usage)?;
                known |= verdict != Verdict::Unknown;
                if let Verdict::Holds(what) = verdict {
                    held.push(format!("{}: {what}", judged.name));
                }
            }
            if !known {
                return Err(Failure::Usage(condition.nowhere()));
            }
        }
        Ok(Held(held))
    }
}

/// The thresholds that hold.
#[must_use]
pub struct Held(Vec<String>);

impl Held {
    /// Fails where there are any.
    pub fn judge(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Threshold(self.0.join("\n"))) }
    }
}

/// The nearest ASCII character.
fn ascii(c: char) -> char {
    match c {
        '─' | '–' | '—' => '-',
        '═' => '=',
        '│' => '|',
        'µ' | 'μ' => 'u',
        '×' => 'x',
        c if c.is_ascii() => c, // escape sequences too
        _ => '.',
    }
}

fn unwritable(path: &Path, what: &str) -> Failure {
    Failure::Failed(anyhow::anyhow!("expected to write {}: {what}; choose another place with -o", path.display()))
}

fn terminal_width() -> Option<usize> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(usize::from(columns))
}
