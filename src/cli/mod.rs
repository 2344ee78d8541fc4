//! The command line: verbs and exit codes.

mod allocator;
mod explorer;
mod failure;
mod file_kind;
mod flags;
mod job_file;
mod options;
mod palettes;
mod question_file;
mod question_words;
mod sandbox;
mod settings;
mod terminal;
mod verbs;
#[cfg(unix)]
mod watchdog;

pub use allocator::Allocator;
pub use failure::Failure;

use clap::builder::ArgPredicate;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use flags::as_flags;
use options::schedules::named_by_default;
use options::{megatron, rules, tips};
use std::ffi::OsString;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use terminal::{eprint, print, signals, wrap};
#[cfg(feature = "training")]
use verbs::{accuracy, doctor, generate, profile, run, train};
use verbs::{check, compare, explain, explore, export, import, plan, predict, schedules, shell, tour, watch};

/// Predict, run and compare pipeline-parallel training schedules.
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

/// The version, with the commit that it was built from and its date, if known.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("PIPESIM_COMMIT"), ", ", env!("PIPESIM_COMMIT_DATE"), ")");

const AFTER: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 invalid or deadlocking schedule, 4 threshold not met, \
5 environment, 6 time-out or hang, 128 + N ended by signal N (130: Ctrl-C).";

/// What the program says without arguments.
const FIRST: &str = "\
pipesim says which pipeline schedule and layout to train with, and what a step costs.
Fast enough?  pipesim predict --job train.sh --hardware h100-sxm --measured 11.9s
Best layout?  pipesim plan --model llama-3-8b --hardware h100-sxm --gpus 32 --batch 256 --seq 8192
Which schedule, and why?  pipesim predict --stages 4 --micro 8 (or explain)
Learn: pipesim tour. Train here: pipesim run --stages 2 --micro 8. In a browser: pipesim explore.
All verbs: pipesim --help. A word: pipesim help bubble.
";

#[derive(Subcommand)]
enum Verb {
    /// Predict timeline, bubble and memory of schedules
    Predict(Box<predict::Predict>),
    /// Find the best layouts of a model on a number of GPUs
    Plan(Box<plan::PlanVerb>),
    /// Train a real GPT-2 or Llama with schedules, measure, and compare with the prediction
    #[cfg(feature = "training")]
    Run(Box<run::Run>),
    /// Train a model to the end, with validation, samples and checkpoints
    #[cfg(feature = "training")]
    Train(Box<train::Train>),
    /// Write text with a model that was trained
    #[cfg(feature = "training")]
    Generate(Box<generate::Generate>),
    /// Measure costs with one schedule, for predict --profile
    #[cfg(feature = "training")]
    Profile(Box<profile::Profile>),
    /// Check that schedules are valid, and with which communication they deadlock
    Check(Box<check::Check>),
    /// Explain why devices idle, what bounds the makespan and what would shorten it
    Explain(Box<explain::Explain>),
    /// Write a schedule for another program
    Export(Box<export::Export>),
    /// Turn profiler traces of a PyTorch run into a timeline
    Import(Box<import::Import>),
    /// Follow a job that records its pipeline with pipesim.record
    Watch(Box<watch::Watch>),
    /// Compare saved timelines
    Compare(compare::Compare),
    /// Report how accurate predictions are
    #[cfg(feature = "training")]
    Report {
        #[command(subcommand)]
        report: ReportVerb,
    },
    /// List the built-in schedules, or show one
    Schedules(schedules::Schedules),
    /// Walk through eight schedules, from naive to zero-bubble
    Tour(tour::Tour),
    /// Show which devices and libraries work here, and how to fix the others
    #[cfg(feature = "training")]
    Doctor(doctor::Doctor),
    /// Open the explorer: schedules in a browser, with sliders
    Explore(explore::Explore),
    /// Print a shell-completion script
    #[command(after_help = shell::HELP)]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program or a verb
    #[command(after_help = "To read it: pipesim man | man -l -")]
    Man {
        /// Verb, as in predict, or report accuracy [default: the program]
        verb: Vec<String>,
    },
}

#[cfg(feature = "training")]
#[derive(Subcommand)]
enum ReportVerb {
    /// Calibrate on one schedule and one m, predict others for several m, and measure all
    Accuracy(Box<accuracy::Accuracy>),
}

pub fn command() -> clap::Command {
    // --batch may replace --micro for a model on hardware
    let micro_may_follow = |micro: clap::Arg| {
        let micro = micro.required(false).required_unless_present_all(["hardware", "batch"]);
        micro.default_value_if("batch", ArgPredicate::IsPresent, "1")
    };
    // a checkpoint has both
    #[cfg(feature = "training")]
    let unless_resumed = |arg: clap::Arg| {
        arg.required(false).required_unless_present("resume").default_value_if("resume", ArgPredicate::IsPresent, "1")
    };
    // profile --hardware and profile --from need no schedule
    #[cfg(feature = "training")]
    let unless_machine = |arg: clap::Arg| {
        let arg = arg.required(false).required_unless_present_any(["machine", "from"]);
        arg.default_value_if("machine", "true", "1").default_value_if("from", ArgPredicate::IsPresent, "1")
    };
    let command = Cli::command()
        .mut_subcommands(|verb| {
            verb.allow_negative_numbers(true).mut_subcommands(|verb| verb.allow_negative_numbers(true))
        })
        .mut_subcommand("predict", |predict| {
            let several = |arg: clap::Arg| {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                arg.help(format!("{help}; several: 4,8,16 or 4..64*2 or 4..16+4"))
            };
            predict.mut_arg("micro", micro_may_follow).mut_arg("stages", several).mut_arg("micro", several)
        })
        .mut_subcommand("explain", |explain| {
            let unless_measured = |arg: clap::Arg| {
                let arg = arg.required(false).required_unless_present("timeline");
                arg.default_value_if("timeline", ArgPredicate::IsPresent, "1")
            };
            explain
                .mut_arg("micro", |micro| unless_measured(micro_may_follow(micro)))
                .mut_arg("stages", unless_measured)
        });
    #[cfg(feature = "training")]
    let command = command
        .mut_subcommand("train", |train| {
            train::described(train.mut_arg("stages", unless_resumed).mut_arg("micro", unless_resumed))
        })
        .mut_subcommand("profile", |profile| {
            profile.mut_arg("stages", unless_machine).mut_arg("micro", unless_machine)
        });
    command
}

/// Parses the command line.
pub fn parse<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>) -> Result<Cli, clap::Error> {
    let mut command = command();
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let verb = arguments.get(1).and_then(|verb| command.find_subcommand(verb));
    let arguments = megatron::as_recompute(verb, arguments.clone())
        .map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, format!("{why}\n")))?;
    let arguments = settings::completed(&command, arguments)
        .map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, format!("{why}\n")))?;
    let question_file::Expanded { arguments, job, question } =
        question_file::expanded(&command, arguments, &sandbox::Sandbox)
            .map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, flags::as_flags(format!("{why}\n"))))?;
    let matches = command.try_get_matches_from_mut(&arguments).map_err(|mut error| {
        let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        tips::improve(&mut error, &mut command, &words);
        job.iter().for_each(|job| job_file::unanswered(job, &arguments));
        error
    })?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    let job = job.map(Box::new);
    if let Some((_, given)) = matches.subcommand() {
        let typed = |option| given.value_source(option) == Some(ValueSource::CommandLine);
        match &mut cli.verb {
            Verb::Predict(predict) => {
                predict.remarks.has_job = job.is_some();
                (predict.micro_given, predict.draw.print.job) = (typed("micro"), job);
            }
            Verb::Explain(explain) => {
                explain.remarks.has_job = job.is_some();
                (explain.micro_given, explain.print.job) = (typed("micro"), job);
            }
            Verb::Plan(plan) => (plan.print.job, plan.mine.question) = (job, question),
            Verb::Check(check) => check.print.job = job,
            #[cfg(feature = "training")]
            Verb::Train(train) => train.given = ["stages", "micro", "tp", "dp", "zero"].map(typed),
            _ => {}
        }
    }
    let checked = rules::check(&command, &matches);
    checked.map_err(|why| clap::Error::raw(ErrorKind::ArgumentConflict, format!("{why}\n")))?;
    Ok(cli)
}

/// Says what the program is for if no arguments are given, or what a word of the glossary means.
fn helped(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.len() <= 1 {
        eprint(FIRST.trim_end());
        return Some(ExitCode::from(2));
    }
    let [_, help, first, ..] = arguments else { return None };
    if help != "help"
        || first
            .to_str()
            .is_none_or(|word| word.starts_with('-') || word == "help" || command().find_subcommand(word).is_some())
    {
        return None;
    }
    let word = arguments[2..].iter().filter_map(|word| word.to_str()).collect::<Vec<_>>().join(" ");
    let meaning = pipesim_report::meaning(&word).or_else(|near| match pipesim_language::named(&word) {
        Ok(file) => pipesim_language::describe(&file).map_err(|_| near).map(
            |pipesim_language::Description { name, summary, .. }| {
                vec![format!("{name} is a schedule: {summary} `pipesim schedules {name}` draws it.")]
            },
        ),
        Err(_) => Err(near),
    });
    Some(match meaning {
        Ok(meaning) => print(&wrap(&meaning, 0)).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Err(near) => {
            eprint(&format!(
                "error: expected a verb or a word of the glossary after help, found {word}{near}; `pipesim help` lists the verbs"
            ));
            ExitCode::from(2)
        }
    })
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    pipesim_system::set_commit(env!("PIPESIM_COMMIT"));
    shell::complete(command);
    #[cfg(feature = "training")]
    pipesim_gpu::prepare();
    if let Some(code) = helped(&std::env::args_os().collect::<Vec<_>>()) {
        return code;
    }
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(refused) if refused.use_stderr() => {
            let text = refused.render().to_string();
            let is_of_value = refused.kind() == ErrorKind::ValueValidation; // the library's own words
            eprint(if is_of_value { as_flags(&text) } else { text }.trim_end());
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    // A panic becomes an error below, or is reported by the session of its thread; it must not be printed twice.
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(cli.verb))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a message");
        Err(anyhow::anyhow!("a bug in pipesim: {text}; run again with RUST_BACKTRACE=1 and report what it prints")
            .into())
    });
    let code = match result {
        Ok(()) => 0,
        Err(Failure::Reported(code)) => code,
        Err(Failure::Stopped(text, code)) => {
            eprint(&text);
            code
        }
        Err(failure) => {
            let failure = match command().try_get_matches_from(std::env::args_os()) {
                Ok(matches) => named_by_default(file_kind::instead(failure, &matches), &matches),
                Err(_) => failure,
            };
            eprint(&format!("error: {failure}"));
            failure.code()
        }
    };
    let _ = std::io::stdout().flush();
    signals::exit(code)
}

fn run(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Predict(verb) => verb.run(),
        Verb::Plan(verb) => verb.run(),
        #[cfg(feature = "training")]
        Verb::Run(verb) => verb.run(),
        #[cfg(feature = "training")]
        Verb::Train(verb) => verb.run(),
        #[cfg(feature = "training")]
        Verb::Generate(verb) => verb.run(),
        #[cfg(feature = "training")]
        Verb::Profile(verb) => verb.run(),
        Verb::Check(verb) => verb.run(),
        Verb::Explain(verb) => verb.run(),
        Verb::Export(verb) => verb.run(),
        Verb::Import(verb) => verb.run(),
        Verb::Watch(verb) => verb.run(),
        Verb::Compare(verb) => verb.run(),
        #[cfg(feature = "training")]
        Verb::Report { report: ReportVerb::Accuracy(verb) } => verb.run(),
        Verb::Schedules(verb) => verb.run(),
        Verb::Tour(verb) => verb.run(),
        Verb::Explore(verb) => verb.run(command),
        #[cfg(feature = "training")]
        Verb::Doctor(verb) => verb.run(),
        Verb::Completions { shell } => print(&shell::script(shell)?),
        Verb::Man { verb } => print(&shell::manual(command(), &verb)?),
    }
}
