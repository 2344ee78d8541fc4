//! Prints a report to stdout and writes it to files.

use super::Failure;
use super::condition::{Judged, Scope, Verdict};
use super::options::{
    Color, CostOptions, DrawOptions, Format, JudgeOptions, PrintOptions, RemarkOptions, WriteOptions,
};
use super::terminfo;
use super::tidy::tidy_on_signals;
use crate::cost::GivenCosts;
use crate::report::{self, Colors, NamedBytes, Place, Report, is_control, visible};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

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

/// Prints text for people: lines end where the terminal does.
pub fn print_folded(text: &str) -> Result<(), Failure> {
    print(&fold(text, 0))
}

/// Text whose lines end `margin` columns before the terminal does.
pub fn fold(text: &str, margin: usize) -> String {
    report::folded(text, width().map(|width| width.saturating_sub(margin)))
}

/// Prints what is no drawing of our own: on a terminal, control characters in it are shown, not obeyed.
pub fn print_text(text: &str) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() { print(&visible(text, usize::MAX)) } else { print(text) }
}

/// Longest message, in bytes.
const LONGEST: usize = 16 << 10;

/// A line to stderr; one that is closed or full is no failure. What strangers put into it neither steers a terminal nor fills it.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", visible(text, LONGEST));
}

/// A value as JSON.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(format!("{}\n", escaped(&serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?)))
}

/// JSON whose texts hold no characters that steer a terminal; they are written as escapes.
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
        match self.format {
            Format::Json => print(&escaped(&json()?)),
            Format::Table => print_folded(&self.plain(table())),
            Format::Md => print(&self.plain(report::markdown(report))),
            Format::Latex => print(&report::latex(report)),
            Format::Csv => print_text(&csv()),
        }
    }

    /// Prints, for people, what stands for costs that were not given; JSON says it with each prediction.
    pub fn tell_assumed(&self, costs: &CostOptions) -> Result<(), Failure> {
        let Some(line) = costs.costs.as_ref().and_then(GivenCosts::assumption) else { return Ok(()) };
        match self.format {
            Format::Table | Format::Md => print(&self.plain(format!("{line}\n\n"))),
            Format::Latex => print(&format!("% {line}\n")),
            Format::Json | Format::Csv => Ok(()),
        }
    }

    /// In ASCII where that is asked for.
    pub fn plain(&self, text: String) -> String {
        if self.ascii { text.replace('±', "+/-").chars().map(ascii).collect() } else { text }
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

impl Drawing {
    /// The timelines alone.
    pub fn terminal(self, report: &Report) -> String {
        let drawn = report::terminal(
            report,
            width().map_or(100, |width| width.saturating_sub(self.margin)),
            self.ascii,
            self.colors(),
        );
        if self.ascii { drawn.chars().map(ascii).collect() } else { drawn }
    }

    /// The colours to draw with.
    fn colors(self) -> Colors {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0") && set("NO_COLOR").is_none();
        match self.color {
            Color::Never => Colors::None,
            Color::Auto if forced => colors_of_terminal(set).unwrap_or(Colors::Cube),
            Color::Auto if set("NO_COLOR").is_some() || !std::io::stdout().is_terminal() => Colors::None,
            Color::Auto => colors_of_terminal(set).unwrap_or(Colors::None),
            Color::Always => colors_of_terminal(set).unwrap_or(Colors::Cube),
        }
    }
}

impl DrawOptions {
    /// The table and timelines for the terminal.
    pub fn terminal(&self, report: &Report) -> String {
        let drawing = Drawing { ascii: self.print.ascii, color: self.color, margin: 0 };
        let verdict = report::wrapped(&report.verdict, Some(width().unwrap_or(100)));
        let verdict = if report.verdict.is_empty() { String::new() } else { verdict.join("\n") + "\n\n" };
        format!("{verdict}{}\n{}", drawing.terminal(report), table(report))
    }
}

/// How timelines are drawn in the terminal.
#[derive(Clone, Copy, Default)]
pub struct Drawing {
    /// Without other characters.
    pub ascii: bool,
    /// When there are colours.
    pub color: Color,
    /// Columns of the terminal that stay free.
    pub margin: usize,
}

/// The tables of a report as wide as the terminal; in pipes and files, a row is a line.
pub fn table(report: &Report) -> String {
    report::table(report, width())
}

/// Sentences, each on lines of its own that begin after `indent` spaces and end where the terminal does.
pub fn lines(sentences: &[String], indent: usize) -> String {
    let room = width().map(|width| width.saturating_sub(indent).max(20));
    let margin = " ".repeat(indent);
    let lines = sentences.iter().flat_map(|text| report::wrapped(text, room));
    lines.map(|line| format!("{margin}{line}")).collect::<Vec<_>>().join("\n") + "\n"
}

/// The colours that the terminal has, as far as the environment says so.
fn colors_of_terminal(set: impl Fn(&str) -> Option<String>) -> Option<Colors> {
    // Terminals without colours, and those that know 16, by how their names begin.
    const PLAIN: [&str; 2] = ["dumb", "vt"];
    const SIXTEEN: &str =
        "xterm screen tmux rxvt linux ansi cygwin konsole gnome putty foot alacritty kitty st wezterm ghostty";
    let term = set("TERM")?;
    let known = terminfo::colors(&set, &term);
    let begins = |name: &&str| term.starts_with(*name);
    match set("COLORTERM").as_deref() {
        _ if PLAIN.iter().any(begins) => None,
        Some("truecolor" | "24bit") => Some(Colors::True),
        _ if term.ends_with("-direct") => Some(Colors::True),
        _ if known.is_some() => match known.unwrap_or(0) {
            0..8 => None,
            8..256 => Some(Colors::Sixteen),
            256..0x100_0000 => Some(Colors::Cube),
            _ => Some(Colors::True),
        },
        _ if term.contains("256color") => Some(Colors::Cube),
        _ if term.contains("color") || SIXTEEN.split(' ').any(|name| begins(&name)) => Some(Colors::Sixteen),
        _ => None,
    }
}

/// What made a report, for its provenance: the command line, quoted as a shell reads it, and the program's commit, where it is known.
/// Where it is written to is left out: the same report has the same bytes in every place.
pub fn origin() -> impl Iterator<Item = (String, String)> {
    let plain =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_=,.:/+%@".contains(c)) && !text.is_empty();
    let quoted = |text: String| if plain(&text) { text } else { format!("'{}'", text.replace('\'', "'\\''")) };
    let given = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let rest = without_places(given).into_iter().map(quoted);
    let command: Vec<String> = ["pipesim".to_string()].into_iter().chain(rest).collect();
    let commit = Some(env!("PIPESIM_COMMIT")).filter(|commit| *commit != "unknown");
    let pairs = [("command", Some(command.join(" "))), ("commit", commit.map(str::to_string))];
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?)))
}

/// Arguments without `-o PATH` in all its forms.
fn without_places(given: Vec<String>) -> Vec<String> {
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

impl WriteOptions {
    /// Fails now, not after the work, where a place cannot be written or is named twice.
    pub fn check_writable(&self) -> Result<(), Failure> {
        for (number, place) in self.output.iter().enumerate() {
            if let Some(other) = self.output[..number].iter().find(|other| other.meets(place)) {
                let [one, two] = [other, place].map(|place| place.path.display());
                return Err(Failure::Usage(format!(
                    "expected places that differ, found -o {one} and -o {two}; leave one out"
                )));
            }
        }
        Ok(self.output.iter().try_for_each(Place::try_out)?)
    }

    /// Writes every `-o`, also where one fails or printing did.
    pub fn write(&self, report: &Report, printed: Result<(), Failure>, remarks: RemarkOptions) -> Result<(), Failure> {
        self.write_with(report, &[], printed, remarks)
    }

    /// As `write`, with further files for folders.
    pub fn write_with(
        &self,
        report: &Report,
        more: &[NamedBytes],
        printed: Result<(), Failure>,
        remarks: RemarkOptions,
    ) -> Result<(), Failure> {
        tidy_on_signals();
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

/// The one file that a verb writes; stdout where none is asked for.
pub struct OneFile(Option<PathBuf>);

impl OneFile {
    /// Fails now, not after the work, where it cannot be written. `known` are its endings.
    pub fn at(output: Option<&Path>, known: &[&str]) -> Result<OneFile, Failure> {
        let file = output.map(|path| Place::of_one_file(path, known)).transpose()?.flatten();
        file.iter().try_for_each(|path| report::try_file(path))?;
        Ok(OneFile(file))
    }

    /// Writes it; `hint` is what can be done with the file of this name.
    pub fn write(&self, text: &str, remarks: RemarkOptions, hint: impl Fn(&str) -> String) -> Result<(), Failure> {
        match &self.0 {
            None => print_text(text),
            Some(_) => self.write_bytes(text.as_bytes(), remarks, hint),
        }
    }

    /// The same of what is no text.
    pub fn write_bytes(
        &self,
        bytes: &[u8],
        remarks: RemarkOptions,
        hint: impl Fn(&str) -> String,
    ) -> Result<(), Failure> {
        let Some(path) = &self.0 else {
            return Err(Failure::Usage("what is no text goes to a file: name one".to_string()));
        };
        tidy_on_signals();
        report::write_atomic(path, bytes)?;
        let path = path.display().to_string();
        remarks.remark(&format!("wrote {path}{}", hint(&path)));
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
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Threshold(self.0.join("\nerror: "))) }
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
        '≈' => '~',
        c if c.is_ascii() => c, // escape sequences too
        _ => '.',
    }
}

/// Columns of what is printed: as COLUMNS says, else those of the terminal, 80 where it does not say; `None` for pipes and files.
fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    told.or_else(|| {
        let stdout = std::io::stdout();
        let columns = || rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
        stdout.is_terminal().then(|| Some(columns()).filter(|columns| *columns > 0).unwrap_or(80))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_say_which_colours_they_have() {
        let colors = |term: &str, colorterm: &str| {
            let set = |name: &str| {
                Some(if name == "TERM" { term } else { colorterm }.to_string()).filter(|value| !value.is_empty())
            };
            colors_of_terminal(set)
        };
        for (term, colorterm, wanted) in [
            ("xterm-256color", "truecolor", Some(Colors::True)),
            ("xterm", "24bit", Some(Colors::True)),
            ("xterm-direct", "", Some(Colors::True)),
            ("xterm-256color", "", Some(Colors::Cube)),
            ("screen.xterm-256color", "yes", Some(Colors::Cube)),
            ("linux", "", Some(Colors::Sixteen)),
            ("xterm", "", Some(Colors::Sixteen)),
            ("vt100", "truecolor", None),
            ("dumb", "", None),
            ("", "truecolor", None),
            ("wyse60", "", None),
        ] {
            assert_eq!(colors(term, colorterm), wanted, "{term} {colorterm}");
        }
    }

    #[test]
    fn a_report_does_not_tell_where_it_was_written() {
        let given = "predict -p 4 -o a.svg --output b --output=c -od -q --overlap-slowdown 1.1".split(' ');
        let rest = without_places(given.map(str::to_string).collect());
        assert_eq!(rest.join(" "), "predict -p 4 -q --overlap-slowdown 1.1");
    }

    #[test]
    fn json_steers_no_terminal() {
        let value = serde_json::json!({"a": "\u{1b}[31m\u{9b}\u{202e}é\n"});
        let text = json(&value).unwrap();
        assert!(!text.chars().any(|c| c != '\n' && is_control(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
