//! Training jobs in place of options: `--job` reads a launch script, a configuration or a log.

use super::Failure;
use super::options::output::{Format, PrintOptions};
use super::options::values::{Numbers, whole};
use super::question_words::words;
use clap::{ArgMatches, Args, FromArgMatches};
use pipesim_answer::question::Question;
use pipesim_answer::resolve::Host;
use pipesim_jobs::{GivenJob, Job};
use pipesim_verdict::asked;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "A training job")]
pub struct JobOptions {
    /// Take options from a training job: a launch script, a configuration or a log of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron, ms-swift or Primus; - is standard input; without a file, a command after --
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "")]
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
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 27))]
    gpus: Option<u32>,
}

/// A job that a command line gives, and what it asks.
type Asked = (Job, Result<Question, String>);

/// Reads the job that a command line gives to a verb, with its question; `None` without.
pub fn read(verb: &str, given: &ArgMatches, host: &'static dyn Host) -> Result<Option<Asked>, String> {
    if !given.try_contains_id("job").unwrap_or(false) {
        return Ok(None);
    }
    if given.try_get_one::<PathBuf>("question").ok().flatten().is_some() {
        return Err("expected --job or --question, found both; give one".to_string());
    }
    if let Some(name) =
        ["costs", "profile", "timeline"].iter().find(|name| given.try_contains_id(name).unwrap_or(false))
    {
        return Err(format!(
            "expected `job` without `{name}`: its costs follow from the hardware; leave one of them out"
        ));
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
        model: given.try_get_one::<String>("model").ok().flatten().cloned(),
    };
    let mut job = job.read().map_err(|error| error.to_string())?;
    let hardware = given.try_get_one::<String>("hardware").ok().flatten();
    let question = asked::complete(&mut job, hardware.map(String::as_str), host).map_err(|error| error.to_string());
    let question = question.and_then(|question| match hardware {
        None if verb != "check" => Err(
            "expected `hardware` with `job`, which does not say on what it runs; give it, as in `hardware` h100-sxm"
                .to_string(),
        ),
        _ if question.model.is_none() && given.value_source("model").is_none() && verb != "check" => {
            let name = job.model.as_deref().map_or_else(
                || "which it does not say".to_string(),
                |name| format!("{name}, which is no built-in one"),
            );
            Err(format!("expected the sizes of the job's model, {name}; give its config.json with `model`"))
        }
        _ => Ok(question),
    });
    Ok(Some((job, question)))
}

/// Keeps a job's number of GPUs where sizes are given beside it: the data-parallel size follows.
pub fn on_its_gpus(question: Question, job: &mut Job, typed: impl Fn(&str) -> Option<u32>) -> Result<Question, String> {
    let sizes = [("tp", question.tp[0]), ("stages", question.stages[0]), ("cp", question.cp)];
    let given: Vec<(&str, u32)> = sizes.iter().filter_map(|(name, _)| Some((*name, typed(name)?))).collect();
    let world = job.reading.world.filter(|_| !given.is_empty() && typed("dp").is_none());
    let Some(world) = world else { return Ok(question) };
    let size = |(name, of_job): (&str, u32)| typed(name).unwrap_or(of_job);
    let all = sizes.into_iter().map(size).try_fold(1u32, u32::checked_mul).unwrap_or(0);
    let named: Vec<String> = given.iter().map(|(name, size)| format!("`{name}` {size}")).collect();
    let named = named.join(" and ");
    if all == 0 || world % all != 0 {
        return Err(format!(
            "expected tp · stages · cp to divide the job's {world} GPUs, found {all} with {named}; give `dp`, too, or other sizes"
        ));
    }
    let dp = world / all;
    job.assumed.push(format!("`dp` {dp}, as {named} is given beside the job of {world} GPUs"));
    Ok(Question { dp: vec![dp], ..question })
}

/// Says what plans do without; their rank means nothing if the job trains less than they do.
pub fn with_plans(question: Question, job: &mut Job) -> Result<Question, String> {
    let tuned = [("lora", question.lora.is_some()), ("packed", !question.packed.is_empty())];
    if let Some((name, _)) = tuned.iter().find(|(_, is_asked)| *is_asked) {
        return Err(format!("plans are made without `{name}`, which the job has; predict it, or plan by options"));
    }
    if question.optimizer_offload > 0.0 {
        job.assumed.push("plans keep the optimizer on the GPUs, unlike the job".to_string());
    }
    Ok(question)
}

/// Prints what was understood of a job that these arguments ask nothing of.
pub fn unanswered(job: &Job, arguments: &[OsString]) {
    let is_json = arguments.iter().any(|word| word == "--format=json")
        || arguments.windows(2).any(|words| words[0] == "--format" && words[1] == "json");
    let format = if is_json { Format::Json } else { Format::Table };
    drop(PrintOptions { format, ascii: false, job: Some(Box::new(job.clone())) }.without_answer(Failure::Reported(2)));
}

/// Returns the options of a verb that a job stands for, each with its name.
pub fn options(verb: &str, job: &Job, question: &Question) -> Vec<(String, String)> {
    match verb {
        "plan" => words(&asked::of_all_layouts(question), &["seq"]),
        "check" => words(&asked::of_schedule(job, question), &["stages"]),
        _ => words(question, &["stages", "seq"]),
    }
}
