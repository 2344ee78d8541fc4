//! Training jobs in place of options: `--job` reads a launch script, a configuration or a log.

use super::options::values::{Numbers, whole};
use super::question_file::words;
use clap::{ArgMatches, Args, FromArgMatches};
use pipesim_answer::question::Question;
use pipesim_answer::resolve::Host;
use pipesim_jobs::{GivenJob, Job};
use pipesim_verdict::asked;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "A training job")]
pub struct JobOptions {
    /// Take options from a training job: a launch script, a configuration or a log of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron, ms-swift or Primus; - is standard input; without a file, a command after --
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "", conflicts_with = "question")]
    job: Option<String>,
    /// Further file that the job reads, unless it is beside it; repeatable
    #[arg(long, value_name = "FILE", requires = "job")]
    job_file: Vec<String>,
    /// Variable that the job was started with; repeatable
    #[arg(long, value_name = "NAME=VALUE", requires = "job")]
    job_env: Vec<String>,
    /// Arguments that the job was started with
    #[arg(long, value_name = "ARGS", requires = "job", allow_hyphen_values = true)]
    job_args: Option<String>,
    /// The command of the job
    #[arg(last = true, value_name = "COMMAND", requires = "job")]
    job_command: Vec<String>,
}

/// The number of GPUs of a job, for verbs that ask for it in no other way.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "A training job")]
pub struct JobGpus {
    /// Number of GPUs, if the job does not say it
    #[arg(long, value_name = "N", requires = "job", value_parser = whole::<u32>(1..=1 << 27))]
    gpus: Option<u32>,
}

/// Reads the job that a command line gives to a verb, with its question; `None` without.
pub fn read(verb: &str, given: &ArgMatches, host: &'static dyn Host) -> Result<Option<(Job, Question)>, String> {
    if !given.try_contains_id("job").unwrap_or(false) {
        return Ok(None);
    }
    let options = JobOptions::from_arg_matches(given).map_err(|error| error.to_string())?;
    let gpus = match verb {
        "plan" => given.get_one::<Numbers>("gpus").and_then(|all| all.all().first().copied()),
        _ => JobGpus::from_arg_matches(given).map_err(|error| error.to_string())?.gpus,
    };
    let job = GivenJob {
        file: options.job.filter(|file| !file.is_empty()),
        command: options.job_command,
        further: options.job_file,
        environment: options.job_env,
        arguments: options.job_args,
        gpus,
    };
    let mut job = job.read().map_err(|error| error.to_string())?;
    let hardware = given.try_get_one::<String>("hardware").ok().flatten();
    let question = asked::complete(&mut job, hardware.map(String::as_str), host).map_err(|error| error.to_string())?;
    Ok(Some((job, question)))
}

/// Returns the options of a verb that a job stands for, each with its name.
pub fn options(verb: &str, job: &Job, question: &Question) -> Vec<(String, String)> {
    match verb {
        "plan" => words(&asked::of_all_layouts(question), &["seq"]),
        "check" => words(&asked::of_schedule(job, question), &["stages"]),
        _ => words(question, &["stages", "seq"]),
    }
}
