//! What shells complete: verbs and options, the names of schedules, files. The shell asks the program itself, by `COMPLETE`.

use super::Failure;
use crate::{anatomy, dsl, hardware};
use clap::{Command, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use std::ffi::OsStr;
use std::path::Path;

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
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(if shell == Shell::Bash { quoting(&text) } else { text })
}

/// The script for bash with names quoted as the shell reads them, and its names that hold spaces kept whole: bash inserts what it is
/// given as it is. A word that is being typed in quotes of its own is left to those.
fn quoting(script: &str) -> String {
    const FAILED: &str = "    if [[ $? != 0 ]]; then\n        unset COMPREPLY\n";
    const QUOTED: &str = "    elif [[ \"${COMP_WORDS[COMP_CWORD]}\" != [\\\"\\']* ]]; then
        local _CLAP_COMPLETE_NUMBER
        for _CLAP_COMPLETE_NUMBER in \"${!COMPREPLY[@]}\"; do
            local _CLAP_COMPLETE_WORD=\"${COMPREPLY[_CLAP_COMPLETE_NUMBER]}\"
            if [[ \"$_CLAP_COMPLETE_WORD\" == *[!A-Za-z0-9_@%+=:,./~' '-]* || \"${_CLAP_COMPLETE_WORD% }\" == *' '* ]]; then
                printf -v COMPREPLY[_CLAP_COMPLETE_NUMBER] '%q' \"${_CLAP_COMPLETE_WORD% }\"
            fi
        done
    fi
    if [[ ${#COMPREPLY[@]} == 0 ]]; then
        :
";
    script.replacen(FAILED, &format!("{FAILED}{QUOTED}"), 1)
}

/// The command line with what completes its values.
fn completed(program: Command) -> Command {
    let argument = |argument: clap::Arg| match argument.get_id().as_str() {
        id if SCHEDULES.contains(&id) => argument.add(ArgValueCompleter::new(schedules)),
        // Whatever runs on this machine has a model of its own list; what is computed for other hardware any.
        "model" if argument.get_default_values().is_empty() => {
            argument.add(ArgValueCompleter::new(|current: &OsStr| named(current, anatomy::names(), "json")))
        }
        "model" => argument.add(ArgValueCompleter::new(|current: &OsStr| {
            fitting(current, anatomy::gpt2::Config::PRESETS.iter().map(|(name, _)| (*name).to_string()))
        })),
        "hardware" => argument.add(ArgValueCompleter::new(|current: &OsStr| {
            named(current, hardware::names().map(str::to_string), "toml")
        })),
        id if PLACES.contains(&id) => argument.value_hint(ValueHint::AnyPath),
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

/// The same, and files and folders whose names end in `ending`.
fn named(current: &OsStr, names: impl Iterator<Item = String>, ending: &'static str) -> Vec<CompletionCandidate> {
    let ends = move |path: &Path| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
    let mut found = fitting(current, names);
    found.extend(PathCompleter::file().filter(ends).complete(current));
    found
}

/// Names of schedules that begin with `current`.
fn names(current: &OsStr) -> Vec<CompletionCandidate> {
    fitting(current, dsl::names().into_iter().map(Into::into))
}

/// The same after the last comma, `auto`, and files of schedules.
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
