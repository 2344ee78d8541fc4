//! Which kind of file a job is, and reading it.

use crate::error::{JobError, Missing};
use crate::job::Job;
use crate::launch::Launch;
use crate::setting::Settings;
use crate::source::Sources;
use crate::{config, log, megatron, shell};
use std::io::BufRead;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A shell script, or a pasted command.
    Shell,
    /// A log, which is read as a stream.
    Log,
    /// YAML, TOML or JSON.
    Configuration,
}

impl FileKind {
    /// Returns the kind of a file by its name and the start of its text.
    pub fn of(name: &str, head: &str) -> FileKind {
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_lowercase();
        let trimmed = head.trim_start_matches('\u{feff}').trim_start();
        match ending.as_str() {
            "yaml" | "yml" | "toml" | "json" => FileKind::Configuration,
            "sh" | "bash" | "sbatch" | "slurm" => FileKind::Shell,
            _ if trimmed.starts_with("#!") || trimmed.starts_with("--") => FileKind::Shell,
            _ if trimmed.starts_with('{') && !log::is_log(head) => FileKind::Configuration,
            _ if log::is_log(head) => FileKind::Log,
            _ if is_configuration(trimmed) => FileKind::Configuration,
            _ => FileKind::Shell,
        }
    }
}

/// Whether the first line with a content is a section or a key of YAML or TOML.
fn is_configuration(text: &str) -> bool {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or("");
    let key = line.split([':', '=']).next().unwrap_or("").trim_end();
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let is_key = line.ends_with(':') || line.contains(": ") || line.contains(" = ");
    (line.starts_with('[') && line.ends_with(']')) || (is_name(key) && is_key)
}

/// Reads a job from the texts of its files; [`read_log`] reads logs.
///
/// # Errors
/// The files are no job, or say too little.
pub fn read(sources: &Sources) -> Result<Job, JobError> {
    let first = sources.files.first().map(|file| (file.name.as_str(), file.text.as_str())).unwrap_or_default();
    if FileKind::of(first.0, first.1) == FileKind::Configuration {
        let found = match megatron::yaml::read(sources)? {
            Some(job) => Some(job),
            None => config::read(sources)?,
        };
        let why = "expected the configuration of Megatron-LM, Megatron-Bridge, NeMo, Primus, torchtitan, DeepSpeed or nanotron, found \
                   another one; give the launch script, or a log";
        return found
            .map(|job| named(job, sources))
            .ok_or_else(|| JobError::File { place: first.0.to_string(), why: why.to_string() });
    }
    if first.0.ends_with(".py") {
        let why = "expected a launch script, a configuration or a log, found a Python program; give the command that starts it after --";
        return Err(JobError::File { place: first.0.to_string(), why: why.to_string() });
    }
    let mut launch = shell::launch(sources)?;
    if !launch.absent.is_empty() && !sources.has_looked {
        return Err(JobError::Missing(launch.absent.into_iter().map(|path| Missing::File { path }).collect()));
    }
    if launch.words.iter().any(|word| word.starts_with("$(yq")) {
        launch.settings.0.splice(0..0, of_yaml(&launch, sources)?.0);
    }
    let absent = launch.absent.clone();
    let with_absent = |error| match error {
        JobError::Missing(mut missing) if missing.iter().any(|one| matches!(one, Missing::Variable { .. })) => {
            missing.extend(absent.iter().map(|path| Missing::File { path: path.clone() }));
            JobError::Missing(missing)
        }
        other => other,
    };
    let mut job = match config::of_launch(&launch, sources)? {
        Some(job) => job,
        None => megatron::read(&launch, sources).map_err(with_absent)?,
    };
    if launch.others > 0 {
        job.assumed.push(format!("the first of {} commands that start a training", launch.others + 1));
    }
    Ok(named(job, sources))
}

/// Returns the options that a script takes from the MODEL_ARGS of a YAML file: the one that one of its variables names, or that of MODEL.
fn of_yaml(launch: &Launch, sources: &Sources) -> Result<Settings, JobError> {
    let path = |value: &String| {
        value.trim_end_matches(".tmp").ends_with(".yaml").then(|| value.trim_end_matches(".tmp").to_string())
    };
    let of_model = || launch.environment.get("MODEL").map(|model| format!("{model}.yaml"));
    let path = launch.environment.values().find_map(path).or_else(of_model);
    let given = || sources.files.iter().find(|file| file.text.contains("MODEL_ARGS:"));
    let file = path.as_ref().and_then(|path| sources.find(path)).or_else(given).ok_or_else(|| {
        JobError::Missing(vec![Missing::File { path: path.unwrap_or_else(|| "MODEL.yaml".to_string()) }])
    })?;
    megatron::yaml::options(file, &launch.environment)
}

/// Reads a job from a log. If the log has no arguments, the job is that of the other files, if there are any.
///
/// # Errors
/// It is no log of a training, or it has arguments that are no job.
pub fn read_log(name: &str, reader: &mut dyn BufRead, others: &Sources) -> Result<Job, JobError> {
    let log = log::read(name, reader)?;
    let mut job = match () {
        () if !log.settings.0.is_empty() => megatron::of_arguments(&log.settings, log.world, others)?,
        () if !others.files.is_empty() => read(others)?,
        () => Job { framework: log.framework.clone().unwrap_or_default(), ..Job::default() },
    };
    job.files.insert(0, name.to_string());
    job.reading.world = job.reading.world.or(log.world);
    job.measured = Some(log.measurement);
    Ok(job)
}

fn named(mut job: Job, sources: &Sources) -> Job {
    job.files = sources.files.iter().map(|file| file.name.clone()).collect();
    job
}
