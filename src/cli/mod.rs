//! The command line: verbs, exit codes, and where output goes.

mod accuracy;
mod check;
mod choice;
mod compare;
mod completions;
mod condition;
mod devices;
#[cfg(feature = "cuda")]
mod doctor;
mod engine;
mod explain;
mod export;
mod failure;
mod foreign;
mod grid;
mod guard;
mod hardware;
mod leave;
mod look;
mod manual;
mod memory;
mod model;
mod needs;
mod numbers;
mod options;
mod output;
mod predict;
mod profile;
mod progress;
mod run;
mod schedules;
mod selection;
mod signals;
mod terminfo;
mod tidy;
mod tips;
mod tour;

pub use failure::Failure;
pub use memory::Memory;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Pipeline-parallel training schedules: predicted, really run, compared.
///
/// Examples:
///   pipesim predict --stages 4 --micro 8
///   pipesim run --stages 2 --micro 8
///   pipesim predict --stages 8 --micro 32 --schedule zb-v --costs F=1,I=1,W=0.6,comm=0.05 -o zb-v.svg
#[derive(Parser)]
#[command(name = "pipesim", version = VERSION, verbatim_doc_comment, after_help = AFTER)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// The version, with the commit that it was built from and that one's day, where the build knew them.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("PIPESIM_COMMIT"), ", ", env!("PIPESIM_COMMIT_DATE"), ")");

const AFTER: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 invalid or deadlocking schedule, 4 threshold not met, \
5 environment, 6 time-out or hang, 128 + N ended by signal N (130: Ctrl-C).";

#[derive(Subcommand)]
enum Verb {
    /// Predict timeline, bubble and memory of schedules
    Predict(Box<predict::Predict>),
    /// Really train GPT-2 under schedules, measure, and compare with the prediction
    Run(Box<run::Run>),
    /// Measure costs under one schedule, for predict --profile
    Profile(Box<profile::Profile>),
    /// Say whether schedules are valid, and under which deliveries they run to their end
    Check(Box<check::Check>),
    /// Say why devices idle, what bounds the makespan and what would shorten it
    Explain(Box<explain::Explain>),
    /// Write a schedule for other programs
    Export(Box<export::Export>),
    /// Hold timelines from files against each other
    Compare(compare::Compare),
    /// Make a report from measurements of its own
    Report {
        #[command(subcommand)]
        report: ReportVerb,
    },
    /// List the schedules that come with the program, or show one
    Schedules(schedules::Schedules),
    /// Walk through eight schedules, from naive to zero-bubble
    Tour(tour::Tour),
    /// Say what of this machine can be used, and what to do about the rest
    #[cfg(feature = "cuda")]
    Doctor(doctor::Doctor),
    /// Print what has a shell complete verbs, options, names of schedules and files
    #[command(after_help = completions::HELP)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program, or of a verb
    #[command(after_help = "To read it: pipesim man | man -l -")]
    Man {
        /// Which verb, as in predict, or report accuracy
        verb: Vec<String>,
    },
}

#[derive(Subcommand)]
enum ReportVerb {
    /// Calibrate on one schedule and one m, predict all others for several m, measure them all
    Accuracy(Box<accuracy::Accuracy>),
}

/// The description of the command line.
pub fn command() -> clap::Command {
    // a batch may stand for the number of micro-batches, where a model on hardware is asked about
    let micro_may_follow = |micro: clap::Arg| micro.required(false).default_value("1").hide_default_value(true);
    // nor is a machine measured under a schedule
    let unless_machine = |arg: clap::Arg| {
        arg.required(false).required_unless_present("machine").default_value_if("machine", "true", "1")
    };
    Cli::command()
        .mut_subcommands(|verb| {
            verb.allow_negative_numbers(true).mut_subcommands(|verb| verb.allow_negative_numbers(true))
        })
        .mut_subcommand("predict", |predict| predict.mut_arg("micro", micro_may_follow))
        .mut_subcommand("profile", |profile| profile.mut_arg("stages", unless_machine).mut_arg("micro", unless_machine))
}

/// What is asked for.
///
/// # Errors
/// Arguments that no verb takes, or that do not go together; also where they ask for help.
pub fn asked<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>) -> Result<Cli, clap::Error> {
    let mut command = command();
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let matches = command.try_get_matches_from_mut(&arguments).map_err(|mut error| {
        let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        tips::improve(&mut error, &mut command, &words);
        error
    })?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if let (Verb::Predict(predict), Some((_, given))) = (&mut cli.verb, matches.subcommand()) {
        let typed = |option| given.value_source(option) == Some(ValueSource::CommandLine);
        predict.micro_given = typed("micro");
        let follows = typed("hardware") && typed("batch");
        if !(predict.micro_given || follows) {
            let what = "the following required arguments were not provided:\n  --micro <M>";
            let verb = command.find_subcommand_mut("predict");
            let error = |verb: &mut clap::Command| verb.error(ErrorKind::MissingRequiredArgument, what);
            return Err(verb.map_or_else(|| clap::Error::raw(ErrorKind::MissingRequiredArgument, what), error));
        }
    }
    let fits = needs::check(&command, &matches);
    fits.map_err(|why| clap::Error::raw(ErrorKind::ArgumentConflict, format!("{why}\n")))?;
    Ok(cli)
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    completions::answer(command);
    #[cfg(feature = "cuda")]
    crate::cuda::prepare();
    let cli = match asked(std::env::args_os()) {
        Ok(cli) => cli,
        Err(refused) if refused.use_stderr() => {
            output::tell(refused.render().to_string().trim_end());
            return ExitCode::from(2);
        }
        Err(asked) => asked.exit(),
    };
    // A panic becomes an error below, or is reported by the session whose thread it ended: not printed twice.
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let result = std::panic::catch_unwind(|| run(cli.verb)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a text");
        Err(anyhow::anyhow!("a bug in pipesim: {text}; run again with RUST_BACKTRACE=1 and report what it prints")
            .into())
    });
    let code = match result {
        Ok(()) => 0,
        Err(Failure::Told(code)) => code,
        Err(Failure::Stopped(text, code)) => {
            output::tell(&text);
            code
        }
        Err(failure) => {
            output::tell(&format!("error: {failure}"));
            failure.code()
        }
    };
    let _ = std::io::stdout().flush();
    leave::leave(code)
}

fn run(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Predict(verb) => verb.run(),
        Verb::Run(verb) => verb.run(),
        Verb::Profile(verb) => verb.run(),
        Verb::Check(verb) => verb.run(),
        Verb::Explain(verb) => verb.run(),
        Verb::Export(verb) => verb.run(),
        Verb::Compare(verb) => verb.run(),
        Verb::Report { report: ReportVerb::Accuracy(verb) } => verb.run(),
        Verb::Schedules(verb) => verb.run(),
        Verb::Tour(verb) => verb.run(),
        #[cfg(feature = "cuda")]
        Verb::Doctor(verb) => verb.run(),
        Verb::Completions { shell } => output::print(&completions::script(shell)?),
        Verb::Man { verb } => output::print(&manual::page(command(), &verb)?),
    }
}
