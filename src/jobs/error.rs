//! Why files are no job.

use std::collections::BTreeMap;

/// Why files are no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A file is not what its kind expects, at `FILE:LINE`.
    #[error("{place}: {why}")]
    File {
        /// File and line.
        place: String,
        /// What was expected, what was found, and what to do.
        why: String,
    },
    /// Values that the job takes from elsewhere: environment variables, positional parameters or files.
    #[error("{}", missing(.0))]
    Missing(Vec<Missing>),
}

/// Something that the job needs and that its files do not say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// A variable that is set elsewhere, and the option that uses it.
    Variable {
        /// Its name.
        name: String,
        /// The option, or the place, that needs it.
        used_by: String,
    },
    /// A positional parameter of the script, counted from 1.
    Parameter {
        /// Its number.
        number: usize,
        /// The variable that it is assigned to, or the option that needs it.
        used_by: String,
    },
    /// A file that the job refers to.
    File {
        /// Its path, as the job writes it.
        path: String,
    },
    /// The number of GPUs.
    World,
}

fn missing(all: &[Missing]) -> String {
    let (mut variables, mut parameters) = (BTreeMap::<&str, Vec<&str>>::new(), BTreeMap::<usize, Vec<&str>>::new());
    let mut files = Vec::new();
    for one in all {
        match one {
            Missing::Variable { name, used_by } => variables.entry(name).or_default().push(used_by),
            Missing::Parameter { number, used_by } => parameters.entry(*number).or_default().push(used_by),
            Missing::File { path } => files.push(path.as_str()),
            Missing::World => {}
        }
    }
    let mut sentences = Vec::new();
    if !variables.is_empty() {
        let all = listed(variables.iter().map(|(name, users)| (name.to_string(), users)));
        sentences.push(format!(
            "expected variables that are set outside of the script: {all}; give each with `job-env` NAME=VALUE"
        ));
    }
    if !parameters.is_empty() {
        let all = listed(parameters.iter().map(|(number, users)| (format!("${number}"), users)));
        sentences.push(format!("expected parameters of the script: {all}; give all of them with `job-args`"));
    }
    let wanted = |path| format!("expected the file {path}, which the job reads; give it with `job-file`");
    sentences.extend(files.into_iter().map(wanted));
    if all.contains(&Missing::World) {
        sentences.push("expected the number of GPUs, which the job does not say; give it with `gpus`".to_string());
    }
    sentences.join(". ")
}

/// Lists names with what uses each: at most two.
fn listed<'a>(names: impl Iterator<Item = (String, &'a Vec<&'a str>)>) -> String {
    let one = |(name, users): (String, &Vec<&str>)| match users[..] {
        [first, second, _, ..] => format!("{name} (for {first}, {second}, ...)"),
        _ => format!("{name} (for {})", users.join(", ")),
    };
    names.map(one).collect::<Vec<_>>().join(", ")
}
