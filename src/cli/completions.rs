//! What shells complete: verbs and options, the names of schedules, files. The shell asks the program itself, by `COMPLETE`.

use super::Failure;
use crate::dsl;
use clap::{Command, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use std::ffi::OsStr;

pub const HELP: &str = "Where it goes, so that each new shell has it:
  bash        echo 'source <(pipesim completions bash)' >> ~/.bashrc
  zsh         echo 'source <(pipesim completions zsh)' >> ~/.zshrc
  fish        pipesim completions fish > ~/.config/fish/completions/pipesim.fish
  elvish      echo 'eval (pipesim completions elvish | slurp)' >> ~/.config/elvish/rc.elv
  powershell  pipesim completions powershell | Out-String | Invoke-Expression";

/// What has a shell ask this program.
const ASKS: &str = "COMPLETE";

/// Options that are given schedules.
const SCHEDULES: [&str; 2] = ["schedule", "calibrate"];
/// Options that are given places to write to.
const PLACES: [&str; 1] = ["output"];

/// Answers a shell that asks what completes the command line of `program`, and ends; does nothing otherwise.
pub fn answer(program: fn() -> Command) {
    if std::env::var_os(ASKS).is_some() {
        CompleteEnv::with_factory(|| completed(program())).var(ASKS).complete();
    }
}

/// What has `shell` ask the program called `pipesim`.
pub fn script(shell: Shell) -> Result<String, Failure> {
    let (name, mut text) = (shell.to_string(), Vec::new());
    let shells = Shells::builtins();
    let completer = shells.completer(&name);
    let completer =
        completer.ok_or_else(|| Failure::Usage(format!("{name} has no completions; take another shell")))?;
    completer.write_registration(ASKS, "pipesim", "pipesim", "pipesim", &mut text).map_err(anyhow::Error::from)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The command line with what completes its values.
fn completed(program: Command) -> Command {
    let argument = |argument: clap::Arg| match argument.get_id().as_str() {
        id if SCHEDULES.contains(&id) => argument.add(ArgValueCompleter::new(schedules)),
        id if PLACES.contains(&id) => argument.value_hint(ValueHint::AnyPath),
        _ => argument,
    };
    let verb = |verb: Command| match verb.get_name() {
        "schedules" => verb.mut_arg("name", |name| name.add(ArgValueCompleter::new(names))),
        _ => verb.mut_args(argument).mut_subcommands(|verb| verb.mut_args(argument)),
    };
    program.mut_subcommands(verb)
}

/// Names of schedules that begin with `current`.
fn names(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fitting = dsl::names().into_iter().filter(|name| name.starts_with(&*current));
    fitting.map(CompletionCandidate::new).collect()
}

/// The same after the last comma, `auto`, and files of schedules.
fn schedules(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let (before, last) = text.rfind(',').map_or(("", &*text), |at| text.split_at(at + 1));
    let mut found = names(OsStr::new(last));
    if "auto".starts_with(last) {
        found.push(CompletionCandidate::new("auto"));
    }
    let is_schedule = |path: &std::path::Path| {
        path.extension().is_some_and(|ending| ["star", "csv"].iter().any(|known| ending.eq_ignore_ascii_case(known)))
    };
    found.extend(PathCompleter::file().filter(is_schedule).complete(OsStr::new(last)));
    found.into_iter().map(|candidate| candidate.add_prefix(before)).collect()
}
