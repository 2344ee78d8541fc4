//! Options that say what is printed and written, and the printing and writing.

use super::costs::CostOptions;
use super::look::LookOptions;
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::terminal::colors::Color;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::signals::remove_unfinished_on_signals;
use crate::cli::terminal::{print, print_folded, print_text, table, to_ascii, width};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use pipesim_cost::GivenCosts;
use pipesim_jobs::Job;
use pipesim_report::{self as report, NamedBytes, Output, OutputKind, Report, endings, is_control};
use pipesim_schedule::sanitize::shell_quoted;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Table and timeline for people
    #[default]
    Table,
    /// One object in full precision
    Json,
    /// One row per schedule
    Csv,
    /// Markdown tables
    #[value(alias = "markdown")]
    Md,
    /// LaTeX tables with booktabs
    #[value(alias = "tex")]
    Latex,
}

#[derive(Args, Clone, Debug, Default)]
pub struct PrintOptions {
    /// Format of what is printed to stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Print ASCII instead of Unicode, with --format table or md
    #[arg(long)]
    pub ascii: bool,
    /// The job that the options were taken from.
    #[arg(skip)]
    pub job: Option<Box<Job>>,
}

impl PrintOptions {
    /// Prints a result in the format asked for.
    pub fn show(
        &self,
        report: &Report,
        json: impl FnOnce() -> Result<String, Failure>,
        table: impl FnOnce() -> String,
        csv: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => print(&escaped(&self.with_job(json()?)?)),
            Format::Table => print_folded(&self.plain(self.understood() + &table())),
            Format::Md => print(&self.plain(report.markdown())),
            Format::Latex => print(&report.latex()),
            Format::Csv => print_text(&csv()),
        }
    }

    /// Returns the lines that say what was understood of a job.
    fn understood(&self) -> String {
        let lines = |job: &Job| -> String {
            std::iter::once(job.sentence()).chain(job.details()).map(|line| line + "\n").collect()
        };
        self.job.as_deref().map_or_else(String::new, |job| as_flags(lines(job)) + "\n")
    }

    /// Adds the job to a JSON object.
    fn with_job(&self, text: String) -> Result<String, Failure> {
        let (Some(job), Ok(Value::Object(mut printed))) = (&self.job, serde_json::from_str(&text)) else {
            return Ok(text);
        };
        printed.insert("job".to_string(), job.to_json());
        json(&printed)
    }

    /// Prints what was understood of a job that has no answer.
    pub fn without_answer<F: Into<Failure>>(&self, failure: F) -> Failure {
        let nothing = |_: &Job| {
            self.show(&Report::default(), || Ok("{\"schema_version\": 1}".to_string()), String::new, String::new)
        };
        self.job.as_deref().and_then(|job| nothing(job).err()).unwrap_or_else(|| failure.into())
    }

    /// Prints the costs assumed for those that were not given. JSON has them in each prediction.
    pub fn show_assumed(&self, costs: &CostOptions) -> Result<(), Failure> {
        let line = costs.costs.as_deref().and_then(GivenCosts::assumption);
        let Some(line) = line.map(as_flags) else { return Ok(()) };
        match self.format {
            Format::Table | Format::Md => print(&self.plain(format!("{line}\n\n"))),
            Format::Latex => print(&format!("% {line}\n")),
            Format::Json | Format::Csv => Ok(()),
        }
    }

    /// Converts text to ASCII with --ascii.
    pub fn plain(&self, text: String) -> String {
        if self.ascii { to_ascii(&text) } else { text }
    }
}

/// What a verb that draws timelines prints.
#[derive(Args, Clone, Debug, Default)]
pub struct DrawOptions {
    #[command(flatten)]
    pub print: PrintOptions,
    /// Colours in the terminal; NO_COLOR is respected
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
}

impl DrawOptions {
    /// Draws the timelines alone.
    pub fn timeline(&self, report: &Report) -> String {
        draw(report, self.print.ascii, self.color, 0)
    }

    /// Returns the verdict, the timelines and the tables for the terminal.
    pub fn terminal(&self, report: &Report) -> String {
        let verdict = report::wrapped(&report.verdict, Some(width().unwrap_or(100)));
        let verdict = if report.verdict.is_empty() { String::new() } else { verdict.join("\n") + "\n\n" };
        format!("{verdict}{}\n{}", draw(report, self.print.ascii, self.color, 0), table(report))
    }
}

/// Draws timelines for the terminal, `margin` columns narrower than it.
pub fn draw(report: &Report, ascii: bool, color: Color, margin: usize) -> String {
    let width = width().map_or(100, |width| width.saturating_sub(margin));
    let drawn = report.terminal(width, ascii, color.colors());
    if ascii { to_ascii(&drawn) } else { drawn }
}

pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(format!("{}\n", escaped(&serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?)))
}

/// Formats a list under its name as JSON with a schema version.
pub fn versioned<T: Serialize>(name: &str, list: &[T]) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        list: BTreeMap<&'a str, &'a [T]>,
    }
    json(&Versioned { schema_version: 1, list: BTreeMap::from([(name, list)]) })
}

/// Escapes characters in JSON that would control a terminal.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_control(c) {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        } else {
            out.push(c);
        }
    }
    out
}

fn output_help() -> String {
    let endings = endings().join(" ");
    format!(
        "Write a file ({endings}), or a report folder if PATH has no extension or ends in /; - writes no file, only prints; repeatable"
    )
}

#[derive(Args, Clone, Debug, Default)]
pub struct WriteOptions {
    /// Files and folders to write
    #[arg(long, short, value_name = "PATH", help = output_help(), value_parser = OsStringValueParser::new().try_map(Output::named))]
    pub output: Vec<Output>,
    #[command(flatten)]
    pub look: LookOptions,
}

impl WriteOptions {
    pub fn writes_nothing(&self) -> bool {
        self.output.iter().all(|place| matches!(place.shape, OutputKind::Stdout))
    }

    /// Returns the outputs, or reports/latest without any.
    pub fn or_latest(&self) -> Result<WriteOptions, Failure> {
        let latest = || Output::named("reports/latest").map(|place| vec![place]);
        let output = if self.output.is_empty() { latest()? } else { self.output.clone() };
        Ok(WriteOptions { output, look: self.look.clone() })
    }

    /// Checks, before any work, that every output can be written and is named once.
    pub fn check_writable(&self) -> Result<(), Failure> {
        for (number, place) in self.output.iter().enumerate() {
            if let Some(other) = self.output[..number].iter().find(|other| other.meets(place)) {
                let [one, two] = [other, place].map(|place| place.path.display());
                return Err(Failure::Usage(format!(
                    "expected different outputs, found -o {one} and -o {two}; leave one out"
                )));
            }
        }
        Ok(self.output.iter().try_for_each(Output::try_out)?)
    }

    /// Writes every output, with `more` files for folders, even if another one or printing failed.
    pub fn write(
        &self,
        report: &Report,
        more: &[NamedBytes],
        printed: Result<(), Failure>,
        remarks: RemarkOptions,
    ) -> Result<(), Failure> {
        remove_unfinished_on_signals();
        let mut failures: Vec<Failure> = printed.err().into_iter().collect();
        for place in &self.output {
            match place.write(report, more) {
                Ok(files) if files.is_empty() => {}
                Ok(_) => remarks.remark(&format!("wrote {}", place.path.display())),
                Err(error) => failures.push(error.into()),
            }
        }
        if failures.len() > 1 {
            let texts: Vec<String> = failures.iter().map(Failure::to_string).collect();
            return Err(Failure::Failed(anyhow::anyhow!(texts.join("\nerror: "))));
        }
        failures.pop().map_or(Ok(()), Err)
    }
}

/// The one file that a verb writes, or stdout.
pub struct OneFile(Option<PathBuf>);

impl OneFile {
    /// Checks, before any work, that the file can be written and has one of the `known` endings.
    pub fn at(output: Option<&Path>, known: &[&str]) -> Result<OneFile, Failure> {
        let file = output.map(|path| Output::of_one_file(path, known)).transpose()?.flatten();
        file.iter().try_for_each(|path| report::try_file(path))?;
        Ok(OneFile(file))
    }

    /// Writes text or bytes; bytes must go to a file. `hint` says what the file of this name is for.
    pub fn write(
        &self,
        bytes: impl AsRef<[u8]>,
        remarks: RemarkOptions,
        hint: impl Fn(&str) -> String,
    ) -> Result<(), Failure> {
        let bytes = bytes.as_ref();
        let Some(path) = &self.0 else {
            let text = std::str::from_utf8(bytes);
            return print_text(text.map_err(|_| Failure::usage("cannot print binary data; name a file"))?);
        };
        remove_unfinished_on_signals();
        report::write_atomic(path, bytes)?;
        let path = path.display().to_string();
        remarks.remark(&format!("wrote {path}{}", hint(&path)));
        Ok(())
    }
}

/// Returns a report's provenance: the command line, quoted for a shell, and the program's commit if known. Outputs are left out of the
/// command line, so that a report has the same bytes wherever it is written.
pub fn origin() -> impl Iterator<Item = (String, String)> {
    let given = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let rest = without_outputs(given).into_iter().map(|argument| shell_quoted(&argument));
    let command: Vec<String> = ["pipesim".to_string()].into_iter().chain(rest).collect();
    let commit = Some(env!("PIPESIM_COMMIT")).filter(|commit| *commit != "unknown");
    let pairs = [("command", Some(command.join(" "))), ("commit", commit.map(str::to_string))];
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?)))
}

/// Removes `-o PATH` in all its forms.
fn without_outputs(given: Vec<String>) -> Vec<String> {
    let mut rest = Vec::new();
    let mut given = given.into_iter();
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "-o" | "--output" => drop(given.next()),
            written if written.starts_with("-o") || written.starts_with("--output=") => {}
            _ => rest.push(argument),
        }
    }
    rest
}
