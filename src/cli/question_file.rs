//! Questions in files: `--save-question` writes the options of a command, `--question` takes them from there.

use super::Failure;
use super::file_kind::mistaken;
use super::job_file;
use super::options::output::OneFile;
use super::question_words::words;
use super::terminal::eprint;
use super::terminal::progress::RemarkOptions;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use pipesim_answer::question::Question;
use pipesim_answer::resolve::{Error, Host, read_text};
use pipesim_jobs::Job;
use pipesim_schedule::sanitize::shell_quoted;
use std::ffi::OsString;
use std::path::PathBuf;

/// Largest file of a question, in bytes.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Args, Clone, Debug, Default)]
pub struct QuestionOptions {
    /// Take options from a file that --save-question wrote; options given here replace its own. The file as first argument does the same
    #[arg(long, value_name = "FILE.toml")]
    question: Option<PathBuf>,
    /// Write the options that say what is asked to a file
    #[arg(long, value_name = "FILE.toml")]
    save_question: Option<PathBuf>,
}

impl QuestionOptions {
    /// Writes the question if that is asked for.
    pub fn save(&self, question: &Question, remarks: RemarkOptions) -> Result<(), Failure> {
        let Some(path) = &self.save_question else { return Ok(()) };
        OneFile::at(Some(path), &[".toml"])?.write(question.to_toml()?, remarks, |_| String::new())
    }
}

/// Arguments, with the options that a file among them stands for.
pub struct Expanded {
    pub arguments: Vec<OsString>,
    /// The job that they were taken from.
    pub job: Option<Job>,
    /// What the job asks.
    pub question: Option<Box<Question>>,
}

/// Adds to the arguments of a command the options in its question file, or of its job, except those that the arguments replace. A question
/// file may be the first argument of the verb.
pub fn expanded(command: &Command, mut arguments: Vec<OsString>, host: &'static dyn Host) -> Result<Expanded, String> {
    let verb = arguments.get(1).and_then(|verb| verb.to_str()).and_then(|verb| command.find_subcommand(verb));
    let takes = |verb: &Command, id: &str| verb.get_arguments().any(|argument| argument.get_id() == id);
    let Some(verb) = verb.filter(|verb| takes(verb, "question") || takes(verb, "job")) else {
        return Ok(Expanded { arguments, job: None, question: None });
    };
    if let Some(file) =
        arguments.get_mut(2).filter(|word| word.to_str().is_some_and(is_file) && takes(verb, "question"))
    {
        *file = format!("--question={}", file.to_string_lossy()).into();
    }
    let names_a_file =
        |word: &OsString| ["--job", "--question"].iter().any(|name| word.to_string_lossy().starts_with(name));
    if !arguments.iter().any(names_a_file) {
        return Ok(Expanded { arguments, job: None, question: None });
    }
    // options that the file makes complete are still missing here
    let matches = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
    let Some((_, given)) = matches.as_ref().ok().and_then(|matches| matches.subcommand()) else {
        return Ok(Expanded { arguments, job: None, question: None });
    };
    let (words, job, question) = match job_file::read(verb.get_name(), given, host)? {
        Some((mut job, Ok(question))) => {
            let typed = |name: &str| {
                let id = argument(verb, name).filter(|_| is_typed(verb, given, name))?.get_id().as_str();
                given.get_raw(id)?.next()?.to_str()?.parse().ok()
            };
            let question = match verb.get_name() {
                "predict" | "explain" => job_file::on_its_gpus(question, &mut job, typed)?,
                "plan" => job_file::with_plans(question, &mut job)?,
                _ => question,
            };
            (job_file::options(verb.get_name(), &job, &question), Some(job), Some(Box::new(question)))
        }
        // a wrong option hides those after it
        Some((_, Err(_))) if is_wrong(command, &arguments) => {
            return Ok(Expanded { arguments, job: None, question: None });
        }
        Some((job, Err(why))) => {
            job_file::unanswered(&job, &arguments);
            return Err(why);
        }
        None => match given.try_get_one::<PathBuf>("question").ok().flatten() {
            Some(path) => (of_question(verb, given, &path.display().to_string(), host)?, None, None),
            None => return Ok(Expanded { arguments, job: None, question: None }),
        },
    };
    let own = words.into_iter().filter(|(name, _)| !is_typed(verb, given, name)).map(|(_, word)| word.into());
    arguments.splice(2..2, own.collect::<Vec<OsString>>());
    Ok(Expanded { arguments, job, question })
}

fn argument<'a>(verb: &'a Command, name: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|one| one.get_long_and_visible_aliases().is_some_and(|all| all.contains(&name)))
}

fn is_typed(verb: &Command, given: &ArgMatches, name: &str) -> bool {
    let source = |one: &Arg| given.value_source(one.get_id().as_str());
    argument(verb, name).is_some_and(|one| source(one) == Some(ValueSource::CommandLine))
}

/// Returns the options that the question in a file stands for, each with its name.
fn of_question(
    verb: &Command,
    given: &ArgMatches,
    path: &str,
    host: &dyn Host,
) -> Result<Vec<(String, String)>, String> {
    let text = read_text(host, path, MOST_BYTES).map_err(|error| error.to_string())?;
    let at = |error: Error| format!("{path}: {error}");
    let mistaken = |error| mistaken("", "question", path).unwrap_or_else(|| at(error));
    let question = Question::from_toml(&text).map_err(mistaken)?;
    let (words, left) = if verb.get_name() == "plan" {
        let (asked, left) = question.of_all_layouts().map_err(at)?;
        (words(&asked, &["seq"]), left)
    } else {
        if !question.gpus.is_empty() && question.stages == [1] && !is_typed(verb, given, "stages") {
            let file = shell_quoted(path);
            return Err(format!("{path}: a question about all layouts; ask `pipesim plan {file}`, or give `stages`"));
        }
        let (asked, left) = question.of_its_layouts();
        (words(&asked, &["stages"]), left)
    };
    if let Some((name, _)) = words.iter().find(|(name, _)| argument(verb, name).is_none()) {
        return Err(format!("{path}: {} has no `{name}`; leave it out of the file", verb.get_name()));
    }
    if !left.is_empty() && given.try_get_one("quiet").ok().flatten() != Some(&true) {
        let left = left.join(", ");
        eprint(&format!("note: {path}: {} leaves out {left}", verb.get_name()));
    }
    Ok(words)
}

/// Whether an option or a value of a command is wrong, rather than missing.
fn is_wrong(command: &Command, arguments: &[OsString]) -> bool {
    let error = command.clone().try_get_matches_from(arguments).err();
    error.is_some_and(|error| error.kind() != ErrorKind::MissingRequiredArgument)
}

fn is_file(word: &str) -> bool {
    !word.starts_with('-') && word.ends_with(".toml")
}
