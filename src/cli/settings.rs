//! `pipesim.toml`: options that a project does not want to type again.
//!
//! The file is looked for in the working folder and in those above it. An option on the command line wins; a command with costs of its own, or
//! with a question in a file, has no use for a model on hardware.

use super::palettes::palette_named;
use super::terminal::eprint;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use pipesim_report::Palette;
use pipesim_schedule::nearest::{hint, nearest};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Name of the file.
const NAME: &str = "pipesim.toml";
/// Variable with the path of a file to take instead; empty for none.
const FILE_VARIABLE: &str = "PIPESIM_CONFIG";
/// Variable with the palette of pictures and the terminal.
const PALETTE_VARIABLE: &str = "PIPESIM_PALETTE";
/// Options of a model on hardware.
const ASKED: [&str; 4] = ["model", "hardware", "stack", "framework-version"];
const PALETTE: &str = "palette";
/// Verbs whose question the file completes.
const VERBS: [&str; 3] = ["predict", "plan", "explain"];
/// Options that have costs, or the whole question, of their own.
const COMPLETE: [&str; 6] = ["costs", "costs-per", "profile", "question", "timeline", "from"];
/// Largest file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// What a file says.
struct Settings {
    path: PathBuf,
    /// Values by option, in the order of [`ASKED`].
    asked: Vec<(&'static str, String)>,
    palette: Option<Palette>,
}

/// Returns the file of the working folder or of the nearest folder above it.
fn file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        return (!path.is_empty()).then(|| path.into());
    }
    let folder = std::env::current_dir().ok()?;
    folder.ancestors().map(|folder| folder.join(NAME)).find(|path| path.is_file())
}

/// Reads a file; a path to a model or hardware is relative to it.
fn read(path: PathBuf) -> Result<Settings, String> {
    let shown = path.display().to_string();
    let size = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    let text = size.filter(|size| *size <= MOST_BYTES).and_then(|_| std::fs::read_to_string(&path).ok());
    let text = text.ok_or_else(|| {
        format!("{shown}: expected a text file of at most 1 MiB, found none; set {FILE_VARIABLE} to another")
    })?;
    let table: toml::Table = text
        .parse()
        .map_err(|error| format!("{shown}: expected TOML such as model = \"llama-3-8b\", found: {error}"))?;
    let mut settings = Settings { path, asked: Vec::new(), palette: None };
    for (key, value) in &table {
        let known: Vec<&'static str> = ASKED.into_iter().chain([PALETTE]).collect();
        let option = known.iter().find(|name| *name == key).ok_or_else(|| {
            let near = hint(&nearest(key, &known));
            format!("{shown}: expected {}, found {key}{near}; leave it out", known.join(", "))
        })?;
        let value = value.as_str().ok_or_else(|| {
            format!("{shown}: expected {key} to be a text in quotes, found a value of type {}", value.type_str())
        })?;
        if *option == PALETTE {
            settings.palette = Some(palette_named(value).map_err(|why| format!("{shown}: {why}"))?);
        } else {
            settings.asked.push((option, beside(&settings.path, value)));
        }
    }
    settings.asked.sort_by_key(|(option, _)| ASKED.iter().position(|name| name == option));
    Ok(settings)
}

/// Returns the path of a file beside `path`, if there is one with this name.
fn beside(path: &Path, value: &str) -> String {
    let near = path.parent().map(|folder| folder.join(value)).filter(|near| near.exists());
    let is_path = value.contains(['/', '.']);
    near.filter(|_| is_path).map_or_else(|| value.to_string(), |near| near.display().to_string())
}

/// Returns what the file and the environment say, once.
fn settings() -> &'static Result<Option<Settings>, String> {
    static SETTINGS: OnceLock<Result<Option<Settings>, String>> = OnceLock::new();
    SETTINGS.get_or_init(|| file().map(read).transpose())
}

/// Returns the palette that is set for pictures without one.
pub fn palette() -> Option<Palette> {
    let variable = std::env::var(PALETTE_VARIABLE).ok().filter(|name| !name.is_empty());
    let named = variable.and_then(|name| palette_named(&name).ok());
    named.or_else(|| settings().as_ref().ok()?.as_ref()?.palette)
}

/// Adds the file's options to the arguments of a verb that asks about a model on hardware and lacks them.
///
/// # Errors
/// The file cannot be read or says what no option takes; or the variable of the palette names none.
pub fn completed(command: &Command, mut arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    if let Some(name) = std::env::var(PALETTE_VARIABLE).ok().filter(|name| !name.is_empty()) {
        palette_named(&name).map_err(|why| format!("{PALETTE_VARIABLE}: {why}"))?;
    }
    let Some(verb) = arguments.get(1).and_then(|verb| verb.to_str()).filter(|verb| VERBS.contains(verb)) else {
        return Ok(arguments);
    };
    let is_help = arguments.iter().any(|word| word == "--help" || word == "-h");
    let is_question = arguments.get(2).and_then(|word| word.to_str()).is_some_and(|word| word.ends_with(".toml"));
    if is_help || is_question || matches!(settings(), Ok(None)) {
        return Ok(arguments);
    }
    let matches = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
    let Some((_, given)) = matches.as_ref().ok().and_then(|matches| matches.subcommand()) else {
        return Ok(arguments);
    };
    if COMPLETE.iter().any(|option| is_typed(given, option)) {
        return Ok(arguments);
    }
    let Some(settings) = settings().as_ref().map_err(Clone::clone)? else { return Ok(arguments) };
    let has = |option: &str| is_typed(given, option) || settings.asked.iter().any(|(name, _)| *name == option);
    let has_model = has("model") || is_typed(given, "job");
    if !(has_model && has("hardware")) {
        return Ok(arguments);
    }
    let is_lacking = |option: &str| {
        let is_known = verb_takes(command, verb, option);
        let is_of_another = option == "framework-version" && is_typed(given, "stack");
        let is_of_job = option != "hardware" && is_typed(given, "job");
        is_known && !(is_of_another || is_of_job || is_typed(given, option))
    };
    let added: Vec<String> = settings
        .asked
        .iter()
        .filter(|(option, _)| is_lacking(option))
        .map(|(option, value)| format!("--{option}={value}"))
        .collect();
    if !added.is_empty() && given.try_get_one("quiet").ok().flatten() != Some(&true) {
        eprint(&format!("note: {} adds {}", settings.path.display(), added.join(" ")));
    }
    arguments.splice(2..2, added.into_iter().map(OsString::from));
    Ok(arguments)
}

fn is_typed(given: &ArgMatches, option: &str) -> bool {
    let id = option.replace('-', "_");
    given.try_contains_id(&id).unwrap_or(false) && given.value_source(&id) == Some(ValueSource::CommandLine)
}

fn verb_takes(command: &Command, verb: &str, option: &str) -> bool {
    let verb = command.find_subcommand(verb);
    verb.is_some_and(|verb| verb.get_arguments().any(|argument| argument.get_long() == Some(option)))
}
