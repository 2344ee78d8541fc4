//! `pipesim completions` and `pipesim man`: shell completions, which call the program with `COMPLETE` set, and manual pages.

use crate::cli::Failure;
use clap::{Command, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use pipesim_language as dsl;
use pipesim_models::hardware;
use pipesim_models::model_spec;
use pipesim_schedule::nearest::{hint, nearest};
use std::ffi::OsStr;
use std::path::Path;

pub const HELP: &str = include_str!("completions.txt");

/// Environment variable that makes this program answer a shell.
const COMPLETE: &str = "COMPLETE";

/// Completes the command line of `program` and exits, if a shell asks for it.
pub fn complete(program: fn() -> Command) {
    if std::env::var_os(COMPLETE).is_some() {
        CompleteEnv::with_factory(|| completed(program())).var(COMPLETE).complete();
    }
}

/// Returns the script that makes `shell` ask this program for completions.
pub fn script(shell: Shell) -> Result<String, Failure> {
    let (name, mut text) = (shell.to_string(), Vec::new());
    let shells = Shells::builtins();
    let completer = shells.completer(&name);
    let completer =
        completer.ok_or_else(|| Failure::Usage(format!("{name} has no completions; take another shell")))?;
    completer.write_registration(COMPLETE, "pipesim", "pipesim", "pipesim", &mut text).map_err(anyhow::Error::from)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(if shell == Shell::Bash { quoting(&text) } else { text })
}

/// Adds quoting to the script for bash, which inserts names unchanged: names with spaces stay one word. A word that is typed in quotes
/// is left alone.
fn quoting(script: &str) -> String {
    const FAILED: &str = "    if [[ $? != 0 ]]; then\n        unset COMPREPLY\n";
    const QUOTED: &str = include_str!("quoting.bash");
    script.replacen(FAILED, &format!("{FAILED}{QUOTED}"), 1)
}

/// Adds completers of values to the command line.
fn completed(program: Command) -> Command {
    let argument = |argument: clap::Arg| match argument.get_id().as_str() {
        "schedule" | "schedules" | "calibrate" => argument.add(ArgValueCompleter::new(schedules)),
        // Verbs that train have a default model and a list of their own.
        "model" if argument.get_default_values().is_empty() => {
            argument.add(ArgValueCompleter::new(|current: &OsStr| named(current, model_spec::names(), "json")))
        }
        "model" => argument.add(ArgValueCompleter::new(|current: &OsStr| {
            fitting(current, model_spec::gpt2::Config::PRESETS.iter().map(|(name, _)| (*name).to_string()))
        })),
        "hardware" => argument.add(ArgValueCompleter::new(|current: &OsStr| {
            named(current, hardware::names().map(str::to_string), "toml")
        })),
        "output" => argument.value_hint(ValueHint::AnyPath),
        _ => argument,
    };
    let verb = |verb: Command| match verb.get_name() {
        "schedules" => verb.mut_arg("name", |name| name.add(ArgValueCompleter::new(names))),
        _ => verb.mut_args(argument).mut_subcommands(|verb| verb.mut_args(argument)),
    };
    program.mut_subcommands(verb)
}

/// Returns the `names` that begin with `current`.
fn fitting(current: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    names.filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

/// Returns the `names` that begin with `current`, and files with this `ending`.
fn named(current: &OsStr, names: impl Iterator<Item = String>, ending: &'static str) -> Vec<CompletionCandidate> {
    let ends = move |path: &Path| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
    let mut found = fitting(current, names);
    found.extend(PathCompleter::file().filter(ends).complete(current));
    found
}

fn names(current: &OsStr) -> Vec<CompletionCandidate> {
    fitting(current, dsl::names().into_iter().map(Into::into))
}

/// Completes the schedule after the last comma: a name, `auto` or a schedule file.
fn schedules(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let (before, last) = text.rfind(',').map_or(("", &*text), |at| text.split_at(at + 1));
    let mut found = names(OsStr::new(last));
    if "auto".starts_with(last) {
        found.push(CompletionCandidate::new("auto"));
    }
    let is_schedule = |path: &Path| {
        path.extension().is_some_and(|ending| ["star", "csv"].iter().any(|known| ending.eq_ignore_ascii_case(known)))
    };
    found.extend(PathCompleter::file().filter(is_schedule).complete(OsStr::new(last)));
    found.into_iter().map(|candidate| candidate.add_prefix(before)).collect()
}

/// Renders the manual page of the program, or of the verb with these names.
pub fn manual(mut program: Command, verb: &[String]) -> Result<String, Failure> {
    program.build();
    let mut described = program;
    for name in verb {
        let known: Vec<String> = described.get_subcommands().map(|verb| verb.get_name().to_string()).collect();
        let found = described.find_subcommand(name).cloned();
        described = found.ok_or_else(|| {
            Failure::Usage(format!(
                "expected a verb, one of {}, found '{name}'{}; give one of these or none",
                known.join(", "),
                hint(&nearest(name, &known.iter().map(String::as_str).collect::<Vec<_>>()))
            ))
        })?;
    }
    let name = [&["pipesim".to_string()], verb].concat().join("-");
    let mut text = Vec::new();
    let source = format!("pipesim {}", env!("CARGO_PKG_VERSION"));
    let page = clap_mangen::Man::new(described).title(name).source(source);
    page.render(&mut text).map_err(anyhow::Error::from)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
